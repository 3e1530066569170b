"""pow, cbrt, hypot, rsqrt.

pow(x, y) = 2**(y log2 x) loses as many bits as the exponent y log2 x has before its binary point;
so the logarithm is kept as a double-word, good to about 2**-36 (float32) and 2**-66 (float64).
"""

from __future__ import annotations

import math

from numus.ir import Expr, approx_rsqrt, fma, isnan, select, slow_path_select, sqrt, unary
from numus.kernels.math._coefficients import ATANH_TAIL, CBRT, THIRD, TWO_OVER_LN2
from numus.kernels.math._tools import (
    Pair,
    absolute,
    at_least,
    at_most,
    bits,
    copysign,
    fast_two_sum,
    format_of,
    from_bits,
    is32,
    like,
    nearest_integer,
    parts,
    polynomial,
    scaled_positive,
    times_power_of_two,
    two_product,
    unsigned_bits,
)
from numus.kernels.math.exponential import biased_integer, exp2_of_reduced
from numus.kernels.math.logarithm import reduce_log


def log2_pair(e: Expr, f: Expr) -> Pair:
    """log2(2**e (1 + f)) as a double-word: 2 atanh(s) / ln 2 + e with s = f / (2 + f).

    atanh(s) = s (1 + s**2 (1/3 + s**2 T(s**2))): all but T is carried in double-words.
    """
    below, below_low = fast_two_sum(like(f, 2.0), f)
    inverse = 1.0 / below
    s = f * inverse
    s_low = fma(-s, below_low, fma(-s, below, f)) * inverse
    z = s * s
    z_low = fma(s + s, s_low, fma(s, s, -z))
    third, third_low = parts(f, THIRD)
    tail = z * polynomial(z, ATANH_TAIL)
    q, q_low = fast_two_sum(like(f, third), tail)
    q_low = q_low + third_low
    w = z * q
    w_low = fma(z, q_low, fma(z_low, q, fma(z, q, -w)))
    p = s * w
    p_low = fma(s, w_low, fma(s_low, w, fma(s, w, -p)))
    g, g_low = fast_two_sum(s, p)
    g_low = g_low + (s_low + p_low)
    factor, factor_low = parts(f, TWO_OVER_LN2)
    h = g * factor
    h_low = fma(g_low, factor, fma(g, factor_low, fma(g, factor, -h)))
    total, total_low = fast_two_sum(e, h)
    return total, total_low + h_low


def _exponent(e: Expr, f: Expr, y: Expr) -> Pair:
    """y log2(2**e (1 + f))."""
    high, low = log2_pair(e, f)
    product, error = two_product(y, high)
    return product, fma(y, low, error)


def pow(x: Expr, y: Expr) -> Expr:
    """x**y with all special cases of C99; exact where the result is representable. 0.95 ulp."""
    g = format_of(x)
    exponent, low = _exponent(*reduce_log(x), y)
    n, biased = nearest_integer(exponent, 1.0)
    usual = times_power_of_two(exp2_of_reduced((exponent - n) + low), biased)
    outside = (unsigned_bits(x) - g.smallest_normal) >= (g.infinity - g.smallest_normal)
    rare = outside | ~(absolute(exponent) <= (125.0 if is32(x) else 1021.0))
    return slow_path_select(rare, _pow_slow(x, y), usual)


def _pow_slow(x: Expr, y: Expr) -> Expr:
    """Any base and exponent: subnormal, zero, negative, infinite, NaN; results out of range."""
    small = is32(x)
    g = format_of(x)
    size = absolute(x)
    subnormal = unsigned_bits(size) < g.smallest_normal
    step = g.mantissa + 1
    e, f = reduce_log(select(subnormal, size * 2.0**step, size))
    e = select(subnormal, e - float(step), e)
    bound = 2.0**40 if small else 2.0**70  # enough to overflow with any base but 1
    exponent, low = _exponent(e, f, at_most(at_least(y, -bound), bound))
    near = at_most(at_least(exponent, -160.0 if small else -1100.0), 128.0 if small else 1024.0)
    n, biased = nearest_integer(near, 1.0)
    low = select(near.eq(exponent), low, like(x, 0.0))
    result = scaled_positive(exp2_of_reduced((near - n) + low), biased_integer(biased))

    zero, infinite, one = like(x, 0.0), like(x, math.inf), like(x, 1.0)
    at_zero = size.eq(0.0)
    extreme = at_zero | size.eq(math.inf)
    grows = at_zero & (y < 0.0) | ~at_zero & (y > 0.0)
    result = select(extreme, select(grows, infinite, zero), result)
    half = y * 0.5
    integer = unary("trunc", y).eq(y)
    odd = integer & unary("trunc", half).ne(half)
    negative = (unsigned_bits(x) & g.sign).ne(0)
    result = select(negative & odd, -result, result)
    result = select((x < 0.0) & ~integer & (size < math.inf), like(x, math.nan), result)
    result = select(isnan(x) | isnan(y), x + y, result)
    return select(x.eq(1.0) | y.eq(0.0), one, result)


def rsqrt(x: Expr) -> Expr:
    """1 / sqrt(x), one Newton step after it to undo roundings. 0.51 ulp."""
    y = approx_rsqrt(x)
    product, error = two_product(x, y)
    correction = fma(-y, error, fma(-y, product, 1.0)) * 0.5
    corrected = fma(y, correction, y)
    return select(isnan(correction), y, corrected)  # 0 and infinity


def cbrt(x: Expr) -> Expr:
    """The cube root. 0.51 ulp.

    m**(-1/3) from a polynomial and one step of third order (fourth in float64), then one Newton
    step for m**(1/3) with the residual in double-word arithmetic.
    """
    size = absolute(x)
    g = format_of(x)
    usual = _cube_root(size)
    step = 24 if is32(x) else 54
    slow = _cube_root(size * 2.0**step) * 2.0 ** (-step // 3)
    slow = select(size.eq(0.0) | ~(size < math.inf), size, slow)
    rare = (unsigned_bits(size) - g.smallest_normal) >= (g.infinity - g.smallest_normal)
    return copysign(slow_path_select(rare, slow, usual), x)


def _cube_root(x: Expr) -> Expr:
    """For positive normal x."""
    g = format_of(x)
    i = bits(x)
    # x = 2**(3 k + j) f with f in [1, 2) and j in {0, 1, 2}; 43691 / 2**17 is 1/3 closely enough.
    exponent = (i >> g.mantissa) + (3 * g.bias - g.bias)  # three biases: positive, k + bias below
    k = (exponent * 43691) >> 17
    j = exponent - k * 3
    f = from_bits((i & (g.smallest_normal - 1)) | g.one)
    m = from_bits((i & (g.smallest_normal - 1)) + ((j + g.bias) << g.mantissa))
    third = 1 / 3
    start = select(j.eq(0), like(x, 1.0), select(j.eq(1), like(x, 2**-third), like(x, 4**-third)))
    r = polynomial(f, CBRT) * start
    h = fma(-m * r * r, r, 1.0)
    series = fma(h, 14 / 81, 2 / 9) if not is32(x) else like(x, 2 / 9)
    r = fma(r * h, fma(h, series, third), r)
    y = m * r * r
    square, square_low = two_product(y, y)
    residual = fma(-square_low, y, fma(-square, y, m))
    y = fma(residual, r * r * third, y)
    return y * from_bits(k << g.mantissa)


def hypot(x: Expr, y: Expr) -> Expr:
    """sqrt(x**2 + y**2) without overflow or underflow on the way; infinite if either is. 1 ulp."""
    a, b = absolute(x), absolute(y)
    large, small = select(a < b, b, a), select(a < b, a, b)
    usual = sqrt(fma(large, large, small * small))
    low, high = (2.0**-40, 2.0**60) if is32(x) else (2.0**-400, 2.0**500)
    # Scaling by a power of two chosen from three is enough to keep the squares in range.
    down, up = (2.0**-64, 2.0**80) if is32(x) else (2.0**-600, 2.0**600)
    big = large >= high
    one = like(x, 1.0)
    tiny = large <= low
    factor = select(big, like(x, down), select(tiny, like(x, up), one))
    back = select(big, like(x, 1 / down), select(tiny, like(x, 1 / up), one))
    p, q = large * factor, small * factor
    slow = sqrt(fma(p, p, q * q)) * back
    slow = select(isnan(x) | isnan(y), x + y, slow)
    slow = select(a.eq(math.inf) | b.eq(math.inf), like(x, math.inf), slow)
    return slow_path_select(~((large > low) & (large < high) & (small >= 0.0)), slow, usual)
