"""Tricomi's function U(a, b, x) for x > 0: Miller's algorithm in a, of Temme (1983).

f_n = (a)_n U(a + n, b, x) is the minimal solution of its recurrence, and the sum of
(a - b + 1)_n / n! f_n is x**-a. With a in [1/2, 3/2) and b in (0, 1] all terms are positive; larger
a are met on the way. Then b is recurred upwards and a downwards, and x < 4 are reached by Taylor
steps of the differential equation: all of them stable directions.
"""

from __future__ import annotations

import math

from numus.ir import Expr, fma, isnan, iterate, select, slow_path_select, sqrt, unary
from numus.kernels.math import _tools as fp
from numus.kernels.math.logarithm import log
from numus.kernels.math.power import pow
from numus.kernels.special.gamma import gamma, rgamma
from numus.kernels.special.hypergeometric.double_word import Word, series
from numus.kernels.special.hypergeometric.gauss import exp_of_two, is_pole
from numus.kernels.special.hypergeometric.taylor import halved
from numus.kernels.special.incomplete import epsilon

_STEPS = 5000


def _miller(a: Expr, m: Expr, b: Expr, x: Expr, where: Expr) -> tuple[Expr, Expr]:
    """U(a + m, b, x), and x U' of it, for 1/2 <= a < 3/2, 0 < b <= 1 and x not small."""
    one, zero = fp.like(x, 1.0), fp.like(x, 0.0)
    c = (a - b) + 1.0
    # terms fall as exp(-2 sqrt(n x))
    wide = 110.0 if fp.is32(x) else 420.0
    count = unary("ceil", m + wide / x + 45.0 * sqrt(m / x) + 20.0)
    count = select(where, count, zero)

    def step(
        n: Expr, after: Expr, now: Expr, weight: Expr, total: Expr, found: Expr, next_: Expr
    ) -> tuple[Expr, tuple[Expr, ...]]:
        here = n.eq(m)
        found, next_ = select(here, now, found), select(here, after, next_)
        total = fma(weight, now, total)
        middle = 2.0 * (a + n) + (x - b)
        before = (middle * now - (c + n) * after) / (a + (n - 1.0))
        weight = weight * (n / (c + (n - 1.0)))
        return n > 0.5, (n - 1.0, now, before, weight, total, found, next_)

    tiny = fp.like(x, 2.0**-100 if fp.is32(x) else 2.0**-800)
    start = (count, zero, tiny, one, zero, zero, zero)
    _, first, zeroth, weight, total, found, next_ = iterate(_STEPS, start, step)
    found, next_ = select(m.eq(0.0), zeroth, found), select(m.eq(0.0), first, next_)
    total = total / weight + zeroth
    scale = pow(x, -a) * gamma(a) * rgamma(a + m) / total
    # x U' = (a - b + 1) f_1 - a f_0 of the larger a
    return found * scale, ((c + m) * next_ - (a + m) * found) * scale


def _halved(
    a: Expr, b: Expr, value: Expr, slope: Expr, x: Expr, halvings: Expr
) -> tuple[Expr, Expr]:
    """U and x U' after x has been halved `halvings` times."""

    def following(k: Expr, now: Expr, after: Expr, x: Expr) -> Expr:
        # terms of the Taylor series about x, at x / 2
        first = (k + a) * x * 0.25 * now
        second = (k + 1.0) * ((k + b) - x) * -0.5 * after
        return (first - second) / ((k + 1.0) * (k + 2.0))

    # the first term: U' by -x / 2
    value, slope = halved(following, value, slope * -0.5, x, halvings, 1100 * 70)
    return value, slope * -2.0


def _asymptotic(a: Word, c: Word, x: Expr, where: Expr) -> Expr:
    """x**-a times the sum of (a)_k (c)_k / k! (-x)**-k, c = a - b + 1, while terms shrink."""
    one, zero = fp.like(x, 1.0), fp.like(x, 0.0)

    def step(k: Expr, term: Expr, total: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        following = term * -((a.high + k) * (c.high + k) / ((k + 1.0) * x))
        shrinking = fp.absolute(following) < fp.absolute(term)
        running = fp.absolute(term) > fp.absolute(total) * (epsilon(x) * 0.25)
        following = select(shrinking, following, zero)
        return running, (k + 1.0, following, total + following)

    return pow(x, -a.high) * iterate(300, (zero, select(where, one, zero), one), step)[2]


def _finite(a: Word, c: Word, x: Expr, where: Expr) -> Expr:
    """The same where the sum ends."""
    inverse = Word(-fp.like(x, 1.0)) / Word(x)
    total = series((a, c), (), inverse, where, _STEPS)[0]
    return pow(x, -a.high) * total


def _large(a: Expr, b: Expr, x: Expr, where: Expr) -> tuple[Expr, Expr]:
    """U(a, b, x), and x U', for x >= 4."""
    one, zero = fp.like(x, 1.0), fp.like(x, 0.0)
    # U(a, b, x) = x**(1 - b) U(a - b + 1, 2 - b, x)
    swap = b <= 0.0
    p, q = select(swap, (a - b) + 1.0, a), select(swap, 2.0 - b, b)
    downs = unary("ceil", fp.at_least(0.5 - p, 0.0))
    top = p + downs
    more = fp.at_least(unary("floor", top - 0.5), 0.0)
    ups = unary("ceil", q) - 1.0
    base = q - ups  # in (0, 1]
    value, slope = _miller(top - more, more, base, x, where)
    # of a and a + 1, at b and b + 1; x U' = a (a - b + 1) U(a + 1) - a U
    derivative = slope / x
    after = (slope + top * value) / (top * ((top - base) + 1.0))
    low, high = (value, value - derivative), (after, -derivative / top)

    def climb(
        k: Expr, before: Expr, now: Expr, before_2: Expr, now_2: Expr
    ) -> tuple[Expr, tuple[Expr, ...]]:
        b = base + k
        following = (((b - 1.0) + x) * now - ((b - 1.0) - top) * before) / x
        second = (((b - 1.0) + x) * now_2 - ((b - 2.0) - top) * before_2) / x
        return k < ups + 0.5, (k + 1.0, now, following, now_2, second)

    out = iterate(_STEPS, (one, *low, *high), climb)

    def descend(k: Expr, after: Expr, now: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        a = top - k
        following = ((2.0 * a - q) + x) * now - a * ((a - q) + 1.0) * after
        return k < downs, (k + 1.0, now, following)

    _, after, value = iterate(_STEPS, (zero, out[3], out[1]), descend)
    slope = p * (((p - q) + 1.0) * after - value)
    slope = select(swap, fma(1.0 - b, value, slope), slope)
    scale = select(swap, pow(x, 1.0 - b), one)
    return value * scale, slope * scale


def hyperu(a: Expr, b: Expr, x: Expr) -> Expr:
    """Tricomi's confluent hypergeometric function, for x > 0."""
    one, zero, nan = (fp.like(x, v) for v in (1.0, 0.0, math.nan))
    inside = (x > 0.0) & (x < math.inf) & (fp.absolute(a) < math.inf)
    inside = inside & (fp.absolute(b) < math.inf)
    a_, b_, x_ = select(inside, a, one), select(inside, b, one), select(inside, x, one)
    product = (fp.absolute(a_) + 1.0) * (fp.absolute((a_ - b_) + 1.0) + 1.0)
    far = x_ > (product + 10.0) * 2.0 + (20.0 if fp.is32(x) else 40.0)
    c_ = Word.sum(a_, -b_) + Word(one)
    ends = inside & (is_pole(a_) | (is_pole(c_.high) & c_.low.eq(0.0)))
    near = inside & ~far & ~ends
    at = select(near, x_, fp.like(x, 4.0))
    p, q = select(near, a_, one), select(near, b_, one)
    least = 4.0
    small = at < least
    exponent = unary("ceil", log(at) * (-1 / math.log(2)) + math.log2(least))
    halvings = select(small, exponent, zero)
    start = at * exp_of_two(halvings)
    value, slope = _large(p, q, start, near)
    count = select(near & small, halvings, zero)
    value, _ = _halved(p, q, value, slope, start, count)
    outer = _asymptotic(Word(a_), c_, select(far, x_, fp.like(x, 100.0)), far & ~ends)
    value = slow_path_select(far, outer, value)
    polynomial = _finite(Word(select(ends, a_, -one)), c_, select(ends, x_, one), ends)
    value = slow_path_select(ends, polynomial, value)
    edge = select(x.eq(math.inf) & (a > 0.0), zero, nan)
    edge = select(isnan(a) | isnan(b) | isnan(x), nan, edge)
    return select(inside, value, edge)
