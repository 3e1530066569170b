"""Roots of unity, correct to the last bit: in tables, and as constants of butterflies."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.dtypes import DType

PI = np.longdouble("3.14159265358979323846264338327950288")


def unit_roots(k: Any, n: int, dtype: DType) -> Any:
    """exp(-2 pi i k / n) for integers 0 <= k < n, rounded once.

    Angles are reduced to the first octant in integers, so that symmetric roots have equal digits.
    """
    real: type = np.longdouble if dtype is dt.complex128 else np.float64
    octant, rest = np.divmod(8 * k.astype(np.int64), n)
    rest = np.where(octant % 2, n - rest, rest)
    angle = rest.astype(real) * (real(PI) / 4) / n
    c, s = np.cos(angle), np.sin(angle)
    rotated = (octant + 1) // 2 % 2 == 1  # octants 1, 2, 5, 6: sine and cosine change places
    out = np.empty(k.shape, dtype.np)
    out.real = np.where(rotated, s, c) * np.where((octant >= 2) & (octant < 6), -1, 1)
    out.imag = np.where(rotated, c, s) * np.where(octant >= 4, 1, -1)
    return out


@functools.lru_cache(maxsize=1024)
def unit_root(k: int, n: int) -> tuple[float, float]:
    """cos(2 pi k / n) and sin(2 pi k / n)."""
    found = unit_roots(np.array(k % n), n, dt.complex128)
    return float(found.real), -float(found.imag)
