"""Triangular parts of patterns, and their level scheduling (Anderson & Saad 1989)."""

from __future__ import annotations

from numus.codegen.cpu.sequential import INDEX32, INDEX64
from numus.runtime.cpu.sequential import sequential


@sequential
def find_levels(n: int, pointers: INDEX64, indices: INDEX32, upper: bool, level: INDEX64) -> int:
    """The length of the longest path of rows to each row; the number of levels."""
    most = -1
    for step in range(n):
        row = n - 1 - step if upper else step
        own = 0
        for entry in range(pointers[row], pointers[row + 1]):
            own = max(own, level[indices[entry]] + 1)
        level[row] = own
        most = max(most, own)
    return most + 1


@sequential
def split_triangle(
    n: int, pointers: INDEX64, indices: INDEX32, upper: bool, starts: INDEX64, inside: INDEX32,
    columns: INDEX32, diagonal: INDEX64,
) -> int:  # fmt: skip
    """The entries above or below the diagonal: where rows start, which they are, their columns; and
    the entry of each diagonal element, -1 where there is none. Their number."""
    count = 0
    starts[0] = 0
    for row in range(n):
        diagonal[row] = -1
        for entry in range(pointers[row], pointers[row + 1]):
            column = indices[entry]
            if column == row:
                diagonal[row] = entry
            elif (column > row) == upper:
                inside[count] = entry
                columns[count] = column
                count += 1
        starts[row + 1] = count
    return count
