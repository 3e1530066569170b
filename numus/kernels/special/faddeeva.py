"""Faddeeva's function w(z) = exp(-z**2) erfc(-i z): modified trapezoidal rules.

Al Azah and Chandler-Wilde (2021): the trapezoidal or the midpoint rule of w's integral, the one
whose nodes are farther from x, plus the residue that the rule misses near the real axis. The terms
of the real part are all positive, so it keeps its digits where it is small. Owen's T by quadrature.
"""

from __future__ import annotations

import math

import numpy as np

from numus.ir import Expr, fma, isnan, select, unary
from numus.kernels.math import _tools as fp
from numus.kernels.math.error_function import ndtr
from numus.kernels.math.exponential import exp
from numus.kernels.math.trigonometry import cos, sin
from numus.kernels.special.gamma import sin_half_turns

_POINTS = (5, 11)


def _decay(x: Expr, y: Expr) -> tuple[Expr, Expr]:
    """exp(-z**2); of infinite x, or where it vanishes, 0."""
    size = exp((y - x) * (y + x))
    angle = 2.0 * (x * y)
    none = size.eq(0.0)
    zero = fp.like(x, 0.0)
    angle = select(none, zero, angle)
    still = y.eq(0.0)
    return size * cos(angle), select(none | still, zero, -(size * sin(angle)))


def _quadrant(x: Expr, y: Expr) -> tuple[Expr, Expr]:
    """w for x >= 0 and y >= 0."""
    n = _POINTS[0 if fp.is32(x) else 1]
    h = math.sqrt(math.pi / (n + 1))
    far_from = 2.0**12 if fp.is32(x) else 2.0**28
    far = (x > far_from) | (y > far_from)
    one, zero = fp.like(x, 1.0), fp.like(x, 0.0)
    x_, y_ = select(far, one, x), select(far, one, y)
    steps = x_ * (1 / h)
    off = fp.absolute(steps - unary("rint", steps))
    midpoint = off < 0.25  # its nodes are halfway
    square = fma(x_, x_, y_ * y_)
    real = imaginary = select(midpoint, zero, 0.5 / square)
    for k in range(n + 1):
        nodes = ((k + 0.5) * h, (k + 1) * h)
        node, weight = (
            select(midpoint, fp.like(x, f(nodes[0])), fp.like(x, f(nodes[1])))
            for f in (lambda t: t, lambda t: math.exp(-t * t))
        )
        less, more = x_ - node, x_ + node
        size = fma(less, less, y_ * y_) * fma(more, more, y_ * y_)
        part = weight / size
        real = fma(part, fma(node, node, square), real)
        imaginary = fma(part, fma(-node, node, square), imaginary)
    scale = 2 * h / math.pi
    real, imaginary = real * (y_ * scale), imaginary * (x_ * scale)
    # the residue: 2 exp(-z**2) / (1 +- exp(-2 pi i z / h))
    near = y_ < math.pi / h
    top_r, top_i = _decay(x_, fp.at_most(y_, math.pi / h))
    growth = exp(fp.at_most(y_, math.pi / h) * (2 * math.pi / h))
    growth = select(midpoint, growth, -growth)
    turns = 2.0 * (steps - unary("rint", steps))
    below_r = fma(growth, sin_half_turns(turns + 0.5), 1.0)
    below_i = -growth * sin_half_turns(turns)
    inverse = 2.0 / fma(below_r, below_r, below_i * below_i)
    inverse = select(near, inverse, zero)
    real = fma(inverse, fma(top_r, below_r, top_i * below_i), real)
    imaginary = fma(inverse, fma(top_i, below_r, -(top_r * below_i)), imaginary)
    # i / (sqrt(pi) z)
    large = select(x > y, x, y)
    p, q = x / large, y / large
    size = (1 / math.sqrt(math.pi)) / fma(p, p, q * q)
    real = select(far, size * q / large, real)
    imaginary = select(far, size * p / large, imaginary)
    end = large.eq(math.inf)
    return select(end, zero, real), select(end, zero, imaginary)


def _wofz(x: Expr, y: Expr) -> tuple[Expr, Expr]:
    a, b = fp.absolute(x), fp.absolute(y)
    real, imaginary = _quadrant(a, b)
    decay_r, decay_i = _decay(a, -b)
    below = y < 0.0
    # w(z) = 2 exp(-z**2) - w(-z), and w(-x + i y) is the conjugate of w(x + i y)
    real = select(below, 2.0 * decay_r - real, real)
    imaginary = select(below, 2.0 * decay_i + imaginary, imaginary)
    imaginary = select(x < 0.0, -imaginary, imaginary)
    imaginary = select(x.eq(0.0), fp.copysign(fp.like(x, 0.0), x), imaginary)
    bad = isnan(x) | isnan(y)
    return select(bad, x + y, real), select(bad, x + y, imaginary)


def wofz_real(x: Expr, y: Expr) -> Expr:
    """The real part of w(x + i y)."""
    return _wofz(x, y)[0]


def wofz_imag(x: Expr, y: Expr) -> Expr:
    """The imaginary part of w(x + i y)."""
    return _wofz(x, y)[1]


# -- Owen's T -------------------------------------------------------------------------------------

_NODES = (14, 34)


def _owen_inside(h: Expr, a: Expr) -> Expr:
    """T(h, a) for h >= 0 and 0 <= a <= 1, by Gauss and Legendre's rule."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES[0 if fp.is32(h) else 1])
    longest = 6.0 if fp.is32(h) else 9.0  # beyond, exp(-(h x)**2 / 2) is nothing
    least = 1.0 / longest
    end = fp.at_most(a, longest / fp.at_least(h, least))
    half = end * 0.5
    total = fp.like(h, 0.0)
    for node, weight in zip(nodes, weights, strict=True):
        at = half * float(node + 1)
        rest = h * at
        total = fma(exp(rest * rest * -0.5) / fma(at, at, 1.0), float(weight), total)
    # exp(-h**2 / 2), its square a double-word
    square, low = fp.two_product(h, h)
    peak = exp(square * -0.5)
    peak = select(peak.eq(0.0), peak, fma(peak, low * -0.5, peak))
    return total * half * peak * (0.5 / math.pi)


def owens_t(h: Expr, a: Expr) -> Expr:
    """Owen's T: 1 / (2 pi) times the integral of exp(-h**2 (1 + x**2) / 2) / (1 + x**2) to a."""
    far = 40.0 if not fp.is32(h) else 15.0
    size, slope = fp.at_most(fp.absolute(h), far), fp.absolute(a)
    steep = slope > 1.0
    safe = select(steep, slope, fp.like(h, 1.0))
    other = fp.at_most(select(safe.eq(math.inf), fp.like(h, far), safe * size), far)
    other = select(size.eq(0.0), size, other)
    near = _owen_inside(select(steep, other, size), select(steep, 1.0 / safe, slope))
    # T(h, a) + T(a h, 1 / a) = (q + p) / 2 - q p of the upper tails q and p
    q, p = ndtr(-size), ndtr(-other)
    value = select(steep, fma(q + p, 0.5, -(q * p)) - near, near)
    value = fp.copysign(value, a)
    return select(isnan(h) | isnan(a), h + a, value)
