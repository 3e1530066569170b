"""Multistage SIMT GEMM (cp.async) of 4-byte numbers on CUDA cores.

A block computes a tile of C from K-tiles in shared memory (`mainloop.py`); each thread has as large
a tile of accumulators as its registers allow. Every element of C is one running sum over k.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import mainloop
from numus.kernels.matmul.gpu.cost_model import Candidate, fastest
from numus.kernels.matmul.gpu.epilogue import Subtile, store_subtiles
from numus.kernels.matmul.gpu.mainloop import Accumulators, SplitKSizes, StagedOperand, StageShape
from numus.kernels.matmul.gpu.problem import Emitted, GemmCall, register_tile
from numus.target import Target

ZERO = const(0)

WARP = 32
TILE_K = 16
STAGES = 3
VECTOR = 4  # contiguous elements that a thread loads from shared memory
PADDING = 8  # elements between rows of the staged tile, against bank conflicts


@dataclass(frozen=True, slots=True)
class TileShape:
    """Tile of a block and of a thread, and the pipeline."""

    m: int
    n: int
    thread_m: int
    thread_n: int
    k: int = TILE_K
    stages: int = STAGES
    square_warps: bool = False  # nearly square warp tiles, accumulated in serpentine order

    @property
    def threads_m(self) -> int:
        return self.m // self.thread_m

    @property
    def threads_n(self) -> int:
        return self.n // self.thread_n

    @property
    def threads(self) -> int:
        return self.threads_m * self.threads_n


# On one H200: cycles of 16 steps of k with one block on an SM, two, and so on.
_CYCLES = {
    TileShape(128, 128, 8, 16): (5400, 5700),
    TileShape(256, 64, 16, 8): (5600, 6000),
    TileShape(64, 128, 8, 8): (4700, 4900, 6100, 6500),
    TileShape(64, 64, 8, 4): (1700, 2600, 3200, 3600),
}
_OVERHEAD = 2500  # cycles of a block
# Tiles that have an SM to themselves: nothing overlaps their prologue and epilogue. A K-major A is
# transposed by copies of single elements: the fewer rows the better.
WIDE_TILE = TileShape(128, 256, 8, 16, k=8, stages=4, square_warps=True)
TALL_TILE = TileShape(256, 128, 8, 16, k=8, stages=4, square_warps=True)
_SQUARE_CYCLES, _SQUARE_OVERHEAD = (5500,), 10000


def choose_tile(
    target: Target, batch: int, m: int, n: int, k: int, square_warp_tile: TileShape | None = None
) -> tuple[TileShape, int]:
    """Tile and split-K. `square_warp_tile`: a further candidate, without split-K."""
    k_tiles = -(-k // TILE_K)

    def blocks(t: TileShape) -> int:
        return batch * -(-m // t.m) * -(-n // t.n)

    candidates = [Candidate(t, blocks(t), k_tiles, c, _OVERHEAD) for t, c in _CYCLES.items()]
    if square_warp_tile is not None:
        count, cost = blocks(square_warp_tile), (_SQUARE_CYCLES, _SQUARE_OVERHEAD)
        candidates.append(Candidate(square_warp_tile, count, k_tiles, *cost, k_tiles))
    best, split_k, _ = fastest(target, candidates, 4 * batch * m * n)
    return best.tile, split_k


@dataclass(slots=True)
class _Fragment:
    """A thread's elements of one operand: vectors, spread over the tile."""

    name: str
    tile: mainloop.OperandTile
    size: int
    threads: int

    def index(self, thread: Expr, number: int) -> Expr:
        """Row or column in the tile of a thread's `number`-th element."""
        return thread * VECTOR + (number // VECTOR * (self.threads * VECTOR) + number % VECTOR)

    def load(self, thread: Expr, stage: Expr, k: int) -> list[Stmt]:
        if self.tile.operand.is_pairs and k % 2:  # the row is there
            return []
        k //= self.k_step
        at = [self.tile.index(stage, self.index(thread, i), const(k)) for i in range(self.size)]
        loads = [ir.load(self.tile.words, x) for x in at]
        return [ir.Let(self.var(k, i), x, early=True) for i, x in enumerate(loads)]

    @property
    def k_step(self) -> int:
        return 2 if self.tile.operand.is_pairs else 1

    def var(self, k: int, number: int) -> Expr:
        return ir.var(f"{self.name}{k}_{number}", self.tile.words.dtype)

    def factor(self, k: int, number: int) -> tuple[Expr, bool]:
        """An element of the loop's row k, and whether it is negated: of pairs, (re, im) in even
        rows, (-im, re) in odd ones."""
        row, odd = divmod(k, self.k_step)
        return self.var(row, number ^ odd), bool(odd) and number % 2 == 0


Call = GemmCall[TileShape, SplitKSizes, StagedOperand]


def simt_async_gemm(call: Call, block: Expr) -> Emitted:
    sums = accumulate(call.tile, call.sizes, call.dtype, block, (call.a, call.b))
    stores, stage = _epilogue(call, sums)
    return [*sums.body, *stores], [*sums.scratch, stage]


def accumulate(
    t: TileShape, s: SplitKSizes, dtype: DType, block: Expr, operands: mainloop.Operands
) -> Accumulators:
    """Accumulators of a block's tile, row by row of a thread's own."""
    origin, out = mainloop.tile_coordinates(s, block, t.m, t.n)
    shape = StageShape(dtype, t.k, t.stages, t.threads, VECTOR, clamped=t.square_warps)
    tile_a, tile_b, smem_words = mainloop.operand_tiles(shape, operands, origin, (t.m, t.n))
    a = _Fragment("a", tile_a, t.thread_m, t.threads_m)
    b = _Fragment("b", tile_b, t.thread_n, t.threads_n)
    sums = register_tile(t.thread_m, t.thread_n, dtype)
    out += [ir.Set(c, const(0, dtype)) for row in sums for c in row]

    def multiply(lane: Expr, stage: Expr) -> list[Stmt]:
        thread_m, thread_n = _thread_position(t, lane)

        def load(k: int) -> list[Stmt]:
            return [*a.load(thread_m, stage, k), *b.load(thread_n, stage, k)]

        body = load(0)
        for k in range(t.k):
            if k + 1 < t.k:  # double-buffered fragments
                body += load(k + 1)
            for i, j in _accumulation_order(t):
                x, old = a.var(k, i), ir.read(sums[i][j])
                y, is_negated = b.factor(k, j)
                x = -x if is_negated else x
                new = ir.fma(x, y, old) if dtype.kind == "float" else old + x * y
                body.append(ir.Set(sums[i][j], new))
        return body

    out += mainloop.multistage((tile_a, tile_b), origin[0], s, multiply)

    def coordinates(lane: Expr, number: int) -> tuple[Expr, Expr]:
        i, j = divmod(number, t.thread_n)
        thread_m, thread_n = _thread_position(t, lane)
        return a.index(thread_m, i), b.index(thread_n, j)

    registers = [c for row in sums for c in row]
    scratch = [tile_a.words, tile_a.elements]
    return Accumulators(
        out, origin, (t.m, t.n), t.threads, registers, coordinates, scratch, smem_words
    )


def _thread_position(t: TileShape, lane: Expr) -> tuple[Expr, Expr]:
    """Position of a thread's tile in the block. In square warps, pairs of threads share columns and
    every other thread shares rows: half a warp's loads are one access."""
    if not t.square_warps:
        return divmod(lane, t.threads_n)
    width = min(8, t.threads_n)
    warp, thread = divmod(lane, WARP)
    warp_m, warp_n = divmod(warp, t.threads_n // width)
    down = thread // (2 * width) * 2 + thread % 2
    return warp_m * (WARP // width) + down, warp_n * width + thread // 2 % width


def _accumulation_order(t: TileShape) -> list[tuple[int, int]]:
    """Row by row, or serpentine: consecutive products share a factor."""
    rows, columns = range(t.thread_m), range(t.thread_n)
    if not t.square_warps:
        return [(i, j) for i in rows for j in columns]
    return [(i if j % 2 == 0 else t.thread_m - 1 - i, j) for j in columns for i in rows]


def _epilogue(call: Call, sums: Accumulators) -> tuple[list[Stmt], ir.Buffer]:
    """Accumulators through shared memory and the epilogue, a vector of each thread's rows at a
    time."""
    t, words = call.tile, sums.scratch[0]
    rows, ld = VECTOR * t.threads_m, t.n + PADDING
    words.size = const(max(sums.smem_words, rows * ld))
    stage = ir.Buffer("stage", call.dtype, "scratch", const(rows * ld), aliases=words)

    def subtile(number: int) -> Subtile:
        own = range(number * VECTOR, (number + 1) * VECTOR)  # rows of a thread
        registers = [i * t.thread_n + j for j in range(t.thread_n) for i in own]
        return Subtile(number * rows, 0, registers)

    parts = map(subtile, range(t.thread_m // VECTOR))
    return store_subtiles(call, sums, (rows, t.n), stage, ld, parts), stage
