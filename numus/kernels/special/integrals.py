"""Exponential, trigonometric and hyperbolic integrals, the dilogarithm, Fresnel's integrals."""

from __future__ import annotations

import math

from numus.ir import Expr, fma, select, slow_path_select, unary
from numus.kernels.math import _tools as fp
from numus.kernels.math.exponential import exp
from numus.kernels.math.logarithm import log, log1p
from numus.kernels.math.trigonometry import cos, negated_if, sin
from numus.kernels.special import _integral_tables as table
from numus.kernels.special._piece import from_zero
from numus.kernels.special.gamma import sin_half_turns

_EULER = 0.5772156649015329


def exp1(x: Expr) -> Expr:
    """E_1(x) = int_x^inf exp(-t) / t dt; -Ei(-x) below 0."""
    near = table.EXP1(fp.at_most(x, 1.0)) - log(x)
    finite = fp.at_most(x, 1e4)
    far = table.EXP1_FAR((finite - 3.0) / (finite + 3.0)) * (exp(-finite) / finite)
    positive = slow_path_select(x > 1.0, far, near)
    positive = select(x.eq(0.0), fp.like(x, math.inf), positive)
    return slow_path_select(x < 0.0, -_expi_positive(-x), positive)


def _expi_positive(x: Expr) -> Expr:
    near = fma(x, table.EXPI(fp.at_most(x, 3.0)), log(x) + _EULER)
    value = select(x < 6.0, table.EXPI_MIDDLE(x), table.EXPI_OUTER(fp.at_most(x, 12.0)))
    inverse = 1.0 / x
    last = select(x < 24.0, table.EXPI_FAR(inverse), table.EXPI_LAST(inverse))
    value = slow_path_select(x > 12.0, last, value)
    near = select(
        (x > 0.25) & (x < 0.625),
        table.EXPI_NEAR(fp.clamped(x, 0.25, 0.625)) * from_zero(x, table.EXPI_ZERO),
        near,
    )
    # exp(x) / x stays finite a little longer than exp(x) does
    half = exp(x * 0.5)
    far = (half * inverse) * half * value
    far = select(x.eq(math.inf), x, far)
    return slow_path_select(x > 3.0, far, near)


def expi(x: Expr) -> Expr:
    """Ei(x), the principal value; -E_1(-x) below 0."""
    size = fp.absolute(x)
    result = slow_path_select(x > 0.0, _expi_positive(size), -exp1(size))
    return select(x.ne(x), x, result)


def _auxiliary(x: Expr) -> tuple[Expr, Expr]:
    """f(x) and g(x) for x >= 4."""
    inverse = 1.0 / x
    v = inverse * inverse
    near = x < 8.0
    w = fp.at_most(v, 0.0625)
    f = select(near, table.SICI_F(w), table.SICI_F_FAR(w))
    g = select(near, table.SICI_G(w), table.SICI_G_FAR(w))
    return f * inverse, g * v


def si(x: Expr) -> Expr:
    """The sine integral."""
    size = fp.absolute(x)
    near = size * table.SI(size * size)
    f, g = _auxiliary(size)
    far = fma(-g, sin(size), fma(-f, cos(size), math.pi / 2))
    far = select(size.eq(math.inf), fp.like(x, math.pi / 2), far)
    return negated_if(slow_path_select(size > 4.0, far, near), x)


def ci(x: Expr) -> Expr:
    """The cosine integral of positive numbers."""
    square = x * x
    near = fma(square, table.CIN(fp.at_most(square, 4.0)), log(x) + _EULER)
    middle = table.CI_MIDDLE(fp.clamped(x, 2.0, 4.0)) * from_zero(x, table.CI_SECOND)
    first = table.CI_NEAR(fp.clamped(x, 0.5, 0.75)) * from_zero(x, table.CI_ZERO)
    near = select((x > 0.5) & (x < 0.75), first, near)
    near = select(x > 2.0, middle, near)
    f, g = _auxiliary(x)
    far = f * sin(x) - g * cos(x)
    far = select(x.eq(math.inf), fp.like(x, 0.0), far)
    return slow_path_select(x > 4.0, far, near)


def shi(x: Expr) -> Expr:
    """The hyperbolic sine integral."""
    size = fp.absolute(x)
    near = size * table.SHI(fp.at_most(size * size, 9.0))
    far = fp.at_least(size, 3.0)
    far = (_expi_positive(far) + exp1(far)) * 0.5
    return negated_if(slow_path_select(size > 3.0, far, near), x)


def chi(x: Expr) -> Expr:
    """The hyperbolic cosine integral of positive numbers."""
    square = x * x
    near = fma(square, table.CHIN(fp.at_most(square, 9.0)), log(x) + _EULER)
    far = fp.at_least(x, 3.0)
    far = (_expi_positive(far) - exp1(far)) * 0.5
    return slow_path_select(x > 3.0, far, near)


def spence(z: Expr) -> Expr:
    """Li_2(1 - z), with Euler's reflections into |w| <= 1/2."""
    sixth = math.pi**2 / 6
    inverse = z > 1.5  # Li2(1 - z) = -log(z)**2 / 2 - Li2(1 - 1/z)
    a = select(inverse, 1.0 / z, z)
    small = a < 0.5  # Li2(1 - a) = pi**2 / 6 - log(a) log(1 - a) - Li2(a)
    w = select(small, a, 1.0 - a)
    w = select(z > 1.5, select(small, a, (z - 1.0) / z), w)
    core = w * table.DILOG(w)
    reflected = (sixth - core) - select(a.eq(0.0), a, log(a) * log1p(-a))
    value = select(small, reflected, core)
    logarithm = log(z)
    value = select(inverse, fma(logarithm * -0.5, logarithm, -value), value)
    return select(z < 0.0, fp.like(z, math.nan), value)


def _fresnel_far(size: Expr) -> tuple[Expr, Expr, Expr, Expr]:
    """f, g, and sin and cos of pi x**2 / 2."""
    big = fp.at_most(size, 2.0**22 if fp.is32(size) else 2.0**50)
    inverse = 1.0 / big
    v = inverse * inverse
    f = table.FRESNEL_F(v) * (inverse * (1 / math.pi))
    g = table.FRESNEL_G(v) * (v * inverse * (1 / math.pi**2))
    square, low = fp.two_product(big, big)
    turns = fma(unary("rint", square * 0.25), -4.0, square) + low  # exact, but for the last sum
    s, c = sin_half_turns(turns * 0.5), sin_half_turns(fma(turns, 0.5, 0.5))
    return f, g, s, c


def fresnel_s(x: Expr) -> Expr:
    """int_0^x sin(pi t**2 / 2) dt."""
    size = fp.absolute(x)
    near = fp.at_most(size, 1.5)
    square = near * near
    value = table.FRESNEL_S(square * square) * (square * near)
    f, g, s, c = _fresnel_far(fp.at_least(size, 1.5))
    far = fma(-g, s, fma(-f, c, 0.5))
    far = select(size.eq(math.inf), fp.like(x, 0.5), far)
    return negated_if(slow_path_select(size > 1.5, far, value), x)


def fresnel_c(x: Expr) -> Expr:
    """int_0^x cos(pi t**2 / 2) dt."""
    size = fp.absolute(x)
    near = fp.at_most(size, 1.5)
    square = near * near
    value = table.FRESNEL_C(square * square) * near
    f, g, s, c = _fresnel_far(fp.at_least(size, 1.5))
    far = fma(-g, c, fma(f, s, 0.5))
    far = select(size.eq(math.inf), fp.like(x, 0.5), far)
    return negated_if(slow_path_select(size > 1.5, far, value), x)
