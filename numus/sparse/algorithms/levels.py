"""Level scheduling of triangular patterns (Anderson & Saad 1989)."""

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
