"""Expressions as one thread of a GPU computes them.

What is a vector on a CPU is here a few scalars, one for each of the iterations of a lanes loop that
the thread handles at a time. They are `offsets` apart; the value of an affine index is known from
that of the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.codegen.llvm import arithmetic
from numus.codegen.llvm.builder import SCALAR, Shape, Value, register_type
from numus.codegen.llvm.expressions import Expressions, Lane
from numus.codegen.nvptx import block_reduce, memory
from numus.errors import CompileError

_UNITS = {
    "exp2": "llvm.nvvm.ex2.approx.ftz.f",
    "log2": "llvm.nvvm.lg2.approx.f",
    "reciprocal": "llvm.nvvm.rcp.approx.ftz.f",
    "inverse root": "llvm.nvvm.rsqrt.approx.f",
}


@dataclass(slots=True)
class ThreadLane(Lane):
    """A stage of a lanes loop, as one thread sees it."""

    offsets: tuple[int, ...] = (0,)  # of the iterations it handles at a time, from the first
    vector: int = 1  # how many of them lie next to each other, aligned as a whole
    active: tuple[str, ...] = ()  # which of them there are; empty: all
    slot: int = 0  # of registers that hold several iterations, which is the first of these


@dataclass(slots=True)
class ThreadExpressions(Expressions):
    """Writes the expressions of one thread."""

    spaces: dict[ir.Buffer, str] = field(default_factory=dict)  # pointer types
    counters: set[ir.Expr] = field(default_factory=set)  # variables of loops
    block_numbers: set[ir.Expr] = field(default_factory=set)  # those of the grid
    halves: dict[str, tuple[str, int]] = field(default_factory=dict)  # of words: 1 is the upper
    renderer: Any = None  # what threads need to speak to each other

    @property
    def thread_lane(self) -> ThreadLane:
        assert isinstance(self.lane, ThreadLane)
        return self.lane

    def splat(self, scalar_type: str, v: Value, shape: Shape) -> str:
        return v.names[0]

    def uniform(self, e: ir.Expr, what: str) -> str:
        """One value; inside a lanes loop it may be the thread's own."""
        v = self.value(e)
        if len(set(v.names)) > 1:
            raise CompileError(f"{what} varies between the iterations of a thread: {e!r:.200}")
        return v.names[0]

    def any(self, condition: Value) -> str:
        total = condition.names[0]
        for name in condition.names[1:]:
            total = self.t.new(f"or i1 {total}, {name}")
        return total

    def place(self, level: int) -> tuple[int, list[Any]]:
        """As on a CPU, but also out of branches: no arithmetic traps, and what it costs to do it in
        vain is less than to do it again in every turn of a loop."""
        home, lines = self.depth, self.t.body
        for j in range(self.depth, level, -1):
            scope = self.scopes[j]
            if scope.kind == "loop":
                home, lines = j, scope.before
            elif scope.kind == "plain" and lines is self.t.body:
                home = j - 1
            elif lines is self.t.body and not any(
                s.kind == "loop" for s in self.scopes[level + 1 : j]
            ):
                break
        return home, lines

    def _needs(self, e: ir.Expr) -> tuple[ir.Expr, ...]:
        if e.op == "load" and self.growth(e.args[0]) is not None:
            return e.args[1:]
        if self._within_one(e):
            return e.args[1:]
        return Expressions._needs(self, e)

    def _level(self, e: ir.Expr) -> int:
        if e.op == "load":  # only where it is asked for
            found = memory.level(self, e)
            branches = [j for j, s in enumerate(self.scopes) if s.kind == "branch"]
            return max([found, *branches])
        if self._within_one(e):
            return max(self.thread_lane.first.level, self.values[e.args[1]].level)
        if e.op in ("idiv", "irem"):
            return max(self.values[a].level for a in e.args)
        return Expressions._level(self, e)

    def _within_one(self, e: ir.Expr) -> bool:
        """Whether all iterations of a thread are within one of what they are counted by."""
        return self.lane is not None and self.lane.growths.within_vector(e)

    def _first_within(self, e: ir.Expr) -> str:
        """Of which it is then, or where the first of them is in it."""
        first, by = self.thread_lane.first.names[0], self.values[e.args[1]].names[0]
        return self._divide(e, first, by)

    def base(self, e: ir.Expr) -> Value:
        if e.op != "irem" or not self._within_one(e):
            return Expressions.base(self, e)
        found = self.bases.get(e)
        if found is None:
            self.value(e.args[1])
            level = self._level(e)
            home, lines = self.place(level)
            saved, self.t.lines = self.t.lines, lines
            found = Value((self._first_within(e),), False, level)
            self.t.lines = saved
            self.remember(self.bases, e, found, home)
        return found

    def _write(self, e: ir.Expr) -> Value:
        if e.op == "load":
            return memory.load(self, e)
        if e.op == "address":
            space, name = self.spaces[e.attr], self.buffers[e.attr]
            return Value((self.t.new(f"ptrtoint {space} {name} to i64"),), False)
        if self._within_one(e):
            first = self._first_within(e)
            if e.op == "idiv":
                return Value((first,), False)
            offsets = self.thread_lane.offsets
            return Value(tuple(self.t.new(f"add i64 {first}, {u}") for u in offsets), True)
        if e.op in ("idiv", "irem"):
            return self.each(e.args, lambda s, x, y: self._divide(e, x, y))
        if e.op == "lanes_xor":
            return self.each(
                e.args, lambda s, x: block_reduce.from_lane_xor(self.renderer, e.dtype, x, e.attr)
            )
        if e.op == "cast" and e.dtype is dt.float32 and e.args[0].dtype is dt.bfloat16:
            names = self.values[e.args[0]].names
            if all(name in self.halves for name in names):
                return Value(tuple(self._widened(*self.halves[n]) for n in names), True)
        if self._rounds_to_bfloat16(e):
            return self.each(e.args[0].args, lambda s, x: self._rounded(x))
        if e.op == "div" and e.attr == "approx" and e.dtype is dt.float32:
            return self.each(e.args, lambda s, x, y: self._ratio(x, y))
        if e.op == "add" and e.dtype is dt.uint32 and "xor" in (a.op for a in e.args):
            return self.each(e.args, lambda s, x, y: self._mixed(x, y))
        if e.op == "div" and e.attr == "rsqrt" and e.dtype is dt.float32:
            unit = _UNITS["inverse root"]
            return self.each(e.args[1].args, lambda s, x: self.t.call("float", unit, ("float", x)))
        if e.op in _UNITS:
            return self.each(e.args, lambda s, x: self.t.call("float", _UNITS[e.op], ("float", x)))
        return Expressions._write(self, e)

    def _rounds_to_bfloat16(self, e: ir.Expr) -> bool:
        """Whether a float32 is rounded to what bfloat16 keeps of it, and stays a float32."""
        inner = e.args[0] if e.args else e
        return (
            self.target.brain
            and e.op == inner.op == "cast"
            and inner.dtype is dt.bfloat16
            and e.dtype is inner.args[0].dtype is dt.float32
        )

    def _ratio(self, x: str, y: str) -> str:
        """By the unit's reciprocal; what x lacks then of the product is made good."""
        t = self.t
        inverse = t.call("float", _UNITS["reciprocal"], ("float", y))
        near = t.new(f"fmul float {x}, {inverse}")
        minus = t.new(f"fneg float {y}")
        rest = arithmetic.fma(t, SCALAR, dt.float32, near, minus, x)
        return arithmetic.fma(t, SCALAR, dt.float32, rest, inverse, near)

    def _mixed(self, x: str, y: str) -> str:
        """A sum amid random bits, as an instruction that LLVM does not look into: each sum that it
        sees it compares with those before it, in vain, and takes a second for a kernel."""
        return self.t.new(f'call i32 asm "add.u32 $0, $1, $2;", "=r,r,r"(i32 {x}, i32 {y})')

    def _widened(self, word: str, upper: int) -> str:
        """A bfloat16 that is half of a word, as a float32."""
        bits = self.t.new(f"and i32 {word}, -65536" if upper else f"shl i32 {word}, 16")
        return self.t.new(f"bitcast i32 {bits} to float")

    def _rounded(self, x: str) -> str:
        """The upper of two halves that an instruction rounds and packs, where the other is 0."""
        text = '"cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f"'
        word = self.t.new(f"call i32 asm {text}(float {x}, float 0.0)")
        return self.t.new(f"bitcast i32 {word} to float")

    def _divide(self, e: ir.Expr, x: str, y: str) -> str:
        """Sizes are positive and what they divide is not negative where it matters. The divisor of
        other numbers may be -1, by which the smallest integer wraps."""
        t, ty = self.t, register_type(e.dtype)
        op = "div" if e.op == "idiv" else "rem"
        divisor = e.args[1]
        if self._numbers_blocks(e):  # there are fewer than 2**31 of them
            short = [t.new(f"trunc i64 {v} to i32") for v in (x, y)]
            return t.new(f"zext i32 {t.new(f'u{op} i32 {short[0]}, {short[1]}')} to i64")
        if e.dtype.kind == "uint" or _is_size(divisor) or self._counts(e):
            return t.new(f"u{op} {ty} {x}, {y}")
        if divisor.op == "const" and divisor.attr != -1:
            return t.new(f"s{op} {ty} {x}, {y}")
        minus = t.new(f"icmp eq {ty} {y}, -1")
        safe = t.new(f"select i1 {minus}, {ty} 1, {ty} {y}")
        result = t.new(f"s{op} {ty} {x}, {safe}")
        special = "0" if op == "rem" else t.new(f"sub {ty} 0, {x}")
        return t.new(f"select i1 {minus}, {ty} {special}, {ty} {result}")

    def _numbers_blocks(self, e: ir.Expr) -> bool:
        """Whether an expression is the number of a block, or of blocks by a schedule's count."""
        if e in self.block_numbers:
            return True
        by = e.args[1] if e.op in ("idiv", "irem") else None
        counted = by is not None and by.op == "scalar" and str(by.attr)[0] == "s"
        return counted and self._numbers_blocks(e.args[0])

    def _counts(self, e: ir.Expr) -> bool:
        """Whether a number is counted by loops and sizes alone: it is never negative."""
        if e.op == "const":
            return bool(e.attr >= 0)
        if e.op in ("add", "mul", "idiv", "irem", "min"):
            return all(self._counts(a) for a in e.args)
        return e in self.counters or _is_size(e)

    def _variable(self, e: ir.Expr) -> Value:
        lane = self.lane
        if lane is None or e is not lane.var:
            raise CompileError(f"variable {e.attr!r} is used where it has no value")
        assert isinstance(lane, ThreadLane)
        first, step = lane.first.names[0], lane.step.names[0]
        names = []
        for offset in lane.offsets:
            away = str(offset)
            if step != "1" and offset:
                away = self.t.new(f"mul i64 {step}, {offset}")
            names.append(self.t.new(f"add i64 {first}, {away}") if offset else first)
        return Value(tuple(names), True)

    def _lanes_reduce(self, op: str, register: ir.Register) -> Value:
        return Value((block_reduce.lanes_reduce(self.renderer, op, register),), False)

    # -- registers --------------------------------------------------------------------------------

    def register_shape(self, register: ir.Register) -> Shape:
        return SCALAR

    def _read(self, register: ir.Register) -> Value:
        ty = register_type(register.dtype)
        slots = self.storage(register)
        if register.lanes:
            if self.lane is None:
                raise CompileError(
                    f"register {register.name!r} has lanes: outside a lanes loop it can only be "
                    "reduced"
                )
            slots = self.slots_of(register)
        names = tuple(self.t.new(f"load {ty}, ptr {slot}") for slot in slots)
        return Value(names, register.lanes)

    def slots_of(self, register: ir.Register) -> list[str]:
        """Where a register has the iterations that the thread handles now."""
        slots, lane = self.storage(register), self.thread_lane
        first = lane.slot if len(slots) > lane.unroll else 0
        return slots[first : first + lane.unroll]

    def own(self, register: ir.Register) -> list[str]:
        """What a thread has in a register, over all the iterations it handles at a time."""
        ty = register_type(register.dtype)
        return [self.t.new(f"load {ty}, ptr {slot}") for slot in self.storage(register)]

    def combined(self, op: str, register: ir.Register, x: str, y: str) -> str:
        """Two values under one of the operations of `lanes_reduce`."""
        if op in ("min", "max"):
            return arithmetic.extreme(self.t, self.target, SCALAR, op, register.dtype, x, y)
        return arithmetic.binary(self.t, self.target, SCALAR, op, register.dtype, x, y)


def _is_size(e: ir.Expr) -> bool:
    """Whether an expression is made of the kernel's own numbers: extents, strides, block sizes."""
    if e.op == "scalar":
        return str(e.attr)[0] in "ns"
    return e.op in ("mul", "min") and all(_is_size(a) or _is_positive(a) for a in e.args)


def _is_positive(e: ir.Expr) -> bool:
    return e.op == "const" and e.attr > 0
