"""Tiles of the split-K skinny GEMM with packed codes (`ring_mma.py`): how blocks share rows,
vectors and k."""

from __future__ import annotations

from dataclasses import dataclass, replace

from numus.dtypes import float32
from numus.kernels.matmul.gpu.packed.gemv import QUAD
from numus.kernels.matmul.gpu.packed.mma_sync import CODE_BITS, MMA_ROWS, MMA_VECTORS
from numus.kernels.matmul.packed import MMA_STEP_CHUNKS, Packing

WARP = 32
WORD_BYTES = 4
PADDING = 4  # rows between the sums of vectors, against bank conflicts


@dataclass(frozen=True)
class RingTuning:
    """Measured on one H200. With fewer codes of a block than these, one that loads them straight
    into registers is as fast; with one vector, it is faster."""

    min_vectors: int = 2
    min_block_bytes: int = 96 << 10
    max_warps: int = 8
    min_warps: int = 4
    max_mmas: int = 2  # of 8 vectors, of a block
    vector_words: int = 64  # registers of a thread that keep vectors
    min_steps: int = 2  # of a warp: sums of all warps are added up for each tile
    max_splits: int = 2
    max_rows: int = 4  # MMAs of 16, of a tile
    min_use: float = 0.8  # of the SMs, below which k is split further
    least_use: float = 0.7
    blocks_per_core: int = 2  # more warps hide more latency
    shared_bytes: int = 112 << 10  # at most, of a block
    stage_bytes: int = 12 << 10  # at least, of a tile: a barrier takes as long as some KiB
    partial_bytes: int = 28 << 10  # of a block's sums that wait for those of its cluster
    numbers_share: int = 32  # of the ring, left for scales and zero points
    chains: int = 4  # of MMAs whose sums do not depend on each other


TUNING = RingTuning()


@dataclass(frozen=True, slots=True)
class RingTile:
    """Of a block."""

    vectors: int  # MMAs of 8 vectors
    vector_blocks: int  # that share rows
    splits: int  # blocks of a cluster, which share k
    warps: int  # that share the k of a block
    steps: int  # of a warp
    rows: int = 1  # MMAs of 16 rows, of a tile
    tiles: int = 1  # one after the other
    row_blocks: int = 1
    stages: int = 1  # of the ring: a tile each

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def span(self) -> int:
        """Chunks of a block."""
        return self.warps * self.steps * MMA_STEP_CHUNKS

    @property
    def tile_rows(self) -> int:
        return self.rows * MMA_ROWS

    @property
    def block_rows(self) -> int:
        return self.tiles * self.tile_rows

    def stage_vectors(self, count: int) -> int:
        """Vectors whose sums warps exchange: of a thread's fragment, two."""
        return 2 if count <= 2 else self.vectors * MMA_VECTORS

    def use(self, cores: int) -> float:
        """The part of the SMs' time that has work, if blocks take equally long."""
        cores *= TUNING.blocks_per_core
        waves = -(-self.blocks // cores)
        return self.blocks / (waves * cores)

    @property
    def blocks(self) -> int:
        return self.row_blocks * self.vector_blocks * self.splits


def _parts(p: Packing, steps: int, splits: int) -> tuple[int, int] | None:
    """(warps, steps of each) of a block, with as few in vain as possible; None where blocks of a
    cluster would share groups."""
    t, own, found = TUNING, -(-steps // splits), list[tuple[int, int]]()
    for warps in range(t.max_warps, t.min_warps - 1, -1):
        each = -(-own // warps)
        if splits == 1 or not p.group or not warps * each * MMA_STEP_CHUNKS % p.group:
            found.append((warps, each))
    return min(found, key=lambda x: x[0] * x[1], default=None)


def is_supported(p: Packing) -> bool:
    """Codes of four bits, whose groups are steps of a warp or longer."""
    return p.bits == CODE_BITS and not p.header and p.group % MMA_STEP_CHUNKS == 0


def choose_tile(
    cores: int, rows: int, vectors: int, chunks: int, p: Packing, max_splits: int
) -> RingTile | None:
    """As few splits of k as leave registers for vectors, room for two tiles, and most SMs busy.
    None where no number of splits does, or where there are few rows."""
    t, steps = TUNING, -(-chunks // MMA_STEP_CHUNKS)
    if vectors < t.min_vectors or not is_supported(p):
        return None
    all_mmas, found, splits = -(-vectors // MMA_VECTORS), list[RingTile](), 1
    vector_blocks = -(-all_mmas // t.max_mmas)
    mmas = -(-all_mmas // vector_blocks)
    while splits <= min(t.max_splits, max_splits) and t.min_warps * splits <= steps:
        parts = _parts(p, steps, splits)
        if parts is not None and _keeps(p, parts[1], mmas):
            shape = RingTile(mmas, vector_blocks, splits, *parts)
            own = _fit(cores, -(-rows // MMA_ROWS), vectors, shape)
            found += [own] if own.stages > 1 else []
            if own.stages > 1 and own.use(cores) >= t.min_use:
                break
        splits *= 2
    best = max(found, key=lambda own: own.use(cores), default=None)
    if best is None or best.use(cores) < t.least_use:
        return None
    nbytes = best.block_rows * best.span * WORD_BYTES
    return best if nbytes >= t.min_block_bytes else None


def _keeps(p: Packing, steps: int, mmas: int) -> bool:
    """Registers hold a warp's part of the vectors, and that is long enough."""
    words = steps * mmas * (QUAD * p.values // 2)
    return steps >= TUNING.min_steps and words <= TUNING.vector_words


def _fit(cores: int, row_tiles: int, vectors: int, shape: RingTile) -> RingTile:
    """Tiles of rows, and stages of the ring."""
    t = TUNING
    clusters = max(1, t.blocks_per_core * cores // (shape.splits * shape.vector_blocks))
    per_block, held = -(-row_tiles // clusters), min(vectors, shape.vectors * MMA_VECTORS)
    of_rows = MMA_ROWS * held * float32.itemsize
    if shape.splits > 1:
        per_block = max(1, min(per_block, t.partial_bytes // of_rows))
    tile_bytes = MMA_ROWS * shape.span * WORD_BYTES
    rows = 1
    while rows < min(per_block, t.max_rows) and rows * tile_bytes <= t.stage_bytes:
        rows *= 2
    tiles = -(-per_block // rows)
    row_blocks = -(-row_tiles // (tiles * rows))
    found = replace(shape, rows=rows, tiles=tiles, row_blocks=row_blocks)
    taken = found.warps * found.stage_vectors(vectors) * (found.tile_rows + PADDING)
    room = t.shared_bytes - taken * float32.itemsize
    room -= tiles * rows * of_rows if shape.splits > 1 else 0
    numbers = room // t.numbers_share
    stages = max(1, min(tiles, (room - numbers) // (rows * tile_bytes)))
    return replace(found, stages=stages)
