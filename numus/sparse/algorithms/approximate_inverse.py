"""Sparse approximate inverses, SPAI (Grote & Huckle 1997): each column of M minimises
‖A m - e‖ on a pattern that grows by the columns of A that reduce the residual most.

The least-squares problem of a column is kept factorised by Gram–Schmidt's method, twice, to which
further columns are added. Of a complex matrix the real form is given, whose columns come in pairs:
they are added together, and one of each pair has the solution of both."""

from __future__ import annotations

import numpy as np

from numus.codegen.cpu.sequential import FLOAT64, INDEX64, Array, sqrt
from numus.runtime.cpu.sequential import sequential
from numus.sparse.pattern import Pattern

_DEPENDENT = 1e-10  # of a column's norm: what is left of one that others have


@sequential
def add_column(
    j: int, count: int, rows: int, pointers: INDEX64, indices: INDEX64, values: FLOAT64,
    row_of: INDEX64, place: INDEX64, pitch: int, q: FLOAT64, r: FLOAT64, width: int,
    residual: FLOAT64, target: FLOAT64,
) -> int:  # fmt: skip
    """Column j of A to an orthonormal basis; the new number of local rows, or -1 - rows where it
    depends on those that are there. target[count] is the coefficient of e."""
    for i in range(pointers[j], pointers[j + 1]):
        if place[indices[i]] < 0:
            place[indices[i]] = rows
            row_of[rows] = indices[i]
            residual[rows] = 0.0
            for k in range(count):
                q[k * pitch + rows] = 0.0
            rows += 1
    own = q[count * pitch :]
    for i in range(rows):
        own[i] = 0.0
    norm = 0.0
    for i in range(pointers[j], pointers[j + 1]):
        own[place[indices[i]]] += values[i]
        norm += values[i] * values[i]
    for k in range(count):
        r[k * width + count] = 0.0
    for _ in range(2):
        for k in range(count):
            other = q[k * pitch :]
            share = 0.0
            for i in range(rows):
                share += other[i] * own[i]
            for i in range(rows):
                own[i] -= share * other[i]
            r[k * width + count] += share
    left = 0.0
    for i in range(rows):
        left += own[i] * own[i]
    if not left > _DEPENDENT * _DEPENDENT * norm:
        return -1 - rows
    left = sqrt(left)
    r[count * width + count] = left
    for i in range(rows):
        own[i] = own[i] / left
    share = own[0]  # the first local row is that of the one in e
    target[count] = share
    for i in range(rows):
        residual[i] -= share * own[i]
    return rows


@sequential
def choose_columns(
    rows: int, add: int, pair: int, row_of: INDEX64, residual: FLOAT64, row_pointers: INDEX64,
    row_indices: INDEX64, pointers: INDEX64, indices: INDEX64, values: FLOAT64, place: INDEX64,
    seen: INDEX64, tag: int, chosen: INDEX64, gain: FLOAT64,
) -> int:  # fmt: skip
    """The columns of A that reduce the residual most, of those that reach it; how many. `seen` has
    the tag for columns that are there or were looked at."""
    count = 0
    for i in range(rows):
        if residual[i] == 0.0:
            continue
        for e in range(row_pointers[row_of[i]], row_pointers[row_of[i] + 1]):
            j = row_indices[e] // pair * pair
            if seen[j] == tag:
                continue
            seen[j] = tag
            own = 0.0
            for s in range(pair):
                along = 0.0
                norm = 0.0
                for p in range(pointers[j + s], pointers[j + s + 1]):
                    norm += values[p] * values[p]
                    at = place[indices[p]]
                    if at >= 0:
                        along += residual[at] * values[p]
                if along != 0.0:
                    own += along * along / norm
            if own == 0.0:
                continue
            at = min(count, add)  # insert into those that are sorted
            while at > 0 and (gain[at - 1] < own or (gain[at - 1] == own and chosen[at - 1] > j)):
                if at < add:
                    gain[at] = gain[at - 1]
                    chosen[at] = chosen[at - 1]
                at -= 1
            if at < add:
                gain[at] = own
                chosen[at] = j
                count = min(count + 1, add)
    return count


@sequential
def invert_columns(
    n: int, pair: int, tolerance: float, steps: int, add: int, width: int, pitch: int,
    pointers: INDEX64, indices: INDEX64, values: FLOAT64, row_pointers: INDEX64,
    row_indices: INDEX64, row_of: INDEX64, place: INDEX64, q: FLOAT64, r: FLOAT64,
    residual: FLOAT64, target: FLOAT64, seen: INDEX64, own: INDEX64, chosen: INDEX64,
    gain: FLOAT64, starts: INDEX64, rows: INDEX64, made: FLOAT64,
) -> None:  # fmt: skip
    """Columns of M: where each starts, its rows as they were added, and values."""
    for i in range(n):
        place[i] = -1
        seen[i] = -1
    tag = 0
    for k in range(0, n, pair):
        place[k] = 0
        row_of[0] = k
        residual[0] = 1.0
        local = 1
        count = 0
        fresh = 1
        chosen[0] = k
        step = 0
        while fresh > 0:
            for c in range(fresh * pair):
                j = chosen[c // pair] + c % pair
                found = add_column(
                    j, count, local, pointers, indices, values, row_of, place, pitch, q, r, width,
                    residual, target,
                )  # fmt: skip
                if found >= 0:
                    own[count] = j
                    count += 1
                    local = found
                else:
                    local = -1 - found
            norm = 0.0
            for i in range(local):
                norm += residual[i] * residual[i]
            fresh = 0
            if step < steps and sqrt(norm) > tolerance:
                step += 1
                for c in range(count):
                    seen[own[c] // pair * pair] = tag
                fresh = choose_columns(
                    local, add, pair, row_of, residual, row_pointers, row_indices, pointers,
                    indices, values, place, seen, tag, chosen, gain,
                )  # fmt: skip
                tag += 1
        at = starts[k // pair]
        for c in range(count - 1, -1, -1):
            total = target[c]
            for d in range(c + 1, count):
                total -= r[c * width + d] * made[at + d]
            made[at + c] = total / r[c * width + c]
            rows[at + c] = own[c]
        starts[k // pair + 1] = at + count
        for i in range(local):
            place[row_of[i]] = -1


def approximate_inverse(
    pattern: Pattern, given: Array, tolerance: float, steps: int, add: int, pair: int = 1
) -> tuple[Array, Array, Array]:
    """Starts, rows and values of the columns of M, for a canonical matrix by rows; with a `pair` of
    2, of the even columns alone, for a real form."""
    n = pattern.shape[0]
    swapped, order = pattern.transposed
    by_row, by_column = (
        (p.pointers.array.astype(np.int64), p.indices.array.astype(np.int64))
        for p in (pattern, swapped)
    )
    width = min(pair * (1 + steps * add), n) if n else 1
    longest = int(np.diff(by_column[0]).max(initial=0))
    pitch = min(n, width * longest) + 1
    count = n // pair
    starts = np.zeros(count + 1, np.int64)
    rows, made = (np.empty(count * width, t) for t in (np.int64, np.float64))
    row_of, place, seen = (np.empty(n + 1, np.int64) for _ in range(3))
    invert_columns(
        *(n, pair, tolerance, steps, add, width, pitch, *by_column, given[order.array], *by_row),
        *(row_of, place, np.empty((width + 1) * pitch), np.empty((width + 1) ** 2)),
        *(np.empty(pitch), np.empty(width + 1), seen, np.empty(width + 1, np.int64)),
        *(np.empty(max(add, 1), np.int64), np.empty(max(add, 1)), starts, rows, made),
    )
    return starts, rows[: starts[count]].copy(), made[: starts[count]].copy()
