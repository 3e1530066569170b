"""Triangular parts of patterns: solutions by substitution, on every device."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import numus as nm
from numus.graph import grad_mode
from numus.primitives import sparse as primitives
from numus.primitives.views import reshape
from numus.sparse.algorithms.levels import find_levels
from numus.sparse.pattern import OnDevices, Pattern, grouped, index_dtype
from numus.sparse.products import taken
from numus.tensor import Tensor


class Triangle:
    """A strictly triangular pattern, with its levels."""

    def __init__(self, pattern: Pattern, upper: bool) -> None:
        self.pattern, self.upper = pattern, upper

    @functools.cached_property
    def levels(self) -> tuple[OnDevices, OnDevices]:
        """Where levels start, and rows in their order."""
        n = self.pattern.shape[0]
        level = np.zeros(n, np.int64)
        pointers = self.pattern.pointers.array.astype(np.int64)
        indices = self.pattern.indices.array.astype(np.int32, copy=False)
        count = find_levels(n, pointers, indices, self.upper, level)
        starts, order = grouped(level, max(count, 0))
        return OnDevices(starts), OnDevices(order)

    @functools.cached_property
    def transposed(self) -> tuple[Triangle, OnDevices]:
        """The other triangle, and the entry that each of its entries is."""
        swapped, order = self.pattern.transposed
        return Triangle(swapped, not self.upper), order

    def solve_unit(self, values: Tensor, b: Tensor) -> Tensor:
        """x with (1 + T) x = b, of columns (n, k); without a derivative."""
        if self.pattern.nnz == 0 or b.size == 0:
            return b
        with grad_mode(False):
            dev = values.device
            levels = tuple(x.on(dev) for x in self.levels)
            v, c = (reshape(x._node, (1, *x.shape)) for x in (values, b))
            found = primitives.csr_solve(levels, self.pattern.arrays(dev), v, c, self.upper)
            return Tensor(reshape(found, found.shape[1:]))

    def solve(self, values: Tensor, diagonal: Tensor | None, b: Tensor) -> Tensor:
        """x with (D + T) x = b, of columns; None is the diagonal of the identity."""
        if diagonal is None:
            return self.solve_unit(values, b)
        inverse = 1 / diagonal
        scaled = values * taken(inverse, self.pattern.rows) if self.pattern.nnz else values
        return self.solve_unit(scaled, b * inverse[:, None])

    def solve_adjoint(self, values: Tensor, diagonal: Tensor | None, b: Tensor) -> Tensor:
        """x with (D + T)ᴴ x = b."""
        other, order = self.transposed
        swapped = nm.conj(taken(values, order) if self.pattern.nnz else values)
        return other.solve(swapped, None if diagonal is None else nm.conj(diagonal), b)


def triangle_of(pattern: Pattern, upper: bool) -> tuple[Triangle, OnDevices, Any]:
    """The strict triangle of a canonical pattern; which entries it has; the entry of each diagonal
    element, -1 where there is none."""
    kept = pattern.__dict__.setdefault("triangles", {})
    if upper not in kept:
        row, column = pattern.rows.array, pattern.indices.array
        inside = np.flatnonzero(column > row if upper else column < row)
        dtype = index_dtype(*pattern.shape, pattern.nnz)
        pointers = np.zeros(pattern.shape[0] + 1, dtype)
        np.cumsum(np.bincount(row[inside], minlength=pattern.shape[0]), out=pointers[1:])
        strict = Pattern(pattern.shape, pointers, column[inside])
        strict.__dict__["is_canonical"] = True
        diagonal = np.full(pattern.shape[0], -1, np.int64)
        on = np.flatnonzero(row == column)
        diagonal[row[on]] = on
        kept[upper] = Triangle(strict, upper), OnDevices(inside.astype(dtype)), diagonal
    found: tuple[Triangle, OnDevices, Any] = kept[upper]
    return found
