"""Column (outer-axis) reductions on SIMD targets, with accumulators in scratch memory.

Where adjacent elements in memory belong to different rows, each line adds to the accumulators of
many rows, which are a scratch line in L1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numus import ir
from numus.compiler.fusion.group import index_of
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Index, Kernels, LoweredKernel
from numus.compiler.lower.loops import nest as loop_nest
from numus.compiler.lower.loops.nest import ZERO, Position, ceil_div
from numus.compiler.lower.loops.problem import LoopProblem
from numus.compiler.lower.loops.reduce_combine import CombineKernel, RowSplit
from numus.compiler.lower.loops.row_emitter import Span, store_per_row
from numus.compiler.lower.loops.tuning import TUNING
from numus.compiler.lower.reducers import reducer
from numus.ir import Expr, Stmt, const


def lower_columns(p: LoopProblem) -> Kernels:
    """Each block takes a split of the rows and as many columns as a scratch line has."""
    along = p.nest.inner[0].extent
    width = min(p.lanes.extent, TUNING.column_block)
    inner = p.nest.row_size // along
    lines = max(16, 8 * TUNING.split_elements // (width * inner))
    lines = min(lines, max(1, TUNING.serial_elements // inner))
    if lines < along:
        p = replace(p, work=p.work.with_residuals())
    split = RowSplit.of(p, lines)
    step = _Columns(p, split, width).kernel()
    return [step] if split.count == 1 else [step, CombineKernel(p, split).lower()]


class _Columns:
    """The kernel that reads; it stores results, or partial ones of a split."""

    def __init__(self, p: LoopProblem, split: RowSplit, width: int) -> None:
        self.p, self.split = p, split
        self.work, self.nest, lane = p.work, p.nest, p.lanes
        e = self.e = p.work.emitter()
        g = self.g = ir.var("g")
        others = [d for d in p.nest.rows if d is not lane]
        column_blocks = ceil_div(lane.extent, width)
        self.grid = split.count * column_blocks * loop_nest.iterations(others)
        size, count = e.scalar_arg(split.size), e.scalar_arg(split.count)
        self.line, blocks = e.scalar_arg(width), e.scalar_arg(column_blocks)
        rest, self.part = divmod(g, count)
        row, column = divmod(rest, blocks)
        self.at: Position = loop_nest.delinearize(e, row, others)
        self.span = split.span(e, self.part, size)
        self.columns = ir.block_range(column, self.line, e.dim(lane.extent))
        self.accumulators: dict[Value, list[ir.Buffer]] = {}

    def kernel(self) -> LoweredKernel:
        e, work = self.e, self.work
        first, last = self.span
        size = ir.mul(ir.sub(last, first), e.dim(self.split.inner))
        for v in work.counts:
            e.bind(v, size.cast(v.dtype))
        body: list[Stmt] = []
        for stage in range(work.passes):
            reductions = work.reductions_in(stage)
            body += [self._initialize(r) for r in reductions]
            body += self._stage(stage)
            for r in reductions:
                e.bindings[r] = self._result(r)
            for m, r in work.aliases.items():
                if r in reductions:
                    e.bindings[m] = e.bindings[r]
        body.append(self._over_line("save", self._save))
        return e.grid_kernel("column_reduction", self.g, body, self.grid, work.notes)

    def _over_line(self, name: str, make: Callable[[Expr], list[Stmt]]) -> Stmt:
        """A loop over the columns of the line; `make` is given the offset in it."""
        j = self.e.variable(name, self.e.dim(self.p.lanes.extent))
        self.at[self.p.lanes] = j
        return ir.For(j, *self.columns, "lanes", make(self._offset()))

    def _offset(self) -> Expr:
        """The offset of the current column in a scratch line."""
        return ir.sub(self.at[self.p.lanes], self.columns[0])

    def _initialize(self, r: Value) -> Stmt:
        """Scratch lines of a reduction's accumulators, and the loop that initialises them."""
        how, e = reducer(r), self.e
        found = self.accumulators[r] = [
            ir.Buffer(f"h{len(e.scratch) + i}", t, "scratch", self.line)
            for i, t in enumerate(how.dtypes)
        ]
        e.scratch += found
        return self._over_line(f"z{r.id}", lambda k: ir.stores(found, k, how.initial()))

    def _result(self, r: Value) -> Callable[[Index], Any]:
        """A result as later stages read it: from its scratch line, in whichever loop they are."""
        return lambda index: reducer(r).finish(
            [ir.load(b, self._offset()) for b in self.accumulators[r]]
        )

    def _save(self, k: Expr) -> list[Stmt]:
        if self.split.count == 1:
            return store_per_row(self.p, self.e, self.at)
        row = loop_nest.linearize(self.e, self.nest.rows, self.at)
        return [
            s
            for r, vals in self.split.partials.items()
            for v, b in zip(vals, self.accumulators[r], strict=True)
            for s in self.e.store(v, (self.part, row), ir.load(b, k))
        ]

    # -- stages -----------------------------------------------------------------------------------

    def _stage(self, stage: int) -> list[Stmt]:
        """The loops of one stage: several lines at a time, then the remainder."""
        first, last = self.span
        cheap = len(self.nest.inner) == 1 and self.work.cost() == 1
        if not cheap or self.work.stores_in(stage):
            return self._lines(stage, "a", self.span, 1)
        unroll = const(TUNING.column_unroll)
        middle = ir.add(first, ir.mul(ir.idiv(ir.sub(last, first), unroll), unroll))
        return [
            *self._lines(stage, "a", (first, middle), TUNING.column_unroll),
            *self._lines(stage, "b", (middle, last), 1),
        ]

    def _lines(self, stage: int, tag: str, span: Span, unroll: int) -> list[Stmt]:
        e, inner = self.e, self.nest.inner
        steps = [e.variable(f"y{stage}{tag}{i}", e.dim(d.extent)) for i, d in enumerate(inner)]
        reductions, stored = self.work.reductions_in(stage), self.work.stores_in(stage)

        def body(k: Expr) -> list[Stmt]:
            out: list[Stmt] = []
            states = {r: [ir.load(b, k) for b in self.accumulators[r]] for r in reductions}
            for u in range(unroll):
                self.at.update(zip(inner, steps, strict=True))
                self.at[inner[0]] = ir.add(steps[0], const(u))
                index = self.nest.index(self.at)
                position = loop_nest.linearize(e, inner, self.at)
                for r in reductions:
                    value = e.value(r.inputs[0], index_of(r.inputs[0].shape, index))
                    states[r] = reducer(r).step(states[r], value, position)
                out += self.p.stores(e, stored, index)
            for r in reductions:
                # all parts are computed before any is stored
                lets, names = ir.bind(states[r], f"w{r.id}{tag}")
                out += [*lets, *ir.stores(self.accumulators[r], k, names)]
            return out

        nest = [self._over_line(f"l{stage}{tag}", body)]
        for d, v in reversed(list(zip(inner[1:], steps[1:], strict=True))):
            nest = [ir.For(v, ZERO, e.dim(d.extent), "serial", nest)]
        return [ir.For(steps[0], *span, "serial", nest, step=const(unroll))]
