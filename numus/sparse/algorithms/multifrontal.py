"""Multifrontal factorisation (Duff & Reid 1983): a dense front per supernode, in which what its
children leave is added up, its columns are eliminated in blocks, and the rest goes to its parent.

Fronts are row-major; their rows have a multiple of eight elements. Pivots are searched in the rows
of a supernode; where none is large enough against its column, the factorisation says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numus.codegen.cpu.sequential import FLOAT64, INDEX64, Array
from numus.codegen.cpu.sequential_vectors import vector_fma, vector_load, vector_splat, vector_store
from numus.runtime.cpu.sequential import sequential
from numus.sparse.algorithms.elimination import Supernodes

BLOCK = 48  # columns that are eliminated before the rest of a front is updated
PIVOT_SHARE = 0.1  # of the largest element of a column that suffices for a pivot


@sequential
def update(
    front: FLOAT64, pitch: int, low: int, high: int, left: int, right: int, rows: int,
    panel: FLOAT64, symmetric: bool,
) -> None:  # fmt: skip
    """front[left:rows, left:right] -= front[left:rows, low:high] front[low:high, left:right], of a
    multiple of eight columns; with `symmetric`, on and above the diagonal alone."""
    depth = high - low
    at = left
    while at < right:
        wide = 16 if at + 16 <= right else 8
        for k in range(depth):  # a strip of the rows, contiguous
            source = (low + k) * pitch + at
            vector_store(panel, k * 16, vector_load(front, source))
            if wide == 16:
                vector_store(panel, k * 16 + 8, vector_load(front, source + 8))
        stop = min(rows, at + wide) if symmetric else rows
        i = left
        if wide == 16:
            while i + 4 <= stop:
                a = i * pitch + low
                b = a + pitch
                c = b + pitch
                d = c + pitch
                a0 = vector_splat(0.0)
                a1 = a0
                b0 = a0
                b1 = a0
                c0 = a0
                c1 = a0
                d0 = a0
                d1 = a0
                for k in range(depth):
                    x = vector_load(panel, k * 16)
                    y = vector_load(panel, k * 16 + 8)
                    factor = vector_splat(front[a + k])
                    a0 = vector_fma(factor, x, a0)
                    a1 = vector_fma(factor, y, a1)
                    factor = vector_splat(front[b + k])
                    b0 = vector_fma(factor, x, b0)
                    b1 = vector_fma(factor, y, b1)
                    factor = vector_splat(front[c + k])
                    c0 = vector_fma(factor, x, c0)
                    c1 = vector_fma(factor, y, c1)
                    factor = vector_splat(front[d + k])
                    d0 = vector_fma(factor, x, d0)
                    d1 = vector_fma(factor, y, d1)
                to = i * pitch + at
                vector_store(front, to, vector_load(front, to) - a0)
                vector_store(front, to + 8, vector_load(front, to + 8) - a1)
                to += pitch
                vector_store(front, to, vector_load(front, to) - b0)
                vector_store(front, to + 8, vector_load(front, to + 8) - b1)
                to += pitch
                vector_store(front, to, vector_load(front, to) - c0)
                vector_store(front, to + 8, vector_load(front, to + 8) - c1)
                to += pitch
                vector_store(front, to, vector_load(front, to) - d0)
                vector_store(front, to + 8, vector_load(front, to + 8) - d1)
                i += 4
        while i < stop:
            a = i * pitch + low
            to = i * pitch + at
            x = vector_load(front, to)
            for k in range(depth):
                x = x - vector_splat(front[a + k]) * vector_load(panel, k * 16)
            vector_store(front, to, x)
            if wide == 16:
                y = vector_load(front, to + 8)
                for k in range(depth):
                    y = y - vector_splat(front[a + k]) * vector_load(panel, k * 16 + 8)
                vector_store(front, to + 8, y)
            i += 1
        at += wide


@sequential
def choose_pivot(front: FLOAT64, pitch: int, k: int, width: int, rows: int, symmetric: bool) -> int:
    """The row of the pivot of column k, -1 where none is large enough."""
    own = abs(front[k * pitch + k])
    if symmetric:
        return k if front[k * pitch + k] > 0.0 else -1
    best = k
    largest = own
    for i in range(k + 1, width):
        if abs(front[i * pitch + k]) > largest:
            largest = abs(front[i * pitch + k])
            best = i
    most = largest
    for i in range(width, rows):
        most = max(most, abs(front[i * pitch + k]))
    if own >= PIVOT_SHARE * most and own > 0.0:
        return k
    if largest >= PIVOT_SHARE * most and largest > 0.0:
        return best
    return -1


@sequential
def factor_front(
    front: FLOAT64, pitch: int, width: int, rows: int, panel: FLOAT64, pivots: INDEX64,
    symmetric: bool,
) -> int:  # fmt: skip
    """Eliminate the first columns of a front; -1, or the column that has no pivot.

    Rows of U are whole; the multipliers stand below them. `pivots` are exchanged with.
    """
    low = 0
    while low < width:
        high = min(low + BLOCK, width)
        for k in range(low, high):
            own = choose_pivot(front, pitch, k, width, rows, symmetric)
            if own < 0:
                return k
            pivots[k] = own
            if own != k:
                for j in range(0, pitch, 8):
                    x = vector_load(front, k * pitch + j)
                    vector_store(front, k * pitch + j, vector_load(front, own * pitch + j))
                    vector_store(front, own * pitch + j, x)
            inverse = 1.0 / front[k * pitch + k]
            stop = high if symmetric else rows
            for i in range(k + 1, stop):
                if symmetric:
                    factor = front[k * pitch + i] * inverse
                else:
                    factor = front[i * pitch + k] * inverse
                front[i * pitch + k] = factor
                if factor != 0.0:
                    for j in range(k + 1, high):
                        front[i * pitch + j] -= factor * front[k * pitch + j]
        # rows of the block beyond it, then the rest
        from_column = high // 8 * 8
        for k in range(low, high):
            for i in range(k + 1, high):
                factor = front[i * pitch + k]
                if factor != 0.0:
                    for j in range(high, min(from_column + 8, pitch)):
                        front[i * pitch + j] -= factor * front[k * pitch + j]
                    minus = vector_splat(-factor)
                    for j in range(from_column + 8, pitch, 8):
                        x = vector_load(front, i * pitch + j)
                        y = vector_load(front, k * pitch + j)
                        vector_store(front, i * pitch + j, vector_fma(minus, y, x))
        if symmetric:
            for k in range(low, high):
                inverse = 1.0 / front[k * pitch + k]
                for i in range(high, rows):
                    front[i * pitch + k] = front[k * pitch + i] * inverse
        if high < rows:
            # columns up to the next multiple of eight one by one
            start = (high + 7) // 8 * 8
            for i in range(high, rows):
                stop = min(start, pitch)
                for j in range(high, stop):
                    total = front[i * pitch + j]
                    for k in range(low, high):
                        total -= front[i * pitch + k] * front[k * pitch + j]
                    front[i * pitch + j] = total
            if start < pitch:
                update_rest(front, pitch, low, high, start, rows, panel, symmetric)
        low = high
    return -1


@sequential
def update_rest(
    front: FLOAT64, pitch: int, low: int, high: int, start: int, rows: int, panel: FLOAT64,
    symmetric: bool,
) -> None:  # fmt: skip
    """The columns from a multiple of eight on."""
    update(front, pitch, low, high, start, pitch, rows, panel, symmetric)
    for i in range(high, min(start, rows)):  # rows that `update` does not start with
        for j in range(start, pitch, 8):
            x = vector_load(front, i * pitch + j)
            for k in range(low, high):
                factor = vector_splat(-front[i * pitch + k])
                x = vector_fma(factor, vector_load(front, k * pitch + j), x)
            vector_store(front, i * pitch + j, x)


@sequential
def factorise(
    count: int, first: INDEX64, starts: INDEX64, rows: INDEX64, above: INDEX64, entries: INDEX64,
    source: INDEX64, place: INDEX64, values: FLOAT64, front: FLOAT64, stack: FLOAT64,
    offsets: INDEX64, local: INDEX64, pending: INDEX64, panel: FLOAT64, pivots: INDEX64,
    row_starts: INDEX64, upper: FLOAT64, lower: FLOAT64, diagonal: FLOAT64, largest: FLOAT64,
    symmetric: bool,
) -> int:  # fmt: skip
    """All fronts; -1, or the column that has no pivot.

    Entry e of supernode s adds values[source[e]] at place[e] of its front. Results: rows of U
    without diagonal and divided by it, columns of L in the same pattern, the diagonal of U and
    its largest element.
    """
    top = 0  # of the stack of what children leave
    most = 0.0
    children = 0
    for s in range(count):
        begin = first[s]
        width = first[s + 1] - begin
        below = starts[s + 1] - starts[s]
        side = width + below
        pitch = (side + 7) // 8 * 8
        own = rows[starts[s] :]
        empty = vector_splat(0.0)
        for i in range(0, side * pitch, 8):
            vector_store(front, i, empty)
        for e in range(entries[s], entries[s + 1]):
            front[place[e]] += values[source[e]]
        for k in range(width):
            local[begin + k] = k
        for k in range(below):
            local[own[k]] = width + k
        while children > 0 and above[pending[children - 1]] == s:
            children -= 1
            c = pending[children]
            size = starts[c + 1] - starts[c]
            given = rows[starts[c] :]
            top = offsets[c]
            block = stack[top:]
            for i in range(size):
                to = local[given[i]] * pitch
                line = block[i * size :]
                for j in range(i if symmetric else 0, size):
                    front[to + local[given[j]]] += line[j]
        failed = factor_front(front, pitch, width, side, panel, pivots[begin:], symmetric)
        if failed >= 0:
            return begin + failed
        for k in range(width):
            at = row_starts[begin + k]
            own_diagonal = front[k * pitch + k]
            diagonal[begin + k] = own_diagonal
            inverse = 1.0 / own_diagonal
            most = max(most, abs(own_diagonal))
            for j in range(k + 1, side):
                most = max(most, abs(front[k * pitch + j]))
                upper[at + j - k - 1] = front[k * pitch + j] * inverse
            if not symmetric:
                for j in range(k + 1, side):
                    lower[at + j - k - 1] = front[j * pitch + k]
        if below > 0:
            offsets[s] = top
            for i in range(below):
                line = stack[top + i * below :]
                rest = front[(width + i) * pitch + width :]
                for j in range(below):
                    line[j] = rest[j]
            top += below * below
            pending[children] = s
            children += 1
    largest[0] = most
    return -1


@sequential
def strict_pattern(
    count: int, first: INDEX64, starts: INDEX64, rows: INDEX64, row_starts: INDEX64,
    columns: INDEX64,
) -> None:  # fmt: skip
    """The columns of each row of U without diagonal."""
    for s in range(count):
        for k in range(first[s], first[s + 1]):
            at = row_starts[k]
            for j in range(k + 1, first[s + 1]):
                columns[at] = j
                at += 1
            for e in range(starts[s], starts[s + 1]):
                columns[at] = rows[e]
                at += 1


@sequential
def find_places(
    count: int, first: INDEX64, starts: INDEX64, rows: INDEX64, entries: INDEX64, row: INDEX64,
    column: INDEX64, local: INDEX64, place: INDEX64,
) -> None:  # fmt: skip
    """Where entries, in the order of their supernodes, are in the fronts."""
    for s in range(count):
        width = first[s + 1] - first[s]
        side = width + starts[s + 1] - starts[s]
        pitch = (side + 7) // 8 * 8
        for k in range(width):
            local[first[s] + k] = k
        for e in range(starts[s], starts[s + 1]):
            local[rows[e]] = width + e - starts[s]
        for e in range(entries[s], entries[s + 1]):
            place[e] = local[row[e]] * pitch + local[column[e]]


@dataclass(frozen=True)
class Plan:
    """What the numeric phase needs besides values."""

    nodes: Supernodes
    entries: Array
    source: Array
    place: Array
    row_starts: Array
    front_size: int
    stack_size: int

    def columns(self) -> Array:
        """Of each row of U without diagonal."""
        nodes = self.nodes
        found = np.empty(int(self.row_starts[-1]), np.int64)
        strict_pattern(
            *(nodes.first.size - 1, nodes.first, nodes.starts, nodes.rows),
            *(self.row_starts, found),
        )
        return found

    def numeric(
        self, values: Array, symmetric: bool
    ) -> tuple[int, Array, Array, Array, Array, float]:
        """-1 or the column without a pivot; rows of U, columns of L, the diagonal, row exchanges
        within supernodes, the largest element of U."""
        nodes = self.nodes
        count, n = nodes.first.size - 1, nodes.order.size
        total = int(self.row_starts[-1])
        upper, diagonal = np.empty(total), np.empty(n)
        lower = upper if symmetric else np.empty(total)
        pivots, largest = np.empty(n, np.int64), np.zeros(1)
        failed = factorise(
            *(count, nodes.first, nodes.starts, nodes.rows, nodes.above, self.entries),
            *(self.source, self.place, values, np.empty(self.front_size)),
            *(np.empty(self.stack_size), *(np.empty(max(count, n), np.int64) for _ in range(3))),
            *(np.empty(BLOCK * 16), pivots, self.row_starts, upper, lower, diagonal),
            *(largest, symmetric),
        )
        return failed, upper, lower, diagonal, pivots, float(largest[0])


def planned(nodes: Supernodes, row: Array, column: Array, symmetric: bool) -> Plan:
    """For entries at (row, column); with `symmetric`, those below the diagonal are left out."""
    n, count = nodes.order.size, nodes.first.size - 1
    inverse = np.empty(n, np.int64)
    inverse[nodes.order] = np.arange(n)
    i, j = inverse[row], inverse[column]
    owner = np.repeat(np.arange(count), np.diff(nodes.first))[np.minimum(i, j)]
    if symmetric:
        keep = np.flatnonzero(i <= j)
        order = keep[np.argsort(owner[keep], kind="stable")]
    else:
        order = np.argsort(owner, kind="stable")
    entries = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(owner[order], minlength=count), out=entries[1:])
    place, local = np.empty(order.size, np.int64), np.empty(n, np.int64)
    find_places(
        *(count, nodes.first, nodes.starts, nodes.rows, entries, i[order], j[order], local, place)
    )
    width, below = np.diff(nodes.first), np.diff(nodes.starts)
    side = width + below
    ends = np.repeat(nodes.first[1:] + below, width)
    row_starts = np.zeros(n + 1, np.int64)
    np.cumsum(ends - np.arange(n) - 1, out=row_starts[1:])
    front = int((side * ((side + 7) // 8 * 8)).max(initial=0)) + 8
    return Plan(
        *(nodes, entries, order.astype(np.int64), place, row_starts, front),
        _stack_size(nodes.above, below * below),
    )


def _stack_size(above: Array, sizes: Array) -> int:
    """The most elements that wait for their parents at a time, in a postorder."""
    size = np.zeros(above.size, np.int64)
    stack_peak(above.size, above, sizes.astype(np.int64), np.empty(above.size, np.int64), size)
    return int(size.max(initial=0)) + 8


@sequential
def stack_peak(count: int, above: INDEX64, sizes: INDEX64, pending: INDEX64, peak: INDEX64) -> None:
    top = 0
    children = 0
    for s in range(count):
        while children > 0 and above[pending[children - 1]] == s:
            children -= 1
            top -= sizes[pending[children]]
        if sizes[s] > 0:
            top += sizes[s]
            pending[children] = s
            children += 1
        peak[s] = top
