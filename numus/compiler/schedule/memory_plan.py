"""Where temporaries lie: one block of memory in which values follow each other as they die."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

import numpy as np

from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import LoweredKernel

ALIGNMENT = 64
TRIES = 8  # of each order of placing values,
MANY = 2048  # and fewer where there are many: so many placed, in all
GAPS = 64  # of the bytes in use at the peak, the part by which gaps may make the arena larger


def aligned(nbytes: int) -> int:
    """What a value takes, so that the next one begins well."""
    return -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT


def pack(lives: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Offsets for values given as (bytes, first moment, last moment), and the bytes of the whole.

    They are placed one after the other, each as low as those that live at the same time allow: the
    largest first, or, where that leaves gaps, the best of some other orders.
    """
    sizes = [aligned(nbytes) for nbytes, _, _ in lives]
    numbers = range(len(lives))
    least = _most_at_a_time(lives, sizes)
    orders: list[Callable[[int], tuple[int, ...]]] = [
        lambda i: (-sizes[i], lives[i][1]),
        lambda i: (lives[i][1] - lives[i][2], -sizes[i]),  # the longest lives
        lambda i: ((lives[i][1] - lives[i][2] - 1) * sizes[i],),  # both
        lambda i: (lives[i][1], -sizes[i]),  # as they come
    ]
    best: tuple[list[int], int] | None = None
    for turn in orders:
        order = sorted(numbers, key=turn)
        for _ in range(max(1, min(TRIES, MANY // max(1, len(lives))))):
            found = _placed(lives, sizes, order)
            if best is None or found[1] < best[1]:
                best = found
            if best[1] <= least + least // GAPS:
                return best
            # what came to lie highest goes first the next time
            top = max(numbers, key=lambda i: found[0][i] + sizes[i])
            if top == order[0]:
                break
            order.remove(top)
            order.insert(0, top)
    assert best is not None
    return best


def _most_at_a_time(lives: Sequence[tuple[int, int, int]], sizes: Sequence[int]) -> int:
    """The bytes that are needed however values are placed."""
    changes = np.zeros(max((last for _, _, last in lives), default=0) + 2, np.int64)
    for (_, first, last), size in zip(lives, sizes, strict=True):
        changes[first] += size
        changes[last + 1] -= size
    return int(changes.cumsum().max(initial=0))


def _placed(
    lives: Sequence[tuple[int, int, int]], sizes: Sequence[int], order: Sequence[int]
) -> tuple[list[int], int]:
    """The offsets that follow from an order, and the bytes of the whole."""
    offsets = [0] * len(lives)
    placed = np.zeros((len(lives), 4), np.int64)  # first moment, last moment, start, end
    for count, i in enumerate(order):
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
    offset: dict[Value, int]  # of each temporary
    scratch: list[tuple[int, int]]  # of each wave: where it starts, and the bytes of a worker
    scratch_bytes: int  # of the wave that needs most


Wave = Sequence[
    tuple[LoweredKernel, Sequence[tuple[Value, Value]]]
]  # kernels, and what may take whose place


def place(waves: Sequence[Wave], elsewhere: Container[Value], workers: int) -> Places:
    """Places for all that kernels use and that is not `elsewhere`.

    A worker runs one kernel of a wave at a time: it needs as much scratch memory as the one that
    needs most; and there is no more than one for each block. For no `workers`, scratch memory is
    not our concern.
    """
    lives: dict[Value, list[int]] = {}  # the first wave and the last
    for i, wave in enumerate(waves):
        for step, _ in wave:
            for v in step.buffers:
                if v not in elsewhere:
                    lives.setdefault(v, [i, i])[1] = i
    home = _shared_places(waves, lives)
    blocks: dict[Value, list[int]] = {}
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


def _shared_places(waves: Sequence[Wave], lives: dict[Value, list[int]]) -> dict[Value, Value]:
    """Temporaries that take the place of another one, which is read for the last time, element by
    element, where they are computed: whose place it was at first.
    """
    home: dict[Value, Value] = {}
    for i, wave in enumerate(waves):
        taken: set[Value] = set()
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
