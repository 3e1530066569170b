"""Elimination trees (Liu 1990) and supernodes of symmetric patterns, relaxed (Ashcraft & Grimes
1989): the symbolic phase of factorisations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numus.codegen.cpu.sequential import INDEX64, Array
from numus.runtime.cpu.sequential import sequential


@sequential
def elimination_tree(
    n: int, pointers: INDEX64, indices: INDEX64, parent: INDEX64, ancestor: INDEX64
) -> None:
    """The parent of each column in the tree of a symmetric pattern by rows."""
    for row in range(n):
        parent[row] = -1
        ancestor[row] = -1
        for e in range(pointers[row], pointers[row + 1]):
            i = indices[e]
            while i != -1 and i < row:
                up = ancestor[i]
                ancestor[i] = row
                if up == -1:
                    parent[i] = row
                i = up


@sequential
def postorder(
    n: int, parent: INDEX64, head: INDEX64, after: INDEX64, stack: INDEX64, order: INDEX64
) -> None:
    """Children before parents, subtrees together."""
    for i in range(n):
        head[i] = -1
    for i in range(n - 1, -1, -1):
        if parent[i] != -1:
            after[i] = head[parent[i]]
            head[parent[i]] = i
    count = 0
    for root in range(n):
        if parent[root] != -1:
            continue
        top = 0
        stack[0] = root
        while top >= 0:
            i = stack[top]
            child = head[i]
            if child == -1:
                order[count] = i
                count += 1
                top -= 1
            else:
                head[i] = after[child]
                top += 1
                stack[top] = child


@sequential
def column_counts(
    n: int, pointers: INDEX64, indices: INDEX64, parent: INDEX64, mark: INDEX64, counts: INDEX64
) -> None:
    """Elements of each column of the factor, with its diagonal, by the subtrees of rows."""
    for i in range(n):
        counts[i] = 1
        mark[i] = -1
    for row in range(n):
        mark[row] = row
        for e in range(pointers[row], pointers[row + 1]):
            i = indices[e]
            while i < row and mark[i] != row:
                counts[i] += 1
                mark[i] = row
                i = parent[i]


@sequential
def supernodes(n: int, parent: INDEX64, counts: INDEX64, first: INDEX64, zeros: INDEX64) -> int:
    """Columns of equal structure in sequence, and more where few zeros come with them; where each
    begins. `zeros` counts those that are stored."""
    count = 0
    at = 0
    while at < n:
        end = at + 1
        while end < n and parent[end - 1] == end and counts[end - 1] == counts[end] + 1:
            end += 1
        first[count] = at
        zeros[count] = 0
        stop = end
        # join with what stands before, its last child
        while count > 0:
            before = first[count - 1]
            own = first[count]
            width, below = own - before, counts[own - 1] - 1
            joined = parent[own - 1]
            if joined < own or joined >= stop:
                break
            rows = stop - own + counts[stop - 1] - 1  # of a column of this one
            new = zeros[count - 1] + zeros[count] + width * (rows - below)
            wide = stop - before
            size = wide * (wide + 1) // 2 + wide * (counts[stop - 1] - 1)
            share = float(new) / float(size)
            fits = wide <= 4 or (wide <= 16 and share < 0.8)
            if not (fits or (wide <= 48 and share < 0.1) or share < 0.05):
                break
            count -= 1
            zeros[count] = new
        count += 1
        at = end
    first[count] = n
    return count


@sequential
def supernode_rows(
    n: int, pointers: INDEX64, indices: INDEX64, owner: INDEX64, above: INDEX64, mark: INDEX64,
    places: INDEX64, rows: INDEX64,
) -> None:  # fmt: skip
    """The rows below each supernode, in order; `places` has where the next of each goes."""
    for row in range(n):
        own = owner[row]
        for e in range(pointers[row], pointers[row + 1]):
            if indices[e] >= row:
                continue
            s = owner[indices[e]]
            while s != own and mark[s] != row:
                mark[s] = row
                rows[places[s]] = row
                places[s] += 1
                s = above[s]


@dataclass(frozen=True)
class Supernodes:
    """Columns first[s] … first[s + 1] - 1 have the rows rows[starts[s]] … below them."""

    order: Array  # the original number of each row
    first: Array
    starts: Array
    rows: Array
    above: Array  # the parent of each, -1 for roots


def permuted(pointers: Array, indices: Array, order: Array) -> tuple[Array, Array]:
    """A pattern with rows and columns in another order; columns are not sorted."""
    inverse = np.empty(order.size, np.int64)
    inverse[order] = np.arange(order.size)
    counts = np.diff(pointers)[order]
    starts = np.zeros(order.size + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    at = np.arange(int(starts[-1])) + np.repeat(pointers[:-1][order] - starts[:-1], counts)
    return starts, inverse[indices[at]]


def analysed(pointers: Array, indices: Array, order: Array) -> Supernodes:
    """The supernodes of a symmetric pattern that is eliminated in an order, which is refined to a
    postorder of the elimination tree."""
    n = order.size
    parent, a, b, c, post = (np.empty(n + 1, np.int64) for _ in range(5))
    elimination_tree(n, *permuted(pointers, indices, order), parent, a)
    postorder(n, parent, a, b, c, post)
    order = order[post[:n]]
    by_row = permuted(pointers, indices, order)
    elimination_tree(n, *by_row, parent, a)
    counts = np.empty(n, np.int64)
    column_counts(n, *by_row, parent, a, counts)
    first = np.empty(n + 1, np.int64)
    count = supernodes(n, parent, counts, first, b)
    first = first[: count + 1].copy()
    last = first[1:] - 1
    owner = np.repeat(np.arange(count), np.diff(first))
    above = np.where(parent[last] >= 0, owner[parent[last]], -1)
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(counts[last] - 1, out=starts[1:])
    rows = np.empty(int(starts[-1]), np.int64)
    a[:] = -1
    supernode_rows(n, *by_row, owner, above, a, starts[:-1].copy(), rows)
    return Supernodes(order, first, starts, rows, above)
