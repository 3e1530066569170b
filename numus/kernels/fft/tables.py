"""The table of a transform: its roots of unity, then those that SIMD lanes read side by side.

On CPUs a table of n points begins with the n-th roots. Where lanes run along a transform, the first
pass multiplies by exp(-2 pi i g k / n) for adjacent g: these follow, for each k. A transform in
several steps reads the roots of their lengths, which are far apart in those of n: they follow,
adjacent. Between two steps, results of columns are multiplied by exp(-2 pi i c k / m) for adjacent
columns c, where a vector of them is the product of that of its first column and of those of the
first vector: both follow, for each k.

Threads read the roots of the lengths of their steps, and those that each pass multiplies by: all
of them, or, where that is more than a cache has room for, the first B and every B-th.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.dtypes import DType
from numus.kernels.fft import thread_steps
from numus.kernels.fft.chirp import chirp, chirp_length, chirp_spectrum
from numus.kernels.fft.radices import LARGEST_RADIX, is_mixed_radix, split
from numus.kernels.fft.roots import unit_roots
from numus.target import Target


@dataclass(frozen=True)
class TableTuning:
    """Measured on a 2-core x86-64 (Sapphire Rapids)."""

    small_elements: int = 1 << 12  # up to which a kernel's code is kept short
    max_length_along: int = 1 << 15  # of transforms that lanes run along
    min_half_vector: int = 8  # lanes of half a vector that are worth a pass
    min_split_length: int = 1 << 12  # of transforms that are split into columns
    max_length_real: int = 1 << 12  # of those for real signals that lanes do not run along
    max_vectors: int = 4  # of adjacent columns that are transformed together


TUNING = TableTuning()


Part = tuple[str, int]  # what, and of which length


@dataclass(frozen=True)
class Layout:
    """Where the parts of a table are."""

    length: int
    vector: int = 1  # lanes
    first_radix: int = 0  # of lanes along a transform; 0: they do not
    steps: tuple[int, ...] = ()  # the lengths of the steps; none: there is one
    rotations: tuple[int, ...] = ()  # the lengths of the factors of threads
    whole_steps: tuple[int, ...] = ()  # the lengths of the steps of threads
    convolution: int = 0  # points of a convolution with a chirp; 0: there is none

    @property
    def splits(self) -> list[tuple[int, int, int]]:
        """Lengths of a transform that is split, of its columns, and how many of them there are."""
        found, whole = [], self.length
        for n in self.steps[:-1]:
            found.append((whole, n, whole // n))
            whole //= n
        return found

    @cached_property
    def sizes(self) -> dict[Part, int]:
        steps = self.whole_steps or (self.length, *self.steps)
        sizes: dict[Part, int] = {("roots", n): n for n in steps}
        if self.first_radix:
            sizes["first", self.length] = self.length
        for whole, n, columns in self.splits:
            sizes["near", whole] = n * self.vector
            sizes["far", whole] = n * -(-columns // self.vector)
        if self.convolution:
            sizes["chirp", self.length] = sizes["spectrum", self.length] = self.convolution
        for n in self.rotations:
            if n <= thread_steps.TUNING.max_cached_roots:
                sizes["all", n] = n
            else:
                sizes["low", n] = thread_steps.low_roots(n)
                sizes["high", n] = -(-n // thread_steps.low_roots(n))
        return sizes

    @cached_property
    def starts(self) -> dict[Part, int]:
        ends = list(itertools.accumulate(self.sizes.values(), initial=0))
        return dict(zip(self.sizes, ends, strict=False))


def column_limit(dtype: DType, target: Target) -> int:
    """The most points of a column: a vector of them, with two scratch buffers, stays in L2."""
    return max(2, target.l2_bytes // (4 * vector_of(dtype, target) * dtype.itemsize))


def vector_of(dtype: DType, target: Target) -> int:
    """Lanes of a complex dtype: as many as real parts fit a vector."""
    return max(1, target.vector_bytes // dt.real_of(dtype).itemsize)


def _first_radix(n: int, vector: int) -> int:
    """Of the first pass of lanes along a transform, whose groups are whole vectors; 0: none."""
    if not 1 < vector <= LARGEST_RADIX or n > TUNING.max_length_along:
        return 0
    if n % vector == 0 and n >= vector**2:
        return vector
    half = vector // 2  # of the lanes are enough for the second, last pass
    return half if n == half * vector and half >= TUNING.min_half_vector else 0


def layout(n: int, dtype: DType, target: Target) -> Layout:
    if target.simt:
        m = chirp_length(n) if is_chirp_in_block(n, dtype, target) else 0
        rotations = thread_steps.rotation_lengths(m or n, dtype, target)
        lengths = thread_steps.all_step_lengths(m or n, dtype, target)
        return Layout(n, rotations=rotations, whole_steps=lengths, convolution=m)
    vector = vector_of(dtype, target)
    first = _first_radix(n, vector)
    steps: tuple[int, ...] = ()
    if n >= TUNING.min_split_length:
        steps = split(n, min(column_limit(dtype, target), max(2, n // 2)))
    return Layout(n, vector, first, steps if len(steps) > 1 else ())


def is_real_in_block(half: int, dtype: DType, target: Target) -> bool:
    """Threads unpack the transforms of real signals of 2 `half` elements in shared memory."""
    is_mixed = target.simt and half > 1 and is_mixed_radix(half, threads=True)
    return is_mixed and half <= thread_steps.max_points(half, dtype, target)


def is_chirp_in_block(n: int, dtype: DType, target: Target) -> bool:
    """A transform by threads is a convolution with a chirp, with both of its buffers in the shared
    memory of a block."""
    if not target.simt or is_mixed_radix(n, threads=True):
        return False
    m = chirp_length(n)
    return 2 * m <= thread_steps.max_points(m, dtype, target)


def _thread_table(at: Layout, dtype: DType) -> Any:
    n, parts = at.length, []
    for (what, whole), size in at.sizes.items():
        if what == "chirp":
            parts.append(np.pad(chirp(n, dtype), (0, size - n)))
        elif what == "spectrum":
            parts.append(chirp_spectrum(n, dtype))
        else:
            step = thread_steps.low_roots(whole) if what == "high" else 1
            parts.append(unit_roots(np.arange(size) * step % whole, whole, dtype))
    return np.concatenate(parts)


def table(n: int, dtype: DType, target: Target) -> Any:
    """exp(-2 pi i k / n) for k < n, and the other parts of the layout."""
    at = layout(n, dtype, target)
    if target.simt:
        return _thread_table(at, dtype)
    columns = {whole: (m, count) for whole, m, count in at.splits}
    parts = []
    for (what, whole), size in at.sizes.items():
        k = np.arange(size)
        if what == "first":
            k = np.arange(at.first_radix)[:, None] * np.arange(whole // at.first_radix)
        elif what == "near":
            k = np.arange(columns[whole][0])[:, None] * np.arange(at.vector)
        elif what == "far":
            m, count = columns[whole]
            k = np.arange(m) * np.arange(0, count, at.vector)[:, None]
        parts.append(k.ravel() % whole * (n // whole))
    roots = unit_roots(np.arange(n), n, dtype)
    return np.concatenate([roots[k] for k in parts])
