"""Standard aggregation of a strength graph (Vaněk, Mandel & Brezina 1996)."""

from __future__ import annotations

from numus.codegen.cpu.sequential import INDEX64
from numus.runtime.cpu.sequential import sequential


@sequential
def aggregate(n: int, pointers: INDEX64, indices: INDEX64, number: INDEX64) -> int:
    """The aggregate of each node, -1 for those without neighbours; how many there are."""
    count = 0
    for i in range(n):
        number[i] = -1
    for i in range(n):  # whole neighbourhoods
        if number[i] >= 0:
            continue
        free = True
        alone = True
        for e in range(pointers[i], pointers[i + 1]):
            if indices[e] != i:
                alone = False
                if number[indices[e]] >= 0:
                    free = False
        if free and not alone:
            number[i] = count
            for e in range(pointers[i], pointers[i + 1]):
                number[indices[e]] = count
            count += 1
    for i in range(n):  # those next to one; marked apart, so that they attract no others
        if number[i] >= 0:
            continue
        for e in range(pointers[i], pointers[i + 1]):
            if number[indices[e]] >= 0:
                number[i] = -2 - number[indices[e]]
                break
    for i in range(n):
        if number[i] < -1:
            number[i] = -2 - number[i]
    for i in range(n):  # what is left, together with what is left around it
        if number[i] >= 0 or pointers[i + 1] - pointers[i] <= 1:
            continue
        number[i] = count
        for e in range(pointers[i], pointers[i + 1]):
            if number[indices[e]] < 0:
                number[indices[e]] = count
        count += 1
    return count
