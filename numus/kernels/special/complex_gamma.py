"""The logarithm of gamma of complex numbers, and its derivative.

Stirling's formula at |z| >= 7, to which the recurrence leads; reflection left of the imaginary
axis; Taylor's series about the zeros 1 and 2 (Hare 1997).
"""

from __future__ import annotations

import math

from numus.ir import Expr, fma, select, slow_path_select, unary
from numus.kernels.math import _tools as fp
from numus.kernels.math.hyperbolic import cosh, sinh
from numus.kernels.special.complex_numbers import TURN, Complex
from numus.kernels.special.gamma import sin_half_turns

# B_2k / (2k (2k - 1)), B_2k / (2k)
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
_STIRLING = [b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI, 1)]
_SLOPE = [b / (2 * k) for k, b in enumerate(_BERNOULLI, 1)]
_ZETA = (
    1.6449340668482264, 1.2020569031595942, 1.0823232337111382, 1.03692775514337,
    1.0173430619844491, 1.0083492773819228, 1.0040773561979444, 1.0020083928260821,
    1.000994575127818, 1.0004941886041194, 1.000246086553308, 1.0001227133475785,
    1.0000612481350588, 1.0000305882363072, 1.0000152822594086, 1.000007637197638,
    1.0000038172932649, 1.0000019082127165, 1.0000009539620338, 1.0000004769329869,
    1.0000002384505027, 1.0000001192199259,
)  # fmt: skip
_TAYLOR = [-0.5772156649015329, *((-1) ** k * z / k for k, z in enumerate(_ZETA, 2))]
_SHIFTS = 8


def _cos_half_turns(x: Expr) -> Expr:
    return sin_half_turns((x - 2.0 * unary("rint", x * 0.5)) + 0.5)


def _sin_pi(z: Complex) -> tuple[Complex, Complex]:
    """sin(pi z) and cos(pi z)."""
    s, c = sin_half_turns(z.x), _cos_half_turns(z.x)
    angle = z.y * math.pi
    up, down = cosh(angle), sinh(angle)
    return Complex(s * up, c * down), Complex(c * up, -(s * down))


def _stirling(z: Complex) -> Complex:
    inverse = Complex(fp.like(z.x, 1.0), fp.like(z.x, 0.0)) / z
    tail = (inverse * inverse).polynomial(_STIRLING) * inverse
    return (z - 0.5) * z.log() - z + 0.5 * math.log(2 * math.pi) + tail


def _upper(z: Complex) -> Complex:
    """For y >= 0."""
    far = (z.x > 7.0) | (z.y > 7.0) | (z.x < -(2.0**30))
    left = (z.x < 0.1) & ~far
    one, zero = fp.like(z.x, 1.0), fp.like(z.x, 0.0)
    # 1 - z is below the axis: its conjugate is taken
    at = Complex(select(left, 1.0 - z.x, z.x), z.y)
    near = ~far & (at.x <= 7.0)
    product, shifted = Complex(one, zero), at
    turns = zero
    for _ in range(_SHIFTS):
        step = near & (shifted.x <= 7.0)
        following = product * shifted
        turns = select(step & (following.y < 0.0) & (product.y >= 0.0), turns + 1.0, turns)
        product = following.where(step, product)
        shifted = (shifted + 1.0).where(step, shifted)
    value = _stirling(shifted)
    logarithm = product.log()
    moved = Complex(value.x - logarithm.x, value.y - logarithm.y - turns * TURN)
    value = moved.where(near, value)
    # about 1 and 2, where it vanishes
    second = at.x > 1.5
    d = Complex(select(second, at.x - 2.0, at.x - 1.0), at.y)
    close = near & (d.squared() < (0.25 if fp.is32(z.x) else 0.04))
    d = d.where(close, Complex(zero, zero))
    series = d * d.polynomial(_TAYLOR)
    series = (series + (d + 1.0).log()).where(second, series)
    value = series.where(close, value)
    # log pi - log sin(pi z) - loggamma(1 - z), on the branch that is real for z > 0
    sine, _ = _sin_pi(Complex(z.x, fp.at_most(z.y, 7.0)).where(left, Complex(one * 0.5, zero)))
    log_sine = sine.log()
    branch = TURN * unary("floor", fma(z.x, 0.5, 0.25))
    mirrored = Complex((math.log(math.pi) - log_sine.x) - value.x, (branch - log_sine.y) + value.y)
    return Complex(
        slow_path_select(left, mirrored.x, value.x), slow_path_select(left, mirrored.y, value.y)
    )


def _loggamma(x: Expr, y: Expr) -> Complex:
    value = _upper(Complex(x, fp.absolute(y)))
    below = fp.copysign(fp.like(y, 1.0), y) < 0.0
    return Complex(value.x, select(below, -value.y, value.y))


def loggamma_real(x: Expr, y: Expr) -> Expr:
    """The real part of log gamma(x + i y)."""
    return _loggamma(x, y).x


def loggamma_imag(x: Expr, y: Expr) -> Expr:
    """The imaginary part of log gamma(x + i y)."""
    return _loggamma(x, y).y


def _digamma(x: Expr, y: Expr) -> Complex:
    """digamma(z): the derivative of loggamma."""
    z = Complex(x, y)
    left = x < 0.5
    one, zero = fp.like(x, 1.0), fp.like(x, 0.0)
    at = Complex(select(left, 1.0 - x, x), select(left, -y, y))
    total = Complex(zero, zero)
    unit = Complex(one, zero)
    for _ in range(_SHIFTS):
        step = (at.x <= 7.0) & (fp.absolute(at.y) <= 7.0)
        total = (total - unit / at.where(step, unit)).where(step, total)
        at = (at + 1.0).where(step, at)
    inverse = unit / at
    square = inverse * inverse
    tail = square * square.polynomial(_SLOPE)
    value = total + at.log() - inverse * 0.5 - tail
    small = fp.absolute(y) < 7.0
    sine, cosine = _sin_pi(Complex(x, select(small, y, zero)).where(left, Complex(one * 0.5, zero)))
    cotangent = cosine / sine
    # far from the axis: -i or i
    cotangent = cotangent.where(small, Complex(zero, -fp.copysign(one, z.y)))
    mirrored = value - cotangent * math.pi
    return mirrored.where(left, value)


def loggamma_slope_real(x: Expr, y: Expr) -> Expr:
    """The real part of digamma(x + i y)."""
    return _digamma(x, y).x


def loggamma_slope_imag(x: Expr, y: Expr) -> Expr:
    """The imaginary part of digamma(x + i y)."""
    return _digamma(x, y).y
