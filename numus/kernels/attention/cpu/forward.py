"""Attention in one pass over the keys: tiles of scores, an online softmax, products with values.

A task is a block of queries of one matrix of the stack. It walks the keys in blocks small enough
for the first cache; for each panel of queries it computes a block's scores, raises the running
maximum, scales down what was summed up before by the change, and adds the block's share. Nothing
as large as the scores exists. Blocks that a causal mask hides are not visited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.attention.cpu.tiles import (
    ONE,
    UNROLL,
    ZERO,
    Sums,
    Tile,
    divisors,
    pack_lines,
    pack_panels,
    pack_tiles,
    rounded,
    scores,
    scores_tile,
    tile_for,
    turn_panels,
    up,
)
from numus.kernels.attention.operands import Operands
from numus.kernels.math import FUNCTIONS, exp_decay
from numus.target import Target

MASKED = float("-inf")

Element = Callable[[Expr, Expr, Expr], Expr]  # what there is at (matrix, row, column)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The first two shape the code, the others are given at launch."""

    scores: Tile
    result: Tile
    keys: int  # in a block
    rows: int  # queries of a task
    turned: bool  # queries are packed through registers: lanes are those of a vector


def choose(
    target: Target, dtype: DType, stack: int, queries: int, keys: int, size: int, width: int
) -> Schedule:
    """Tiles from the registers, blocks from the caches, tasks from how much there is to do."""
    tile = scores_tile(target, dtype, queries)
    result = tile_for(target, tile.width, width, divisors(tile.columns))
    item = dtype.itemsize
    # a block's weights and values stay in the first cache
    block = target.l1_bytes // (item * (tile.columns + max(size, width, 1)))
    block = max(tile.rows, block // tile.rows * tile.rows)
    block = min(block, rounded(max(keys, 1), tile.rows))
    # queries and running results of a task stay in the second
    rows = target.l2_bytes // 2 // (item * max(1, size + width))
    wanted = -(-4 * target.num_cores // max(stack, 1))  # tasks of each matrix
    rows = min(rows, -(-queries // wanted))
    rows = rounded(max(rows, 2 * tile.columns), tile.columns)
    rows = min(rows, rounded(max(queries, 1), tile.columns))
    return Schedule(tile, result, block, rows, turned=not target.block_size)


@dataclass(slots=True)
class Sizes:
    """The numbers of a launch, as expressions."""

    queries: Expr
    keys: Expr
    size: Expr  # of a query and a key
    width: Expr  # of a value
    block: Expr
    rows: Expr
    tasks: Expr  # of each matrix


def attention(
    schedule: Schedule,
    sizes: Sizes,
    dtype: DType,
    g: Expr,
    operands: Operands[Element],
    causal: bool,
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The work of task g, and its scratch."""
    task = _Task(schedule, sizes, dtype, g, operands, causal)
    return task.body(), task.scratch


def seen(key: Expr, query: Expr, keys: Expr, causal: bool) -> Expr:
    """Whether a query looks at a key: both are small enough for 32 bits."""
    limit = ir.minimum(ir.add(query, ONE), keys) if causal else keys
    return key.cast(dt.int32) < limit.cast(dt.int32)


def inside(query: Expr, key: Expr, queries: Expr, keys: Expr) -> tuple[Expr, Expr]:
    """The query and the key, or the last ones: what is read beyond these is not looked at, and a
    place is quicker to come by than a mask.
    """
    return ir.minimum(query, ir.sub(queries, ONE)), ir.minimum(key, ir.sub(keys, ONE))


class _Task:
    def __init__(
        self,
        schedule: Schedule,
        sizes: Sizes,
        dtype: DType,
        g: Expr,
        o: Operands[Element],
        causal: bool,
    ) -> None:
        self.schedule, self.s, self.dtype, self.o, self.causal = schedule, sizes, dtype, o, causal
        s, tile = sizes, schedule.scores
        self.n = ir.idiv(g, s.tasks)
        # under a causal mask later queries have more to do: they come first
        number = ir.sub(ir.sub(s.tasks, ONE), ir.irem(g, s.tasks))
        self.first = ir.mul(number, s.rows)
        self.rows = ir.sub(ir.minimum(ir.add(self.first, s.rows), s.queries), self.first)
        self.panel = tile.columns
        self.wide = up(s.width, schedule.result.columns)

        def scratch(name: str, size: Expr) -> ir.Buffer:
            return ir.Buffer(name, dtype, "scratch", size)

        square = const(tile.width * tile.columns)
        self.q = scratch("queries", ir.add(ir.mul(s.rows, up(s.size, UNROLL)), square))
        self.aside = scratch("aside", ir.mul(const(tile.width), up(s.size, tile.width)))
        self.k = scratch("keys", ir.mul(s.block, up(s.size, tile.block)))
        self.v = scratch("values", ir.mul(s.block, self.wide))
        self.weights = scratch("weights", ir.mul(s.block, const(self.panel)))
        self.result = scratch("result", ir.mul(s.rows, self.wide))
        self.top = scratch("top", s.rows)
        self.total = scratch("total", s.rows)
        self.decay = scratch("decay", const(self.panel))
        self.scratch = [
            *(self.weights, self.q, self.k, self.v),
            *(self.result, self.top, self.total, self.decay),
            *([self.aside] if schedule.turned else []),
        ]

    def body(self) -> list[Stmt]:
        s, o, n = self.s, self.o, self.n
        visible = ir.minimum(s.keys, ir.add(self.first, self.rows)) if self.causal else s.keys
        kb = ir.var("key_block")
        count = ir.sub(ir.minimum(ir.add(kb, s.block), visible), kb)
        padded = up(count, self.schedule.scores.rows)
        p = ir.var("panel")
        per_block = pack_tiles(
            *("k", self.k, lambda r, c: o.k(n, ir.add(kb, r), c), self.schedule.scores),
            *(count, s.size),
        )
        if o.v is not None:
            values = o.v
            columns = self.schedule.result.columns
            per_block += pack_lines(
                *("v", self.v, lambda r, c: values(n, ir.add(kb, r), c), columns),
                *(count, padded, s.width),
            )
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
            return self.o.q(self.n, ir.add(self.first, row), column) * self.o.scale

        how = (read, self.schedule.scores, self.rows, self.s.size)
        if self.schedule.turned:
            return turn_panels("q", self.q, self.aside, *how)
        return pack_panels("q", self.q, *how)

    def _start(self) -> list[Stmt]:
        i, j = ir.var("start_i"), ir.var("start_j")
        nothing = const(0, self.dtype)
        return [
            ir.For(
                *(i, ZERO, ir.mul(self.s.rows, self.wide), "lanes"),
                [ir.Store(self.result, i, nothing)],
            ),
            ir.For(
                *(j, ZERO, self.s.rows, "lanes"),
                [
                    ir.Store(self.top, j, const(MASKED, self.dtype)),
                    ir.Store(self.total, j, nothing),
                ],
            ),
        ]

    # -- one panel of queries meets one block of keys ---------------------------------------------

    def _panel(self, p: Expr, kb: Expr, count: Expr, padded: Expr) -> list[Stmt]:
        if not self.causal:
            return [self._weights(p, kb, padded), *self._products(p, padded, padded)]
        last = ir.add(ir.add(self.first, p), const(self.panel))  # behind its last query
        near = ir.sub(ir.minimum(ir.add(kb, count), last), kb)
        used = up(near, self.schedule.scores.rows)
        return [
            ir.If(near > 0, [self._weights(p, kb, used), *self._products(p, used, padded)]),
        ]

    def _weights(self, p: Expr, kb: Expr, used: Expr) -> Stmt:
        """Scores, their maximum, their powers: everything lane by lane."""
        lane = ir.var("query")
        tile, s, dtype = self.schedule.scores, self.s, self.dtype
        sums = Sums("s", tile, dtype, lane)
        tops = [ir.Register(f"top{v}", dtype, lanes=True) for v in range(tile.vectors)]
        totals = [ir.Register(f"total{v}", dtype, lanes=True) for v in range(tile.vectors)]
        lowest = const(MASKED, dtype)
        t = ir.var("key_tile")
        body: list[Stmt] = []
        for v, top in enumerate(tops):
            body.append(ir.Set(top, ir.load(self.top, ir.add(p, sums.column(v)))))
        tiles = scores(
            *(sums, self.k, ir.mul(t, up(s.size, tile.block))),
            *(self.q, ir.mul(p, up(s.size, UNROLL)), s.size),
        )
        for i, v in sums.places():
            key, query = self._place(kb, ir.add(t, const(i)), p, sums.column(v))
            value = sums.read(i, v)
            if self.o.bias is not None:
                value = value + self.o.bias(self.n, *inside(query, key, s.queries, s.keys))
            name = ir.var(f"score{i}_{v}", dtype)
            value = select(seen(key, query, s.keys, self.causal), value, lowest)
            tiles += [
                ir.Let(name, value),
                ir.Store(self.weights, self._weight_at(ir.add(t, const(i)), sums.column(v)), name),
                ir.Set(tops[v], select(name > ir.read(tops[v]), name, ir.read(tops[v]))),
            ]
        body.append(ir.For(t, ZERO, used, "serial", tiles, step=const(tile.rows)))
        shifts = []
        for v, (top, total) in enumerate(zip(tops, totals, strict=True)):
            shift = ir.var(f"shift{v}", dtype)
            decay = ir.var(f"decay{v}", dtype)
            at = ir.add(p, sums.column(v))
            found = ir.read(top)
            body += [
                ir.Let(shift, select(found.eq(lowest), const(0, dtype), found)),
                ir.Let(decay, exp_decay(ir.load(self.top, at) - shift)),
                ir.Store(self.decay, sums.column(v), decay),
                ir.Store(self.top, at, found),
                ir.Set(total, ir.load(self.total, at) * decay),
            ]
            shifts.append(shift)
        body.append(self._powers(p, kb, used, sums, shifts, totals))
        for v, total in enumerate(totals):
            body.append(ir.Store(self.total, ir.add(p, sums.column(v)), ir.read(total)))
        return ir.For(lane, ZERO, const(tile.width), "lanes", body)

    def _powers(
        self,
        p: Expr,
        kb: Expr,
        used: Expr,
        sums: Sums,
        shifts: list[Expr],
        totals: list[ir.Register],
    ) -> Stmt:
        k = ir.var("power_k")
        body: list[Stmt] = []
        for u in range(UNROLL):
            row = ir.add(k, const(u))
            for v, shift in enumerate(shifts):
                place = self._weight_at(row, sums.column(v))
                power = ir.var(f"power{u}_{v}", self.dtype)
                body.append(ir.Let(power, exp_decay(ir.load(self.weights, place) - shift)))
                body.append(ir.Set(totals[v], ir.read(totals[v]) + power))
                kept = power
                if self.o.keep is not None:
                    key, query = self._place(kb, row, p, sums.column(v))
                    at = inside(query, key, self.s.queries, self.s.keys)
                    kept = power * self.o.keep(self.n, *at)
                body.append(ir.Store(self.weights, place, kept))
        return ir.For(k, ZERO, used, "serial", body, step=const(UNROLL))

    def _products(self, p: Expr, used: Expr, padded: Expr) -> list[Stmt]:
        """The panel's results, scaled down and with the block's share added."""
        if self.o.v is None:
            return []
        tile = self.schedule.result
        lane, c, r, k = (ir.var(f"result_{x}") for x in ("lane", "c", "r", "k"))
        sums = Sums("o", tile, self.dtype, lane)

        def at(i: int, v: int) -> Expr:
            row = ir.mul(ir.add(ir.add(p, r), const(i)), self.wide)
            return ir.add(ir.add(row, c), sums.column(v))

        line = ir.add(ir.mul(c, padded), ir.mul(k, const(tile.columns)))
        body = [
            *sums.set(
                lambda i, v: (
                    ir.load(self.result, at(i, v)) * ir.load(self.decay, ir.add(r, const(i)))
                )
            ),
            *sums.add(
                [(k, ZERO, used, const(UNROLL))],
                lambda u, i: ir.load(
                    self.weights, self._weight_at(ir.add(k, const(u)), ir.add(r, const(i)))
                ),
                lambda u, column: ir.load(
                    self.v, ir.add(ir.add(line, column), const(u * tile.columns))
                ),
            ),
            *(ir.Store(self.result, at(i, v), sums.read(i, v)) for i, v in sums.places()),
        ]
        inner: list[Stmt] = [ir.For(lane, ZERO, const(tile.width), "lanes", body)]
        inner = [
            ir.For(r, ZERO, const(self.panel), "serial", inner, step=const(tile.rows)),
        ]
        return [ir.For(c, ZERO, self.s.width, "serial", inner, step=const(tile.columns))]

    def _weight_at(self, key: Expr, query: Expr) -> Expr:
        return ir.add(ir.mul(key, const(self.panel)), query)

    def _place(self, kb: Expr, row: Expr, p: Expr, column: Expr) -> tuple[Expr, Expr]:
        """The key and the query of an element of a block's weights."""
        return ir.add(kb, row), ir.add(ir.add(self.first, p), column)

    # -- the end ----------------------------------------------------------------------------------

    def _finish(self) -> list[Stmt]:
        i, f, q = ir.var("out_i"), ir.var("out_f"), ir.var("out_q")
        zero, one = const(0, self.dtype), const(1, self.dtype)
        total = ir.load(self.total, q)
        lse = ir.load(self.top, q) + FUNCTIONS["log"](total)
        lse = select(total.eq(zero), const(float("inf"), self.dtype), lse)
        write_lse = self.o.write_lse(self.n, ir.add(self.first, q), lse)
        out: list[Stmt] = [ir.For(q, ZERO, self.rows, "lanes", write_lse)]
        if self.o.v is not None:
            total, factor = ir.load(self.total, i), ir.var("factor", self.dtype)
            value = ir.load(self.result, ir.add(ir.mul(i, self.wide), f)) * factor
            write = self.o.write(self.n, ir.add(self.first, i), f, value)
            row: list[Stmt] = [
                ir.Let(factor, select(total.eq(zero), zero, one / total)),
                ir.For(f, ZERO, self.s.width, "lanes", write),
            ]
            out.append(ir.For(i, ZERO, self.rows, "serial", row))
        return out
