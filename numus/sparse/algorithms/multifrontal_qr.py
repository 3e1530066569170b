"""Multifrontal QR factorisation without Q (Matstoms 1994, Davis 2011): a dense front per supernode
of AᵀA holds the rows that begin in its columns and what its children leave, and is brought to
upper trapezoidal form by Householder reflections.

The structure is that of the Cholesky factor of AᵀA, which is found without forming it: the first
column of a row and the others of it, as edges, fill in alike (George & Heath 1980). A column of
which nothing is left is dead: R has no row for it (Heath 1982).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numus.codegen.cpu.sequential import FLOAT64, INDEX64, Array, sqrt
from numus.codegen.cpu.sequential_vectors import vector_fma, vector_load, vector_splat, vector_store
from numus.runtime.cpu.sequential import sequential
from numus.sparse.algorithms.elimination import Supernodes, analysed
from numus.sparse.algorithms.multifrontal import stack_peak


@sequential
def reflect(
    front: FLOAT64, pitch: int, rows: int, top: int, k: int, least: float, work: FLOAT64
) -> bool:
    """Eliminate column k below row `top`, unless its norm is at most `least`; whether it was."""
    largest = 0.0
    for i in range(top, rows):
        largest = max(largest, abs(front[i * pitch + k]))
    if not largest > least:
        for i in range(top, rows):
            front[i * pitch + k] = 0.0
        return False
    total = 0.0
    for i in range(top, rows):
        share = front[i * pitch + k] / largest
        total += share * share
    norm = largest * sqrt(total)
    if not norm > least:
        for i in range(top, rows):
            front[i * pitch + k] = 0.0
        return False
    alpha = front[top * pitch + k]
    beta = -norm if alpha > 0.0 else norm
    front[top * pitch + k] = alpha - beta
    scale = -1.0 / (norm * (norm + abs(alpha)))
    begin = k // 8 * 8
    empty = vector_splat(0.0)
    for j in range(begin, pitch, 8):
        vector_store(work, j, empty)
    for i in range(top, rows):
        factor = front[i * pitch + k]
        if factor != 0.0:  # rows of children begin further to the right
            v = vector_splat(factor)
            for j in range(begin, pitch, 8):
                x = vector_load(front, i * pitch + j)
                vector_store(work, j, vector_fma(v, x, vector_load(work, j)))
    for i in range(top, rows):
        factor = front[i * pitch + k] * scale
        if factor != 0.0:
            v = vector_splat(factor)
            for j in range(k + 1, min(begin + 8, pitch)):
                front[i * pitch + j] += factor * work[j]
            for j in range(begin + 8, pitch, 8):
                x = vector_load(front, i * pitch + j)
                vector_store(front, i * pitch + j, vector_fma(v, vector_load(work, j), x))
            front[i * pitch + k] = 0.0
    front[top * pitch + k] = beta
    return True


@sequential
def factorise_fronts(
    count: int, least: float, first: INDEX64, starts: INDEX64, rows: INDEX64, above: INDEX64,
    row_starts: INDEX64, row_order: INDEX64, pointers: INDEX64, columns: INDEX64,
    values: FLOAT64, front: FLOAT64, stack: FLOAT64, offsets: INDEX64, sizes: INDEX64,
    local: INDEX64, pending: INDEX64, work: FLOAT64, dead: INDEX64, r_starts: INDEX64,
    r_columns: INDEX64, r_values: FLOAT64,
) -> int:  # fmt: skip
    """All fronts. Row k of R is that of the k-th column that is not dead and begins with it; how
    many there are."""
    top = 0
    children = 0
    rank = 0
    at = 0
    for s in range(count):
        begin = first[s]
        width = first[s + 1] - begin
        below = starts[s + 1] - starts[s]
        side = width + below
        pitch = (side + 7) // 8 * 8
        own = rows[starts[s] :]
        for k in range(width):
            local[begin + k] = k
        for k in range(below):
            local[own[k]] = width + k
        height = 0
        for q in range(row_starts[s], row_starts[s + 1]):
            line = front[height * pitch :]
            for j in range(pitch):
                line[j] = 0.0
            for e in range(pointers[row_order[q]], pointers[row_order[q] + 1]):
                line[local[columns[e]]] += values[e]
            height += 1
        while children > 0 and above[pending[children - 1]] == s:
            children -= 1
            c = pending[children]
            wide = starts[c + 1] - starts[c]
            given = rows[starts[c] :]
            top = offsets[c]
            for i in range(sizes[c]):
                line = front[height * pitch :]
                block = stack[top + i * wide :]
                for j in range(pitch):
                    line[j] = 0.0
                for j in range(wide):
                    line[local[given[j]]] = block[j]
                height += 1
        live = 0
        for k in range(width):
            there = False
            if live < height:
                there = reflect(front, pitch, height, live, k, least, work)
            dead[begin + k] = 0 if there else 1
            if there:
                line = front[live * pitch :]
                for j in range(k, width):
                    r_columns[at] = begin + j
                    r_values[at] = line[j]
                    at += 1
                for j in range(below):
                    r_columns[at] = own[j]
                    r_values[at] = line[width + j]
                    at += 1
                live += 1
                rank += 1
                r_starts[rank] = at
        done = live
        for k in range(width, side):
            if done < height and reflect(front, pitch, height, done, k, 0.0, work):
                done += 1
        sizes[s] = done - live
        offsets[s] = top
        if done > live:
            for i in range(done - live):
                block = stack[top + i * below :]
                line = front[(live + i) * pitch + width :]
                for j in range(below):
                    block[j] = line[j]
            top += (done - live) * below
        if below > 0:
            pending[children] = s
            children += 1
    return rank


@dataclass(frozen=True)
class Rows:
    """R by rows, each of which begins with its own column, in the order of elimination."""

    starts: Array
    columns: Array
    values: Array
    live: Array  # the columns that have a row
    order: Array  # the original number of each column


@dataclass(frozen=True)
class QRPlan:
    """What the numeric phase needs besides values."""

    nodes: Supernodes
    pointers: Array
    columns: Array  # in the order of elimination
    row_starts: Array  # of the rows that begin in a supernode
    row_order: Array
    front_size: int
    stack_size: int
    room: int

    def numeric(self, values: Array, least: float) -> Rows:
        nodes = self.nodes
        count, n = nodes.first.size - 1, nodes.order.size
        widest = int((np.diff(nodes.first) + np.diff(nodes.starts)).max(initial=0))
        offsets, sizes, pending = (np.zeros(count + 1, np.int64) for _ in range(3))
        local, dead, starts = (np.zeros(n + 1, np.int64) for _ in range(3))
        columns, found = np.empty(self.room, np.int64), np.empty(self.room)
        rank = factorise_fronts(
            *(count, least, nodes.first, nodes.starts, nodes.rows, nodes.above, self.row_starts),
            *(self.row_order, self.pointers, self.columns, values, np.empty(self.front_size)),
            *(np.empty(self.stack_size), offsets, sizes, local, pending, np.empty(widest + 8)),
            *(dead, starts, columns, found),
        )
        starts = starts[: rank + 1].copy()
        end = int(starts[-1])
        live = np.flatnonzero(dead[:n] == 0)
        return Rows(starts, columns[:end].copy(), found[:end].copy(), live, nodes.order)


def planned(m: int, pointers: Array, indices: Array, order: Array) -> QRPlan:
    """For a pattern of m rows whose columns are eliminated in an order, which is refined."""
    n = order.size
    pointers = pointers.astype(np.int64)
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    counts = np.diff(pointers)
    full = np.flatnonzero(counts)

    def firsts(columns: Array) -> Array:
        """The first column of each row that has any."""
        if not full.size:
            return np.empty(0, np.int64)
        return np.minimum.reduceat(columns, pointers[full])

    columns = place[indices]
    one = np.repeat(firsts(columns), counts[full])
    off = one != columns
    edges = np.concatenate([one[off] * n + columns[off], columns[off] * n + one[off]])
    edges = np.unique(edges)
    starts = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(edges // max(n, 1), minlength=n), out=starts[1:])
    found = analysed(starts, edges % max(n, 1), np.arange(n))
    nodes = Supernodes(order[found.order], found.first, found.starts, found.rows, found.above)
    place[nodes.order] = np.arange(n)
    columns = place[indices]
    count = nodes.first.size - 1
    owner = np.repeat(np.arange(count), np.diff(nodes.first))[firsts(columns)]
    by_owner = np.argsort(owner, kind="stable")
    row_starts = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=count), out=row_starts[1:])
    width, below = np.diff(nodes.first), np.diff(nodes.starts)
    height = np.diff(row_starts)
    left = np.empty(count, np.int64)
    for s, parent in enumerate(nodes.above.tolist()):  # children come first
        left[s] = min(height[s], below[s])
        if parent >= 0:
            height[parent] += left[s]
    pitch = (width + below + 7) // 8 * 8
    peak = np.zeros(count, np.int64)
    stack_peak(count, nodes.above, left * below, np.empty(count + 1, np.int64), peak)
    return QRPlan(
        *(nodes, pointers, columns, row_starts, full[by_owner].astype(np.int64)),
        front_size=int((height * pitch).max(initial=0)) + 8,
        stack_size=int(peak.max(initial=0)) + 8,
        room=int((width * below + width * (width + 1) // 2).sum()),
    )
