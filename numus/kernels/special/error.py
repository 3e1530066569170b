"""erfcx, erfi, Dawson's function, ndtri, log_ndtr: piecewise polynomials (Chebyshev)."""

from __future__ import annotations

import math

from numus.ir import Expr, fma, select, slow_path_select, sqrt
from numus.kernels.math import _tools as fp
from numus.kernels.math.error_function import ndtr
from numus.kernels.math.exponential import exp
from numus.kernels.math.logarithm import log, log1p
from numus.kernels.special import _error_tables as table


def exp_square(size: Expr) -> Expr:
    """exp(x**2), the square as a double-word; infinite from where it overflows."""
    size = fp.at_most(size, 10.0 if fp.is32(size) else 27.0)
    square, low = fp.two_product(size, size)
    value = exp(square)
    return select(value < math.inf, fma(value, low, value), value)


def erfcx(x: Expr) -> Expr:
    """exp(x**2) erfc(x): a polynomial in (x - 3) / (x + 3) over x + 3; reflected below 0."""
    size = fp.absolute(x)
    finite = fp.at_most(size, 1e30)
    below = finite + 3.0
    positive = table.ERFCX((finite - 3.0) / below) / below
    positive = select(size.eq(math.inf), fp.like(x, 0.0), positive)
    return slow_path_select(x < 0.0, fma(exp_square(size), 2.0, -positive), positive)


def erfi(x: Expr) -> Expr:
    """-i erf(i x): x P(x**2) up to 1, exp(x**2) dawsn(x) beyond."""
    size = fp.absolute(x)
    near = x * table.ERFI(fp.at_most(x * x, 1.0))
    far = exp_square(size) * (dawsn(x) * (2 / math.sqrt(math.pi)))
    return slow_path_select(size > 1.0, select(size.eq(math.inf), x, far), near)


def dawsn(x: Expr) -> Expr:
    """Dawson's integral exp(-x**2) int_0^x exp(t**2) dt."""
    size = fp.absolute(x)
    near = size * table.DAWSN(size * size)
    middle = (
        select(size < 3.0, table.DAWSN_MIDDLE(fp.at_most(size, 3.0)), table.DAWSN_OUTER(size))
        / size
    )
    inverse = 1.0 / size
    far = (inverse * 0.5) * table.DAWSN_FAR(inverse * inverse)
    result = slow_path_select(size >= 1.5, middle, near)
    return fp.copysign(slow_path_select(size >= 5.0, far, result), x)


def ndtri(p: Expr) -> Expr:
    """The inverse of ndtr: q P(q**2) about 1/2, s P(s) with s = sqrt(-2 log p) in the tails."""
    q = p - 0.5
    centre = q * table.NDTRI(q * q)
    tail = select(p < 0.5, p, 1.0 - p)
    s = sqrt(log(tail) * -2.0)
    value = select(s < 5.0, table.NDTRI_TAIL(s), table.NDTRI_OUTER(s))
    if not fp.is32(p):
        value = slow_path_select(s > 14.0, table.NDTRI_FAR(s), value)
    value = select(tail.eq(0.0), fp.like(p, math.inf), s * value)
    value = select(tail < 0.0, fp.like(p, math.nan), value)
    return slow_path_select(~(fp.absolute(q) <= 0.425), fp.copysign(value, q), centre)


def erfcinv(y: Expr) -> Expr:
    """The inverse of erfc, by ndtri(y / 2)."""
    return ndtri(y * 0.5) * -math.sqrt(0.5)


def log_ndtr(x: Expr) -> Expr:
    """log ndtr(x): log1p of the upper tail from -1 on, log erfcx - x**2 / 2 below."""
    near = log1p(-ndtr(-x))
    size = fp.at_least(fp.absolute(x), 1.0)
    far = log(erfcx(size * math.sqrt(0.5)) * 0.5) - (x * x) * 0.5
    far = select(size.eq(math.inf), fp.like(x, -math.inf), far)
    return slow_path_select(x < -1.0, far, near)
