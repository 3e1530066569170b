"""Warp-specialised wgmma GEMM fed by TMA, persistent where the epilogue stores whole rows.

Two consumer warpgroups and a producer warp compute a tile of 128 or 64 rows of C. Operands that
TMA cannot read are repacked by a kernel before; where memory turns out to be misaligned at run time
the threads fill the tiles. Persistent blocks load the next tile while one is stored
(`epilogue.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from numus import ir
from numus.dtypes import DType, float32, int32
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import epilogue
from numus.kernels.matmul.gpu.cost_model import MIN_SPLIT_K_TILES, Candidate, fastest
from numus.kernels.matmul.gpu.mainloop import Accumulators, SplitKSizes, tile_coordinates, zero
from numus.kernels.matmul.gpu.problem import Emitted, GemmCall, Operand
from numus.target import Target

ZERO, ONE = const(0), const(1)

MMA_THREADS = 256  # of the consumer warpgroups
THREADS = MMA_THREADS + 32
PERSISTENT_THREADS = MMA_THREADS + 128  # a whole producer warpgroup gives its registers away
TILE_M = 128
MAX_STAGES = 8
MIN_STAGES = 3  # their memory holds the accumulators in the epilogue
EPILOGUE_PADDING = 8  # elements between rows of the staged tile, against bank conflicts
_RESERVED_BYTES = 512  # shared memory of an SM that a block takes besides


@dataclass(slots=True)
class TmaOperand(Operand):
    """An operand that TMA reads. `tensor(origin, extent, batch)`: a tile with all of k."""

    tensor: Callable[[Expr, int, Expr], ir.TmaTensor]
    aligned: Expr


def tile_k(dtype: DType) -> int:
    return ir.SWIZZLE_BYTES // dtype.itemsize


def promotes_accumulators(dtype: DType) -> bool:
    """Two-level accumulation: tensor cores add float8 products with too few bits."""
    return dtype.itemsize == 1 and dtype.kind == "float"


@dataclass(frozen=True, slots=True)
class TileShape:
    """Tile of a block, and its pipeline."""

    n: int
    stages: int
    m: int = TILE_M
    persistent: bool = False
    row_bytes: int = 0  # that a warp of a persistent block stores at a time
    blocks_per_sm: int = 1  # of a persistent kernel

    @property
    def warp_n(self) -> int:
        """Columns of a warp, which has 16 rows."""
        return self.n * self.m // TILE_M

    def threads(self, dtype: DType) -> int:
        """Blocks that have an SM to themselves take registers from a whole producer warpgroup."""
        registers = self.warp_n // 2 * (2 if promotes_accumulators(dtype) else 1)
        return PERSISTENT_THREADS if self.persistent and registers > 64 else THREADS


# By (tile m, tile n), on one H200: cycles of a K-tile with one block on an SM, or two; cycles of a
# block besides; cycles of a launch. 128 x 256 needs an SM to itself: nothing overlaps its epilogue.
_Cycles = dict[tuple[int, int], tuple[tuple[int, ...], int, int]]
_CYCLES: _Cycles = {
    (128, 256): ((1250,), 8000, 0),
    (128, 128): ((850, 1600), 3500, 0),
    (128, 64): ((500, 1000), 2500, 0),
    (64, 64): ((400, 850), 2200, 0),
}
_PERSISTENT_CYCLES: _Cycles = {  # of 8 and 16 bits
    (128, 256): ((1250,), 3300, 2500),
    (128, 128): ((700, 1250), 5000, 1000),
    (128, 64): ((500, 1000), 2000, 500),
    (64, 64): ((400, 850), 2000, 200),
}
_TF32_CYCLES = (900, 1800)  # of TF32 in tiles below 256 columns
_PROMOTED_CYCLES: _Cycles = {  # of float8, whose sums take twice the registers: one block on an SM
    (128, 128): ((700,), 2500, 1000),
    (128, 64): ((500, 1000), 2000, 500),
    (64, 64): ((400, 850), 2000, 200),
}
_INT8_CYCLES: _Cycles = {(128, 96): ((550,), 2500, 800)}  # estimated


# Blocks that share a tile of B of float8 (TMA multicast); clusters of int8 are slower.
FLOAT8_CLUSTER_BLOCKS = 2


def persistent_cycles(dtype: DType) -> _Cycles:
    if dtype is float32:
        return _CYCLES
    if promotes_accumulators(dtype):
        return _PROMOTED_CYCLES
    return _PERSISTENT_CYCLES | _INT8_CYCLES if dtype.itemsize == 1 else _PERSISTENT_CYCLES


def cluster_blocks(target: Target, wanted: int, tile: TileShape, m: int) -> int:
    """Blocks of a cluster, of as many as are wanted: with adjacent tiles of m they have the same
    tile of B, where all tiles of m are in whole clusters (and those of a band, by `swizzle_m`)."""
    alone = tile.persistent and tile.blocks_per_sm == 1
    fits = target.max_cluster_size >= wanted and -(-m // tile.m) % wanted == 0
    return wanted if alone and fits else 1


def choose_tile(
    target: Target,
    dtype: DType,
    shape: tuple[int, ...],
    k: int,
    *,
    persistent: bool = False,
    splits: bool = True,
) -> tuple[TileShape, int]:
    """Tile (of 128 rows unless persistent) and split-K, 1 unless it `splits`."""
    batch, m, n = shape
    k_tiles = -(-k // tile_k(dtype))
    promotes = promotes_accumulators(dtype)
    candidates = []
    known = persistent_cycles(dtype) if persistent else _CYCLES
    for tile, (cycles, overhead, launch) in known.items():
        if dtype is float32 and tile[1] < 256:
            cycles = _TF32_CYCLES
        blocks = batch * -(-m // tile[0]) * -(-n // tile[1])
        if persistent or (tile[0] == TILE_M and not (promotes and tile[1] > 128)):
            least = MIN_SPLIT_K_TILES if splits else k_tiles
            new = Candidate(tile, blocks, k_tiles, cycles, overhead, least, launch)
            candidates.append(new)
    best, split_k, blocks_per_sm = fastest(target, candidates, 4 * batch * m * n)
    return fit_stages(target, best.tile, blocks_per_sm, persistent=persistent), split_k


def fit_stages(
    target: Target, tile: tuple[int, int], blocks_per_sm: int, *, persistent: bool
) -> TileShape:
    """The tile with as many stages as fit into shared memory."""
    m, n = tile
    stage_bytes = (m + n) * ir.SWIZZLE_BYTES
    if not persistent:
        room = (target.shared_bytes - 4096) // blocks_per_sm
        return TileShape(n, max(MIN_STAGES, min(MAX_STAGES, room // stage_bytes)), m)
    row_bytes = epilogue.ROW_BYTES if blocks_per_sm == 1 else epilogue.SHORT_ROW_BYTES
    if n & (n - 1):  # a warp's columns are several of its stores
        row_bytes = min(row_bytes, 2 * (n & -n))
    room = target.shared_bytes // blocks_per_sm - _RESERVED_BYTES - epilogue.smem_bytes(row_bytes)
    stages = max(2, min(MAX_STAGES, room // (stage_bytes + 16)))
    return TileShape(n, stages, m, True, row_bytes, blocks_per_sm)


def swizzle_m(target: Target, tile_n: int, tiles_m: int, sharing: int = 1) -> int:
    """Tile rows of a swizzle band: a wave covers about a square of C. Clusters are `sharing`
    blocks."""
    square = int((target.num_cores * tile_n / TILE_M) ** 0.5)
    return max(1, min(square, tiles_m) // sharing) * sharing


Call = GemmCall[TileShape, SplitKSizes, TmaOperand]
Scale = Callable[[Expr, Expr, Expr], Expr]  # of a row, the first column of a tile, a K-tile


def wgmma_gemm(call: Call, block: Expr, scale: Scale | None = None, sharing: int = 1) -> Emitted:
    """The epilogue takes batch * split_k + split as batch. Products of float8 may be scaled.
    `sharing`: the blocks of a cluster."""
    s, t, dtype = call.sizes, call.tile, call.dtype
    origin, out = tile_coordinates(s, block, t.m, t.n, index32=t.persistent)
    (which, m0, n0), k = origin, tile_k(dtype)
    batch, first, k_tiles = s.k_range(which, k)
    a, b = call.a.tensor(m0, t.m, batch), call.b.tensor(n0, t.n, batch)
    b.sharing = sharing
    count = ir.pipeline_smem_elements(dtype, t.m, t.n, t.stages)
    scratch = ir.Buffer("k_tiles", dtype, "scratch", const(count))
    accumulator = float32 if dtype.kind == "float" else int32
    sums = [ir.Register(f"c{i}", accumulator, lanes=True) for i in range(t.warp_n // 2)]
    overwrites = t.persistent and not promotes_accumulators(dtype)  # the first MMA of a tile
    aligned = call.a.aligned & call.b.aligned
    start = first * k

    def scales(lane: Expr, q: Expr) -> tuple[Expr, Expr]:
        """Those of a thread's even rows, and of the rows 8 below."""
        assert scale is not None
        rows = (ir.minimum(m0 + coordinates(t, lane, i)[0], s.m - 1) for i in (0, 2))
        above, below = (scale(row, n0, first + q) for row in rows)
        return above, below

    factors = None
    if scale is not None:
        lane, number = ir.var("scaled_lane"), ir.var("scaled_k_tile")
        factors = ir.KTileScales(lane, number, scales(lane, number))
    mainloop = ir.WgmmaMainloop(
        *(sums, a, b, start, k_tiles, t.stages, scratch, overwrites, factors)
    )
    out += [] if overwrites else [ir.Set(c, const(0, accumulator)) for c in sums]
    out.append(ir.If(aligned, [mainloop]))
    q = ir.var("k_tile")

    def fill(operand: TmaOperand, tile: ir.TmaTensor, offset: int) -> Stmt:
        element = existing(operand, batch, s.k, dtype)
        return filled_tile(tile, scratch, offset, start + q * k, k, element)

    parts = sums
    if scale is not None:
        parts = [ir.Register(f"part{i}", accumulator, lanes=True) for i in range(len(sums))]
    onto = q if overwrites else None
    b_dtype = b.buffer.dtype if b.buffer.dtype is not a.buffer.dtype else None
    mma = ir.WgmmaTile(parts, scratch, t.m, t.n, (a.k_major, b.k_major), onto, b_dtype)
    slow_loop: list[Stmt] = [fill(call.a, a, 0), fill(call.b, b, t.m * k)]
    slow_loop += [ir.AsyncFence(), ir.AsyncWait(0), mma, ir.AsyncWait(0)]
    if scale is not None:
        lane = ir.var("slow_lane")
        own = scales(lane, q)
        add = [
            ir.Set(c, ir.fma(ir.read(part), own[i // 2 % 2], ir.read(c)))
            for i, (c, part) in enumerate(zip(sums, parts, strict=True))
        ]
        cleared = [ir.Set(part, const(0, accumulator)) for part in parts]
        scaled = ir.For(lane, ZERO, const(MMA_THREADS), "lanes", list[Stmt](add))
        slow_loop = [*cleared, *slow_loop, scaled]
    out.append(ir.If(~aligned, [ir.For(q, ZERO, k_tiles, "serial", slow_loop)]))
    if t.persistent:
        about = ((t.m, t.n), t.warp_n, t.row_bytes, sums, origin)
        stores, buffers = epilogue.WarpEpilogue(call, *about).store()
    else:
        ld = t.n + EPILOGUE_PADDING
        stage = ir.Buffer("stage", accumulator, "scratch", const(t.m * ld), aliases=scratch)
        at = (origin, (t.m, t.n), MMA_THREADS, sums, partial(coordinates, t), [scratch], count)
        whole = epilogue.Subtile(0, 0, range(len(sums)))
        stores = epilogue.store_subtiles(
            call, Accumulators(out, *at), (t.m, t.n), stage, ld, [whole]
        )
        buffers = [stage]
    return [*out, *stores], [scratch, *buffers]


def existing(
    operand: TmaOperand, batch: Expr, extent: Expr, dtype: DType
) -> Callable[[Expr, Expr], Expr]:
    """Elements (mn, k) of an operand, zeros past its end."""

    def element(mn: Expr, p: Expr) -> Expr:
        exists = (mn < operand.extent) & (p < extent)
        return ir.select(exists, operand.read(batch, mn, p, exists), zero(dtype))

    return element


def filled_tile(
    tile: ir.TmaTensor, scratch: ir.Buffer, offset: int, start: Expr, k: int,
    element: Callable[[Expr, Expr], Expr],
) -> Stmt:  # fmt: skip
    """A tile from a k on in shared memory, element by element (mn, k); a thread has 16 bytes at a
    time."""
    itemsize = scratch.dtype.itemsize
    lane, vector = ir.var(f"fill_{offset}"), 16 // itemsize
    row_vectors = (k if tile.k_major else tile.tile_mn) // vector
    slow, fast = lane // row_vectors, lane % row_vectors * vector
    mn, p = (slow, fast) if tile.k_major else (fast, slow)
    to = ir.swizzle(tile.k_major, mn, p, k, itemsize) + offset
    mn, p = tile.mn_offset + mn, start + p
    body: list[Stmt] = []
    for u in range(vector):
        value = element(mn, p + u) if tile.k_major else element(mn + u, p)
        body.append(ir.Store(scratch, to + u, value))
    return ir.For(lane, ZERO, const(tile.tile_mn * k // vector), "lanes", body)


def coordinates(t: TileShape, lane: Expr, number: int) -> tuple[Expr, Expr]:
    """A thread has two adjacent elements in each of two rows, of every 64 x 8."""
    warp_n, warp_m = divmod(lane // 32, t.m // 16)
    if t.m == TILE_M:
        warp_m, warp_n = lane // 32, ZERO
    row = warp_m * 16 + lane % 32 // 4 + number // 2 % 2 * 8
    return row, warp_n * t.warp_n + lane % 4 * 2 + number // 4 * 8 + number % 2
