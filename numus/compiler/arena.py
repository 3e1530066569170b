"""Where temporaries lie: one block of memory in which values follow each other as they die."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

import numpy as np

from numus.compiler.emit import Step
from numus.compiler.local import Val

ALIGNMENT = 64


def aligned(nbytes: int) -> int:
    """What a value takes, so that the next one begins well."""
    return -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT


def pack(lives: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Offsets for values given as (bytes, first moment, last moment), and the bytes of the whole.

    The largest are placed first, each as low as those that live at the same time allow.
    """
    sizes = [aligned(nbytes) for nbytes, _, _ in lives]
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


class Places(NamedTuple):
    """What lies where in the arena."""

    nbytes: int  # of all of it
    offset: dict[Val, int]  # of each temporary
    scratch: list[tuple[int, int]]  # of each wave: where it starts, and the bytes of a worker
    scratch_bytes: int  # of the wave that needs most


Wave = Sequence[tuple[Step, Sequence[tuple[Val, Val]]]]  # kernels, and what may take whose place


def place(waves: Sequence[Wave], elsewhere: Container[Val], workers: int) -> Places:
    """Places for all that kernels use and that is not `elsewhere`.

    A worker runs one kernel of a wave at a time: it needs as much scratch memory as the one that
    needs most; and there is no more than one for each block. For no `workers`, scratch memory is
    not our concern.
    """
    lives: dict[Val, list[int]] = {}  # the first wave and the last
    for i, wave in enumerate(waves):
        for step, _ in wave:
            for v in step.buffers:
                if v not in elsewhere:
                    lives.setdefault(v, [i, i])[1] = i
    home = _shared_places(waves, lives)
    blocks: dict[Val, list[int]] = {}
    for v, (first, last) in lives.items():
        block = blocks.setdefault(home.get(v, v), [first, last])
        block[:] = min(block[0], first), max(block[1], last)
    pitches = [max(sum(map(aligned, step.scratch)) for step, _ in wave) for wave in waves]
    teams = [min(workers, sum(step.grid for step, _ in wave)) for wave in waves]
    all_lives = [(v.size * v.dtype.itemsize, first, last) for v, (first, last) in blocks.items()]
    needy = [i for i, pitch in enumerate(pitches) if pitch and teams[i]]
    all_lives += [(teams[i] * pitches[i], i, i) for i in needy]
    offsets, nbytes = pack(all_lives)
    places = dict(zip(blocks, offsets, strict=False))
    start = dict(zip(needy, offsets[len(blocks) :], strict=True))
    scratch = [(start.get(i, 0), pitch) for i, pitch in enumerate(pitches)] if workers else []
    most = max((teams[i] * pitches[i] for i in needy), default=0)
    return Places(nbytes, {v: places[home.get(v, v)] for v in lives}, scratch, most)


def _shared_places(waves: Sequence[Wave], lives: dict[Val, list[int]]) -> dict[Val, Val]:
    """Temporaries that take the place of another one, which is read for the last time, element by
    element, where they are computed: whose place it was at first.
    """
    home: dict[Val, Val] = {}
    for i, wave in enumerate(waves):
        taken: set[Val] = set()
        for v, s in (pair for _, pairs in wave for pair in pairs):
            if (
                v not in home
                and s not in taken
                and v in lives
                and lives.get(s, (i, 0))[0] < i == lives[s][1]
                and sum(s in step.buffers for step, _ in wave) == 1
            ):
                taken.add(s)
                home[v] = home.get(s, s)
    return home
