"""FlashAttention-2 forward (Dao 2023) on wgmma: bfloat16 and float16, online softmax.

A warpgroup has 64 queries; blocks of keys and values are double-buffered by cp.async. Scores stay
in the accumulator registers, where four adjacent threads share a row, and are the A operand of the
second GEMM. Bias and dropout masks are staged in shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType, float32
from numus.ir import Expr, Stmt, const, select
from numus.kernels.attention.gpu.block import BwdOperands, ForwardBlock, FwdOperands, Sizes, Tiling
from numus.kernels.attention.operands import Score
from numus.kernels.common import smem_tiles
from numus.kernels.common.smem_tiles import ZERO, SmemTile
from numus.kernels.math import FUNCTIONS
from numus.target import Target

LOG2E = math.log2(math.e)
NEG_INF = const(-math.inf, float32)
ZERO_F32 = const(0.0, float32)
STAGES = 2
PAD = 8  # floats after rows of a score tile, against bank conflicts
MAX_HEAD_DIM = 256  # N of a wgmma


@dataclass(frozen=True, slots=True)
class WgmmaAttentionTuning:
    """Registers of a thread for accumulators and operands, measured on one H200."""

    one_block_per_sm: int = 176
    two_blocks_per_sm: int = 80
    backward: int = 208


TUNING = WgmmaAttentionTuning()


def _shared_bytes(t: Tiling, score_tiles: int) -> int:
    nbytes = smem_tiles.tile_bytes(t.rows, t.head_dim) + smem_tiles.stage_bytes(t.rows)
    nbytes += STAGES * sum(smem_tiles.tile_bytes(t.block, n) for n in (t.head_dim, t.value_dim))
    return nbytes + score_tiles * 4 * t.rows * (t.block + PAD)


def choose(
    target: Target, queries: int, keys: int, head_dim: int, value_dim: int, score_tiles: int
) -> Tiling | None:
    """The longest blocks with which two thread blocks, or else one, fit on an SM, if any."""
    if max(head_dim, value_dim) > MAX_HEAD_DIM or not head_dim:
        return None
    threads = 128 if queries <= 64 else 256
    head_dim, value_dim = smem_tiles.round_up(head_dim, 16), smem_tiles.round_up(value_dim, 16)
    limits = ((2, TUNING.two_blocks_per_sm), (1, TUNING.one_block_per_sm))
    for blocks_per_sm, max_registers in limits:
        for block in (128, 64, 32):
            tiling = Tiling(threads, threads // 2, block, head_dim, value_dim)
            smem_bytes = blocks_per_sm * _shared_bytes(tiling, score_tiles)
            registers = block // 2 + block // 4 + value_dim // 2
            if registers > max_registers or smem_bytes > target.shared_bytes:
                continue
            if keys <= block // 2 and block > 32:
                continue
            if blocks_per_sm == 1 or block > 32:
                return tiling
    return None


class ScoreTile:
    """A per-score operand (bias, dropout mask) of a block, in shared memory."""

    def __init__(self, name: str, score: Score, rows: int, columns: int) -> None:
        self.name, self.score, self.rows, self.columns = name, score, rows, columns
        self.pitch = columns + PAD
        self.buffer = ir.Buffer(name, float32, "scratch", const(rows * self.pitch))

    def load(self, tag: str, s: Sizes, n: Expr, first_query: Expr, first_key: Expr) -> Stmt:
        """Load the tile of a block; a bias in units of log2."""
        i = ir.var(f"{self.name}_{tag}")
        row, column = i // self.columns, i % self.columns
        query = ir.minimum(first_query + row, s.queries - 1)
        value = self.score(n, query, ir.minimum(first_key + column, s.keys - 1))
        if self.name == "bias":
            value = value * LOG2E
        store = ir.Store(self.buffer, row * self.pitch + column, value)
        return ir.For(i, ZERO, const(self.rows * self.columns), "lanes", [store])

    def of(self, row: Expr, column: Expr) -> Expr:
        return ir.load(self.buffer, row * self.pitch + column)


def score_tiles(o: FwdOperands | BwdOperands, rows: int, columns: int) -> dict[str, ScoreTile]:
    scores = {"bias": o.bias, "keep": o.keep}
    return {x: ScoreTile(x, s, rows, columns) for x, s in scores.items() if s is not None}


def tree_reduce(values: list[Expr], merge: Callable[[Expr, Expr], Expr]) -> Expr:
    while len(values) > 1:
        pairs = [merge(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


def row_reduce(value: Expr, merge: Callable[[Expr, Expr], Expr]) -> Expr:
    """Reduction over the four threads of a row."""
    for mask in (1, 2):
        value = merge(value, ir.lanes_xor(value, mask))
    return value


def accumulators(name: str, columns: int) -> list[ir.Register]:
    """Accumulator registers of a wgmma with N columns."""
    return [ir.Register(f"{name}{i}", float32, lanes=True) for i in range(columns // 2)]


def row_half(number: int) -> int:
    """Index of an accumulator's row among the two that a thread holds."""
    return number // 2 % 2


class VisibilityMask:
    """Predicate of accumulators whose query attends to their key (32-bit indices)."""

    def __init__(self, lane: Expr, first: Expr, block: Expr, keys: Expr, causal: bool) -> None:
        self.limits: list[Expr] = []
        for h in range(2):
            row, column = ir.accumulator_element(lane, 2 * h)
            limit = keys
            if causal:
                limit = ir.minimum(first + row + 1, keys)
            self.limits.append((limit - (block + column)).cast(dt.int32))

    def of(self, number: int) -> Expr:
        return const(number // 4 * 8 + number % 2, dt.int32) < self.limits[row_half(number)]


class ForwardKernel(ForwardBlock):
    def __init__(self, tiling: Tiling, s: Sizes, dtype: DType, g: Expr, o: FwdOperands) -> None:
        super().__init__(tiling, s, dtype, g, o)
        self.q = SmemTile("queries", o.q, dtype, tiling.rows, tiling.head_dim)
        self.k = SmemTile("keys", o.k, dtype, tiling.block, tiling.head_dim, STAGES)
        self.scratch = [self.q.buffer, self.k.buffer]
        self.v: SmemTile | None = None
        if o.v is not None:
            self.v = SmemTile("values", o.v, dtype, tiling.block, tiling.value_dim, STAGES)
            self.stage = smem_tiles.stage_buffer(tiling.rows)
            self.scratch += [self.v.buffer, self.stage]
        self.score_tiles = score_tiles(o, tiling.rows, tiling.block)
        self.scratch += [tile.buffer for tile in self.score_tiles.values()]
        self.scores = accumulators("s", tiling.block)
        self.result = accumulators("o", tiling.value_dim) if o.v is not None else []
        self.row_maxes = [ir.Register(f"row_max{h}", float32, lanes=True) for h in range(2)]
        self.row_sums = [ir.Register(f"row_sum{h}", float32, lanes=True) for h in range(2)]
        self.factor = ir.var("factor", float32)
        self.mma_threads = tiling.threads

    def body(self) -> list[Stmt]:
        p, keys = self.tiling, const(self.tiling.block)
        blocks = (self.visible + (p.block - 1)) // keys
        # key blocks before the diagonal need no mask
        unmasked = ir.minimum(self.first + 1, self.s.keys) if self.o.causal else self.s.keys
        unmasked = unmasked // keys
        out: list[Stmt] = [
            ir.Let(self.factor, self.o.scale * const(LOG2E, float32)),
            *(ir.Set(x, ZERO_F32) for x in (*self.result, *self.row_sums)),
            *(ir.Set(x, NEG_INF) for x in self.row_maxes),
            *self.q.load("all", p.threads, self.n, self.first, self.last),
            *self._load("first", ZERO),
            ir.AsyncCommit(),
        ]
        for tag, start, stop in (("unmasked", ZERO, unmasked), ("masked", unmasked, blocks)):
            j = ir.var(f"{tag}_block")
            body = self._block(tag, j, blocks)
            out.append(ir.For(j, start, stop, "serial", body))
        return [*out, *self._finish()]

    def _load(self, tag: str, j: Expr) -> list[Stmt]:
        p = self.tiling
        out: list[Stmt] = []
        for tile in (self.k, self.v):
            if tile is not None:
                first, stage = j * p.block, j % STAGES
                out += tile.load(tag, p.threads, self.n, first, self.visible, stage)
        return out

    def _block(self, tag: str, j: Expr, blocks: Expr) -> list[Stmt]:
        p, s = self.tiling, self.s
        stage, first_key = j % STAGES, j * p.block
        following, queries, keys = j + 1, self.q.k_major(), self.k.k_major(stage)
        out: list[Stmt] = [
            ir.AsyncWait(0, fence=True),
            ir.If(following < blocks, self._load(tag, following)),
            ir.AsyncCommit(),
            ir.Wgmma(self.scores, queries, keys, p.block, p.head_dim, zero_init=True),
            *(x.load(tag, s, self.n, self.first, first_key) for x in self.score_tiles.values()),
        ]
        out += [ir.WgmmaWait(self.scores, 0), self._softmax(tag, first_key)]
        if self.v is not None:
            values = self.v.mn_major(stage)
            out += [
                ir.Wgmma(self.result, self.scores, values, p.value_dim, p.block),
                ir.WgmmaWait(self.result, 0),
            ]
        return out

    def _softmax(self, tag: str, first_key: Expr) -> Stmt:
        """Online softmax: scores to probabilities; accumulators rescaled to the new maximum."""
        lane = ir.var(f"{tag}_thread")
        bias, keep = self.score_tiles.get("bias"), self.score_tiles.get("keep")
        visible = VisibilityMask(lane, self.first, first_key, self.s.keys, self.o.causal)
        body: list[Stmt] = []
        scores: list[Expr] = []
        for i, register in enumerate(self.scores):
            value = ir.read(register) * self.factor
            if bias is not None:
                at = ir.accumulator_element(lane, i)
                value = ir.fma(ir.read(register), self.factor, bias.of(*at))
            if tag == "masked":
                value = select(visible.of(i), value, NEG_INF)
            scores.append(ir.var(f"score{i}", float32))
            body.append(ir.Let(scores[i], value))
        shifts, rescales = [], []
        for h, (row_max, row_sum) in enumerate(zip(self.row_maxes, self.row_sums, strict=True)):
            own = [x for i, x in enumerate(scores) if row_half(i) == h]
            new = row_reduce(tree_reduce([*own, ir.read(row_max)], ir.maximum), ir.maximum)
            names = ("new_max", "shift", "rescale")
            new_max, shift, rescale = (ir.var(f"{x}{h}", float32) for x in names)
            body += [
                ir.Let(new_max, new),
                ir.Let(shift, select(new_max.eq(NEG_INF), ZERO_F32, new_max)),
                ir.Let(rescale, ir.exp2(ir.read(row_max) - shift)),
                ir.Set(row_max, new_max),
                ir.Set(row_sum, ir.read(row_sum) * rescale),
            ]
            shifts.append(shift)
            rescales.append(rescale)
        probs: list[Expr] = []
        for i, register in enumerate(self.scores):
            probs.append(ir.var(f"prob{i}", float32))
            body.append(ir.Let(probs[i], ir.exp2(scores[i] - shifts[row_half(i)])))
            dropped = probs[i]
            if keep is not None:
                dropped = dropped * keep.of(*ir.accumulator_element(lane, i))
            body.append(ir.Set(register, dropped))
        for h, row_sum in enumerate(self.row_sums):
            own = [x for i, x in enumerate(probs) if row_half(i) == h]
            body.append(ir.Set(row_sum, ir.read(row_sum) + tree_reduce(own, ir.add)))
        for i, register in enumerate(self.result):
            body.append(ir.Set(register, ir.read(register) * rescales[row_half(i)]))
        return ir.For(lane, ZERO, const(self.mma_threads), "lanes", body)

    def _finish(self) -> list[Stmt]:
        p, s, lane = self.tiling, self.s, ir.var("finish")
        one = const(1.0, float32)
        body: list[Stmt] = []
        for h, (row_max, row_sum) in enumerate(zip(self.row_maxes, self.row_sums, strict=True)):
            denominator = ir.var(f"denominator{h}", float32)
            body.append(ir.Let(denominator, row_reduce(ir.read(row_sum), ir.add)))
            lse = self._scaled_max(ir.read(row_max)) + FUNCTIONS["log"](denominator)
            lse = select(denominator.eq(ZERO_F32), const(math.inf, float32), lse)
            row, column = ir.accumulator_element(lane, 2 * h)
            query = self.first + row
            stores = self.o.write_lse(self.n, query, lse)
            if stores:
                body.append(ir.If(column.eq(0) & (query < s.queries), stores))
            factor = select(denominator.eq(ZERO_F32), ZERO_F32, ir.approx_div(one, denominator))
            body.append(ir.Set(row_sum, factor))
        out: list[Stmt] = [ir.For(lane, ZERO, const(self.mma_threads), "lanes", body)]
        if self.v is None:
            return out

        def value(number: int, lane: Expr) -> Expr:
            return ir.read(self.result[number]) * ir.read(self.row_sums[row_half(number)])

        def exists(row: Expr, column: Expr) -> Expr:
            return (self.first + row < s.queries) & (column < s.value_dim)

        def write(row: Expr, column: Expr, x: Expr) -> list[Stmt]:
            return self.o.write(self.n, self.first + row, column, x)

        stored = (self.mma_threads, self.stage, p.value_dim, value, write, exists)
        return [*out, *smem_tiles.store_accumulators("o", *stored)]

    def _scaled_max(self, row_max: Expr) -> Expr:
        """The largest scaled score of a row, in units of the natural logarithm."""
        return row_max * const(1 / LOG2E, float32)
