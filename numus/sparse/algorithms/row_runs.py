"""Runs of rows whose columns move with the row, as those of a stencil on a grid do (substructures
of Compressed Sparse eXtended, Kourtis, Karakasis, Goumas & Koziris 2011): a product needs no index
of their entries, only one list of offsets from the row's number for all rows of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numus.codegen.cpu.sequential import INDEX32, Array
from numus.runtime.cpu.sequential import sequential

MIN_RUN_ROWS = 16  # shorter runs are no faster than rows with indices
MIN_SHARE = 0.75  # of the entries, in runs: where fewer are, all rows are read by their indices
SAMPLE_SHARE = 16  # one row of this number tells that a pattern is irregular
SEGMENT_ENTRIES = 1 << 12  # longer runs are cut
TASK_ENTRIES = 1 << 14  # of the segments of a task


@sequential
def find_runs(
    n: int, pointers: INDEX32, indices: INDEX32, least: int, sample: int, first: INDEX32,
    template: INDEX32, offsets: INDEX32,
) -> int:  # fmt: skip
    """Segments of rows: the first row of each, and where its offsets begin, -1 for rows that are no
    run. Their number, or -1 where most of the first `sample` rows are in none."""
    count = 0
    used = 0  # offsets
    last = -1  # template that was written last
    loose = 0  # the first row that is in no segment yet
    in_runs = 0
    row = 0
    while row < n:
        if row >= sample and 2 * in_runs < row:
            return -1
        begin = pointers[row]
        length = pointers[row + 1] - begin
        end = row + 1
        moves = True
        while moves and end < n:
            other = pointers[end]
            moves = pointers[end + 1] - other == length
            j = 0
            while moves and j < length:
                moves = indices[other + j] - indices[begin + j] == end - row
                j += 1
            if moves:
                end += 1
        if end - row >= least:
            if loose < row:
                first[count] = loose
                template[count] = -1
                count += 1
            same = last >= 0 and used - last == length
            j = 0
            while same and j < length:
                same = offsets[last + j] == indices[begin + j] - row
                j += 1
            if not same:
                last = used
                for k in range(length):
                    offsets[used] = indices[begin + k] - row
                    used += 1
            first[count] = row
            template[count] = last
            count += 1
            in_runs += end - row
            loose = end
        row = end
    if loose < n:
        first[count] = loose
        template[count] = -1
        count += 1
    first[count] = n
    template[count] = used
    return count


@dataclass(frozen=True)
class RowRuns:
    """Segment s has the rows first[s] … first[s + 1] - 1, and offsets from template[s] on, or -1;
    task t has the segments tasks[t] … tasks[t + 1] - 1."""

    tasks: Array
    first: Array
    template: Array
    offsets: Array


def row_runs(pointers: Array, indices: Array) -> RowRuns | None:
    """The runs of a pattern of int32; None where few of its entries are in any."""
    n, nnz = pointers.size - 1, indices.size
    room = 2 * (n // MIN_RUN_ROWS) + 3
    first, template = np.empty(room, np.int32), np.empty(room, np.int32)
    offsets = np.empty(nnz // MIN_RUN_ROWS + 1, np.int32)
    sample = max(n // SAMPLE_SHARE, MIN_RUN_ROWS)
    count = find_runs(n, pointers, indices, MIN_RUN_ROWS, sample, first, template, offsets)
    if count < 1:
        return None
    used = int(template[count])
    first, template = first[: count + 1], template[:count]
    entries = np.diff(pointers[first])
    if entries[template >= 0].sum() < MIN_SHARE * nnz:
        return None
    rows = np.diff(first)
    pieces = np.clip(-(-entries // SEGMENT_ENTRIES), 1, rows)
    cut = np.repeat(first[:-1], pieces)
    number = np.arange(cut.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    cut = cut + number * np.repeat(rows.astype(np.int64), pieces) // np.repeat(pieces, pieces)
    first = np.append(cut, n).astype(np.int32)
    goals = np.arange(1, -(-nnz // TASK_ENTRIES)) * TASK_ENTRIES
    inner = np.searchsorted(pointers[first], goals)
    tasks = np.unique(np.concatenate([[0], inner, [cut.size]])).astype(np.int32)
    return RowRuns(tasks, first, np.repeat(template, pieces), offsets[:used].copy())
