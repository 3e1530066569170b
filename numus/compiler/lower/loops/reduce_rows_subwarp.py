"""Sub-warp row reductions: a few adjacent threads for each of many short rows.

The threads of a row take its elements in turn and combine by butterfly shuffles, without a barrier.
Kernels of several stages are unrolled: the whole row is in flight at a time, and values that
several stages use are loaded, or computed, once.
"""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import index_of
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.loops.nest import ZERO, Position, ceil_div, delinearize, total_extent
from numus.compiler.lower.loops.problem import LoopProblem
from numus.compiler.lower.loops.reduce_rows_registers import register_tilings
from numus.compiler.lower.loops.row_emitter import RowEmitter, by_first_use, store_per_row
from numus.compiler.lower.loops.tuning import TUNING, WARP
from numus.compiler.lower.reducers import reducer
from numus.ir import Expr, Stmt, const

Accumulators = dict[Value, list[ir.Register]]


def supports_subwarp(p: LoopProblem) -> bool:
    """Rows are short, contiguous and many, and threads can shuffle."""
    n = p.nest.row_size
    return (
        p.target.subgroup_size > 0
        and p.lane is not None
        and [p.lane] == p.nest.inner
        and TUNING.subwarp_elements_per_thread < n <= TUNING.subwarp_max_row
        and p.nest.row_count >= p.work.saturating_blocks()
        and not (
            p.work.passes > 1 and n >= TUNING.subwarp_multistage_max_row and register_tilings(p)
        )
    )


class SubwarpRows:
    """One kernel for all stages of all rows."""

    def __init__(self, p: LoopProblem) -> None:
        self.p, self.work, self.nest = p, p.work, p.nest
        work, nest = p.work, p.nest
        self.e: Emitter = work.emitter()
        (self.along,) = nest.inner
        wanted = ceil_div(nest.row_size, TUNING.subwarp_elements_per_thread)
        self.width = min(WARP, 1 << (wanted - 1).bit_length())  # threads of a row
        # values that several stages use: the first of these, and a name for each iteration
        self.cached: dict[Value, tuple[int, list[Expr]]] = {}
        if work.passes > 1:
            count = ceil_div(nest.row_size, self.width)
            row = RowEmitter(p, self.e, {}, [], self.along)
            for v, stages in by_first_use(row.reused_values()[0]):
                names: list[Expr] = [ir.var(f"k{v.id}_{i}", v.dtype) for i in range(count)]
                self.cached[v] = min(stages), names

    def lower(self) -> Kernels:
        e, nest, width = self.e, self.nest, const(self.width)
        rows_per_block = self.work.threads // self.width
        g, lane = ir.var("g"), ir.var("lane")
        in_block, sublane = divmod(lane, width)
        number = ir.add(ir.mul(g, const(rows_per_block)), in_block)
        rows = total_extent(e, nest.rows)
        self.exists, self.sublane = ir.var("exists", dt.bool_), ir.var("sublane")
        row = ir.var("row")  # past the end, threads recompute the last one and store nothing
        e.extents[row] = rows
        body: list[Stmt] = [
            ir.Let(self.exists, number < rows),
            ir.Let(self.sublane, sublane),
            ir.Let(row, ir.minimum(number, rows - 1)),
        ]
        at = delinearize(e, row, nest.rows)
        for v in self.work.counts:
            e.bind(v, e.dim(nest.row_size).cast(v.dtype))
        for stage in range(self.work.passes):
            if self.work.reductions_in(stage) or self.work.stores_in(stage):
                body += self._stage(stage, at)
        per_row = store_per_row(self.p, e, at)
        body.append(ir.If(self.exists & self.sublane.eq(0), per_row))
        loop = ir.For(lane, ZERO, const(self.work.threads), "lanes", body)
        grid = ceil_div(nest.row_count, rows_per_block)
        return [e.grid_kernel("subwarp_row_reduction", g, [loop], grid, self.work.notes)]

    def _stage(self, stage: int, at: Position) -> list[Stmt]:
        e, work = self.e, self.work
        extent = e.dim(self.along.extent)
        out: list[Stmt] = []
        state: Accumulators = {}
        for r in work.reductions_in(stage):
            how = reducer(r)
            state[r] = [
                ir.Register(f"a{r.id}_{i}", t, lanes=True) for i, t in enumerate(how.dtypes)
            ]
            out += ir.sets(state[r], how.initial())
        if work.passes > 1:
            out += self._unrolled(stage, at, extent, state)
        else:
            x = e.variable(f"x{stage}", extent)
            body = self._element(stage, self.nest.index({**at, self.along: x}), x, state, None)
            out.append(ir.For(x, self.sublane, extent, "serial", body, step=const(self.width)))
        for r, registers in state.items():
            out += self._butterfly(r, registers)
        for m, r in work.aliases.items():
            if r in state:
                e.bindings[m] = e.bindings[r]
        return out

    def _unrolled(self, stage: int, at: Position, extent: Expr, state: Accumulators) -> list[Stmt]:
        """The iterations of a thread; past the end of a row, they are predicated off."""
        e, size = self.e, self.nest.row_size
        points: list[tuple[Expr, list[Expr], Expr | None]] = []
        out: list[Stmt] = []
        for i in range(ceil_div(size, self.width)):
            x = e.variable(f"x{stage}_{i}", extent)
            own = ir.add(self.sublane, const(i * self.width))
            in_bounds = None if (i + 1) * self.width <= size else own < extent
            out.append(ir.Let(x, own if in_bounds is None else ir.minimum(own, extent - 1)))
            points.append((x, self.nest.index({**at, self.along: x}), in_bounds))
        for v, (first, names) in self.cached.items():
            if stage == first and v in self.work.layouts:  # all loads start before any use
                pairs = zip(names, points, strict=True)
                out += [
                    ir.Let(n, e.value(v, index_of(v.shape, index))) for n, (_, index, _) in pairs
                ]
        for i, (x, index, in_bounds) in enumerate(points):
            for v, (first, names) in self.cached.items():
                point = index_of(v.shape, index)
                if stage == first and v not in self.work.layouts:
                    out.append(ir.Let(names[i], e.value(v, point)))
                if stage >= first:
                    e.bind(v, names[i], point)
            out += self._element(stage, index, x, state, in_bounds)
        return out

    def _element(
        self, stage: int, index: list[Expr], x: Expr, state: Accumulators, in_bounds: Expr | None
    ) -> list[Stmt]:
        """One element of a row, predicated by `inside`."""
        e, work = self.e, self.work
        body: list[Stmt] = []
        for r, registers in state.items():
            source = r.inputs[0]
            value = e.value(source, index_of(source.shape, index))
            olds = ir.reads(registers)
            new = reducer(r).step(olds, value, x)
            if in_bounds is not None:
                new = [ir.select(in_bounds, n, old) for n, old in zip(new, olds, strict=True)]
            body += ir.assign(registers, new, f"t{r.id}_{x.attr}")[0]
        stores = self.p.stores(e, work.stores_in(stage), index)
        if stores:
            body.append(
                ir.If(self.exists if in_bounds is None else self.exists & in_bounds, stores)
            )
        return body

    def _butterfly(self, r: Value, registers: list[ir.Register]) -> list[Stmt]:
        """Combine the accumulators of a row's threads by xor shuffles: each gets the result."""
        how = reducer(r)
        found = ir.reads(registers)
        out: list[Stmt] = []
        mask = 1
        while mask < self.width:
            combined = how.combine(found, [ir.lanes_xor(x, mask) for x in found])
            lets, found = ir.bind(combined, f"f{r.id}_{mask}")
            out += lets
            mask *= 2
        self.e.bind(r, how.finish(found))
        return out
