"""Incomplete LU factorisation by rows on a pattern with levels of fill (Saad 2003, chapter 10)."""

from __future__ import annotations

import numpy as np

from numus.codegen.cpu.sequential import FLOAT64, INDEX64, Array
from numus.runtime.cpu.sequential import sequential


@sequential
def fill_rows(
    n: int, begin: int, most: int, pointers: INDEX64, indices: INDEX64, room: int,
    starts: INDEX64, columns: INDEX64, levels: INDEX64, diagonal: INDEX64, after: INDEX64,
    own: INDEX64,
) -> int:  # fmt: skip
    """The pattern of L + U with fill of at most a level, columns in order; the row at which room
    ends, or n. Entries of a row are a list through `after`, which starts at n."""
    for row in range(begin, n):
        at = starts[row]
        if at + n > room:
            return row
        tail = n
        after[n] = n
        for e in range(pointers[row], pointers[row + 1]):
            after[tail] = indices[e]
            tail = indices[e]
            own[tail] = 0
        after[tail] = n
        k = after[n]
        while k < row:
            place = k
            for e in range(diagonal[k] + 1, starts[k + 1]):
                level = own[k] + levels[e] + 1
                if level > most:
                    continue
                j = columns[e]
                while after[place] < j:
                    place = after[place]
                if after[place] == j:
                    own[j] = min(own[j], level)
                else:
                    after[j] = after[place]
                    after[place] = j
                    own[j] = level
            k = after[k]
        diagonal[row] = -1
        k = after[n]
        while k < n:
            columns[at] = k
            levels[at] = own[k]
            if k == row:
                diagonal[row] = at
            at += 1
            k = after[k]
        if diagonal[row] < 0:
            return -1 - row
        starts[row + 1] = at
    return n


@sequential
def eliminate_rows(
    n: int, starts: INDEX64, columns: INDEX64, diagonal: INDEX64, values: FLOAT64, place: INDEX64
) -> int:
    """L (below) and U in place of the values; n, or the row whose pivot is zero."""
    for i in range(n):
        place[i] = -1
    for row in range(n):
        for e in range(starts[row], starts[row + 1]):
            place[columns[e]] = e
        for e in range(starts[row], diagonal[row]):
            k = columns[e]
            factor = values[e] / values[diagonal[k]]
            values[e] = factor
            for q in range(diagonal[k] + 1, starts[k + 1]):
                to = place[columns[q]]
                if to >= 0:
                    values[to] -= factor * values[q]
        for e in range(starts[row], starts[row + 1]):
            place[columns[e]] = -1
        if values[diagonal[row]] == 0.0:
            return row
    return n


@sequential
def eliminate_complex_rows(
    n: int, starts: INDEX64, columns: INDEX64, diagonal: INDEX64, re: FLOAT64, im: FLOAT64,
    place: INDEX64,
) -> int:  # fmt: skip
    """`eliminate_rows` of complex values, whose parts stand apart."""
    for i in range(n):
        place[i] = -1
    for row in range(n):
        for e in range(starts[row], starts[row + 1]):
            place[columns[e]] = e
        for e in range(starts[row], diagonal[row]):
            k = columns[e]
            x = re[diagonal[k]]
            y = im[diagonal[k]]
            if abs(x) >= abs(y):  # Smith 1962: no square overflows
                share = y / x
                size = x + y * share
                a = (re[e] + im[e] * share) / size
                b = (im[e] - re[e] * share) / size
            else:
                share = x / y
                size = x * share + y
                a = (re[e] * share + im[e]) / size
                b = (im[e] * share - re[e]) / size
            re[e] = a
            im[e] = b
            for q in range(diagonal[k] + 1, starts[k + 1]):
                to = place[columns[q]]
                if to >= 0:
                    re[to] -= a * re[q] - b * im[q]
                    im[to] -= a * im[q] + b * re[q]
        for e in range(starts[row], starts[row + 1]):
            place[columns[e]] = -1
        if re[diagonal[row]] == 0.0 and im[diagonal[row]] == 0.0:
            return row
    return n


def eliminated(n: int, starts: Array, columns: Array, diagonal: Array, values: Array) -> int:
    """L and U in place of real or complex values; n, or the row whose pivot is zero."""
    place = np.empty(n, np.int64)
    if values.dtype.kind != "c":
        return int(eliminate_rows(n, starts, columns, diagonal, values, place))
    re, im = values.real.copy(), values.imag.copy()
    end = int(eliminate_complex_rows(n, starts, columns, diagonal, re, im, place))
    values.real, values.imag = re, im
    return end


def filled_pattern(
    n: int, pointers: Array, indices: Array, level: int
) -> tuple[int, Array, Array, Array]:
    """n (or -1 - row where a diagonal element is missing), starts, columns, diagonal entries."""
    pointers, indices = pointers.astype(np.int64), indices.astype(np.int64)
    room = indices.size * (1 + 2 * level) + 2 * n
    starts, diagonal = np.zeros(n + 1, np.int64), np.zeros(n, np.int64)
    columns, levels = np.empty(room, np.int64), np.empty(room, np.int64)
    after, own = np.empty(n + 1, np.int64), np.empty(n + 1, np.int64)
    at = 0
    while True:
        at = fill_rows(
            *(n, at, level, pointers, indices, room, starts, columns, levels, diagonal, after),
            own,
        )
        if at < 0 or at == n:
            return at, starts, columns[: starts[-1]].copy(), diagonal
        grown = 2 * room + n
        columns, levels = (
            np.concatenate([x, np.empty(grown - room, np.int64)]) for x in (columns, levels)
        )
        room = grown
