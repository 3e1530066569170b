"""Left-looking LU factorisation with partial pivoting (Gilbert & Peierls 1988).

Column k of the factors solves a triangular system with the columns before, of which a depth-first
search finds those that matter, in a topological order: the time is that of the arithmetic.
"""

from __future__ import annotations

import numpy as np

from numus.codegen.cpu.sequential import FLOAT64, INDEX64, Array
from numus.runtime.cpu.sequential import sequential

_FIRST_FILL = 6  # times the entries of the matrix, for each factor at first


@sequential
def reach(
    root: int, top: int, tag: int, pivot_of: INDEX64, lower_starts: INDEX64, lower_rows: INDEX64,
    mark: INDEX64, stack: INDEX64, place: INDEX64, found: INDEX64,
) -> int:  # fmt: skip
    """Rows that a row leads to by columns of L, put before `top` in a topological order."""
    depth = 0
    stack[0] = root
    place[0] = -1
    while depth >= 0:
        row = stack[depth]
        column = pivot_of[row]
        if mark[row] != tag:
            mark[row] = tag
            place[depth] = lower_starts[column] if column >= 0 else 0
        done = True
        if column >= 0:
            p = place[depth]
            end = lower_starts[column + 1]
            while p < end:
                other = lower_rows[p]
                p += 1
                if mark[other] != tag:
                    place[depth] = p
                    depth += 1
                    stack[depth] = other
                    done = False
                    break
        if done:
            depth -= 1
            top -= 1
            found[top] = row
    return top


@sequential
def eliminate_columns(
    n: int, begin: int, pointers: INDEX64, indices: INDEX64, values: FLOAT64, order: INDEX64,
    share: float, room: int, pivot_of: INDEX64, lower_starts: INDEX64, lower_rows: INDEX64,
    lower: FLOAT64, upper_starts: INDEX64, upper_rows: INDEX64, upper: FLOAT64, diagonal: FLOAT64,
    x: FLOAT64, mark: INDEX64, stack: INDEX64, place: INDEX64, found: INDEX64,
) -> int:  # fmt: skip
    """Columns from `begin` on; n where all are done, the next one where room ends, and -1 - k where
    column k has no pivot. Rows of L are those of the matrix, rows of U are pivots."""
    for k in range(begin, n):
        at = lower_starts[k]
        to = upper_starts[k]
        if at + n > room or to + n > room:
            return k
        own = order[k]
        top = n
        for e in range(pointers[own], pointers[own + 1]):
            if mark[indices[e]] != k:
                top = reach(
                    indices[e], top, k, pivot_of, lower_starts, lower_rows, mark, stack, place,
                    found,
                )  # fmt: skip
        for p in range(top, n):
            x[found[p]] = 0.0
        for e in range(pointers[own], pointers[own + 1]):
            x[indices[e]] += values[e]
        most = 0.0
        best = -1
        for p in range(top, n):
            row = found[p]
            column = pivot_of[row]
            now = x[row]
            if column < 0:
                if abs(now) > most:
                    most = abs(now)
                    best = row
                continue
            upper_rows[to] = column
            upper[to] = now
            to += 1
            for q in range(lower_starts[column], lower_starts[column + 1]):
                x[lower_rows[q]] -= lower[q] * now
        # rows that were updated after they were looked at
        for p in range(top, n):
            row = found[p]
            if pivot_of[row] < 0 and abs(x[row]) > most:
                most = abs(x[row])
                best = row
        if best < 0:
            return -1 - k
        if mark[own] == k and pivot_of[own] < 0 and abs(x[own]) >= share * abs(x[best]):
            best = own
        pivot = x[best]
        if pivot == 0.0:
            return -1 - k
        pivot_of[best] = k
        diagonal[k] = pivot
        for p in range(top, n):
            row = found[p]
            if pivot_of[row] < 0:
                lower_rows[at] = row
                lower[at] = x[row] / pivot
                at += 1
        lower_starts[k + 1] = at
        upper_starts[k + 1] = to
    return n


@sequential
def repeat_columns(
    n: int, pointers: INDEX64, indices: INDEX64, values: FLOAT64, order: INDEX64,
    pivot_of: INDEX64, lower_starts: INDEX64, lower_rows: INDEX64, lower: FLOAT64,
    upper_starts: INDEX64, upper_rows: INDEX64, upper: FLOAT64, diagonal: FLOAT64, x: FLOAT64,
) -> int:  # fmt: skip
    """The same factors for other values, without search or choice; rows of L are pivots too.
    n, or -1 - k where pivot k vanishes."""
    for k in range(n):
        for q in range(lower_starts[k], lower_starts[k + 1]):
            x[lower_rows[q]] = 0.0
        for q in range(upper_starts[k], upper_starts[k + 1]):
            x[upper_rows[q]] = 0.0
        x[k] = 0.0
        own = order[k]
        for e in range(pointers[own], pointers[own + 1]):
            x[pivot_of[indices[e]]] += values[e]
        for q in range(upper_starts[k], upper_starts[k + 1]):
            column = upper_rows[q]
            now = x[column]
            upper[q] = now
            for p in range(lower_starts[column], lower_starts[column + 1]):
                x[lower_rows[p]] -= lower[p] * now
        pivot = x[k]
        if pivot == 0.0:
            return -1 - k
        diagonal[k] = pivot
        for q in range(lower_starts[k], lower_starts[k + 1]):
            lower[q] = x[lower_rows[q]] / pivot
    return n


class Columns:
    """L and U by columns, of a matrix by columns (pointers, indices) in an order of them."""

    def __init__(self, pointers: Array, indices: Array, order: Array, share: float) -> None:
        self.pointers, self.indices = pointers.astype(np.int64), indices.astype(np.int64)
        self.order, self.share = order.astype(np.int64), share

    def factorise(self, values: Array) -> int:
        """n, or -1 - k where column k has no pivot; sets the attributes."""
        n = self.order.size
        room = _FIRST_FILL * self.indices.size + 4 * n + 16
        starts = [np.zeros(n + 1, np.int64) for _ in range(2)]
        rows = [np.empty(room, np.int64) for _ in range(2)]
        factors = [np.empty(room) for _ in range(2)]
        self.pivot_of = np.full(n, -1, np.int64)
        self.diagonal = np.empty(n)
        x, mark = np.empty(n), np.full(n, -1, np.int64)
        stack, place, found = (np.empty(n, np.int64) for _ in range(3))
        at = 0
        while True:
            at = eliminate_columns(
                *(n, at, self.pointers, self.indices, values, self.order, self.share, room),
                *(self.pivot_of, starts[0], rows[0], factors[0], starts[1], rows[1], factors[1]),
                *(self.diagonal, x, mark, stack, place, found),
            )
            if at < 0 or at == n:
                break
            room = 2 * room + n
            rows = [np.concatenate([r, np.empty(room - r.size, np.int64)]) for r in rows]
            factors = [np.concatenate([f, np.empty(room - f.size)]) for f in factors]
            mark[:] = -1
        if at < 0:
            return at
        (self.lower_starts, self.upper_starts) = starts
        ends = [int(s[-1]) for s in starts]
        self.lower_rows = self.pivot_of[rows[0][: ends[0]]]
        self.upper_rows = rows[1][: ends[1]].copy()
        self.lower, self.upper = (f[:e].copy() for f, e in zip(factors, ends, strict=True))
        return n

    def repeat(self, values: Array) -> Columns | None:
        """The factors of other values with the same pivots; None where one vanishes."""
        found = Columns(self.pointers, self.indices, self.order, self.share)
        found.__dict__.update(self.__dict__)
        found.lower, found.upper = np.empty_like(self.lower), np.empty_like(self.upper)
        found.diagonal = np.empty_like(self.diagonal)
        n = self.order.size
        end = repeat_columns(
            *(n, self.pointers, self.indices, values, self.order, self.pivot_of),
            *(self.lower_starts, self.lower_rows, found.lower, self.upper_starts, self.upper_rows),
            *(found.upper, found.diagonal, np.empty(n)),
        )
        return found if end == n else None
