"""Expressions of the kernel IR written as WGSL, each once per scope."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.codegen.invalidation import MemoryDependences
from numus.codegen.wgsl import arithmetic, memory
from numus.codegen.wgsl.index_width import Narrow
from numus.codegen.wgsl.target import WgslTarget
from numus.errors import CompileError, DTypeError
from numus.ir import Expr, expressions_of, post_order, statements

_ROUNDED = ("add", "sub", "mul")
# What a compiler may combine with the sum or product that it is given.
_CHANGING = frozenset("load load4 read lanes_reduce lanes_xor lanes_shift lanes_last".split())
_COMBINES = frozenset("add sub mul div neg abs select min max copysign cast".split())


def exposed(kernel: ir.Kernel) -> set[Expr]:
    """Sums and products whose rounding a compiler could undo, because it sees where they go."""
    found: set[Expr] = set()
    seen: set[Expr] = set()
    for s in statements(kernel.body):
        if isinstance(s, ir.Let) and _is_rounded(s.value):
            found.add(s.value)
        for e in post_order(expressions_of(s), seen):
            if e.op in _COMBINES and arithmetic.is_float(e):
                found.update(a for a in e.args if _is_rounded(a))
    return found


def _is_rounded(e: Expr) -> bool:
    """Whether a value is a sum or a product of floats, in the eyes of a compiler."""
    rounded = e.op in _ROUNDED or (e.op == "fma" and e.attr == "unfused")
    return rounded and arithmetic.is_float(e)


def _opposed(op: str, a: Expr, b: Expr) -> bool:
    """Whether a compiler that knows no infinities would see 0 or 1 here."""
    if op in ("sub", "div"):
        return a is b
    return op == "add" and (
        (a.op == "neg" and a.args[0] is b) or (b.op == "neg" and b.args[0] is a)
    )


@dataclass(slots=True)
class Values:
    """Writes expressions; remembers what is written and takes it back when a scope ends."""

    kernel: ir.Kernel
    target: WgslTarget
    wide: bool  # whether indices need 64 bits
    narrow: Narrow
    scalars: dict[str, str]
    places: dict[ir.Buffer, memory.Place]
    fragile: set[Expr] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    count: int = 0
    registers: dict[ir.Register, str] = field(default_factory=dict)
    values: dict[Expr, str] = field(default_factory=dict)
    indices: dict[Expr, str] = field(default_factory=dict)  # 32-bit forms of wide ones
    origins: MemoryDependences = field(default_factory=MemoryDependences)
    undo: list[list[tuple[dict[Any, Any], Any, Any]]] = field(default_factory=lambda: [[]])

    def __post_init__(self) -> None:
        self.fragile = exposed(self.kernel)

    # -- text and scopes --------------------------------------------------------------------------

    def do(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def name(self, prefix: str = "t") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def new(self, text: str) -> str:
        """Name a value."""
        name = self.name()
        self.do(f"let {name} = {text};")
        return name

    def open(self, head: str) -> None:
        self.do(f"{head} {{")
        self.depth += 1
        self.undo.append([])

    def close(self) -> None:
        self._take_back(self.undo.pop())
        self.depth -= 1
        self.do("}")

    @contextlib.contextmanager
    def scope(self) -> Iterator[list[tuple[dict[Any, Any], Any, Any]]]:
        """What is written inside is forgotten afterwards, though it stays written."""
        written: list[tuple[dict[Any, Any], Any, Any]] = []
        self.undo.append(written)
        yield written
        self._take_back(self.undo.pop())

    def _take_back(self, entries: list[tuple[dict[Any, Any], Any, Any]]) -> None:
        for table, key, previous in reversed(entries):
            if previous is None:
                table.pop(key, None)
            else:
                table[key] = previous

    def remember(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        self.undo[-1].append((table, key, table.get(key)))
        table[key] = value

    def forget(self, things: Iterable[Any]) -> None:
        """Registers or buffers have new values: what was computed from the old ones is stale."""
        for e in self.origins.invalidated_by(things):
            self.values.pop(e, None)
            self.indices.pop(e, None)

    def hoist(self, s: ir.For) -> None:
        """Write what is the same in all turns of a loop ahead of it: drivers see through little of
        the arithmetic that is written out.
        """
        for e in ir.loop_invariant(s, lambda e: e.op in _CHANGING):
            if e.args and e not in self.values and arithmetic.is_float(e):
                self.value(e)

    # -- types ------------------------------------------------------------------------------------

    def type(self, e: Expr) -> str:
        """The WGSL type that carries an expression."""
        if e.dtype is ir.INDEX and (not self.target.i64 or (not self.wide and self.small(e))):
            return "i32"
        return self.type_of(e.dtype)

    def type_of(self, dtype: dt.DType) -> str:
        """The type of registers and memory of a dtype."""
        if dtype is ir.INDEX and not self.target.i64:
            return "i32"
        carrier = arithmetic.carrier(dtype)
        if carrier == "f64" and not self.target.f64:
            raise DTypeError("this adapter has no float64: it lacks the feature shader-f64")
        if carrier == "u64" and not self.target.i64:
            raise DTypeError("this adapter has no uint64: it lacks the feature shader-int64")
        return carrier

    def small(self, e: Expr) -> bool:
        return e in self.narrow.found

    def carried(self, e: Expr, ty: str) -> str:
        """An expression as a value of another size of integer."""
        text = self.value(e)
        given = self.type(e)
        if given == ty:
            return text
        if e.op == "const" and text[0] != "t":
            return arithmetic.literal(ir.const_value(e), e.dtype, ty)
        return f"{ty}({text})"

    # -- expressions ------------------------------------------------------------------------------

    def value(self, root: Expr) -> str:
        """Write an expression, operands first. Iterative: chains may be thousands deep."""
        values = self.values
        found = values.get(root)
        if found is not None:
            return found
        stack: list[Any] = [root]
        while stack:
            top = stack[-1]
            if isinstance(top, tuple):
                stack.pop()
                self._close_guard(*top)
                continue
            if top in values:
                stack.pop()
                continue
            missing = [a for a in self._needs(top) if a not in values]
            if missing:
                stack.extend(reversed(missing))
                continue
            if top.op == "slow_path":
                name = self.name()
                self.do(f"var {name} = {self.carried(top.args[2], self.type(top))};")
                self.open(f"if ({values[top.args[0]]})")
                stack[-1] = (top, name)
                stack.append(top.args[1])
                continue
            stack.pop()
            self.keep(top, self._write(top))
        return values[root]

    def keep(self, e: Expr, text: str) -> None:
        """Remember what an expression is written as, as long as that holds."""
        self.origins.record(e)
        self.remember(self.values, e, text)

    def _close_guard(self, e: Expr, name: str) -> None:
        self.do(f"{name} = {self.carried(e.args[1], self.type(e))};")
        self.close()
        self.keep(e, name)

    def _needs(self, e: Expr) -> tuple[Expr, ...]:
        """The operands that must be written before this one (addresses are written as such)."""
        if e.op == "slow_path":
            return (e.args[0], e.args[2])
        if self._widens_half(e):
            return e.args[0].args[1:]
        return e.args[1:] if e.op in ("load", "load4") else e.args

    def _widens_half(self, e: Expr) -> bool:
        """Whether an expression casts a half in memory to float32."""
        if e.op != "cast" or e.dtype is not dt.float32 or e.args[0].op != "load":
            return False
        return self.places[e.args[0].attr].form == "half"

    def _write(self, e: Expr) -> str:
        op, args, ty = e.op, e.args, self.type(e)
        if self._widens_half(e):
            if args[0].attr.access != "read":
                self.origins.record(args[0])
            return self.new(memory.load_wide(self, args[0]))
        if op == "const":
            return arithmetic.literal(ir.const_value(e), e.dtype, ty)
        if op == "scalar":
            return self.scalars[e.attr]
        if op == "var":
            raise CompileError(f"variable {e.attr!r} is used where it has no value")
        if op == "read":
            return self.new(self.registers[e.attr])
        if op == "load":
            return self.new(memory.load(self, e))
        if op == "load4":
            return self.new(f"{self.places[e.attr].name}[{self.index(args[0])}]")
        if op == "lanes_reduce":
            raise CompileError("lanes are reduced by a Let of their own")
        if args and all(a.op == "const" for a in args):
            # named first: WGSL's own evaluation of constants does not know all functions
            for a in args:
                if a.op == "const" and a.dtype.kind != "bool":
                    number = ir.const_value(a)
                    text = arithmetic.literal(number, a.dtype, self.type(a), exposed=True)
                    self.remember(self.values, a, self.new(text))
        text = self._operation(e, op, args, ty)
        if e in self.fragile:
            text = f"hide{ty[1:]}({text})"
        return self.new(text)

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
            yes, no = (self.carried(a, ty) for a in args[1:])
            if args[0].op in ir.COMPARES and arithmetic.is_float(args[0].args[0]):
                # or it becomes a minimum that drops NaN
                bound = self._bound(args)
                if bound is not None:
                    yes = bound
                else:
                    condition = f"hidden({condition})"
            return f"select({no}, {yes}, {condition})"
        if op == "fma":
            x, y, z = (self._operand(a, ty) for a in args)
            if e.attr == "unfused" and ty == "f32" and not self.target.fuses32:
                return f"({x} * {y} + {z})"
            return f"fma{ty[1:]}({x}, {y}, {z})"
        if op in ir.COMPARES:
            of = self._common(args)
            x, y = (self.carried(a, of) for a in args)
            if of == "i64" and any(a.op == "const" for a in args):
                # Mesa 22 compares what it knows to be widened as if it had no sign
                x, y = (
                    t if a.op == "const" else f"hide_i64({t})"
                    for a, t in zip(args, (x, y), strict=True)
                )
            return arithmetic.compare(op, args[0].dtype, of, x, y)
        if op in ir.UNARY:
            return arithmetic.unary(op, e.dtype, ty, self.carried(args[0], ty))
        if op in ("shl", "lshr", "ashr"):
            by = f"{args[1].attr}u" if args[1].op == "const" else f"u32({self.value(args[1])})"
            return arithmetic.shift(op, e.dtype, ty, self.carried(args[0], ty), by)
        if op in ir.BINARY:
            x, y = (self._operand(a, ty) for a in args)
            if arithmetic.is_float(e) and _opposed(op, *args):
                x = f"hide{ty[1:]}({x})"  # infinity less infinity is no zero
            if op == "irem" and e.dtype.kind == "int" and not self.small(e):
                return f"({x} - ({x} / {y}) * {y})"  # `%` is undefined below zero on some drivers
            return arithmetic.binary(op, e.dtype, ty, x, y)
        raise CompileError(f"the kernel IR has no operation {op!r}")

    def _bound(self, args: tuple[Expr, ...]) -> str | None:
        """The first choice of a selection, where that is a constant which it can be hidden in."""
        yes, ty = args[1], self.type(args[1])
        if yes.op != "const" or ty != "f32" or self.value(yes)[0] == "t":
            return None
        return arithmetic.hidden_constant(ir.const_value(yes))

    def _common(self, args: tuple[Expr, ...]) -> str:
        """The type in which two values are compared: the wider one."""
        types = {self.type(a) for a in args}
        return types.pop() if len(types) == 1 else "i64"

    def _operand(self, e: Expr, ty: str) -> str:
        if e.op == "const" and e.dtype.kind == "float" and self.value(e)[0] != "t":
            return arithmetic.literal(ir.const_value(e), e.dtype, ty, exposed=True)
        return self.carried(e, ty)

    def index(self, e: Expr) -> str:
        """An expression as a 32-bit index: of a wide one only the low bits are computed."""
        if self.type(e) == "i32":
            return self.value(e)
        if e.op == "const":
            return arithmetic.literal(e.attr, e.dtype, "i32")
        found = self.indices.get(e)
        if found is None:
            if e.op in ("add", "sub", "mul") and not self.wide:
                x, y = (self.index(a) for a in e.args)
                sign = {"add": "+", "sub": "-", "mul": "*"}[e.op]
                found = self.new(f"{x} {sign} {y}")
            else:
                found = self.new(f"i32({self.value(e)})")
            self.origins.record(e)
            self.remember(self.indices, e, found)
        return found
