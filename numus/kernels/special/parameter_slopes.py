"""Derivatives of the incomplete gamma and beta functions by their parameters.

The series and continued fractions of incomplete.py in dual numbers: each carried value with its
derivative (forward mode, in the loop).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from numus.ir import Expr, iterate, select
from numus.kernels.math import _tools as fp
from numus.kernels.math.gamma import digamma
from numus.kernels.math.logarithm import log, log1p
from numus.kernels.special.incomplete import LIMIT, beta_prefactor, epsilon, gamma_prefactor


class Dual:
    """A value and its derivative."""

    def __init__(self, v: Expr, d: Expr) -> None:
        self.v, self.d = v, d

    def __add__(self, o: Dual) -> Dual:
        return Dual(self.v + o.v, self.d + o.d)

    def __sub__(self, o: Dual) -> Dual:
        return Dual(self.v - o.v, self.d - o.d)

    def __mul__(self, o: Dual) -> Dual:
        return Dual(self.v * o.v, self.v * o.d + self.d * o.v)

    def __truediv__(self, o: Dual) -> Dual:
        q = self.v / o.v
        return Dual(q, (self.d - q * o.d) / o.v)


def _constant(like: Expr, value: float) -> Dual:
    return Dual(fp.like(like, value), fp.like(like, 0.0))


def _lentz(
    first: Dual, c: Dual, terms: Callable[[Expr], list[tuple[Dual, Dual]]], where: Expr
) -> Dual:
    """The continued fraction 1 / (first + t_1 / (b_1 + ...)); terms(k) gives (t, b) pairs.

    `c` is Lentz' ratio of numerators so far: huge before the first term.
    """
    x = first.v
    one = _constant(x, 1.0)
    d = one / first
    moved = select(where, fp.like(x, 2.0), fp.like(x, 0.0))

    def step(
        k: Expr, cv: Expr, cd: Expr, dv: Expr, dd: Expr, hv: Expr, hd: Expr, moved: Expr
    ) -> tuple[Expr, tuple[Expr, ...]]:
        c, d, h = Dual(cv, cd), Dual(dv, dd), Dual(hv, hd)
        before = h
        for t, b in terms(k):
            d = one / (b + t * d)
            c = b + t / c
            h = h * (c * d)
        # the derivative converges last
        change = fp.absolute(h.d - before.d) / (fp.absolute(h.d) + fp.absolute(h.v))
        change = change + fp.absolute(h.v - before.v) / fp.absolute(h.v)
        return moved > epsilon(x) * 4, (k + 1.0, c.v, c.d, d.v, d.d, h.v, h.d, change)

    start = (fp.like(x, 1.0), c.v, c.d, d.v, d.d, d.v, d.d, moved)
    out = iterate(LIMIT, start, step)
    return Dual(out[5], out[6])


def gammainc_by_a(a: Expr, x: Expr) -> Expr:
    """The derivative of P(a, x) by a."""
    inside = (x > 0.0) & (x < math.inf) & (a > 0.0) & (a < math.inf)
    one, zero = fp.like(x, 1.0), fp.like(x, 0.0)
    a, x = select(inside, a, one), select(inside, x, one)
    front = gamma_prefactor(a, x)
    slope = log(x) - digamma(a + 1.0)
    series = (x <= 1.0) | (x <= a)

    def step(
        term: Expr, total: Expr, reciprocals: Expr, by_a: Expr, k: Expr
    ) -> tuple[Expr, tuple[Expr, ...]]:
        below = a + k
        following, harmonic = term * (x / below), reciprocals + 1.0 / below
        running = term * fp.absolute(reciprocals + 1.0) > total * epsilon(x)
        step_by_a = by_a - following * harmonic
        return running, (following, total + following, harmonic, step_by_a, k + 1.0)

    start = select(series & inside, one, zero)
    _, total, _, by_a, _ = iterate(LIMIT, (start, one, zero, zero, one), step)
    lower = front * (total * slope + by_a)
    alpha = Dual(a, one)

    def terms(k: Expr) -> list[tuple[Dual, Dual]]:
        number = Dual(k, zero)
        return [(number * (alpha - number), Dual(x + 1.0, zero) - alpha + Dual(k + k, zero))]

    first = Dual(x + 1.0, zero) - alpha
    scale = Dual(front * a, front * a * (slope + 1.0 / a))
    tail = scale * _lentz(first, _constant(x, 2.0**100), terms, ~series & inside)
    return select(inside, select(series, lower, -tail.d), zero)


def _betainc_slope(a: Expr, b: Expr, x: Expr, by_a: bool) -> Expr:
    inside = (x > 0.0) & (x < 1.0) & (a > 0.0) & (b > 0.0) & (a < math.inf) & (b < math.inf)
    half, one, zero = fp.like(x, 0.5), fp.like(x, 1.0), fp.like(x, 0.0)
    a, b, x = select(inside, a, one), select(inside, b, one), select(inside, x, half)
    swap = x > (a + 1.0) / (a + b + 2.0)
    da, db = (one, zero) if by_a else (zero, one)
    front = beta_prefactor(a, b, x)
    log_slope = digamma(a + b) - (digamma(a) if by_a else digamma(b))
    log_slope = log_slope + (log(x) if by_a else log1p(-x))
    p = Dual(select(swap, b, a), select(swap, db, da))
    q = Dual(select(swap, a, b), select(swap, da, db))
    z = Dual(select(swap, 1.0 - x, x), zero)
    n, unit = p + q, Dual(one, zero)

    def terms(k: Expr) -> list[tuple[Dual, Dual]]:
        m, m2 = Dual(k, zero), Dual(k + k, zero)
        even = m * ((q - m) * z) / ((p + m2 - unit) * (p + m2))
        odd = (p + m) * ((n + m) * z) / ((p + m2) * (p + m2 + unit))
        return [(even, unit), (Dual(-odd.v, -odd.d), unit)]

    first = unit - n * z / (p + unit)
    scale = Dual(front, front * log_slope) / p
    value = scale * _lentz(first, unit, terms, inside)
    return select(inside, select(swap, -value.d, value.d), zero)


def betainc_by_a(a: Expr, b: Expr, x: Expr) -> Expr:
    """The derivative of I_x(a, b) by a."""
    return _betainc_slope(a, b, x, True)


def betainc_by_b(a: Expr, b: Expr, x: Expr) -> Expr:
    """The derivative of I_x(a, b) by b."""
    return _betainc_slope(a, b, x, False)
