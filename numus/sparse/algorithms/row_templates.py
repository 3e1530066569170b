"""Templates of rows: lists of offsets from a row's number to its columns, of which the rows of a
stencil on a grid have a few (pattern-based representation, Belgin, Back & Ribbens 2009). A product
reads the number of a row's template instead of the indices of its entries."""

from __future__ import annotations

import numpy as np

from numus.codegen.cpu.sequential import INDEX32, Array
from numus.kernels.sparse.gpu_templates import PADDING
from numus.runtime.cpu.sequential import sequential

MAX_TEMPLATES = 1 << 10
TABLE_SIZE = 1 << 12  # slots of the hash table, a power of two
MAX_OFFSETS = 1 << 14  # of all templates: what stays in the first cache of a GPU's core
MAX_LENGTH = 1 << 8  # of a row that has a template: longer ones hardly share theirs
MIN_SHARE = 0.9  # of the entries, in rows with templates: else all rows are read by their indices
SAMPLE_SHARE = 16  # one row of this number tells that a pattern is irregular


@sequential
def find_templates(
    n: int, columns: int, pointers: INDEX32, indices: INDEX32, sample: int, slots: int,
    longest: int, most: int, room: int, table: INDEX32, starts: INDEX32, offsets: INDEX32,
    template: INDEX32,
) -> int:  # fmt: skip
    """Where the offsets of each row begin, -1 for rows without a template, and the number of
    templates; -1 where most of the first `sample` rows have none. `table` is filled with -1. Rows
    that have a template have no column out of bounds."""
    count = 0
    found = 0  # rows with a template
    last = -1  # of the row before, and its least and largest offset
    least = 0
    largest = 0
    starts[0] = 0
    row = 0
    while row < n:
        if row == sample and 2 * found < row:
            return -1
        begin = pointers[row]
        length = pointers[row + 1] - begin
        same = last >= 0
        if same:
            at = starts[last]
            same = starts[last + 1] - at == length
            j = 0
            while same and j < length:
                same = offsets[at + j] == indices[begin + j] - row
                j += 1
        if not same:
            last = -1
            if length <= longest:
                key = length
                for j in range(length):
                    key = (key * 1000003 + indices[begin + j] - row + n) & 1099511627775
                slot = (key * 40503 >> 16) & (slots - 1)
                while table[slot] >= 0 and not same:
                    last = table[slot]
                    at = starts[last]
                    same = starts[last + 1] - at == length
                    j = 0
                    while same and j < length:
                        same = offsets[at + j] == indices[begin + j] - row
                        j += 1
                    slot = (slot + 1) & (slots - 1)
                if not same:
                    last = -1
                    at = starts[count]
                    if count < most and at + length <= room:
                        for j in range(length):
                            offsets[at + j] = indices[begin + j] - row
                        table[slot] = count
                        last = count
                        count += 1
                        starts[count] = at + length
            least = 0
            largest = 0
            if last >= 0:
                for j in range(starts[last], starts[last + 1]):
                    least = min(least, offsets[j])
                    largest = max(largest, offsets[j])
        template[row] = -1
        if last >= 0 and row + least >= 0 and row + largest < columns:
            template[row] = starts[last]
            found += 1
        row += 1
    return count


def row_templates(columns: int, pointers: Array, indices: Array) -> tuple[Array, Array] | None:
    """Where the offsets of each row begin, -1 where its indices are to be read, and the offsets of
    all templates, each of which is padded; None where too few of the entries of a pattern of int32
    are in such rows."""
    n, nnz = pointers.size - 1, indices.size
    table = np.full(TABLE_SIZE, -1, np.int32)
    starts = np.empty(MAX_TEMPLATES + 1, np.int32)
    offsets, template = np.empty(MAX_OFFSETS, np.int32), np.empty(n, np.int32)
    limits = (TABLE_SIZE, MAX_LENGTH, MAX_TEMPLATES, MAX_OFFSETS)
    sample = max(n // SAMPLE_SHARE, 2 * MAX_TEMPLATES)
    count = find_templates(
        *(n, columns, pointers, indices, sample, *limits), table, starts, offsets, template
    )  # fmt: skip
    if count < 1:
        return None
    with_indices = np.diff(pointers)[template < 0].sum()
    used = int(starts[count])
    if with_indices > (1 - MIN_SHARE) * nnz or 2 * used > nnz:
        return None
    return _padded(template, starts[: count + 1], offsets)


def _padded(template: Array, starts: Array, offsets: Array) -> tuple[Array, Array]:
    """Templates followed by their last offset, some more times."""
    lengths = np.diff(starts)
    ends = np.cumsum(lengths + PADDING)
    begins = ends - lengths - PADDING
    moved = np.full(int(starts[-1]) + 2, -1, np.int32)  # -1 moves to -1
    out = np.zeros(int(ends[-1]), np.int32)
    for begin, end, first, length in zip(begins, ends, starts, lengths, strict=False):
        moved[first] = begin
        if length:
            out[begin : begin + length] = offsets[first : first + length]
            out[begin + length : end] = offsets[first + length - 1]
    return moved[template], out
