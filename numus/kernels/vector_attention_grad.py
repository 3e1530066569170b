"""The derivative of attention of threads that are lanes of one vector: scores are computed again.

    P = exp(S - lse)        Z = P ∘ (M ∘ (g v') - delta)        M: what dropout keeps
    dv = (P ∘ M)' g         dk = scale Z' q                     dq = scale Z k

One kernel has a few queries and walks the keys for dq; another one has a few keys and walks the
queries, with all of it transposed, for dk and dv.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus.compiler import ir
from numus.compiler.ir import Expr, Stmt, const, select
from numus.dtypes import DType
from numus.kernels.attention_operands import GradOperands
from numus.kernels.math import exp_below
from numus.kernels.vector_attention import WIDEST, Sizes
from numus.kernels.vector_contraction import RUN, Sums, cleared, named, sums_of
from numus.kernels.vector_tiles import ZERO, Matrix, Vector

PerQuery = Callable[[Expr, Expr], Expr]  # (matrix, query)
Operands = GradOperands[Matrix, PerQuery]


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule as data."""

    lanes: int  # and rows
    spans: dict[str, int]  # of the results, by their operands' names


def choose(lanes: int, widths: dict[str, int]) -> Plan | None:
    """None where results are too wide for their sums to stay in registers."""
    spans = {name: -(-n // (RUN * lanes)) for name, n in widths.items()}
    return Plan(lanes, spans) if sum(spans.values()) <= WIDEST else None


def attention_grad(
    plan: Plan, sizes: Sizes, dtype: DType, g: Expr, operands: Operands, causal: bool
) -> list[Stmt]:
    """The work of group g."""
    return _Group(plan, sizes, dtype, g, operands, causal).body()


class _Group:
    """A block of rows (queries or keys) meets blocks of the others."""

    def __init__(
        self, plan: Plan, sizes: Sizes, dtype: DType, g: Expr, o: Operands, causal: bool
    ) -> None:
        lanes = plan.lanes
        self.s, self.o, self.causal, self.lanes = sizes, o, causal, lanes
        self.vector = Vector(lanes, ir.var("lane"), ir.idiv(g, sizes.tasks))
        self.by_query = "q" in o.writes
        self.first = ir.mul(ir.irem(g, sizes.tasks), const(lanes))
        self.rows, self.others = sizes.queries, sizes.keys
        if not self.by_query:
            self.rows, self.others = sizes.keys, sizes.queries
        elif causal:  # no later keys are seen
            last = ir.minimum(ir.add(self.first, const(lanes)), sizes.queries)
            self.others = ir.minimum(sizes.keys, last)
        self.changes = o.changes
        self.scores = sums_of("s", dtype, lanes, RUN)
        self.change = sums_of("z", dtype, lanes, RUN)
        self.results: dict[str, list[Sums]] = {
            name: [sums_of(f"d{name}{w}_", dtype, lanes, RUN) for w in range(spans)]
            for name, spans in plan.spans.items()
        }
        self.zero = const(0, dtype)

    def body(self) -> list[Stmt]:
        o, vector, b = self.o, self.vector, ir.var("block")
        own, own_g = (o.q, o.g) if self.by_query else (o.k, o.v)
        other, other_g = (o.k, o.v) if self.by_query else (o.q, o.g)
        rows = [ir.minimum(ir.add(self.first, vector.lane), self.rows - 1)]
        columns = [ir.minimum(ir.add(b, vector.column(j)), self.others - 1) for j in range(RUN)]
        block = vector.product("s", self.scores, own, rows, other, columns)
        if self.changes:
            block += vector.product("z", self.change, own_g, rows, other_g, columns)
        block += self._weights(b)
        for name, results in self.results.items():
            tile, right = (self.scores, o.g) if name == "v" else (self.change, other)
            block += vector.add_product(f"d{name}", tile, right, b, self.others, results)
        start = ZERO
        if self.causal and not self.by_query:  # no earlier queries look at these keys
            start = ir.mul(ir.idiv(self.first, const(vector.block)), const(vector.block))
        work = [s for results in self.results.values() for x in results for s in cleared(x)]
        work.append(ir.For(b, start, self.others, "serial", block, step=const(vector.block)))
        for name, results in self.results.items():
            for i in range(self.lanes):
                row = ir.add(self.first, const(i))
                for span, sums in enumerate(results):
                    values = [ir.read(x) for x in sums[i]]
                    if name != "v":
                        values = [x * o.scale for x in values]
                    matrix: Matrix = getattr(o, name)
                    work += vector.stored(
                        o.writes[name], matrix, row, row < self.rows, span, values
                    )
        return [ir.For(vector.lane, ZERO, const(self.lanes), "lanes", work)]

    def _weights(self, b: Expr) -> list[Stmt]:
        """Scores become P ∘ M, and what changes them Z."""
        s, o, n = self.s, self.o, self.vector.matrix
        out: list[Stmt] = []
        rows = [ir.add(self.first, const(i)) for i in range(self.lanes)]
        columns = [ir.add(b, self.vector.column(j)) for j in range(RUN)]
        near = [ir.minimum(x, s.queries - 1) for x in (rows if self.by_query else columns)]
        lses = named(out, "lse", [o.lse(n, x) for x in near])
        deltas = named(out, "delta", [o.delta(n, x) for x in near]) if self.changes else lses
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                query, key = (row, column) if self.by_query else (column, row)
                number = i if self.by_query else j
                at = (ir.minimum(query, s.queries - 1), ir.minimum(key, s.keys - 1))
                meet = (query < s.queries) & (key < s.keys)
                if self.causal:
                    meet = meet & (key <= query)
                value = ir.read(self.scores[i][j]) * o.scale
                if o.bias is not None:
                    value = value + o.bias(n, *at)
                weight = select(meet, exp_below(value - lses[number]), self.zero)
                (weight,) = named(out, f"weight{i}_{j}", [weight])
                kept = None
                if o.keep is not None:
                    (kept,) = named(out, f"kept{i}_{j}", [o.keep(n, *at)])
                if self.changes:
                    change = ir.read(self.change[i][j])
                    change = change if kept is None else change * kept
                    change = select(meet, weight * (change - deltas[number]), self.zero)
                    out.append(ir.Set(self.change[i][j], change))
                out.append(ir.Set(self.scores[i][j], weight if kept is None else weight * kept))
        return out
