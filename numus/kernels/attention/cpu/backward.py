"""FlashAttention-2 backward (Dao 2023) on CPU vectors: scores are recomputed block by block.

    P = exp(S - lse)        dS = P ∘ (M ∘ (g v') - delta)       M: dropout mask
    dv = (P ∘ M)' g         dk = dS' (scale q)                  dq = scale dS k

With enough matrices for all cores, a task computes all three gradients of one; else one kernel
splits the queries for dq and another the keys for dk and dv. Both accumulate the same blocks in the
same order: bitwise equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.attention.cpu import tiles
from numus.kernels.attention.cpu.forward import Element, clamped, is_visible
from numus.kernels.attention.cpu.tiles import UNROLL, ZERO, Accumulators, Tile, ceil_to
from numus.kernels.attention.operands import BackwardOperands, Write
from numus.kernels.common.smem_tiles import round_up
from numus.kernels.math import exp_decay
from numus.target import Target

PerQuery = Callable[[Expr, Expr, Expr], Expr]  # (matrix, query, mask)


@dataclass(frozen=True, slots=True)
class Tiling:
    """Register tiles (compile-time) and block sizes (launch arguments)."""

    scores: Tile
    dq: Tile
    dk: Tile
    dv: Tile
    queries: int  # in a block
    keys: int
    query_rows: int  # of a task
    key_rows: int


def choose(
    target: Target, dtype: DType, batch: int, queries: int, keys: int, head_dim: int, value_dim: int
) -> Tiling:
    """Blocks whose operands fit in L1; tasks that are whole matrices."""
    tile = tiles.scores_tile(target, dtype, queries)
    row_bytes = max(head_dim, value_dim, 1) * dtype.itemsize
    keys_block = target.l1_bytes // (row_bytes + tile.columns * dtype.itemsize)
    keys_block = max(tile.rows, keys_block // tile.rows * tile.rows)
    queries_block = target.l1_bytes // (row_bytes + tile.rows * dtype.itemsize)
    queries_block = max(tile.columns, queries_block // tile.columns * tile.columns)
    all_queries = round_up(max(queries, 1), tile.columns)
    all_keys = round_up(max(keys, 1), tile.rows)
    return Tiling(
        scores=tile,
        dq=tiles.tile_for(target, tile.width, head_dim, tiles.divisors(tile.columns)),
        dk=tiles.tile_for(target, tile.width, head_dim, tiles.divisors(tile.rows)),
        dv=tiles.tile_for(target, tile.width, value_dim, tiles.divisors(tile.rows)),
        queries=min(queries_block, all_queries),
        keys=min(keys_block, all_keys),
        query_rows=all_queries,
        key_rows=all_keys,
    )


def use_two_kernels(target: Target, batch: int) -> bool:
    """Two kernels of 3 and 4 GEMMs, which can be split, beat one of 5 that leaves cores idle."""
    cores = target.num_cores
    return 5 * -(-batch // cores) * cores > 7 * batch


def rows_per_task(target: Target, batch: int, rows: int, multiple: int) -> int:
    """Rows of a task, in multiples, for about four tasks per core."""
    tasks = -(-4 * target.num_cores // max(batch, 1))
    return min(round_up(max(-(-rows // tasks), 1), multiple), round_up(rows, multiple))


@dataclass(slots=True)
class Sizes:
    """Launch arguments."""

    queries: Expr
    keys: Expr
    head_dim: Expr
    value_dim: Expr
    query_block: Expr
    key_block: Expr
    query_rows: Expr
    key_rows: Expr
    query_tasks: Expr
    key_tasks: Expr


Operands = BackwardOperands[Element, PerQuery]


@dataclass(slots=True)
class _Gradient:
    """A gradient in scratch memory, and the packed right operand of its GEMM."""

    name: str
    tile: Tile
    columns: Expr
    right: ir.Buffer
    result: ir.Buffer
    write: Write

    @property
    def padded(self) -> Expr:
        return ceil_to(self.columns, self.tile.columns)


class BackwardTask:
    def __init__(self, tiling: Tiling, s: Sizes, dtype: DType, g: Expr, o: Operands) -> None:
        self.tiling, self.s, self.dtype, self.o, tile = tiling, s, dtype, o, tiling.scores
        self.panel = tile.columns
        self.n = g // (s.query_tasks * s.key_tasks)
        part = g % (s.query_tasks * s.key_tasks)
        self.q0 = part // s.key_tasks * s.query_rows
        self.k0 = part % s.key_tasks * s.key_rows
        self.rows = ir.minimum(self.q0 + s.query_rows, s.queries) - self.q0
        self.k1 = ir.minimum(self.k0 + s.key_rows, s.keys)
        if o.causal:
            self.k1 = ir.minimum(self.k1, self.q0 + self.rows)
        self.padded_rows = ceil_to(self.rows, self.panel)
        self.needs_ds = o.needs_ds
        self.scratch: list[ir.Buffer] = []

        def scratch(name: str, size: Expr) -> ir.Buffer:
            found = ir.Buffer(name, dtype, "scratch", size)
            self.scratch.append(found)
            return found

        rows, block = s.query_rows, s.key_block
        self.probs = scratch("probs", s.query_block * block)
        self.ds = scratch("ds", s.query_block * block)
        self.q_panels = scratch("q_panels", rows * ceil_to(s.head_dim, UNROLL))
        self.k_tiles = scratch("k_tiles", block * ceil_to(s.head_dim, tile.column_block))
        self.g_panels = scratch("g_panels", rows * ceil_to(s.value_dim, UNROLL))
        self.v_tiles = scratch("v_tiles", block * ceil_to(s.value_dim, tile.column_block))
        self.gradients: dict[str, _Gradient] = {}
        for name, tile, columns, right, size, result in (
            ("q", tiling.dq, s.head_dim, "k_rows", block, rows),
            ("k", tiling.dk, s.head_dim, "q_rows", rows, block),
            ("v", tiling.dv, s.value_dim, "g_rows", rows, block),
        ):
            if name in o.writes:
                padded = ceil_to(columns, tile.columns)
                buffers = (scratch(right, size * padded), scratch(f"d{name}", result * padded))
                self.gradients[name] = _Gradient(name, tile, columns, *buffers, o.writes[name])
        self.dq = self.gradients.get("q")
        self.by_key = [self.gradients[x] for x in ("k", "v") if x in self.gradients]

    # -- main loop --------------------------------------------------------------------------------

    def body(self) -> list[Stmt]:
        s, o, n = self.s, self.o, self.n

        def query(read: Element) -> tiles.Read:
            return lambda r, c: read(n, self.q0 + r, c)

        def scaled(t: Expr, r: Expr, c: Expr) -> Expr:
            return o.q(t, r, c) * o.scale

        tile = self.tiling.scores
        out = tiles.pack_panels("q", self.q_panels, query(scaled), tile, self.rows, s.head_dim)
        if self.needs_ds:
            out += tiles.pack_panels("g", self.g_panels, query(o.g), tile, self.rows, s.value_dim)
        for d in self.by_key:
            read = query(scaled if d.name == "k" else o.g)
            shape = (self.rows, self.padded_rows, d.columns)
            out += tiles.pack_rows(f"{d.name}_rows", d.right, read, d.tile.columns, *shape)
        if self.dq is not None:
            out.append(self._clear(self.dq, s.query_rows))
        kb = ir.var("key_block")
        out.append(ir.For(kb, self.k0, self.k1, "serial", self._block(kb), step=s.key_block))
        if self.dq is not None:
            out += self._write(self.dq, self.q0, self.rows)
        return [*out, *self._zero_hidden_keys()]

    def _zero_hidden_keys(self) -> list[Stmt]:
        """Zero gradients of keys that the causal mask hides from all queries."""
        if not self.o.causal:
            return []
        first = ir.maximum(self.k1, self.k0)
        last = ir.minimum(self.k0 + self.s.key_rows, self.s.keys)
        out: list[Stmt] = []
        for d in self.by_key:
            r, c = ir.var(f"n{d.name}_r"), ir.var(f"n{d.name}_c")
            store = d.write(self.n, r, c, const(0, self.dtype))
            row = ir.For(c, ZERO, d.columns, "lanes", store)
            out.append(ir.For(r, first, last, "serial", [row]))
        return out

    def _block(self, kb: Expr) -> list[Stmt]:
        """One block of keys: all blocks of queries that see it."""
        s, o, n, tile = self.s, self.o, self.n, self.tiling.scores
        count = ir.minimum(kb + s.key_block, self.k1) - kb
        padded = ceil_to(count, tile.rows)

        def key(read: Element) -> tiles.Read:
            return lambda r, c: read(n, kb + r, c)

        out = tiles.pack_tiles("k", self.k_tiles, key(o.k), tile, count, s.head_dim)
        if self.needs_ds:
            out += tiles.pack_tiles("v", self.v_tiles, key(o.v), tile, count, s.value_dim)
        if self.dq is not None:
            shape = (self.dq.tile.columns, count, padded, s.head_dim)
            out += tiles.pack_rows("q_rows", self.dq.right, key(o.k), *shape)
        out += [self._clear(d, padded) for d in self.by_key]
        qb, start = ir.var("query_block"), ZERO
        if self.o.causal:
            start = ir.maximum(kb - self.q0, 0) // s.query_block * s.query_block
        body = self._query_block(kb, qb, count, padded)
        out.append(ir.For(qb, start, self.rows, "serial", body, step=s.query_block))
        for d in self.by_key:
            out += self._write(d, kb, count)
        return out

    def _query_block(self, kb: Expr, qb: Expr, count: Expr, padded: Expr) -> list[Stmt]:
        """P and dS of one block of queries and keys, then the GEMMs."""
        p, panel = ir.var("panel"), const(self.panel)
        queries = ir.minimum(self.rows - qb, self.s.query_block)
        used = self._used(kb, qb + p, count)
        scores = self._scores(kb, qb, p, used)
        out: list[Stmt] = [ir.For(p, ZERO, queries, "serial", [scores], step=panel)]
        for d in reversed(self.by_key):
            out += self._accumulate_by_key(d, kb, qb, padded, queries)
        if self.dq is not None:
            out += self._accumulate_dq(self.dq, kb, qb, count, padded, queries)
        return out

    def _used(self, kb: Expr, panel: Expr, count: Expr) -> Expr:
        """Keys of a block that a panel attends to, in whole tiles."""
        rows = self.tiling.scores.rows
        if not self.o.causal:
            return ceil_to(count, rows)
        last = self.q0 + panel + self.panel
        return ceil_to(ir.maximum(ir.minimum(count, last - kb), 0), rows)

    # -- P and dS ---------------------------------------------------------------------------------

    def _scores(self, kb: Expr, qb: Expr, p: Expr, used: Expr) -> Stmt:
        """P ∘ M and dS of one panel: [panel][key][query]."""
        lane, t = ir.var("query"), ir.var("key_tile")
        tile, s, o, dtype = self.tiling.scores, self.s, self.o, self.dtype
        row = qb + p
        first = self.q0 + row
        body: list[Stmt] = []
        lses, deltas, queries = [], [], []
        for v in range(tile.vectors):
            query = first + (lane + v * tile.width)
            exists = query < s.queries
            lses.append(ir.var(f"lse{v}", dtype))
            deltas.append(ir.var(f"delta{v}", dtype))
            queries.append(query)
            body.append(ir.Let(lses[v], o.lse(self.n, query, exists)))
            if self.needs_ds:
                body.append(ir.Let(deltas[v], o.delta(self.n, query, exists)))
        acc = Accumulators("s", tile, dtype, lane)
        per_tile = tiles.scores(acc, self.k_tiles, t, self.q_panels, row, s.head_dim)
        zero = const(0, dtype)

        def element(i: int, v: int) -> tuple[Expr, Expr, Expr, Expr]:
            key = kb + (t + i)
            visible = is_visible(key, queries[v], s.keys, self.o.causal) & (queries[v] < s.queries)
            at = p * s.key_block + (t + i) * self.panel
            return key, queries[v], visible, at + acc.column(v)

        for i, v in acc.elements():
            key, query, visible, at = element(i, v)
            value = acc.read(i, v)
            if o.bias is not None:
                value = value + o.bias(self.n, *clamped(query, key, s.queries, s.keys))
            prob = select(visible, exp_decay(value - lses[v]), zero)
            if o.keep is not None and not self.needs_ds:
                prob = prob * o.keep(self.n, *clamped(query, key, s.queries, s.keys))
            per_tile.append(ir.Store(self.probs, at, prob))
        if self.needs_ds:
            dp = Accumulators("d", tile, dtype, lane)
            per_tile += tiles.scores(dp, self.v_tiles, t, self.g_panels, row, s.value_dim)
            for i, v in dp.elements():
                key, query, visible, at = element(i, v)
                value = dp.read(i, v)
                prob = ir.var(f"prob{i}_{v}", dtype)
                per_tile.append(ir.Let(prob, ir.load(self.probs, at)))
                if o.keep is not None:
                    keep = ir.var(f"keep{i}_{v}", dtype)
                    at_clamped = clamped(query, key, s.queries, s.keys)
                    per_tile.append(ir.Let(keep, o.keep(self.n, *at_clamped)))
                    value = value * keep
                    per_tile.append(ir.Store(self.probs, at, prob * keep))
                ds = select(visible, prob * (value - deltas[v]), zero)
                per_tile.append(ir.Store(self.ds, at, ds))
        body.append(ir.For(t, ZERO, used, "serial", per_tile, step=const(tile.rows)))
        return ir.For(lane, ZERO, const(tile.width), "lanes", body)

    # -- GEMMs ------------------------------------------------------------------------------------

    def _accumulate_by_key(
        self, d: _Gradient, kb: Expr, qb: Expr, padded: Expr, queries: Expr
    ) -> list[Stmt]:
        """dk += dS' q, or dv += P' g, of a block of queries."""
        lane, c, t, p, q = (ir.var(f"{d.name}_{x}") for x in ("lane", "c", "t", "p", "q"))
        start, panel = ZERO, const(self.panel)
        if self.o.causal:
            start = ir.maximum(kb + t - (self.q0 + qb), 0) // panel * panel
        rows = p * self.s.key_block + t * panel
        row = c * self.padded_rows + (qb + p + q) * d.tile.columns
        loops = [(p, start, queries, panel), (q, ZERO, panel, const(UNROLL))]
        buffer = self.ds if d.name == "k" else self.probs

        def left(u: int, i: int) -> Expr:
            return ir.load(buffer, rows + q + (i * self.panel + u))

        return self._gemm(d, lane, loops, left, row, (t, padded), c, t)

    def _accumulate_dq(
        self, d: _Gradient, kb: Expr, qb: Expr, count: Expr, padded: Expr, queries: Expr
    ) -> list[Stmt]:
        """dq += dS k of a block of keys."""
        lane, c, p, r, k = (ir.var(f"q_{x}") for x in ("lane", "c", "p", "r", "k"))
        panel = const(self.panel)
        rows = p * self.s.key_block + k * panel
        row = c * padded + k * d.tile.columns
        loops = [(k, ZERO, self._used(kb, qb + p, count), const(UNROLL))]

        def left(u: int, i: int) -> Expr:
            return ir.load(self.ds, rows + r + (u * self.panel + i))

        body = self._gemm(d, lane, loops, left, row, (r, panel), c, qb + p + r)
        return [ir.For(p, ZERO, queries, "serial", body, step=panel)]

    def _gemm(
        self,
        d: _Gradient,
        lane: Expr,
        loops: list[tiles.Loop],
        left: Callable[[int, int], Expr],
        right_row: Expr,
        rows: tuple[Expr, Expr],
        c: Expr,
        row: Expr,
    ) -> list[Stmt]:
        """result += left @ right, register tile by register tile."""
        acc = Accumulators(f"d{d.name}", d.tile, self.dtype, lane)

        def right(u: int, column: Expr) -> Expr:
            return ir.load(d.right, right_row + column + u * d.tile.columns)

        def at(i: int, v: int) -> Expr:
            return (row + i) * d.padded + c + acc.column(v)

        return acc.gemm(d.result, at, acc.add(loops, left, right), rows, (c, d.columns))

    # -- epilogue ---------------------------------------------------------------------------------

    def _clear(self, d: _Gradient, rows: Expr) -> Stmt:
        i = ir.var(f"clear_d{d.name}")
        store = ir.Store(d.result, i, const(0, self.dtype))
        return ir.For(i, ZERO, rows * d.padded, "lanes", [store])

    def _write(self, d: _Gradient, first: Expr, rows: Expr) -> list[Stmt]:
        r, c = ir.var(f"write_d{d.name}_r"), ir.var(f"write_d{d.name}_c")
        value = ir.load(d.result, r * d.padded + c)
        if d.name == "q":
            value = value * self.o.scale
        row = ir.For(c, ZERO, d.columns, "lanes", d.write(self.n, first + r, c, value))
        return [ir.For(r, ZERO, rows, "serial", [row])]
