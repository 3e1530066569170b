"""exp, exp2, expm1.

Cody-Waite reduction x = n ln 2 + r with |r| <= ln 2 / 2, a minimax polynomial in r, and 2**n by
integer addition to the exponent; results that are not normal numbers take a slow path.
"""

from __future__ import annotations

from numus.ir import Expr, const, fma, select, slow_path_select
from numus.kernels.math._coefficients import EXP, EXP2, LN2, LOG2_E
from numus.kernels.math._tools import (
    absolute,
    at_least,
    at_most,
    bits,
    copysign,
    format_of,
    from_bits,
    horner,
    is32,
    nearest_integer,
    parts,
    polynomial,
    scaled_positive,
    times_power_of_two,
)

# ln 2 in two parts, the first so short that its products by exponents are exact.
_LN2_PARTS = (
    (0.693359375, -2.12194440e-4),
    (6.93147180369123816490e-1, 1.90821492927058770002e-10),
)


def reduce_exp(x: Expr) -> tuple[Expr, Expr]:
    """r with x = n ln 2 + r, and a float that holds n in its lowest bits; |x| < 2**10."""
    high, low = parts(x, _LN2_PARTS)
    n, biased = nearest_integer(x, parts(x, LOG2_E)[0])
    return fma(n, -low, fma(n, -high, x, allow_unfused=True), allow_unfused=True), biased


def exp_of_reduced(r: Expr) -> Expr:
    """exp(r) for |r| <= ln 2 / 2."""
    return horner(r, (1.0, 1.0, *parts(r, EXP)), loose=True)


def biased_integer(biased: Expr) -> Expr:
    """The integer that `nearest_integer` left in the lowest bits, sign-extended."""
    f = format_of(biased)
    return bits(biased) - f.bits_of(f.rounder)


def biased_power(biased: Expr) -> Expr:
    """2**n for the n that `nearest_integer` left in the lowest bits, if that is a normal number."""
    f = format_of(biased)
    return from_bits((bits(biased) << f.mantissa) + f.one)


def exp(x: Expr) -> Expr:
    """e**x. Overflow, subnormal results and NaN take the guarded path. 0.9 ulp."""
    r, biased = reduce_exp(x)
    usual = times_power_of_two(exp_of_reduced(r), biased)
    top = 87.0 if is32(x) else 708.0
    # Beyond these the result is infinite or zero, and n stays in the reach of the scaling.
    near = at_most(at_least(x, -110.0 if is32(x) else -760.0), 89.0 if is32(x) else 710.0)
    r, biased = reduce_exp(near)
    slow = scaled_positive(exp_of_reduced(r), biased_integer(biased))
    return slow_path_select(~(absolute(x) <= top), slow, usual)


def exp_decay(x: Expr) -> Expr:
    """e**x for x <= 0 (or hardly more), without a branch: 0 where it would be subnormal. 0.9 ulp.

    What a softmax needs, whose masked scores are all -inf.
    """
    lowest = -87.0 if is32(x) else -708.0
    r, biased = reduce_exp(at_least(x, lowest))
    usual = times_power_of_two(exp_of_reduced(r), biased)
    return select(x < lowest, const(0.0, x.dtype), usual)


def exp2_of_reduced(r: Expr) -> Expr:
    """2**r for |r| <= 1/2."""
    return fma(r, polynomial(r, EXP2), 1.0)


def exp2(x: Expr) -> Expr:
    """2**x; exact for integers. 0.9 ulp."""
    n, biased = nearest_integer(x, 1.0)
    usual = times_power_of_two(exp2_of_reduced(x - n), biased)
    top = 125.0 if is32(x) else 1021.0
    near = at_most(at_least(x, -160.0 if is32(x) else -1100.0), 128.0 if is32(x) else 1024.0)
    n, biased = nearest_integer(near, 1.0)
    slow = scaled_positive(exp2_of_reduced(near - n), biased_integer(biased))
    return slow_path_select(~(absolute(x) <= top), slow, usual)


def expm1(x: Expr) -> Expr:
    """e**x - 1, which keeps its digits near 0: 2**n (exp(r) - 1) + (2**n - 1). 1.4 ulp."""
    high, low = parts(x, LN2)
    near = at_least(x, -20.0 if is32(x) else -40.0)  # -1 already
    n, biased = nearest_integer(near, parts(x, LOG2_E)[0])
    first = fma(n, -high, near)
    r = fma(n, -low, first)
    r_low = fma(n, -low, first - r)
    tail = fma(r * r, polynomial(r, EXP), r_low)
    power = biased_power(biased)
    usual = copysign(fma(power, tail, fma(power, r, power - 1.0)), x)
    top = 87.0 if is32(x) else 708.0
    r, biased = reduce_exp(at_most(x, 89.0 if is32(x) else 710.0))
    slow = scaled_positive(exp_of_reduced(r), biased_integer(biased))  # the 1 no longer counts
    return slow_path_select(~(x <= top), slow, usual)
