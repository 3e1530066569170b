"""Column (outer-axis) reductions on SIMD targets, with accumulators in scratch memory.

Where adjacent elements in memory belong to different rows, each line adds to the accumulators of
many rows, which are a scratch line in L1. Sums of float32 are float64 there: a few lines are added
in pairs first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import index_of
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Index, Kernels, LoweredKernel
from numus.compiler.lower.loops import nest as loop_nest
from numus.compiler.lower.loops.nest import ZERO, Loop, Position, ceil_div
from numus.compiler.lower.loops.problem import LoopProblem
from numus.compiler.lower.loops.reduce_combine import CombineKernel, RowSplit
from numus.compiler.lower.loops.row_emitter import Span, store_per_row
from numus.compiler.lower.loops.tuning import TUNING
from numus.compiler.lower.reducers import reducer
from numus.ir import Expr, Stmt, const

CACHE_LINE_BYTES = 64


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

    def _over_line(
        self, name: str, make: Callable[[Expr], list[Stmt]], vectors: int = 1, width: int = 0
    ) -> Stmt:
        """A loop over the columns of the line; `make` is given the offset in it."""
        j = self.e.variable(name, self.e.dim(self.p.lanes.extent))
        self.at[self.p.lanes] = j
        body = make(self._offset())
        return ir.For(j, *self.columns, "lanes", body, unroll=vectors, width=width)

    def _offset(self) -> Expr:
        """The offset of the current column in a scratch line."""
        return ir.sub(self.at[self.p.lanes], self.columns[0])

    def _initialize(self, r: Value) -> Stmt:
        """Scratch lines of a reduction's accumulators, and the loop that initialises them."""
        how, e = reducer(r), self.e
        wide = self._is_wide(self.work.stage[r])
        dtypes = how.total_dtypes(self.work.target) if wide else how.dtypes
        found = self.accumulators[r] = [
            ir.Buffer(f"h{len(e.scratch) + i}", t, "scratch", self.line)
            for i, t in enumerate(dtypes)
        ]
        e.scratch += found
        initial = [x.cast(t) for x, t in zip(how.initial(), dtypes, strict=True)]
        return self._over_line(f"z{r.id}", lambda k: ir.stores(found, k, initial))

    def _is_wide(self, stage: int) -> bool:
        """Sums of several lines, in float64."""
        cheap = self.work.cost() == 1 and not self.work.stores_in(stage)
        return cheap and self.work.has_wide_totals(stage)

    def _rounded(self, r: Value, k: Expr) -> list[Expr]:
        """The accumulators of a reduction at an offset, in its dtypes."""
        found = zip(self.accumulators[r], reducer(r).dtypes, strict=True)
        return [ir.load(b, k).cast(t) for b, t in found]

    def _result(self, r: Value) -> Callable[[Index], Any]:
        """A result as later stages read it: from its scratch line, in whichever loop they are."""
        return lambda index: reducer(r).finish(self._rounded(r, self._offset()))

    def _save(self, k: Expr) -> list[Stmt]:
        if self.split.count == 1:
            return store_per_row(self.p, self.e, self.at)
        row = loop_nest.linearize(self.e, self.nest.rows, self.at)
        return [
            s
            for r, vals in self.split.partials.items()
            for v, x in zip(vals, self._rounded(r, k), strict=True)
            for s in self.e.store(v, (self.part, row), x)
        ]

    # -- stages -----------------------------------------------------------------------------------

    def _stage(self, stage: int) -> list[Stmt]:
        """The loops of one stage, the innermost with several lines at a time, then the rest."""
        e, (*outer, last) = self.e, self.nest.inner
        steps: tuple[int, ...] = (1,)
        if self._is_wide(stage):
            steps = (*self._unrolls(), 1)
        elif not outer and self.work.cost() == 1 and not self.work.stores_in(stage):
            steps = (TUNING.column_unroll, 1)
        variables = [e.variable(f"y{stage}{i}", e.dim(d.extent)) for i, d in enumerate(outer)]
        spans = [self.span, *((ZERO, e.dim(d.extent)) for d in self.nest.inner[1:])]
        first, end = spans[-1]
        self.at.update(zip(outer, variables, strict=True))
        body: list[Stmt] = []
        for tag, count in zip("abc"[: len(steps)], steps, strict=True):
            stop = end
            if count > 1:
                whole = ir.mul(ir.idiv(ir.sub(end, first), const(count)), const(count))
                stop = ir.add(first, whole)
            body.append(self._lines(stage, tag, last, (first, stop), count))
            first = stop
        for v, span in reversed(list(zip(variables, spans[:-1], strict=True))):
            body = [ir.For(v, *span, "serial", body)]
        return body

    def _unrolls(self) -> tuple[int, ...]:
        """Lines at a time: few where lines are so short that they would not be read in order."""
        nbytes = min(self.p.lanes.extent, TUNING.column_block) * dt.float32.itemsize
        longest = next((n for n, min_bytes in TUNING.column_sum_unroll if nbytes >= min_bytes), 0)
        return (longest, TUNING.column_unroll) if longest else (TUNING.column_unroll,)

    def _lines(self, stage: int, tag: str, along: Loop, span: Span, unroll: int) -> Stmt:
        """A loop over lines of a span, several at a time."""
        e = self.e
        v = e.variable(f"y{stage}{tag}", e.dim(along.extent))
        reductions, stored = self.work.reductions_in(stage), self.work.stores_in(stage)

        def body(k: Expr) -> list[Stmt]:
            out: list[Stmt] = []
            states = {r: [ir.load(b, k) for b in self.accumulators[r]] for r in reductions}
            terms: dict[Value, list[list[Expr]]] = {r: [] for r in reductions}
            for u in range(unroll):
                self.at[along] = ir.add(v, const(u))
                index = self.nest.index(self.at)
                position = loop_nest.linearize(e, self.nest.inner, self.at)
                for r in reductions:
                    value = e.value(r.inputs[0], index_of(r.inputs[0].shape, index))
                    if self._is_wide(stage):
                        terms[r].append(reducer(r).element(value))
                    else:
                        states[r] = reducer(r).step(states[r], value, position)
                stores = self.p.stores(e, stored, index)
                out += self.p.prefetched(e, stores, self.at[self.p.lanes])
            for r in reductions:
                if terms[r]:
                    total = reducer(r).pairwise(terms[r])
                    states[r] = [x + y.cast(x.dtype) for x, y in zip(states[r], total, strict=True)]
                # all parts are computed before any is stored
                lets, names = ir.bind(states[r], f"w{r.id}{tag}")
                out += [*lets, *ir.stores(self.accumulators[r], k, names)]
            return out

        vectors, width = 1, 0
        if self._is_wide(stage):  # more lines than ways: cache lines are read at once
            vectors = max(1, CACHE_LINE_BYTES // self.p.target.vector_bytes)
            width = self.work.vector_lanes()
        line = self._over_line(f"l{stage}{tag}", body, vectors, width)
        return ir.For(v, *span, "serial", [line], step=const(unroll))
