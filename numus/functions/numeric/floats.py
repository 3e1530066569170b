"""Parts and representations of numbers: mantissa and exponent, integer and fraction, real and
imaginary."""

from __future__ import annotations

import math
from typing import Any

from numus import dtypes as dt
from numus.functions import api as nm
from numus.functions._base import common, float_node, method, operand, pair, wrap
from numus.functions.elementwise.output import Outs, accepts_out, write_outs
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.source import constant
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "array_equal", "array_equiv", "complex", "fabs", "fix", "frac", "frexp", "iscomplex",
    "iscomplexobj", "isreal", "isrealobj", "ldexp", "logaddexp2", "modf", "polar",
    "real_if_close", "sgn", "sort_complex", "spacing", "view_as_complex", "view_as_real",
]  # fmt: skip


def _power_of_two(exponent: Node, like: Node) -> Node:
    """2**exponent, a normal number of like's dtype, from its bits."""
    integer, bias, bits = (dt.int64, 1023, 52) if like.dtype is dt.float64 else (dt.int32, 127, 23)
    shifted = ew.add(ew.cast(exponent, integer), constant(bias, integer))
    return ew.bitcast(ew.shift_left(shifted, constant(bits, integer)), like.dtype)


def _scaled(x: Node, exponent: Node) -> Node:
    """x * 2**exponent in three steps, so that no factor over- or underflows by itself."""
    limit = constant(3000 if x.dtype is dt.float64 else 360, dt.int32)
    n = ew.minimum(ew.maximum(exponent, ew.neg(limit)), limit)
    third = ew.floor_divide(n, constant(3, dt.int32))
    rest = ew.sub(n, ew.add(third, third))
    for part in (third, third, rest):
        x = ew.mul(x, _power_of_two(part, x))
    return x


@method()
@accepts_out
def ldexp(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """x1 * 2**x2 for integers x2.

    >>> nm.ldexp(nm.asarray(3.0), nm.asarray([0, 2, -1])).tolist()
    [3.0, 12.0, 1.5]
    """
    x = float_node("ldexp", x1)
    n = operand("ldexp", x2)
    if not n.dtype.is_integer:
        raise TypeError(f"ldexp: the exponent must be an integer, not {n.dtype.name}")
    wide = ew.cast(x, dt.compute_dtype(x.dtype))
    return wrap(ew.cast(_scaled(wide, ew.cast(n._node, dt.int32)), x.dtype))


@method()
def frexp(x: ArrayLike, /, *, out: Outs | None = None) -> tuple[Tensor, Tensor]:
    """The mantissa, between 0.5 and 1, and the exponent (int32): x is mantissa * 2**exponent.

    >>> mantissa, exponent = nm.frexp(nm.asarray([8.0, -0.75]))
    >>> mantissa.tolist(), exponent.tolist()
    ([0.5, -0.75], [4, 0])
    """
    node = float_node("frexp", x)
    wide = ew.cast(node, dt.compute_dtype(node.dtype))
    double = wide.dtype is dt.float64
    integer, fraction_bits, mask = (dt.int64, 52, 0x7FF) if double else (dt.int32, 23, 0xFF)
    # subnormal numbers have no exponent of their own: they are scaled first
    lift = constant(64, dt.int32)
    size = ew.abs_(ew.stop_gradient(wide))
    tiny = ew.lt(size, constant(2.0 ** (-1022 if double else -126), wide.dtype))
    normal = ew.where(tiny, ew.mul(size, constant(2.0**64, wide.dtype)), size)
    bits = ew.shift_right(ew.bitcast(normal, integer), constant(fraction_bits, integer))
    exponent = ew.cast(ew.and_(bits, constant(mask, integer)), dt.int32)
    exponent = ew.sub(exponent, constant(mask // 2 - 1, dt.int32))
    exponent = ew.where(tiny, ew.sub(exponent, lift), exponent)
    finite = ew.lt(size, constant(math.inf, wide.dtype))
    usual = ew.and_(finite, ew.ne(size, constant(0.0, wide.dtype)))
    exponent = ew.where(usual, exponent, constant(0, dt.int32))
    mantissa = ew.cast(_scaled(wide, ew.neg(exponent)), node.dtype)
    return write_outs((wrap(mantissa), wrap(exponent)), out, "frexp")


def modf(x: ArrayLike, /, *, out: Outs | None = None) -> tuple[Tensor, Tensor]:
    """The fractional and the integer part, both with the sign of x.

    >>> fraction, whole = nm.modf(nm.asarray([2.5, -0.25]))
    >>> fraction.tolist(), whole.tolist()
    ([0.5, -0.25], [2.0, -0.0])
    """
    given = wrap(float_node("modf", x))
    whole = nm.trunc(given)
    rest = nm.where(nm.isinf(given), 0.0, given - whole)
    return write_outs((nm.copysign(rest, given), whole), out, "modf")


@method()
def frac(x: ArrayLike, /) -> Tensor:
    """The fractional part, with the sign of x.

    >>> nm.frac(nm.asarray([2.5, -0.25])).tolist()
    [0.5, -0.25]
    """
    given = operand("frac", x)
    return given - nm.trunc(given)


fix = nm.trunc


@accepts_out
def fabs(x: ArrayLike, /) -> Tensor:
    """The absolute value of real numbers, as floats."""
    return nm.abs(wrap(float_node("fabs", x)))


@method()
def sgn(x: ArrayLike, /) -> Tensor:
    """The sign; of complex numbers, x / |x|."""
    return nm.sign(x)


@accepts_out
def spacing(x: ArrayLike, /) -> Tensor:
    """The distance to the next number away from zero.

    >>> nm.spacing(nm.asarray(1.0)).item() == nm.finfo(nm.float32).eps
    True
    """
    given = wrap(float_node("spacing", x))
    return nm.nextafter(given, nm.copysign(math.inf, given)) - given


@method()
@accepts_out
def logaddexp2(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """log2(2**x1 + 2**x2), without overflow.

    >>> nm.logaddexp2(nm.asarray(1.0), 1.0).item()
    2.0
    """
    a, b = (wrap(n) for n in pair("logaddexp2", x1, x2))
    a, b = (x if x.dtype.is_inexact else nm.astype(x, dt.default_float) for x in (a, b))
    log_2 = math.log(2)
    return nm.where(a == b, nm.maximum(a, b) + 1, nm.logaddexp(a * log_2, b * log_2) / log_2)


def complex(real: ArrayLike, imag: ArrayLike, /) -> Tensor:
    """Complex numbers from their real and imaginary parts.

    >>> nm.complex(nm.asarray(1.0), nm.asarray(2.0)).item()
    (1+2j)
    """
    x, y = (float_node("complex", wrap(n)) for n in common("complex", real, imag))
    x, y = (n._node for n in nm.broadcast_arrays(wrap(x), wrap(y)))
    wide = dt.float64 if x.dtype is dt.float64 else dt.float32
    return wrap(ew.complex_(ew.cast(x, wide), ew.cast(y, wide)))


def polar(abs: ArrayLike, angle: ArrayLike, /) -> Tensor:
    """Complex numbers from their absolute values and angles.

    >>> nm.polar(nm.asarray(2.0), nm.asarray(0.0)).item()
    (2+0j)
    """
    size, turn = (wrap(float_node("polar", wrap(n))) for n in common("polar", abs, angle))
    return complex(size * nm.cos(turn), size * nm.sin(turn))


def view_as_real(x: Tensor, /) -> Tensor:
    """The real and imaginary parts of complex numbers, as a new last axis.

    >>> nm.view_as_real(nm.asarray([1 + 2j])).tolist()
    [[1.0, 2.0]]
    """
    given = operand("view_as_real", x)
    if not given.dtype.is_complex:
        raise TypeError(f"view_as_real: takes complex numbers, not {given.dtype.name}")
    return nm.stack([nm.real(given), nm.imag(given)], -1)


def view_as_complex(x: Tensor, /) -> Tensor:
    """Complex numbers whose parts are along the last axis of x, of extent 2.

    >>> nm.view_as_complex(nm.asarray([[1.0, 2.0]])).tolist()
    [(1+2j)]
    """
    given = operand("view_as_complex", x)
    if given.ndim == 0 or given.shape[-1] != 2:
        raise ValueError(f"view_as_complex: the last axis must have extent 2, not {given.shape}")
    return complex(given[..., 0], given[..., 1])


def iscomplex(x: ArrayLike, /) -> Tensor:
    """Whether the imaginary part is not zero.

    >>> nm.iscomplex(nm.asarray([1 + 1j, 1 + 0j])).tolist()
    [True, False]
    """
    given = operand("iscomplex", x)
    flat = nm.zeros_like(given, dtype=dt.bool_)
    return nm.imag(given) != 0 if given.dtype.is_complex else flat


@method()
def isreal(x: ArrayLike, /) -> Tensor:
    """Whether the imaginary part is zero."""
    return nm.logical_not(iscomplex(x))


def iscomplexobj(x: Any, /) -> bool:
    """True if the dtype is complex."""
    return nm.asarray(x).dtype.is_complex


def isrealobj(x: Any, /) -> bool:
    """True if the dtype is not complex."""
    return not iscomplexobj(x)


def real_if_close(x: ArrayLike, /, tol: float = 100) -> Tensor:
    """The real parts, if all imaginary parts are smaller than `tol` times the resolution (or
    than `tol`, if that is below 1). Evaluates x.

    >>> nm.real_if_close(nm.asarray([2 + 1e-10j])).tolist()
    [2.0]
    """
    given = operand("real_if_close", x)
    if not given.dtype.is_complex:
        return given
    bound = tol * nm.finfo(given.dtype).eps if tol > 1 else tol
    return nm.real(given) if bool(nm.all(nm.abs(nm.imag(given)) < bound)) else given


def sort_complex(x: ArrayLike, /) -> Tensor:
    """The elements in order, real parts first, as complex numbers.

    >>> nm.sort_complex(nm.asarray([2.0, 1.0])).tolist()
    [(1+0j), (2+0j)]
    """
    given = nm.sort(operand("sort_complex", x))
    wide = dt.complex128 if given.dtype is dt.float64 else dt.complex64
    return given if given.dtype.is_complex else nm.astype(given, wide)


def array_equal(x1: Any, x2: Any, /, equal_nan: bool = False) -> bool:
    """True if two arrays have one shape and the same elements. Evaluates them.

    >>> nm.array_equal(nm.asarray([1, 2]), [1, 2])
    True
    """
    a, b = nm.asarray(x1), nm.asarray(x2)
    if a.shape != b.shape:
        return False
    same = a == b
    if equal_nan and a.dtype.is_inexact and b.dtype.is_inexact:
        same = same | (nm.isnan(a) & nm.isnan(b))
    return bool(nm.all(same))


def array_equiv(x1: Any, x2: Any, /) -> bool:
    """True if two arrays, broadcast to one shape, have the same elements. Evaluates them.

    >>> nm.array_equiv(nm.asarray([1, 1]), 1)
    True
    """
    a, b = nm.asarray(x1), nm.asarray(x2)
    try:
        return bool(nm.all(a == b))
    except ValueError:
        return False
