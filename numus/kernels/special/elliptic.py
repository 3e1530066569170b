"""Elliptic integrals: Carlson's symmetric forms by duplication (1995), Legendre's by them.

Each step quarters the spread of the arguments; a Taylor polynomial about their mean ends it.
"""

from __future__ import annotations

import math

from numus.ir import Expr, fma, iterate, select, sqrt, unary
from numus.kernels.math import _tools as fp
from numus.kernels.math.exponential import exp
from numus.kernels.math.logarithm import log, log1p
from numus.kernels.math.trigonometry import cos, sin

_STEPS = 40  # of duplication: arguments may differ by hundreds of orders of magnitude


def _spread(x: Expr) -> float:
    """Relative spread at which the polynomial's error is below an ulp."""
    return 2.0**-5 if fp.is32(x) else 2.0**-9.5


def _largest(*xs: Expr) -> Expr:
    out = xs[0]
    for x in xs[1:]:
        out = select(out < x, x, out)
    return out


def elliprf(x: Expr, y: Expr, z: Expr) -> Expr:
    """R_F(x, y, z), symmetric, of arguments that are not negative, at most one of them 0."""

    def mean(x: Expr, y: Expr, z: Expr) -> Expr:
        return (x + y + z) * (1 / 3)

    def step(x: Expr, y: Expr, z: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        a, b, c = sqrt(x), sqrt(y), sqrt(z)
        shift = a * b + (b * c + c * a)
        m = mean(x, y, z)
        apart = _largest(fp.absolute(x - m), fp.absolute(y - m), fp.absolute(z - m))
        return apart > m * _spread(x), tuple((v + shift) * 0.25 for v in (x, y, z))

    p, q, r = iterate(_STEPS, (x, y, z), step)
    m = mean(p, q, r)
    dx, dy = 1.0 - p / m, 1.0 - q / m
    dz = -(dx + dy)
    e2, e3 = dx * dy - dz * dz, dx * dy * dz
    series = fma(e2, fma(e2, fma(e2, -5 / 208, 1 / 24), -0.1), 1.0)
    series = series + e3 * fma(e2, -3 / 44, 1 / 14) + e3 * e3 * (3 / 104)
    value = series / sqrt(m)
    zeros = sum((v.eq(0.0).cast(x.dtype) for v in (y, z)), start=x.eq(0.0).cast(x.dtype))
    bad = (x < 0.0) | (y < 0.0) | (z < 0.0)
    value = select(zeros > 1.5, fp.like(x, math.inf), value)
    return select(bad, fp.like(x, math.nan), value)


def elliprd(x: Expr, y: Expr, z: Expr) -> Expr:
    """R_D(x, y, z), symmetric in x and y."""

    def mean(x: Expr, y: Expr, z: Expr) -> Expr:
        return (x + y + 3.0 * z) * 0.2

    def step(x: Expr, y: Expr, z: Expr, total: Expr, weight: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        a, b, c = sqrt(x), sqrt(y), sqrt(z)
        shift = a * b + (b * c + c * a)
        m = mean(x, y, z)
        apart = _largest(fp.absolute(x - m), fp.absolute(y - m), fp.absolute(z - m))
        total = total + weight / (c * (z + shift))
        moved = tuple((v + shift) * 0.25 for v in (x, y, z))
        return apart > m * _spread(x), (*moved, total, weight * 0.25)

    one, zero = fp.like(x, 1.0), fp.like(x, 0.0)
    p, q, r, total, weight = iterate(_STEPS, (x, y, z, zero, one), step)
    m = mean(p, q, r)
    dx, dy = 1.0 - p / m, 1.0 - q / m
    dz = (dx + dy) * (-1 / 3)
    xy, z2 = dx * dy, dz * dz
    e2, e3 = xy - 6.0 * z2, (3.0 * xy - 8.0 * z2) * dz
    e4, e5 = 3.0 * (xy - z2) * z2, xy * z2 * dz
    series = fma(e2, fma(e2, 9 / 88, -3 / 14), 1.0) + e3 * (1 / 6) - e4 * (3 / 22)
    series = series - e2 * e3 * (9 / 52) + e5 * (3 / 26)
    series = series - e2 * e2 * e2 / 16.0 + e3 * e3 * (3 / 40) + e2 * e4 * (3 / 20)
    value = 3.0 * total + weight * series / (m * sqrt(m))
    bad = (x < 0.0) | (y < 0.0) | ~(z > 0.0) | ~(x + y > 0.0)
    edge = select((x >= 0.0) & (y >= 0.0) & (z >= 0.0), fp.like(x, math.inf), fp.like(x, math.nan))
    return select(bad, edge, value)


def elliprj(x: Expr, y: Expr, z: Expr, p: Expr) -> Expr:
    """R_J(x, y, z, p), symmetric in the first three, of p > 0."""
    delta = (p - x) * (p - y) * (p - z)

    def mean(x: Expr, y: Expr, z: Expr, p: Expr) -> Expr:
        return (x + y + z + (p + p)) * 0.2

    def step(
        x: Expr, y: Expr, z: Expr, p: Expr, total: Expr, weight: Expr
    ) -> tuple[Expr, tuple[Expr, ...]]:
        a, b, c, d = sqrt(x), sqrt(y), sqrt(z), sqrt(p)
        shift = a * b + (b * c + c * a)
        product = (d + a) * (d + b) * (d + c)
        e = delta * (weight * weight * weight) / (product * product)
        one = fp.like(x, 1.0)
        total = total + weight / product * elliprf(one, 1.0 + e, 1.0 + e)
        m = mean(x, y, z, p)
        away = (fp.absolute(v - m) for v in (x, y, z, p))
        moved = tuple((v + shift) * 0.25 for v in (x, y, z, p))
        return _largest(*away) > m * _spread(x), (*moved, total, weight * 0.25)

    one, zero = fp.like(x, 1.0), fp.like(x, 0.0)
    a, b, c, d, total, weight = iterate(_STEPS, (x, y, z, p, zero, one), step)
    m = mean(a, b, c, d)
    dx, dy, dz = 1.0 - a / m, 1.0 - b / m, 1.0 - c / m
    dp = (dx + dy + dz) * -0.5
    xyz, p2 = dx * dy * dz, dp * dp
    e2 = dx * dy + dx * dz + dy * dz - 3.0 * p2
    e3 = xyz + 2.0 * e2 * dp + 4.0 * p2 * dp
    e4 = (2.0 * xyz + e2 * dp + 3.0 * p2 * dp) * dp
    e5 = xyz * p2
    series = fma(e2, fma(e2, fma(e2, -1 / 16, 9 / 88), -3 / 14), 1.0) + e3 * (1 / 6)
    series = series - e4 * (3 / 22) - e2 * e3 * (9 / 52) + e5 * (3 / 26)
    series = series + e3 * e3 * (3 / 40) + e2 * e4 * (3 / 20)
    value = weight * series / (m * sqrt(m)) + 6.0 * total
    bad = (x < 0.0) | (y < 0.0) | (z < 0.0) | ~(p > 0.0)
    return select(bad, fp.like(x, math.nan), value)


def ellipkm1(p: Expr) -> Expr:
    """K(1 - p), accurate near the logarithm at p = 0: pi / 2 over the arithmetic-geometric mean."""
    a, b = fp.like(p, 1.0), sqrt(p)
    for _ in range(8 if fp.is32(p) else 10):
        a, b = (a + b) * 0.5, sqrt(a * b)
    value = (math.pi / 2) / a
    value = select(p.eq(0.0), fp.like(p, math.inf), value)
    return select(p < 0.0, fp.like(p, math.nan), value)


def ellipk(m: Expr) -> Expr:
    """The complete elliptic integral of the first kind, of the parameter m = k**2."""
    return ellipkm1(1.0 - m)


def ellipe(m: Expr) -> Expr:
    """The complete elliptic integral of the second kind: R_F - m / 3 R_D."""
    zero, one = fp.like(m, 0.0), fp.like(m, 1.0)
    rest = 1.0 - m
    safe = select(rest > 0.0, rest, one)
    value = fma(m * (-1 / 3), elliprd(zero, safe, one), elliprf(zero, safe, one))
    value = select(rest.eq(0.0), one, value)
    return select(rest < 0.0, fp.like(m, math.nan), value)


def _incomplete(phi: Expr, m: Expr, second: bool) -> Expr:
    """F(phi, m) or E(phi, m): whole half turns count complete integrals."""
    turns = unary("rint", phi * (1 / math.pi))
    r = fma(turns, -math.pi, phi)
    r = fma(turns, -1.2246467991473532e-16 if not fp.is32(phi) else 8.74227766e-08, r)
    s, c = sin(r), cos(r)
    square, one = s * s, fp.like(phi, 1.0)
    rest = fma(-m, square, 1.0)
    value = s * elliprf(c * c, rest, one)
    if second:
        value = value - m * square * s * (1 / 3) * elliprd(c * c, rest, one)
    complete = ellipe(m) if second else ellipk(m)
    return select(turns.eq(0.0), value, fma(turns * 2.0, complete, value))


def ellipkinc(phi: Expr, m: Expr) -> Expr:
    """The incomplete elliptic integral of the first kind."""
    return _incomplete(phi, m, False)


def ellipeinc(phi: Expr, m: Expr) -> Expr:
    """The incomplete elliptic integral of the second kind."""
    return _incomplete(phi, m, True)


def lambertw(x: Expr, branch: int) -> Expr:
    """w with w exp(w) = x: branch 0 for x >= -1/e, branch -1 for -1/e <= x < 0 (Halley)."""
    low = math.exp(-1)
    inside = (x >= -low) & (x < (math.inf if branch == 0 else 0.0))
    x_ = select(inside, x, fp.like(x, 1.0 if branch == 0 else -0.2))
    root = sqrt(fp.at_least(fma(x_, math.e, 1.0), 0.0) * 2.0)
    if branch == 0:
        near = fma(root, fma(root, -1 / 3, 1.0), -1.0)
        l1 = log1p(fp.at_least(x_, 0.0))
        start = select(x_ < 0.5, near, l1 * (1.0 - log1p(l1) / (2.0 + l1)))
    else:
        near = fma(root, fma(root, -1 / 3, -1.0), -1.0)
        l1 = log(-x_)
        far = l1 - log(-l1)
        start = select(x_ < -0.25, near, far)

    def step(w: Expr, last: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        e = exp(w)
        f = w * e - x_
        more = w + 1.0
        safe = select(more.eq(0.0), fp.like(x, 1e-30), more)
        down = e * more - (w + 2.0) * f / (2.0 * safe)
        moved = select(f.eq(0.0) | down.eq(0.0), w, w - f / down)
        tolerance = 2.0**-22 if fp.is32(x) else 2.0**-51
        return fp.absolute(w - last) > fp.absolute(w) * tolerance, (moved, w)

    value = iterate(20, (start, start + 1.0), step)[0]
    edge = select(x.eq(math.inf), x, fp.like(x, math.nan))
    if branch:
        edge = select(x.eq(0.0), fp.like(x, -math.inf), fp.like(x, math.nan))
    return select(inside, value, edge)


def lambertw_0(x: Expr) -> Expr:
    """The principal branch."""
    return lambertw(x, 0)


def lambertw_lower(x: Expr) -> Expr:
    """The branch below -1."""
    return lambertw(x, -1)
