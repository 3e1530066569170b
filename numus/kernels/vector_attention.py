"""Attention of threads that are lanes of one vector: where software imitates a GPU.

A group is one vector and has a few queries. It walks the keys by blocks, some keys to each lane:
scores are a tile of sums in registers and become powers in place, and the product with the values
picks them from there. No memory is shared, and nobody waits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from numus.compiler import ir
from numus.compiler.ir import Expr, Stmt, const, select
from numus.dtypes import DType
from numus.kernels.attention_operands import Operands
from numus.kernels.math import FUNCTIONS, exp_below
from numus.kernels.tile_attention import tree
from numus.kernels.vector_contraction import RUN, cleared, named, sums_of
from numus.kernels.vector_tiles import ONE, ZERO, Matrix, Vector

WIDEST = 4  # spans of values that lanes have sums of
SMALL = 1 << 22  # multiplications that are not worth the time to compile large tiles


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule as data."""

    lanes: int
    rows: int  # queries of a group
    spans: int  # of the values


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
    tasks: Expr  # of each matrix


def attention(
    plan: Plan, sizes: Sizes, dtype: DType, g: Expr, operands: Operands[Matrix], causal: bool
) -> list[Stmt]:
    """The work of group g; `dtype` is that of the computation."""
    return _Group(plan, sizes, dtype, g, operands, causal).body()


class _Group:
    def __init__(
        self, plan: Plan, sizes: Sizes, dtype: DType, g: Expr, o: Operands[Matrix], causal: bool
    ) -> None:
        self.plan, self.s, self.o, self.causal, self.dtype = plan, sizes, o, causal, dtype
        self.vector = Vector(plan.lanes, ir.var("lane"), ir.idiv(g, sizes.tasks))
        self.first = ir.mul(ir.irem(g, sizes.tasks), const(plan.rows))
        last = ir.minimum(ir.add(self.first, const(plan.rows)), sizes.queries)
        self.visible = ir.minimum(sizes.keys, last) if causal else sizes.keys
        self.scores = sums_of("s", dtype, plan.rows, RUN)
        self.results = [sums_of(f"o{w}_", dtype, plan.rows, RUN) for w in range(plan.spans)]
        self.tops = [ir.Register(f"top{i}", dtype, lanes=True) for i in range(plan.rows)]
        self.totals = [ir.Register(f"total{i}", dtype, lanes=True) for i in range(plan.rows)]
        self.lowest, self.nothing = const(-math.inf, dtype), const(0, dtype)

    def body(self) -> list[Stmt]:
        o, vector, kb = self.o, self.vector, ir.var("key_block")
        queries = [
            ir.minimum(ir.add(self.first, ir.add(vector.lane, const(i))), self.s.queries - 1)
            for i in range(0, self.plan.rows, self.plan.lanes)
        ]
        keys = [ir.minimum(ir.add(kb, vector.column(j)), self.visible - 1) for j in range(RUN)]
        block = vector.product("s", self.scores, o.q, queries, o.k, keys) + self._powers(kb)
        work: list[Stmt] = [ir.Set(x, self.nothing) for x in self.totals]
        work += [ir.Set(x, self.lowest) for x in self.tops]
        if o.v is not None:
            work += [s for sums in self.results for s in cleared(sums)]
            block += vector.add_product("o", self.scores, o.v, kb, self.visible, self.results)
        work.append(ir.For(kb, ZERO, self.visible, "serial", block, step=const(vector.block)))
        work += self._finish()
        return [ir.For(vector.lane, ZERO, const(self.plan.lanes), "lanes", work)]

    def _powers(self, kb: Expr) -> list[Stmt]:
        """Scores become powers; what was summed up before is scaled down."""
        s, o, vector = self.s, self.o, self.vector
        out: list[Stmt] = []
        for i, scores in enumerate(self.scores):
            query = ir.add(self.first, const(i))
            limit = ir.minimum(ir.add(query, ONE), s.keys) if self.causal else s.keys
            inside = ir.minimum(query, s.queries - 1)
            names, keys = [], []
            for j, score in enumerate(scores):
                key = ir.add(kb, vector.column(j))
                keys.append(ir.minimum(key, s.keys - 1))
                value = ir.read(score) * o.scale
                if o.bias is not None:
                    value = value + o.bias(vector.matrix, inside, keys[j])
                names.append(select(key < limit, value, self.lowest))
            names = named(out, f"score{i}", names)
            top, total = self.tops[i], self.totals[i]
            found, shift, decay = (ir.var(f"{x}{i}", self.dtype) for x in ("new", "shift", "decay"))
            most = vector.over_lanes(tree(names, ir.maximum), ir.maximum)
            out += [
                ir.Let(found, ir.maximum(most, ir.read(top))),
                ir.Let(shift, select(found.eq(self.lowest), self.nothing, found)),
                ir.Let(decay, exp_below(ir.read(top) - shift)),
                ir.Set(top, found),
            ]
            powers = named(out, f"power{i}", [exp_below(x - shift) for x in names])
            out.append(ir.Set(total, ir.read(total) * decay + tree(powers, ir.add)))
            for j, (score, power) in enumerate(zip(scores, powers, strict=True)):
                kept = power if o.keep is None else power * o.keep(vector.matrix, inside, keys[j])
                out.append(ir.Set(score, kept))
            sums = [x for result in self.results for x in result[i]]
            out += [ir.Set(x, ir.read(x) * decay) for x in sums]
        return out

    def _finish(self) -> list[Stmt]:
        s, o, vector, one = self.s, self.o, self.vector, const(1, self.dtype)
        out: list[Stmt] = []
        for i in range(self.plan.rows):
            query = ir.add(self.first, const(i))
            exists = query < s.queries
            whole, factor = ir.var(f"whole{i}", self.dtype), ir.var(f"factor{i}", self.dtype)
            lse = ir.read(self.tops[i]) + FUNCTIONS["log"](whole)
            lse = select(whole.eq(self.nothing), const(math.inf, self.dtype), lse)
            out += [
                ir.Let(whole, vector.over_lanes(ir.read(self.totals[i]), ir.add)),
                ir.Let(factor, select(whole.eq(self.nothing), self.nothing, one / whole)),
            ]
            done = o.write_lse(vector.matrix, query, lse)
            if done:
                out.append(ir.If(exists & vector.lane.eq(0), done))
            if o.v is not None:
                for span, sums in enumerate(self.results):
                    values = [ir.read(x) * factor for x in sums[i]]
                    out += vector.stored(o.write, o.v, query, exists, span, values)
        return out
