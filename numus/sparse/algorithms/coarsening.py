"""Classical coarsening (Ruge & Stüben 1987): strong couplings, and a splitting into coarse and fine
points by which every fine point depends on coarse ones.

Couplings are flags on the entries of a matrix, or of its transpose.
"""

from __future__ import annotations

import numpy as np

from numus.codegen.cpu.sequential import INDEX32, INDEX64, NUMBERS, Array
from numus.runtime.cpu.sequential import sequential
from numus.sparse.pattern import Pattern

FINE, COARSE, OPEN = 0, 1, 2


@sequential
def find_strong(
    n: int, theta: float, pointers: INDEX64, indices: INDEX32, values: NUMBERS, strong: INDEX32
) -> None:
    """Entries off the diagonal of at least theta times the largest of their row."""
    for row in range(n):
        largest = 0.0
        for e in range(pointers[row], pointers[row + 1]):
            if indices[e] != row:
                largest = max(largest, abs(values[e]))
        for e in range(pointers[row], pointers[row + 1]):
            size = abs(values[e])
            there = indices[e] != row and size > 0.0 and size >= theta * largest
            strong[e] = 1 if there else 0


@sequential
def move_to(
    i: int, old: int, new: int, head: INDEX64, tail: INDEX64, after: INDEX64, before: INDEX64
) -> None:
    """From one list of points to the end of another; -1 is no list."""
    if old >= 0:
        if before[i] >= 0:
            after[before[i]] = after[i]
        else:
            head[old] = after[i]
        if after[i] >= 0:
            before[after[i]] = before[i]
        else:
            tail[old] = before[i]
    if new >= 0:
        after[i] = -1
        before[i] = tail[new]
        if tail[new] >= 0:
            after[tail[new]] = i
        else:
            head[new] = i
        tail[new] = i


@sequential
def split_points(
    n: int, pointers: INDEX64, indices: INDEX32, strong: INDEX32, back_pointers: INDEX64,
    back_indices: INDEX32, back_strong: INDEX32, weight: INDEX64, head: INDEX64, tail: INDEX64,
    after: INDEX64, before: INDEX64, kind: INDEX64,
) -> None:  # fmt: skip
    """The first pass: the open point that most others depend on becomes coarse, those fine; what
    these depend on weighs more."""
    for i in range(2 * n + 1):
        head[i] = -1
        tail[i] = -1
    most = 0
    for i in range(n):
        weight[i] = 0
        for e in range(back_pointers[i], back_pointers[i + 1]):
            weight[i] += back_strong[e]
        kind[i] = OPEN
        if weight[i] == 0:
            kind[i] = FINE
        else:
            move_to(i, -1, weight[i], head, tail, after, before)
            most = max(most, weight[i])
    while most > 0:
        i = head[most]
        if i < 0:
            most -= 1
            continue
        kind[i] = COARSE
        move_to(i, weight[i], -1, head, tail, after, before)
        for e in range(back_pointers[i], back_pointers[i + 1]):
            j = back_indices[e]
            if back_strong[e] == 0 or kind[j] != OPEN:
                continue
            kind[j] = FINE
            move_to(j, weight[j], -1, head, tail, after, before)
            for q in range(pointers[j], pointers[j + 1]):
                k = indices[q]
                if strong[q] != 0 and kind[k] == OPEN:
                    move_to(k, weight[k], weight[k] + 1, head, tail, after, before)
                    weight[k] += 1
                    most = max(most, weight[k])
        for e in range(pointers[i], pointers[i + 1]):
            j = indices[e]
            if strong[e] != 0 and kind[j] == OPEN:
                weight[j] -= 1
                move_to(j, weight[j] + 1, weight[j], head, tail, after, before)
                if weight[j] == 0:
                    kind[j] = FINE
                    move_to(j, 0, -1, head, tail, after, before)


@sequential
def mend_splitting(
    n: int, pointers: INDEX64, indices: INDEX32, strong: INDEX32, mark: INDEX64, kind: INDEX64
) -> None:
    """The second pass: fine points that depend on each other get a coarse point that both depend
    on, where they have none: one of the two."""
    for i in range(n):
        mark[i] = -1
    for i in range(n):
        if kind[i] != FINE:
            continue
        for e in range(pointers[i], pointers[i + 1]):
            if strong[e] != 0 and kind[indices[e]] == COARSE:
                mark[indices[e]] = i
        made = -1  # the neighbour that was made coarse for this point
        for e in range(pointers[i], pointers[i + 1]):
            j = indices[e]
            if strong[e] == 0 or kind[j] != FINE:
                continue
            shared = False
            for q in range(pointers[j], pointers[j + 1]):
                if strong[q] != 0 and mark[indices[q]] == i:
                    shared = True
            if shared:
                continue
            if made >= 0:  # a second one: rather the point itself
                kind[made] = FINE
                kind[i] = COARSE
                break
            made = j
            kind[j] = COARSE
            mark[j] = i


def strong_couplings(pointers: Array, indices: Array, values: Array, theta: float) -> Array:
    """A flag of each entry of a canonical matrix by rows."""
    found = np.empty(indices.size, np.int32)
    find_strong(pointers.size - 1, theta, pointers, indices, values, found)
    return found


def splitting(
    pointers: Array, indices: Array, strong: Array, swapped: Pattern, order: Array,
    second_pass: bool,
) -> Array:  # fmt: skip
    """COARSE or FINE of each row; `swapped` is the transposed pattern, and `order` has the entry
    that each of its entries is."""
    n = pointers.size - 1
    back = (
        swapped.pointers.array.astype(np.int64),
        swapped.indices.array.astype(np.int32, copy=False),
    )
    weight, after, before, kind = (np.empty(n, np.int64) for _ in range(4))
    head, tail = (np.empty(2 * n + 1, np.int64) for _ in range(2))
    split_points(
        *(n, pointers, indices, strong, *back, strong[order], weight, head, tail, after),
        *(before, kind),
    )
    if second_pass:
        mend_splitting(n, pointers, indices, strong, weight, kind)
    return kind
