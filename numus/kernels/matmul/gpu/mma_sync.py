"""Warp-level tensor-core GEMM (mma.sync), mainloop.multistage or interleaved.

A block computes a tile of C, each warp a part of it, from K-tiles in shared memory (`mainloop.py`;
those of float64 by the interleaved mainloop).
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import mainloop
from numus.kernels.matmul.gpu.cost_model import Candidate, fastest
from numus.kernels.matmul.gpu.epilogue import Subtile, store_subtiles
from numus.kernels.matmul.gpu.epilogue_vectors import STORE_VECTOR
from numus.kernels.matmul.gpu.mainloop import Accumulators, SplitKSizes, StagedOperand, StageShape
from numus.kernels.matmul.gpu.problem import Emitted, GemmCall, register_tile
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
        padding = (
            32 // mainloop.word_dtype(dtype).itemsize
        )  # a warp reads 4 rows of 8: distinct banks
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
    word = mainloop.word_dtype(dtype).itemsize
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
        return target.shared_bytes // (
            (tile_m + tile_n) * (k_words + mainloop.K_MAJOR_PADDING) * word
        )

    # float64 leaves room for few blocks: deeper K-tiles stall them less often
    deep = word == 8 and fitting(2 * TILE_K_WORDS) >= 3 * blocks_per_sm
    k_words = 2 * TILE_K_WORDS if deep else TILE_K_WORDS
    stages = max(2, min(4 if target.async_copy else 2, fitting(k_words) // blocks_per_sm))
    shape = TileShape(tile_m, tile_n, k_words, stages, warps_m, warps_n, mixed)
    count = -(-k // shape.stage_shape(dtype).tile_k)
    return shape, -(-count // -(-count // min(split_k, count)))


Call = GemmCall[TileShape, SplitKSizes, StagedOperand]


def mma_sync_gemm(call: Call, block: Expr) -> Emitted:
    sums = accumulate(call.tile, call.sizes, call.dtype, block, (call.a, call.b))
    stores, stage = _epilogue(call, sums)
    return [*sums.body, *stores], [*sums.scratch, stage]


def accumulate(
    t: TileShape, s: SplitKSizes, dtype: DType, block: Expr, operands: mainloop.Operands
) -> Accumulators:
    """Accumulators of a block's tile: of every 16 x 8, a thread has two adjacent elements in each
    of two rows."""
    warp_m, warp_n = t.warp_tile
    origin, out = mainloop.tile_coordinates(s, block, t.m, t.n)
    shape, steps = t.stage_shape(dtype), t.k_words // MMA_K_WORDS
    a, b, smem_words = mainloop.operand_tiles(shape, operands, origin, (t.m, t.n))
    accumulator = dt.int32 if dtype.is_integer else dt.compute_dtype(dtype)
    mmas_m, mmas_n = warp_m // MMA_M, warp_n // MMA_N
    sums = [register_tile(mmas_n, 4, accumulator, f"c{i}_") for i in range(mmas_m)]
    registers = [c for row in sums for mma in row for c in mma]
    out += [ir.Set(c, const(0, accumulator)) for c in registers]

    def words(tag: str, step: int, mma: int, count: int) -> list[Expr]:
        """Names of a thread's part of a fragment."""
        return [ir.var(f"{tag}{step}_{mma}_{u}", a.words.dtype) for u in range(count)]

    def load(step: int, lane: Expr, stage: Expr, tag: str) -> list[ir.Let]:
        """A thread's words: four per 16 rows of A (rows 8 apart, words 4 apart), two per 8 columns
        of B."""
        warp, thread = divmod(lane, WARP)
        row, word = divmod(thread, 4)
        at_m, at_n = divmod(warp, t.warps_n)
        out: list[ir.Let] = []
        both = (("a", a, at_m * warp_m, mmas_m), ("b", b, at_n * warp_n, mmas_n))
        for name, tile, first, count in both:
            for i in range(count):
                for j, to in enumerate(words(f"{tag}{name}", step, i, 4 if tile is a else 2)):
                    down, right = (i * MMA_M + j % 2 * 8, j // 2) if tile is a else (i * MMA_N, j)
                    mn, at = first + row + down, word + step * MMA_K_WORDS + right * 4
                    out.append(ir.Let(to, ir.load(tile.words, tile.index(stage, mn, at))))
        return out

    def multiply(step: int, tag: str) -> list[Stmt]:
        return [
            ir.MmaSync(c, words(f"{tag}a", step, i, 4), words(f"{tag}b", step, j, 2), dtype)
            for i, row in enumerate(sums)
            for j, c in enumerate(row)
        ]

    def k_tile(lane: Expr, stage: Expr) -> list[Stmt]:
        return [x for i in range(steps) for x in (*load(i, lane, stage, ""), *multiply(i, ""))]

    tiles, which = (a, b), origin[0]
    if t.interleaved:
        k_steps = mainloop.KSteps(steps, load, multiply)
        out += mainloop.interleaved(tiles, which, s, k_steps)
    else:
        out += mainloop.multistage(tiles, which, s, k_tile)

    def coordinates(lane: Expr, number: int) -> tuple[Expr, Expr]:
        warp, thread = divmod(lane, WARP)
        down, right = divmod(warp, t.warps_n)
        (i, j), u = divmod(number // 4, mmas_n), number % 4
        row = down * warp_m + thread // 4 + i * MMA_M + u // 2 * 8
        return row, right * warp_n + thread % 4 * 2 + j * MMA_N + u % 2

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
    subtiles = 1
    while t.m * (t.n // subtiles + STORE_VECTOR) * dtype.itemsize > room:
        subtiles *= 2
    columns = t.n // subtiles
    ld = columns + STORE_VECTOR
    stage = ir.Buffer("stage", dtype, "scratch", const(t.m * ld), aliases=words)
    vector = 16 // dtype.itemsize if t.interleaved else STORE_VECTOR

    def subtile(number: int) -> Subtile:
        def own(lane: Expr) -> Expr:
            return (lane // WARP % t.warps_n // (t.warps_n // subtiles)).eq(number)

        every = range(len(sums.registers))
        return Subtile(0, number * columns, every, own if subtiles > 1 else None)

    parts = map(subtile, range(subtiles))
    return store_subtiles(call, sums, (t.m, columns), stage, ld, parts, vector), stage
