"""linear_sum_assignment: the cheapest one-to-one assignment of rows to columns.

Shortest augmenting paths with dual variables (Jonker and Volgenant 1987, in Crouse's form of 2016).
The search along a path and its reversal are phases of one loop, so that a batch of problems runs
side by side, each in a phase of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numus as nm
from numus.errors import ShapeError
from numus.evaluation.evaluate import is_known
from numus.optimize.casting import cast
from numus.optimize.line_search import choose
from numus.tensor import Tensor

__all__ = ["linear_sum_assignment"]


class _Search(NamedTuple):
    u: Tensor  # of the rows
    v: Tensor  # of the columns
    column_of: Tensor
    row_of: Tensor
    current: Tensor  # the row that is being assigned
    row: Tensor  # where the search is
    length: Tensor  # of the path to there
    shortest: Tensor  # of the paths to the columns
    before: Tensor  # the row before each column on its path
    rows_seen: Tensor
    columns_seen: Tensor
    column: Tensor  # of the reversal; -1 during the search


def _at(x: Tensor, index: Tensor, positions: Tensor) -> Tensor:
    """One element, by a sum: the same everywhere on a device, and under vmap."""
    return cast(nm.sum(nm.where(positions == index, x, 0)), x.dtype)


def linear_sum_assignment(cost_matrix: Any, maximize: bool = False) -> tuple[Tensor, Tensor]:
    """Rows and columns whose entries have the smallest sum, each row and column at most once.

    The rows ascend. For a matrix of m x n there are min(m, n) of them.

    Args:
        cost_matrix: real numbers; infinite ones are never taken.
        maximize: find the largest sum.

    >>> cost = nm.asarray([[4, 1, 3], [2, 0, 5], [3, 2, 2]])
    >>> rows, columns = nm.optimize.linear_sum_assignment(cost)
    >>> columns.tolist(), cost[rows, columns].sum().item()
    ([1, 0, 2], 5)
    """
    op = "linear_sum_assignment"
    given = nm.asarray(cost_matrix)
    if given.ndim != 2:
        raise ShapeError(f"{op}: takes a matrix, not shape {given.shape}")
    if given.dtype.is_complex:
        raise TypeError(f"{op}: costs must be real, not {given.dtype.name}")
    cost = given.detach()
    if not cost.dtype.is_inexact:
        cost = cast(cost, nm.float64 if cost.dtype.itemsize > 2 else nm.float32)
    if is_known(cost._node) and cost.size and bool(nm.any(nm.isnan(cost) | (cost == -nm.inf))):
        raise ValueError(f"{op}: costs must be neither NaN nor -inf")
    cost = -cost if maximize else cost
    tall = cost.shape[0] > cost.shape[1]
    if tall:
        cost = cost.mT
    n = cost.shape[0]
    rows = nm.arange(n, dtype=nm.int64, device=cost.device)
    if n == 0:
        return rows, rows
    with nm.no_grad():
        found = _assigned(cost)
    if is_known(found._node) and bool(nm.any(found < 0)):
        raise ValueError(f"{op}: the cost matrix is infeasible: too many costs are infinite")
    columns = cast(found, nm.int64)
    if not tall:
        return rows, columns
    order = nm.argsort(columns)
    return columns[order], order


def _assigned(cost: Tensor) -> Tensor:
    """The column of each row, for at least as many columns as rows; -1 where there is none."""
    n, m = cost.shape
    rows, columns = nm.arange(n, device=cost.device), nm.arange(m, device=cost.device)
    zero = 0 * nm.sum(cost[0, :1])
    zero = nm.where(nm.isfinite(zero), zero, 0.0)
    far = nm.where(columns >= 0, nm.inf, zero)
    none = nm.zeros_like(zero, dtype=nm.int32) - 1

    def starting(s: _Search, current: Tensor) -> _Search:
        """The search for the path of another row."""
        return s._replace(
            current=current, row=current, length=nm.zeros_like(s.length),
            shortest=nm.full_like(s.shortest, nm.inf), before=nm.full_like(s.before, -1),
            rows_seen=nm.zeros_like(s.rows_seen), columns_seen=nm.zeros_like(s.columns_seen),
            column=nm.full_like(s.column, -1),
        )  # fmt: skip

    def search(s: _Search) -> _Search:
        seen = s.rows_seen | (rows == s.row)
        reduced = s.length + cost[s.row] - _at(s.u, s.row, rows) - s.v
        closer = nm.logical_not(s.columns_seen) & (reduced < s.shortest)
        shortest = nm.where(closer, reduced, s.shortest)
        before = cast(nm.where(closer, s.row, s.before), nm.int32)
        open_columns = nm.where(s.columns_seen, nm.inf, shortest)
        column = cast(nm.argmin(open_columns), nm.int32)
        length = nm.min(open_columns)
        taken = s.columns_seen | (columns == column)
        owner = _at(s.row_of, column, columns)
        on = s._replace(
            row=nm.maximum(owner, 0), length=length, shortest=shortest, before=before,
            rows_seen=seen, columns_seen=taken,
        )  # fmt: skip
        # at a free column: new dual variables, then the path is reversed
        own = rows == s.current
        assigned = nm.sum(
            nm.where(
                columns == nm.expand_dims(s.column_of, 1), nm.where(taken, shortest, 0.0), 0.0
            ),
            axis=1,
        )
        shift = nm.where(own, length, nm.where(seen, length - assigned, 0.0))
        ended = on._replace(
            u=s.u + shift,
            v=s.v - nm.where(taken, length - nm.where(taken, shortest, 0.0), 0.0),
            column=column,
        )
        stuck = nm.isinf(length)  # no path: the row stays without a column
        skipped = starting(s, cast(s.current + 1, nm.int32))
        return choose(stuck, skipped, choose(owner < 0, ended, on))

    def reverse(s: _Search) -> _Search:
        row = _at(s.before, s.column, columns)
        following = _at(s.column_of, row, rows)
        new = s._replace(
            row_of=cast(nm.where(columns == s.column, row, s.row_of), nm.int32),
            column_of=cast(nm.where(rows == row, s.column, s.column_of), nm.int32),
            column=following,
        )
        return choose(row == s.current, starting(new, cast(s.current + 1, nm.int32)), new)

    blank_rows = nm.zeros_like(rows, dtype=nm.int32) + none
    blank_columns = nm.zeros_like(columns, dtype=nm.int32) + none
    s = _Search(
        cast(rows, cost.dtype) * 0 + zero, cast(columns, cost.dtype) * 0 + zero,
        blank_rows, blank_columns, none + 1, none + 1, zero, cast(far, cost.dtype),
        blank_columns, blank_rows >= 0, blank_columns >= 0, none,
    )  # fmt: skip
    s = nm.while_loop(
        lambda s: s.current < n, lambda s: choose(s.column < 0, search(s), reverse(s)), s
    )
    return s.column_of
