"""Expressions of the kernel IR in WGSL, each written once per scope."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.codegen.wgsl import arithmetic, memory
from numus.codegen.wgsl.context import ShaderContext
from numus.codegen.wgsl.vectors import load_vector
from numus.errors import CompileError
from numus.ir import Expr, expressions_of, post_order, statements

_ROUNDED = ("add", "sub", "mul")
_VARYING = frozenset("load load_vector read lanes_reduce lanes_xor lanes_shift lanes_last".split())
# Operations that a compiler may contract or reassociate with a sum or product among their operands.
_COMBINES = frozenset("add sub mul div neg abs select min max copysign cast".split())


def contractible(kernel: ir.Kernel, exact_fma: bool) -> set[Expr]:
    """Sums and products whose rounding a compiler could undo, because it sees their uses."""
    uses, seen = set[Expr](), set[Expr]()
    for s in statements(kernel.body):
        if isinstance(s, ir.Let):
            if s.relaxed:
                continue
            uses.add(s.value)
        for e in post_order(expressions_of(s), seen):
            if e.op in _COMBINES and arithmetic.is_float(e):
                uses.update(e.args)
    return {e for e in uses if _is_rounded(e, exact_fma)}


def _is_rounded(e: Expr, exact_fma: bool) -> bool:
    """Whether a compiler sees a sum or product of floats."""
    visible = e.op == "fma" and e.attr == "unfused" and not (exact_fma and e.dtype is dt.float32)
    return (e.op in _ROUNDED or visible) and arithmetic.is_float(e)


def _cancels(op: str, a: Expr, b: Expr) -> bool:
    """Whether a compiler that assumes finite values would fold this to 0 or 1."""
    if op in ("sub", "div"):
        return a is b
    return op == "add" and (
        (a.op == "neg" and a.args[0] is b) or (b.op == "neg" and b.args[0] is a)
    )


@dataclass(slots=True)
class Expressions(ShaderContext):
    """Writes expressions; memoises them until a scope ends or an operand changes."""

    contractible: set[Expr] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.contractible = contractible(self.kernel, self.target.exact_fma32)

    def hoist(self, s: ir.For) -> None:
        """Write loop-invariant float arithmetic ahead of a loop: the guards against contraction
        hide it from the driver's own LICM.
        """
        for e in ir.loop_invariant(s, lambda e: e.op in _VARYING):
            if e.args and e not in self.values and arithmetic.is_float(e):
                self.value(e)

    def cast_to(self, e: Expr, ty: str) -> str:
        text = self.value(e)
        if self.type(e) == ty:
            return text
        if e.op == "const" and text[0] != "t":
            return arithmetic.literal(ir.const_value(e), e.dtype, ty)
        return f"{ty}({text})"

    def value(self, root: Expr) -> str:
        """Write an expression, operands first; iterative, since chains may be thousands deep."""
        values = self.values
        found = values.get(root)
        if found is not None:
            return found
        stack: list[Any] = [root]
        while stack:
            top = stack[-1]
            if isinstance(top, tuple):
                stack.pop()
                self._close_slow_path(*top)
                continue
            if top in values:
                stack.pop()
                continue
            missing = [a for a in self._operands(top) if a not in values]
            if missing:
                stack.extend(reversed(missing))
                continue
            if top.op == "slow_path":
                name = self.fresh()
                self.emit(f"var {name} = {self.cast_to(top.args[2], self.type(top))};")
                self.open(f"if ({values[top.args[0]]})")
                stack[-1] = (top, name)
                stack.append(top.args[1])
                continue
            stack.pop()
            if top.op == "loop":
                self._write_loop(top)
            else:
                self.memoise(top, self._write(top))
        return values[root]

    def memoise(self, e: Expr, text: str) -> None:
        """Reuse this text for the expression until an operand changes."""
        self.dependences.record(e)
        self.bind(self.values, e, text)

    def _close_slow_path(self, e: Expr, name: str) -> None:
        self.emit(f"{name} = {self.cast_to(e.args[1], self.type(e))};")
        self.close()
        self.memoise(e, name)

    def _write_loop(self, e: Expr) -> None:
        """A `for` with `break`; its value is the names of the variables, spaced."""
        parts = ir.LoopParts.of(e)
        names = [self.fresh() for _ in parts.carried]
        for name, c, x in zip(names, parts.carried, parts.initial, strict=True):
            self.emit(f"var {name} = {self._exposed_operand(x, self.type(c))};")
        count = self.fresh()
        self.open(f"for (var {count} = 0; {count} < {parts.limit}; {count}++)")
        for name, c in zip(names, parts.carried, strict=True):
            self.bind(self.values, c, self.let(name))
        self.emit(f"if (!({self.value(parts.running)})) {{ break; }}")
        following = zip(parts.carried, parts.following, strict=True)
        results = [self._exposed_operand(x, self.type(c)) for c, x in following]
        for name, result in zip(names, results, strict=True):
            self.emit(f"{name} = {result};")
        self.close()
        self.memoise(e, " ".join(names))

    def _operands(self, e: Expr) -> tuple[Expr, ...]:
        """Operands to write first; addresses are written by `index` instead."""
        if e.op == "slow_path":
            return (e.args[0], e.args[2])
        if e.op == "loop":
            parts = ir.LoopParts.of(e)
            return (*parts.initial, *parts.invariants)
        if self._loads_f16_as_f32(e):
            return e.args[0].args[1:]
        return e.args[1:] if e.op in ("load", "load_vector") else e.args

    def _loads_f16_as_f32(self, e: Expr) -> bool:
        if e.op != "cast" or e.dtype is not dt.float32 or e.args[0].op != "load":
            return False
        return self.bindings[e.args[0].attr].storage == "half"

    def _write(self, e: Expr) -> str:
        op, args, ty = e.op, e.args, self.type(e)
        if self._loads_f16_as_f32(e):
            if args[0].attr.access != "read":
                self.dependences.record(args[0])
            return self.let(memory.load_f16_as_f32(self, args[0]))
        if op == "const":
            return arithmetic.literal(ir.const_value(e), e.dtype, ty)
        if op == "scalar":
            return self.scalars[e.attr]
        if op == "loop_result":
            names = self.values[args[0]].split()
            return names[int(e.attr)]
        if op == "var":
            raise CompileError(f"variable {e.attr!r} is used where it has no value")
        if op == "read":
            return self.let(self.registers[e.attr])
        if op == "load":
            return self.let(memory.load(self, e))
        if op == "load_vector":
            return self.let(load_vector(self, e))
        if op == "lanes_reduce":
            raise CompileError("lanes_reduce must be the value of a Let")
        if args and all(a.op == "const" for a in args):
            # named: WGSL's constant evaluation lacks some functions
            for a in (a for a in args if a.dtype.kind != "bool"):
                text = arithmetic.literal(ir.const_value(a), a.dtype, self.type(a), exposed=True)
                self.bind(self.values, a, self.let(text))
        text = self._operation(e, op, args, ty)
        if e in self.contractible:
            text = f"hide{ty[1:]}({text})"
        return self.let(text)

    def _operation(self, e: Expr, op: str, args: tuple[Expr, ...], ty: str) -> str:
        if op == "bitcast" and args[0].op == "const" and args[0].dtype.is_integer and ty[0] == "f":
            bits = args[0].attr % (1 << e.dtype.bits)
            return f"bits{ty[1:]}({bits}{'u' if ty == 'f32' else 'lu'})"
        if op in ("cast", "bitcast"):
            convert = arithmetic.cast if op == "cast" else arithmetic.bitcast
            a = args[0]
            return convert(self.value(a), a.dtype, self.type(a), e.dtype, ty)
        if op == "select":
            condition = self.value(args[0])
            yes, no = (self.cast_to(a, ty) for a in args[1:])
            if args[0].op in ir.COMPARES and arithmetic.is_float(args[0].args[0]):
                # or drivers make it a minimum that drops NaN
                if args[1].op == "const" and ty == "f32" and self.value(args[1])[0] != "t":
                    yes = f"bits32({arithmetic.float_bits(ir.const_value(args[1]), 'f32')}u)"
                else:
                    condition = f"hidden({condition})"
            return f"select({no}, {yes}, {condition})"
        if op == "fma":
            x, y, z = (self._exposed_operand(a, ty) for a in args)
            if e.attr == "unfused" and ty == "f32" and not self.target.exact_fma32:
                return f"({x} * {y} + {z})"
            return f"fma{ty[1:]}({x}, {y}, {z})"
        if op == "dot4":
            return f"dot4({', '.join(self.cast_to(a, self.type(a)) for a in args)})"
        if op in ir.COMPARES:
            types = {self.type(a) for a in args}
            of = types.pop() if len(types) == 1 else "i64"
            x, y = (self.cast_to(a, of) for a in args)
            if of == "i64" and any(a.op == "const" for a in args):
                # Mesa 22 compares widened values as unsigned
                pairs = zip(args, (x, y), strict=True)
                x, y = (t if a.op == "const" else f"hide_i64({t})" for a, t in pairs)
            return arithmetic.compare(op, args[0].dtype, of, x, y)
        if op in ir.UNARY:
            return arithmetic.unary(op, e.dtype, ty, self.cast_to(args[0], ty))
        if op in ("shl", "lshr", "ashr"):
            by = f"{args[1].attr}u" if args[1].op == "const" else f"u32({self.value(args[1])})"
            return arithmetic.shift(op, e.dtype, ty, self.cast_to(args[0], ty), by)
        if op in ir.BINARY:
            x, y = (self._exposed_operand(a, ty) for a in args)
            if arithmetic.is_float(e) and _cancels(op, *args):
                x = f"hide{ty[1:]}({x})"  # inf - inf is NaN
            if op == "irem" and e.dtype.kind == "int" and not self.fits_int32(e):
                return f"({x} - ({x} / {y}) * {y})"  # `%` is undefined below zero on some drivers
            return arithmetic.binary(op, e.dtype, ty, x, y)
        raise CompileError(f"the kernel IR has no operation {op!r}")

    def _exposed_operand(self, e: Expr, ty: str) -> str:
        if e.op == "const" and e.dtype.kind == "float" and self.value(e)[0] != "t":
            return arithmetic.literal(ir.const_value(e), e.dtype, ty, exposed=True)
        return self.cast_to(e, ty)

    def index(self, e: Expr) -> str:
        """A 32-bit index; of a wide expression only the low bits are computed."""
        if self.type(e) == "i32":
            return self.value(e)
        if e.op == "const":
            return arithmetic.literal(e.attr, e.dtype, "i32")
        found = self.indices.get(e)
        if found is None:
            if e.op in ("add", "sub", "mul") and not self.wide:
                x, y = (self.index(a) for a in e.args)
                sign = {"add": "+", "sub": "-", "mul": "*"}[e.op]
                found = self.let(f"{x} {sign} {y}")
            else:
                found = self.let(f"i32({self.value(e)})")
            self.dependences.record(e)
            self.bind(self.indices, e, found)
        return found
