"""Complex matrices as real ones of twice the size: [[re, -im], [im, re]] for each entry, so that
rows, columns and elements of vectors come in pairs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import numus as nm
from numus import dtypes as dt
from numus.dtypes import DType
from numus.sparse.pattern import Array, Pattern, index_dtype
from numus.tensor import Tensor


def real_pattern(pattern: Pattern) -> tuple[Pattern, Array, Array, Array]:
    """The pattern of the real form; of its entries, the complex one and whether its row and column
    are those of imaginary parts."""
    kept = pattern.__dict__
    if "real_form" not in kept:
        m, n = pattern.shape
        counts = np.repeat(2 * pattern.counts.astype(np.int64), 2)
        pointers = np.zeros(2 * m + 1, np.int64)
        np.cumsum(counts, out=pointers[1:])
        starts = np.repeat(pattern.pointers.array[:-1].astype(np.int64), 2)
        entry = np.arange(int(pointers[-1])) - np.repeat(pointers[:-1], counts)
        source = np.repeat(starts, counts) + entry // 2
        columns = 2 * pattern.indices.array.astype(np.int64)[source] + entry % 2
        dtype = index_dtype(2 * m, 2 * n, columns.size)
        found = Pattern((2 * m, 2 * n), pointers.astype(dtype), columns.astype(dtype))
        found.__dict__["is_canonical"] = True
        kept["real_form"] = found, source, (found.rows.array % 2).astype(np.int64), entry % 2
    made: tuple[Pattern, Array, Array, Array] = kept["real_form"]
    return made


def real_form(pattern: Pattern, values: Array) -> tuple[Pattern, Array]:
    """The real form of a matrix with a canonical pattern."""
    wide, source, row, column = real_pattern(pattern)
    taken = values[source]
    real = np.where(row == column, taken.real, np.where(row > column, taken.imag, -taken.imag))
    return wide, real.astype(np.float64)


def by_real_parts(solve: Callable[[Tensor], Tensor], b: Tensor, dtype: DType) -> Tensor:
    """Columns b by a function of real ones: of the real form, where the dtype of the matrix is
    complex, and of real and imaginary parts side by side, where only b is."""
    if dtype.is_complex:
        wide = b if b.dtype.is_complex else b.astype(dt.promote(b.dtype, dtype))
        real = nm.stack([nm.real(wide), nm.imag(wide)], axis=1)
        found = solve(real.reshape(2 * b.shape[0], b.shape[1]))
        found = found.reshape(found.shape[0] // 2, 2, b.shape[1])
        return (found[:, 0] + 1j * found[:, 1]).astype(wide.dtype)
    if b.dtype.is_complex:
        k = b.shape[1]
        found = solve(nm.concatenate([nm.real(b), nm.imag(b)], axis=1))
        return (found[:, :k] + 1j * found[:, k:]).astype(b.dtype)
    return solve(b)
