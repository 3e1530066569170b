"""Where temporaries lie: one block of memory in which values follow each other as they die."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ALIGNMENT = 64


def pack(lives: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Offsets for values given as (bytes, first moment, last moment), and the bytes of the whole.

    The largest are placed first, each as low as those that live at the same time allow.
    """
    sizes = [-(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT for nbytes, _, _ in lives]
    offsets = [0] * len(lives)
    placed = np.zeros((len(lives), 4), np.int64)  # first moment, last moment, start, end
    for count, i in enumerate(sorted(range(len(lives)), key=lambda i: (-sizes[i], lives[i][1], i))):
        _, first, last = lives[i]
        known = placed[:count]
        beside = known[(known[:, 0] <= last) & (known[:, 1] >= first)]
        at = 0
        for start, end in sorted(map(tuple, beside[:, 2:].tolist())):
            if start - at >= sizes[i]:
                break
            at = max(at, end)
        offsets[i] = at
        placed[count] = first, last, at, at + sizes[i]
    return offsets, int(placed[:, 3].max(initial=0))
