"""Incomplete gamma and beta functions: series and continued fractions (modified Lentz).

Prefactors x**a exp(-x) / gamma(a + 1) and x**a (1 - x)**b / B(a, b) decide the accuracy: for large
parameters they are exp(-a phi), phi(u) = u - log1p(u), times Stirling's corrections, in which
nothing cancels (Temme 1979; DiDonato and Morris 1992).
"""

from __future__ import annotations

import math

from numus.ir import Expr, fma, isnan, iterate, select, slow_path_select, sqrt
from numus.kernels.math import _coefficients
from numus.kernels.math import _tools as fp
from numus.kernels.math.exponential import exp, expm1
from numus.kernels.math.gamma import lgamma
from numus.kernels.math.logarithm import log, log1p
from numus.kernels.math.power import pow
from numus.kernels.special import _gamma_tables as table
from numus.kernels.special.error import ndtri
from numus.kernels.special.gamma import gamma, rgamma

LIMIT = 10000  # steps: enough for parameters up to 1e6 at the worst argument
_LARGE = 12.0  # parameters from here on take Stirling's formula


def epsilon(x: Expr) -> float:
    return 2.0**-24 if fp.is32(x) else 2.0**-53


def phi(u: Expr) -> Expr:
    """u - log1p(u) without cancellation: u r - 2 r**3 (1/3 + r**2/5 + ...), r = u / (2 + u)."""
    r = u / (u + 2.0)
    square = r * r
    terms = 7 if fp.is32(u) else 14
    tail = fp.horner(square, [2.0 / (2 * k + 3) for k in range(terms)])
    near = fma(-(square * r), tail, u * r)
    return select((u > -0.4) & (u < 0.7), near, u - log1p(u))


def _stirling(a: Expr) -> Expr:
    """gamma(a) exp(a) a**(1/2 - a) / sqrt(2 pi) for a >= 7."""
    return table.STIRLING(1.0 / fp.at_least(a, 7.0))


def gamma_prefactor(a: Expr, x: Expr) -> Expr:
    """x**a exp(-x) / gamma(a + 1)."""
    small = fp.at_most(a, _LARGE)
    direct = pow(fp.at_most(x, 60.0), small) * exp(-x) * rgamma(small + 1.0)
    outer = exp(fma(small, log(x), -x)) * rgamma(small + 1.0)
    direct = slow_path_select(x >= 60.0, outer, direct)
    large = fp.at_least(a, _LARGE)
    scaled = exp(-large * phi((x - large) / large))
    far = scaled / (sqrt(large * (2 * math.pi)) * _stirling(large))
    return slow_path_select(a >= _LARGE, far, direct)


def _gamma_series(a: Expr, x: Expr, where: Expr) -> Expr:
    """1 + x / (a + 1) + x**2 / ((a + 1) (a + 2)) + ..., four terms by one division."""
    one = fp.like(x, 1.0)
    start = select(where, one, fp.like(x, 0.0))
    a, x = fp.at_most(a, 2.0**30), fp.at_most(x, 2.0**30)  # whose fourth powers are finite
    square = x * x
    cube = square * x

    def step(term: Expr, total: Expr, first: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        second, third, fourth = (first + float(k) for k in (1, 2, 3))
        sum_of_four = fma(fma(second + x, third, square), fourth, cube)
        factor = term * (x / ((first * second) * (third * fourth)))
        new = fma(factor, sum_of_four, total)
        return term > total * epsilon(x), (factor * cube, new, first + 4.0)

    return iterate(LIMIT // 4, (start, one, a + 1.0), step)[1]


def _gamma_fraction(a: Expr, x: Expr, where: Expr) -> Expr:
    """1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - ...)) by the recurrence of its convergents
    (Wallis): no division in a step. Both members are scaled down together before they overflow."""
    one, zero = fp.like(x, 1.0), fp.like(x, 0.0)
    limit = 2.0**40 if fp.is32(x) else 2.0**400
    accuracy = 8 * epsilon(x)  # the recurrence's own roundings; a step after it gains as much

    def step(
        k: Expr, b: Expr, p: Expr, q: Expr, p_before: Expr, q_before: Expr, running: Expr
    ) -> tuple[Expr, tuple[Expr, ...]]:
        top, following = k * (a - k), b + 2.0
        new_p = fma(following, p, top * p_before)
        new_q = fma(following, q, top * q_before)
        product = new_p * q
        moves = fp.absolute(fma(-p, new_q, product)) > fp.absolute(product) * accuracy
        scale = select(fp.absolute(new_q) > limit, fp.like(x, 1 / limit), one)
        state = (new_p * scale, new_q * scale, p * scale, q * scale)
        return running > 0.5, (k + 1.0, following, *state, select(moves, one, zero))

    b = (x + 1.0) - a
    start = (one, b, one, b, zero, one, select(where, one, zero))
    _, _, p, q, *_ = iterate(LIMIT, start, step)
    return p / q


def _upper_near_zero(a: Expr, x: Expr, where: Expr) -> Expr:
    """Q(a, x) for small x: 1 - x**a / gamma(1 + a) (1 + sum of a (-x)**n / ((a + n) n!))."""
    one = fp.like(x, 1.0)
    start = select(where, one, fp.like(x, 0.0))

    def step(power: Expr, total: Expr, n: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        following = power * (-x / n)
        running = fp.absolute(power) > epsilon(x) * fp.absolute(total)
        return running, (following, total + following / (a + n), n + 1.0)

    total = iterate(60, (start, fp.like(x, 0.0), one), step)[1]
    u = fp.at_most(a, 2.0) - 1.0
    lgamma_of_1_more = fp.at_most(a, 2.0) * u * fp.polynomial(u, _coefficients.LGAMMA)
    exponent = fma(a, log(x), -lgamma_of_1_more)
    return -expm1(exponent) - exp(exponent) * (total * a)


def _incomplete_gamma(a: Expr, x: Expr, upper: bool) -> Expr:
    inside = (x > 0.0) & (x < math.inf) & (a > 0.0) & (a < math.inf)
    one, zero = fp.like(x, 1.0), fp.like(x, 0.0)
    a_, x_ = select(inside, a, one), select(inside, x, one)
    series = (x_ <= 1.0) | (x_ <= a_)
    if upper:  # where 1 - P cancels
        bound = select(x_ < 0.5, -0.4 / log(x_), x_ * 1.1)
        special = (x_ <= 1.1) & (a_ <= bound)
        series = select(x_ <= 1.1, ~special, x_ < a_)
    front = gamma_prefactor(a_, x_)
    lower = front * _gamma_series(a_, x_, series & inside)
    fraction = ~series
    if upper:
        fraction = fraction & ~special
    tail = front * a_ * _gamma_fraction(a_, x_, fraction & inside)
    if upper:
        value = select(series, 1.0 - lower, tail)
        value = slow_path_select(special, _upper_near_zero(a_, x_, special & inside), value)
    else:
        value = select(series, lower, 1.0 - tail)
    nothing, all_ = (one, zero) if upper else (zero, one)
    edge = select(x.eq(0.0) | a.eq(math.inf), nothing, all_)
    bad = (a < 0.0) | (x < 0.0) | (a.eq(0.0) & x.eq(0.0)) | (a.eq(math.inf) & x.eq(math.inf))
    edge = select(bad | isnan(a) | isnan(x), fp.like(x, math.nan), edge)
    return select(inside, value, edge)


def gammainc(a: Expr, x: Expr) -> Expr:
    """The regularised lower incomplete gamma function P(a, x)."""
    return _incomplete_gamma(a, x, False)


def gammaincc(a: Expr, x: Expr) -> Expr:
    """The regularised upper incomplete gamma function Q(a, x)."""
    return _incomplete_gamma(a, x, True)


# -- beta -----------------------------------------------------------------------------------------


def beta_prefactor(a: Expr, b: Expr, x: Expr) -> Expr:
    """x**a (1 - x)**b / B(a, b)."""
    swap = b < a
    p, q = select(swap, b, a), select(swap, a, b)
    y = 1.0 - x
    base = select(swap, y, x)
    rest_log = select(swap, log(x), log1p(-x))  # of 1 - base
    total = a + b
    # both small
    s, t = fp.at_most(p, _LARGE), fp.at_most(q, _LARGE)
    near = pow(base, s) * exp(t * rest_log) * (gamma(s + t) * rgamma(s) * rgamma(t))
    # the larger one large: gamma(p + q) / gamma(q) by Stirling's formula
    large = fp.at_least(q, _LARGE)
    ratio = _stirling(fp.at_least(total, _LARGE)) / _stirling(large)
    growth = fma(large - 0.5, log1p(s / large), -s)
    mixed = pow(base * (s + large), s) * exp(fma(large, rest_log, growth)) * (rgamma(s) * ratio)
    # both large
    c, d = fp.at_least(a, _LARGE), fp.at_least(b, _LARGE)
    n = c + d
    excess = select(x < 0.5, c - n * x, n * y - d)
    decay = fma(c, phi(-excess / c), d * phi(excess / d))
    root = sqrt(c * (d / n) * (1 / (2 * math.pi)))
    far = root * exp(-decay) * (_stirling(n) / (_stirling(c) * _stirling(d)))
    value = slow_path_select(q >= _LARGE, mixed, near)
    return slow_path_select(p >= _LARGE, far, value)


def _beta_fraction(a: Expr, b: Expr, x: Expr, where: Expr) -> Expr:
    """The continued fraction of the incomplete beta function, two terms per step."""
    one, tiny = fp.like(x, 1.0), fp.like(x, 2.0**-100)

    def guarded(v: Expr) -> Expr:
        return select(v.eq(0.0), tiny, v)

    total = a + b
    d = 1.0 / guarded(fma(-(total / (a + 1.0)), x, 1.0))
    change = select(where, fp.like(x, 2.0), one)

    def step(m: Expr, c: Expr, d: Expr, h: Expr, change: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        m2 = m + m
        even = m * ((b - m) * x) / ((a + (m2 - 1.0)) * (a + m2))
        d = 1.0 / guarded(fma(even, d, 1.0))
        c = guarded(1.0 + even / c)
        first = c * d
        odd = -((a + m) * ((total + m) * x)) / ((a + m2) * (a + (m2 + 1.0)))
        d = 1.0 / guarded(fma(odd, d, 1.0))
        c = guarded(1.0 + odd / c)
        ratio = c * d
        running = fp.absolute(change - 1.0) > epsilon(x) * 2
        return running, (m + 1.0, c, d, h * first * ratio, ratio)

    return iterate(LIMIT, (one, one, d, d, change), step)[3]


def _betainc(a: Expr, b: Expr, x: Expr, upper: bool) -> Expr:
    inside = (x > 0.0) & (x < 1.0) & (a > 0.0) & (b > 0.0) & (a < math.inf) & (b < math.inf)
    half, one = fp.like(x, 0.5), fp.like(x, 1.0)
    a_, b_, x_ = select(inside, a, one), select(inside, b, one), select(inside, x, half)
    swap = x_ > (a_ + 1.0) / (a_ + b_ + 2.0)
    p, q = select(swap, b_, a_), select(swap, a_, b_)
    z = select(swap, 1.0 - x_, x_)
    value = beta_prefactor(a_, b_, x_) / p * _beta_fraction(p, q, z, inside)
    value = select(~swap if upper else swap, 1.0 - value, value)
    zero = fp.like(x, 0.0)
    low, high = (one, zero) if upper else (zero, one)
    edge = select(x.eq(0.0), low, select(x.eq(1.0), high, fp.like(x, math.nan)))
    edge = select((a > 0.0) & (b > 0.0), edge, fp.like(x, math.nan))
    return select(inside, value, edge)


def betainc(a: Expr, b: Expr, x: Expr) -> Expr:
    """The regularised incomplete beta function I_x(a, b)."""
    return _betainc(a, b, x, False)


# -- inverses -------------------------------------------------------------------------------------


def _bracketed(
    target: Expr, low: Expr, high: Expr, start: Expr, value_and_slope: object, steps: int
) -> Expr:
    """The root of an increasing function by Newton's method, safeguarded by bisection."""

    def step(lo: Expr, hi: Expr, x: Expr, last: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        value, slope = value_and_slope(x)  # type: ignore[operator]
        below = value < target
        lo, hi = select(below, x, lo), select(below, hi, x)
        moved = x - (value - target) / slope
        good = (moved > lo) & (moved < hi)
        middle = select(hi.eq(math.inf), x + x, 0.5 * (lo + hi))
        moved = select(good, moved, middle)
        moved = select(value.eq(target), x, moved)
        running = fp.absolute(x - last) > fp.absolute(x) * (epsilon(x) * 2)
        return running, (lo, hi, moved, x)

    return iterate(steps, (low, high, start, high), step)[2]


def gammaincinv(a: Expr, p: Expr) -> Expr:
    """x with P(a, x) = p: Wilson and Hilferty's start, Newton steps inside a bracket."""
    inside = (p > 0.0) & (p < 1.0) & (a > 0.0) & (a < math.inf)
    one = fp.like(p, 1.0)
    a_, p_ = select(inside, a, one), select(inside, p, fp.like(p, 0.5))
    ninth = 1.0 / (a_ * 9.0)
    cube = fma(ndtri(p_), sqrt(ninth), 1.0 - ninth)
    hilferty = a_ * cube * cube * cube
    small = exp((log(p_) + lgamma(a_ + 1.0)) / a_)
    start = select((a_ > 1.0) & (cube > 0.1), hilferty, small)
    least = 2.0**-120 if fp.is32(p) else 2.0**-1000
    start = fp.clamped(start, least, 2.0**60)

    def f(x: Expr) -> tuple[Expr, Expr]:
        return gammainc(a_, x), gamma_prefactor(a_, x) * (a_ / x)

    found = _bracketed(p_, fp.like(p, 0.0), fp.like(p, math.inf), start, f, 100)
    edge = select(p.eq(0.0), fp.like(p, 0.0), fp.like(p, math.inf))
    bad = ~((p >= 0.0) & (p <= 1.0) & (a > 0.0))
    return select(inside, found, select(bad, fp.like(p, math.nan), edge))


def betaincinv(a: Expr, b: Expr, p: Expr) -> Expr:
    """x with I_x(a, b) = p: Newton steps inside a bracket."""
    inside = (p > 0.0) & (p < 1.0) & (a > 0.0) & (b > 0.0) & (a < math.inf) & (b < math.inf)
    one = fp.like(p, 1.0)
    a_, b_ = select(inside, a, one), select(inside, b, one)
    p_ = select(inside, p, fp.like(p, 0.5))
    log_beta = (lgamma(a_) + lgamma(b_)) - lgamma(a_ + b_)
    small = exp((log(p_ * a_) + log_beta) / a_)  # where the power of x decides
    mean = a_ / (a_ + b_)
    start = select(small < mean * 0.5, small, mean)
    start = fp.clamped(start, 2.0**-120 if fp.is32(p) else 2.0**-1000, 1.0 - epsilon(p))

    def f(x: Expr) -> tuple[Expr, Expr]:
        return betainc(a_, b_, x), beta_prefactor(a_, b_, x) / (x * (1.0 - x))

    found = _bracketed(p_, fp.like(p, 0.0), one, start, f, 100)
    edge = select(p.eq(0.0) | p.eq(1.0), p, fp.like(p, math.nan))
    edge = select((a > 0.0) & (b > 0.0), edge, fp.like(p, math.nan))
    return select(inside, found, edge)


def betaln(a: Expr, b: Expr) -> Expr:
    """log |B(a, b)|; of positive parameters one of which is large, by Stirling's formula."""
    swap = b < a
    p, q = select(swap, b, a), select(swap, a, b)
    near = (lgamma(p) + lgamma(q)) - lgamma(a + b)
    large = fp.at_least(q, _LARGE)
    small = fp.at_least(p, 0.0)
    rest = log(_stirling(large) / _stirling(small + large))
    growth = fma(small, log(small + large) - 1.0, (large - 0.5) * log1p(small / large))
    far = (lgamma(p) - growth) + rest
    return slow_path_select((q >= _LARGE) & (p > 0.0), far, near)
