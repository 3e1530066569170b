"""Expressions of the kernel IR written as LLVM IR, each once per scope.

Inside a lanes loop a varying value is `unroll` vectors, written side by side, so that loops and
conditions inside the lanes loop are shared by them; a uniform value stays one scalar and is
spread over a vector where one is needed.

What does not change in a loop is written before it. LLVM would do that too, but it takes longer
over it, and it may not move loads as far as a kernel's own rules allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.codegen.cpu import cross_lane, memory
from numus.codegen.cpu.target import LlvmTarget
from numus.codegen.invalidation import MemoryDependences
from numus.codegen.llvm import arithmetic, casts, int_division
from numus.codegen.llvm.builder import (
    SCALAR,
    IRBuilder,
    Shape,
    Value,
    const_literal,
    register_type,
)
from numus.codegen.llvm.divergence import LaneStrides, Plan
from numus.dtypes import DType
from numus.errors import CompileError


@dataclass(slots=True)
class Lane:
    """The lanes loop that is being written."""

    var: ir.Expr
    growths: LaneStrides
    shape: Shape
    unroll: int
    first: Value  # the scalar value of `var` in lane 0 of vector 0
    step: Value
    mask: Value | None  # lanes that exist, where not all do
    outer: frozenset[ir.Register]  # registers that lived before the loop
    streamed: frozenset[ir.Store]  # stores that go past the caches


@dataclass(slots=True)
class _Close:
    """On the work stack: the end of a guard's slow side."""

    guard: ir.Expr
    rare: Value
    usual: tuple[str, ...]
    before: str
    join: str
    vec: bool


@dataclass(slots=True)
class Block:
    """The statements being written, and the loads of stride 2 among them that come in pairs."""

    body: list[ir.Stmt]
    pairs: dict[ir.Expr, tuple[ir.Expr, ir.Expr]] | None = None


@dataclass(slots=True)
class Scope:
    """A region of the program: "loop", "branch" (it may not run), or "plain"."""

    kind: str
    before: list[Any]  # of a loop: the code ahead of it
    undo: list[tuple[dict[Any, Any], Any, Any]] = field(default_factory=list)


# What may not be moved: it reads what statements change, or it is more than straight code.
_FIXED = frozenset(("read", "lanes_reduce", "lanes_min_where"))


@dataclass(slots=True)
class Expressions:
    """Writes expressions; remembers what is written and takes it back when a scope ends."""

    target: LlvmTarget
    plan: Plan
    t: IRBuilder
    scalars: dict[str, str]
    buffers: dict[ir.Buffer, str]
    tags: dict[ir.Buffer, str]  # alias information of each buffer's accesses
    lane: Lane | None = None
    registers: dict[ir.Register, list[str]] = field(default_factory=dict)
    values: dict[ir.Expr, Value] = field(default_factory=dict)
    bases: dict[ir.Expr, Value] = field(default_factory=dict)  # lane-0 values of affine indices
    splats: dict[str, str] = field(default_factory=dict)
    origins: MemoryDependences = field(default_factory=MemoryDependences)
    scopes: list[Scope] = field(default_factory=lambda: [Scope("branch", [])])
    blocks: list[Block] = field(default_factory=list)
    # quotients of 64-bit vectors by the names of their operands, see `llvm_divide`
    quotients: dict[tuple[tuple[str, ...], ...], tuple[tuple[str, str, str], ...]] = field(
        default_factory=dict
    )
    division_space: tuple[str, str] | None = None

    # -- scopes -----------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        return len(self.scopes) - 1

    def push(self, kind: str = "plain", before: list[Any] | None = None) -> None:
        self.scopes.append(Scope(kind, [] if before is None else before))

    def pop(self) -> None:
        for table, key, previous in reversed(self.scopes.pop().undo):
            if previous is None:
                table.pop(key, None)
            else:
                table[key] = previous

    def remember(self, table: dict[Any, Any], key: Any, value: Any, home: int = -1) -> None:
        """Note something until the scope `home` ends."""
        self.scopes[home].undo.append((table, key, table.get(key)))
        table[key] = value

    def place(self, level: int) -> tuple[int, list[Any]]:
        """Where to write what depends on nothing inside `level`: until when it holds, and where.

        Out of every loop that it does not depend on, but not out of a branch, which may not run;
        code ahead of a loop runs only if the loop does, so it holds no longer than that.
        """
        home, lines = self.depth, self.t.body
        for j in range(self.depth, level, -1):
            scope = self.scopes[j]
            if scope.kind == "branch":
                break
            if scope.kind == "loop":
                home, lines = j, scope.before
            elif lines is self.t.body:
                home = j - 1
        return home, lines

    def forget(self, things: Iterable[Any]) -> None:
        """Registers or buffers have new values: what was computed from the old ones is stale."""
        for e in self.origins.invalidated_by(things):
            self.values.pop(e, None)
            self.bases.pop(e, None)

    # -- shapes -----------------------------------------------------------------------------------

    def growth(self, e: ir.Expr) -> int | None:
        return 0 if self.lane is None else self.lane.growths.of(e)

    def splat(self, scalar_type: str, v: Value, shape: Shape) -> str:
        """A scalar in every lane."""
        name = v.names[0]
        if not name.startswith("%"):
            return shape.const(scalar_type, name)
        key = f"{shape.width} {name}"
        found = self.splats.get(key)
        if found is None:
            home, lines = self.place(v.level)
            t, saved = self.t, self.t.lines
            t.lines = lines
            ty = shape.of(scalar_type)
            one = t.new(f"insertelement {ty} poison, {scalar_type} {name}, i64 0")
            zeros = f"<{shape.width} x i32> zeroinitializer"
            found = t.new(f"shufflevector {ty} {one}, {ty} poison, {zeros}")
            t.lines = saved
            self.remember(self.splats, key, found, home)
        return found

    def vectors(self, v: Value, dtype: DType) -> tuple[str, ...]:
        """A value as the vectors of the current lanes loop."""
        if v.vec:
            return v.names
        assert self.lane is not None
        return (self.splat(register_type(dtype), v, self.lane.shape),) * self.lane.unroll

    def each(self, args: Iterable[ir.Expr], write: Callable[..., str]) -> Value:
        """Write an operation on scalars, or once per vector where an argument varies."""
        args = tuple(args)
        given = [self.values[a] for a in args]
        if not any(v.vec for v in given):
            return Value((write(SCALAR, *(v.names[0] for v in given)),), False)
        assert self.lane is not None
        columns = [self.vectors(v, a.dtype) for v, a in zip(given, args, strict=True)]
        shape = self.lane.shape
        return Value(tuple(write(shape, *names) for names in zip(*columns, strict=True)), True)

    def uniform(self, e: ir.Expr, what: str) -> str:
        v = self.value(e)
        if v.vec:
            raise CompileError(f"{what} varies between lanes: {e!r:.200}")
        return v.names[0]

    # -- expressions ------------------------------------------------------------------------------

    def value(self, root: ir.Expr) -> Value:
        """Write an expression, operands first. Iterative: chains may be thousands deep."""
        values = self.values
        found = values.get(root)
        if found is not None:
            return found
        stack: list[ir.Expr | _Close] = [root]
        while stack:
            top = stack[-1]
            if isinstance(top, _Close):
                stack.pop()
                self._close_guard(top)
                continue
            if top in values:
                stack.pop()
                continue
            missing = [a for a in self._needs(top) if a not in values]
            if missing:
                stack.extend(reversed(missing))
                continue
            if top.op == "slow_path":
                stack[-1] = self._open_guard(top)
                stack.append(top.args[1])
                continue
            stack.pop()
            self._write_in_place(top)
        return values[root]

    def _write_in_place(self, e: ir.Expr) -> None:
        level = self._level(e)
        home, lines = self.place(level)
        saved, self.t.lines = self.t.lines, lines
        v = self._write(e)
        self.t.lines = saved
        v.level = level
        if e not in self.values:  # a load may have written itself with its pair
            self.keep(e, v, home)

    def _level(self, e: ir.Expr) -> int:
        """The innermost scope that an expression depends on."""
        if e.op in _FIXED or (e.op in ("idiv", "irem") and int_division.is_fixed(self, e)):
            return self.depth
        if e.op == "var":
            return self.lane.first.level if self.lane is not None else 0
        if e.op == "load":
            return memory.level(self, e)
        return max((self.values[a].level for a in e.args), default=0)

    def keep(self, e: ir.Expr, v: Value, home: int = -1) -> None:
        self.origins.record(e)
        self.remember(self.values, e, v, home)

    def _needs(self, e: ir.Expr) -> tuple[ir.Expr, ...]:
        """The operands that must be written before this one (the rest is addressed or guarded)."""
        if e.op == "slow_path":
            return (e.args[0], e.args[2])
        if e.op == "load" and self.growth(e.args[0]) in memory.WIDE:
            return e.args[1:]
        return e.args

    def _write(self, e: ir.Expr) -> Value:
        op, dtype, args, t = e.op, e.dtype, e.args, self.t
        if op == "const":
            return Value((const_literal(e),), False)
        if op == "load":
            return memory.load(self, e)
        if op == "var":
            return self._variable(e)
        if op == "scalar":
            return Value((self.scalars[e.attr],), False)
        if op == "read":
            return self._read(e.attr)
        if op == "lanes_reduce":
            return self._lanes_reduce(*e.attr)
        if op == "lanes_min_where":
            return cross_lane.least(self, e.attr[0], e.attr[1], self.values[args[0]])
        if op in ("lanes_xor", "lanes_shift", "lanes_last"):
            return cross_lane.between(self, e)
        try:
            if op == "cast":
                source = args[0].dtype
                return self.each(args, lambda s, x: casts.cast(t, self.target, s, x, source, dtype))
            if op == "bitcast":
                source = args[0].dtype
                return self.each(args, lambda s, x: casts.bitcast(t, s, x, source, dtype))
            if op == "select":
                return self.each(
                    args,
                    lambda s, c, x, y: t.new(
                        f"select {s.of('i1')} {c}, {s.type(dtype)} {x}, {s.type(dtype)} {y}"
                    ),
                )
            if op == "fma":
                return self.each(args, lambda s, x, y, z: arithmetic.fma(t, s, dtype, x, y, z))
            if op in ir.COMPARES:
                of = args[0].dtype
                return self.each(args, lambda s, x, y: arithmetic.compare(t, s, op, of, x, y))
            if op in ("min", "max"):
                tame = next((n for n, a in zip("xy", args, strict=True) if _not_nan(a)), "")
                return self.each(
                    args,
                    lambda s, x, y: arithmetic.extreme(t, self.target, s, op, dtype, x, y, tame),
                )
            if op in ("idiv", "irem"):
                return int_division.divide(self, e)
            if op in ir.UNARY:
                return self.each(args, lambda s, x: arithmetic.unary(t, s, op, dtype, x))
            if op in ir.BINARY:
                return self.each(
                    args, lambda s, x, y: arithmetic.binary(t, self.target, s, op, dtype, x, y)
                )
        except arithmetic.UnsupportedError as error:
            raise CompileError(f"the kernel IR has no {error}") from None
        raise CompileError(f"the kernel IR has no operation {op!r}")

    def _variable(self, e: ir.Expr) -> Value:
        lane = self.lane
        if lane is None or e is not lane.var:
            raise CompileError(f"variable {e.attr!r} is used where it has no value")
        width, t = lane.shape.width, self.t
        ty = lane.shape.of("i64")
        start = self.splat("i64", lane.first, lane.shape)
        step = self.splat("i64", lane.step, lane.shape)
        stepped = lane.step.names[0] != "1"
        names = []
        for u in range(lane.unroll):
            iota = ", ".join(f"i64 {u * width + i}" for i in range(width))
            offset = f"<{iota}>"
            if stepped:
                offset = t.new(f"mul {ty} {step}, {offset}")
            names.append(t.new(f"add {ty} {start}, {offset}"))
        return Value(tuple(names), True)

    def base(self, e: ir.Expr) -> Value:
        """The scalar value that an affine index has in the first lane."""
        lane = self.lane
        if lane is None or lane.growths.of(e) == 0:
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
        home, lines = self.place(level)
        t, saved = self.t, self.t.lines
        t.lines = lines
        if e.op == "select":
            name = t.new("select i1 {}, i64 {}, i64 {}".format(*names))
        elif e.op == "neg":
            name = t.new(f"sub i64 0, {names[0]}")
        else:
            name = t.new(f"{e.op} i64 {names[0]}, {names[1]}")
        t.lines = saved
        self.origins.record(e)
        found = Value((name,), False, level)
        self.remember(self.bases, e, found, home)
        return found

    # -- guards -----------------------------------------------------------------------------------

    def _open_guard(self, e: ir.Expr) -> _Close:
        t = self.t
        rare = self.values[e.args[0]]
        usual = self.values[e.args[2]]
        vec = self.growth(e) != 0
        usual_names = self.vectors(usual, e.dtype) if vec else usual.names
        slow, join = t.label("slow"), t.label("join")
        close = _Close(e, rare, usual_names, t.block, join, vec)
        t.branch(self.any(rare), slow, join)
        t.start(slow)
        self.push("branch")
        return close

    def any(self, condition: Value) -> str:
        """Whether a condition holds in any lane that exists."""
        t = self.t
        if not condition.vec:
            return condition.names[0]
        assert self.lane is not None
        shape = self.lane.shape
        ty = shape.of("i1")
        total = condition.names[0]
        for name in condition.names[1:]:
            total = t.new(f"or {ty} {total}, {name}")
        if self.lane.mask is not None:
            total = t.new(f"and {ty} {total}, {self.lane.mask.names[0]}")
        return t.call("i1", f"llvm.vector.reduce.or.{shape.suffix('i1')}", (ty, total))

    def _close_guard(self, close: _Close) -> None:
        t, e = self.t, close.guard
        slow = self.values[e.args[1]]
        shape = self.lane.shape if close.vec and self.lane is not None else SCALAR
        ty, b = shape.type(e.dtype), shape.of("i1")
        names = self.vectors(slow, e.dtype) if close.vec else slow.names
        if close.rare.vec:
            names = tuple(
                t.new(f"select {b} {c}, {ty} {x}, {ty} {y}")
                for c, x, y in zip(close.rare.names, names, close.usual, strict=True)
            )
        end = t.block
        t.jump(close.join)
        self.pop()
        t.start(close.join)
        merged = tuple(
            t.new(f"phi {ty} [ {y}, %{close.before} ], [ {x}, %{end} ]")
            for x, y in zip(names, close.usual, strict=True)
        )
        self.keep(e, Value(merged, close.vec, self.depth))

    # -- registers --------------------------------------------------------------------------------

    def storage(self, register: ir.Register) -> list[str]:
        """The stack slots of a register; LLVM turns them into machine registers."""
        slots = self.registers.get(register)
        if slots is None:
            count = self.plan.vectors.get(register, 1) if register.lanes else 1
            ty = self.register_shape(register).type(register.dtype)
            slots = self.registers[register] = [self.t.alloca(ty) for _ in range(count)]
        return slots

    def register_shape(self, register: ir.Register) -> Shape:
        if not register.lanes:
            return SCALAR
        width = self.plan.register_widths.get(register)
        if width is None:
            raise CompileError(f"register {register.name!r} has lanes but no lanes loop uses it")
        return Shape(width)

    def _read(self, register: ir.Register) -> Value:
        ty = self.register_shape(register).type(register.dtype)
        if not register.lanes:
            return Value((self.t.new(f"load {ty}, ptr {self.storage(register)[0]}"),), False)
        if self.lane is None:
            raise CompileError(
                f"register {register.name!r} has lanes: outside a lanes loop it can only be reduced"
            )
        slots = self.storage(register)[: self.lane.unroll]
        names = tuple(self.t.new(f"load {ty}, ptr {slot}") for slot in slots)
        if self.lane.shape.width != self.register_shape(register).width:
            names = (self._first_lane(register, names[0]),)
        return Value(names, True)

    def _first_lane(self, register: ir.Register, whole: str) -> str:
        """A register's first lane, as a vector of one."""
        ty = self.register_shape(register).type(register.dtype)
        return self.t.new(f"shufflevector {ty} {whole}, {ty} poison, <1 x i32> zeroinitializer")

    def into_first_lane(self, register: ir.Register, one: str) -> str:
        """A register with its first lane from a vector of one."""
        scalar, t = register_type(register.dtype), self.t
        ty = self.register_shape(register).of(scalar)
        old = t.new(f"load {ty}, ptr {self.storage(register)[0]}")
        element = t.new(f"extractelement <1 x {scalar}> {one}, i64 0")
        return t.new(f"insertelement {ty} {old}, {scalar} {element}, i64 0")

    def _lanes_reduce(self, op: str, register: ir.Register) -> Value:
        return cross_lane.reduced(self, op, register)


def _not_nan(e: ir.Expr) -> bool:
    if e.op != "const":
        return False
    value = ir.const_value(e)
    return bool(value == value) and e.dtype is not dt.bool_
