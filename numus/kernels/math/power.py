"""pow, cbrt, hypot, rsqrt.

pow(x, y) = 2**(y log2 x) loses as many bits as the exponent y log2 x has before its binary point;
so the logarithm is kept as a double-word, good to about 2**-36 (float32) and 2**-66 (float64).
"""

from __future__ import annotations

import math

from numus.compiler.ir import Expr, fma, guard, isnan, select, sqrt, unary
from numus.kernels.math._tools import (
    Pair,
    absolute,
    at_least,
    at_most,
    fast_two_sum,
    format_of,
    is32,
    like,
    nearest_integer,
    polynomial,
    scaled,
    times_power_of_two,
    two_product,
    unsigned_bits,
)
from numus.kernels.math.exponential import exp2_of_reduced, held_integer
from numus.kernels.math.logarithm import reduce_log

# (atanh(s) / s - 1 - s**2 / 3) / s**4 in s**2, |s| <= (sqrt(2) - 1) / (sqrt(2) + 1)
ATANH_TAIL_32 = (0.200000763, 0.142735392, 0.117100708)
ATANH_TAIL_64 = (
    *(0.1999999999999999, 0.14285714285722065, 0.11111111108837179, 0.090909094309862673),
    *(0.076922785067512323, 0.066681621777203118, 0.058372407600460141, 0.059965594630497721),
)
THIRD_32 = (0.333333343, -9.93410776e-09)
THIRD_64 = (0.3333333333333333, 1.850371707708594e-17)
TWO_OVER_LN2_32 = (2.88539004, 3.85192607e-08)
TWO_OVER_LN2_64 = (2.8853900817779268, 4.0710547481862066e-17)


def log2_pair(e: Expr, f: Expr) -> Pair:
    """log2(2**e (1 + f)) as a double-word: 2 atanh(s) / ln 2 + e with s = f / (2 + f).

    atanh(s) = s (1 + s**2 (1/3 + s**2 T(s**2))): all but T is carried in double-words.
    """
    small = is32(f)
    below, below_low = fast_two_sum(like(f, 2.0), f)
    inverse = 1.0 / below
    s = f * inverse
    s_low = fma(-s, below_low, fma(-s, below, f)) * inverse
    z = s * s
    z_low = fma(s + s, s_low, fma(s, s, -z))
    third, third_low = THIRD_32 if small else THIRD_64
    tail = z * polynomial(z, ATANH_TAIL_32 if small else ATANH_TAIL_64)
    q, q_low = fast_two_sum(like(f, third), tail)
    q_low = q_low + third_low
    w = z * q
    w_low = fma(z, q_low, fma(z_low, q, fma(z, q, -w)))
    p = s * w
    p_low = fma(s, w_low, fma(s_low, w, fma(s, w, -p)))
    g, g_low = fast_two_sum(s, p)
    g_low = g_low + (s_low + p_low)
    factor, factor_low = TWO_OVER_LN2_32 if small else TWO_OVER_LN2_64
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
    """x**y with all special cases of C99; exact where the result is representable. Below 1 ulp."""
    g = format_of(x)
    exponent, low = _exponent(*reduce_log(x), y)
    n, held = nearest_integer(exponent, 1.0)
    usual = times_power_of_two(exp2_of_reduced((exponent - n) + low), held)
    outside = (unsigned_bits(x) - g.smallest_normal) >= (g.infinity - g.smallest_normal)
    rare = outside | ~(absolute(exponent) <= (125.0 if is32(x) else 1021.0))
    return guard(rare, _pow_slow(x, y), usual)


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
    limit = 160.0 if small else 1100.0
    near = at_most(at_least(exponent, -limit), limit)
    n, held = nearest_integer(near, 1.0)
    low = select(near.eq(exponent), low, like(x, 0.0))
    result = scaled(exp2_of_reduced((near - n) + low), held_integer(held))

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
    """1 / sqrt(x), one Newton step after the division to undo the two roundings. Below 1 ulp."""
    y = 1.0 / sqrt(x)
    product, error = two_product(x, y)
    correction = fma(-y, error, fma(-y, product, 1.0)) * 0.5
    corrected = fma(y, correction, y)
    return select(isnan(correction), y, corrected)  # 0 and infinity
