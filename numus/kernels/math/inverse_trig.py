"""asin, acos, atan, atan2."""

from __future__ import annotations

from numus.ir import Expr, fma, select, sqrt
from numus.kernels.math._coefficients import ASIN, ATAN, PI, PI_2
from numus.kernels.math._tools import (
    Pair,
    absolute,
    chain,
    copysign,
    fast_two_sum,
    format_of,
    like,
    parts,
    polynomial,
    unsigned_bits,
)


def _arcsine_core(size: Expr) -> tuple[Expr, Pair]:
    """Whether size is below 1/2, and asin of size or of sqrt((1 - size) / 2) as an open sum.

    asin(x) = pi/2 - 2 asin(sqrt((1 - x) / 2)) brings every argument below 1/2, where a polynomial
    in the square serves.
    """
    small = size < 0.5
    z = select(small, size * size, fma(size, -0.5, 0.5))  # exact for the larger ones
    s = select(small, size, sqrt(z))
    return small, (s, s * z * polynomial(z, ASIN))


def asin(x: Expr) -> Expr:
    """The arc sine; NaN outside [-1, 1]. 1.2 ulp."""
    small, (s, rest) = _arcsine_core(absolute(x))
    quarter, quarter_low, _ = parts(x, PI_2)
    far, far_low = fast_two_sum(like(x, quarter), s * -2.0)
    far = far + (far_low + fma(rest, -2.0, quarter_low))
    return copysign(select(small, s + rest, far), x)


def acos(x: Expr) -> Expr:
    """The arc cosine; NaN outside [-1, 1]. 1.2 ulp."""
    size = absolute(x)
    small, (s, rest) = _arcsine_core(size)
    negative = x < 0.0
    quarter, quarter_low, _ = parts(x, PI_2)
    near = quarter - (copysign(s, x) - (quarter_low - copysign(rest, x)))
    twice = (s + rest) * 2.0
    half, half_low, _ = parts(x, PI)
    far = select(negative, half - (s * 2.0 - fma(rest, -2.0, half_low)), twice)
    return select(small, near, far)


def _arctangent(ratio: Expr) -> Expr:
    """atan(ratio) for 0 <= ratio <= 1."""
    z = ratio * ratio
    # In one chain: the coefficients fall slowly and alternate, two chains would cancel.
    return fma(ratio * z, chain(z, parts(z, ATAN)), ratio)


def atan(x: Expr) -> Expr:
    """The arc tangent: pi/2 - atan(1/x) beyond 1. 1.5 ulp."""
    size = absolute(x)
    large = size > 1.0
    angle = _arctangent(select(large, 1.0 / size, size))
    quarter, quarter_low, _ = parts(x, PI_2)
    return copysign(select(large, quarter - (angle - quarter_low), angle), x)


def atan2(y: Expr, x: Expr) -> Expr:
    """The angle of the point (x, y), with C99's answers for zeros and infinities. 1.6 ulp."""
    height, width = absolute(y), absolute(x)
    steep = height > width
    low, high = select(steep, width, height), select(steep, height, width)
    equal = select(high.eq(0.0), like(x, 0.0), like(x, 1.0))  # two zeros, two infinities
    angle = _arctangent(select(low.eq(high), equal, low / high))
    quarter, quarter_low, _ = parts(x, PI_2)
    angle = select(steep, quarter - (angle - quarter_low), angle)
    half, half_low, _ = parts(x, PI)
    left = (unsigned_bits(x) & format_of(x).sign).ne(0)
    angle = select(left, half - (angle - half_low), angle)
    return copysign(angle, y)
