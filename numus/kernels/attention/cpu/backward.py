"""The derivative of attention: scores are computed again, tile by tile, and never stored.

With the logarithms of the sums at hand, a block's weights need no running maximum:

    P = exp(S - lse)        Z = P ∘ (M ∘ (g v') - delta)        M: what dropout keeps
    dv = (P ∘ M)' g         dk = Z' (scale q)                   dq = scale Z k

A task walks blocks of keys and, for each, blocks of queries: it lays P ∘ M and Z into scratch,
panel by panel, then multiplies. Where there are matrices enough for all threads, a task is a
matrix and has all three results; else one kernel takes queries apart for dq and another one keys
for dk and dv. All sums run over the same blocks in the same order, so both ways give the same
bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.attention.cpu.forward import Element, inside, seen
from numus.kernels.attention.cpu.tiles import (
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
    up,
)
from numus.kernels.attention.operands import GradOperands, Write
from numus.kernels.math import exp_decay
from numus.target import Target

PerQuery = Callable[[Expr, Expr, Expr], Expr]  # (matrix, query, mask)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The first four shape the code, the others are given at launch."""

    scores: Tile
    dq: Tile
    dk: Tile
    dv: Tile
    queries: int  # in a block
    keys: int
    query_rows: int  # of a task
    key_rows: int


def choose(
    target: Target, dtype: DType, stack: int, queries: int, keys: int, size: int, width: int
) -> Schedule:
    """Blocks whose rows of operands stay in the first cache; tasks that are whole matrices."""
    tile = scores_tile(target, dtype, queries)
    deep = max(size, width, 1) * dtype.itemsize
    keys_block = target.l1_bytes // (deep + tile.columns * dtype.itemsize)
    keys_block = max(tile.rows, keys_block // tile.rows * tile.rows)
    queries_block = target.l1_bytes // (deep + tile.rows * dtype.itemsize)
    queries_block = max(tile.columns, queries_block // tile.columns * tile.columns)
    all_queries = rounded(max(queries, 1), tile.columns)
    all_keys = rounded(max(keys, 1), tile.rows)
    return Schedule(
        scores=tile,
        dq=tile_for(target, tile.width, size, divisors(tile.columns)),
        dk=tile_for(target, tile.width, size, divisors(tile.rows)),
        dv=tile_for(target, tile.width, width, divisors(tile.rows)),
        queries=min(queries_block, all_queries),
        keys=min(keys_block, all_keys),
        query_rows=all_queries,
        key_rows=all_keys,
    )


def apart(target: Target, stack: int) -> bool:
    """Whether two kernels of 3 and 4 products are done sooner than one of 5 that cannot be cut."""
    units = target.num_cores
    return 5 * -(-stack // units) * units > 7 * stack


def cut(target: Target, stack: int, rows: int, unit: int) -> int:
    """Rows of a task, a multiple of `unit`, that give every thread several."""
    wanted = -(-4 * target.num_cores // max(stack, 1))
    return min(rounded(max(-(-rows // wanted), 1), unit), rounded(rows, unit))


@dataclass(slots=True)
class Sizes:
    """The numbers of a launch, as expressions."""

    queries: Expr
    keys: Expr
    size: Expr
    width: Expr
    query_block: Expr
    key_block: Expr
    query_rows: Expr
    key_rows: Expr
    query_tasks: Expr
    key_tasks: Expr


Operands = GradOperands[Element, PerQuery]


def attention_grad(
    schedule: Schedule, sizes: Sizes, dtype: DType, g: Expr, operands: Operands, causal: bool
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The work of task g, and its scratch."""
    task = _Task(schedule, sizes, dtype, g, operands, causal)
    return task.body(), task.scratch


class _Task:
    def __init__(
        self, schedule: Schedule, sizes: Sizes, dtype: DType, g: Expr, o: Operands, causal: bool
    ) -> None:
        self.schedule, self.s, self.dtype, self.o, self.causal = schedule, sizes, dtype, o, causal
        s, tile = sizes, schedule.scores
        self.panel = tile.columns
        self.n = ir.idiv(g, ir.mul(s.query_tasks, s.key_tasks))
        part = ir.irem(g, ir.mul(s.query_tasks, s.key_tasks))
        self.q0 = ir.mul(ir.idiv(part, s.key_tasks), s.query_rows)
        self.k0 = ir.mul(ir.irem(part, s.key_tasks), s.key_rows)
        self.rows = ir.sub(ir.minimum(ir.add(self.q0, s.query_rows), s.queries), self.q0)
        self.k1 = ir.minimum(ir.add(self.k0, s.key_rows), s.keys)
        if causal:
            self.k1 = ir.minimum(self.k1, ir.add(self.q0, self.rows))
        self.padded_rows = up(self.rows, self.panel)
        self.wants_z = o.changes
        self.scratch: list[ir.Buffer] = []

        def scratch(name: str, size: Expr) -> ir.Buffer:
            found = ir.Buffer(name, dtype, "scratch", size)
            self.scratch.append(found)
            return found

        rows, block = s.query_rows, s.key_block
        self.weights = scratch("weights", ir.mul(s.query_block, block))
        self.z = scratch("z", ir.mul(s.query_block, block))
        self.q_panels = scratch("q_panels", ir.mul(rows, up(s.size, UNROLL)))
        self.k_tiles = scratch("k_tiles", ir.mul(block, up(s.size, tile.block)))
        self.g_panels = scratch("g_panels", ir.mul(rows, up(s.width, UNROLL)))
        self.v_tiles = scratch("v_tiles", ir.mul(block, up(s.width, tile.block)))
        q_wide, k_wide = up(s.size, schedule.dq.columns), up(s.size, schedule.dk.columns)
        v_wide = up(s.width, schedule.dv.columns)
        if "q" in o.writes:
            self.k_lines = scratch("k_lines", ir.mul(block, q_wide))
            self.dq = scratch("dq", ir.mul(rows, q_wide))
        if "k" in o.writes:
            self.q_lines = scratch("q_lines", ir.mul(rows, k_wide))
            self.dk = scratch("dk", ir.mul(block, k_wide))
        if "v" in o.writes:
            self.g_lines = scratch("g_lines", ir.mul(rows, v_wide))
            self.dv = scratch("dv", ir.mul(block, v_wide))

    # -- the walk ---------------------------------------------------------------------------------

    def body(self) -> list[Stmt]:
        s, o, n, sch = self.s, self.o, self.n, self.schedule

        def query(read: Element) -> Callable[[Expr, Expr], Expr]:
            return lambda r, c: read(n, ir.add(self.q0, r), c)

        def scaled(t: Expr, r: Expr, c: Expr) -> Expr:
            return o.q(t, r, c) * o.scale

        out = pack_panels("q", self.q_panels, query(scaled), sch.scores, self.rows, s.size)
        if self.wants_z:
            out += pack_panels("g", self.g_panels, query(o.g), sch.scores, self.rows, s.width)
        lines = (self.rows, self.padded_rows)
        if "k" in o.writes:
            out += pack_lines("ql", self.q_lines, query(scaled), sch.dk.columns, *lines, s.size)
        if "v" in o.writes:
            out += pack_lines("gl", self.g_lines, query(o.g), sch.dv.columns, *lines, s.width)
        if "q" in o.writes:
            out.append(self._clear("dq", self.dq, ir.mul(s.query_rows, self._wide(sch.dq, s.size))))
        kb = ir.var("key_block")
        out.append(ir.For(kb, self.k0, self.k1, "serial", self._block(kb), step=s.key_block))
        if "q" in o.writes:
            out += self._write("dq", self.dq, sch.dq, self.q0, self.rows, s.size, o.writes["q"])
        return [*out, *self._unseen()]

    def _unseen(self) -> list[Stmt]:
        """Zeros for keys behind the last query, at which nobody looks."""
        if not self.causal:
            return []
        s, o = self.s, self.o
        last = ir.minimum(ir.add(self.k0, s.key_rows), s.keys)
        out: list[Stmt] = []
        for name, columns in (("k", s.size), ("v", s.width)):
            if name in o.writes:
                r, c = ir.var(f"n{name}_r"), ir.var(f"n{name}_c")
                write = o.writes[name]
                line = ir.For(c, ZERO, columns, "lanes", write(self.n, r, c, const(0, self.dtype)))
                first = ir.maximum(self.k1, self.k0)
                out.append(ir.For(r, first, last, "serial", [line]))
        return out

    def _block(self, kb: Expr) -> list[Stmt]:
        """All that a block of keys takes part in."""
        s, o, n, sch = self.s, self.o, self.n, self.schedule
        count = ir.sub(ir.minimum(ir.add(kb, s.key_block), self.k1), kb)
        padded = up(count, sch.scores.rows)

        def key(read: Element) -> Callable[[Expr, Expr], Expr]:
            return lambda r, c: read(n, ir.add(kb, r), c)

        out = pack_tiles("k", self.k_tiles, key(o.k), sch.scores, count, s.size)
        if self.wants_z:
            out += pack_tiles("v", self.v_tiles, key(o.v), sch.scores, count, s.width)
        if "q" in o.writes:
            columns = sch.dq.columns
            out += pack_lines("kl", self.k_lines, key(o.k), columns, count, padded, s.size)
        if "k" in o.writes:
            out.append(self._clear("dk", self.dk, ir.mul(padded, self._wide(sch.dk, s.size))))
        if "v" in o.writes:
            out.append(self._clear("dv", self.dv, ir.mul(padded, self._wide(sch.dv, s.width))))
        qb = ir.var("query_block")
        start = ZERO
        if self.causal:  # blocks of queries before these keys do not see them
            before = ir.idiv(ir.maximum(ir.sub(kb, self.q0), 0), s.query_block)
            start = ir.mul(before, s.query_block)
        some = ir.minimum(ir.sub(self.rows, qb), s.query_block)
        out.append(
            ir.For(
                *(qb, start, self.rows, "serial", self._meet(kb, qb, count, padded, some)),
                step=s.query_block,
            )
        )
        if "k" in o.writes:
            out += self._write("dk", self.dk, sch.dk, kb, count, s.size, o.writes["k"])
        if "v" in o.writes:
            out += self._write("dv", self.dv, sch.dv, kb, count, s.width, o.writes["v"])
        return out

    def _meet(self, kb: Expr, qb: Expr, count: Expr, padded: Expr, some: Expr) -> list[Stmt]:
        """A block of keys and a block of queries: weights, then products."""
        s, o, sch = self.s, self.o, self.schedule
        p = ir.var("panel")
        used = self._used(kb, ir.add(qb, p), count)
        out: list[Stmt] = [
            ir.For(
                *(p, ZERO, some, "serial", [self._weights(kb, qb, p, used)]),
                step=const(self.panel),
            )
        ]
        if "v" in o.writes:
            out += self._by_key(
                *("v", sch.dv, self.weights, self.g_lines, self.dv, s.width),
                *(kb, qb, padded, some),
            )
        if "k" in o.writes:
            out += self._by_key(
                *("k", sch.dk, self.z, self.q_lines, self.dk, s.size),
                *(kb, qb, padded, some),
            )
        if "q" in o.writes:
            out += self._by_query(kb, qb, count, padded, some)
        return out

    def _used(self, kb: Expr, panel: Expr, count: Expr) -> Expr:
        """How many of a block's keys a panel looks at, in whole tiles."""
        rows = self.schedule.scores.rows
        if not self.causal:
            return up(count, rows)
        last = ir.add(ir.add(self.q0, panel), const(self.panel))
        return up(ir.maximum(ir.minimum(count, ir.sub(last, kb)), 0), rows)

    # -- weights ----------------------------------------------------------------------------------

    def _weights(self, kb: Expr, qb: Expr, p: Expr, used: Expr) -> Stmt:
        """P ∘ M and Z of one panel: [panel][key][query]."""
        lane, t = ir.var("query"), ir.var("key_tile")
        tile, s, o, dtype = self.schedule.scores, self.s, self.o, self.dtype
        row = ir.add(qb, p)
        first = ir.add(self.q0, row)
        body: list[Stmt] = []
        lses, deltas, queries = [], [], []
        for v in range(tile.vectors):
            query = ir.add(first, ir.add(lane, const(v * tile.width)))
            there = query < s.queries
            lses.append(ir.var(f"lse{v}", dtype))
            deltas.append(ir.var(f"delta{v}", dtype))
            queries.append(query)
            body.append(ir.Let(lses[v], o.lse(self.n, query, there)))
            if self.wants_z:
                body.append(ir.Let(deltas[v], o.delta(self.n, query, there)))
        sums = Sums("s", tile, dtype, lane)
        tiles = scores(
            *(sums, self.k_tiles, ir.mul(t, up(s.size, tile.block))),
            *(self.q_panels, ir.mul(row, up(s.size, UNROLL)), s.size),
        )
        zero = const(0, dtype)

        def place(i: int, v: int) -> tuple[Expr, Expr, Expr, Expr]:
            """The key, the query, whether they meet, and where that lies in scratch."""
            key = ir.add(kb, ir.add(t, const(i)))
            meet = seen(key, queries[v], s.keys, self.causal) & (queries[v] < s.queries)
            at = ir.add(ir.mul(p, s.key_block), ir.mul(ir.add(t, const(i)), const(self.panel)))
            return key, queries[v], meet, ir.add(at, sums.column(v))

        for i, v in sums.places():
            key, query, meet, at = place(i, v)
            value = sums.read(i, v)
            if o.bias is not None:
                value = value + o.bias(self.n, *inside(query, key, s.queries, s.keys))
            weight = select(meet, exp_decay(value - lses[v]), zero)
            if o.keep is not None and not self.wants_z:
                weight = weight * o.keep(self.n, *inside(query, key, s.queries, s.keys))
            tiles.append(ir.Store(self.weights, at, weight))
        if self.wants_z:
            change = Sums("d", tile, dtype, lane)
            tiles += scores(
                *(change, self.v_tiles, ir.mul(t, up(s.width, tile.block))),
                *(self.g_panels, ir.mul(row, up(s.width, UNROLL)), s.width),
            )
            for i, v in change.places():
                key, query, meet, at = place(i, v)
                value = change.read(i, v)
                weight = ir.var(f"weight{i}_{v}", dtype)
                tiles.append(ir.Let(weight, ir.load(self.weights, at)))
                if o.keep is not None:
                    kept = ir.var(f"kept{i}_{v}", dtype)
                    near = inside(query, key, s.queries, s.keys)
                    tiles.append(ir.Let(kept, o.keep(self.n, *near)))
                    value = value * kept
                    tiles.append(ir.Store(self.weights, at, weight * kept))
                z = select(meet, weight * (value - deltas[v]), zero)
                tiles.append(ir.Store(self.z, at, z))
        body.append(ir.For(t, ZERO, used, "serial", tiles, step=const(tile.rows)))
        return ir.For(lane, ZERO, const(tile.width), "lanes", body)

    # -- products ---------------------------------------------------------------------------------

    def _wide(self, tile: Tile, columns: Expr) -> Expr:
        return up(columns, tile.columns)

    def _by_key(
        self,
        name: str,
        tile: Tile,
        left: ir.Buffer,
        lines: ir.Buffer,
        result: ir.Buffer,
        columns: Expr,
        kb: Expr,
        qb: Expr,
        padded: Expr,
        some: Expr,
    ) -> list[Stmt]:
        """Rows of keys: what the panels of a block of queries add to dk or dv."""
        lane, c, t, p, q = (ir.var(f"{name}_{x}") for x in ("lane", "c", "t", "p", "q"))
        sums = Sums(f"d{name}", tile, self.dtype, lane)
        start = ZERO
        if self.causal:  # panels before these keys do not see them
            behind = ir.sub(ir.add(kb, t), ir.add(self.q0, qb))
            start = ir.mul(ir.idiv(ir.maximum(behind, 0), const(self.panel)), const(self.panel))
        rows = ir.add(ir.mul(p, self.s.key_block), ir.mul(t, const(self.panel)))
        line = ir.add(ir.add(qb, p), q)
        line = ir.add(ir.mul(c, self.padded_rows), ir.mul(line, const(tile.columns)))
        loops = [
            (p, start, some, const(self.panel)),
            (q, ZERO, const(self.panel), const(UNROLL)),
        ]

        def weight(u: int, i: int) -> Expr:
            return ir.load(left, ir.add(ir.add(rows, q), const(i * self.panel + u)))

        def right(u: int, column: Expr) -> Expr:
            return ir.load(lines, ir.add(ir.add(line, column), const(u * tile.columns)))

        return self._product(sums, loops, weight, right, result, columns, (t, ZERO, padded), c)

    def _by_query(self, kb: Expr, qb: Expr, count: Expr, padded: Expr, some: Expr) -> list[Stmt]:
        """Rows of queries: what a block of keys adds to dq."""
        tile = self.schedule.dq
        lane, c, p, r, k = (ir.var(f"q_{x}") for x in ("lane", "c", "p", "r", "k"))
        sums = Sums("dq", tile, self.dtype, lane)
        rows = ir.add(ir.mul(p, self.s.key_block), ir.mul(k, const(self.panel)))
        line = ir.add(ir.mul(c, padded), ir.mul(k, const(tile.columns)))
        loops = [(k, ZERO, self._used(kb, ir.add(qb, p), count), const(UNROLL))]

        def weight(u: int, i: int) -> Expr:
            return ir.load(self.z, ir.add(ir.add(rows, r), const(u * self.panel + i)))

        def right(u: int, column: Expr) -> Expr:
            return ir.load(self.k_lines, ir.add(ir.add(line, column), const(u * tile.columns)))

        place = ir.add(ir.add(qb, p), r)
        body = self._product(
            *(sums, loops, weight, right, self.dq, self.s.size),
            *((r, ZERO, const(self.panel)), c, place),
        )
        return [ir.For(p, ZERO, some, "serial", body, step=const(self.panel))]

    def _product(
        self,
        sums: Sums,
        loops: list[tuple[Expr, Expr, Expr, Expr]],
        left: Callable[[int, int], Expr],
        right: Callable[[int, Expr], Expr],
        result: ir.Buffer,
        columns: Expr,
        rows: tuple[Expr, Expr, Expr],
        c: Expr,
        place: Expr | None = None,
    ) -> list[Stmt]:
        """Add products to `result`, register tile by register tile, over rows and columns."""
        tile = sums.tile
        r, first, last = rows
        row = r if place is None else place
        wide = self._wide(tile, columns)

        def at(i: int, v: int) -> Expr:
            start = ir.mul(ir.add(row, const(i)), wide)
            return ir.add(ir.add(start, c), sums.column(v))

        body = [
            *sums.set(lambda i, v: ir.load(result, at(i, v))),
            *sums.add(loops, left, right),
            *(ir.Store(result, at(i, v), sums.read(i, v)) for i, v in sums.places()),
        ]
        inner: list[Stmt] = [ir.For(sums.lane, ZERO, const(tile.width), "lanes", body)]
        inner = [ir.For(r, first, last, "serial", inner, step=const(tile.rows))]
        return [ir.For(c, ZERO, columns, "serial", inner, step=const(tile.columns))]

    # -- results ----------------------------------------------------------------------------------

    def _clear(self, name: str, buffer: ir.Buffer, size: Expr) -> Stmt:
        z = ir.var(f"clear_{name}")
        return ir.For(z, ZERO, size, "lanes", [ir.Store(buffer, z, const(0, self.dtype))])

    def _write(
        self,
        name: str,
        buffer: ir.Buffer,
        tile: Tile,
        first: Expr,
        rows: Expr,
        columns: Expr,
        write: Write,
    ) -> list[Stmt]:
        r, c = ir.var(f"write_{name}_r"), ir.var(f"write_{name}_c")
        value = ir.load(buffer, ir.add(ir.mul(r, self._wide(tile, columns)), c))
        if name == "dq":
            value = value * self.o.scale
        line = ir.For(c, ZERO, columns, "lanes", write(self.n, ir.add(first, r), c, value))
        return [ir.For(r, ZERO, rows, "serial", [line])]
