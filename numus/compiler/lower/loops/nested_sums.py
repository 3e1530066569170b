"""Blocked summation over several loops with a short innermost one, or with stores among the terms.

Axes cannot be collapsed where an operand is broadcast along the last of them. A block is some
iterations of a loop with all loops in it. Its sum begins at zero, and is added to those before in a
wider type.
"""

from __future__ import annotations

from typing import Any, Protocol

from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.loops.nest import Loop, LoopNest, ceil_div
from numus.compiler.lower.loops.stages import StagedGroup
from numus.compiler.lower.loops.tuning import TUNING
from numus.ir import Expr, Stmt, const

State = dict[Value, list[ir.Register]]


class Row(Protocol):
    """The row that is being emitted (`row_emitter.py`)."""

    spans: list[tuple[Expr, Expr]]
    lane: Loop | None
    varying: bool
    tiling: Any

    @property
    def work(self) -> StagedGroup: ...

    @property
    def nest(self) -> LoopNest: ...

    def add_totals(
        self, r: Value, registers: list[ir.Register], out: list[Stmt], body: list[Stmt]
    ) -> list[ir.Register]: ...

    def round_totals(self, state: State, totals: State) -> list[Stmt]: ...


def nested_block(row: Row) -> tuple[int, int]:
    """The number of the loop whose iterations are divided into blocks, and how many are one; 0 of
    them: no blocks."""
    inner, most = row.nest.inner, TUNING.nested_block_terms
    if not inner or row.tiling is not None or not (row.varying or row.lane in inner):
        return 0, 0
    width = row.work.vector_lanes()
    steps = [ceil_div(d.extent, width) if d is row.lane else d.extent for d in inner]
    within, number = 1, len(inner) - 1
    while number > 0 and within * steps[number] <= most:
        within *= steps[number]
        number -= 1
    least = TUNING.nested_min_terms if len(inner) == 1 else 2 * most
    is_short = within * steps[number] <= least and all(n == 1 for n in steps[:number])
    if is_short or row.lane in inner[:number]:  # totals are of all lanes
        return 0, 0
    size = most
    while size > 1 and size * within > most:
        size //= 2
    return number, size * width if inner[number] is row.lane else size


def sum_nested_blocks(
    row: Row,
    variables: list[Expr],
    clear: list[Stmt],
    accumulate: list[Stmt],
    state: State,
    vectors: int,
) -> list[Stmt]:
    """Sums of blocks and their totals; `vectors` of them are added at a time."""
    number, size = nested_block(row)
    (start, stop), first = row.spans[number], ir.var(f"first_{variables[number].attr}")
    end = ir.minimum(ir.add(first, const(size)), stop)
    body, spans = accumulate, [(first, end), *row.spans[number + 1 :]]
    loops = list(zip(row.nest.inner[number:], variables[number:], spans, strict=True))
    for d, x, span in reversed(loops):
        kind, unroll = ("lanes", vectors) if d is row.lane else ("serial", 1)
        body = [ir.For(x, *span, kind, body, unroll=unroll)]
    out: list[Stmt] = []
    body = [*clear, *body]
    totals = {r: row.add_totals(r, state[r], out, body) for r in state}
    body = [ir.For(first, start, stop, "serial", body, step=const(size))]
    for x, span in reversed(list(zip(variables[:number], row.spans[:number], strict=True))):
        body = [ir.For(x, *span, "serial", body)]
    return out + body + row.round_totals(state, totals)
