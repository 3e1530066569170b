"""exp, exp2, expm1.

All split x = n ln 2 + r with |r| <= ln 2 / 2 and multiply a polynomial in r by 2**n, which is an
integer addition to the exponent as long as the result is a normal number; a guard handles the rest.
"""

from __future__ import annotations

from numus.compiler.ir import Expr, fma, guard, select
from numus.kernels.math._tools import (
    absolute,
    at_least,
    at_most,
    bits,
    copysign,
    format_of,
    from_bits,
    is32,
    like,
    nearest_integer,
    polynomial,
    scaled,
    times_power_of_two,
)

LOG2_E = 1.4426950408889634
LN2_32 = (0.693147182, -1.90465421e-09)
LN2_64 = (0.6931471805599453, 2.3190468138462996e-17)

# (exp(r) - 1 - r) / r**2
EXP_32 = (0.5, 0.166665182, 0.0416661985, 0.00836895406, 0.00139509013)
EXP_64 = (
    *(0.5, 0.16666666666666685, 0.041666666666666727, 0.0083333333333166209),
    *(0.0013888888888858358, 0.00019841269897358081, 2.4801587373942709e-05),
    *(2.7557233932543616e-06, 2.7557233179038011e-07, 2.511234759012958e-08),
    2.0926998739968681e-09,
)
# (2**r - 1) / r
EXP2_32 = (0.693147182, 0.240226507, 0.0555032752, 0.00961800292, 0.00134004035, 0.00015476525)
EXP2_64 = (
    *(0.69314718055994529, 0.24022650695910072, 0.055504108664821701, 0.009618129107628496),
    *(0.0013333558146390173, 0.00015403530393340775, 1.5252733856508551e-05),
    *(1.3215486833318009e-06, 1.0178051088854561e-07, 7.0548881552971911e-09),
    *(4.4566929154004969e-10, 2.5741938970319465e-11),
)


def reduce_exp(x: Expr) -> tuple[Expr, Expr]:
    """r with x = n ln 2 + r, and a float that holds n in its lowest bits. |x| below 2**20."""
    high, low = LN2_32 if is32(x) else LN2_64
    n, held = nearest_integer(x, LOG2_E)
    return fma(n, -low, fma(n, -high, x)), held


def exp_of_reduced(r: Expr) -> Expr:
    """exp(r) for |r| <= ln 2 / 2."""
    return polynomial(r, (1.0, 1.0, *(EXP_32 if is32(r) else EXP_64)))


def held_integer(held: Expr) -> Expr:
    """The integer that `nearest_integer` left in the lowest bits, sign-extended."""
    f = format_of(held)
    return bits(held) - bits(like(held, f.rounder))


def held_power(held: Expr) -> Expr:
    """2**n for the n that `nearest_integer` left in the lowest bits, if that is a normal number."""
    f = format_of(held)
    return from_bits((bits(held) << f.mantissa) + f.one)


def exp(x: Expr) -> Expr:
    """e**x. Overflow, subnormal results and NaN take the guarded path. Below 1 ulp."""
    r, held = reduce_exp(x)
    usual = times_power_of_two(exp_of_reduced(r), held)
    top = 87.0 if is32(x) else 708.0
    # Beyond these the result is infinite or zero, and n stays in the reach of two scalings.
    near = at_most(at_least(x, -110.0 if is32(x) else -760.0), 90.0 if is32(x) else 720.0)
    r, held = reduce_exp(near)
    slow = scaled(exp_of_reduced(r), held_integer(held))
    return guard(~(absolute(x) <= top), slow, usual)


def exp2_of_reduced(r: Expr) -> Expr:
    """2**r for |r| <= 1/2."""
    return fma(r, polynomial(r, EXP2_32 if is32(r) else EXP2_64), 1.0)


def exp2(x: Expr) -> Expr:
    """2**x; exact for integers. Below 1 ulp."""
    n, held = nearest_integer(x, 1.0)
    usual = times_power_of_two(exp2_of_reduced(x - n), held)
    top = 125.0 if is32(x) else 1021.0
    near = at_most(at_least(x, -160.0 if is32(x) else -1100.0), 130.0 if is32(x) else 1030.0)
    n, held = nearest_integer(near, 1.0)
    slow = scaled(exp2_of_reduced(near - n), held_integer(held))
    return guard(~(absolute(x) <= top), slow, usual)


def expm1(x: Expr) -> Expr:
    """e**x - 1, which keeps its digits near 0: 2**n (exp(r) - 1) + (2**n - 1). About 1 ulp."""
    high, low = LN2_32 if is32(x) else LN2_64
    near = at_least(x, -20.0 if is32(x) else -40.0)  # -1 already
    n, held = nearest_integer(near, LOG2_E)
    first = fma(n, -high, near)
    r = fma(n, -low, first)
    r_low = fma(n, -low, first - r)
    tail = fma(r * r, polynomial(r, EXP_32 if is32(x) else EXP_64), r_low)
    power = held_power(held)
    usual = copysign(fma(power, tail, fma(power, r, power - 1.0)), x)
    top = 87.0 if is32(x) else 708.0
    r, held = reduce_exp(at_most(x, 90.0 if is32(x) else 720.0))
    slow = scaled(exp_of_reduced(r), held_integer(held))  # the 1 no longer counts
    return guard(~(x <= top), slow, usual)


def logistic(x: Expr) -> Expr:
    """1 / (1 + e**-x) without overflow: e = exp(-|x|) is at most 1."""
    e = exp(-absolute(x))
    return select(x < 0.0, e, like(x, 1.0)) / (e + 1.0)
