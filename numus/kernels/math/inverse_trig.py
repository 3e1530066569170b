"""asin, acos, atan, atan2."""

from __future__ import annotations

from numus.ir import Expr, fma, select, sqrt
from numus.kernels.math import _tools as fp
from numus.kernels.math._coefficients import ASIN, ATAN, PI, PI_2


def _arcsine_core(size: Expr) -> tuple[Expr, fp.Pair]:
    """Whether size is below 1/2, and asin of size or of sqrt((1 - size) / 2) as an open sum.

    asin(x) = pi/2 - 2 asin(sqrt((1 - x) / 2)) brings every argument below 1/2, where a polynomial
    in the square serves.
    """
    small = size < 0.5
    z = select(small, size * size, fma(size, -0.5, 0.5))  # exact for the larger ones
    s = select(small, size, sqrt(z))
    return small, (s, s * z * fp.polynomial(z, ASIN))


def asin(x: Expr) -> Expr:
    """The arc sine; NaN outside [-1, 1]. 1.2 ulp."""
    small, (s, rest) = _arcsine_core(fp.absolute(x))
    quarter, quarter_low, _ = fp.parts(x, PI_2)
    far, far_low = fp.fast_two_sum(fp.like(x, quarter), s * -2.0)
    far = far + (far_low + fma(rest, -2.0, quarter_low))
    return fp.copysign(select(small, s + rest, far), x)


def acos(x: Expr) -> Expr:
    """The arc cosine; NaN outside [-1, 1]. 1.2 ulp."""
    size = fp.absolute(x)
    small, (s, rest) = _arcsine_core(size)
    negative = x < 0.0
    quarter, quarter_low, _ = fp.parts(x, PI_2)
    near = quarter - (fp.copysign(s, x) - (quarter_low - fp.copysign(rest, x)))
    twice = (s + rest) * 2.0
    half, half_low, _ = fp.parts(x, PI)
    far = select(negative, half - (s * 2.0 - fma(rest, -2.0, half_low)), twice)
    return select(small, near, far)


def _arctangent(ratio: Expr) -> Expr:
    """atan(ratio) for 0 <= ratio <= 1."""
    z = ratio * ratio
    # In one chain: the coefficients fall slowly and alternate, two chains would cancel.
    return fma(ratio * z, fp.chain(z, fp.parts(z, ATAN)), ratio)


def atan(x: Expr) -> Expr:
    """The arc tangent: pi/2 - atan(1/x) beyond 1. 1.5 ulp."""
    size = fp.absolute(x)
    large = size > 1.0
    angle = _arctangent(select(large, 1.0 / size, size))
    quarter, quarter_low, _ = fp.parts(x, PI_2)
    return fp.copysign(select(large, quarter - (angle - quarter_low), angle), x)


def atan2(y: Expr, x: Expr) -> Expr:
    """The angle of the point (x, y), with C99's answers for zeros and infinities. 1.6 ulp."""
    height, width = fp.absolute(y), fp.absolute(x)
    steep = height > width
    low, high = select(steep, width, height), select(steep, height, width)
    equal = select(high.eq(0.0), fp.like(x, 0.0), fp.like(x, 1.0))  # two zeros, two infinities
    angle = _arctangent(select(low.eq(high), equal, low / high))
    quarter, quarter_low, _ = fp.parts(x, PI_2)
    angle = select(steep, quarter - (angle - quarter_low), angle)
    half, half_low, _ = fp.parts(x, PI)
    left = (fp.unsigned_bits(x) & fp.format_of(x).sign).ne(0)
    angle = select(left, half - (angle - half_low), angle)
    return fp.copysign(angle, y)
