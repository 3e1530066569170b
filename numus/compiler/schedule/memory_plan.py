"""Memory planning: offsets of temporaries in one arena, by their lifetimes (first fit).

This is dynamic storage allocation: values that are live together must not overlap. Heuristic orders
of placement are tried until the arena is close to the peak of live bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

import numpy as np

from numus.compiler.graph.cost_model import nbytes
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.schedule.tuning import TUNING

ALIGNMENT = 64  # bytes: a cache line

Lifetime = tuple[int, int, int]  # bytes, first wave, last wave


def aligned(size: int) -> int:
    """Bytes rounded up to the alignment."""
    return -(-max(size, 1) // ALIGNMENT) * ALIGNMENT


def assign_offsets(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Offsets of values with these lifetimes, and the bytes of the arena."""
    sizes = [aligned(size) for size, _, _ in lifetimes]
    numbers = range(len(lifetimes))
    peak = _peak_bytes(lifetimes, sizes)
    orders: list[Callable[[int], tuple[int, ...]]] = [
        lambda i: (-sizes[i], lifetimes[i][1]),  # the largest first
        lambda i: (lifetimes[i][1] - lifetimes[i][2], -sizes[i]),  # the longest lifetimes
        lambda i: ((lifetimes[i][1] - lifetimes[i][2] - 1) * sizes[i],),  # both
        lambda i: (lifetimes[i][1], -sizes[i]),  # in order of definition
    ]
    best: tuple[list[int], int] | None = None
    tries = min(TUNING.offset_tries, TUNING.offset_max_placements // max(1, len(lifetimes)))
    for key in orders:
        order = sorted(numbers, key=key)
        for _ in range(max(1, tries)):
            found = _first_fit(lifetimes, sizes, order)
            if best is None or found[1] < best[1]:
                best = found
            if best[1] <= peak + peak // TUNING.offset_fragmentation:
                return best
            # the value that ends highest is placed first the next time
            top = max(numbers, key=lambda i: found[0][i] + sizes[i])
            if top == order[0]:
                break
            order.remove(top)
            order.insert(0, top)
    assert best is not None
    return best


def _peak_bytes(lifetimes: Sequence[Lifetime], sizes: Sequence[int]) -> int:
    """The most bytes live at a time: a lower bound of the arena."""
    changes = np.zeros(max((last for _, _, last in lifetimes), default=0) + 2, np.int64)
    for (_, first, last), size in zip(lifetimes, sizes, strict=True):
        changes[first] += size
        changes[last + 1] -= size
    return int(changes.cumsum().max(initial=0))


def _first_fit(
    lifetimes: Sequence[Lifetime], sizes: Sequence[int], order: Sequence[int]
) -> tuple[list[int], int]:
    """Offsets by first fit in an order, and the bytes of the arena."""
    offsets = [0] * len(lifetimes)
    placed = np.zeros((len(lifetimes), 4), np.int64)  # first wave, last wave, start, end
    for count, i in enumerate(order):
        _, first, last = lifetimes[i]
        known = placed[:count]
        overlapping = known[(known[:, 0] <= last) & (known[:, 1] >= first)]
        at = 0
        for start, end in sorted(map(tuple, overlapping[:, 2:].tolist())):
            if start - at >= sizes[i]:
                break
            at = max(at, end)
        offsets[i] = at
        placed[count] = first, last, at, at + sizes[i]
    return offsets, int(placed[:, 3].max(initial=0))


class MemoryPlan(NamedTuple):
    """The layout of the arena."""

    nbytes: int
    offset: dict[Value, int]  # of each temporary
    scratch: list[tuple[int, int]]  # of each wave: its offset, and the bytes of a worker
    scratch_bytes: int  # of the wave that needs most


# Kernels that run concurrently, each with the pairs (output, input) that may share memory.
Wave = Sequence[tuple[LoweredKernel, Sequence[tuple[Value, Value]]]]


def plan_memory(waves: Sequence[Wave], external: Container[Value], workers: int) -> MemoryPlan:
    """Offsets of all buffers that are not `external`.

    A worker runs one kernel of a wave at a time and needs the scratch memory of the largest; there
    are no more workers than blocks. Without `workers`, the device provides scratch memory.
    """
    lives: dict[Value, list[int]] = {}  # the first wave and the last
    for i, wave in enumerate(waves):
        for step, _ in wave:
            for v in step.buffers:
                if v not in external:
                    lives.setdefault(v, [i, i])[1] = i
    alias = _aliases(waves, lives)
    blocks: dict[Value, list[int]] = {}
    for v, (first, last) in lives.items():
        block = blocks.setdefault(alias.get(v, v), [first, last])
        block[:] = min(block[0], first), max(block[1], last)
    per_worker = [max(sum(map(aligned, step.scratch)) for step, _ in wave) for wave in waves]
    active = [min(workers, sum(step.grid for step, _ in wave)) for wave in waves]
    lifetimes = [(nbytes(v), first, last) for v, (first, last) in blocks.items()]
    with_scratch = [i for i, size in enumerate(per_worker) if size and active[i]]
    lifetimes += [(active[i] * per_worker[i], i, i) for i in with_scratch]
    offsets, total = assign_offsets(lifetimes)
    offset_of = dict(zip(blocks, offsets, strict=False))
    start = dict(zip(with_scratch, offsets[len(blocks) :], strict=True))
    scratch = [(start.get(i, 0), size) for i, size in enumerate(per_worker)] if workers else []
    largest = max((active[i] * per_worker[i] for i in with_scratch), default=0)
    return MemoryPlan(total, {v: offset_of[alias.get(v, v)] for v in lives}, scratch, largest)


def _aliases(waves: Sequence[Wave], lives: dict[Value, list[int]]) -> dict[Value, Value]:
    """Temporaries that are written in place, and the value whose memory they take: an input that
    one kernel of the wave reads, for the last time."""
    alias: dict[Value, Value] = {}
    for i, wave in enumerate(waves):
        taken: set[Value] = set()
        for v, x in (pair for _, pairs in wave for pair in pairs):
            if (
                v not in alias
                and x not in taken
                and v in lives
                and lives.get(x, (i, 0))[0] < i == lives[x][1]
                and sum(x in step.buffers for step, _ in wave) == 1
            ):
                taken.add(x)
                alias[v] = alias.get(x, x)
    return alias
