"""The table of a transform: its roots of unity, then those that SIMD lanes read side by side.

A table of n points begins with the n-th roots. Where lanes run along a transform, the first pass
multiplies by exp(-2 pi i g k / n) for adjacent g: these follow, for each k. Where a transform is
split into columns, whose results are multiplied by exp(-2 pi i c k / n) for adjacent columns c, a
vector of them is the product of that of its first column and of those of the first vector: both
follow, for each k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.dtypes import DType
from numus.kernels.fft.radices import LARGEST_RADIX, split
from numus.kernels.fft.roots import unit_roots
from numus.target import Target


@dataclass(frozen=True)
class TableTuning:
    """Measured on a 2-core x86-64 (Sapphire Rapids)."""

    max_length_along: int = 1 << 15  # of transforms that lanes run along
    min_split_length: int = 1 << 12  # of transforms that are split into columns
    max_length_real: int = 1 << 12  # of those for real signals that lanes do not run along
    max_vectors: int = 4  # of adjacent columns that are transformed together


TUNING = TableTuning()


@dataclass(frozen=True)
class Layout:
    """Where the parts of a table are."""

    length: int
    vector: int = 1  # lanes
    first_radix: int = 0  # of lanes along a transform; 0: they do not
    columns_length: int = 0  # points of a column; 0: there are none
    rows_length: int = 0

    @property
    def columns_start(self) -> int:
        return 2 * self.length if self.first_radix else self.length

    @property
    def vectors_start(self) -> int:
        """Of exp(-2 pi i c k / n) for the first columns c of the vectors, each for all k."""
        return self.columns_start + self.columns_length * self.vector


def column_limit(dtype: DType, target: Target) -> int:
    """The most points of a column: a vector of them, with two scratch buffers, stays in L2."""
    return max(2, target.l2_bytes // (4 * vector_of(dtype, target) * dtype.itemsize))


def vector_of(dtype: DType, target: Target) -> int:
    """Lanes of a complex dtype: as many as real parts fit a vector."""
    return max(1, target.vector_bytes // dt.real_of(dtype).itemsize)


def layout(n: int, dtype: DType, target: Target) -> Layout:
    if target.simt:
        return Layout(n)
    vector = vector_of(dtype, target)
    is_along = 1 < vector <= LARGEST_RADIX and n % vector == 0
    is_along = is_along and vector**2 <= n <= TUNING.max_length_along
    lengths: tuple[int, ...] = (n,)
    if n >= TUNING.min_split_length:
        lengths = split(n, min(column_limit(dtype, target), max(2, n // 2)))
    columns, rows = lengths if len(lengths) == 2 else (0, 0)
    return Layout(n, vector, vector if is_along else 0, columns, rows)


def table(n: int, dtype: DType, target: Target) -> Any:
    """exp(-2 pi i k / n) for k < n, and the other parts of the layout."""
    at = layout(n, dtype, target)
    parts = [np.arange(n)]
    if at.first_radix:
        k = np.arange(at.first_radix)[:, None]
        parts.append((k * np.arange(n // at.first_radix)).ravel())
    if at.columns_length:
        k = np.arange(at.columns_length)[:, None]
        parts.append((k * np.arange(at.vector)).ravel() % n)
        parts.append((k.T * np.arange(0, at.rows_length, at.vector)[:, None]).ravel())
    roots = unit_roots(np.arange(n), n, dtype)
    return np.concatenate([roots[k] for k in parts])
