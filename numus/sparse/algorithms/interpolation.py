"""Interpolation from the coarse points of a splitting (Ruge & Stüben 1987, Stüben 2001): direct,
classical and standard. Signs of complex couplings are those of their real parts, as pyamg has it,
in classical weights against the diagonal."""

from __future__ import annotations

import numpy as np

from numus.codegen.cpu.sequential import INDEX32, INDEX64, NUMBERS, Array, Number, conj, real
from numus.runtime.cpu.sequential import sequential
from numus.sparse.algorithms.coarsening import COARSE, FINE

INTERPOLATIONS = ("classical", "direct", "standard")
_CLASSICAL, _DIRECT, _STANDARD = 0, 1, 2


@sequential
def count_weights(
    n: int, pointers: INDEX64, indices: INDEX32, strong: INDEX32, kind: INDEX64, far: bool,
    mark: INDEX64, starts: INDEX64,
) -> None:  # fmt: skip
    """Where the weights of each row start; with `far`, coarse points behind strong fine ones
    too."""
    for i in range(n):
        mark[i] = -1
    starts[0] = 0
    for i in range(n):
        count = 0
        if kind[i] == COARSE:
            count = 1
        else:
            for e in range(pointers[i], pointers[i + 1]):
                j = indices[e]
                if strong[e] == 0:
                    continue
                if kind[j] == COARSE:
                    count += 1 if mark[j] != i else 0
                    mark[j] = i
                elif far:
                    for q in range(pointers[j], pointers[j + 1]):
                        k = indices[q]
                        if strong[q] != 0 and kind[k] == COARSE and mark[k] != i:
                            mark[k] = i
                            count += 1
        starts[i + 1] = starts[i] + count


@sequential
def scaled_row(begin: int, end: int, weights: NUMBERS, total: NUMBERS, diagonal: Number) -> None:
    """Direct weights, from the couplings of the row to these points: those of each sign carry all
    of that sign, total[0] of the negative and total[1] of the positive."""
    minus: Number = 0.0
    plus: Number = 0.0
    for e in range(begin, end):
        if real(weights[e]) < 0.0:
            minus += weights[e]
        else:
            plus += weights[e]
    negative: Number = 0.0
    positive: Number = 0.0
    if minus != 0.0:
        negative = total[0] / minus
    else:
        diagonal += total[0]
    if plus != 0.0:
        positive = total[1] / plus
    else:
        diagonal += total[1]
    for e in range(begin, end):
        factor = negative if real(weights[e]) < 0.0 else positive
        weights[e] = -factor * weights[e] / diagonal if diagonal != 0.0 else 0.0


@sequential
def classical_row(
    i: int, begin: int, end: int, pointers: INDEX64, indices: INDEX32, values: NUMBERS,
    strong: INDEX32, kind: INDEX64, pivots: NUMBERS, place: INDEX64, weights: NUMBERS,
) -> None:  # fmt: skip
    """Strong fine neighbours are what their own coarse couplings say, where those are of the usual
    sign; weak neighbours, and those that share no coarse point, move with the point itself."""
    diagonal = pivots[i]
    for e in range(pointers[i], pointers[i + 1]):
        j = indices[e]
        if j == i:
            continue
        if strong[e] != 0 and kind[j] == COARSE:
            weights[place[j]] += values[e]
            continue
        total: Number = 0.0
        if strong[e] != 0:
            for q in range(pointers[j], pointers[j + 1]):
                at = place[indices[q]]
                if at >= begin and at < end and real(values[q] * conj(pivots[j])) < 0.0:
                    total += values[q]
        if total == 0.0:
            diagonal += values[e]
            continue
        for q in range(pointers[j], pointers[j + 1]):
            at = place[indices[q]]
            if at >= begin and at < end and real(values[q] * conj(pivots[j])) < 0.0:
                weights[at] += values[e] * values[q] / total
    for e in range(begin, end):
        weights[e] = -weights[e] / diagonal if diagonal != 0.0 else 0.0


@sequential
def far_row(
    i: int, begin: int, end: int, pointers: INDEX64, indices: INDEX32, values: NUMBERS,
    strong: INDEX32, kind: INDEX64, pivots: NUMBERS, place: INDEX64, weights: NUMBERS,
    work: NUMBERS, touched: INDEX64, mark: INDEX64, total: NUMBERS,
) -> None:  # fmt: skip
    """The row with its strong fine neighbours eliminated, and weights of it that are direct."""
    count = 0
    for e in range(pointers[i], pointers[i + 1]):
        j = indices[e]
        if mark[j] != i:
            mark[j] = i
            work[j] = 0.0
            touched[count] = j
            count += 1
        if strong[e] == 0 or kind[j] == COARSE or pivots[j] == 0.0:
            work[j] += values[e]
            continue
        factor = values[e] / pivots[j]
        for q in range(pointers[j], pointers[j + 1]):
            k = indices[q]
            if k == j:
                continue
            if mark[k] != i:
                mark[k] = i
                work[k] = 0.0
                touched[count] = k
                count += 1
            work[k] -= factor * values[q]
    total[0] = 0.0
    total[1] = 0.0
    for t in range(count):
        j = touched[t]
        if j == i:
            continue
        at = place[j]
        if at >= begin and at < end:
            weights[at] = work[j]
        if real(work[j]) < 0.0:
            total[0] += work[j]
        else:
            total[1] += work[j]
    scaled_row(begin, end, weights, total, work[i])


@sequential
def sort_row(begin: int, end: int, columns: INDEX32, weights: NUMBERS) -> None:
    """By insertion: rows are short."""
    for e in range(begin + 1, end):
        column = columns[e]
        weight = weights[e]
        at = e
        while at > begin and columns[at - 1] > column:
            columns[at] = columns[at - 1]
            weights[at] = weights[at - 1]
            at -= 1
        columns[at] = column
        weights[at] = weight


@sequential
def find_weights(
    n: int, way: int, pointers: INDEX64, indices: INDEX32, values: NUMBERS, strong: INDEX32,
    kind: INDEX64, number: INDEX64, pivots: NUMBERS, starts: INDEX64, place: INDEX64,
    work: NUMBERS, touched: INDEX64, mark: INDEX64, total: NUMBERS, columns: INDEX32,
    weights: NUMBERS,
) -> None:  # fmt: skip
    """All rows, columns in order; `number` has the coarse number of points."""
    for i in range(n):
        place[i] = -1
        mark[i] = -1
    for i in range(n):
        begin = starts[i]
        end = starts[i + 1]
        if kind[i] == COARSE:
            columns[begin] = number[i]
            weights[begin] = 1.0
            continue
        at = begin
        for e in range(pointers[i], pointers[i + 1]):
            j = indices[e]
            if strong[e] == 0:
                continue
            if kind[j] == COARSE:
                if place[j] < begin:
                    place[j] = at
                    columns[at] = number[j]
                    weights[at] = 0.0
                    at += 1
            elif way == _STANDARD:
                for q in range(pointers[j], pointers[j + 1]):
                    k = indices[q]
                    if strong[q] != 0 and kind[k] == COARSE and place[k] < begin:
                        place[k] = at
                        columns[at] = number[k]
                        weights[at] = 0.0
                        at += 1
        if way == _CLASSICAL:
            classical_row(
                i, begin, end, pointers, indices, values, strong, kind, pivots, place, weights
            )
        elif way == _STANDARD:
            far_row(
                i, begin, end, pointers, indices, values, strong, kind, pivots, place, weights,
                work, touched, mark, total,
            )  # fmt: skip
        else:
            total[0] = 0.0
            total[1] = 0.0
            for e in range(pointers[i], pointers[i + 1]):
                j = indices[e]
                if j == i:
                    continue
                if strong[e] != 0 and kind[j] == COARSE:
                    weights[place[j]] = values[e]
                if real(values[e]) < 0.0:
                    total[0] += values[e]
                else:
                    total[1] += values[e]
            scaled_row(begin, end, weights, total, pivots[i])
        sort_row(begin, end, columns, weights)


def interpolation_weights(
    pointers: Array, indices: Array, values: Array, pivots: Array, strong: Array, kind: Array,
    way: str,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Pointers, columns in order and values of the prolongation of a canonical matrix."""
    n = pivots.size
    starts, mark, place, touched = (np.empty(n + 1, np.int64) for _ in range(4))
    which = INTERPOLATIONS.index(way)
    count_weights(n, pointers, indices, strong, kind, which == _STANDARD, mark, starts)
    number = np.cumsum(kind != FINE) - 1
    count, dtype = int(starts[n]), values.dtype
    columns, weights = np.empty(count, np.int32), np.empty(count, dtype)
    find_weights(
        *(n, which, pointers, indices, values, strong, kind, number, pivots, starts, place),
        *(np.empty(n, dtype), touched, mark, np.empty(2, dtype), columns, weights),
    )
    return starts, columns, weights
