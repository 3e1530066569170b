"""Gauss' hypergeometric function 2F1 of real numbers: series and continuation by Taylor steps.

Pfaff's transformation takes x < 0 to (0, 1). There the series is summed at most at 3/4, and the
differential equation is continued from it towards 1, each step halving the distance u = 1 - x. No
connection formula is needed, so nothing cancels where c - a - b is an integer, or nearly one. From
u = 2**-60 on, F = A + B u**(c - a - b) is exact.
"""

from __future__ import annotations

import math

from numus.ir import Expr, fma, isnan, select, slow_path_select, unary
from numus.kernels.math import _tools as fp
from numus.kernels.math.exponential import expm1
from numus.kernels.math.logarithm import log
from numus.kernels.math.power import pow
from numus.kernels.special.gamma import gamma, rgamma
from numus.kernels.special.hypergeometric.double_word import Word, series
from numus.kernels.special.hypergeometric.taylor import halved

_TERMS = 4000


def is_pole(n: Expr) -> Expr:
    """0, -1, -2, ..."""
    return (n <= 0.0) & unary("floor", n).eq(n)


def _continued(
    a: Expr, b: Expr, c: Expr, value: Expr, slope: Expr, u: Expr, halvings: Expr
) -> tuple[Expr, Expr]:
    """F and u F' after u has been halved `halvings` times; slope is u F' / 2, by x."""
    rest = (c - a - b) - 1.0
    more = a + b + 1.0

    def following(k: Expr, now: Expr, after: Expr, u: Expr) -> Expr:
        # terms of the Taylor series about 1 - u, at 1 - u / 2
        first = (k + a) * (k + b) * u * 0.25 * now
        second = (k + 1.0) * (fma(u + u, k, -k) + fma(more, u, rest)) * 0.5 * after
        return (first - second) / ((1.0 - u) * (k + 1.0) * (k + 2.0))

    value, slope = halved(following, value, slope, u, halvings, 65 * 60)
    return value, slope * 2.0


def _unit(a: Word, b: Word, c: Expr, w: Word, u: Word, where: Expr) -> Expr:
    """F(w) for 0 <= w < 1 and u = 1 - w."""
    x = w.high
    one, zero = fp.like(x, 1.0), fp.like(x, 0.0)
    far = u.high < 0.375
    least = 2.0**-60
    tiny = u.high < least
    held = Word(fp.like(x, least)).where(tiny, u)
    near_u = held.where(far, Word(fp.like(x, 0.25)))
    exponent = unary("floor", log(near_u.high) * (-1 / math.log(2)) - 0.7)
    halvings = select(far, fp.at_least(exponent, 0.0), zero)
    scale = exp_of_two(halvings)
    start_u = Word(near_u.high * scale, near_u.low * scale)
    at = (Word(one) - start_u).where(far, w)
    value, slope = series((a, b), (Word(c),), at, where, _TERMS)
    begin = slope / select(at.high.eq(0.0), one, at.high) * (start_u.high * 0.5)
    count = select(where & far, halvings, zero)
    p, q = a.high, b.high
    moved, slope = _continued(p, q, c, value, begin, start_u.high, count)
    # below the least u: F - u F' ((u / least)**s - 1) / s
    s = c - p - q
    span = log(u.high / near_u.high)
    power = s * span
    small = fp.absolute(power) < 1e-5
    change = select(small, span * fma(power, 0.5, 1.0), expm1(power) / select(s.eq(0.0), one, s))
    moved = select(tiny, fma(-slope, change, moved), moved)
    return select(far, moved, value)


def exp_of_two(n: Expr) -> Expr:
    """2**n of a whole number."""
    return fp.power_of_two(n.cast(fp.format_of(n).signed))


def hyp2f1(a: Expr, b: Expr, c: Expr, x: Expr) -> Expr:
    """F(a, b; c; x) for x <= 1, and any x where it is a polynomial."""
    one, zero, nan = (fp.like(x, v) for v in (1.0, 0.0, math.nan))
    ends = is_pole(a) | is_pole(b)
    finite = (fp.absolute(a) < math.inf) & (fp.absolute(b) < math.inf) & (fp.absolute(c) < math.inf)
    inside = (x > -math.inf) & (x < 1.0) & ~ends & ~is_pole(c) & finite
    swap = b < a
    low, high = select(swap, b, a), select(swap, a, b)
    low, high, c_ = (select(inside, v, one) for v in (low, high, c))
    x_ = select(inside, x, zero)
    below = x_ < 0.0
    turn = Word.sum(one, -x_)
    w = (Word(-x_) / turn).where(below, Word(x_))
    u = (Word(one) / turn).where(below, turn)
    c_low, c_high = Word.sum(c_, -low), Word.sum(c_, -high)
    # (1 - x)**-a F(a, c - b; c; w) for x < 0; (1 - x)**-b F(c - a, b; c; w) where that ends, and
    # (1 - x)**(c - a - b) F(c - a, c - b; c; x) where that does
    ending = is_pole(c_low.high) | is_pole(c_high.high)
    other = below & is_pole(c_low.high)
    euler = ~below & ending
    p = c_low.where(other | euler, Word(low))
    q = c_high.where((below & ~other) | euler, Word(high))
    value = _unit(p, q, c_, w, u, inside)
    exponent = select(below, select(other, -high, -low), select(euler, c_low.high - high, zero))
    value = select(below | euler, pow(turn.high, exponent) * value, value)
    # a polynomial: its terms end
    poles = ends & (~is_pole(c) | (is_pole(a) & (a >= c)) | (is_pole(b) & (b >= c))) & finite
    a_, b_ = Word(select(poles, a, -one)), Word(select(poles, b, one))
    sum_c, sum_x = Word(select(poles, c, one)), Word(select(poles, x, zero))
    whole = series((a_, b_), (sum_c,), sum_x, poles, _TERMS)[0]
    value = slow_path_select(poles, whole, value)
    # Gauss' theorem at 1
    s = (c - a) - b
    at_one = gamma(c) * gamma(s) * rgamma(c - a) * rgamma(c - b)
    at_one = select(s > 0.0, at_one, fp.like(x, math.inf))
    edge = select(x.eq(1.0) & ~is_pole(c), at_one, nan)
    edge = select(is_pole(c) & ~poles, fp.like(x, math.inf), edge)
    edge = select(x.eq(0.0), one, edge)
    bad = isnan(a) | isnan(b) | isnan(c) | isnan(x)
    return select(inside | poles, value, select(bad, nan, edge))
