"""FlashAttention-2 forward (Dao 2023), SIMT, any dtype: online softmax over blocks of keys.

A thread block has a block of queries. The threads of a row reduce its running maximum by shuffles;
probabilities go through shared memory to the second GEMM, whose accumulators stay in registers.
"""

from __future__ import annotations

import math
from functools import partial

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.attention.gpu import simt_tiles
from numus.kernels.attention.gpu.block import ForwardBlock, FwdOperands, Sizes, Tiling
from numus.kernels.attention.gpu.simt_tiles import UNROLL, AccumulatorTile, SmemTile, ThreadGrid
from numus.kernels.attention.gpu.wgmma_forward import tree_reduce
from numus.kernels.common.smem_tiles import round_up
from numus.kernels.math import FUNCTIONS, exp_decay
from numus.target import Target

MAX_ACCUMULATORS = 100  # 32-bit registers of a thread (measured on one H200)


def tilings(
    target: Target, dtype: DType, rows: int, block: int, head_dim: int, value_dim: int
) -> list[Tiling]:
    """Candidates, the largest tiles first."""
    threads, found = ThreadGrid.of(min(target.block_size, 256)), []
    unit = max(threads.columns, UNROLL)
    dims = (round_up(head_dim, unit), round_up(value_dim, unit))
    for thread_rows in (4, 2, 1):
        for thread_columns in (4, 2, 1):
            shape = (thread_rows * threads.rows, thread_columns * threads.columns)
            tiling = Tiling(threads.count, *shape, *dims)
            if thread_rows > 1 and 2 * rows <= tiling.rows:
                continue
            if thread_columns > 1 and 2 * block <= tiling.block:
                continue
            if tiling.block % UNROLL == 0:
                found.append(tiling)
    return found


def accumulator_registers(tiling: Tiling, *columns: int) -> int:
    """Accumulators of a thread for tiles of these columns."""
    return sum(tiling.rows * n // tiling.threads for n in columns)


def choose(
    target: Target, dtype: DType, queries: int, keys: int, head_dim: int, value_dim: int
) -> Tiling | None:
    """The largest tiles that fit in registers and shared memory, if any."""
    words = dtype.itemsize // 4
    for p in tilings(target, dtype, queries, keys, head_dim, value_dim):
        tiles = ((p.head_dim, p.rows), (p.head_dim, p.block), (p.block, p.value_dim))
        nbytes = sum(SmemTile.bytes(dtype, *tile) for tile in (*tiles, (p.block, p.rows)))
        acc = accumulator_registers(p, p.block, p.value_dim)
        if nbytes <= target.shared_bytes and words * acc <= MAX_ACCUMULATORS:
            return p
    return None


class ForwardKernel(ForwardBlock):
    def __init__(self, tiling: Tiling, s: Sizes, dtype: DType, g: Expr, o: FwdOperands) -> None:
        super().__init__(tiling, s, dtype, g, o)
        self.threads = ThreadGrid.of(tiling.threads)
        self.q = SmemTile("queries", dtype, tiling.head_dim, tiling.rows)
        self.k = SmemTile("keys", dtype, tiling.head_dim, tiling.block)
        self.scores = AccumulatorTile("s", self.threads, dtype, tiling.rows, tiling.block)
        self.scratch = [self.q.buffer, self.k.buffer]
        if o.v is not None:
            self.v = SmemTile("values", dtype, tiling.block, tiling.value_dim)
            self.probs = SmemTile("probs", dtype, tiling.block, tiling.rows)
            self.result = AccumulatorTile("o", self.threads, dtype, tiling.rows, tiling.value_dim)
            self.scratch += [self.v.buffer, self.probs.buffer]
        rows = range(self.scores.thread_rows)
        self.row_maxes = [ir.Register(f"row_max{i}", dtype, lanes=True) for i in rows]
        self.row_sums = [ir.Register(f"row_sum{i}", dtype, lanes=True) for i in rows]
        self.neg_inf, self.zero = const(-math.inf, dtype), const(0, dtype)

    def body(self) -> list[Stmt]:
        p, s, o = self.tiling, self.s, self.o
        kb = ir.var("key_block")
        load = partial(simt_tiles.load_tile, threads=self.threads, dtype=self.dtype)
        keys, queries = (self.n, kb, self.visible), (self.n, self.first, s.queries)
        block = [load("k", matrix=o.k, at=keys, shape=(p.block, p.head_dim), transposed=self.k)]
        if o.v is not None:
            shape = (p.block, p.value_dim)
            block.append(load("v", matrix=o.v, at=keys, shape=shape, direct=self.v))
        block.append(self.threads.loop("scores", lambda lane: self._softmax(lane, kb)))
        if o.v is not None:
            add = self.result.add
            accumulate = self.threads.loop("accumulate", lambda x: [add(x, self.probs, self.v)])
            block.append(accumulate)
        return [
            *([] if o.v is None else self.result.clear()),
            *(ir.Set(x, self.zero) for x in self.row_sums),
            *(ir.Set(x, self.neg_inf) for x in self.row_maxes),
            load("q", matrix=o.q, at=queries, shape=(p.rows, p.head_dim), transposed=self.q),
            ir.For(kb, const(0), self.visible, "serial", block, step=const(p.block)),
            self.threads.loop("finish", self._finish),
        ]

    def _softmax(self, lane: Expr, kb: Expr) -> list[Stmt]:
        """Online softmax: scores to probabilities; accumulators rescaled to the new maximum."""
        s, o, scores = self.s, self.o, self.scores
        body: list[Stmt] = [*scores.clear(), scores.add(lane, self.q, self.k)]
        for i in range(scores.thread_rows):
            query = self.first + scores.row(lane, i)
            limit = ir.minimum(query + 1, s.keys) if self.o.causal else s.keys
            query_clamped = ir.minimum(query, s.queries - 1)
            values, keys = [], []
            for j in range(scores.thread_columns):
                key = kb + scores.column(lane, j)
                keys.append(ir.minimum(key, s.keys - 1))
                value = scores.read(i, j) * o.scale
                if o.bias is not None:
                    value = value + o.bias(self.n, query_clamped, keys[j])
                values.append(ir.var(f"score{i}_{j}", self.dtype))
                body.append(ir.Let(values[j], select(key < limit, value, self.neg_inf)))
            row_max, row_sum = self.row_maxes[i], self.row_sums[i]
            new = tree_reduce([*values, ir.read(row_max)], ir.maximum)
            names = ("new_max", "shift", "rescale")
            new_max, shift, rescale = (ir.var(f"{x}{i}", self.dtype) for x in names)
            body += [
                ir.Let(new_max, self.threads.row_reduce(new, ir.maximum)),
                ir.Let(shift, select(new_max.eq(self.neg_inf), self.zero, new_max)),
                ir.Let(rescale, exp_decay(ir.read(row_max) - shift)),
                ir.Set(row_max, new_max),
            ]
            probs = []
            for j, score in enumerate(values):
                probs.append(ir.var(f"prob{i}_{j}", self.dtype))
                body.append(ir.Let(probs[j], exp_decay(score - shift)))
                if o.v is not None:
                    dropped = probs[j]
                    if o.keep is not None:
                        dropped = dropped * o.keep(self.n, query_clamped, keys[j])
                    at = self.probs.at(scores.column(lane, j), scores.row(lane, i))
                    body.append(ir.Store(self.probs.buffer, at, dropped))
            body.append(ir.Set(row_sum, ir.read(row_sum) * rescale + tree_reduce(probs, ir.add)))
            if o.v is not None:
                for register in self.result.registers[i]:
                    body.append(ir.Set(register, ir.read(register) * rescale))
        return body

    def _finish(self, lane: Expr) -> list[Stmt]:
        s, o = self.s, self.o
        one = const(1, self.dtype)
        body: list[Stmt] = []
        for i in range(self.scores.thread_rows):
            query = self.first + self.scores.row(lane, i)
            denominator = ir.var(f"denominator{i}", self.dtype)
            factor = ir.var(f"factor{i}", self.dtype)
            lse = ir.read(self.row_maxes[i]) + FUNCTIONS["log"](denominator)
            lse = select(denominator.eq(self.zero), const(math.inf, self.dtype), lse)
            body += [
                ir.Let(denominator, self.threads.row_reduce(ir.read(self.row_sums[i]), ir.add)),
                ir.Let(factor, select(denominator.eq(self.zero), self.zero, one / denominator)),
            ]
            done = o.write_lse(self.n, query, lse)
            if done:
                is_writer = self.threads.column(lane).eq(0) & (query < s.queries)
                body.append(ir.If(is_writer, done))
            if o.v is not None:
                for j in range(self.result.thread_columns):
                    column = self.result.column(lane, j)
                    stores = o.write(self.n, query, column, self.result.read(i, j) * factor)
                    body.append(ir.If((query < s.queries) & (column < s.value_dim), stores))
        return body
