"""Scatter on GPUs: integers by atomics, others by sorted updates, gathered per destination.

Where updates are few, every element compares all of them with its place: one kernel instead of
eight.
"""

from __future__ import annotations

from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.lower.axis import ONE, ZERO, delinearize
from numus.compiler.lower.elementwise import lower
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.loops.tuning import TUNING as LOOPS
from numus.compiler.lower.loops.tuning import WARP
from numus.compiler.lower.scatter.gpu_exact import EXACT_SUMS
from numus.compiler.lower.scatter.gpu_few import FEW_UPDATES
from numus.compiler.lower.scatter.gpu_histogram import (
    FLOAT_ATOMICS,
    INTEGER_ATOMICS,
    PRIVATIZED_HISTOGRAM,
)
from numus.compiler.lower.scatter.gpu_problem import MIN_TABLE_COLUMNS, GpuScatterProblem
from numus.compiler.lower.scatter.gpu_rows import SORTED_ROWS
from numus.compiler.lower.scatter.gpu_sorted import (
    SortedUpdates,
    find_starts,
    lead_index,
    lower_bound,
    sort_updates,
)
from numus.compiler.lower.scatter.problem import COMBINE
from numus.compiler.lower.schedule import Candidate, family
from numus.ir import Expr, Stmt, const

_UPDATE = ir.var("u")


def _compared_by_warps(problem: GpuScatterProblem) -> Kernels:
    """A warp per vector of one destination's columns."""
    return [_GatherUpdates(problem, None).by_warps()]


def _supports_warps(problem: GpuScatterProblem) -> bool:
    return problem.compares and problem.target.subgroup_size > 0 and problem.columns >= WARP


def _thread_per_element(problem: GpuScatterProblem) -> Kernels:
    updates = None if problem.compares or not problem.count else sort_updates(problem)
    if updates is not None and problem.columns >= MIN_TABLE_COLUMNS:
        find_starts(updates, problem)
    kernels = [] if updates is None else updates.kernels
    gather = _GatherUpdates(problem, updates)
    return [*kernels, gather.by_threads(problem.target.block_size)]


lower_scatter_gpu = family(
    GpuScatterProblem,
    FEW_UPDATES,
    PRIVATIZED_HISTOGRAM,
    SORTED_ROWS,
    INTEGER_ATOMICS,
    FLOAT_ATOMICS,
    EXACT_SUMS,
    Candidate("compared updates, warp per destination", _compared_by_warps, _supports_warps),
    Candidate("sorted updates, thread per element", _thread_per_element),
)


class _GatherUpdates:
    """The kernel in which every element of the result combines its own updates."""

    def __init__(self, problem: GpuScatterProblem, updates: SortedUpdates | None) -> None:
        """Without sorted updates, those of the problem are compared."""
        self.problem, self.updates = problem, updates
        self.layouts = problem.layouts if updates is None else updates.layouts
        self.val, self.mode, self.columns = problem.val, problem.mode, problem.columns
        self.destinations = problem.destination_count
        components = 2 if self.val.dtype.is_complex else 1
        real = dt.real_of(self.val.dtype)
        self.acc = [ir.Register(f"acc{p}", real, lanes=True) for p in range(components)]

    def by_threads(self, threads: int) -> LoweredKernel:
        e = Emitter(self.layouts, block_size=threads)
        g, i = ir.var("g"), ir.var("i")
        start, stop = ir.block_range(g, const(threads), e.dim(self.destinations * self.columns))
        destination = i if self.columns == 1 else ir.idiv(i, e.dim(self.columns))
        column = ZERO if self.columns == 1 else ir.irem(i, e.dim(self.columns))
        body = self._load_base(e, destination, column)
        if self.problem.count:
            combine, number = self._combine(e, column)
            body += self._for_updates(e, destination, [number, *combine])
        body += self._store(e, destination, column)
        loop = ir.For(i, start, stop, "lanes", body)
        return self._kernel(e, g, [loop], -(-self.destinations * self.columns // threads))

    def by_warps(self) -> LoweredKernel:
        """A warp per vector of columns, all of one destination: uniform loop bounds."""
        e = Emitter(self.layouts, block_size=WARP)
        e.packed_blocks = LOOPS.packed_rows
        itemsize = self.val.dtype.itemsize
        width = 1 if self.val.dtype.is_complex else max(1, LOOPS.max_vector_bytes // itemsize)
        while self.columns % width:
            width //= 2
        size = WARP * width
        vectors = -(-self.columns // size)
        g, t = ir.var("g"), ir.var("t")
        destination = ir.idiv(g, e.scalar_arg(vectors))
        first = ir.mul(ir.irem(g, e.scalar_arg(vectors)), const(size))
        column, extent = ir.add(first, t), e.dim(self.columns)
        e.extents[column] = extent
        end = ir.minimum(const(size), ir.sub(extent, first)) if self.columns % size else const(size)

        def lanes(body: list[Stmt]) -> ir.For:
            return ir.For(t, ZERO, end, "lanes", body, width=width, resident=True)

        combine, number = self._combine(e, column)
        body: list[Stmt] = [lanes(self._load_base(e, destination, column))]
        body += self._for_updates(e, destination, [number, lanes(combine)])
        body.append(lanes(self._store(e, destination, column)))
        return self._kernel(e, g, body, self.destinations * vectors)

    def _kernel(self, e: Emitter, g: Expr, body: list[Stmt], grid: int) -> LoweredKernel:
        return e.grid_kernel(f"scatter_{self.mode}", g, body, grid, (self.val.op,))

    def _load_base(self, e: Emitter, destination: Expr, column: Expr) -> list[Stmt]:
        value = e.value(self.val.inputs[0], self.problem.index(e, destination, column))
        return ir.sets(self.acc, self._components(value))

    def _store(self, e: Emitter, destination: Expr, column: Expr) -> list[Stmt]:
        return e.store(self.val, self.problem.index(e, destination, column), self._value())

    def _for_updates(self, e: Emitter, destination: Expr, combine: list[Stmt]) -> list[Stmt]:
        """The loop over a destination's updates in their original order."""
        if self.updates is None:
            match = self._match(e, destination)
            count = e.scalar_arg(self.problem.count)
            return [ir.For(_UPDATE, ZERO, count, "serial", [ir.If(match, combine)])]
        body: list[Stmt] = []
        low, high = ir.var("low"), ir.var("high")
        for name, limit in ((low, destination), (high, ir.add(destination, ONE))):
            if self.updates.starts is not None:
                body.append(ir.Let(name, e.value(self.updates.starts, (limit,)).cast(dt.int64)))
            else:
                search, found = lower_bound(e, self.updates.keys, limit, name.attr)
                body += [*search, ir.Let(name, found)]
        if self.mode == "set":  # the last write wins
            low = ir.maximum(low, ir.sub(high, ONE))
        return [*body, ir.For(_UPDATE, low, high, "serial", combine)]

    def _match(self, e: Emitter, destination: Expr) -> Expr:
        """True if an update is of this destination."""
        own = delinearize(e, destination, [self.val.shape[a] for a in self.problem.axes])
        at = tuple(delinearize(e, _UPDATE, list(self.problem.index_shape)))
        match: Expr = const(True, dt.bool_)
        for indices, place in zip(self.val.inputs[2:], own, strict=True):
            match = match & e.value(indices, at).cast(dt.int64).eq(place)
        return match

    def _combine(self, e: Emitter, column: Expr) -> tuple[list[Stmt], ir.Let]:
        """Statements that combine an update, and the binding of its number."""
        val, lead = self.val, self.problem.index_shape
        updates = val.inputs[1]
        number = ir.var("update")
        at_lead = lead_index(e, number, lead, updates, self.layouts)
        at_rest = delinearize(e, column, [val.shape[a] for a in self.problem.other_axes])
        update = new = e.value(updates, (*at_lead, *at_rest))
        if self.mode != "set":
            operands = [self._value(), update]
            new = lower(COMBINE[self.mode], operands, [val.dtype] * 2, val.dtype, None)
        combine, _ = ir.assign(self.acc, self._components(new), "new")
        which: Expr = _UPDATE
        if self.updates is not None:
            which = e.value(self.updates.order, (_UPDATE,)).cast(dt.int64)
        return combine, ir.Let(number, which)

    def _components(self, value: Any) -> list[Expr]:
        return list(value) if len(self.acc) == 2 else [value]

    def _value(self) -> Any:
        values = ir.reads(self.acc)
        return tuple(values) if len(values) == 2 else values[0]
