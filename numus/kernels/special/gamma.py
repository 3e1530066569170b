"""gamma and its reciprocal: a polynomial on [2, 3] with the recurrence, Stirling's formula beyond.

Stirling's power is taken in double-words, as `pow` does: (x - 1/2) log2 x - x log2 e.
"""

from __future__ import annotations

import math

from numus.ir import Expr, fma, select, slow_path_select, unary
from numus.kernels.math import _tools as fp
from numus.kernels.math._coefficients import LOG2_E, PI
from numus.kernels.math.exponential import exp2_of_reduced
from numus.kernels.math.logarithm import reduce_log
from numus.kernels.math.power import log2_pair
from numus.kernels.math.trigonometry import cos_reduced, sin_reduced
from numus.kernels.special import _gamma_tables as table


def _scaled_gamma(a: Expr) -> tuple[Expr, Expr]:
    """(m, n) with gamma(a) = m 2**n for a >= 0; of 0, m is infinite."""
    product, shifted = fp.like(a, 1.0), a
    for j in range(1, 5):
        step = a >= float(j + 2)
        product = select(step, product * (a - float(j)), product)
        shifted = select(step, a - float(j), shifted)
    below, above = a < 1.0, a < 2.0
    shifted = select(below, a + 2.0, select(above, a + 1.0, shifted))
    divisor = select(below, fma(a, a, a), select(above, a, fp.like(a, 1.0)))
    u = shifted - 2.0
    near = fma(u, table.GAMMA(u), 1.0) * product / divisor
    x = fp.clamped(a, 6.0, 45.0 if fp.is32(a) else 200.0)
    less = x - 0.5
    high, low = log2_pair(*reduce_log(x))
    power, error = fp.two_product(less, high)
    error = fma(less, low, error)
    log2_e, log2_e_low = fp.parts(x, LOG2_E)
    decay, decay_error = fp.two_product(x, fp.like(x, -log2_e))
    exponent, rest = fp.fast_two_sum(power, decay)
    rest = rest + (error + fma(x, -log2_e_low, decay_error))
    n, biased = fp.nearest_integer(exponent, 1.0)
    far = exp2_of_reduced((exponent - n) + rest) * (
        table.STIRLING(1.0 / x) * math.sqrt(2 * math.pi)
    )
    return (
        select(a < 7.0, near, far),
        select(a < 7.0, fp.integer(a, 0), fp.biased_integer(biased)),
    )


def sin_half_turns(x: Expr) -> Expr:
    """sin(pi x), exact reduction; 0 at integers."""
    whole = unary("rint", x)
    r = x - whole
    size = fp.absolute(r)
    small = size <= 0.25
    t = select(small, size, 0.5 - size)
    pi, pi_low, _ = fp.parts(x, PI)
    angle, error = fp.two_product(t, fp.like(x, pi))
    low = fma(t, pi_low, error)
    s = select(small, sin_reduced(angle, low), cos_reduced(angle, low))
    half = whole * 0.5
    odd = unary("floor", half).ne(half)
    return fp.copysign(s, select(odd, -r, r))


def gamma(x: Expr) -> Expr:
    """The gamma function; NaN at the negative integers."""
    a = fp.absolute(x)
    m, n = _scaled_gamma(a)
    positive = fp.scaled_positive(m, n)
    positive = select(a > (36.0 if fp.is32(x) else 172.0), fp.like(x, math.inf), positive)
    positive = select(a < (2.0**-100 if fp.is32(x) else 2.0**-900), 1.0 / x, positive)
    s = sin_half_turns(x)
    size = fp.absolute(s)
    below = fp.scaled_positive(math.pi / (a * size * m), -n)
    below = select(a > (45.0 if fp.is32(x) else 185.0), fp.like(x, 0.0), below)
    below = fp.copysign(below, s)
    below = select(s.eq(0.0), fp.like(x, math.nan), below)
    below = select(a < (2.0**-30 if fp.is32(x) else 2.0**-60), 1.0 / x, below)
    below = select(a.eq(math.inf), fp.like(x, math.nan), below)
    return slow_path_select(x < 0.0, below, positive)


def rgamma(x: Expr) -> Expr:
    """1 / gamma(x), entire: 0 at the poles."""
    a = fp.absolute(x)
    m, n = _scaled_gamma(a)
    positive = fp.scaled_positive(1.0 / m, -n)
    positive = select(a > (45.0 if fp.is32(x) else 185.0), fp.like(x, 0.0), positive)
    s = sin_half_turns(x)
    below = fp.scaled_positive(fp.absolute(s) * a * m * (1 / math.pi), n)
    below = fp.copysign(below, s)
    huge = fp.copysign(fp.like(x, math.inf), s)
    below = select(a > (40.0 if fp.is32(x) else 180.0), huge, below)
    below = select(s.eq(0.0), fp.like(x, 0.0), below)
    tiny = a < (2.0**-30 if fp.is32(x) else 2.0**-60)
    return select(tiny, x, slow_path_select(x < 0.0, below, positive))
