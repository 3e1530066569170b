"""sinh, cosh, tanh, asinh, acosh, atanh, and the logistic function."""

from __future__ import annotations

import math

from numus.ir import Expr, approx_div, approx_reciprocal, fma, select, slow_path_select, sqrt
from numus.kernels.math import _tools as fp
from numus.kernels.math._coefficients import COSH, LN2, LOG2_E, SINH, TANH
from numus.kernels.math.exponential import exp, exp_of_twice, exp_out_of_range
from numus.kernels.math.logarithm import log1p_pair, natural, reduce_log

_LARGE = 2.0**40  # where sqrt(x**2 + 1) is x to the last bit, and x**2 far from overflow


def _addition_terms(size: Expr) -> tuple[Expr, ...]:
    """2**(n - 1), 2**(-n - 1), r, sinh(r) - r and cosh(r) - 1 with size = n ln 2 + r.

    sinh and cosh of the sum need sinh(r) and cosh(r) only, and no division.
    """
    high, low = fp.parts(size, LN2)
    n, biased = fp.nearest_integer(size, fp.parts(size, LOG2_E)[0])
    first = fma(n, -high, size)
    r = fma(n, -low, first)
    r_low = fma(n, -low, first - r)
    f = fp.format_of(size)
    half = f.one - f.smallest_normal  # the bits of 1/2
    shifted = fp.bits(biased) << f.mantissa
    square = r * r
    s = fma(square * r, fp.polynomial(square, SINH), r_low)
    c = square * fp.polynomial(square, COSH)
    return fp.from_bits(shifted + half), fp.from_bits(half - shifted), r, s, c


def _half_exp(size: Expr) -> Expr:
    """exp(size) / 2 for large and infinite sizes and NaN."""
    return exp_out_of_range(fp.at_most(size, 89.5 if fp.is32(size) else 711.0), -1)


def sinh(x: Expr) -> Expr:
    """The hyperbolic sine: cosh(r) sinh(n ln 2) + sinh(r) cosh(n ln 2). 1.5 ulp."""
    size = fp.absolute(x)
    up, down, r, s, c = _addition_terms(size)
    odd, even = up - down, up + down
    odd_low = (up - odd) - down
    usual = fma(even, r, odd) + fma(even, s, fma(odd, c, odd_low))
    return fp.copysign(slow_path_select(_overflows(size), _half_exp(size), usual), x)


def cosh(x: Expr) -> Expr:
    """The hyperbolic cosine: cosh(r) cosh(n ln 2) + sinh(r) sinh(n ln 2). 1.1 ulp."""
    size = fp.absolute(x)
    up, down, r, s, c = _addition_terms(size)
    odd, even = up - down, up + down
    even_low = down - (even - up)
    usual = even + fma(odd, r, fma(odd, s, fma(even, c, even_low)))
    return slow_path_select(_overflows(size), _half_exp(size), usual)


def _overflows(size: Expr) -> Expr:
    """Whether 2**n and 2**-n may leave the normal range. True for NaN."""
    return ~(size <= (86.0 if fp.is32(size) else 707.0))


def tanh(x: Expr) -> Expr:
    """A polynomial up to 0.625, 1 - 2 / (exp(2|x|) + 1) beyond. 1.4 ulp; at most 1.9 in float32
    where the reciprocal is approximated (NVIDIA's, whose library has 2)."""
    size = fp.absolute(x)
    square = x * x
    near = fma(square * x, fp.polynomial(square, TANH), x)
    part, biased = exp_of_twice(fp.at_most(size, 9.5 if fp.is32(x) else 20.0))  # 1 beyond
    divisor = fma(part, fp.biased_power(biased), 1.0)
    if fp.is32(x):  # an ulp of the reciprocal is half of one of the result, at most
        far = fma(approx_reciprocal(divisor), -2.0, 1.0, allow_unfused=True)
    else:
        far = 1.0 - approx_div(fp.like(x, 2.0), divisor)
    return fp.copysign(select(size < 0.625, near, far), x)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e**-x), by e = exp(-|x|): no overflow, and full digits in both tails. 2.4 ulp."""
    e = exp(-fp.absolute(x))
    return approx_div(select(x < 0.0, e, fp.like(x, 1.0)), e + 1.0)


def asinh(x: Expr) -> Expr:
    """log(|x| + sqrt(x**2 + 1)) as log1p(|x| + x**2 / (1 + sqrt(x**2 + 1))). 1.3 ulp."""
    size = fp.absolute(x)
    root = sqrt(fma(size, size, 1.0))
    usual = log1p_pair(*fp.fast_two_sum(size, size * size / (root + 1.0)))
    return fp.copysign(slow_path_select(~(size < _LARGE), _log_twice(size), usual), x)


def acosh(x: Expr) -> Expr:
    """log(x + sqrt(x**2 - 1)) as log1p(t + sqrt(2 t + t**2)), t = x - 1; NaN below 1. 1.1 ulp."""
    t = x - 1.0
    square = fma(t, t, t + t)
    square_low = fma(t, t, (t + t) - square)
    root = sqrt(square)
    root_low = (fma(-root, root, square) + square_low) / (root + root)
    total, low = fp.fast_two_sum(root, t)
    usual = log1p_pair(total, low + select(root > 0.0, root_low, root))
    slow = select(x < 1.0, fp.like(x, math.nan), _log_twice(x))
    return slow_path_select(~((x >= 1.0) & (x < _LARGE)), slow, usual)


def atanh(x: Expr) -> Expr:
    """log1p(2 |x| / (1 - |x|)) / 2 with x's sign; NaN outside [-1, 1]. 1.3 ulp."""
    size = fp.absolute(x)
    below = 1.0 - size
    below_low = (1.0 - below) - size
    inverse = 1.0 / below
    twice = size + size
    ratio = twice * inverse
    ratio_low = fma(-ratio, below_low, fma(-ratio, below, twice)) * inverse
    usual = log1p_pair(ratio, ratio_low) * 0.5
    at_one = select(size.eq(1.0), fp.like(x, math.inf), fp.like(x, math.nan))
    return fp.copysign(select(size < 1.0, usual, at_one), x)


def _log_twice(x: Expr) -> Expr:
    """log(2 x) for large x, infinity and NaN."""
    e, f = reduce_log(x)
    return select(x < math.inf, natural(e + 1.0, f), x + x)
