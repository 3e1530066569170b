"""Bessel functions of real order: J_nu and Y_nu.

Debye's expansions away from the turning point x = nu. Beside it orders are recurred: upwards from
the oscillating side, and J downwards from the other one. For small x, J is its power series or
Miller's algorithm, normalised by Neumann's sum (DLMF 10.23.15); Y comes from Temme's series (1976),
or from J and Steed's continued fraction.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from numus.ir import Expr, fma, isnan, iterate, select, slow_path_select, sqrt, unary
from numus.kernels.math import _tools as fp
from numus.kernels.math.inverse_trig import asin
from numus.kernels.math.power import cbrt, pow
from numus.kernels.math.trigonometry import cos, sin
from numus.kernels.special.bessel_order import debye
from numus.kernels.special.bessel_order.modified import climb, is_odd, near_integer, temme_first
from numus.kernels.special.gamma import rgamma, sin_half_turns
from numus.kernels.special.incomplete import epsilon

_STEPS = 4000  # orders beside the turning point: x up to 1e8


def cos_half_turns(x: Expr) -> Expr:
    """cos(pi x)."""
    return sin_half_turns((x - 2.0 * unary("rint", x * 0.5)) + 0.5)


# -- far from 0 -----------------------------------------------------------------------------------


def _wave(nu: Expr, x: Expr) -> tuple[Expr, Expr]:
    """J and Y for x > nu, where the expansion holds.

    The phase s - nu arctan(s / nu) - pi / 4 is taken as it stands near the turning point, and as
    x + w - pi (nu / 2 + 1/4) elsewhere, so that no digit of x is lost.
    """
    s, _ = debye.distance(fp.absolute(nu), x, -1.0)
    s = fp.at_least(s, debye.reach(x).wave * 0.9)
    p, q = debye.sums(s, -((nu / s) * (nu / s)), True)
    w = nu * asin(fp.clamped(nu / x, -1.0, 1.0)) - nu * (nu / (x + s))
    quarter = 0.5 * (nu - 4.0 * unary("rint", nu * 0.25)) + 0.25
    s1, c1, s2, c2 = sin(x), cos(x), sin(w), cos(w)
    s3, c3 = sin_half_turns(quarter), cos_half_turns(quarter)
    sine, cosine = fma(s1, c2, c1 * s2), fma(c1, c2, -(s1 * s2))
    sine, cosine = fma(sine, c3, -(cosine * s3)), fma(cosine, c3, sine * s3)
    # t - arctan t = t u**2 + 2 (u - arctan u) for t = s / nu and u = s / (nu + x)
    near = s < nu
    u = select(near, s / (nu + x), fp.like(x, 0.0))
    square = u * u
    terms = 9 if fp.is32(x) else 21
    tail = fp.chain(square, [(-1) ** k / (2 * k + 3) for k in range(terms)])
    phase = square * fma(nu * u * 2.0, tail, s)
    s4, c4 = sin(phase), cos(phase)
    sine = select(near, (s4 - c4) * math.sqrt(0.5), sine)
    cosine = select(near, (s4 + c4) * math.sqrt(0.5), cosine)
    size = sqrt((2 / math.pi) / s)
    return size * fma(cosine, p, sine * q), size * fma(sine, p, -(cosine * q))


def _tail(nu: Expr, x: Expr, second: bool) -> Expr:
    """J, or Y, for nu > x."""
    pair = debye.distance(nu, x, -1.0)
    grown = debye.growth(nu, x, pair, None, second)
    s = fp.at_least(pair[0], debye.reach(x).tail * 0.9)
    ratio = nu / s
    even, odd = debye.sums(s, ratio * ratio, False)
    if second:
        return -grown * (even - odd) * sqrt((2 / math.pi) / s)
    return grown * (even + odd) * sqrt((0.5 / math.pi) / s)


def _bend(x: Expr) -> Expr:
    """A distance s from the turning point for which an expansion holds, without its constant."""
    root = cbrt(x)
    return root * root * debye.reach(x).transition ** (1 / 3)


def _regions(nu: Expr, x: Expr) -> tuple[Expr, Expr]:
    """Whether Debye's expansion holds for nu > x; whether x is large."""
    reach = debye.reach(x)
    s, _ = debye.distance(nu, x, -1.0)
    ratio = x / s
    tail = (nu > x) & (s > fma(ratio * ratio, reach.transition, reach.tail))
    return tail, x > reach.wave + 1.0


def _two(f: Callable[[Expr], Expr], order: Expr, step: float, where: Expr) -> tuple[Expr, Expr]:
    """f(order + step) and f(order): a loop of two, so that the long expression stands once."""
    zero = fp.like(order, 0.0)
    count = select(where, fp.like(order, 2.0), zero)

    def following(k: Expr, _: Expr, last: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        return k < count, (k + 1.0, last, f(fma(k, -step, order + step)))

    out = iterate(2, (zero, zero, zero), following)
    return out[1], out[2]


def _upwards(nu: Expr, x: Expr, where: Expr, second: bool) -> Expr:
    """For large x, nu up to the monotone side: recurred upwards from the oscillating side."""
    n = near_integer(nu)[1]
    bend = (_bend(x) + debye.reach(x).wave) / x
    start = x * sqrt(fp.at_least(fma(-bend, bend, 1.0), 0.0))
    steps = unary("ceil", fp.at_least(nu - start, 0.0))
    steps = select(steps > n, n, steps)
    start = nu - steps
    before, now = _two(lambda order: _wave(order, x)[1 if second else 0], start, -1.0, where)
    twice = 2.0 / x
    count = select(where, steps, fp.like(x, 0.0))

    def step(k: Expr, before: Expr, now: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        return k < count, (k + 1.0, now, fma((start + k) * twice, now, -before))

    value = iterate(_STEPS, (fp.like(x, 0.0), before, now), step)[2]
    return select(steps > float(_STEPS), fp.like(x, math.nan), value)


def _downwards(nu: Expr, x: Expr, where: Expr) -> Expr:
    """J for large x and nu above it: recurred downwards from the monotone side."""
    bend = (_bend(x) + debye.reach(x).tail) / x
    steps = unary("ceil", fp.at_least(x * sqrt(fma(bend, bend, 1.0)) - nu, 0.0))
    start = nu + steps
    after, now = _two(lambda order: _tail(order, x, False), start, 1.0, where)
    twice = 2.0 / x
    count = select(where, steps, fp.like(x, 0.0))

    def step(k: Expr, after: Expr, now: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        return k < count, (k + 1.0, now, fma((start - k) * twice, now, -after))

    value = iterate(_STEPS, (fp.like(x, 0.0), after, now), step)[2]
    return select(steps > float(_STEPS), fp.like(x, math.nan), value)


# -- near 0 ---------------------------------------------------------------------------------------


def _series(nu: Expr, x: Expr, where: Expr) -> Expr:
    """J by its power series, for x**2 <= 4 (nu + 1)."""
    quarter = x * x * -0.25
    one = fp.like(x, 1.0)
    start = select(where, one, fp.like(x, 0.0))

    def step(k: Expr, term: Expr, total: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        following = term * (quarter / (k * (k + nu)))
        running = fp.absolute(term) > epsilon(x) * 0.125
        return running, (k + 1.0, following, total + following)

    return iterate(60, (one, start, one), step)[2]


def miller(nu: Expr, x: Expr, where: Expr) -> tuple[Expr, Expr, Expr]:
    """J of orders nu, mu and mu + 1, where mu is nu less an integer, |mu| <= 1/2."""
    mu, n = near_integer(nu)
    one, zero = fp.like(x, 1.0), fp.like(x, 0.0)
    more = 20.0 if fp.is32(x) else 45.0
    pairs = unary("ceil", (select(nu > x, nu, x) + more) * 0.5)
    pairs = select(where, pairs, zero)
    twice = 2.0 / x

    def step(
        k: Expr, after: Expr, now: Expr, weight: Expr, total: Expr, found: Expr
    ) -> tuple[Expr, tuple[Expr, ...]]:
        even = k + k
        found = select(even.eq(n), now, found)
        total = fma((mu + even) * weight, now, total)
        odd = fma((mu + even) * twice, now, -after)
        found = select((even - 1.0).eq(n), odd, found)
        lower = fma((mu + (even - 1.0)) * twice, odd, -now)
        # gamma(mu + k) / k!, up to its first value
        weight = weight * select(k > 1.5, k / (mu + (k - 1.0)), one)
        return k > 0.5, (k - 1.0, odd, lower, weight, total, found)

    tiny = fp.like(x, 2.0**-100)
    out = iterate(400, (pairs, zero, tiny, one, zero, zero), step)
    _, first, zeroth, weight, total, found = out
    found = select(n.eq(0.0), zeroth, found)
    norm = zeroth + total / weight
    scale = pow(x * 0.5, mu) * rgamma(mu + 1.0) / select(norm.eq(0.0), one, norm)
    return found * scale, zeroth * scale, first * scale


def _temme(mu: Expr, x: Expr, where: Expr) -> tuple[Expr, Expr]:
    """Y_mu and Y_(mu+1) for x <= 2."""
    f, p, q = (part * (2 / math.pi) for part in temme_first(mu, x))
    one = fp.like(x, 1.0)
    square, quarter = mu * mu, x * x * -0.25
    s = sin_half_turns(mu * 0.5)
    half = select(mu.eq(0.0), fp.like(x, 0.0), s * s * 2.0 / select(mu.eq(0.0), one, mu))
    start = select(where, one, fp.like(x, 0.0))

    def step(
        k: Expr, c: Expr, f: Expr, p: Expr, q: Expr, total: Expr, second: Expr
    ) -> tuple[Expr, tuple[Expr, ...]]:
        f = fma(k, f, p + q) / (k * k - square)
        c = c * (quarter / k)
        p, q = p / (k - mu), q / (k + mu)
        part = c * fma(half, q, f)
        running = fp.absolute(c) > epsilon(x) * 2.0**-6
        return running, (k + 1.0, c, f, p, q, total + part, second + fma(c, p, -(k * part)))

    out = iterate(40, (one, start, f, p, q, fma(half, q, f), p), step)
    return -out[5], -out[6] * 2.0 / x


def _steed(mu: Expr, x: Expr, where: Expr) -> tuple[Expr, Expr]:
    """p and q of H' = (p + i q) H for x >= 2 (Lentz' algorithm in complex numbers)."""
    inverse = 1.0 / x
    a = 0.25 - mu * mu
    p, q = inverse * -0.5, fp.like(x, 1.0)
    br, bi = x + x, fp.like(x, 2.0)
    factor = a * inverse / fma(p, p, 1.0)
    cr, ci = br + factor, fma(p, factor, bi)
    size = 1.0 / fma(br, br, bi * bi)
    dr, di = br * size, -bi * size
    moved_r, moved_i = fma(cr, dr, -(ci * di)), fma(cr, di, ci * dr)
    p, q = fma(p, moved_r, -(q * moved_i)), fma(p, moved_i, q * moved_r)
    change = select(where, fp.like(x, 1.0), fp.like(x, 0.0))

    def step(
        k: Expr, a: Expr, bi: Expr, cr: Expr, ci: Expr, dr: Expr, di: Expr, p: Expr, q: Expr,
        change: Expr,
    ) -> tuple[Expr, tuple[Expr, ...]]:  # fmt: skip
        a, bi = a + 2.0 * (k - 1.0), bi + 2.0
        dr, di = fma(a, dr, br), fma(a, di, bi)
        factor = a / fma(cr, cr, ci * ci)
        cr, ci = fma(cr, factor, br), fma(-ci, factor, bi)
        size = 1.0 / fma(dr, dr, di * di)
        dr, di = dr * size, -di * size
        moved_r, moved_i = fma(cr, dr, -(ci * di)), fma(cr, di, ci * dr)
        p, q = fma(p, moved_r, -(q * moved_i)), fma(p, moved_i, q * moved_r)
        moved = fp.absolute(moved_r - 1.0) + fp.absolute(moved_i)
        return change > epsilon(x), (k + 1.0, a, bi, cr, ci, dr, di, p, q, moved)

    out = iterate(200, (fp.like(x, 2.0), a, bi, cr, ci, dr, di, p, q, change), step)
    return out[7], out[8]


def _y_near(nu: Expr, x: Expr, where: Expr) -> Expr:
    """Y for x below the reach of the expansions."""
    mu, n = near_integer(nu)
    small = x <= 2.0
    series = _temme(mu, fp.at_most(x, 2.0), where & small)
    at = fp.at_least(x, 2.0)
    p, q = _steed(mu, at, where & ~small)
    _, zeroth, first = miller(nu, at, where & ~small)
    slope = fma(mu / at, zeroth, -first)
    y = fma(p, zeroth, -slope) / q
    after = fma(mu / at, y, -fma(p, y, q * zeroth))
    low, high = select(small, series[0], y), select(small, series[1], after)
    return climb(low, high, mu, select(where, n, fp.like(x, 0.0)), x, -1.0, 200)


# -- every argument -------------------------------------------------------------------------------


def j_core(nu: Expr, x: Expr) -> Expr:
    """J for nu >= 0 and 0 < x < inf."""
    tail, large = _regions(nu, x)
    small = (x * x <= 4.0 * (nu + 1.0)) & ~tail & ~large
    inner = ~(tail | large)
    reach = debye.reach(x)
    near_nu, near_x = select(inner, nu, fp.like(x, 0.0)), fp.at_most(x, reach.wave + 1.0)
    series = pow(near_x * 0.5, near_nu) * rgamma(near_nu + 1.0) * _series(near_nu, near_x, small)
    at = fp.at_least(near_x, 1.0)
    near = select(small, series, miller(near_nu, at, inner & ~small)[0])
    far_x = fp.at_least(x, reach.wave)
    below = nu <= x
    wave = _upwards(select(below, nu, fp.like(x, 0.0)), far_x, large & below, False)
    beyond = select(below, x + x, nu)
    steps = _downwards(beyond, far_x, large & ~below & ~tail)
    far = select(below, wave, steps)
    value = slow_path_select(large & ~tail, far, near)
    outer = select(tail, nu, fp.like(x, 100.0))
    return slow_path_select(tail, _tail(outer, select(tail, x, fp.like(x, 1.0)), False), value)


def y_core(nu: Expr, x: Expr) -> Expr:
    """Y for nu >= 0 and 0 < x < inf."""
    tail, large = _regions(nu, x)
    inner = ~(tail | large)
    reach = debye.reach(x)
    near_nu, near_x = select(inner, nu, fp.like(x, 0.0)), fp.at_most(x, reach.wave + 1.0)
    near = _y_near(near_nu, near_x, inner)
    far_x = fp.at_least(x, reach.wave)
    far = _upwards(select(tail, fp.like(x, 0.0), nu), far_x, large & ~tail, True)
    value = slow_path_select(large & ~tail, far, near)
    outer = select(tail, nu, fp.like(x, 100.0))
    return slow_path_select(tail, _tail(outer, select(tail, x, fp.like(x, 1.0)), True), value)


def jv(nu: Expr, x: Expr) -> Expr:
    """The Bessel function of the first kind of order nu."""
    size, at = fp.absolute(nu), fp.absolute(x)
    whole = unary("floor", nu).eq(nu)
    inside = (at > 0.0) & (at < math.inf) & (size < math.inf)
    one, zero, nan = (fp.like(x, value) for value in (1.0, 0.0, math.nan))
    nu_, x_ = select(inside, size, one), select(inside, at, one)
    value = j_core(nu_, x_)
    below = (nu < 0.0) & ~whole & inside
    second = y_core(nu_, x_)
    sine = sin_half_turns(nu_)
    mixed = fma(cos_half_turns(nu_), value, -(sine * second))
    value = slow_path_select(below, mixed, value)
    # J_-n(x) = J_n(-x) = (-1)**n J_n(x)
    value = select(((x < 0.0) ^ (nu < 0.0)) & is_odd(nu) & whole, -value, value)
    value = select((x < 0.0) & ~whole, nan, value)
    pole = fp.copysign(fp.like(x, math.inf), sin_half_turns(size))
    at_zero = select((nu < 0.0) & ~whole, pole, select(nu.eq(0.0), one, zero))
    edge = select(x.eq(0.0), at_zero, select(at.eq(math.inf), zero, nan))
    edge = select((x < 0.0) & ~whole, nan, edge)
    edge = select(nu.eq(math.inf) & (at < math.inf), zero, edge)
    edge = select(isnan(nu) | isnan(x), nu + x, edge)
    return select(inside, value, edge)


def yv(nu: Expr, x: Expr) -> Expr:
    """The Bessel function of the second kind of order nu."""
    size = fp.absolute(nu)
    whole = unary("floor", nu).eq(nu)
    inside = (x > 0.0) & (x < math.inf) & (size < math.inf)
    one, zero, nan = (fp.like(x, value) for value in (1.0, 0.0, math.nan))
    nu_, x_ = select(inside, size, one), select(inside, x, one)
    value = y_core(nu_, x_)
    below = (nu < 0.0) & ~whole & inside
    cosine = cos_half_turns(nu_)
    part = select(cosine.eq(0.0), zero, cosine * value)  # Y may be infinite
    mixed = fma(sin_half_turns(nu_), j_core(nu_, x_), part)
    value = slow_path_select(below, mixed, value)
    value = select((nu < 0.0) & is_odd(nu) & whole, -value, value)
    # at 0: -inf for positive orders, -cos(nu pi) inf for negative ones, which of halves is 0
    pole = fp.copysign(fp.like(x, math.inf), -cos_half_turns(size))
    pole = select(cos_half_turns(size).eq(0.0), zero, pole)
    edge = select(x.eq(0.0), select(nu < 0.0, pole, fp.like(x, -math.inf)), nan)
    edge = select(x.eq(math.inf) & (size < math.inf), zero, edge)
    edge = select(nu.eq(math.inf) & (x >= 0.0), fp.like(x, -math.inf), edge)
    edge = select(isnan(nu) | isnan(x), nu + x, edge)
    return select(inside, value, edge)
