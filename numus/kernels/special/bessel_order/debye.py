"""Debye's expansions in a form that holds for every order: DLMF 10.19(ii), 10.41(ii).

The polynomials are u_k(p) = p**k v_k(p**2), so that u_k(p) / nu**k = v_k(p**2) / s**k with
s = nu / p: sqrt(x**2 + nu**2) for I and K, sqrt(|x**2 - nu**2|) for J and Y. Nothing divides by the
order, and for order 0 the expansions are Hankel's.
"""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import NamedTuple

from numus.ir import Expr, fma, select, sqrt
from numus.kernels.math import _tools as fp
from numus.kernels.math._coefficients import LOG2_E
from numus.kernels.math.exponential import exp2_of_reduced
from numus.kernels.math.logarithm import reduce_log
from numus.kernels.math.power import log2_pair


class Reach(NamedTuple):
    """Where `terms` of the expansion are exact.

    I and K: s >= `modified`. J and Y: s**3 >= `transition` nu**2 + `wave` s**2 for x > nu, and
    s**3 >= `transition` x**2 + `tail` s**2 for x < nu; measured on the first terms left out.
    """

    terms: int
    modified: float
    wave: float
    tail: float
    transition: float


_REACH = (Reach(7, 15.0, 18.0, 13.0, 39.5), Reach(17, 26.0, 34.0, 28.0, 80.5))


def reach(x: Expr) -> Reach:
    return _REACH[0 if fp.is32(x) else 1]


@functools.cache
def _polynomials(count: int) -> tuple[tuple[float, ...], ...]:
    """The coefficients of v_0, v_1, ... in p**2."""
    u = [Fraction(1)]  # of u_k in p
    found = []
    for k in range(count):
        found.append(tuple(float(c) for c in u[k::2]))
        following = [Fraction(0)] * (3 * (k + 1) + 1)
        for n, c in enumerate(u):
            # p**2 (1 - p**2) / 2 of the derivative, an eighth of the integral of (1 - 5 t**2) u
            following[n + 1] += c * n / 2 + c / (8 * (n + 1))
            following[n + 3] -= c * n / 2 + 5 * c / (8 * (n + 3)) if c else 0
        u = following
    return tuple(found)


def sums(s: Expr, t: Expr, alternate: bool) -> tuple[Expr, Expr]:
    """The sums of v_k(t) / s**k over even k and over odd k; `alternate`: of i**k / s**k, less i."""
    table = _polynomials(reach(s).terms)
    inverse = 1.0 / s
    power = inverse * inverse
    if alternate:
        power = -power
    totals = []
    for first in (0, 1):
        total = fp.like(s, 0.0)
        for k in reversed(range(first, len(table), 2)):
            total = fma(total, power, fp.chain(t, table[k]))
        totals.append(total)
    return totals[0], totals[1] * inverse


def distance(nu: Expr, x: Expr, sign: float) -> fp.Pair:
    """sqrt(|nu**2 + sign x**2|) as a double-word."""
    swap = nu > x
    large, small = select(swap, nu, x), select(swap, x, nu)
    huge = large > (2.0**60 if fp.is32(x) else 2.0**500)
    ratio = small / large
    outer = large * sqrt(fp.at_least(fma(sign * ratio, ratio, 1.0), 0.0))
    large = select(huge, fp.like(x, 1.0), large)
    small = select(huge, fp.like(x, 0.0), small)
    if sign > 0:
        square = fma(large, large, small * small)
    else:
        square = (large - small) * (large + small)
    root = sqrt(square)
    a, a_low = fp.two_product(large, large)
    b, b_low = fp.two_product(small, small)
    c, c_low = fp.two_product(root, root)
    if sign < 0:
        b, b_low = -b, -b_low
    # the first difference is exact, or what it loses is far below the root
    rest = ((a - c) + b) + ((a_low - c_low) + b_low)
    low = rest / select(root.eq(0.0), fp.like(x, 1.0), root + root)
    return select(huge, outer, root), select(huge, fp.like(x, 0.0), low)


def growth(nu: Expr, x: Expr, s: fp.Pair, less: Expr | None, inverse: bool) -> Expr:
    """exp(s - nu log((nu + s) / x)), by exp(-less); or its reciprocal."""
    top, top_low = fp.two_sum(nu, s[0])
    ratio = top / x
    rest = (fma(-ratio, x, top) + (top_low + s[1])) / top
    exponent, low = s
    if less is not None:
        exponent, error = fp.two_sum(exponent, -less)
        low = low + error
    low = fma(-nu, rest, low)
    if inverse:
        return _power(ratio, -nu, -exponent, -low)
    return _power(ratio, nu, exponent, low)


def _power(base: Expr, order: Expr, exponent: Expr, exponent_low: Expr) -> Expr:
    """base**-order exp(exponent), logarithms as double-words; base is a normal number."""
    high, low = log2_pair(*reduce_log(base))
    power, error = fp.two_product(order, high)
    error = fma(order, low, error)
    log2_e, log2_e_low = fp.parts(base, LOG2_E)
    e, e_error = fp.two_product(exponent, fp.like(base, log2_e))
    e_error = fma(exponent_low, log2_e, fma(exponent, log2_e_low, e_error))
    total, rest = fp.two_sum(e, -power)
    rest = rest + (e_error - error)
    bound = 240.0 if fp.is32(base) else 2000.0
    limited = fp.clamped(total, -bound, bound)
    n, biased = fp.nearest_integer(limited, 1.0)
    inside = fp.absolute(total) < bound
    fraction = select(inside, (limited - n) + rest, fp.like(base, 0.0))
    value = fp.scaled(exp2_of_reduced(fraction), fp.biased_integer(biased))
    return select(total.eq(total), value, total)
