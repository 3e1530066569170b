"""Cost model of tiled GEMMs with wave quantisation: choice of tile and split-K.

The cycles of one K-tile are measured, by the number of blocks that share an SM; the model counts
waves of blocks from there. Only the ratios of costs matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from numus.target import Target

TileT = TypeVar("TileT")


@dataclass(frozen=True, slots=True)
class SplitKTuning:
    """Costs of split-K, in cycles of one H200 (docs/results/cuda.md)."""

    one_pass_splits: int = 16  # up to which one kernel sums the partial products
    one_pass_cycles: int = 3000
    two_pass_cycles: int = 6500
    bytes_per_cycle: int = 1800  # of partial products, written or read
    max_waves: int = 4  # above, the last wave costs less than split-K does


TUNING = SplitKTuning()
MIN_SPLIT_K_TILES = 4


@dataclass(frozen=True, slots=True)
class Candidate(Generic[TileT]):
    """A tile and its cost in cycles."""

    tile: TileT
    blocks: int  # without split-K
    k_tiles: int
    cycles: Sequence[float]  # of a K-tile, with 1, 2, ... blocks on an SM
    block_overhead: float
    min_split_k_tiles: int = MIN_SPLIT_K_TILES  # K-tiles of a split, at least
    launch_overhead: float = 0


def fastest(
    target: Target, candidates: Sequence[Candidate[TileT]], result_bytes: int
) -> tuple[Candidate[TileT], int, int]:
    """The cheapest candidate, its split-K and its blocks per SM; `result_bytes`: of one split."""
    sms = target.num_cores
    found = []
    for number, c in enumerate(candidates):
        occupancy = len(c.cycles)
        limit = 1
        if c.blocks <= TUNING.max_waves * sms:
            limit = max(1, c.k_tiles // c.min_split_k_tiles)
        full_waves = {n * sms // c.blocks for n in range(1, occupancy + 1)}
        splits = (*range(1, TUNING.one_pass_splits + 1), *full_waves)
        for wanted in sorted({min(limit, max(1, n)) for n in splits}):
            k_tiles = -(-c.k_tiles // wanted)
            split_k = -(-c.k_tiles // k_tiles)
            waves, rest = divmod(-(-c.blocks * split_k // sms), occupancy)
            cost = c.launch_overhead + waves * (k_tiles * c.cycles[-1] + c.block_overhead)
            if rest:
                cost += k_tiles * c.cycles[rest - 1] + c.block_overhead
            if split_k > 1:
                one_pass = split_k <= TUNING.one_pass_splits
                cost += TUNING.one_pass_cycles if one_pass else TUNING.two_pass_cycles
                cost += (split_k + 1) * result_bytes / TUNING.bytes_per_cycle
            found.append((cost, number, split_k, occupancy if waves else rest))
    _, number, split_k, blocks_per_sm = min(found)
    return candidates[number], split_k, blocks_per_sm
