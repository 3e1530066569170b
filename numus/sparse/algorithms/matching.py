"""Maximum transversals: rows for as many columns as possible, one each (Duff 1981)."""

from __future__ import annotations

import numpy as np

from numus.codegen.cpu.sequential import INDEX64, Array
from numus.runtime.cpu.sequential import sequential


@sequential
def match_columns(
    columns: int, pointers: INDEX64, indices: INDEX64, row_of: INDEX64, column_of: INDEX64,
    cheap: INDEX64, mark: INDEX64, stack: INDEX64, place: INDEX64,
) -> int:  # fmt: skip
    """Augmenting paths by depth-first search, with a look for free rows first."""
    for c in range(columns):
        row_of[c] = -1
        mark[c] = -1
        cheap[c] = pointers[c]
    count = 0
    for root in range(columns):
        depth = 0
        stack[0] = root
        ended = False
        while depth >= 0:
            c = stack[depth]
            if mark[c] != root:
                mark[c] = root
                p = cheap[c]
                while p < pointers[c + 1] and column_of[indices[p]] >= 0:
                    p += 1
                cheap[c] = p
                if p < pointers[c + 1]:
                    row = indices[p]
                    ended = True
                    for k in range(depth, -1, -1):  # turn the path around
                        own = stack[k]
                        if k < depth:
                            row = indices[place[k]]
                        column_of[row] = own
                        row_of[own] = row
                    break
                place[depth] = pointers[c] - 1
            p = place[depth] + 1
            while p < pointers[c + 1] and mark[column_of[indices[p]]] == root:
                p += 1
            place[depth] = p
            if p < pointers[c + 1]:
                depth += 1
                stack[depth] = column_of[indices[p]]
            else:
                depth -= 1
        count += 1 if ended else 0
    return count


def maximum_transversal(rows: int, pointers: Array, indices: Array) -> tuple[int, Array]:
    """The structural rank of a pattern by columns, and the row of each column (-1: none)."""
    columns = pointers.size - 1
    row_of, cheap, mark, stack, place = (np.empty(columns + 1, np.int64) for _ in range(5))
    column_of = np.full(rows, -1, np.int64)
    count = match_columns(
        *(columns, pointers.astype(np.int64), indices.astype(np.int64)),
        *(row_of, column_of, cheap, mark, stack, place),
    )
    return count, row_of[:columns]
