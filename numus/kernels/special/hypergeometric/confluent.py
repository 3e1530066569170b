"""Kummer's function 1F1 and 0F1: series of positive terms wherever there is one.

For x < 0 Kummer's transformation exp(x) 1F1(b - a; b; -x). For a < 0 terms cancel: the sum is a
double-word, and where the function oscillates with a, the recurrence of Laguerre's polynomials goes
on from it. 0F1 is a Bessel function where its series cancels.
"""

from __future__ import annotations

import math

from numus.ir import Expr, fma, isnan, iterate, select, slow_path_select, sqrt, unary
from numus.kernels.math import _tools as fp
from numus.kernels.math.exponential import exp
from numus.kernels.math.gamma import lgamma
from numus.kernels.math.logarithm import log
from numus.kernels.math.power import pow
from numus.kernels.special.bessel_order.modified import iv
from numus.kernels.special.bessel_order.oscillating import jv
from numus.kernels.special.gamma import gamma, rgamma
from numus.kernels.special.hypergeometric.double_word import Word, series
from numus.kernels.special.hypergeometric.gauss import is_pole
from numus.kernels.special.incomplete import epsilon

_TERMS = 10000


def _series(a: Expr, b: Expr, x: Expr, where: Expr) -> Expr:
    """The sum of (a)_k / (b)_k x**k / k!."""
    one, zero = fp.like(x, 1.0), fp.like(x, 0.0)

    def step(k: Expr, term: Expr, total: Expr, left: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        running = left > fp.absolute(total) * (epsilon(x) * 0.125)
        ratio = (a + k) / ((b + k) * (k + 1.0)) * x
        following = term * ratio
        growing = (fp.absolute(ratio) > 0.9) & following.ne(0.0) & (total < math.inf)
        left = select(growing, fp.like(x, math.inf), fp.absolute(following))
        return running, (k + 1.0, following, total + following, left)

    return iterate(_TERMS, (zero, one, one, select(where, one, zero)), step)[2]


def _cancelling(a: Word, b: Expr, x: Expr, where: Expr) -> Expr:
    """1F1 for x >= 0 and a < 0 or b < 0: from where it begins to oscillate with a, downwards."""
    zero = fp.like(x, 0.0)
    bound = fp.at_most(fma(x, -0.25, b * 0.5), -1.0)
    steps = select(where & (b > 0.0), unary("ceil", bound - a.high), zero)
    steps = fp.at_least(steps, 0.0)
    top = a + Word(steps)
    pair = [
        series((v,), (Word(b),), Word(x), at, _TERMS)[0]
        for v, at in ((top, where), (top + Word(fp.like(x, 1.0)), where & (steps > 0.0)))
    ]

    def step(k: Expr, after: Expr, now: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        at = top.high - k
        following = fma((b - 2.0 * at) - x, now, at * after) / (b - at)
        return k < steps, (k + 1.0, now, following)

    return iterate(_TERMS, (zero, pair[1], pair[0]), step)[2]


def _asymptotic(a: Expr, b: Expr, x: Expr, where: Expr) -> Expr:
    """gamma(b) / gamma(b - a) x**-a times the sum of (a)_k (a - b + 1)_k / k! x**-k: 1F1(-x)."""
    one, zero = fp.like(x, 1.0), fp.like(x, 0.0)
    c = (a - b) + 1.0

    def step(k: Expr, term: Expr, total: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        following = term * ((a + k) * (c + k) / ((k + 1.0) * x))
        shrinking = fp.absolute(following) < fp.absolute(term)
        running = fp.absolute(term) > fp.absolute(total) * (epsilon(x) * 0.25)
        following = select(shrinking, following, zero)
        return running, (k + 1.0, following, total + following)

    total = iterate(300, (zero, select(where, one, zero), one), step)[2]
    return gamma(b) * rgamma(b - a) * pow(x, -a) * total


def hyp1f1(a: Expr, b: Expr, x: Expr) -> Expr:
    """Kummer's function 1F1(a; b; x)."""
    one, zero, nan = (fp.like(x, v) for v in (1.0, 0.0, math.nan))
    finite = (fp.absolute(a) < math.inf) & (fp.absolute(b) < math.inf)
    ends = is_pole(b) & is_pole(a) & (a >= b)
    inside = finite & (fp.absolute(x) < math.inf) & (~is_pole(b) | ends)
    a_, b_, x_ = select(inside, a, one), select(inside, b, one), select(inside, x, zero)
    size = fp.absolute(x_)
    # polynomials of negative x are positive sums, as they stand
    plain = (x_ < 0.0) & is_pole(a_)
    below = (x_ < 0.0) & ~plain
    p = Word.sum(b_, -a_).where(below, Word(a_))
    far = below & (size > (60.0 if fp.is32(x) else 500.0)) & ~is_pole(p.high)
    at = select(far, zero, select(plain, x_, size))
    cancels = ~plain & ((p.high < 0.0) | (b_ < 0.0))
    value = _series(p.high, b_, at, inside & ~far & ~cancels)
    value = slow_path_select(
        cancels, _cancelling(p, b_, select(cancels, at, zero), inside & ~far & cancels), value
    )
    value = select(below, value * exp(-at), value)
    safe = select(far, size, fp.like(x, 1000.0))
    outer = _asymptotic(select(far, a_, one), select(far, b_, one + one), safe, far)
    value = slow_path_select(far, outer, value)
    edge = select(is_pole(b), fp.like(x, math.inf), nan)
    edge = select(isnan(a) | isnan(b) | isnan(x), nan, edge)
    return select(x_.eq(0.0) & inside, one, select(inside, value, edge))


def hyp0f1(v: Expr, x: Expr) -> Expr:
    """The sum of x**k / ((v)_k k!): gamma(v) x**((1 - v) / 2) I_(v-1)(2 sqrt(x))."""
    one, zero, nan = (fp.like(x, value) for value in (1.0, 0.0, math.nan))
    inside = (fp.absolute(v) < math.inf) & (fp.absolute(x) < math.inf) & ~is_pole(v)
    v_, x_ = select(inside, v, one), select(inside, x, zero)
    size = fp.absolute(x_)
    room = fp.at_least(v_, 0.0) + 1.0
    bessel = select(x_ < 0.0, size > room, (size > 100.0) & (v_ < 100.0))
    start = select(inside & ~bessel, one, zero)

    def step(k: Expr, term: Expr, total: Expr, left: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        running = left > fp.absolute(total) * (epsilon(x) * 0.125)
        ratio = x_ / ((v_ + k) * (k + 1.0))
        following = term * ratio
        growing = fp.absolute(ratio) > 0.9
        left = select(growing, fp.like(x, math.inf), fp.absolute(following))
        return running, (k + 1.0, following, total + following, left)

    near_sum = iterate(_TERMS, (zero, one, one, start), step)[2]
    root = sqrt(select(bessel, size, one))
    order = select(bessel, v_ - 1.0, zero)
    small = fp.absolute(order) < (20.0 if fp.is32(x) else 100.0)
    near = select(small, order, zero)
    factor = gamma(near + 1.0) * pow(root, -near)
    large = select(small, one, order)
    outer = exp(fma(-large, log(root), lgamma(fp.absolute(large) + 1.0)))
    factor = select(small, factor, outer)
    at = root + root
    wave = jv(order, select(x_ < 0.0, at, one))
    grown = iv(order, select(x_ < 0.0, one, at))
    value = factor * select(x_ < 0.0, wave, grown)
    value = slow_path_select(bessel, value, near_sum)
    edge = select(is_pole(v), nan, select(x.eq(math.inf) & (v > 0.0), x, nan))
    return select(inside, value, select(isnan(v) | isnan(x), v + x, edge))
