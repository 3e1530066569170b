"""FlashAttention-2 forward (Dao 2023) on CPU vectors: online softmax over blocks of keys.

A task is a block of queries of one matrix of the batch. Blocks of keys and values fit in L1, the
running output in L2; blocks that a causal mask hides are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.attention.cpu import tiles
from numus.kernels.attention.cpu.tiles import UNROLL, ZERO, Accumulators, Tile, ceil_to
from numus.kernels.attention.operands import Operands
from numus.kernels.common.smem_tiles import round_up
from numus.kernels.math import FUNCTIONS, exp_decay
from numus.target import Target

NEG_INF = float("-inf")

Element = Callable[[Expr, Expr, Expr], Expr]  # the element at (matrix, row, column)


@dataclass(frozen=True, slots=True)
class Tiling:
    """Register tiles (compile-time) and block sizes (launch arguments)."""

    scores: Tile
    result: Tile
    keys: int  # in a block
    rows: int  # queries of a task
    transpose_queries: bool  # in vector registers
    sum_dtype: DType  # of denominators, which scale all columns: float64 where there is one


def choose(
    target: Target, dtype: DType, batch: int, queries: int, keys: int, head_dim: int, value_dim: int
) -> Tiling:
    """Tiles that fit in registers, blocks in caches, and several tasks for every core."""
    tile = tiles.scores_tile(target, dtype, queries)
    result = tiles.tile_for(target, tile.width, value_dim, tiles.divisors(tile.columns))
    itemsize = dtype.itemsize
    # probabilities and values of a block stay in L1
    block = target.l1_bytes // (itemsize * (tile.columns + max(head_dim, value_dim, 1)))
    block = max(tile.rows, block // tile.rows * tile.rows)
    block = min(block, round_up(max(keys, 1), tile.rows))
    # queries and outputs of a task stay in L2
    rows = target.l2_bytes // 2 // (itemsize * max(1, head_dim + value_dim))
    tasks = -(-4 * target.num_cores // max(batch, 1))  # of each matrix
    rows = min(rows, -(-queries // tasks))
    rows = round_up(max(rows, 2 * tile.columns), tile.columns)
    rows = min(rows, round_up(max(queries, 1), tile.columns))
    wide = dt.float64 if "float64" in target.dtypes else dtype
    return Tiling(tile, result, block, rows, not target.block_size, wide)


@dataclass(slots=True)
class Sizes:
    """Launch arguments."""

    queries: Expr
    keys: Expr
    head_dim: Expr
    value_dim: Expr
    block: Expr
    rows: Expr
    tasks: Expr  # of each matrix


def is_visible(key: Expr, query: Expr, keys: Expr, causal: bool) -> Expr:
    """True where a query attends to a key (indices fit in 32 bits)."""
    limit = ir.minimum(query + 1, keys) if causal else keys
    return key.cast(dt.int32) < limit.cast(dt.int32)


def clamped(query: Expr, key: Expr, queries: Expr, keys: Expr) -> tuple[Expr, Expr]:
    """Indices clamped to the last query and key: cheaper than a mask for ignored loads."""
    return ir.minimum(query, queries - 1), ir.minimum(key, keys - 1)


class ForwardTask:
    def __init__(
        self, tiling: Tiling, s: Sizes, dtype: DType, g: Expr, o: Operands[Element]
    ) -> None:
        self.tiling, self.s, self.dtype, self.o, tile = tiling, s, dtype, o, tiling.scores
        self.n = g // s.tasks
        # longest tasks first: under a causal mask, later queries see more keys
        self.first = (s.tasks - 1 - g % s.tasks) * s.rows
        self.rows = ir.minimum(self.first + s.rows, s.queries) - self.first
        self.panel = tile.columns
        self.padded_width = ceil_to(s.value_dim, tiling.result.columns)

        def scratch(name: str, size: Expr, dtype: DType = dtype) -> ir.Buffer:
            return ir.Buffer(name, dtype, "scratch", size)

        slack = const(tile.width * tile.columns)
        self.q = scratch("queries", s.rows * ceil_to(s.head_dim, UNROLL) + slack)
        self.staging = scratch("staging", tile.width * ceil_to(s.head_dim, tile.width))
        self.k = scratch("keys", s.block * ceil_to(s.head_dim, tile.column_block))
        self.v = scratch("values", s.block * self.padded_width)
        self.probs = scratch("probs", s.block * self.panel)
        self.result = scratch("result", s.rows * self.padded_width)
        self.row_max = scratch("row_max", s.rows)
        self.row_sum = scratch("row_sum", s.rows, tiling.sum_dtype)
        self.rescale = scratch("rescale", const(self.panel))
        self.block_sum = scratch("block_sum", const(self.panel))
        self.scratch = [
            *(self.probs, self.q, self.k, self.v),
            *(self.result, self.row_max, self.row_sum, self.rescale, self.block_sum),
            *([self.staging] if tiling.transpose_queries else []),
        ]

    def body(self) -> list[Stmt]:
        s, o, n = self.s, self.o, self.n
        visible = ir.minimum(s.keys, self.first + self.rows) if self.o.causal else s.keys
        kb = ir.var("key_block")
        count = ir.minimum(kb + s.block, visible) - kb
        padded = ceil_to(count, self.tiling.scores.rows)
        p = ir.var("panel")

        def key(read: Element) -> tiles.Read:
            return lambda r, c: read(n, kb + r, c)

        tile, columns = self.tiling.scores, self.tiling.result.columns
        per_block = tiles.pack_tiles("k", self.k, key(o.k), tile, count, s.head_dim)
        if o.v is not None:
            shape = (count, padded, s.value_dim)
            per_block += tiles.pack_rows("v", self.v, key(o.v), columns, *shape)
        panels = self._panel(p, kb, count, padded)
        per_block.append(ir.For(p, ZERO, self.rows, "serial", panels, step=const(self.panel)))
        return [
            *self._queries(),
            *self._start(),
            ir.For(kb, ZERO, visible, "serial", per_block, step=s.block),
            *self._finish(),
        ]

    def _queries(self) -> list[Stmt]:
        def read(row: Expr, column: Expr) -> Expr:
            return self.o.q(self.n, self.first + row, column) * self.o.scale

        arguments = (read, self.tiling.scores, self.rows, self.s.head_dim)
        if self.tiling.transpose_queries:
            return tiles.transpose_panels("q", [self.q, self.staging], *arguments)
        return tiles.pack_panels("q", self.q, *arguments)

    def _start(self) -> list[Stmt]:
        i, j, rows = ir.var("start_i"), ir.var("start_j"), self.s.rows
        clear: list[Stmt] = [ir.Store(self.result, i, const(0, self.dtype))]
        start: list[Stmt] = [
            ir.Store(self.row_max, j, const(NEG_INF, self.dtype)),
            ir.Store(self.row_sum, j, const(0, self.row_sum.dtype)),
        ]
        size = rows * self.padded_width
        return [ir.For(i, ZERO, size, "lanes", clear), ir.For(j, ZERO, rows, "lanes", start)]

    # -- one panel of queries, one block of keys --------------------------------------------------

    def _panel(self, p: Expr, kb: Expr, count: Expr, padded: Expr) -> list[Stmt]:
        if not self.o.causal:
            return [*self._scores(p, kb, padded), *self._accumulate(p, padded, padded)]
        last = self.first + p + self.panel
        near = ir.minimum(kb + count, last) - kb
        used = ceil_to(near, self.tiling.scores.rows)
        return [ir.If(near > 0, [*self._scores(p, kb, used), *self._accumulate(p, used, padded)])]

    def _scores(self, p: Expr, kb: Expr, used: Expr) -> list[Stmt]:
        """Scores, running maximum and exponentials of a panel, lane-wise."""
        lane = ir.var("query")
        tile, s, dtype = self.tiling.scores, self.s, self.dtype
        acc = Accumulators("s", tile, dtype, lane)
        maxes, row_sums = (
            [ir.Register(f"{name}{v}", dtype, lanes=True) for v in range(tile.vectors)]
            for name in ("row_max", "row_sum")
        )
        neg_inf = const(NEG_INF, dtype)
        t = ir.var("key_tile")
        body: list[Stmt] = []
        for v, row_max in enumerate(maxes):
            body.append(ir.Set(row_max, ir.load(self.row_max, p + acc.column(v))))
        per_tile = tiles.scores(acc, self.k, t, self.q, p, s.head_dim)
        for i, v in acc.elements():
            key, query = self._indices(kb, t + i, p, acc.column(v))
            value = acc.read(i, v)
            if self.o.bias is not None:
                value = value + self.o.bias(self.n, *clamped(query, key, s.queries, s.keys))
            name = ir.var(f"score{i}_{v}", dtype)
            value = select(is_visible(key, query, s.keys, self.o.causal), value, neg_inf)
            per_tile += [
                ir.Let(name, value),
                ir.Store(self.probs, self._prob_at(t + i, acc.column(v)), name),
                ir.Set(maxes[v], select(name > ir.read(maxes[v]), name, ir.read(maxes[v]))),
            ]
        body.append(ir.For(t, ZERO, used, "serial", per_tile, step=const(tile.rows)))
        shifts = []
        for v, (row_max, row_sum) in enumerate(zip(maxes, row_sums, strict=True)):
            shift, rescale = ir.var(f"shift{v}", dtype), ir.var(f"rescale{v}", dtype)
            at = p + acc.column(v)
            new_max = ir.read(row_max)
            body += [
                ir.Let(shift, select(new_max.eq(neg_inf), const(0, dtype), new_max)),
                ir.Let(rescale, exp_decay(ir.load(self.row_max, at) - shift)),
                ir.Store(self.rescale, acc.column(v), rescale),
                ir.Store(self.row_max, at, new_max),
                ir.Set(row_sum, const(0, dtype)),
            ]
            shifts.append(shift)
        body.append(self._exponentials(p, kb, used, acc, shifts, row_sums))
        for v, row_sum in enumerate(row_sums):
            body.append(ir.Store(self.block_sum, acc.column(v), ir.read(row_sum)))
        return [ir.For(lane, ZERO, const(tile.width), "lanes", body), self._add_block_sums(p)]

    def _add_block_sums(self, p: Expr) -> Stmt:
        """Denominators after a block. A loop of its own: next to float64, LLVM halves the width of
        the float32 vectors that scores and exponentials are computed in."""
        j = ir.var("sum_j")
        old = ir.load(self.row_sum, p + j)
        rescale, new = (ir.load(x, j).cast(old.dtype) for x in (self.rescale, self.block_sum))
        add: list[Stmt] = [ir.Store(self.row_sum, p + j, old * rescale + new)]
        return ir.For(j, ZERO, const(self.panel), "lanes", add)

    def _exponentials(
        self,
        p: Expr,
        kb: Expr,
        used: Expr,
        acc: Accumulators,
        shifts: list[Expr],
        row_sums: list[ir.Register],
    ) -> Stmt:
        k = ir.var("exp_k")
        body: list[Stmt] = []
        for u in range(UNROLL):
            row = k + u
            for v, shift in enumerate(shifts):
                prob_at = self._prob_at(row, acc.column(v))
                prob = ir.var(f"prob{u}_{v}", self.dtype)
                body.append(ir.Let(prob, exp_decay(ir.load(self.probs, prob_at) - shift)))
                body.append(ir.Set(row_sums[v], ir.read(row_sums[v]) + prob))
                dropped = prob
                if self.o.keep is not None:
                    key, query = self._indices(kb, row, p, acc.column(v))
                    at = clamped(query, key, self.s.queries, self.s.keys)
                    dropped = prob * self.o.keep(self.n, *at)
                body.append(ir.Store(self.probs, prob_at, dropped))
        return ir.For(k, ZERO, used, "serial", body, step=const(UNROLL))

    def _accumulate(self, p: Expr, used: Expr, padded: Expr) -> list[Stmt]:
        """O = O · rescale + P V for a panel."""
        if self.o.v is None:
            return []
        tile = self.tiling.result
        lane, c, r, k = (ir.var(f"result_{x}") for x in ("lane", "c", "r", "k"))
        acc = Accumulators("o", tile, self.dtype, lane)
        start = c * padded + k * tile.columns
        product = acc.add(
            [(k, ZERO, used, const(UNROLL))],
            lambda u, i: ir.load(self.probs, self._prob_at(k + u, r + i)),
            lambda u, column: ir.load(self.v, start + column + u * tile.columns),
        )

        def at(i: int, v: int) -> Expr:
            return (p + r + i) * self.padded_width + c + acc.column(v)

        def rescale(i: int) -> Expr:
            return ir.load(self.rescale, r + i)

        loops = ((r, const(self.panel)), (c, self.s.value_dim))
        return acc.gemm(self.result, at, product, *loops, rescale)

    def _prob_at(self, key: Expr, query: Expr) -> Expr:
        return key * self.panel + query

    def _indices(self, kb: Expr, row: Expr, p: Expr, column: Expr) -> tuple[Expr, Expr]:
        """The key and the query of an element of the scores."""
        return kb + row, self.first + p + column

    # -- epilogue ---------------------------------------------------------------------------------

    def _finish(self) -> list[Stmt]:
        i, f, q = ir.var("out_i"), ir.var("out_f"), ir.var("out_q")
        zero, one = const(0, self.dtype), const(1, self.dtype)
        row_sum = ir.load(self.row_sum, q).cast(self.dtype)
        lse = ir.load(self.row_max, q) + FUNCTIONS["log"](row_sum)
        lse = select(row_sum.eq(zero), const(float("inf"), self.dtype), lse)
        write_lse = self.o.write_lse(self.n, self.first + q, lse)
        out: list[Stmt] = [ir.For(q, ZERO, self.rows, "lanes", write_lse)]
        if self.o.v is not None:
            row_sum = ir.load(self.row_sum, i).cast(self.dtype)
            factor = ir.var("factor", self.dtype)
            value = ir.load(self.result, i * self.padded_width + f) * factor
            write = self.o.write(self.n, self.first + i, f, value)
            row: list[Stmt] = [
                ir.Let(factor, select(row_sum.eq(zero), zero, one / row_sum)),
                ir.For(f, ZERO, self.s.value_dim, "lanes", write),
            ]
            out.append(ir.For(i, ZERO, self.rows, "serial", row))
        return out
