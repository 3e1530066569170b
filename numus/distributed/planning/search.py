"""Search for the quickest layout that fits: all divisions of the ranks among the axes."""

from __future__ import annotations

from collections.abc import Iterator

from numus.distributed.planning.estimate import Estimate, estimate
from numus.distributed.planning.layout import Layout
from numus.distributed.planning.machine import Machine
from numus.distributed.planning.transformer import Transformer
from numus.errors import DistributedError

_MICROBATCHES = (1, 2, 4, 8)


def search(sizes: Transformer, ranks: int, machine: Machine, shown: int = 5) -> list[Estimate]:
    """The quickest layouts that fit into memory, the best first.

    >>> from numus.distributed import planning
    >>> sizes = planning.Transformer(64, 32, 1, 1, length=16, batch=2)
    >>> [e.layout.ranks for e in planning.search(sizes, 2, planning.MACHINES["h100"], shown=1)]
    [2]
    """
    widths = (sizes.width, sizes.hidden, sizes.vocabulary)
    found = []
    nearest: Estimate | None = None
    for layout in _layouts(ranks, machine):
        if layout.problem(sizes.batch, sizes.layers, sizes.heads, widths):
            continue
        made = estimate(sizes, layout, machine)
        if made.fits(machine):
            found.append(made)
        elif nearest is None or made.memory.total < nearest.memory.total:
            nearest = made
    if not found:
        if nearest is None:
            raise DistributedError(
                f"plan: {ranks} ranks cannot divide a batch of {sizes.batch}, {sizes.layers} "
                f"layers and {sizes.heads} heads; choose sizes with more common factors"
            )
        raise DistributedError(
            f"plan: no layout of {ranks} ranks fits into {machine.memory_gib:g} GiB; the smallest "
            f"({nearest.layout}) takes {nearest.memory.total / 2**30:.1f} GiB; take more ranks or "
            "checkpointing = true"
        )
    return sorted(found, key=lambda e: e.step_seconds)[:shown]


def _layouts(ranks: int, machine: Machine) -> Iterator[Layout]:
    for tensor in _divisors(ranks):
        if tensor > machine.devices_per_node:
            continue
        for pipe in _divisors(ranks // tensor):
            rest = ranks // tensor // pipe
            for shard in {1, rest, min(rest, machine.devices_per_node)}:
                if rest % shard:
                    continue
                for microbatch in _MICROBATCHES:
                    yield Layout(rest // shard, shard, tensor, pipe, microbatch)


def _divisors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]
