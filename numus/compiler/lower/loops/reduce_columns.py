"""Streams: reductions across whole lines of memory.

Where neighbours in memory belong to different rows, lines pass by in memory order, each adding to
running results of many rows, which lie in scratch lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numus import ir
from numus.compiler.fusion.group import index_of
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Index, LoweredKernel
from numus.compiler.lower.loops.nest import (
    ZERO,
    At,
    Dim,
    Space,
    block,
    blocks_of,
    count,
    digits,
    joined,
)
from numus.compiler.lower.loops.reduce_rows import Span, store_per_row
from numus.compiler.lower.loops.reduce_split import IN_A_ROW, SPLIT, Parts, lower_merge
from numus.compiler.lower.loops.stages import Work
from numus.compiler.lower.reducers import reducer
from numus.ir import Expr, Stmt, const

WIDTH = 2048  # rows whose running results lie in a scratch line
TOGETHER = 4  # cheap lines that are added at a time: running results are loaded less often


def lower_stream(work: Work, space: Space, lane: Dim) -> list[LoweredKernel]:
    """Each block takes a part of the rows and, of these, as many as a scratch line holds."""
    width = min(lane.extent, WIDTH)
    below = space.row_size // space.inner[0].extent
    lines = min(max(16, 8 * SPLIT // (width * below)), max(1, IN_A_ROW // below))
    if lines < space.inner[0].extent:
        work = work.leaning()
    parts = Parts.of(work, space, lines)
    step = _Stream(work, space, lane, parts, width).kernel()
    return [step] if parts.count == 1 else [step, lower_merge(work, space, parts)]


class _Stream:
    """The kernel that reads: stages of lines, then results, or partial ones if there are parts."""

    def __init__(self, work: Work, space: Space, lane: Dim, parts: Parts, width: int) -> None:
        self.work, self.space, self.lane, self.parts = work, space, lane, parts
        e = self.e = work.emitter()
        g = self.g = ir.var("g")
        others = [d for d in space.rows if d is not lane]
        column_blocks = blocks_of(lane.extent, width)
        self.grid = parts.count * column_blocks * count(others)
        size, many = e.scalar_arg(parts.size), e.scalar_arg(parts.count)
        self.line, blocks = e.scalar_arg(width), e.scalar_arg(column_blocks)
        self.part, rest = ir.irem(g, many), ir.idiv(g, many)
        self.at: At = digits(e, ir.idiv(rest, blocks), others)
        self.steps = parts.span(e, self.part, size)
        left = ir.mul(ir.irem(rest, blocks), self.line)
        self.columns = block(left, self.line, e.dim(lane.extent))
        self.held: dict[Value, list[ir.Buffer]] = {}  # running results of each reduction

    def kernel(self) -> LoweredKernel:
        e, work = self.e, self.work
        first, last = self.steps
        size = ir.mul(ir.sub(last, first), e.dim(self.parts.below))
        for v in work.counts:
            e.bind(v, size.cast(v.dtype))
        body: list[Stmt] = []
        for stage in range(work.rounds):
            reduces = work.reduces_of(stage)
            for r in reduces:
                body.append(self._start(r))
            body += self._stage(stage)
            for r in reduces:
                e.bindings[r] = self._running(r)
            for m, r in work.aliases.items():
                if r in reduces:
                    e.bindings[m] = e.bindings[r]
        body.append(self._over_line("save", self._save))
        return e.grid_kernel("stream_rows", self.g, body, self.grid, work.notes)

    def _over_line(self, name: str, make: Callable[[Expr], list[Stmt]]) -> Stmt:
        """A loop over the rows of the line; `make` is given the place in it."""
        j = self.e.variable(name, self.e.dim(self.lane.extent))
        self.at[self.lane] = j
        return ir.For(j, *self.columns, "lanes", make(self._place()))

    def _place(self) -> Expr:
        """Where the running results of the row being written are in a scratch line."""
        return ir.sub(self.at[self.lane], self.columns[0])

    def _start(self, r: Value) -> Stmt:
        """A scratch line for each part of a reduction's state, and the loop that clears them."""
        how, e = reducer(r), self.e
        self.held[r] = [
            ir.Buffer(f"h{len(e.scratch) + i}", t, "scratch", self.line)
            for i, t in enumerate(how.dtypes)
        ]
        e.scratch += self.held[r]
        return self._over_line(
            f"z{r.id}",
            lambda k: [ir.Store(b, k, x) for b, x in zip(self.held[r], how.initial(), strict=True)],
        )

    def _running(self, r: Value) -> Callable[[Index], Any]:
        """How later stages read a result: from its scratch line, in whichever loop they are."""

        def known(index: Index) -> Any:
            return reducer(r).finish([ir.load(b, self._place()) for b in self.held[r]])

        return known

    def _save(self, k: Expr) -> list[Stmt]:
        if self.parts.count == 1:
            return store_per_row(self.work, self.space, self.e, self.at)
        row = joined(self.e, self.space.rows, self.at)
        return [
            s
            for r, vals in self.parts.partials.items()
            for v, b in zip(vals, self.held[r], strict=True)
            for s in self.e.store(v, (self.part, row), ir.load(b, k))
        ]

    # -- stages -----------------------------------------------------------------------------------

    def _stage(self, stage: int) -> list[Stmt]:
        """The loops of one stage: several lines at a time, then those that are left."""
        first, last = self.steps
        plain = len(self.space.inner) == 1 and self.work.cost() == 1
        if not plain or self.work.maps_of(stage):
            return self._lines(stage, "a", self.steps, 1)
        many = const(TOGETHER)
        middle = ir.add(first, ir.mul(ir.idiv(ir.sub(last, first), many), many))
        return [
            *self._lines(stage, "a", (first, middle), TOGETHER),
            *self._lines(stage, "b", (middle, last), 1),
        ]

    def _lines(self, stage: int, tag: str, span: Span, many: int) -> list[Stmt]:
        """Loops over lines, taking `many` at a time."""
        e, inner = self.e, self.space.inner
        steps = [e.variable(f"y{stage}{tag}{i}", e.dim(d.extent)) for i, d in enumerate(inner)]
        reduces, maps = self.work.reduces_of(stage), self.work.maps_of(stage)

        def body(k: Expr) -> list[Stmt]:
            out: list[Stmt] = []
            states = {r: [ir.load(b, k) for b in self.held[r]] for r in reduces}
            for u in range(many):
                self.at.update(zip(inner, steps, strict=True))
                self.at[inner[0]] = ir.add(steps[0], const(u))
                index = self.space.index(self.at)
                position = joined(e, inner, self.at)
                for r in reduces:
                    value = e.value(r.inputs[0], index_of(r.inputs[0].shape, index))
                    states[r] = reducer(r).step(states[r], value, position)
                for m in maps:
                    point = index_of(m.shape, index)
                    out += e.store(m, point, e.value(m, point))
            for r in reduces:
                # all parts are computed before any is stored
                names = [ir.var(f"w{r.id}{tag}{i}", x.dtype) for i, x in enumerate(states[r])]
                out += [ir.Let(n, x) for n, x in zip(names, states[r], strict=True)]
                out += [ir.Store(b, k, n) for b, n in zip(self.held[r], names, strict=True)]
            return out

        nest = [self._over_line(f"l{stage}{tag}", body)]
        for d, v in reversed(list(zip(inner[1:], steps[1:], strict=True))):
            nest = [ir.For(v, ZERO, e.dim(d.extent), "serial", nest)]
        return [ir.For(steps[0], *span, "serial", nest, step=const(many))]
