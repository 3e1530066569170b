"""pow, cbrt, hypot, rsqrt.

pow(x, y) = 2**(y log2 x) loses as many bits as the exponent y log2 x has before its binary point;
so the logarithm is kept as a double-word, good to about 2**-36 (float32) and 2**-66 (float64).
"""

from __future__ import annotations

import math

from numus.ir import Expr, approx_rsqrt, fma, isnan, select, slow_path_select, sqrt, unary
from numus.kernels.math import _tools as fp
from numus.kernels.math._coefficients import ATANH_TAIL, CBRT, THIRD, TWO_OVER_LN2
from numus.kernels.math.exponential import exp2_of_reduced
from numus.kernels.math.logarithm import reduce_log


def log2_pair(e: Expr, f: Expr) -> fp.Pair:
    """log2(2**e (1 + f)) as a double-word: 2 atanh(s) / ln 2 + e with s = f / (2 + f).

    atanh(s) = s (1 + s**2 (1/3 + s**2 T(s**2))): all but T is carried in double-words.
    """
    below, below_low = fp.fast_two_sum(fp.like(f, 2.0), f)
    inverse = 1.0 / below
    s = f * inverse
    s_low = fma(-s, below_low, fma(-s, below, f)) * inverse
    z = s * s
    z_low = fma(s + s, s_low, fma(s, s, -z))
    third, third_low = fp.parts(f, THIRD)
    tail = z * fp.polynomial(z, ATANH_TAIL)
    q, q_low = fp.fast_two_sum(fp.like(f, third), tail)
    q_low = q_low + third_low
    w = z * q
    w_low = fma(z, q_low, fma(z_low, q, fma(z, q, -w)))
    p = s * w
    p_low = fma(s, w_low, fma(s_low, w, fma(s, w, -p)))
    g, g_low = fp.fast_two_sum(s, p)
    g_low = g_low + (s_low + p_low)
    factor, factor_low = fp.parts(f, TWO_OVER_LN2)
    h = g * factor
    h_low = fma(g_low, factor, fma(g, factor_low, fma(g, factor, -h)))
    total, total_low = fp.fast_two_sum(e, h)
    return total, total_low + h_low


def _exponent(e: Expr, f: Expr, y: Expr) -> fp.Pair:
    """y log2(2**e (1 + f))."""
    high, low = log2_pair(e, f)
    product, error = fp.two_product(y, high)
    return product, fma(y, low, error)


def pow(x: Expr, y: Expr) -> Expr:
    """x**y with all special cases of C99; exact where the result is representable. 0.95 ulp."""
    exponent, low = _exponent(*reduce_log(x), y)
    n, biased = fp.nearest_integer(exponent, 1.0)
    usual = fp.times_power_of_two(exp2_of_reduced((exponent - n) + low), biased)
    rare = fp.is_special(x) | ~(fp.absolute(exponent) <= (125.0 if fp.is32(x) else 1021.0))
    return slow_path_select(rare, _pow_slow(x, y), usual)


def _pow_slow(x: Expr, y: Expr) -> Expr:
    """Any base and exponent: subnormal, zero, negative, infinite, NaN; results out of range."""
    small = fp.is32(x)
    g = fp.format_of(x)
    size = fp.absolute(x)
    subnormal = fp.unsigned_bits(size) < g.smallest_normal
    step = g.mantissa + 1
    e, f = reduce_log(select(subnormal, size * 2.0**step, size))
    e = select(subnormal, e - float(step), e)
    bound = 2.0**40 if small else 2.0**70  # enough to overflow with any base but 1
    exponent, low = _exponent(e, f, fp.clamped(y, -bound, bound))
    near = fp.clamped(exponent, *((-160.0, 128.0) if small else (-1100.0, 1024.0)))
    n, biased = fp.nearest_integer(near, 1.0)
    low = select(near.eq(exponent), low, fp.like(x, 0.0))
    result = fp.scaled_positive(exp2_of_reduced((near - n) + low), fp.biased_integer(biased))

    zero, infinite, one = fp.like(x, 0.0), fp.like(x, math.inf), fp.like(x, 1.0)
    at_zero = size.eq(0.0)
    extreme = at_zero | size.eq(math.inf)
    grows = at_zero & (y < 0.0) | ~at_zero & (y > 0.0)
    result = select(extreme, select(grows, infinite, zero), result)
    half = y * 0.5
    integer = unary("trunc", y).eq(y)
    odd = integer & unary("trunc", half).ne(half)
    negative = (fp.unsigned_bits(x) & g.sign).ne(0)
    result = select(negative & odd, -result, result)
    result = select((x < 0.0) & ~integer & (size < math.inf), fp.like(x, math.nan), result)
    result = select(isnan(x) | isnan(y), x + y, result)
    return select(x.eq(1.0) | y.eq(0.0), one, result)


def rsqrt(x: Expr) -> Expr:
    """1 / sqrt(x), one Newton step after it to undo roundings. 0.51 ulp."""
    y = approx_rsqrt(x)
    product, error = fp.two_product(x, y)
    correction = fma(-y, error, fma(-y, product, 1.0)) * 0.5
    corrected = fma(y, correction, y)
    return select(isnan(correction), y, corrected)  # 0 and infinity


def cbrt(x: Expr) -> Expr:
    """The cube root. 0.51 ulp.

    m**(-1/3) from a polynomial and one step of third order (fourth in float64), then one Newton
    step for m**(1/3) with the residual in double-word arithmetic.
    """
    size = fp.absolute(x)
    usual = _cube_root(size)
    step = 24 if fp.is32(x) else 54
    slow = _cube_root(size * 2.0**step) * 2.0 ** (-step // 3)
    slow = select(size.eq(0.0) | ~(size < math.inf), size, slow)
    return fp.copysign(slow_path_select(fp.is_special(size), slow, usual), x)


def _cube_root(x: Expr) -> Expr:
    """For positive normal x."""
    g = fp.format_of(x)
    i = fp.bits(x)
    # x = 2**(3 k + j) f with f in [1, 2) and j in {0, 1, 2}; 43691 / 2**17 is 1/3 closely enough.
    exponent = (i >> g.mantissa) + (3 * g.bias - g.bias)  # three biases: positive, k + bias below
    k = (exponent * 43691) >> 17
    j = exponent - k * 3
    f = fp.from_bits((i & (g.smallest_normal - 1)) | g.one)
    m = fp.from_bits((i & (g.smallest_normal - 1)) + ((j + g.bias) << g.mantissa))
    third = 1 / 3
    start = select(j.eq(1), fp.like(x, 2**-third), fp.like(x, 4**-third))
    start = select(j.eq(0), fp.like(x, 1.0), start)
    r = fp.polynomial(f, CBRT) * start
    h = fma(-m * r * r, r, 1.0)
    series = fma(h, 14 / 81, 2 / 9) if not fp.is32(x) else fp.like(x, 2 / 9)
    r = fma(r * h, fma(h, series, third), r)
    y = m * r * r
    square, square_low = fp.two_product(y, y)
    residual = fma(-square_low, y, fma(-square, y, m))
    y = fma(residual, r * r * third, y)
    return y * fp.from_bits(k << g.mantissa)


def hypot(x: Expr, y: Expr) -> Expr:
    """sqrt(x**2 + y**2) without overflow or underflow on the way; infinite if either is. 1 ulp."""
    a, b = fp.absolute(x), fp.absolute(y)
    large, small = select(a < b, b, a), select(a < b, a, b)
    usual = sqrt(fma(large, large, small * small))
    low, high = (2.0**-40, 2.0**60) if fp.is32(x) else (2.0**-400, 2.0**500)
    # Scaling by a power of two chosen from three is enough to keep the squares in range.
    down, up = (2.0**-64, 2.0**80) if fp.is32(x) else (2.0**-600, 2.0**600)
    big = large >= high
    one = fp.like(x, 1.0)
    tiny = large <= low
    factor = select(big, fp.like(x, down), select(tiny, fp.like(x, up), one))
    back = select(big, fp.like(x, 1 / down), select(tiny, fp.like(x, 1 / up), one))
    p, q = large * factor, small * factor
    slow = sqrt(fma(p, p, q * q)) * back
    slow = select(isnan(x) | isnan(y), x + y, slow)
    slow = select(a.eq(math.inf) | b.eq(math.inf), fp.like(x, math.inf), slow)
    return slow_path_select(~((large > low) & (large < high) & (small >= 0.0)), slow, usual)
