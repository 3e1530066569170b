"""Incomplete LU factorisation by dual threshold, ILUT (Saad 1994): entries that are small against
their row are dropped, and of the others the largest are kept."""

from __future__ import annotations

import numpy as np

from numus.codegen.cpu.sequential import INDEX64, NUMBERS, Array, conj, real, sqrt
from numus.runtime.cpu.sequential import sequential


@sequential
def heap_push(heap: INDEX64, size: int, key: int) -> int:
    """A number into a binary heap, the least in front; the new size."""
    at = size
    while at > 0 and heap[(at - 1) // 2] > key:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = key
    return size + 1


@sequential
def heap_pop(heap: INDEX64, size: int) -> int:
    """Take the least, heap[0], away; the new size."""
    size -= 1
    key = heap[size]
    at = 0
    going = True
    while going:
        child = 2 * at + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if child < size and heap[child] < key:
            heap[at] = heap[child]
            at = child
        else:
            going = False
    heap[at] = key
    return size


@sequential
def comes_first(w: NUMBERS, i: int, j: int) -> bool:
    """Whether element i is larger than element j, or as large and before it."""
    return abs(w[i]) > abs(w[j]) or (abs(w[i]) == abs(w[j]) and i < j)


@sequential
def select_largest(columns: INDEX64, count: int, most: int, w: NUMBERS) -> int:
    """Move the columns of the `most` largest elements to the front (Hoare's quickselect); how many
    are there."""
    if count <= most:
        return count
    low = 0
    high = count - 1
    while low < high:
        pivot = columns[(low + high) // 2]
        i = low
        j = high
        while i <= j:
            while comes_first(w, columns[i], pivot):
                i += 1
            while comes_first(w, pivot, columns[j]):
                j -= 1
            if i <= j:
                columns[i], columns[j] = columns[j], columns[i]
                i += 1
                j -= 1
        if most - 1 <= j:
            high = j
        elif most - 1 >= i:
            low = i
        else:
            break
    return most


@sequential
def sort_columns(columns: INDEX64, count: int, heap: INDEX64) -> None:
    size = 0
    for k in range(count):
        size = heap_push(heap, size, columns[k])
    for k in range(count):
        columns[k] = heap[0]
        size = heap_pop(heap, size)


@sequential
def eliminate_by_threshold(
    n: int, begin: int, pointers: INDEX64, indices: INDEX64, given: NUMBERS, tolerance: float,
    fill: int, room: int, starts: INDEX64, columns: INDEX64, values: NUMBERS, diagonal: INDEX64,
    w: NUMBERS, there: INDEX64, heap: INDEX64, below: INDEX64, above: INDEX64,
) -> int:  # fmt: skip
    """Rows of L + U, columns in order; n, the row at which room ends, or -1 - row where a pivot is
    zero. `there` marks elements of the row at work, `w` has them; both are as before after it."""
    for row in range(begin, n):
        at = starts[row]
        most = min(fill, n)
        if at + 2 * most + 1 > room:
            return row
        size = 0
        lower = 0
        upper = 0
        norm = 0.0
        there[row] = 1
        w[row] = 0.0
        for e in range(pointers[row], pointers[row + 1]):
            j = indices[e]
            norm += real(conj(given[e]) * given[e])
            w[j] = given[e]
            there[j] = 1
            if j < row:
                size = heap_push(heap, size, j)
            elif j > row:
                above[upper] = j
                upper += 1
        least = tolerance * sqrt(norm)
        while size > 0:
            k = heap[0]
            size = heap_pop(heap, size)
            factor = w[k] / values[diagonal[k]]
            if abs(factor) < least or factor == 0.0:
                there[k] = 0
                continue
            w[k] = factor
            below[lower] = k
            lower += 1
            for e in range(diagonal[k] + 1, starts[k + 1]):
                j = columns[e]
                if there[j] == 0:
                    there[j] = 1
                    w[j] = 0.0
                    if j < row:
                        size = heap_push(heap, size, j)
                    else:
                        above[upper] = j
                        upper += 1
                w[j] -= factor * values[e]
        kept = 0
        for k in range(upper):
            j = above[k]
            there[j] = 0
            if abs(w[j]) >= least and w[j] != 0.0:
                above[kept] = j
                kept += 1
        for k in range(lower):
            there[below[k]] = 0
        there[row] = 0
        if w[row] == 0.0:
            return -1 - row
        lower = select_largest(below, lower, most, w)
        upper = select_largest(above, kept, most, w)
        sort_columns(below, lower, heap)
        sort_columns(above, upper, heap)
        for k in range(lower):
            columns[at] = below[k]
            values[at] = w[below[k]]
            at += 1
        diagonal[row] = at
        columns[at] = row
        values[at] = w[row]
        at += 1
        for k in range(upper):
            columns[at] = above[k]
            values[at] = w[above[k]]
            at += 1
        starts[row + 1] = at
    return n


def threshold_factors(
    n: int, pointers: Array, indices: Array, given: Array, tolerance: float, fill: int
) -> tuple[int, Array, Array, Array, Array]:
    """n (or -1 - row where a pivot is zero), starts, columns, values and diagonal entries, of a
    real or complex matrix."""
    pointers, indices = pointers.astype(np.int64), indices.astype(np.int64)
    most = min(fill, n)
    room = 2 * indices.size + 2 * n + 2 * most + 1
    starts, diagonal = np.zeros(n + 1, np.int64), np.zeros(n, np.int64)
    columns, values = np.empty(room, np.int64), np.empty(room, given.dtype)
    w = np.zeros(n, given.dtype)
    there = np.zeros(n, np.int64)
    heap, below, above = (np.empty(n + 1, np.int64) for _ in range(3))
    at = 0
    while True:
        at = eliminate_by_threshold(
            *(n, at, pointers, indices, given, tolerance, fill, room, starts, columns, values),
            *(diagonal, w, there, heap, below, above),
        )
        if at < 0 or at == n:
            end = int(starts[n])
            return at, starts, columns[:end].copy(), values[:end].copy(), diagonal
        room = 2 * room
        columns = np.concatenate([columns, np.empty(room - columns.size, np.int64)])
        values = np.concatenate([values, np.empty(room - values.size, given.dtype)])
