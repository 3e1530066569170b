"""Triangular parts of patterns: solutions by substitution, level by level, or in Jacobi sweeps
(Anzt, Chow & Dongarra 2015), on every device."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

import numus as nm
from numus.graph import grad_mode
from numus.primitives import sparse as primitives
from numus.primitives.views import reshape
from numus.runtime.devices import Device
from numus.shapes import as_int
from numus.sparse.algorithms.levels import find_levels, split_triangle
from numus.sparse.pattern import OnDevices, Pattern, grouped, index_dtype
from numus.sparse.products import product, taken
from numus.tensor import Tensor

METHODS = ("auto", "levels", "jacobi")


@dataclass(frozen=True)
class SweepTuning:
    """What a GPU takes, in units of the time in which one multiprocessor reads an entry (about half
    a nanosecond): estimated from the H200's memory speed and launches, not measured one by one."""

    barrier_entries: int = 2_000  # between two levels, of one block
    sweep_entries: int = 20_000  # of the loop around a product


TUNING = SweepTuning()


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

    def chosen(self, columns: int, dev: Device) -> str:
        """The cheaper method: lanes of one core take row after row; of a GPU, a block takes the
        levels of a right-hand side, while sweeps have all of it, once per level."""
        target = dev.runtime.target
        if not target.block_size:
            return "levels"
        count, nnz = self.levels[0].array.size - 1, self.pattern.nnz
        share = min(columns, target.num_cores)
        by_levels = nnz * columns / max(share, 1) + count * TUNING.barrier_entries
        sweep = nnz * columns / max(target.num_cores, 1) + TUNING.sweep_entries
        return "levels" if by_levels <= (count - 1) * sweep else "jacobi"

    def solve_unit(
        self, values: Tensor, b: Tensor, method: str = "auto", sweeps: int | None = None
    ) -> Tensor:
        """x with (1 + T) x = b, of columns (n, k); without a derivative. A number of sweeps is that
        of Jacobi's method, and the solution approximate."""
        if self.pattern.nnz == 0 or b.size == 0:
            return b
        with grad_mode(False):
            dev = values.device
            if method == "auto":
                method = "jacobi" if sweeps is not None else self.chosen(b.shape[1], dev)
            if method == "jacobi":
                return self._swept(values, b, sweeps)
            levels = tuple(x.on(dev) for x in self.levels)
            v, c = (reshape(x._node, (1, *x.shape)) for x in (values, b))
            found = primitives.csr_solve(levels, self.pattern.arrays(dev), v, c, self.upper)
            return Tensor(reshape(found, found.shape[1:]))

    def _swept(self, values: Tensor, b: Tensor, sweeps: int | None) -> Tensor:
        """x ← b - T x, from b on: exact after as many sweeps as there are levels less one, as T is
        nilpotent, and where a sweep changes nothing."""
        most = self.levels[0].array.size - 2
        if sweeps is not None and min(sweeps, most) <= _UNROLLED:
            x = b
            for _ in range(min(sweeps, most)):
                x = b - product(self.pattern, values, x)
            return x
        end = most if sweeps is None else min(sweeps, most)

        def goes_on(state: Any) -> Tensor:
            step, changed, _ = state
            return (step < end) & changed

        def sweep(state: Any) -> Any:
            step, _, x = state
            new = b - product(self.pattern, values, x)
            return step + 1, nm.any(new != x), new

        start = (nm.zeros((), dtype=nm.int32), nm.ones((), dtype=nm.bool_), b)
        moved = tuple(x.to(b.device) for x in start)
        x = nm.while_loop(goes_on, sweep, moved)[2]
        assert isinstance(x, Tensor)
        return x

    def solve(
        self, values: Tensor, diagonal: Tensor | None, b: Tensor, method: str = "auto",
        sweeps: int | None = None,
    ) -> Tensor:  # fmt: skip
        """x with (D + T) x = b, of columns; None is the diagonal of the identity."""
        if diagonal is None:
            return self.solve_unit(values, b, method, sweeps)
        inverse = 1 / diagonal
        scaled = values * taken(inverse, self.pattern.rows) if self.pattern.nnz else values
        return self.solve_unit(scaled, b * inverse[:, None], method, sweeps)

    def solve_adjoint(
        self, values: Tensor, diagonal: Tensor | None, b: Tensor, method: str = "auto",
        sweeps: int | None = None,
    ) -> Tensor:  # fmt: skip
        """x with (D + T)ᴴ x = b."""
        other, order = self.transposed
        swapped = nm.conj(taken(values, order) if self.pattern.nnz else values)
        across = None if diagonal is None else nm.conj(diagonal)
        return other.solve(swapped, across, b, method, sweeps)


_UNROLLED = 8  # sweeps that stand in the program one after the other


def checked_method(op: str, method: str, sweeps: Any) -> int | None:
    """Errors of the two; the number of sweeps."""
    if method not in METHODS:
        raise ValueError(f"{op}: method={method!r} must be one of {METHODS}")
    if sweeps is None:
        return None
    count = as_int(sweeps, "sweeps", op)
    if count < 0:
        raise ValueError(f"{op}: sweeps={count} is negative")
    if method == "levels":
        raise ValueError(f"{op}: sweeps={count} are of method='jacobi', not of 'levels'")
    return count


def triangle_of(pattern: Pattern, upper: bool) -> tuple[Triangle, OnDevices, Any]:
    """The strict triangle of a canonical pattern; which entries it has; the entry of each diagonal
    element, -1 where there is none."""
    kept = pattern.__dict__.setdefault("triangles", {})
    if upper not in kept:
        n, nnz = pattern.shape[0], pattern.nnz
        dtype = index_dtype(*pattern.shape, nnz)
        starts, diagonal = np.empty(n + 1, np.int64), np.empty(n, np.int64)
        inside, columns = np.empty(nnz, np.int32), np.empty(nnz, np.int32)
        indices = pattern.indices.array.astype(np.int32, copy=False)
        count = split_triangle(
            *(n, pattern.pointers.array.astype(np.int64), indices, upper, starts, inside, columns),
            diagonal,
        )
        inside, columns = (x[:count].astype(dtype) for x in (inside, columns))
        strict = Pattern(pattern.shape, starts.astype(dtype), columns)
        strict.__dict__["is_canonical"] = True
        kept[upper] = Triangle(strict, upper), OnDevices(inside), diagonal
    found: tuple[Triangle, OnDevices, Any] = kept[upper]
    return found
