"""Kernel IR expressions in LLVM IR, each emitted once per scope.

Loop-invariant expressions are hoisted here: LLVM's LICM is slower, and cannot move loads as far as
the aliasing rules of kernels allow.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.codegen.llvm import arithmetic, byte_dots, casts, int_division
from numus.codegen.llvm.builder import SCALAR, Value, literal, register_type
from numus.codegen.llvm.context import Context
from numus.errors import CompileError


@dataclass(slots=True)
class _SlowPath:
    """On the work stack: the join after a slow path."""

    select: ir.Expr
    condition: Value
    fast: tuple[str, ...]
    before: str
    join: str
    vec: bool


_UNMOVABLE = frozenset(("read", "lanes_reduce", "lanes_min_where"))  # read mutable state


@dataclass(slots=True)
class Expressions(Context):
    """Emission of expressions; targets provide memory accesses and cross-lane operations."""

    @abstractmethod
    def _load(self, e: ir.Expr) -> Value: ...

    @abstractmethod
    def _load_level(self, e: ir.Expr) -> int:
        """The innermost scope that a load depends on."""

    @abstractmethod
    def _is_addressed_by_base(self, index: ir.Expr) -> bool:
        """Whether a load needs only the first lane of this index."""

    @abstractmethod
    def _cross_lane(self, e: ir.Expr) -> Value: ...

    @abstractmethod
    def _read(self, register: ir.Register) -> Value: ...

    @abstractmethod
    def _lane_variable(self) -> Value:
        """The variable of the current lanes loop, in every lane."""

    def value(self, root: ir.Expr) -> Value:
        """Emit an expression, operands first. Iterative: chains may be thousands deep."""
        values = self.values
        found = values.get(root)
        if found is not None:
            return found
        stack: list[ir.Expr | _SlowPath] = [root]
        while stack:
            top = stack[-1]
            if isinstance(top, _SlowPath):
                stack.pop()
                self._close_slow_path(top)
                continue
            if top in values:
                stack.pop()
                continue
            missing = [a for a in self._needs(top) if a not in values]
            if missing:
                stack.extend(reversed(missing))
                continue
            if top.op == "slow_path":
                stack[-1] = self._open_slow_path(top)
                stack.append(top.args[1])
                continue
            stack.pop()
            if top.op == "loop":
                self._emit_loop(top)
            else:
                self._emit_hoisted(top)
        return values[root]

    def _emit_hoisted(self, e: ir.Expr) -> None:
        level = self._level(e)
        v, home = self.hoisted(level, lambda: self._emit_value(e))
        v.level = level
        if e not in self.values:  # a paired load defines both values
            self.define(e, v, home)

    def _emit_value(self, e: ir.Expr) -> Value:
        v = self._emit(e)
        shape = self.lane.shape if self.lane is not None else SCALAR
        if v.vec and shape.width and self.lane_stride(e) == 0:
            vector = shape.type(e.dtype)  # affine terms cancel: (i - j) + j
            return Value((self.t.new(f"extractelement {vector} {v.names[0]}, i64 0"),), False)
        return v

    def _level(self, e: ir.Expr) -> int:
        """The innermost scope that an expression depends on."""
        if e.op in _UNMOVABLE or (e.op in ("idiv", "irem") and int_division.branches(self, e)):
            return self.depth
        if e.op == "var":
            return self.lane.first.level if self.lane is not None else 0
        if e.op == "load":
            return self._load_level(e)
        args = self._needs(e) if e.op == "dot4" else e.args
        return max((self.values[a].level for a in args), default=0)

    def _needs(self, e: ir.Expr) -> tuple[ir.Expr, ...]:
        """Operands to emit first: not the slow path, nor indices addressed by their base."""
        if e.op == "slow_path":
            return (e.args[0], e.args[2])
        if self._adds_pairs(e):
            return ir.tiny_dots(e)
        if e.op == "load" and self._is_addressed_by_base(e.args[0]):
            return e.args[1:]
        if e.op == "loop":
            parts = ir.LoopParts.of(e)
            return (*parts.initial, *parts.invariants)
        return e.args

    def _adds_pairs(self, e: ir.Expr) -> bool:
        """Products of tiny codes are added as 16 bits, before these are widened."""
        return e.op == "dot4" and e.attr == "tiny" and self.t.target.byte_dot == "pmadd"

    def _emit(self, e: ir.Expr) -> Value:
        op, dtype, args, t = e.op, e.dtype, e.args, self.t
        if op == "const":
            return Value((literal(ir.const_value(e), dtype),), False)
        if op == "load":
            return self._load(e)
        if op == "var":
            if self.lane is None or e is not self.lane.var:
                raise CompileError(f"variable {e.attr!r} is used where it has no value")
            return self._lane_variable()
        if op == "scalar":
            return Value((self.scalars[e.attr],), False)
        if op == "loop_result":
            return self._loop_result(e)
        if op == "read":
            return self._read(e.attr)
        if op.startswith("lanes_"):
            return self._cross_lane(e)
        try:
            if op in ("idiv", "irem"):
                return int_division.divide(self, e)
            if op in ("cast", "bitcast"):
                convert, source = casts.cast if op == "cast" else casts.bitcast, args[0].dtype
                return self.each(args, lambda s, x: convert(t, s, x, source, dtype))
            if op == "select":
                scalar = register_type(dtype)
                return self.each(args, lambda s, c, x, y: t.ops(s, scalar).select(c, x, y))
            if op == "fma":
                return self.each(args, lambda s, *xyz: arithmetic.fma(t, s, dtype, *xyz))
            if op == "dot4":
                if self._adds_pairs(e):
                    return self.each(ir.tiny_dots(e), lambda s, *xs: byte_dots.tiny(t, s, *xs))
                small = e.attr is not None
                return self.each(args, lambda s, c, x, y: byte_dots.dot4(t, s, c, x, y, small))
            emit: Callable[..., str] = arithmetic.binary
            of = args[0].dtype if op in ir.COMPARES else dtype
            if op in ("min", "max"):
                not_nan = next((n for n, a in zip("xy", args, strict=True) if _not_nan(a)), "")
                emit = functools.partial(arithmetic.min_max, not_nan=not_nan)
            elif op in ir.COMPARES:
                emit = arithmetic.compare
            elif op in ir.UNARY:
                emit = arithmetic.unary
            elif op not in ir.BINARY:
                raise CompileError(f"the kernel IR has no operation {op!r}")
            return self.each(args, lambda s, *operands: emit(t, s, op, of, *operands))
        except arithmetic.UnsupportedError as error:
            raise CompileError(f"the kernel IR has no {error}") from None

    def base(self, e: ir.Expr) -> Value:
        lane = self.lane
        if lane is None or lane.strides.of(e) == 0:
            return self.value(e)
        if e is lane.var:
            return lane.first
        found = self.bases.get(e)
        if found is not None:
            return found
        args = [self.value(e.args[0])] if e.op == "select" else []
        args += [self.base(a) for a in e.args[len(args) :]]
        names = [a.names[0] for a in args]
        level = max(a.level for a in args)
        if e.op == "select":
            text = "select i1 {}, i64 {}, i64 {}".format(*names)
        elif e.op == "neg":
            text = f"sub i64 0, {names[0]}"
        else:
            text = f"{e.op} i64 {names[0]}, {names[1]}"
        name, home = self.hoisted(level, lambda: self.t.new(text))
        self.dependences.record(e)
        found = Value((name,), False, level)
        self.bind(self.bases, e, found, home)
        return found

    # -- slow paths -------------------------------------------------------------------------------

    def _open_slow_path(self, e: ir.Expr) -> _SlowPath:
        t = self.t
        condition, fast = self.values[e.args[0]], self.values[e.args[2]]
        vec = self.lane_stride(e) != 0
        names = self.vectors(fast, e.dtype) if vec else fast.names
        slow, join = t.label("slow"), t.label("join")
        path = _SlowPath(e, condition, names, t.block, join, vec)
        t.branch(self.any(condition), slow, join)
        t.start(slow)
        self.push("branch")
        return path

    def _close_slow_path(self, path: _SlowPath) -> None:
        t, e = self.t, path.select
        slow = self.values[e.args[1]]
        shape = self.lane.shape if path.vec and self.lane is not None else SCALAR
        ops = t.ops(shape, register_type(e.dtype))
        names = self.vectors(slow, e.dtype) if path.vec else slow.names
        if path.condition.vec:
            names = tuple(map(ops.select, path.condition.names, names, path.fast))
        end = t.block
        t.jump(path.join)
        self.pop()
        t.start(path.join)
        merged = tuple(
            t.new(f"phi {ops.ty} [ {y}, %{path.before} ], [ {x}, %{end} ]")
            for x, y in zip(names, path.fast, strict=True)
        )
        self.define(e, Value(merged, path.vec, self.depth))

    # -- loops ------------------------------------------------------------------------------------

    def _emit_loop(self, e: ir.Expr) -> None:
        """The carried values in stack slots, which LLVM promotes; its value is all final ones."""
        t, parts, vec = self.t, ir.LoopParts.of(e), self.lane_stride(e) != 0
        shape = self.lane.shape if vec and self.lane is not None else SCALAR
        slots = []
        for x in parts.initial:
            names = self.vectors(self.values[x], x.dtype) if vec else self.values[x].names
            slots.append([t.alloca(shape.type(x.dtype)) for _ in names])
            for name, slot in zip(names, slots[-1], strict=True):
                t.do(f"store {shape.type(x.dtype)} {name}, ptr {slot}")
        count = t.alloca("i32")
        t.do(f"store i32 0, ptr {count}")
        head, body, done = t.label("loop"), t.label("step"), t.label("done")
        t.jump(head)
        t.start(head)
        self.push("branch")
        for c, places in zip(parts.carried, slots, strict=True):
            loaded = (t.new(f"load {shape.type(c.dtype)}, ptr {p}") for p in places)
            self.define(c, Value(tuple(loaded), vec, self.depth))
        running = self.value(parts.running)
        steps = t.new(f"load i32, ptr {count}")
        more = t.new(f"icmp slt i32 {steps}, {parts.limit}")
        t.branch(t.new(f"and i1 {more}, {self.any(running)}"), body, done)
        t.start(body)
        t.do(f"store i32 {t.new(f'add i32 {steps}, 1')}, ptr {count}")
        results = [self.value(x) for x in parts.following]
        for c, result, places in zip(parts.carried, results, slots, strict=True):
            ops = t.ops(shape, register_type(c.dtype))
            names = self.vectors(result, c.dtype) if vec else result.names
            if running.vec:
                names = tuple(map(ops.select, running.names, names, self.values[c].names))
            for name, place in zip(names, places, strict=True):
                t.do(f"store {ops.ty} {name}, ptr {place}")
        t.jump(head)
        self.pop()
        t.start(done)
        final = [
            t.new(f"load {shape.type(c.dtype)}, ptr {p}")
            for c, places in zip(parts.carried, slots, strict=True)
            for p in places
        ]
        self.define(e, Value(tuple(final), vec, self.depth))

    def _loop_result(self, e: ir.Expr) -> Value:
        loop = self.values[e.args[0]]
        size = len(loop.names) // e.args[0].attr[0]
        return Value(loop.names[e.attr * size : (e.attr + 1) * size], loop.vec)


def _not_nan(e: ir.Expr) -> bool:
    if e.op != "const":
        return False
    value = ir.const_value(e)
    return bool(value == value) and e.dtype is not dt.bool_
