"""Expressions of one GPU thread: SIMT.

A varying value is a few scalars, one per iteration of a lanes loop that the thread handles at a
time, `offsets` apart; affine indices follow from the first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.codegen.llvm import arithmetic
from numus.codegen.llvm.builder import SCALAR, Shape, Value, literal, register_type
from numus.codegen.llvm.context import lanes_outside_loop
from numus.codegen.llvm.expressions import Expressions
from numus.codegen.nvptx import memory, warp
from numus.codegen.nvptx.context import ThreadContext
from numus.dtypes import DType
from numus.errors import CompileError
from numus.ir import ScalarKind

_APPROX = {
    "exp2": "llvm.nvvm.ex2.approx.ftz.f",
    "log2": "llvm.nvvm.lg2.approx.f",
    "reciprocal": "llvm.nvvm.rcp.approx.ftz.f",
    "rsqrt": "llvm.nvvm.rsqrt.approx.f",
}
_MAX_TO_FLOAT8 = 464.0  # halfway from the largest float8 (e4m3), to which it rounds, to the next


def _no_block_reduce(op: str, register: ir.Register) -> str:
    raise CompileError("lanes_reduce needs a block")


@dataclass(slots=True)
class ThreadExpressions(ThreadContext):
    """Emission of the expressions of one thread."""

    block_reduce: Callable[[str, ir.Register], str] = field(default=_no_block_reduce)
    has_redux: bool = True  # whether warps reduce integers by one instruction (sm_80)

    def splat(self, scalar_type: str, v: Value, shape: Shape) -> str:
        return v.names[0]

    def uniform(self, e: ir.Expr, what: str) -> str:
        """One value, which may differ between threads in a lanes loop."""
        v = self.value(e)
        if len(set(v.names)) > 1:
            raise CompileError(f"{what} varies between the iterations of a thread: {e!r:.200}")
        return v.names[0]

    def any(self, condition: Value) -> str:
        return functools.reduce(lambda a, b: self.t.new(f"or i1 {a}, {b}"), condition.names)

    def insertion_point(self, level: int) -> tuple[int, list[Any]]:
        """Hoists also out of branches inside loops: no arithmetic traps, and speculation is cheaper
        than recomputation in every iteration."""
        home, lines = self.depth, self.t.body
        for j in range(self.depth, level, -1):
            scope = self.scopes[j]
            if scope.kind == "loop":
                home, lines = j, scope.preheader
            elif scope.kind == "plain" and lines is self.t.body:
                home = j - 1
            elif lines is self.t.body and not any(
                s.kind == "loop" for s in self.scopes[level + 1 : j]
            ):
                break
        return home, lines

    def _needs(self, e: ir.Expr) -> tuple[ir.Expr, ...]:
        if self._within_vector(e):
            return e.args[1:]
        return Expressions._needs(self, e)

    def _load(self, e: ir.Expr) -> Value:
        return memory.load(self, e)

    def _load_level(self, e: ir.Expr) -> int:
        """Loads are not speculated out of branches."""
        branches = [j for j, s in enumerate(self.scopes) if s.kind == "branch"]
        return max([memory.level(self, e), *branches])

    def _is_addressed_by_base(self, index: ir.Expr) -> bool:
        return self.lane_stride(index) is not None

    def _cross_lane(self, e: ir.Expr) -> Value:
        if e.op == "lanes_reduce":
            return Value((self.block_reduce(*e.attr),), False)
        if e.op == "lanes_xor":
            if e.attr is None:
                mask = self.t.new(f"trunc i64 {self.uniform(e.args[1], 'a mask')} to i32")
            else:
                mask = str(e.attr)
            shuffle = functools.partial(warp.shuffle, self.t, "bfly", e.dtype)
            return self.each(e.args[:1], lambda s, x: shuffle(x, mask))
        if e.op == "lanes_max":
            maximum = warp.redux_max if self.has_redux else warp.butterfly_max
            return self.each(e.args, lambda s, x: maximum(self.t, e.dtype, x))
        raise CompileError(f"{e.op} is not supported on GPUs")

    def _level(self, e: ir.Expr) -> int:
        if self._within_vector(e):
            return max(self.thread_lane.first.level, self.values[e.args[1]].level)
        if e.op in ("idiv", "irem"):
            return max(self.values[a].level for a in e.args)
        return Expressions._level(self, e)

    def _within_vector(self, e: ir.Expr) -> bool:
        return self.lane is not None and self.lane.strides.within_vector(e)

    def _divide_first(self, e: ir.Expr) -> str:
        """A division within a vector: that of the first iteration."""
        first, by = self.thread_lane.first.names[0], self.values[e.args[1]].names[0]
        return self._divide(e, first, by)

    def base(self, e: ir.Expr) -> Value:
        if e.op != "irem" or not self._within_vector(e):
            return Expressions.base(self, e)
        found = self.bases.get(e)
        if found is None:
            self.value(e.args[1])
            level = self._level(e)
            name, home = self.hoisted(level, lambda: self._divide_first(e))
            found = Value((name,), False, level)
            self.bind(self.bases, e, found, home)
        return found

    def _emit(self, e: ir.Expr) -> Value:
        if e.op == "address":
            space, name = self.spaces[e.attr], self.buffers[e.attr]
            return Value((self.t.new(f"ptrtoint {space} {name} to i64"),), False)
        if self._within_vector(e):
            first = self._divide_first(e)
            if e.op == "idiv":
                return Value((first,), False)
            offsets = self.thread_lane.offsets
            return Value(tuple(self.t.new(f"add i64 {first}, {u}") for u in offsets), True)
        if e.op in ("idiv", "irem"):
            return self.each(e.args, lambda s, x, y: self._divide(e, x, y))
        if e.op == "cast" and e.dtype is dt.float32 and e.args[0].dtype is dt.bfloat16:
            names = self.values[e.args[0]].names
            if all(name in self.halves for name in names):
                return Value(tuple(self._widened(*self.halves[n]) for n in names), True)
        if self._rounds_to_bfloat16(e):
            return self.each(e.args[0].args, lambda s, x: self._rounded(x))
        if e.op == "cast" and e.args[0].dtype is dt.float32:
            if e.dtype in (dt.int32, dt.uint32):
                return self._to_integer(e)
            if e.dtype is dt.float8_e4m3fn and self.t.target.has_float8_conversion:
                return self.each(e.args, lambda s, x: self._to_float8(x))
        if e.op == "div" and e.attr == "approx" and e.dtype in (dt.float32, dt.float64):
            return self.each(e.args, lambda s, x, y: self._ratio(e.dtype, x, y))
        if e.op == "add" and e.dtype is dt.uint32 and "xor" in (a.op for a in e.args):
            return self.each(e.args, lambda s, x, y: self._mixed(x, y))
        if e.op == "or" and e.dtype is dt.uint32 and (words := self._joined(e)):
            return Value(words, True)
        if (found := self._half_as_float(e)) is not None:
            return found
        if e.op == "or" and _is_masked(e.args[0]) and e.args[1].op == "const":
            mask, bits = e.args[0].args[1].attr, e.args[1].attr
            return self.each(e.args[0].args[:1], lambda s, x: self._masked_or(x, mask, bits))
        if e.op == "div" and e.attr == "reciprocal" and e.dtype is dt.float32:
            return self.each(e.args[1:], lambda s, x: self._approx("reciprocal", x))
        if e.op == "div" and e.attr == "rsqrt" and e.dtype is dt.float32:
            return self.each(e.args[1].args, lambda s, x: self._approx("rsqrt", x))
        if e.op == "div" and e.attr == "rough rsqrt":
            return self.each(e.args[1].args, lambda s, x: self._rough_rsqrt(e.dtype, x))
        if e.op in _APPROX:
            return self.each(e.args, lambda s, x: self._approx(e.op, x))
        return Expressions._emit(self, e)

    def _joined(self, e: ir.Expr) -> tuple[str, ...]:
        """The words that were loaded, of `low | high << 16` of their halves; () for others. LLVM
        would take them apart, and so wait for them, where they are loaded."""
        low, high = e.args
        if high.op != "shl" or ir.const_value(high.args[1]) != 16:
            return ()
        found: list[list[tuple[str, int]]] = []
        for x in (low, high.args[0]):
            if x.op != "cast" or x.args[0].dtype is not dt.uint16:
                return ()
            half = x.args[0].args[0] if x.args[0].op == "bitcast" else x.args[0]
            names = self.values[half].names if half in self.values else ()
            found.append([self.halves.get(name, ("", 0)) for name in names])
        joined = list(zip(*found, strict=False))
        is_word = [a[0] == b[0] and bool(a[0]) and (a[1], b[1]) == (0, 1) for a, b in joined]
        return tuple(a[0] for a, _ in joined) if is_word and all(is_word) else ()

    def _rounds_to_bfloat16(self, e: ir.Expr) -> bool:
        """Whether a float32 is rounded to bfloat16 precision and stays a float32."""
        inner = e.args[0] if e.args else e
        return (
            self.t.target.has_bf16_conversion
            and e.op == inner.op == "cast"
            and inner.dtype is dt.bfloat16
            and e.dtype is inner.args[0].dtype is dt.float32
        )

    def _to_integer(self, e: ir.Expr) -> Value:
        """One conversion, which saturates and takes NaN to 0 by itself, and may round."""
        (x,) = e.args
        mode, given = ("rn", x.args) if x.op == "rint" else ("rz", e.args)
        name = f"llvm.nvvm.f2{'ui' if e.dtype is dt.uint32 else 'i'}.{mode}"
        return self.each(given, lambda s, value: self.t.call("i32", name, ("float", value)))

    def _to_float8(self, x: str) -> str:
        """Conversions saturate: what is more than halfway to the next number would be NaN."""
        t = self.t
        pair = t.new(
            f'call i16 asm "cvt.rn.satfinite.e4m3x2.f32 $0, $1, $2;", "=h,f,f"'
            f"(float 0.0, float {x})"
        )
        size = t.call("float", "llvm.fabs.f32", ("float", x))
        beyond = t.new(f"fcmp ugt float {size}, {literal(_MAX_TO_FLOAT8, dt.float32)}")
        nan = t.new(f"select i1 {beyond}, i16 127, i16 0")
        return t.new(f"trunc i16 {t.new(f'or i16 {pair}, {nan}')} to i8")

    def _approx(self, op: str, x: str) -> str:
        return self.t.call("float", _APPROX[op], ("float", x))

    def _rough_rsqrt(self, dtype: DType, x: str) -> str:
        if dtype is dt.float32:
            return self._approx("rsqrt", x)
        return self.t.call("double", "llvm.nvvm.rsqrt.approx.ftz.d", ("double", x))

    def _ratio(self, dtype: DType, x: str, y: str) -> str:
        """Approximate reciprocal, of 20 bits in float64 and doubled twice there, and one correction
        of the residual."""
        t, ty = self.t, register_type(dtype)
        fma = functools.partial(arithmetic.fma, t, SCALAR, dtype)
        minus = t.new(f"fneg {ty} {y}")
        if dtype is dt.float32:
            inverse = self._approx("reciprocal", y)
        else:
            inverse = t.call("double", "llvm.nvvm.rcp.approx.ftz.d", ("double", y))
            for _ in range(2):
                inverse = fma(fma(minus, inverse, literal(1.0, dtype)), inverse, inverse)
        near = t.new(f"fmul {ty} {x}, {inverse}")
        return fma(fma(near, minus, x), inverse, near)

    def _mixed(self, x: str, y: str) -> str:
        """An add of a random-bit mixing function, opaque to LLVM, whose reassociation takes a
        second per kernel in vain."""
        return self.t.new(f'call i32 asm "add.u32 $0, $1, $2;", "=r,r,r"(i32 {x}, i32 {y})')

    def _masked_or(self, x: str, mask: int, bits: int) -> str:
        """(x & mask) | bits in one instruction, which ptxas makes two of otherwise."""
        return self.t.new(f'call i32 asm "lop3.b32 $0, $1, {mask}, {bits}, 234;", "=r,r"(i32 {x})')

    def _widened(self, word: str, upper: int) -> str:
        bits = self.t.new(f"and i32 {word}, -65536" if upper else f"shl i32 {word}, 16")
        return self.t.new(f"bitcast i32 {bits} to float")

    def _half_as_float(self, e: ir.Expr) -> Value | None:
        """A float16 in half of a word as float32, opaque to LLVM, which would take words apart long
        before."""
        if e.op != "cast" or e.dtype is not dt.float32 or e.args[0].op != "bitcast":
            return None
        bits = e.args[0].args[0]
        if e.args[0].dtype is not dt.float16 or bits.op != "cast":
            return None
        word = bits.args[0]
        is_upper = word.op == "lshr" and word.args[1].op == "const" and word.args[1].attr == 16
        if word.dtype is not dt.uint32:
            return None
        take = f"mov.b32 {{low, high}}, $1; cvt.f32.f16 $0, {'high' if is_upper else 'low'};"
        text = f'"{{ .reg .b16 low, high; {take} }}", "=f,r"'
        args = word.args[:1] if is_upper else (word,)
        return self.each(args, lambda s, x: self.t.new(f"call float asm {text}(i32 {x})"))

    def _rounded(self, x: str) -> str:
        """A float32 rounded to bfloat16 precision: packed with a zero lower half."""
        text = '"cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f"'
        word = self.t.new(f"call i32 asm {text}(float {x}, float 0.0)")
        return self.t.new(f"bitcast i32 {word} to float")

    def _divide(self, e: ir.Expr, x: str, y: str) -> str:
        """Unsigned where provably non-negative; otherwise a divisor of -1 must wrap."""
        t, ty = self.t, register_type(e.dtype)
        op = "div" if e.op == "idiv" else "rem"
        divisor = e.args[1]
        if self._is_block_index(e) or self._is_small(e):  # below 2**31
            words = [t.new(f"trunc i64 {v} to i32") for v in (x, y)]
            return t.new(f"zext i32 {t.new(f'u{op} i32 {words[0]}, {words[1]}')} to i64")
        if e.dtype.kind == "uint" or _is_size(divisor) or self._is_non_negative(e):
            return t.new(f"u{op} {ty} {x}, {y}")
        if divisor.op == "const" and divisor.attr != -1:
            return t.new(f"s{op} {ty} {x}, {y}")
        minus = t.new(f"icmp eq {ty} {y}, -1")
        safe = t.new(f"select i1 {minus}, {ty} 1, {ty} {y}")
        result = t.new(f"s{op} {ty} {x}, {safe}")
        special = "0" if op == "rem" else t.new(f"sub {ty} 0, {x}")
        return t.new(f"select i1 {minus}, {ty} {special}, {ty} {result}")

    def _is_small(self, e: ir.Expr) -> bool:
        """Whether both operands of a division are provably below 2**31 and not negative."""
        dividend, divisor = (self._upper_bound(a) for a in e.args)
        if dividend is None or divisor is None or e.dtype is not ir.INDEX:
            return False
        return max(dividend, divisor) < 1 << 31

    def _upper_bound(self, e: ir.Expr) -> int | None:
        """The largest value of an expression that is never negative; None: unknown."""
        if e.op == "const":
            return int(e.attr) if e.dtype is ir.INDEX and e.attr >= 0 else None
        if e in self.counter_bounds:
            return self.counter_bounds[e]
        if e.op not in ("add", "mul", "idiv", "irem", "min"):
            return None
        a, b = (self._upper_bound(x) for x in e.args)
        if a is None or b is None:
            return None
        return {"add": a + b, "mul": a * b, "idiv": a, "irem": min(a, b), "min": min(a, b)}[e.op]

    def _is_block_index(self, e: ir.Expr) -> bool:
        """Whether an expression is a block index, or one divided by schedule constants."""
        if e in self.block_indices:
            return True
        return (
            e.op in ("idiv", "irem")
            and e.args[1].op == "scalar"
            and ScalarKind.of(e.args[1].attr) is ScalarKind.SCHEDULE
            and self._is_block_index(e.args[0])
        )

    def _is_non_negative(self, e: ir.Expr) -> bool:
        """Whether a value is made of loop variables and sizes alone."""
        if e.op == "const":
            return bool(e.attr >= 0)
        if e.op in ("add", "mul", "idiv", "irem", "min"):
            return all(self._is_non_negative(a) for a in e.args)
        return e in self.counters or _is_size(e)

    def _lane_variable(self) -> Value:
        lane = self.thread_lane
        first, step = lane.first.names[0], lane.step.names[0]

        def at(offset: int) -> str:
            away = str(offset) if step == "1" else self.t.new(f"mul i64 {step}, {offset}")
            return self.t.new(f"add i64 {first}, {away}")

        return Value(tuple(at(offset) if offset else first for offset in lane.offsets), True)

    def register_shape(self, register: ir.Register) -> Shape:
        return SCALAR

    def _read(self, register: ir.Register) -> Value:
        ty = register_type(register.dtype)
        if register.lanes and self.lane is None:
            raise lanes_outside_loop(register)
        slots = self.slots_of(register) if register.lanes else self.storage(register)
        names = tuple(self.t.new(f"load {ty}, ptr {slot}") for slot in slots)
        return Value(names, register.lanes)


def _is_masked(e: ir.Expr) -> bool:
    """x & mask, of words."""
    return e.op == "and" and e.dtype is dt.uint32 and e.args[1].op == "const"


def _is_size(e: ir.Expr) -> bool:
    """Whether an expression is made of extents, strides and block sizes."""
    if e.op == "scalar":
        return ScalarKind.of(e.attr) in (ScalarKind.SIZE, ScalarKind.SCHEDULE)
    return e.op in ("mul", "min") and all(
        _is_size(a) or (a.op == "const" and a.attr > 0) for a in e.args
    )
