"""Warp-level tensor-core GEMM (mma.sync), multistage or interleaved.

A block computes a tile of C, each warp a part of it, from K-tiles in shared memory (`mainloop.py`,
and for float64 `mainloop_interleaved.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.cost_model import Candidate, fastest
from numus.kernels.matmul.gpu.mainloop import (
    K_MAJOR_PADDING,
    STORE_VECTOR,
    Accumulators,
    Operands,
    OperandTile,
    SplitKSizes,
    StagedOperand,
    StageShape,
    multistage,
    operand_tiles,
    store_tile,
    tile_coordinates,
    word_dtype,
)
from numus.kernels.matmul.gpu.mainloop_interleaved import KSteps, interleaved
from numus.kernels.matmul.gpu.problem import Emitted, GemmCall
from numus.target import Target

ZERO = const(0)

WARP = 32
MMA_M, MMA_N, MMA_K_WORDS = 16, 8, 8  # of one instruction
TILE_K_WORDS = 16

# Element types that there are tensor cores for; `Target.mma` says which a device has.
MMA_DTYPES = (dt.float16, dt.bfloat16, dt.float32, dt.float64, dt.int8, dt.uint8)


@dataclass(frozen=True, slots=True)
class TileShape:
    """Tile of a block, its warps and its pipeline."""

    m: int
    n: int
    k_words: int
    stages: int
    warps_m: int
    warps_n: int
    interleaved: bool

    @property
    def threads(self) -> int:
        return self.warps_m * self.warps_n * WARP

    @property
    def warp_tile(self) -> tuple[int, int]:
        return self.m // self.warps_m, self.n // self.warps_n

    def stage_shape(self, dtype: DType) -> StageShape:
        padding = 32 // word_dtype(dtype).itemsize  # a warp reads 4 rows of 8: distinct banks
        return StageShape(dtype, self.k_words, self.stages, self.threads, padding)


# By (tile m, tile n, warps m, warps n, interleaved), on one H200: cycles of a K-tile with one block
# on an SM, two, or three.
_Cycles = dict[tuple[int, int, int, int, bool], tuple[int, ...]]
_FLOAT64_CYCLES: _Cycles = {
    (128, 128, 2, 4, False): (2500,),
    (64, 256, 2, 4, False): (2870,),
    (128, 64, 2, 4, False): (1465,),
    (64, 64, 2, 4, False): (860, 1720),
    (32, 64, 2, 4, False): (545, 1040),
}
_INTERLEAVED_CYCLES: _Cycles = {  # of float64
    (128, 128, 2, 4, True): (2350,),
    (128, 64, 2, 2, True): (1940, 2640),
    (64, 64, 2, 2, True): (670, 1210, 2060),
    (32, 64, 2, 4, False): (545, 1040),
}
_CYCLES: _Cycles = {
    (128, 128, 2, 4, False): (2350, 2500),
    (128, 64, 2, 4, False): (935, 2060),
    (64, 64, 2, 4, False): (820, 1130),
}
_OVERHEAD, _INTERLEAVED_OVERHEAD = 2500, 10000  # cycles of a block, per 64 rows, per 64 x 64


def choose_tile(
    target: Target, dtype: DType, size: tuple[int, int, int, int], interleaves: bool = False
) -> tuple[TileShape, int]:
    """Tile and split-K for (batch, m, n, k). Without asynchronous copies two stages are as good as
    many. `interleaves`: operands are in memory, so that the interleaved mainloop takes them."""
    batch, m, n, k = size
    word = word_dtype(dtype).itemsize
    k_tiles = -(-k * dtype.itemsize // (TILE_K_WORDS * word))
    known = _CYCLES if word < 8 else _INTERLEAVED_CYCLES if interleaves else _FLOAT64_CYCLES
    candidates = []
    for tile, cycles in known.items():
        tile_m, tile_n, *_, mixed = tile
        blocks = batch * -(-m // tile_m) * -(-n // tile_n)
        overhead = _OVERHEAD * tile_m // 64
        if mixed:
            overhead = _INTERLEAVED_OVERHEAD * tile_m * tile_n // 64**2
        candidates.append(Candidate(tile, blocks, k_tiles, cycles, overhead))
    best, split_k, blocks_per_sm = fastest(target, candidates, word * batch * m * n)
    tile_m, tile_n, warps_m, warps_n, mixed = best.tile

    def fitting(k_words: int) -> int:
        """Stages that fit into shared memory."""
        return target.shared_bytes // ((tile_m + tile_n) * (k_words + K_MAJOR_PADDING) * word)

    # float64 leaves room for few blocks: deeper K-tiles stall them less often
    deep = word == 8 and fitting(2 * TILE_K_WORDS) >= 3 * blocks_per_sm
    k_words = 2 * TILE_K_WORDS if deep else TILE_K_WORDS
    stages = max(2, min(4 if target.async_copy else 2, fitting(k_words) // blocks_per_sm))
    shape = TileShape(tile_m, tile_n, k_words, stages, warps_m, warps_n, mixed)
    count = -(-k // shape.stage_shape(dtype).tile_k)
    return shape, -(-count // -(-count // min(split_k, count)))


def _name(tag: str, step: int, mma: int, word: int, dtype: DType) -> Expr:
    return ir.var(f"{tag}{step}_{mma}_{word}", dtype)


Call = GemmCall[TileShape, SplitKSizes, StagedOperand]


def mma_sync_gemm(call: Call, block: Expr) -> Emitted:
    sums = accumulate(call.tile, call.sizes, call.dtype, block, (call.a, call.b))
    stores, stage = _epilogue(call, sums)
    return [*sums.body, *stores], [*sums.scratch, stage]


def accumulate(
    t: TileShape, s: SplitKSizes, dtype: DType, block: Expr, operands: Operands
) -> Accumulators:
    """Accumulators of a block's tile: of every 16 x 8, a thread has two adjacent elements in each
    of two rows."""
    warp_m, warp_n = t.warp_tile
    origin, out = tile_coordinates(s, block, t.m, t.n)
    shape = t.stage_shape(dtype)
    a, b, smem_words = operand_tiles(shape, operands, origin, (t.m, t.n))
    accumulator = dt.int32 if dtype.is_integer else dt.compute_dtype(dtype)
    sums = [
        [
            [ir.Register(f"c{i}_{j}_{u}", accumulator, lanes=True) for u in range(4)]
            for j in range(warp_n // MMA_N)
        ]
        for i in range(warp_m // MMA_M)
    ]
    registers = [c for row in sums for mma in row for c in mma]
    out += [ir.Set(c, const(0, accumulator)) for c in registers]

    def load(step: int, lane: Expr, stage: Expr, tag: str) -> list[ir.Let]:
        """A thread's words: four per 16 rows of A (rows 8 apart, words 4 apart), two per 8 columns
        of B."""
        warp, thread = divmod(lane, WARP)
        row, word = divmod(thread, 4)

        def fragments(tile: OperandTile, at: Expr, extent: int, mma: int, tag: str) -> list[ir.Let]:
            first = at * extent
            out: list[ir.Let] = []
            for i in range(extent // mma):
                for j in range(2 * mma // MMA_N):
                    down = i * mma + (j % 2 * 8 if mma == MMA_M else 0)
                    right = step * MMA_K_WORDS + (j // 2 if mma == MMA_M else j) * 4
                    mn = first + row + down
                    index = tile.index(stage, mn, word + right)
                    name = _name(tag, step, i, j, tile.words.dtype)
                    out.append(ir.Let(name, ir.load(tile.words, index)))
            return out

        at_m, at_n = divmod(warp, t.warps_n)
        fragments_a = fragments(a, at_m, warp_m, MMA_M, f"{tag}a")
        return [*fragments_a, *fragments(b, at_n, warp_n, MMA_N, f"{tag}b")]

    def multiply(step: int, tag: str) -> list[Stmt]:
        word = a.words.dtype
        mmas: list[Stmt] = []
        for i, row in enumerate(sums):
            x = [_name(f"{tag}a", step, i, u, word) for u in range(2 * MMA_M // MMA_N)]
            for j, c in enumerate(row):
                y = [_name(f"{tag}b", step, j, u, word) for u in range(2)]
                mmas.append(ir.MmaSync(c, x, y, dtype))
        return mmas

    def k_tile(lane: Expr, stage: Expr) -> list[Stmt]:
        body: list[Stmt] = []
        for step in range(t.k_words // MMA_K_WORDS):
            body += [*load(step, lane, stage, ""), *multiply(step, "")]
        return body

    if t.interleaved:
        out += interleaved((a, b), origin[0], s, KSteps(t.k_words // MMA_K_WORDS, load, multiply))
    else:
        out += multistage((a, b), origin[0], s, k_tile)

    def coordinates(lane: Expr, number: int) -> tuple[Expr, Expr]:
        warp, thread = divmod(lane, WARP)
        down, right = divmod(warp, t.warps_n)
        (i, j), u = divmod(number // 4, warp_n // MMA_N), number % 4
        row = down * warp_m + thread // 4
        pair = thread % 4 * 2
        column = right * warp_n + pair
        row = row + i * MMA_M + u // 2 * 8
        return row, column + j * MMA_N + u % 2

    scratch = [a.words, a.elements]
    return Accumulators(
        out, origin, (t.m, t.n), t.threads, registers, coordinates, scratch, smem_words
    )


def _epilogue(call: Call, sums: Accumulators) -> tuple[list[Stmt], ir.Buffer]:
    """Accumulators through shared memory and the epilogue, in subtiles of as many columns as fit
    into the memory of the mainloop."""
    t = call.tile
    dtype, words = sums.registers[0].dtype, sums.scratch[0]
    room = sums.smem_words * words.dtype.itemsize
    which, m0, n0 = sums.origin
    subtiles = 1
    while t.m * (t.n // subtiles + STORE_VECTOR) * dtype.itemsize > room:
        subtiles *= 2
    columns = t.n // subtiles
    ld = columns + STORE_VECTOR
    stage = ir.Buffer("stage", dtype, "scratch", const(t.m * ld), aliases=words)
    vector = 16 // dtype.itemsize if t.interleaved else STORE_VECTOR
    out: list[Stmt] = []
    for subtile in range(subtiles):
        lane = ir.var(f"stage_lane{subtile}")
        to_shared: list[Stmt] = []
        for number, c in enumerate(sums.registers):
            row, column = sums.coordinates(lane, number)
            at = row * ld + column - subtile * columns
            to_shared.append(ir.Store(stage, at, ir.read(c)))
        if subtiles > 1:
            warp_n = lane // WARP % t.warps_n
            own = (warp_n // (t.warps_n // subtiles)).eq(subtile)
            to_shared = [ir.If(own, to_shared)]
        out.append(ir.For(lane, ZERO, const(t.threads), "lanes", to_shared))
        origin = (which, m0, n0 + subtile * columns)
        out.append(store_tile(call, stage, (t.m, columns), ld, origin, f"{subtile}", vector))
    return out, stage
