"""Lambert's W of complex numbers, on every branch: Halley's method (Corless et al. 1996).

Near the branch point -1/e it is a series in sqrt(2 (e z + 1)), whose argument is a double-word.
"""

from __future__ import annotations

import math

from numus.ir import Expr, fma, isnan, iterate, select
from numus.kernels.math import _tools as fp
from numus.kernels.special.complex_numbers import TURN, Complex

_BRANCH = (-1.0, 1.0, -1 / 3, 11 / 72, -43 / 540, 769 / 17280, -221 / 8505, 680863 / 43545600)
_E_LOW = (8.254840366e-08, 1.4456468917292502e-16)


def _lambertw(x: Expr, y: Expr, k: Expr) -> Complex:
    one, zero = fp.like(x, 1.0), fp.like(x, 0.0)
    finite = (fp.absolute(x) < math.inf) & (fp.absolute(y) < math.inf)
    inside = finite & ~(x.eq(0.0) & y.eq(0.0))
    z = Complex(select(inside, x, one), select(inside, y, zero))
    main = k.eq(0.0)
    e, e_low = (2.7182817459106445 if fp.is32(x) else math.e), _E_LOW[0 if fp.is32(x) else 1]
    shifted = Complex(fma(z.x, e, 1.0) + z.x * e_low, z.y * math.e)
    root = Complex(shifted.x * 2.0, shifted.y * 2.0).sqrt()
    # the lower sheet begins above the cut on branch -1, below it on branch 1
    above = fp.copysign(one, y) > 0.0
    lower = (k.eq(-1.0) & above) | (k.eq(1.0) & ~above)
    root = (-root).where(lower, root)
    near = (main | lower) & (shifted.squared() < (0.25 if fp.is32(x) else 0.66))
    series = root.polynomial(_BRANCH)
    logarithm = z.log()
    apart = Complex(logarithm.x, logarithm.y + k * TURN)
    # real and negative on branch -1: log(-x)
    real = k.eq(-1.0) & y.eq(0.0) & above & (z.x < 0.0) & (z.x > -math.exp(-1))
    log_size = Complex(logarithm.x, zero)
    apart_safe = apart.where(apart.squared() > 0.01, Complex(one, one))
    far = apart - apart_safe.log()
    inner = (z * (z * 1.5 + 1.0)) / (z * 2.5 + 1.0 + z * z)
    small = main & (z.squared() < 1.0) & (z.x > -0.3)
    start = series.where(near, inner.where(small, log_size.where(real, far)))
    tolerance = 2.0**-22 if fp.is32(x) else 2.0**-51
    exact = near & (root.squared() < (0.02 if fp.is32(x) else 4e-4))

    def step(wx: Expr, wy: Expr, moved: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        w = Complex(wx, wy)
        right = wx >= 0.0
        power = w.where(~right, -w).exp()
        unit = Complex(one, zero)
        # w - z exp(-w), or w exp(w) - z
        scale = unit.where(right, power)
        f = w * scale - z * power.where(right, unit)
        more = w + 1.0
        safe = more.where(more.squared() > 0.0, Complex(one * 1e-30, zero))
        slope = scale * more - (w + 2.0) * f / (safe * 2.0)
        safe = slope.where(slope.squared() > 0.0, unit)
        change = f / safe
        change = change.where(slope.squared() > 0.0, Complex(zero, zero))
        new = w - change
        left = change.squared() / new.squared()
        return moved > tolerance * tolerance, (new.x, new.y, left)

    running = select(inside & ~exact, one, zero)
    wx, wy, _ = iterate(40, (start.x, start.y, running), step)
    value = Complex(wx, wy)
    value = Complex(value.x, select(real | (main & y.eq(0.0) & (z.x >= -1 / math.e)), y, value.y))
    # at 0, and at infinity log z + 2 pi i k
    at_zero = select(main, zero, fp.like(x, -math.inf))
    infinite = fp.absolute(x).eq(math.inf) | fp.absolute(y).eq(math.inf)
    end = Complex(fp.like(x, math.inf), Complex(x, y).log().y + k * TURN)
    edge = end.where(infinite, Complex(at_zero, zero))
    bad = isnan(x) | isnan(y)
    value = value.where(inside, edge)
    return Complex(select(bad, x + y, value.x), select(bad, x + y, value.y))


def lambertw_real(x: Expr, y: Expr, k: Expr) -> Expr:
    """The real part of W_k(x + i y)."""
    return _lambertw(x, y, k).x


def lambertw_imag(x: Expr, y: Expr, k: Expr) -> Expr:
    """The imaginary part of W_k(x + i y)."""
    return _lambertw(x, y, k).y
