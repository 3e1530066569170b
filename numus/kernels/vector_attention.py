"""Attention of threads that are lanes of one vector: where software imitates a GPU.

A group is one vector and has a few queries. It walks the keys by blocks, some keys to each lane:
scores are a tile of sums in registers, as in `vector_contraction`, and become powers in place. For
the product with the values each lane has some columns, and powers are picked from the lanes that
have them; registers take turns, so that the code is that of one turn. No memory is shared, and
nobody waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from numus.compiler import ir
from numus.compiler.ir import Expr, Stmt, const, select
from numus.dtypes import DType
from numus.kernels.math import FUNCTIONS, exp_below
from numus.kernels.tile_attention import tree
from numus.kernels.vector_contraction import RUN, cleared, multiply, named, picked, sums_of

ZERO, ONE = const(0), const(1)

WIDEST = 4  # runs of values that a lane has sums of
SMALL = 1 << 22  # multiplications that are not worth the time to compile large tiles


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule as data."""

    lanes: int
    rows: int  # queries of a group
    spans: int  # pieces of all lanes' runs that values are wide

    @property
    def block(self) -> int:
        """Keys that are walked at a time."""
        return RUN * self.lanes


def choose(lanes: int, width: int, work: int) -> Plan | None:
    """None where values are too wide for their sums to stay in registers."""
    spans = -(-width // (RUN * lanes))
    if spans > WIDEST:
        return None
    return Plan(lanes, 2 * lanes if spans < 2 and work > SMALL else lanes, spans)


@dataclass(slots=True)
class Sizes:
    """The numbers of a launch, as expressions."""

    queries: Expr
    keys: Expr
    size: Expr
    width: Expr
    runs: Expr  # of queries and keys, the last of them whole or not
    tasks: Expr  # of each matrix


Read = Callable[[Expr, Expr, Expr, Expr | None], Expr]  # (matrix, row, column, mask)
Score = Callable[[Expr, Expr, Expr], Expr]


@dataclass(slots=True)
class Operands:
    """How the kernel reads and writes; without values the sums of the powers alone are wanted. The
    flags: whether rows end with whole runs."""

    q: Read
    k: Read
    v: Read | None
    scale: Expr
    bias: Score | None
    keep: Score | None
    write: Callable[[Expr, Expr, Expr, Expr], list[Stmt]]
    write_lse: Callable[[Expr, Expr, Expr], list[Stmt]]
    whole_size: bool
    whole_width: bool


def attention(
    plan: Plan, sizes: Sizes, dtype: DType, g: Expr, operands: Operands, causal: bool
) -> list[Stmt]:
    """The work of group g; `dtype` is that of the computation."""
    return _Group(plan, sizes, dtype, g, operands, causal).body()


class _Group:
    def __init__(
        self, plan: Plan, sizes: Sizes, dtype: DType, g: Expr, o: Operands, causal: bool
    ) -> None:
        self.plan, self.s, self.o, self.causal, self.dtype = plan, sizes, o, causal, dtype
        self.lane = ir.var("lane")
        self.n = ir.idiv(g, sizes.tasks)
        self.first = ir.mul(ir.irem(g, sizes.tasks), const(plan.rows))
        last = ir.minimum(ir.add(self.first, const(plan.rows)), sizes.queries)
        self.visible = ir.minimum(sizes.keys, last) if causal else sizes.keys
        self.scores = sums_of("s", dtype, plan.rows, RUN)
        self.results = [sums_of(f"o{w}_", dtype, plan.rows, RUN) for w in range(plan.spans)]
        self.tops = [ir.Register(f"top{i}", dtype, lanes=True) for i in range(plan.rows)]
        self.totals = [ir.Register(f"total{i}", dtype, lanes=True) for i in range(plan.rows)]
        self.lowest, self.nothing = const(-math.inf, dtype), const(0, dtype)

    def body(self) -> list[Stmt]:
        kb, values = ir.var("key_block"), self.o.v is not None
        block = self._score(kb) + self._powers(kb)
        if values:
            block += self._values(kb)
        work: list[Stmt] = [ir.Set(x, self.nothing) for x in self.totals]
        work += [ir.Set(x, self.lowest) for x in self.tops]
        if values:
            work += [s for sums in self.results for s in cleared(sums)]
        work.append(ir.For(kb, ZERO, self.visible, "serial", block, step=const(self.plan.block)))
        work += self._finish()
        return [ir.For(self.lane, ZERO, const(self.plan.lanes), "lanes", work)]

    # -- scores -----------------------------------------------------------------------------------

    def _score(self, kb: Expr) -> list[Stmt]:
        """The products of all queries with a block of keys: lanes have every `lanes`-th key."""
        lanes, d = self.plan.lanes, ir.var("d")

        def run(read: Read, row: Expr) -> list[Expr]:
            columns = [ir.add(ir.mul(d, const(RUN)), const(c)) for c in range(RUN)]
            if self.o.whole_size:
                return [read(self.n, row, c, None) for c in columns]
            masks = [c < self.s.size for c in columns]
            found = [read(self.n, row, c, m) for c, m in zip(columns, masks, strict=True)]
            return [select(m, x, self.nothing) for m, x in zip(masks, found, strict=True)]

        out = cleared(self.scores)
        queries, keys = [], []
        for i in range(0, self.plan.rows, lanes):
            at = ir.add(self.first, ir.add(self.lane, const(i)))
            queries.append(ir.minimum(at, self.s.queries - 1))
        for j in range(RUN):
            keys.append(ir.minimum(self._key(kb, j), self.visible - 1))
        queries, keys = named(out, "query", queries), named(out, "key", keys)
        body: list[Stmt] = []
        a = [named(body, f"a{i}", run(self.o.q, x)) for i, x in enumerate(queries)]
        b = [named(body, f"b{j}", run(self.o.k, x)) for j, x in enumerate(keys)]
        for c in range(RUN):
            xs = named(body, f"x{c}", picked([line[c] for line in a], lanes))
            multiply(body, self.scores, xs, [line[c] for line in b])
        return [*out, ir.For(d, ZERO, self.s.runs, "serial", body)]

    def _key(self, kb: Expr, j: int) -> Expr:
        """The key that a lane's j-th score is of."""
        return ir.add(kb, ir.add(self.lane, const(j * self.plan.lanes)))

    def over_lanes(self, value: Expr, merge: Callable[[Expr, Expr], Expr]) -> Expr:
        half = self.plan.lanes // 2
        while half:
            value = merge(value, ir.lanes_xor(value, half))
            half //= 2
        return value

    def _powers(self, kb: Expr) -> list[Stmt]:
        """Scores become powers; what was summed up before is scaled down."""
        s, o = self.s, self.o
        out: list[Stmt] = []
        for i, scores in enumerate(self.scores):
            query = ir.add(self.first, const(i))
            limit = ir.minimum(ir.add(query, ONE), s.keys) if self.causal else s.keys
            inside = ir.minimum(query, s.queries - 1)
            names, keys = [], []
            for j, score in enumerate(scores):
                key = self._key(kb, j)
                keys.append(ir.minimum(key, s.keys - 1))
                value = ir.read(score) * o.scale
                if o.bias is not None:
                    value = value + o.bias(self.n, inside, keys[j])
                names.append(select(key < limit, value, self.lowest))
            names = named(out, f"score{i}", names)
            top, total = self.tops[i], self.totals[i]
            found, shift, decay = (ir.var(f"{x}{i}", self.dtype) for x in ("new", "shift", "decay"))
            most = self.over_lanes(tree(names, ir.maximum), ir.maximum)
            out += [
                ir.Let(found, ir.maximum(most, ir.read(top))),
                ir.Let(shift, select(found.eq(self.lowest), self.nothing, found)),
                ir.Let(decay, exp_below(ir.read(top) - shift)),
                ir.Set(top, found),
            ]
            powers = named(out, f"power{i}", [exp_below(x - shift) for x in names])
            out.append(ir.Set(total, ir.read(total) * decay + tree(powers, ir.add)))
            for j, (score, power) in enumerate(zip(scores, powers, strict=True)):
                kept = power if o.keep is None else power * o.keep(self.n, inside, keys[j])
                out.append(ir.Set(score, kept))
            if o.v is not None:
                sums = [x for result in self.results for x in result[i]]
                out += [ir.Set(x, ir.read(x) * decay) for x in sums]
        return out

    # -- values -----------------------------------------------------------------------------------

    def _column(self, span: int) -> Expr:
        """Where a lane's run of columns begins."""
        return ir.mul(ir.add(self.lane, const(span * self.plan.lanes)), const(RUN))

    def _values(self, kb: Expr) -> list[Stmt]:
        """Add the product of powers with values: in each turn that of one power of every lane."""
        lanes, turn, number = self.plan.lanes, ir.var("turn"), ir.var("number")
        left = ir.sub(self.visible, kb)
        first = ir.mul(turn, const(lanes))
        one: list[Stmt] = []
        (key,) = named(one, "row", [ir.add(ir.add(kb, first), number)])
        xs = named(one, "y", [ir.lanes_pick(ir.read(row[0]), number) for row in self.scores])
        for span, sums in enumerate(self.results):
            multiply(one, sums, xs, named(one, f"v{span}", self._run_of_values(key, span)))
        count = ir.minimum(ir.sub(left, first), const(lanes))
        body: list[Stmt] = [ir.For(number, ZERO, count, "serial", one)]
        for row in self.scores:
            moved = named(body, f"next_{row[0].name}", [ir.read(x) for x in row[1:]])
            body += [ir.Set(x, name) for x, name in zip(row, moved, strict=False)]
        turns = ir.idiv(ir.add(left, const(lanes - 1)), const(lanes))
        return [ir.For(turn, ZERO, ir.minimum(turns, const(RUN)), "serial", body)]

    def _run_of_values(self, key: Expr, span: int) -> list[Expr]:
        assert self.o.v is not None
        if self.o.whole_width:  # lanes beyond the last column read some other
            number = ir.add(self.lane, const(span * self.plan.lanes))
            last = ir.idiv(self.s.width, const(RUN)) - 1
            start = ir.mul(ir.minimum(number, last), const(RUN))
            return [self.o.v(self.n, key, ir.add(start, const(c)), None) for c in range(RUN)]
        columns = [ir.add(self._column(span), const(c)) for c in range(RUN)]
        masks = [c < self.s.width for c in columns]
        found = [self.o.v(self.n, key, c, m) for c, m in zip(columns, masks, strict=True)]
        return [select(m, x, self.nothing) for m, x in zip(masks, found, strict=True)]

    # -- the end ----------------------------------------------------------------------------------

    def _finish(self) -> list[Stmt]:
        s, o, one = self.s, self.o, const(1, self.dtype)
        out: list[Stmt] = []
        for i in range(self.plan.rows):
            query = ir.add(self.first, const(i))
            whole, factor = ir.var(f"whole{i}", self.dtype), ir.var(f"factor{i}", self.dtype)
            lse = ir.read(self.tops[i]) + FUNCTIONS["log"](whole)
            lse = select(whole.eq(self.nothing), const(math.inf, self.dtype), lse)
            out += [
                ir.Let(whole, self.over_lanes(ir.read(self.totals[i]), ir.add)),
                ir.Let(factor, select(whole.eq(self.nothing), self.nothing, one / whole)),
            ]
            done = o.write_lse(self.n, query, lse)
            if done:
                out.append(ir.If((query < s.queries) & self.lane.eq(0), done))
            if o.v is not None:
                for span, sums in enumerate(self.results):
                    out += self._store(query, span, [ir.read(x) * factor for x in sums[i]])
        return out

    def _store(self, query: Expr, span: int, values: list[Expr]) -> list[Stmt]:
        s, start = self.s, self._column(span)
        columns = [ir.add(start, const(c)) for c in range(RUN)]
        stores = [self.o.write(self.n, query, c, x) for c, x in zip(columns, values, strict=True)]
        exists = query < s.queries
        if self.o.whole_width:
            return [ir.If(exists & (start < s.width), [x for found in stores for x in found])]
        pairs = zip(columns, stores, strict=True)
        return [ir.If(exists & (c < s.width), found) for c, found in pairs]
