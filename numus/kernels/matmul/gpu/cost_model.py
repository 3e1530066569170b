"""Which tiles a product is cut into, and into how many pieces of k, so that no unit waits long.

What tiles cost is known by measurement: how long a unit takes for a slice of one group, of two that
run there at the same time, and so on; larger tiles make more of what they read, several groups hide
each other's waits. The rest is arithmetic. Times are in cycles of a Hopper multiprocessor
(docs/results/cuda.md); only how they compare matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from numus.target import Target

Tiles = TypeVar("Tiles")

MERGING, MERGING_MANY, MANY = 3000, 6500, 16  # to add up pieces: another kernel, or two
ROUNDS = 4  # of groups, from which on the last one matters less than what pieces cost
BYTES = 1800  # of pieces that are written or read in a cycle


@dataclass(frozen=True, slots=True)
class Way(Generic[Tiles]):
    """A way to do a product."""

    tiles: Tiles
    groups: int  # that it takes
    slices: int  # of k
    times: Sequence[float]  # of a slice: of one group on a unit, of two at the same time, ...
    begin: float  # what a group takes besides
    least: int = 4  # slices that are worth a sum of their own
    once: float = 0  # what a unit takes besides all its groups


def quickest(
    target: Target, ways: Sequence[Way[Tiles]], result_bytes: int
) -> tuple[Way[Tiles], int, int]:
    """The way that takes the least time, into how many pieces it cuts k, and how many groups there
    are for a unit at the same time. `result_bytes`: what a piece of all of k comes to."""
    units = target.num_cores
    found = []
    for number, way in enumerate(ways):
        most = max(1, way.slices // way.least) if way.groups <= ROUNDS * units else 1
        full = {n * units // way.groups for n in range(1, len(way.times) + 1)}
        for many in sorted({min(most, max(1, n)) for n in (*range(1, MANY + 1), *full)}):
            each = -(-way.slices // many)
            pieces = -(-way.slices // each)
            rounds, rest = divmod(-(-way.groups * pieces // units), len(way.times))
            time = way.once + rounds * (each * way.times[-1] + way.begin)
            if rest:
                time += each * way.times[rest - 1] + way.begin
            if pieces > 1:
                time += MERGING if pieces <= MANY else MERGING_MANY
                time += (pieces + 1) * result_bytes / BYTES
            found.append((time, number, pieces, len(way.times) if rounds else rest))
    _, number, pieces, together = min(found)
    return ways[number], pieces, together
