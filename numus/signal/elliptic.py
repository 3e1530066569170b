"""Elliptic integrals and Jacobi's functions of real arguments, by arithmetic-geometric means."""

from __future__ import annotations

import math

import numpy as np

from numus.signal._arguments import Array


def complete_integral(complement: float) -> float:
    """K(m) from 1 - m, without its rounding."""
    a, b = 1.0, math.sqrt(complement)
    for _ in range(40):  # quadratic convergence, after the magnitudes are equal
        a, b = (a + b) / 2, math.sqrt(a * b)
    return math.pi / (2 * a)


def carlson_rf(x: float, y: float, z: float) -> float:
    """Carlson's integral of the first kind, by duplication."""
    for _ in range(200):
        mean = (x + y + z) / 3
        dx, dy, dz = (1 - x / mean), (1 - y / mean), (1 - z / mean)
        if max(abs(dx), abs(dy), abs(dz)) < 1e-3:
            break
        root = math.sqrt(x) * math.sqrt(y) + math.sqrt(y) * math.sqrt(z)
        root += math.sqrt(z) * math.sqrt(x)
        x, y, z = (x + root) / 4, (y + root) / 4, (z + root) / 4
    e2, e3 = dx * dy - dz * dz, dx * dy * dz
    series = 1 - e2 / 10 + e3 / 14 + e2 * e2 / 24 - 3 * e2 * e3 / 44
    return series / math.sqrt(mean)


def inverse_sc(w: float, complement: float) -> float:
    """u with sc(u, m) = w, from 1 - m."""
    return w * carlson_rf(1.0, 1 + complement * w * w, 1 + w * w)


def jacobi(u: Array, m: float, complement: float) -> tuple[Array, Array, Array]:
    """sn, cn and dn of u for the parameter m and 1 - m, by descending Landen transformations."""
    a, b = [1.0], math.sqrt(complement)
    c = [math.sqrt(m)]
    while abs(c[-1]) > 1e-17 and len(a) < 20:
        mean = (a[-1] + b) / 2
        c.append((a[-1] - b) / 2)
        b = math.sqrt(a[-1] * b)
        a.append(mean)
    phi = 2.0 ** (len(a) - 1) * a[-1] * np.asarray(u, np.float64)
    for ai, ci in zip(a[:0:-1], c[:0:-1], strict=True):
        phi = (phi + np.arcsin(ci / ai * np.sin(phi))) / 2
    sn, cn = np.sin(phi), np.cos(phi)
    return sn, cn, np.sqrt(complement + m * cn * cn)


def nome_to_parameter(q: float) -> float:
    """m whose nome is q: the ratio of theta functions to the fourth power."""
    above = sum(q ** (n * (n + 1)) for n in range(8))
    below = 1 + 2 * sum(q ** (n * n) for n in range(1, 9))
    return 16 * q * (above / below) ** 4
