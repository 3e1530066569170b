"""Factors P R A C Q = L D U of a sparse matrix, found on the host: equilibration, ordering, and a
multifrontal or left-looking factorisation, whichever fits the pattern."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from numus.errors import LinAlgError
from numus.sparse.algorithms.elimination import analysed
from numus.sparse.algorithms.left_looking import Columns
from numus.sparse.algorithms.matching import maximum_transversal
from numus.sparse.algorithms.minimum_degree import approximate_minimum_degree
from numus.sparse.algorithms.multifrontal import PIVOT_SHARE, Plan, planned
from numus.sparse.algorithms.nested_dissection import nested_dissection
from numus.sparse.pattern import Array, Pattern, index_dtype, product_pattern
from numus.sparse.triangles import Triangle

ORDERINGS = ("auto", "amd", "dissection", "columns", "natural")
_MAX_FRONT_GROWTH = 1e3  # of elements, with pivots of the diagonal blocks
_STABLE_GROWTH = 8.0  # up to which solutions need no refinement
_SYMMETRIC_SHARE = 0.7  # of entries with a partner, for an ordering of A + Aᵀ


@dataclass(frozen=True)
class Matrix:
    """A square matrix on the host, by rows."""

    pattern: Pattern
    values: Array  # float64

    @property
    def n(self) -> int:
        return self.pattern.shape[0]

    @property
    def rows(self) -> Array:
        return self.pattern.rows.array.astype(np.int64)

    @property
    def columns(self) -> Array:
        return self.pattern.indices.array.astype(np.int64)


@dataclass(frozen=True)
class SupernodalRows:
    """Where the elements of fronts are, as `supernodal_solve` reads them: of columns of L, in the
    order of `lower_rows`, and of rows of U."""

    first: Array
    starts: Array
    lower_rows: Array
    upper_rows: Array
    entries: Array


@dataclass(frozen=True)
class Factors:
    """Solutions are C Q U⁻¹ D⁻¹ L⁻¹ P R b; L and U have unit diagonals.

    `lower` is a triangle with values whose rows are the columns of L; `upper` has the rows of U, or
    its columns where `upper_by_columns` says so.
    Those of fronts have `supernodes`, too. `is_stable`: as small a residual as partial pivoting
    gives is to be expected, as elements have not grown.
    """

    row_order: Array
    column_order: Array
    row_scale: Array
    column_scale: Array
    diagonal: Array
    lower: tuple[Triangle, Array]
    upper: tuple[Triangle, Array]
    upper_by_columns: bool
    symbolic: Any = field(repr=False)
    is_stable: bool
    supernodes: SupernodalRows | None = None

    @property
    def nnz(self) -> int:
        return int(self.lower[1].size + self.upper[1].size + self.diagonal.size)


# -- what precedes the numeric phase --------------------------------------------------------------


def _powers(largest: Array) -> Array:
    """Powers of two near 1 / largest: scaling by them does not round."""
    _, exponent = np.frexp(np.where(largest > 0, largest, 1.0))
    return np.ldexp(1.0, -exponent)


def _largest(pattern: Pattern, size: Array) -> Array:
    """The largest of the sizes in each row."""
    found = np.zeros(pattern.shape[0])
    full = np.flatnonzero(pattern.counts)
    if full.size:
        found[full] = np.maximum.reduceat(size, pattern.pointers.array[full])
    return found


def equilibrated(a: Matrix) -> tuple[Array, Array]:
    """Scales of rows and columns by which the largest elements are between 1/2 and 1."""
    size = np.abs(a.values)
    row = _powers(_largest(a.pattern, size))
    swapped, order = a.pattern.transposed
    scaled = size[order.array] * row[swapped.indices.array]
    return row, _powers(_largest(swapped, scaled))


def symmetric_scale(a: Matrix) -> Array:
    """One scale for rows and columns, by the diagonal."""
    diagonal = np.zeros(a.n)
    on = a.rows == a.columns
    diagonal[a.rows[on]] = np.abs(a.values[on])
    _, exponent = np.frexp(np.where(diagonal > 0, diagonal, 1.0))
    return np.ldexp(1.0, -(exponent // 2))


def both_ways(pattern: Pattern) -> tuple[Array, Array]:
    """The pattern of A + Aᵀ without diagonal."""
    n = pattern.shape[0]
    row, column = pattern.rows.array.astype(np.int64), pattern.indices.array.astype(np.int64)
    off = row != column
    swapped, _ = pattern.transposed
    same = (swapped.pointers.array, pattern.pointers.array), (swapped.indices.array, column)
    if all(np.array_equal(x, y) for x, y in same):
        pointers = np.zeros(n + 1, np.int64)
        np.cumsum(np.bincount(row[off], minlength=n), out=pointers[1:])
        return pointers, column[off]
    number = np.unique(np.concatenate([row[off] * n + column[off], column[off] * n + row[off]]))
    pointers = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(number // max(n, 1), minlength=n), out=pointers[1:])
    return pointers, number % max(n, 1)


def symmetry(pattern: Pattern, both: tuple[Array, Array]) -> float:
    """The share of entries off the diagonal that have a partner."""
    off = int((pattern.rows.array != pattern.indices.array).sum())
    return 1.0 if both[1].size == 0 else 2.0 * off / both[1].size - 1.0


def ordered(both: tuple[Array, Array], n: int, ordering: str) -> Array:
    if ordering == "natural":
        return np.arange(n)
    if ordering == "dissection":
        return nested_dissection(n, *both)
    return approximate_minimum_degree(n, *both)


def column_order(pattern: Pattern, ordering: str) -> Array:
    """Minimum degree on AᵀA, whose pattern holds those of all U whatever the pivots are; rows with
    many entries, which would fill it, are left out."""
    rows, n = pattern.shape
    if ordering == "natural":
        return np.arange(n)
    counts = pattern.counts
    keep = np.repeat(counts <= max(16, int(10 * n**0.5)), counts)
    row, column = pattern.rows.array[keep], pattern.indices.array[keep]
    pointers = np.zeros(rows + 1, index_dtype(n, pattern.nnz))
    np.cumsum(np.bincount(row, minlength=rows), out=pointers[1:])
    thin = Pattern(pattern.shape, pointers, column)
    return approximate_minimum_degree(n, *both_ways(product_pattern(thin.transposed[0], thin)))


# -- factorisations -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fronts:
    """The symbolic part of a multifrontal factorisation."""

    plan: Plan
    triangle: Triangle

    def factors(self, a: Matrix, scales: tuple[Array, Array], symmetric: bool) -> Factors | int:
        """Or the column that has no pivot."""
        row, column = scales
        values = a.values * row[a.rows] * column[a.columns]
        failed, upper, lower, diagonal, pivots, largest = self.plan.numeric(values, symmetric)
        order = self.plan.nodes.order
        if failed >= 0:
            return int(order[failed])
        size = np.abs(values).max(initial=0.0)
        if largest > _MAX_FRONT_GROWTH * size:
            return int(order[-1])
        rows, below = order, self.triangle
        nodes = self.plan.nodes
        first, lower_rows = nodes.first, nodes.rows
        starts = np.repeat(first[:-1], np.diff(first))
        exchanged = np.flatnonzero(pivots != np.arange(a.n) - starts)
        if not symmetric and exchanged.size:
            moved = np.arange(a.n)
            for k in exchanged.tolist():
                other = int(starts[k] + pivots[k])
                moved[k], moved[other] = moved[other], moved[k]
            rows, below = order[moved], self._exchanged(moved)
            lower_rows = np.argsort(moved, kind="stable")[lower_rows]
        there = SupernodalRows(first, nodes.starts, lower_rows, nodes.rows, self.plan.row_starts)
        return Factors(
            *(rows, order, row, column, diagonal, (below, lower), (self.triangle, upper)),
            *(False, self, bool(largest <= _STABLE_GROWTH * size), there),
        )

    def _exchanged(self, moved: Array) -> Triangle:
        """Columns of L with the rows of later supernodes where their exchanges took them."""
        pattern, first = self.triangle.pattern, self.plan.nodes.first
        place = np.empty(moved.size, np.int64)
        place[moved] = np.arange(moved.size)
        ends = np.repeat(first[1:], np.diff(first))[pattern.rows.array]
        old = pattern.indices.array
        new = np.where(old >= ends, place[old], old).astype(old.dtype)
        return Triangle(Pattern(pattern.shape, pattern.pointers.array, new), True)


def _fronts(a: Matrix, both: tuple[Array, Array], ordering: str, symmetric: bool) -> _Fronts:
    plan = planned(analysed(*both, ordered(both, a.n, ordering)), a.rows, a.columns, symmetric)
    dtype = index_dtype(a.n, int(plan.row_starts[-1]))
    pattern = Pattern((a.n, a.n), plan.row_starts.astype(dtype), plan.columns().astype(dtype))
    pattern.__dict__["is_canonical"] = True
    return _Fronts(plan, Triangle(pattern, True))


@dataclass(frozen=True)
class _ByColumns:
    """What is kept of a left-looking factorisation."""

    swapped: Pattern
    values_order: Array
    columns: Columns

    def factors(self, a: Matrix, scales: tuple[Array, Array]) -> Factors:
        found, n = self.columns, a.n
        rows = np.empty(n, np.int64)
        rows[found.pivot_of] = np.arange(n)
        dtype = index_dtype(n, found.lower_rows.size, found.upper_rows.size)
        lower, upper = (
            Triangle(Pattern((n, n), starts.astype(dtype), indices.astype(dtype)), way)
            for starts, indices, way in (
                (found.lower_starts, found.lower_rows, True),
                (found.upper_starts, found.upper_rows, False),
            )
        )
        unit = found.upper / found.diagonal[found.upper_rows]
        most = max(np.abs(x).max(initial=0.0) for x in (found.upper, found.diagonal))
        size = np.abs(a.values * scales[0][a.rows] * scales[1][a.columns]).max(initial=0.0)
        multiplier = np.abs(found.lower).max(initial=0.0)
        stable = bool(most <= _STABLE_GROWTH * size and multiplier <= 1 / PIVOT_SHARE)
        return Factors(
            *(rows, found.order, *scales, found.diagonal, (lower, found.lower), (upper, unit)),
            *(True, self, stable),
        )


def _left_looking(
    a: Matrix, scales: tuple[Array, Array], order: Array, share: float, op: str
) -> Factors:
    swapped, by_column = a.pattern.transposed
    found = Columns(swapped.pointers.array, swapped.indices.array, order, share)
    values = (a.values * scales[0][a.rows] * scales[1][a.columns])[by_column.array]
    end = found.factorise(values)
    if end < 0:
        raise LinAlgError(f"{op}: the matrix is singular: column {order[-1 - end]} has no pivot")
    return _ByColumns(swapped, by_column.array, found).factors(a, scales)


def checked(a: Matrix, op: str) -> None:
    """Errors of values and of the pattern."""
    if not np.isfinite(a.values).all():
        raise LinAlgError(f"{op}: the matrix has elements that are infinite or not a number")


def factorised(a: Matrix, ordering: str, share: float, equilibrate: bool, op: str) -> Factors:
    """LU by the symmetric strategy where the pattern is nearly so, with its diagonal there, and by
    columns otherwise or where pivots of the diagonal blocks are too small."""
    checked(a, op)
    scales = equilibrated(a) if equilibrate else (np.ones(a.n), np.ones(a.n))
    there = np.zeros(a.n, bool)
    there[a.rows[a.rows == a.columns]] = True
    diagonal = bool(there.all())
    if not diagonal:
        swapped, _ = a.pattern.transposed
        rank, _ = maximum_transversal(a.n, swapped.pointers.array, swapped.indices.array)
        if rank < a.n:
            raise LinAlgError(
                f"{op}: the matrix is structurally singular: of {a.n} rows and columns, {rank} can "
                "have pivots"
            )
    if ordering != "columns" and diagonal:
        both = both_ways(a.pattern)
        if ordering in ("amd", "dissection") or symmetry(a.pattern, both) >= _SYMMETRIC_SHARE:
            found = _fronts(a, both, ordering, False).factors(a, scales, False)
            if isinstance(found, Factors):
                return found
    return _left_looking(a, scales, column_order(a.pattern, ordering), share, op)


def cholesky_factors(a: Matrix, ordering: str, op: str) -> Factors:
    """Uᵀ D U of a symmetric positive definite matrix, whose upper triangle is read."""
    checked(a, op)
    scale = symmetric_scale(a)
    fronts = _fronts(a, both_ways(a.pattern), ordering, True)
    return _definite(fronts, a, (scale, scale), op)


def _definite(fronts: _Fronts, a: Matrix, scales: tuple[Array, Array], op: str) -> Factors:
    found = fronts.factors(a, scales, True)
    if not isinstance(found, Factors):
        raise LinAlgError(
            f"{op}: the matrix is not positive definite: pivot {found} is not positive"
        )
    return found


def repeated(factors: Factors, a: Matrix, equilibrate: bool, symmetric: bool, op: str) -> Factors:
    """Factors of other values on the same pattern: ordering and symbolic part are kept."""
    checked(a, op)
    known = factors.symbolic
    if symmetric:
        scale = symmetric_scale(a)
        return _definite(known, a, (scale, scale), op)
    scales = equilibrated(a) if equilibrate else (np.ones(a.n), np.ones(a.n))
    if isinstance(known, _Fronts):
        found = known.factors(a, scales, False)
        if isinstance(found, Factors):
            return found
        return _left_looking(a, scales, column_order(a.pattern, "auto"), 1.0, op)
    values = (a.values * scales[0][a.rows] * scales[1][a.columns])[known.values_order]
    again = known.columns.repeat(values)
    largest = 0.0 if again is None else float(np.abs(again.lower).max(initial=0.0))
    if again is None or not largest < _MAX_GROWTH:  # these pivots do not fit the values
        return _left_looking(a, scales, known.columns.order, known.columns.share, op)
    return replace(known, columns=again).factors(a, scales)


_MAX_GROWTH = 1e3  # of multipliers with pivots that were chosen for other values
