"""Modified Bessel functions of real order: I_nu and K_nu.

Debye's expansion where x**2 + nu**2 is large. Nearer to 0, I is its power series, whose terms are
all positive, and K comes from Temme's series (1975) or his continued fraction by Steed's algorithm,
for an order mu in [-1/2, 1/2], from which the recurrence climbs stably.
"""

from __future__ import annotations

import math

from numus.ir import Expr, fma, isnan, iterate, select, slow_path_select, sqrt, unary
from numus.kernels.math import _tools as fp
from numus.kernels.math.exponential import exp
from numus.kernels.math.hyperbolic import cosh, sinh
from numus.kernels.math.logarithm import log
from numus.kernels.math.power import pow
from numus.kernels.special.bessel_order import debye
from numus.kernels.special.gamma import rgamma, sin_half_turns
from numus.kernels.special.incomplete import epsilon

# 1 / gamma(1 + z) by powers of z
_RECIPROCAL_GAMMA = (
    1.0, 0.5772156649015329, -0.6558780715202539, -0.04200263503409524,
    0.16653861138229148, -0.04219773455554433, -0.009621971527876973, 0.0072189432466631,
    -0.0011651675918590652, -0.00021524167411495098, 0.0001280502823881162, -2.013485478078824e-05,
    -1.2504934821426706e-06, 1.133027231981696e-06, -2.056338416977607e-07, 6.116095104481416e-09,
    5.002007644469223e-09, -1.18127457048702e-09, 1.0434267116911005e-10, 7.782263439905071e-12,
    -3.696805618642206e-12, 5.100370287454476e-13, -2.0583260535665066e-14, -5.348122539423018e-15,
)  # fmt: skip


def near_integer(nu: Expr) -> tuple[Expr, Expr]:
    """(mu, n) with nu = mu + n and |mu| <= 1/2."""
    n = unary("rint", nu)
    return nu - n, n


def temme_gammas(mu: Expr) -> tuple[Expr, Expr, Expr, Expr]:
    """Temme's gamma_1, gamma_2, and 1 / gamma(1 + mu), 1 / gamma(1 - mu)."""
    square = mu * mu
    odd = -fp.chain(square, _RECIPROCAL_GAMMA[1::2])
    even = fp.chain(square, _RECIPROCAL_GAMMA[0::2])
    return odd, even, fma(-mu, odd, even), fma(mu, odd, even)


def temme_first(mu: Expr, x: Expr) -> tuple[Expr, Expr, Expr]:
    """f_0, p_0 and q_0 of the series of K; 2 / pi times these are those of Y."""
    one = fp.like(x, 1.0)
    gamma_1, gamma_2, plus, minus = temme_gammas(mu)
    logarithm = -log(x * 0.5)
    sigma = mu * logarithm
    tiny = fp.absolute(sigma) < 1e-4  # sinh(s) / s = 1 + s**2 / 6
    shape = select(tiny, fma(sigma * sigma, 1 / 6, 1.0), sinh(sigma) / select(tiny, one, sigma))
    s = sin_half_turns(mu)
    turns = select(mu.eq(0.0), one, mu * math.pi / select(s.eq(0.0), one, s))
    f = turns * fma(gamma_1, cosh(sigma), gamma_2 * (shape * logarithm))
    growth = exp(sigma)
    return f, growth * 0.5 / plus, 0.5 / (growth * minus)


def _temme(mu: Expr, x: Expr, where: Expr) -> tuple[Expr, Expr]:
    """K_mu(x) and K_(mu+1)(x) for x <= 2."""
    f, p, q = temme_first(mu, x)
    one = fp.like(x, 1.0)
    square, quarter = mu * mu, x * x * 0.25
    start = select(where, one, fp.like(x, 0.0))

    def step(
        k: Expr, c: Expr, f: Expr, p: Expr, q: Expr, total: Expr, second: Expr
    ) -> tuple[Expr, tuple[Expr, ...]]:
        f = fma(k, f, p + q) / (k * k - square)
        c = c * (quarter / k)
        p, q = p / (k - mu), q / (k + mu)
        part = c * f
        running = fp.absolute(c) > epsilon(x) * 2.0**-6
        return running, (k + 1.0, c, f, p, q, total + part, second + c * fma(-k, f, p))

    out = iterate(40, (one, start, f, p, q, f, p), step)
    return out[5], out[6] * 2.0 / x


def _steed(mu: Expr, x: Expr, where: Expr) -> tuple[Expr, Expr]:
    """exp(x) K_mu(x) and exp(x) K_(mu+1)(x) for x >= 2, by Temme's continued fraction."""
    one, zero = fp.like(x, 1.0), fp.like(x, 0.0)
    b = 2.0 * (x + 1.0)
    d = 1.0 / b
    first = 0.25 - mu * mu
    s = fma(first, d, 1.0)
    start = select(where, one, zero)

    def step(
        k: Expr, a: Expr, b: Expr, c: Expr, d: Expr, change: Expr, h: Expr, q1: Expr, q2: Expr,
        q: Expr, s: Expr, part: Expr,
    ) -> tuple[Expr, tuple[Expr, ...]]:  # fmt: skip
        a = a - 2.0 * (k - 1.0)
        c = -a * c / k
        following = (q1 - b * q2) / a
        q = fma(c, following, q)
        b = b + 2.0
        d = 1.0 / fma(a, d, b)
        change = fma(b, d, -1.0) * change
        moved = q * change
        running = fp.absolute(part) > fp.absolute(s) * (epsilon(x) * 0.25)
        return running, (
            *(k + 1.0, a, b, c, d, change, h + change, q2, following, q, s + moved),
            moved + change,
        )

    carried = (one + 1.0, -first, b, first, d, d, d, zero, one, first, s, start)
    out = iterate(200, carried, step)
    h, s = out[6] * first, out[10]
    value = sqrt((math.pi / 2) / x) / s
    return value, value * ((mu + x + 0.5) - h) / x


def climb(low: Expr, high: Expr, mu: Expr, n: Expr, x: Expr, sign: float, limit: int) -> Expr:
    """f_(mu+n) from f_mu and f_(mu+1): f_(k+1) = 2 k / x f_k + sign f_(k-1)."""
    twice = 2.0 / x

    def step(k: Expr, before: Expr, now: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        following = fma((mu + k) * twice, now, sign * before)
        return k < n, (k + 1.0, now, following)

    out = iterate(limit, (fp.like(x, 1.0), low, high), step)
    return select(n < 0.5, low, out[2])


def k_core(nu: Expr, x: Expr, scaled: bool) -> Expr:
    """K for nu >= 0 and 0 < x < inf."""
    reach = debye.reach(x)
    r, r_low = debye.distance(nu, x, 1.0)
    far = r >= reach.modified
    mu, n = near_integer(select(far, fp.like(x, 0.0), nu))
    near_x = fp.at_most(x, reach.modified)
    small = near_x <= 2.0
    series = _temme(mu, fp.at_most(near_x, 2.0), small & ~far)
    fraction = _steed(mu, fp.at_least(near_x, 2.0), ~small & ~far)
    growth, decay = exp(fp.at_most(near_x, 2.0)), exp(-near_x)
    pair = [
        select(small, a * growth if scaled else a, b if scaled else b * decay)
        for a, b in zip(series, fraction, strict=True)
    ]
    near = climb(pair[0], pair[1], mu, n, near_x, 1.0, 40)
    grown = debye.growth(nu, x, (r, r_low), x if scaled else None, True)
    r = fp.at_least(r, reach.modified)
    ratio = nu / r
    even, odd = debye.sums(r, ratio * ratio, False)
    return select(far, grown * (even - odd) * sqrt((math.pi / 2) / r), near)


def i_core(nu: Expr, x: Expr, scaled: bool) -> Expr:
    """I for nu >= 0 and 0 < x < inf."""
    reach = debye.reach(x)
    r, r_low = debye.distance(nu, x, 1.0)
    far = r >= reach.modified
    near_x, near_nu = fp.at_most(x, reach.modified), fp.at_most(nu, reach.modified)
    quarter = near_x * near_x * 0.25
    one = fp.like(x, 1.0)
    start = select(far, fp.like(x, 0.0), one)

    def step(k: Expr, term: Expr, total: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        following = term * (quarter / (k * (k + near_nu)))
        return term > total * (epsilon(x) * 0.25), (k + 1.0, following, total + following)

    total = iterate(100, (one, start, one), step)[2]
    near = pow(near_x * 0.5, near_nu) * (rgamma(near_nu + 1.0) * total)
    if scaled:
        near = near * exp(-near_x)
    grown = debye.growth(nu, x, (r, r_low), x if scaled else None, False)
    r = fp.at_least(r, reach.modified)
    ratio = nu / r
    even, odd = debye.sums(r, ratio * ratio, False)
    return select(far, grown * (even + odd) * sqrt((0.5 / math.pi) / r), near)


def _kv(nu: Expr, x: Expr, scaled: bool) -> Expr:
    size = fp.absolute(nu)
    inside = (x > 0.0) & (x < math.inf) & (size < math.inf)
    one = fp.like(x, 1.0)
    value = k_core(select(inside, size, one), select(inside, x, one), scaled)
    edge = select(x.eq(0.0), fp.like(x, math.inf), fp.like(x, math.nan))
    edge = select(x.eq(math.inf) & (size < math.inf), fp.like(x, 0.0), edge)
    edge = select(size.eq(math.inf) & (x >= 0.0), fp.like(x, math.inf), edge)
    return select(inside, value, select(isnan(nu), nu, edge))


def kv(nu: Expr, x: Expr) -> Expr:
    """The modified Bessel function of the second kind of order nu."""
    return _kv(nu, x, False)


def kve(nu: Expr, x: Expr) -> Expr:
    """exp(x) K_nu(x)."""
    return _kv(nu, x, True)


def is_odd(n: Expr) -> Expr:
    """Whether a whole number is odd."""
    half = n * 0.5
    return unary("floor", half).ne(half)


def _iv(nu: Expr, x: Expr, scaled: bool) -> Expr:
    size, at = fp.absolute(nu), fp.absolute(x)
    whole = unary("floor", nu).eq(nu)
    inside = (at > 0.0) & (at < math.inf) & (size < math.inf)
    one, zero = fp.like(x, 1.0), fp.like(x, 0.0)
    nu_, x_ = select(inside, size, one), select(inside, at, one)
    value = i_core(nu_, x_, scaled)
    below = (nu < 0.0) & ~whole & inside
    # exp(-x) I_-nu = exp(-x) I_nu + 2 / pi sin(nu pi) exp(-2 x) (exp(x) K_nu)
    second = k_core(nu_, x_, scaled) * sin_half_turns(nu_) * (2 / math.pi)
    if scaled:
        second = second * exp(-2.0 * x_)
    value = slow_path_select(below, value + second, value)
    value = select((x < 0.0) & is_odd(nu) & whole, -value, value)
    value = select((x < 0.0) & ~whole, fp.like(x, math.nan), value)
    at_zero = select(nu.eq(0.0), one, zero)
    pole = fp.copysign(fp.like(x, math.inf), sin_half_turns(size))
    at_zero = select((nu < 0.0) & ~whole, pole, at_zero)
    last = zero if scaled else select((x < 0.0) & is_odd(nu), -at, at)
    edge = select(x.eq(0.0), at_zero, select(at.eq(math.inf), last, fp.like(x, math.nan)))
    edge = select((x < 0.0) & ~whole, fp.like(x, math.nan), edge)
    edge = select(size.eq(math.inf) & (at < math.inf), zero, edge)
    return select(inside, value, select(isnan(nu) | isnan(x), nu + x, edge))


def iv(nu: Expr, x: Expr) -> Expr:
    """The modified Bessel function of the first kind of order nu."""
    return _iv(nu, x, False)


def ive(nu: Expr, x: Expr) -> Expr:
    """exp(-|x|) I_nu(x)."""
    return _iv(nu, x, True)
