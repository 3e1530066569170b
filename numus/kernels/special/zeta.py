"""Hurwitz' zeta function by Euler and Maclaurin's formula; the exponential integrals E_n."""

from __future__ import annotations

import math

from numus.ir import Expr, fma, isnan, iterate, select, slow_path_select, unary
from numus.kernels.math import _tools as fp
from numus.kernels.math.exponential import exp
from numus.kernels.math.gamma import digamma
from numus.kernels.math.logarithm import log
from numus.kernels.math.power import pow
from numus.kernels.special.gamma import rgamma
from numus.kernels.special.incomplete import epsilon

# B_2k / (2k)!
_BERNOULLI = (
    1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000,
    1 / 74724249600, -3617 / 10670622842880000, 43867 / 5109094217170944000,
    -174611 / 802857662698291200000,
)  # fmt: skip


def zeta(s: Expr, q: Expr) -> Expr:
    """sum of (q + k)**-s for s > 1 and q > 0; NaN elsewhere, infinite at s = 1."""
    inside = (s > 1.0) & (q > 0.0) & (q < math.inf) & (s < math.inf)
    s_, q_ = select(inside, s, fp.like(s, 2.0)), select(inside, q, fp.like(q, 1.0))
    terms = 6 if fp.is32(q) else 10
    total, at = fp.like(q, 0.0), q_
    for _ in range(terms):
        total = total + pow(at, -s_)
        at = at + 1.0
    power = pow(at, -s_)
    total = total + power * (0.5 + at / (s_ - 1.0))
    inverse = 1.0 / (at * at)
    factor, tail = s_ / at, fp.like(q, 0.0)
    rising = s_
    for k, b in enumerate(_BERNOULLI[: 5 if fp.is32(q) else 10]):
        tail = fma(factor, b, tail)
        rising = s_ + float(2 * k + 1)
        factor = factor * rising * (rising + 1.0) * inverse
    value = fma(power, tail, total)
    edge = select(s.eq(1.0) & (q > 0.0), fp.like(s, math.inf), fp.like(s, math.nan))
    edge = select((s > 1.0) & q.eq(0.0), fp.like(s, math.inf), edge)
    edge = select((s > 1.0) & q.eq(math.inf), fp.like(s, 0.0), edge)
    at_infinity = select(q < 1.0, fp.like(s, math.inf), fp.like(s, 0.0))
    at_infinity = select(q.eq(1.0), fp.like(s, 1.0), at_infinity)
    edge = select(s.eq(math.inf) & (q > 0.0), at_infinity, edge)
    return select(inside, value, select(isnan(s) | isnan(q), s + q, edge))


def expn(n: Expr, x: Expr) -> Expr:
    """E_n(x) for whole n >= 0 and x >= 0: a series up to 1, a continued fraction beyond."""
    inside = (x > 0.0) & (x < math.inf) & (n >= 1.0) & (n < math.inf)
    one, zero = fp.like(x, 1.0), fp.like(x, 0.0)
    n_, x_ = select(inside, n, one), select(inside, x, one)
    less = n_ - 1.0
    near = x_ <= 1.0

    def series(power: Expr, total: Expr, k: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        divisor = k - less
        part = select(divisor.eq(0.0), zero, -power / select(divisor.eq(0.0), one, divisor))
        running = (fp.absolute(power) > epsilon(x) * fp.absolute(total) * 0.25) | (k < less + 2.0)
        running = running & (fp.absolute(power) > 0.0)
        return running, (power * (-x_ / (k + 1.0)), total + part, k + 1.0)

    start = select(near & inside, one, zero)
    total = iterate(200, (start, zero, zero), series)[1]
    # (-x)**(n-1) / (n-1)! (digamma(n) - log x)
    size = fp.at_most(less, 60.0)
    whole = size * 0.5
    odd = unary("floor", whole).ne(whole)
    special = pow(x_, size) * rgamma(size + 1.0) * (digamma(n_) - log(x_))
    special = select(less > 60.0, zero, select(odd, -special, special))
    series_value = total + special

    change = select(near | ~inside, one, fp.like(x, 2.0))
    b = x_ + n_

    def fraction(
        k: Expr, b: Expr, c: Expr, d: Expr, h: Expr, change: Expr
    ) -> tuple[Expr, tuple[Expr, ...]]:
        top = -k * (less + k)
        b = b + 2.0
        d = 1.0 / fma(top, d, b)
        c = b + top / c
        ratio = c * d
        running = fp.absolute(change - 1.0) > epsilon(x) * 2
        return running, (k + 1.0, b, c, d, h * ratio, ratio)

    d = 1.0 / b
    start_c = fp.like(x, 2.0**100)
    far = iterate(1000, (one, b, start_c, d, d, change), fraction)[4] * exp(-x_)
    value = select(near, series_value, far)
    zeroth = exp(-x) / x
    edge = select(x.eq(0.0) & (n > 1.0), 1.0 / (n - 1.0), fp.like(x, math.inf))
    edge = select(x.eq(math.inf), zero, edge)
    bad = (x < 0.0) | (n < 0.0) | isnan(x) | isnan(n)
    edge = select(bad, fp.like(x, math.nan), edge)
    edge = select(n.eq(0.0) & (x > 0.0) & (x < math.inf), zeroth, edge)
    return slow_path_select(~inside, edge, value)
