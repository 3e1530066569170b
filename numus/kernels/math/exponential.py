"""exp, exp2, expm1.

Cody-Waite reduction x = n ln 2 + r with |r| <= ln 2 / 2, a minimax polynomial in r, and 2**n by
integer addition to the exponent; results that are not normal numbers take a slow path.
"""

from __future__ import annotations

from numus.ir import Expr, const, fma, select, slow_path_select
from numus.kernels.math import _tools as fp
from numus.kernels.math._coefficients import EXP, EXP2, LN2, LOG2_E

# ln 2 in two parts, the first so short that its products by exponents are exact.
_LN2_PARTS = (
    (0.693359375, -2.12194440e-4),
    (6.93147180369123816490e-1, 1.90821492927058770002e-10),
)


def reduce_exp(x: Expr) -> tuple[Expr, Expr]:
    """r with x = n ln 2 + r, and a float that holds n in its lowest bits; |x| < 2**10."""
    high, low = fp.parts(x, _LN2_PARTS)
    n, biased = fp.nearest_integer(x, fp.parts(x, LOG2_E)[0])
    return fma(n, -low, fma(n, -high, x, allow_unfused=True), allow_unfused=True), biased


def exp_of_reduced(r: Expr) -> Expr:
    """exp(r) for |r| <= ln 2 / 2."""
    return fp.horner(r, (1.0, 1.0, *fp.parts(r, EXP)), loose=True)


def exp_of_twice(x: Expr) -> tuple[Expr, Expr]:
    """exp(2 x) as a factor of 2**n, and a float that holds n in its lowest bits; |x| < 2**9. Powers
    of two are in the constants: x is not doubled."""
    high, low = fp.parts(x, _LN2_PARTS)
    n, biased = fp.nearest_integer(x, 2.0 * fp.parts(x, LOG2_E)[0])
    half = fma(n, -0.5 * high, x, allow_unfused=True)
    half = fma(n, -0.5 * low, half, allow_unfused=True)
    coefficients = (1.0, 1.0, *fp.parts(x, EXP))
    scaled = [c * 2.0**k for k, c in enumerate(coefficients)]
    return fp.horner(half, scaled, loose=True), biased


def exp_out_of_range(x: Expr, shift: int = 0) -> Expr:
    """e**x 2**shift where that may be subnormal, zero, infinite or NaN."""
    r, biased = reduce_exp(x)
    n = fp.biased_integer(biased)
    return fp.scaled_positive(exp_of_reduced(r), n + shift if shift else n)


def exp(x: Expr) -> Expr:
    """e**x. Overflow, subnormal results and NaN take the guarded path. 0.9 ulp."""
    r, biased = reduce_exp(x)
    usual = fp.times_power_of_two(exp_of_reduced(r), biased)
    # Beyond the bounds the result is infinite or zero, and n stays in the reach of the scaling.
    top, *bounds = (87.0, -110.0, 89.0) if fp.is32(x) else (708.0, -760.0, 710.0)
    slow = exp_out_of_range(fp.clamped(x, *bounds))
    return slow_path_select(~(fp.absolute(x) <= top), slow, usual)


def exp_decay(x: Expr) -> Expr:
    """e**x for x <= 0, without a branch (for softmax): 0 where it would be subnormal. 0.9 ulp."""
    lowest = -87.0 if fp.is32(x) else -708.0
    r, biased = reduce_exp(fp.at_least(x, lowest))
    usual = fp.times_power_of_two(exp_of_reduced(r), biased)
    return select(x < lowest, const(0.0, x.dtype), usual)


def exp2_of_reduced(r: Expr) -> Expr:
    """2**r for |r| <= 1/2."""
    return fma(r, fp.polynomial(r, EXP2), 1.0)


def exp2(x: Expr) -> Expr:
    """2**x; exact for integers. 0.9 ulp."""
    n, biased = fp.nearest_integer(x, 1.0)
    usual = fp.times_power_of_two(exp2_of_reduced(x - n), biased)
    top, *bounds = (125.0, -160.0, 128.0) if fp.is32(x) else (1021.0, -1100.0, 1024.0)
    near = fp.clamped(x, *bounds)
    n, biased = fp.nearest_integer(near, 1.0)
    slow = fp.scaled_positive(exp2_of_reduced(near - n), fp.biased_integer(biased))
    return slow_path_select(~(fp.absolute(x) <= top), slow, usual)


def expm1(x: Expr) -> Expr:
    """e**x - 1, which keeps its digits near 0: 2**n (exp(r) - 1) + (2**n - 1). 1.4 ulp."""
    high, low = fp.parts(x, LN2)
    near = fp.at_least(x, -20.0 if fp.is32(x) else -40.0)  # -1 already
    n, biased = fp.nearest_integer(near, fp.parts(x, LOG2_E)[0])
    first = fma(n, -high, near)
    r = fma(n, -low, first)
    r_low = fma(n, -low, first - r)
    tail = fma(r * r, fp.polynomial(r, EXP), r_low)
    power = fp.biased_power(biased)
    usual = fp.copysign(fma(power, tail, fma(power, r, power - 1.0)), x)
    top, bound = (87.0, 89.0) if fp.is32(x) else (708.0, 710.0)
    slow = exp_out_of_range(fp.at_most(x, bound))  # the 1 no longer counts
    return slow_path_select(~(x <= top), slow, usual)
