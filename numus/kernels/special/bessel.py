"""Bessel functions of orders 0 and 1: polynomials near 0, Hankel's and exponential forms far out.

J near 0 is divided by its zeros, which are double-words, so that it keeps its relative accuracy
there, and so is Y beyond 2. Far out J + i Y = M exp(i (x - n pi/2 - pi/4 + phase)).
"""

from __future__ import annotations

import math

from numus.ir import Expr, fma, select, slow_path_select, sqrt
from numus.kernels.math import _tools as fp
from numus.kernels.math.exponential import exp
from numus.kernels.math.logarithm import log
from numus.kernels.math.trigonometry import negated_if, sin_shifted
from numus.kernels.special import _bessel0_tables as t0
from numus.kernels.special import _bessel1_tables as t1
from numus.kernels.special._piece import from_zero

_ROOT_OF_2_OVER_PI = math.sqrt(2 / math.pi)


def _hankel(x: Expr, n: int, second: bool) -> Expr:
    """J_n (or Y_n) for x >= 7: M sin(x + pi/4 - n pi/2 + phase), for Y a quarter turn less."""
    modulus, phase = (t0.MODULUS0, t0.PHASE0) if n == 0 else (t1.MODULUS1, t1.PHASE1)
    inverse = 1.0 / x
    v = inverse * inverse
    eighths = 1 - 2 * n - (2 if second else 0)
    value = modulus(v) * sin_shifted(x, eighths, phase(v) * inverse)
    return value * (sqrt(inverse) * _ROOT_OF_2_OVER_PI)


def _end(x: Expr, value: Expr, at: float) -> Expr:
    return select(x.eq(math.inf), fp.like(x, at), value)


def j0(x: Expr) -> Expr:
    """The Bessel function of the first kind of order 0."""
    size = fp.absolute(x)
    first = from_zero(size, t0.J0_ZERO) * (size + t0.J0_ZERO[1][0])
    near = t0.J0(size * size) * first
    middle = t0.J0_MIDDLE(fp.at_most(size, 8.0)) * from_zero(size, t0.J0_SECOND)
    square = fp.at_most(size * size, 1.0)
    near = select(size < 1.0, fma(square, t0.J0_SMALL(square), 1.0), near)
    near = slow_path_select(size > 4.5, middle, near)
    far = _end(size, _hankel(fp.at_least(size, 7.0), 0, False), 0.0)
    return slow_path_select(size > 8.0, far, near)


def j1(x: Expr) -> Expr:
    """The Bessel function of the first kind of order 1."""
    size = fp.absolute(x)
    first = from_zero(size, t1.J1_ZERO) * (size + t1.J1_ZERO[1][0])
    near = t1.J1(size * size) * first * size
    middle = t1.J1_MIDDLE(fp.at_most(size, 8.0)) * from_zero(size, t1.J1_SECOND)
    square = fp.at_most(size * size, 1.0)
    near = select(size < 1.0, fma(square, t1.J1_SMALL(square), 0.5) * size, near)
    near = slow_path_select(size > 4.5, middle, near)
    far = _end(size, _hankel(fp.at_least(size, 7.0), 1, False), 0.0)
    return negated_if(slow_path_select(size > 8.0, far, near), x)


def y0(x: Expr) -> Expr:
    """The Bessel function of the second kind of order 0."""
    near = fma(log(x) * j0(fp.at_most(x, 2.0)), 2 / math.pi, t0.Y0(x * x))
    outer = t0.Y0_OUTER(fp.at_most(x, 7.0)) * from_zero(x, t0.Y0_SECOND)
    middle = select(x < 4.0, t0.Y0_MIDDLE(x) * from_zero(x, t0.Y0_ZERO), outer)
    value = slow_path_select(x > 2.0, middle, near)
    far = _end(x, _hankel(fp.at_least(x, 7.0), 0, True), 0.0)
    return select(x < 0.0, fp.like(x, math.nan), slow_path_select(x > 7.0, far, value))


def y1(x: Expr) -> Expr:
    """The Bessel function of the second kind of order 1."""
    logarithm = select(x.eq(0.0), fp.like(x, 0.0), log(x))
    near = fma(fma(logarithm, j1(fp.at_most(x, 2.0)), -1.0 / x), 2 / math.pi, x * t1.Y1(x * x))
    outer = t1.Y1_OUTER(fp.at_most(x, 7.0)) * from_zero(x, t1.Y1_SECOND)
    middle = select(x < 4.0, t1.Y1_MIDDLE(x) * from_zero(x, t1.Y1_ZERO), outer)
    value = slow_path_select(x > 2.0, middle, near)
    far = _end(x, _hankel(fp.at_least(x, 7.0), 1, True), 0.0)
    return select(x < 0.0, fp.like(x, math.nan), slow_path_select(x > 7.0, far, value))


def i0e(x: Expr) -> Expr:
    """exp(-|x|) I_0(x)."""
    size = fp.absolute(x)
    near = t0.I0E(fp.at_most(size, 4.0))
    inverse = 1.0 / size
    far = select(
        size < 10.0, t0.I0E_MIDDLE(fp.at_most(size, 10.0)), t0.I0E_FAR(fp.at_most(inverse, 0.1))
    ) * sqrt(inverse)
    return slow_path_select(size > 4.0, far, near)


def i1e(x: Expr) -> Expr:
    """exp(-|x|) I_1(x)."""
    size = fp.absolute(x)
    near = t1.I1E(fp.at_most(size, 4.0)) * size
    inverse = 1.0 / size
    far = select(
        size < 10.0, t1.I1E_MIDDLE(fp.at_most(size, 10.0)), t1.I1E_FAR(fp.at_most(inverse, 0.1))
    ) * sqrt(inverse)
    return negated_if(slow_path_select(size > 4.0, far, near), x)


def i0(x: Expr) -> Expr:
    """The modified Bessel function of the first kind of order 0."""
    return _grown(x, i0e(x))


def i1(x: Expr) -> Expr:
    """The modified Bessel function of the first kind of order 1."""
    return _grown(x, i1e(x))


def _grown(x: Expr, value: Expr) -> Expr:
    """value exp(|x|), which overflows only where the product does."""
    half = exp(fp.absolute(x) * 0.5)
    whole = value * half * half
    return select(half.eq(math.inf), fp.copysign(half, value), whole)


def _k_parts(x: Expr, n: int) -> Expr:
    """K_n(x) for 0 < x <= 1, beyond which its terms cancel."""
    square = fp.at_most(x * x, 1.0)
    logarithm = log(x * 0.5)
    if n == 0:
        return fma(-logarithm, t0.I0(square), t0.K0(square))
    return fma(x, fma(logarithm, t1.I1(square), t1.K1(square)), 1.0 / x)


def _k_scaled_far(x: Expr, n: int) -> Expr:
    """exp(x) K_n(x) for x >= 1."""
    inverse = 1.0 / x
    small, large = (t0.K0E, t0.K0E_FAR) if n == 0 else (t1.K1E, t1.K1E_FAR)
    near = (t0.K0E_NEAR if n == 0 else t1.K1E_NEAR)(fp.at_most(x, 2.0))
    value = select(x < 6.0, small(fp.clamped(x, 2.0, 6.0)), large(fp.at_most(inverse, 1 / 6)))
    return select(x < 2.0, near, value) * sqrt(inverse)


def _k(x: Expr, n: int, scaled: bool) -> Expr:
    near, far = _k_parts(x, n), _k_scaled_far(x, n)
    if scaled:
        near = near * exp(fp.at_most(x, 1.0))
    else:
        far = far * exp(-x)
    value = slow_path_select(x > 1.0, far, near)
    value = select(x.eq(0.0), fp.like(x, math.inf), _end(x, value, 0.0))
    return select(x < 0.0, fp.like(x, math.nan), value)


def k0(x: Expr) -> Expr:
    """The modified Bessel function of the second kind of order 0."""
    return _k(x, 0, False)


def k1(x: Expr) -> Expr:
    """The modified Bessel function of the second kind of order 1."""
    return _k(x, 1, False)


def k0e(x: Expr) -> Expr:
    """exp(x) K_0(x)."""
    return _k(x, 0, True)


def k1e(x: Expr) -> Expr:
    """exp(x) K_1(x)."""
    return _k(x, 1, True)
