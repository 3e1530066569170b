"""Skinny GEMM on tensor cores (mma.sync): a matrix of 16-bit floats times 5 to 16 vectors.

As in `gemv.py` the matrix is loaded once, straight into registers; MMAs multiply 16 vectors as fast
as one. They take pairs along k in any order on which both operands agree, so threads pass vectors
as they are in memory; of MN-major matrices, elements of two rows of memory are paired. The warps of
a block share k, and reduce through shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from numus import dtypes as dt
from numus import ir
from numus.dtypes import float32
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import problem
from numus.kernels.matmul.gpu.gemv import GemvSizes
from numus.kernels.matmul.gpu.mainloop import zero
from numus.kernels.matmul.gpu.problem import Emitted, GemmCall, VectorOperand
from numus.target import Target

ZERO, ONE = const(0), const(1)
WARP = 32

MMA_M, MMA_N = 16, 8  # vectors and rows of one instruction
K_MAJOR_WARP_K, MN_MAJOR_WARP_K = 32, 16  # of a warp's step
VECTOR, K_QUAD = 8, 4  # contiguous elements of the matrix; steps of k per thread, MN-major


@dataclass(frozen=True, slots=True)
class GemvMmaTuning:
    """Measured on one H200."""

    min_vectors: int = 5  # with fewer, CUDA cores keep up with memory
    max_vectors: int = 16
    blocks_per_sm: int = 3
    loads_in_flight: int = 4  # of the matrix per thread, K-major


TUNING = GemvMmaTuning()


@dataclass(frozen=True, slots=True)
class GemvShape:
    """Tile of a block: 16 vectors per MMA down, 8 rows of the matrix per MMA across."""

    k_major: bool
    mmas_m: int
    mmas_n: int
    warps: int
    half_m: bool  # at most 8 vectors
    unroll: int = 2
    max_vector: ClassVar[int] = VECTOR  # elements of the matrix that a thread loads at once

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def block_rows(self) -> int:
        return self.mmas_n * MMA_N

    @property
    def warp_k(self) -> int:
        return K_MAJOR_WARP_K if self.k_major else MN_MAJOR_WARP_K

    @property
    def block_k(self) -> int:
        """Steps of k of all warps together."""
        return self.warp_k * self.warps

    @property
    def smem_bytes(self) -> int:
        return self.warps * self.mmas_m * MMA_M * (self.block_rows + MMA_N) * float32.itemsize

    def loads_vectors(self, vector: int, k: int) -> bool:
        """Of the matrix, if so many elements are aligned."""
        return vector >= VECTOR and (self.k_major or k % K_QUAD == 0)

    def split_k(self, target: Target, batch: int, rows: int, k: int) -> int:
        """Splits of k where there are too few blocks for the SMs."""
        blocks = batch * -(-rows // self.block_rows)
        return max(1, min(2 * target.num_cores // blocks, k // (4 * self.block_k)))


def choose_shape(
    target: Target, k_major: bool, batch: int, rows: int, vectors: int, k: int
) -> GemvShape:
    """As many rows per block as leave some blocks for every SM."""
    mmas_n, unroll = VECTOR, 2
    if k_major:
        mmas_n, wanted = 4, TUNING.blocks_per_sm * target.num_cores
        while mmas_n > 1 and batch * -(-rows // (mmas_n * MMA_N)) < wanted:
            mmas_n //= 2
        unroll = TUNING.loads_in_flight // mmas_n
    found = GemvShape(k_major, -(-vectors // MMA_M), mmas_n, 8, vectors <= MMA_M // 2, unroll)
    while found.warps > 4 and (found.smem_bytes > target.shared_bytes or found.block_k > k):
        found = replace(found, warps=found.warps // 2)
    return found


Call = GemmCall[GemvShape, GemvSizes, VectorOperand]  # A is the matrix, B the vectors
Fragments = list[list[list[ir.Register]]]  # [MMA down][MMA across]


def gemv_mma_sync(call: Call, block: Expr) -> Emitted:
    """The epilogue takes (batch, vector, row, value)."""
    s, sizes = call.tile, call.sizes
    batch, row0 = block // sizes.blocks, block % sizes.blocks * s.block_rows
    sums = [problem.register_tile(s.mmas_n, 4, float32, f"c{i}_") for i in range(s.mmas_m)]
    out: list[Stmt] = [ir.Set(c, const(0, float32)) for row in sums for mma in row for c in mma]
    aligned = call.a.aligned & call.b.aligned
    paths = [(aligned, True), (~aligned, False)]
    if call.a.address is None:
        paths = [(const(True, dt.bool_), False)]
    for condition, vectorised in paths:
        out += problem.when(condition, _KLoop(call, batch, row0, sums, vectorised).loops)
    steps, stage = block_reduce(call, batch, row0, sums)
    return [*out, *steps], [stage]


Pairs = tuple[list[Expr], list[Expr]]


class _KLoop:
    """A thread's loads and its warp's MMAs."""

    def __init__(
        self, call: Call, batch: Expr, row0: Expr, sums: Fragments, vectorised: bool
    ) -> None:
        self.call, self.batch, self.row0, self.sums = call, batch, row0, sums
        self.vectorised = vectorised
        self.lane = ir.var("lane" if vectorised else "slow_lane")
        self.warp, thread = divmod(self.lane, WARP)
        self.row, self.word = divmod(thread, 4)

    def loops(self) -> list[Stmt]:
        """Unrolled steps of all warps, then the rest, predicated."""
        s, k = self.call.tile, self.call.sizes.k
        i, j = (ir.var(f"{name}{'' if self.vectorised else '_slow'}") for name in ("step", "rest"))
        unroll = s.unroll if self.vectorised else 1
        step = self._k_major if s.k_major else self._mn_major
        count = k // (s.block_k * unroll)
        body: list[Stmt] = []
        mmas: list[Stmt] = []
        for u in range(unroll):
            at = (i * unroll + u) * s.warps + self.warp
            mmas += step(body, at * s.warp_k, False, f"{u}")
        done = count * (s.block_k * unroll)
        left = (k - done + (s.block_k - 1)) // s.block_k
        rest: list[Stmt] = []
        rest_mmas = step(rest, done + (j * s.warps + self.warp) * s.warp_k, True, "r")
        inner: list[Stmt] = [
            ir.For(i, ZERO, count, "serial", body + mmas),
            ir.For(j, ZERO, left, "serial", rest + rest_mmas),
        ]
        return [ir.For(self.lane, ZERO, const(s.threads), "lanes", inner)]

    def load_along_k(
        self, out: list[Stmt], x: VectorOperand, mn: Expr, k: Expr, count: int, end: bool, tag: str
    ) -> list[Expr]:
        """Words of elements (mn, k ... k + count - 1); zeros past the end, where it may come."""
        size, dtype = self.call.sizes.k, self.call.dtype
        ks = [k + u for u in range(count)]
        exists = [q < size for q in ks]
        if self.vectorised and x.k_major and x.vector >= count:
            start = ir.minimum(k, size - count) if end else k
            found = x.load_contiguous(out, self.batch, mn, start, count, tag)
            exists = [k < size] * count
        else:
            positions = [(mn, ir.minimum(q, size - 1) if end else q) for q in ks]
            found = x.load_elements(out, self.batch, positions, tag)
        if end:
            found = [ir.select(c, v, zero(dtype)) for c, v in zip(exists, found, strict=True)]
        return [pair(a, b) for a, b in zip(found[::2], found[1::2], strict=True)]

    def vectors(self, out: list[Stmt], k: Expr, count: int, end: bool, tag: str) -> list[Pairs]:
        """Words of two vectors, 8 apart, for each MMA down."""
        s, last = self.call.tile, self.call.sizes.vectors - 1

        def words(i: int, half: int) -> list[Expr]:
            if half and s.half_m:
                return [const(0, dt.uint32)] * (count // 2)
            mn = ir.minimum(self.row + i * MMA_M + half * 8, last)
            return self.load_along_k(out, self.call.b, mn, k, count, end, f"x{tag}_{i}{half}")

        return [(words(i, 0), words(i, 1)) for i in range(s.mmas_m)]

    def _k_major(self, out: list[Stmt], k0: Expr, end: bool, tag: str) -> list[Stmt]:
        """MMAs of a warp's step from k0 on, which may reach past the `end`; loads go to `out`. A
        thread has a vector of each of its rows: words of two MMAs."""
        k, last = k0 + self.word * VECTOR, self.call.sizes.rows - 1
        rows = []
        for j in range(self.call.tile.mmas_n):
            row = ir.minimum(self.row0 + self.row + j * MMA_N, last)
            rows.append(self.load_along_k(out, self.call.a, row, k, VECTOR, end, f"w{tag}_{j}"))
        vectors = self.vectors(out, k, VECTOR, end, tag)
        mmas: list[Stmt] = []
        for step in range(0, VECTOR // 2, 2):
            for i, (low, high) in enumerate(vectors):
                x = [low[step], high[step], low[step + 1], high[step + 1]]
                for j, words in enumerate(rows):
                    y = [words[step], words[step + 1]]
                    mmas.append(ir.MmaSync(self.sums[i][j], x, y, self.call.dtype))
        return mmas

    def _mn_major(self, out: list[Stmt], k0: Expr, end: bool, tag: str) -> list[Stmt]:
        """A thread has vectors of rows at four steps of k; each row belongs to another MMA."""
        size, matrix, dtype = self.call.sizes.k, self.call.a, self.call.dtype
        k, row = k0 + self.word * K_QUAD, self.row0 + self.row * VECTOR
        rows = []
        for u in range(K_QUAD):
            at = ir.minimum(k + u, size - 1) if end else k + u
            how = (VECTOR, f"w{tag}_{u}", self.vectorised)
            values = matrix.load_along_mn(out, self.batch, row, at, *how)
            if end:
                values = [ir.select(k + u < size, v, zero(dtype)) for v in values]
            rows.append(values)
        vectors = self.vectors(out, k, K_QUAD, end, tag)
        mmas: list[Stmt] = []
        for j in range(self.call.tile.mmas_n):
            y = [pair(rows[0][j], rows[1][j]), pair(rows[2][j], rows[3][j])]
            for i, (low, high) in enumerate(vectors):
                x = [low[0], high[0], low[1], high[1]]
                mmas.append(ir.MmaSync(self.sums[i][j], x, y, dtype))
        return mmas


def pair(low: Expr, high: Expr) -> Expr:
    """Two 16-bit elements as a word."""
    first, second = (x.bitcast(dt.uint16).cast(dt.uint32) for x in (low, high))
    return first | (second << 16)


def block_reduce(
    call: Call, batch: Expr, row0: Expr, sums: Fragments
) -> tuple[list[Stmt], ir.Buffer]:
    """Sums over the warps, through shared memory, and the epilogue."""
    s, sizes = call.tile, call.sizes
    ld = s.block_rows + MMA_N  # against bank conflicts
    size = s.mmas_m * MMA_M * ld
    stage = ir.Buffer("stage", float32, "scratch", const(s.warps * size))
    lane = ir.var("stage_lane")
    warp, thread = divmod(lane, WARP)
    row, pair = thread // 4, thread % 4 * 2
    to_shared: list[Stmt] = []
    for i, mmas in enumerate(sums):
        for j, mma in enumerate(mmas):
            for u, c in enumerate(mma):
                column = pair + u % 2
                column = column + j * MMA_N if s.k_major else column * VECTOR + j
                at = warp * size + (row + i * MMA_M + u // 2 * 8) * ld + column
                to_shared.append(ir.Store(stage, at, ir.read(c)))
    out: list[Stmt] = [ir.For(lane, ZERO, const(s.threads), "lanes", to_shared)]
    lane = ir.var("reduce_lane")
    vector, column = divmod(lane, s.block_rows)
    at = vector * ld + column
    total = ir.load(stage, at)
    for w in range(1, s.warps):
        total = total + ir.load(stage, at + w * size)
    name = ir.var("sum", float32)
    n = row0 + column
    store = ir.If(n < sizes.rows, [ir.Let(name, total), *call.epilogue(batch, vector, n, name)])
    count = sizes.vectors * s.block_rows
    out.append(ir.For(lane, ZERO, count, "lanes", [store]))
    return out, stage
