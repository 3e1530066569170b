"""Arithmetic, element by element: sums to powers, signs, extremes, rounding (halves to even)."""

from __future__ import annotations

import builtins
import math
from typing import Any

from numus import dtypes as dt
from numus.errors import DTypeError
from numus.functions._base import like, node_of, pair, require, same, to_float, widened, wrap
from numus.functions.autocast import widens
from numus.functions.elementwise import complex_math as cm
from numus.functions.elementwise.output import Outs, accepts_out, write_out, write_outs
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.shapes import as_int
from numus.tensor import ArrayLike, Tensor, method

__all__ = [
    "abs", "absolute", "add", "cbrt", "ceil", "clamp", "clip", "copysign", "divide",
    "divmod", "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "heaviside", "hypot",
    "lerp", "maximum", "minimum", "mod", "multiply", "negative", "nextafter", "positive", "pow",
    "power", "reciprocal", "remainder", "rint", "round", "rsqrt", "sign", "signbit", "sqrt",
    "square", "subtract", "true_divide", "trunc",
]  # fmt: skip

_NUMERIC = ("uint", "int", "float", "complex")
_REAL = ("uint", "int", "float")


def real_operands(op: str, x1: Any, x2: Any) -> tuple[Node, Node]:
    """A pair of real numbers; booleans count as int8, complex numbers have no order."""
    x, y = pair(op, x1, x2)
    if x.dtype is dt.bool_:
        return ew.cast(x, dt.int8), ew.cast(y, dt.int8)
    return require(op, x, *_REAL), require(op, y, *_REAL)


def float_operands(op: str, x1: Any, x2: Any) -> tuple[Node, Node]:
    """A pair in a real floating dtype."""
    x, y = pair(op, x1, x2)
    return require(op, to_float(x), "float"), to_float(y)


@method()
@accepts_out
def add(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """x1 + x2; on booleans, whether either holds.

    >>> nm.add(nm.asarray([1.0, 2.0]), 3)
    tensor([4., 5.])
    """
    x, y = pair("add", x1, x2)
    return wrap(ew.or_(x, y) if x.dtype is dt.bool_ else ew.add(x, y))


@method("subtract", "sub")
@accepts_out
def subtract(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """x1 - x2."""
    x, y = pair("subtract", x1, x2)
    if x.dtype is dt.bool_:
        raise DTypeError("subtract: booleans are not subtracted; use ^ or nm.logical_xor")
    return wrap(ew.sub(x, y))


@method("multiply", "mul")
@accepts_out
def multiply(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """x1 * x2; on booleans, whether both hold."""
    x, y = pair("multiply", x1, x2)
    return wrap(ew.and_(x, y) if x.dtype is dt.bool_ else ew.mul(x, y))


@method("divide")
@accepts_out
def divide(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """x1 / x2, in floating point.

    >>> nm.divide(nm.asarray([1, 2]), 4)
    tensor([0.25, 0.5 ])
    """
    # a Python integer need not fit the integer dtype of the other side, whose quotient is a float
    if dt.scalar_kind(x2) == "int":
        x1 = wrap(to_float(node_of(x1, "divide")))
    elif dt.scalar_kind(x1) == "int":
        x2 = wrap(to_float(node_of(x2, "divide")))
    x, y = pair("divide", x1, x2)
    return wrap(ew.div(to_float(x), to_float(y)))


@method()
@accepts_out
def floor_divide(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """The largest integer not above x1 / x2; integers divided by zero give zero.

    At infinities it is the floor of the quotient, as the array API standard has it: -1 // inf is
    -0 and inf // 2 is inf, where Python and NumPy give -1 and NaN.
    """
    x, y = real_operands("floor_divide", x1, x2)
    quotient = ew.floor_divide(x, y)
    if x.dtype.kind == "float":
        infinite = ew.or_(_infinite(x), _infinite(y))
        quotient = ew.where(infinite, ew.floor(ew.div(x, y)), quotient)
    return wrap(quotient)


@method()
@accepts_out
def remainder(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """The remainder of floor_divide, with the sign of x2, as Python's %."""
    return wrap(ew.mod(*real_operands("remainder", x1, x2)))


@method()
@accepts_out
def fmod(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """The remainder of division rounded towards zero, with the sign of x1, as C's fmod."""
    x, y = real_operands("fmod", x1, x2)
    if x.dtype.kind == "float":
        negative = _signbit(x)  # |x| by this condition: its slope at 0 is that of x
        left = ew.mod(ew.where(negative, ew.neg(x), x), ew.abs_(y))
        return wrap(ew.where(negative, ew.neg(left), left))
    left = ew.mod(x, y)
    if x.dtype.kind == "int":
        zero = like(x, 0)
        other_sign = ew.xor(ew.lt(x, zero), ew.lt(y, zero))
        left = ew.where(ew.and_(other_sign, ew.ne(left, zero)), ew.sub(left, y), left)
    return wrap(left)


def divmod(x1: ArrayLike, x2: ArrayLike, /, *, out: Outs | None = None) -> tuple[Tensor, Tensor]:
    """floor_divide and remainder; `out` is a pair of tensors that take them."""
    return write_outs((floor_divide(x1, x2), remainder(x1, x2)), out, "divmod")


@method("negative", "neg")
@accepts_out
def negative(x: ArrayLike, /) -> Tensor:
    """-x."""
    return wrap(ew.neg(require("negative", node_of(x, "negative"), *_NUMERIC)))


@method()
@accepts_out
def positive(x: ArrayLike, /) -> Tensor:
    """x itself."""
    return wrap(same(require("positive", node_of(x, "positive"), *_NUMERIC)))


@method()
@accepts_out
@widens
def reciprocal(x: ArrayLike, /) -> Tensor:
    """1 / x."""
    node = to_float(node_of(x, "reciprocal"))
    return wrap(ew.div(like(node, 1), node))


@method()
def lerp(start: Tensor, end: Any, weight: Any, /) -> Tensor:
    """start + weight * (end - start), exact at both ends."""
    a, b = pair("lerp", start, end)
    a, w = pair("lerp", wrap(to_float(a)), weight)
    out = a.dtype
    a, w = widened(a), widened(w)
    span = ew.sub(ew.cast(b, a.dtype), a)
    b = ew.cast(b, a.dtype)
    from_start = ew.add(a, ew.mul(w, span))
    from_end = ew.sub(b, ew.mul(span, ew.sub(like(w, 1), w)))
    return wrap(ew.cast(ew.where(ew.lt(w, like(w, 0.5)), from_start, from_end), out))


@method()
@accepts_out
def square(x: ArrayLike, /) -> Tensor:
    """x * x."""
    node = require("square", node_of(x, "square"), *_NUMERIC)
    return wrap(ew.mul(node, node))


@method()
@accepts_out
def sqrt(x: ArrayLike, /) -> Tensor:
    """The square root; NaN for negative real numbers.

    >>> nm.sqrt(nm.asarray([4.0, 9.0]))
    tensor([2., 3.])
    """
    node = to_float(node_of(x, "sqrt"))
    return wrap(cm.sqrt(node) if node.dtype.is_complex else ew.sqrt(node))


@method()
@accepts_out
@widens
def rsqrt(x: ArrayLike, /) -> Tensor:
    """1 / sqrt(x)."""
    node = to_float(node_of(x, "rsqrt"))
    if node.dtype.is_complex:
        return wrap(ew.div(like(node, 1), cm.sqrt(node)))
    return wrap(ew.rsqrt(node))


@method()
@accepts_out
def cbrt(x: ArrayLike, /) -> Tensor:
    """The real cube root."""
    return wrap(ew.cbrt(require("cbrt", to_float(node_of(x, "cbrt")), "float")))


@method()
@accepts_out
@widens
def pow(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """x1 to the power x2. Integers to negative powers given as arrays are 0, 1 or -1.

    >>> nm.pow(nm.asarray([1, 2, 3]), 2)
    tensor([1, 4, 9])
    """
    kind = dt.scalar_kind(x2)
    if kind is not None and isinstance(x1, Tensor) and not isinstance(x2, dt.Weak):
        base = x1._node
        special = _scalar_pow(ew.cast(base, dt.promote_scalar(base.dtype, kind)), x2)
        if special is not None:
            return wrap(special)
    x, y = pair("pow", x1, x2)
    if x.dtype is dt.bool_:
        x, y = ew.cast(x, dt.int8), ew.cast(y, dt.int8)
    return wrap(cm.pow_(x, y) if x.dtype.is_complex else ew.pow_(x, y))


def _scalar_pow(x: Node, exponent: Any) -> Node | None:
    """Powers known at the call for which there is something cheaper, and as exact, than pow."""
    dtype = x.dtype
    if dtype is dt.bool_:
        return None
    if exponent == 1:
        return same(x)
    if dtype.is_integer:
        if exponent < 0:
            raise ValueError(
                f"pow: integers to a negative power ({exponent}) are not integers; "
                "use a floating-point base"
            )
        return _repeated(x, int(exponent)) if 2 <= exponent <= 64 else None
    if exponent == 2:
        return ew.mul(x, x)
    if exponent == 3 or (dtype.is_complex and exponent in range(4, 17)):
        return ew.cast(_repeated(widened(x), int(exponent.real)), dtype)
    if exponent == -1:
        return ew.div(like(x, 1), x)
    if exponent == 0.5:
        if dtype.is_complex:
            return cm.sqrt(x)
        # -0 and -infinity have a power, though no root
        root = ew.sqrt(ew.add(x, like(x, 0)))
        return ew.where(ew.eq(x, like(x, -math.inf)), like(x, math.inf), root)
    return None


def _repeated(x: Node, exponent: int) -> Node:
    """x times itself, by squaring."""
    power: Node | None = None
    while exponent > 1:
        if exponent & 1:
            power = x if power is None else ew.mul(power, x)
        exponent >>= 1
        x = ew.mul(x, x)
    return x if power is None else ew.mul(power, x)


@accepts_out
def float_power(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """x1 to the power x2 in float64 (or complex128), whatever the dtypes."""
    x, y = pair("float_power", x1, x2)
    dtype = dt.complex128 if x.dtype.is_complex else dt.float64
    return pow(wrap(ew.cast(x, dtype)), x2 if dt.scalar_kind(x2) else wrap(ew.cast(y, dtype)))


@method()
@accepts_out
def hypot(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """sqrt(x1² + x2²) without overflow on the way."""
    return wrap(ew.hypot(*float_operands("hypot", x1, x2)))


@method()
@accepts_out
def abs(x: ArrayLike, /) -> Tensor:
    """The absolute value; of a complex number, its length."""
    node = node_of(x, "abs")
    return wrap(same(node) if node.dtype.kind in ("bool", "uint") else ew.abs_(node))


@method()
@accepts_out
def sign(x: ArrayLike, /) -> Tensor:
    """-1, 0 or 1; NaN for NaN; x / |x| for complex numbers."""
    return wrap(ew.sign(require("sign", node_of(x, "sign"), *_NUMERIC)))


@method()
@accepts_out
def signbit(x: ArrayLike, /) -> Tensor:
    """Whether the sign bit is set: true for -0 as for negative numbers."""
    return wrap(_signbit(require("signbit", node_of(x, "signbit"), *_REAL)))


def _signbit(x: Node) -> Node:
    if x.dtype.kind == "float":
        x = ew.copysign(like(x, 1), x)
    return ew.lt(x, like(x, 0))


@method()
@accepts_out
def copysign(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """The size of x1 with the sign bit of x2."""
    return wrap(ew.copysign(*float_operands("copysign", x1, x2)))


@accepts_out
def nextafter(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """The number next to x1 towards x2."""
    return wrap(ew.nextafter(*float_operands("nextafter", x1, x2)))


@accepts_out
def heaviside(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """0 for negative x1, 1 for positive, x2 where x1 is zero."""
    x, y = float_operands("heaviside", x1, x2)
    zero = like(x, 0)
    step = ew.where(ew.lt(x, zero), zero, ew.where(ew.lt(zero, x), like(x, 1), x))
    return wrap(ew.where(ew.eq(x, zero), y, step))


@method()
@accepts_out
def maximum(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """The larger of the two; NaN wins."""
    x, y = pair("maximum", x1, x2)
    is_bool = x.dtype is dt.bool_
    return wrap(ew.or_(x, y) if is_bool else ew.maximum(require("maximum", x, *_REAL), y))


@method()
@accepts_out
def minimum(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """The smaller of the two; NaN wins."""
    x, y = pair("minimum", x1, x2)
    is_bool = x.dtype is dt.bool_
    return wrap(ew.and_(x, y) if is_bool else ew.minimum(require("minimum", x, *_REAL), y))


def _ordered(op: str, x1: Any, x2: Any) -> tuple[Node, Node]:
    x, y = pair(op, x1, x2)
    return require(op, x, "bool", *_REAL), y


@accepts_out
def fmax(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """The larger of the two; a number wins over NaN. At ties the gradient is that of x1."""
    x, y = _ordered("fmax", x1, x2)
    return wrap(ew.where(ew.or_(ew.le(y, x), ew.ne(y, y)), x, y))


@accepts_out
def fmin(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """The smaller of the two; a number wins over NaN. At ties the gradient is that of x1."""
    x, y = _ordered("fmin", x1, x2)
    return wrap(ew.where(ew.or_(ew.le(x, y), ew.ne(y, y)), x, y))


@method("clip", "clamp")
def clip(x: ArrayLike, /, min: Any = None, max: Any = None, *, out: Tensor | None = None) -> Tensor:
    """x clamped between two bounds, either of which may be left out.

    >>> nm.clip(nm.arange(5), 1, 3)
    tensor([1, 1, 2, 3, 3])
    """
    node = node_of(x, "clip")
    if min is not None:
        a, low = pair("clip", wrap(node), min)
        node = ew.where(_beyond(ew.lt(require("clip", a, *_REAL), low), low, min), low, a)
    if max is not None:
        a, high = pair("clip", wrap(node), max)
        node = ew.where(_beyond(ew.lt(high, require("clip", a, *_REAL)), high, max), high, a)
    result = wrap(same(node) if min is None and max is None else node)
    return result if out is None else write_out(result, out, "clip")


def _beyond(outside: Node, bound: Node, given: Any) -> Node:
    """A bound that is NaN makes NaN of everything."""
    known = dt.scalar_kind(given) is not None and not isinstance(given, dt.Weak)
    if bound.dtype.kind != "float" or (known and given == given):
        return outside
    return ew.or_(outside, ew.ne(bound, bound))


def _infinite(x: Node) -> Node:
    has_infinity = x.dtype is not dt.float8_e4m3fn
    return ew.eq(ew.abs_(x), like(x, math.inf)) if has_infinity else ew.lt(x, x)


def _rounded(op: str, x: Any, build: Any) -> Tensor:
    """Integers are whole already."""
    node = require(op, node_of(x, op), "bool", "uint", "int", "float")
    return wrap(build(node) if node.dtype.kind == "float" else same(node))


@method()
@accepts_out
def floor(x: ArrayLike, /) -> Tensor:
    """The largest integer not above x."""
    return _rounded("floor", x, ew.floor)


@method()
@accepts_out
def ceil(x: ArrayLike, /) -> Tensor:
    """The smallest integer not below x."""
    return _rounded("ceil", x, ew.ceil)


@method()
@accepts_out
def trunc(x: ArrayLike, /) -> Tensor:
    """x without its fraction."""
    return _rounded("trunc", x, ew.trunc)


@method()
def round(x: ArrayLike, /, decimals: int = 0) -> Tensor:
    """The nearest integer (or multiple of 10**-decimals); halves go to the even one.

    >>> nm.round(nm.asarray([0.5, 1.5, -2.7]))
    tensor([ 0.,  2., -3.])
    """
    node = node_of(x, "round")
    decimals = as_int(decimals, "decimals", "round")
    if node.dtype.is_complex:
        parts = (round(wrap(part), decimals)._node for part in (ew.real(node), ew.imag(node)))
        return wrap(ew.complex_(*parts))
    if node.dtype.kind == "float":
        return wrap(_round_to(node, decimals) if decimals else ew.rint(node))
    if decimals >= 0:
        return wrap(same(node))
    require("round", node, "uint", "int")
    step = like(node, 10**-decimals)
    down = ew.floor_divide(node, step)
    twice = ew.mul(ew.sub(node, ew.mul(down, step)), like(node, 2))
    odd = ew.ne(ew.and_(down, like(node, 1)), like(node, 0))
    up = ew.or_(ew.lt(step, twice), ew.and_(ew.eq(step, twice), odd))
    return wrap(ew.mul(ew.add(down, ew.cast(up, node.dtype)), step))


def _round_to(x: Node, decimals: int) -> Node:
    wide = widened(x)
    scale = like(wide, 10.0 ** builtins.abs(decimals))
    there, back = (ew.mul, ew.div) if decimals > 0 else (ew.div, ew.mul)
    return ew.cast(back(ew.rint(there(wide, scale)), scale), x.dtype)


@accepts_out
def rint(x: ArrayLike, /) -> Tensor:
    """The nearest integer; halves go to the even one."""
    return round(x)


absolute = abs
clamp = clip
mod = remainder
power = pow
true_divide = divide
