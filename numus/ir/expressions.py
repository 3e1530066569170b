"""Scalar expressions: hash-consed within a build, simplified on construction."""

from __future__ import annotations

import enum
import math
import operator
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numus import dtypes as dt
from numus.dtypes import DType
from numus.errors import CompileError

INDEX = dt.int64

# Operations by arity. Integers wrap; `min`/`max` propagate NaN as NumPy's do; comparisons are IEEE
# (all false on NaN but `ne`); shifts by the bit width or more are undefined: builders mask them;
# `idiv`/`irem` truncate as C's, and callers exclude zero. `exp2`, `log2` and `reciprocal` are the
# approximations of a GPU's special-function units in float32: 2 ulp, subnormal results flushed;
# only with `Target.approx_math`, for results rounded to 16 bits.
UNARY = frozenset(
    "neg abs sqrt floor ceil trunc rint not popcount clz cast bitcast exp2 log2 reciprocal".split()
)
BINARY = frozenset(
    "add sub mul div idiv irem min max and or xor shl lshr ashr mulhi "
    "lt le eq ne gt ge copysign".split()
)
COMPARES = frozenset("lt le eq ne gt ge".split())


def _operator(op: str) -> Callable[[Expr, Operand], Expr]:
    return lambda self, other: build(op, self, _same(other, self))


def _reflected(op: str) -> Callable[[Expr, Operand], Expr]:
    return lambda self, other: build(op, _same(other, self), self)


class Expr:
    """One scalar value. Equal expressions are the same object (within one build)."""

    __slots__ = ("args", "attr", "dtype", "op")

    def __init__(self, op: str, dtype: DType, args: tuple[Expr, ...], attr: Any) -> None:
        self.op, self.dtype, self.args, self.attr = op, dtype, args, attr

    # Operators build expressions; a Python number takes the dtype of the other side.
    __add__, __sub__, __mul__, __truediv__ = map(_operator, ("add", "sub", "mul", "div"))
    __radd__, __rsub__, __rmul__, __rtruediv__ = map(_reflected, ("add", "sub", "mul", "div"))
    __floordiv__, __mod__ = _operator("idiv"), _operator("irem")  # truncate as C's (and Triton's)
    __and__, __or__, __xor__, __lshift__ = map(_operator, ("and", "or", "xor", "shl"))
    __lt__, __le__, __gt__, __ge__ = map(_operator, ("lt", "le", "gt", "ge"))
    eq, ne = _operator("eq"), _operator("ne")

    def __rshift__(self, other: Operand) -> Expr:
        """Logical for unsigned, arithmetic for signed integers."""
        return binary("ashr" if self.dtype.kind == "int" else "lshr", self, _same(other, self))

    def __neg__(self) -> Expr:
        return unary("neg", self)

    def __invert__(self) -> Expr:
        return unary("not", self)

    def __divmod__(self, other: Operand) -> tuple[Expr, Expr]:
        return self // other, self % other

    def cast(self, dtype: DType) -> Expr:
        return cast(self, dtype)

    def bitcast(self, dtype: DType) -> Expr:
        return self if dtype is self.dtype else make("bitcast", dtype, (self,))

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        # constants are the same objects everywhere; others keep to their own build
        made = make if self.op == "const" else Expr
        return made, (self.op, self.dtype, self.args, self.attr)

    def __repr__(self) -> str:
        inner = ", ".join(map(repr, self.args))
        head = f"{self.op}[{self.attr}]" if self.attr is not None else self.op
        return f"{head}({inner})" if inner else head


Operand = Expr | int | float | bool

_table: dict[tuple[Any, ...], Expr] = {}
_constants: dict[tuple[Any, ...], Expr] = {}  # outlive builds: modules keep some of them


def new_build() -> None:
    """Start a new build: drop the hash-consed expressions of earlier ones."""
    _table.clear()


def make(op: str, dtype: DType, args: tuple[Expr, ...] = (), attr: Any = None) -> Expr:
    """The hash-consed expression."""
    key = (op, dtype, args, attr)
    table = _constants if op == "const" else _table
    found = table.get(key)
    if found is None:
        found = table[key] = Expr(op, dtype, args, attr)
    return found


# -- memory and registers -------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Buffer:
    """A flat array argument, or a `scratch` array of `size` elements per worker or block.

    Scratch may share the memory of a dead one that it `aliases`; `warp_private`: data is exchanged
    within a warp only, so that a warp barrier suffices. One that is `stored_once` needs no barrier
    before stores: no element is loaded before it is stored for the only time, or not since a
    barrier, as where two halves take turns. Elements of a `streamed` one are read once: what caches
    have besides may stay there.
    """

    name: str
    dtype: DType
    access: str  # "read", "write", "scratch"
    size: Expr | None = None
    aliases: Buffer | None = None
    warp_private: bool = False
    stored_once: bool = False
    streamed: bool = False

    @property
    def scratch_size(self) -> Expr:
        if self.size is None:
            raise CompileError(f"scratch buffer {self.name!r} has no size")
        return self.size

    def count(self, scalars: Mapping[str, int]) -> int:
        """Elements of scratch per worker, for these scalar arguments."""
        return evaluate_size(self.scratch_size, scalars)


@dataclass(eq=False, slots=True)
class Register:
    """A mutable local. `lanes`: one value per lane of the lanes loops that use it."""

    name: str
    dtype: DType
    lanes: bool = False


_INT_OPS: dict[str, Callable[..., int]] = {
    **{"add": operator.add, "sub": operator.sub, "mul": operator.mul, "shl": operator.lshift},
    **{"idiv": lambda a, b: a // max(b, 1), "irem": lambda a, b: a % max(b, 1)},
    **{"min": min, "max": max, "select": lambda c, a, b: a if c else b},
    **{name: getattr(operator, name) for name in ("lt", "le", "eq", "ne", "gt", "ge")},
}


def evaluate_size(e: Expr, scalars: Mapping[str, int]) -> int:
    """The value of a size: a few operations on non-negative integers."""
    if e.op == "const":
        return int(e.attr)
    if e.op == "scalar":
        return scalars[e.attr]
    return _INT_OPS[e.op](*(evaluate_size(a, scalars) for a in e.args))


# -- leaves ---------------------------------------------------------------------------------------


def const(value: Any, dtype: DType = INDEX) -> Expr:
    """A constant. Floats are keyed by their bits, so that -0.0 and NaN stay what they are."""
    if dtype.kind == "float":
        return make("const", dtype, (), struct.pack("<d", float(value)))
    if dtype.kind == "bool":
        return make("const", dtype, (), bool(value))
    value = int(value)
    low, high = dt.int_range(dtype)
    if not low <= value <= high:  # wrap as two's complement
        value = (value - low) % (1 << dtype.bits) + low
    return make("const", dtype, (), value)


def const_value(e: Expr) -> Any:
    """The Python value of a constant expression."""
    return struct.unpack("<d", e.attr)[0] if e.dtype.kind == "float" else e.attr


def _same(value: Operand, like: Expr) -> Expr:
    return value if isinstance(value, Expr) else const(value, like.dtype)


def scalar(name: str, dtype: DType = INDEX) -> Expr:
    """A scalar argument; its `ScalarKind` follows from the name."""
    return make("scalar", dtype, (), name)


class ScalarKind(enum.Enum):
    """The role of a scalar argument; sizes and schedule parameters are never negative."""

    SIZE = "n"
    SCHEDULE = "s"
    CONSTANT = "c"  # a user's
    OTHER = ""

    @classmethod
    def of(cls, name: str) -> ScalarKind:
        if name[0] == "c" and not name[1:2].isdigit():
            return cls.OTHER
        return cls(name[0]) if name[0] in "nsc" else cls.OTHER


def var(name: str, dtype: DType = INDEX) -> Expr:
    """A loop variable or a `Let`."""
    return make("var", dtype, (), name)


def load(buffer: Buffer, index: Expr, mask: Expr | None = None) -> Expr:
    """An element of a buffer; masked-off lanes read nothing and are zero."""
    args = (index,) if mask is None else (index, mask)
    return make("load", buffer.dtype, args, buffer)


def load_word(buffer: Buffer, index: Expr) -> Expr:
    """The little-endian uint32 at a byte index, aligned or not, of a buffer of bytes. CPUs only."""
    return make("load", dt.uint32, (index,), buffer)


def address(buffer: Buffer) -> Expr:
    """The address of a buffer, to test its alignment."""
    return make("address", INDEX, (), buffer)


def read(register: Register) -> Expr:
    """The current value of a register. Not hash-consed: its value changes between statements."""
    return Expr("read", register.dtype, (), register)


def lanes_reduce(op: str, register: Register) -> Expr:
    """A per-lane register reduced over its lanes in a fixed tree: add, mul, min, max, and, or."""
    return Expr("lanes_reduce", register.dtype, (), (op, register))


def lanes_min_where(register: Register, values: Register, equal_to: Expr) -> Expr:
    """The minimum of a per-lane register over the lanes where `values` == `equal_to`: argmin."""
    return Expr("lanes_min_where", register.dtype, (equal_to,), (register, values))


def lanes_xor(value: Expr, mask: int | Expr) -> Expr:
    """Butterfly shuffle: the value of the lane at this lane's index xor `mask`, which on GPUs may
    be an expression of one value for all lanes.

    Only in lanes loops of exactly one vector; on targets with a `subgroup_size`, of one iteration
    per thread, with masks below 32.
    """
    if isinstance(mask, Expr):
        return make("lanes_xor", value.dtype, (value, mask))
    return make("lanes_xor", value.dtype, (value,), mask)


def lanes_shift(value: Expr, count: int, fill: Expr) -> Expr:
    """The value of the lane `count` before this one; `fill` in the first lanes. As `lanes_xor`."""
    return make("lanes_shift", value.dtype, (value, fill), count)


def lanes_last(value: Expr) -> Expr:
    """Broadcast of the last lane. As `lanes_xor`."""
    return make("lanes_last", value.dtype, (value,))


def lanes_max(value: Expr) -> Expr:
    """The maximum of signed integers over a subgroup of 32 threads. As `lanes_xor`, on GPUs."""
    return make("lanes_max", value.dtype, (value,))


def lanes_compress(value: Expr, mask: Expr) -> Expr:
    """The values of the lanes where a mask holds, in order, in the first lanes; those of the others
    are undefined. As `lanes_xor`, on CPUs."""
    return make("lanes_compress", value.dtype, (value, mask))


def lanes_count(mask: Expr) -> Expr:
    """The number of lanes where a mask holds. As `lanes_compress`."""
    return make("lanes_count", INDEX, (mask,))


# -- builders that simplify -----------------------------------------------------------------------


def unary(op: str, a: Expr) -> Expr:
    if op == "not" and a.op == "not":
        return a.args[0]
    return make(op, a.dtype, (a,))


def binary(op: str, a: Expr, b: Expr) -> Expr:
    if a.dtype is not b.dtype:
        raise TypeError(f"IR {op}: {a.dtype} with {b.dtype}")
    if op in COMPARES:
        if a.op == "const" and b.op == "const":
            return const(getattr(operator, op)(const_value(a), const_value(b)), dt.bool_)
        return make(op, dt.bool_, (a, b))
    if a.dtype is dt.bool_ and op in ("and", "or"):
        for x, y in ((a, b), (b, a)):
            if x.op == "const":
                return y if x.attr == (op == "and") else x
        if a is b:
            return a
    if op == "and" and b.op == "const" and b.attr == 0:
        return b
    return make(op, a.dtype, (a, b))


def add(a: Expr, b: Expr) -> Expr:
    if a.dtype.is_integer:
        if a.op == "const" and b.op != "const":
            a, b = b, a
        if b.op == "const":
            if b.attr == 0:
                return a
            if a.op == "const":
                return const(a.attr + b.attr, a.dtype)
            if a.op == "add" and a.args[1].op == "const":
                return add(a.args[0], const(a.args[1].attr + b.attr, a.dtype))
        elif a.op == "add" and a.args[1].op == "const":
            return add(add(a.args[0], b), a.args[1])
        elif b.op == "add":
            return add(add(a, b.args[0]), b.args[1])
        # (x // c) * c + x % c is x, wherever the two stand in a sum
        if (whole := _rejoin(a, b)) is not None:
            return whole
        if a.op == "add" and (whole := _rejoin(a.args[1], b)) is not None:
            return add(a.args[0], whole)
    return binary("add", a, b)


def _rejoin(a: Expr, b: Expr) -> Expr | None:
    for quotient, rest in ((a, b), (b, a)):
        if rest.op != "irem" or quotient.op != "mul":
            continue
        x, c = rest.args
        whole = idiv(x, c)
        for q, s in (quotient.args, quotient.args[::-1]):
            if q is whole and s is c:
                return x
            # ((x // c) % d) * c + x % c is x % (c * d)
            if q.op == "irem" and s is c and q.args[0] is whole:
                return irem(x, mul(c, q.args[1]))
    return None


def sub(a: Expr, b: Expr) -> Expr:
    if a.dtype.is_integer:
        if b.op == "const":
            return add(a, const(-b.attr, a.dtype))
        if a is b:
            return const(0, a.dtype)
    return binary("sub", a, b)


def mul(a: Expr, b: Expr) -> Expr:
    if a.dtype.is_integer:
        if a.op == "const" and b.op != "const":
            a, b = b, a
        if b.op == "const":
            if b.attr == 1:
                return a
            if b.attr == 0:
                return b
            if a.op == "const":
                return const(a.attr * b.attr, a.dtype)
            if a.op == "mul" and a.args[1].op == "const":
                return mul(a.args[0], const(a.args[1].attr * b.attr, a.dtype))
    return binary("mul", a, b)


def build(op: str, a: Expr, b: Expr) -> Expr:
    """A binary operation, simplified as far as its own builder does."""
    simplify = {"add": add, "sub": sub, "mul": mul}.get(op)
    return binary(op, a, b) if simplify is None else simplify(a, b)


def idiv(a: Expr, b: Expr) -> Expr:
    return binary("idiv", a, b)


def irem(a: Expr, b: Expr) -> Expr:
    return binary("irem", a, b)


def _is_exact(e: Expr, dtype: DType, depth: int = 32) -> bool:
    """Whether a float is one of this smaller dtype, so that rounding to it changes nothing: it was
    chosen among such."""
    if e.op == "cast":
        return e.args[0].dtype is dtype and dtype.is_low_precision
    if e.op == "const":
        return const_value(e) in (-math.inf, 0, math.inf) and dtype.is_low_precision
    if e.op not in ("max", "min", "select") or depth == 0:
        return False
    chosen = e.args[1:] if e.op == "select" else e.args
    return all(_is_exact(x, dtype, depth - 1) for x in chosen)


def cast(a: Expr, dtype: DType) -> Expr:
    if a.dtype is dtype:
        return a
    if a.op == "cast" and dtype is a.args[0].dtype and _is_exact(a.args[0], a.dtype):
        return a.args[0]
    if a.op == "select" and a.dtype.is_low_precision and dtype is dt.float32:
        condition, *chosen = a.args
        if any(x.op == "cast" and x.args[0].dtype is dtype for x in chosen):
            return select(condition, *(cast(x, dtype) for x in chosen))
    if a.op == "const" and not a.dtype.is_low_precision and not dtype.is_low_precision:
        value = const_value(a)
        if dtype.kind != "float" and isinstance(value, float):
            return make("cast", dtype, (a,))
        if dtype is dt.bool_ or dtype.is_integer or dtype is dt.float64:
            return const(value != 0 if dtype is dt.bool_ else value, dtype)
        if abs(value) <= 1 << 20 and value == int(value):  # exact in float32
            return const(value, dtype)
    return make("cast", dtype, (a,))


def select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    if condition.op == "const":
        return yes if condition.attr else no
    if yes is no:
        return yes
    return make("select", yes.dtype, (condition, yes, no))


def fma(a: Expr, b: Operand, c: Operand, allow_unfused: bool = False) -> Expr:
    """a * b + c with one rounding; with `allow_unfused`, two where the target has no FMA."""
    attr = "unfused" if allow_unfused else None
    return make("fma", a.dtype, (a, _same(b, a), _same(c, a)), attr)


def approx_div(a: Expr, b: Expr) -> Expr:
    """a / b by the approximate reciprocal and one Newton step, where the target has one; b must be
    neither tiny nor huge. All but always correctly rounded."""
    return make("div", a.dtype, (a, b), "approx")


def approx_reciprocal(a: Expr) -> Expr:
    """1 / a to 1 ulp by the target's approximation, in float32; a is neither tiny nor huge."""
    return make("div", a.dtype, (_same(1.0, a), a), "reciprocal")


def approx_rsqrt(a: Expr) -> Expr:
    """1 / sqrt(a) to a few ulp by the target's approximation; callers refine it."""
    return make("div", a.dtype, (_same(1.0, a), sqrt(a)), "rsqrt")


def rough_rsqrt(a: Expr) -> Expr:
    """As `approx_rsqrt`, of float64 to 20 bits, of normal numbers."""
    return make("div", a.dtype, (_same(1.0, a), sqrt(a)), "rough rsqrt")


def minimum(a: Expr, b: Operand) -> Expr:
    return binary("min", a, _same(b, a))


def maximum(a: Expr, b: Operand) -> Expr:
    return binary("max", a, _same(b, a))


def sqrt(a: Expr) -> Expr:
    return unary("sqrt", a)


def exp2(a: Expr) -> Expr:
    """Approximate 2**a: see `UNARY`."""
    return unary("exp2", a)


def log2(a: Expr) -> Expr:
    """Approximate log2(a); near 0 the error is 2 ulp of 1."""
    return unary("log2", a)


def reciprocal(a: Expr) -> Expr:
    """Approximate 1 / a: see `UNARY`."""
    return unary("reciprocal", a)


def isnan(a: Expr) -> Expr:
    return make("ne", dt.bool_, (a, a))


def slow_path_select(condition: Expr, slow: Expr, fast: Expr) -> Expr:
    """`slow` where `condition` holds, `fast` elsewhere. Unlike `select`, `slow` is skipped when no
    lane needs it."""
    return make("slow_path", fast.dtype, (condition, slow, fast))
