"""erf, erfc, erfinv, ndtr: minimax polynomials and rational functions (Remez)."""

from __future__ import annotations

import math

from numus.ir import Expr, approx_div, fma, select, slow_path_select, sqrt
from numus.kernels.math import _coefficients as table
from numus.kernels.math import _tools as fp
from numus.kernels.math.logarithm import log_tail, reduce_log


def erf(x: Expr) -> Expr:
    """The error function: x + x P(x**2) up to 1.25, 1 - Q(|x|)**4 (or 8) beyond.

    1.7 ulp. No exponential and no division: two polynomials are cheaper than either, and a root of
    erfc is much easier to approximate than erfc.
    """
    size = fp.absolute(x)
    near = fma(x, fp.polynomial(x * x, table.ERF), x)
    if fp.is32(x):
        power = fp.polynomial(fp.at_most(size, 3.9375) - 2.59375, table.ERFC_ROOT)
    else:
        power = fp.polynomial(fp.at_most(size, 6.0) - 3.625, table.ERFC_ROOT)
        power = power * power
    power = power * power
    far = fp.copysign(fma(-power, power, 1.0), x)
    return select(size < 1.25, near, far)


def erfc(x: Expr) -> Expr:
    """1 - erf(x) without cancellation: exp(-x**2) times a polynomial in (x - k) / (x + k). 3.6 ulp.

    (1 - x) - (erf(x) - x) up to 1, where 1 - x is exact or harmless; 2 - erfc(-x) below.
    """
    size = fp.absolute(x)
    near = fma(-x, fp.polynomial(x * x, table.ERF), 1.0 - x)
    # exp(-x**2), the square as a double-word
    normal, last = (9.19, 10.3) if fp.is32(x) else (26.54, 28.0)  # results that are, and 0 at last
    size = fp.at_most(size, select(x < 0.0, fp.like(x, normal), fp.like(x, last)))
    square = size * size
    square_low = fma(size, size, -square)
    high, low = fp.parts(x, table.LN2)
    n, biased = fp.nearest_integer(square, -fp.parts(x, table.LOG2_E)[0])
    r = fma(n, -low, fma(n, -high, -square)) - square_low
    exp_reduced = fma(r * r, fp.polynomial(r, table.EXP), r)  # exp(r) - 1
    k = 1.5 if fp.is32(x) else 2.5
    below = size + k
    inverse = 1.0 / below
    top = fp.polynomial((size - k) * inverse, table.ERFCX)
    rest = top * inverse
    rest = fma(fma(-rest, below, top), inverse, rest)  # top / below, rounded once
    value = fma(rest, exp_reduced, rest)
    usual = fp.times_power_of_two(value, biased)
    slow = fp.scaled_positive(value, fp.biased_integer(biased))
    tail = slow_path_select(x > normal, slow, usual)
    far = select(x < 0.0, 2.0 - tail, tail)
    return select(fp.absolute(x) >= 1.0, far, near)  # NaN is near, where nothing touches its bits


def ndtr(x: Expr) -> Expr:
    """The normal distribution's share below x: exp(-x**2 / 2) P(|x|) / Q(|x|), or 1 minus that.

    5.3 ulp; 6.4 in float64. All coefficients are positive, so that nothing cancels.
    """
    normal, last = (12.9, 14.4) if fp.is32(x) else (37.5, 38.7)  # results that are, and 0 at last
    size = fp.at_most(fp.absolute(x), select(x < 0.0, fp.like(x, last), fp.like(x, normal)))
    # exp(-x**2 / 2), the square as a double-word; r is twice what is left
    square = size * size
    square_low = fma(size, size, -square)
    high, low = fp.parts(x, table.LN2)
    n, biased = fp.nearest_integer(square, -fp.parts(x, table.LOG2_E)[0] / 2)
    r = fma(n, -2 * low, fma(n, -2 * high, -square)) - square_low
    exp_reduced = fp.horner(
        r, (1.0, 0.5, *(c / 2 ** (i + 2) for i, c in enumerate(fp.parts(x, table.EXP))))
    )
    value = approx_div(
        fp.polynomial(size, table.NORMAL_TOP) * exp_reduced, fp.polynomial(size, table.NORMAL_BELOW)
    )
    usual = fp.times_power_of_two(value, biased)
    slow = fp.scaled_positive(value, fp.biased_integer(biased))
    tail = slow_path_select(~(x >= -normal), slow, usual)  # NaN is rare, too
    return select(x > 0.0, 1.0 - tail, tail)


def erfinv(x: Expr) -> Expr:
    """x times a polynomial in w = -log(1 - x**2), far out in sqrt(w). 1.9 ulp; 2.4 in float64."""
    rest = fma(-x, x, 1.0)
    w, w_low = _minus_log(rest)
    first, first_low = fp.parts(x, table.HALF_ROOT_PI)
    slope = fp.polynomial(w - 2.5, table.ERFINV)
    usual = fma(x, first, x * fma(w, slope, fma(w_low, slope, first_low)))
    root = sqrt(w)
    far = fp.polynomial(root - 3.0, table.ERFINV_TAIL)
    if not fp.is32(x):
        far = select(w > 15.0, fp.polynomial(root - 5.0, table.ERFINV_FAR), far)
    size = fp.absolute(x)
    outside = select(size.eq(1.0), fp.copysign(fp.like(x, math.inf), x), fp.like(x, math.nan))
    return slow_path_select(
        ~(w <= 5.0) | ~(size < 1.0), select(size < 1.0, x * far, outside), usual
    )


def _minus_log(x: Expr) -> fp.Pair:
    """-log(x) for positive normal x, with the error of its last rounding beside it."""
    e, f = reduce_log(x)
    high, low = fp.parts(x, table.LN2)
    rest = fma(f * f, log_tail(f), e * low) + f
    w = fma(e, -high, -rest)
    return w, fma(e, -high, -w) - rest
