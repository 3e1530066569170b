"""Scatter on GPUs by sorting: updates ordered by destination, then gathered per element.

No atomics, as their order would show in sums of floats: a stable sort groups the updates of each
destination in their original order, and every element of the result combines its own, found by
binary search. Where updates are few, every element compares all of them with its place: one kernel
instead of six.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower.axis import ONE, ZERO, delinearize, temporary
from numus.compiler.lower.elementwise import lower
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.loops.tuning import TUNING as LOOPS
from numus.compiler.lower.loops.tuning import WARP
from numus.compiler.lower.scatter.gpu_few import FEW_UPDATES
from numus.compiler.lower.scatter.gpu_histogram import INTEGER_ATOMICS, PRIVATIZED_HISTOGRAM
from numus.compiler.lower.scatter.gpu_problem import GpuScatterProblem, linear_destination
from numus.compiler.lower.scatter.problem import COMBINE
from numus.compiler.lower.schedule import Candidate, family
from numus.compiler.lower.sort.gpu import lower_sort_gpu
from numus.ir import Expr, Stmt, const, select
from numus.shapes import Shape
from numus.target import Target

_UPDATE = ir.var("u")


def _warp_per_destination(problem: GpuScatterProblem) -> Kernels:
    """A warp per vector of one destination's columns."""
    kernels, gather = _sorted_updates(problem)
    return [*kernels, gather.by_warps()]


def _supports_warps(problem: GpuScatterProblem) -> bool:
    has_warps = problem.target.subgroup_size > 0 and problem.columns >= WARP
    return (problem.has_segments or problem.compares) and has_warps


def _thread_per_element(problem: GpuScatterProblem) -> Kernels:
    kernels, gather = _sorted_updates(problem)
    return [*kernels, gather.by_threads(problem.target.block_size)]


lower_scatter_gpu = family(
    GpuScatterProblem,
    FEW_UPDATES,
    PRIVATIZED_HISTOGRAM,
    INTEGER_ATOMICS,
    Candidate("sorted updates, warp per destination", _warp_per_destination, _supports_warps),
    Candidate("sorted updates, thread per element", _thread_per_element),
)


def _sorted_updates(problem: GpuScatterProblem) -> tuple[Kernels, _GatherUpdates]:
    """Kernels that sort the updates by destination, and the gather that follows them."""
    layouts, target, count = problem.layouts, problem.target, problem.count
    destinations = problem.destination_count
    linear = temporary((count,), _narrowest_uint(destinations, target))
    order = Value.fresh("argsort", "sort", (linear,), (0, False), (count,), dt.int64)
    starts = temporary((destinations + 1,), dt.int64) if problem.has_segments else None
    kernels: Kernels = []
    if count and not problem.compares:
        kernels.append(_linearize(problem, linear))
        layouts = {**layouts, linear: (1,)}
        kernels += lower_sort_gpu(FusionGroup.of_stored(order, 0), layouts, target)
        layouts = {**layouts, order: (1,)}
    if starts is not None:
        kernels.append(_segment_starts(layouts, target, linear, order, starts))
        layouts = {**layouts, starts: (1,)}
    return kernels, _GatherUpdates(problem, layouts, linear, order, starts)


class _GatherUpdates:
    """The kernel in which every element of the result combines its own updates."""

    def __init__(
        self,
        problem: GpuScatterProblem,
        layouts: Layouts,
        linear: Value,
        order: Value,
        starts: Value | None,
    ) -> None:
        self.problem, self.layouts = problem, layouts
        self.linear, self.order, self.starts = linear, order, starts
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
        if self.problem.compares:
            match = self._match(e, destination)
            count = e.scalar_arg(self.problem.count)
            return [ir.For(_UPDATE, ZERO, count, "serial", [ir.If(match, combine)])]
        body: list[Stmt] = []
        low, high = ir.var("low"), ir.var("high")
        for name, limit in ((low, destination), (high, ir.add(destination, ONE))):
            if self.starts is not None:
                body.append(ir.Let(name, e.value(self.starts, (limit,))))
            else:
                search, found = _lower_bound(e, self.linear, self.order, limit, name.attr)
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
        at_lead = delinearize(e, number, list(lead))
        along = [k for k, n in enumerate(lead) if n > 1]
        if along and _collapsible(along, updates.shape, self.layouts.get(updates)):
            at_lead = [number if k == along[-1] else ZERO for k in range(len(lead))]
        at_rest = delinearize(e, column, [val.shape[a] for a in self.problem.other_axes])
        update = new = e.value(updates, (*at_lead, *at_rest))
        if self.mode != "set":
            operands = [self._value(), update]
            new = lower(COMBINE[self.mode], operands, [val.dtype] * 2, val.dtype, None)
        combine, _ = ir.assign(self.acc, self._components(new), "new")
        which = _UPDATE if self.problem.compares else e.value(self.order, (_UPDATE,))
        return combine, ir.Let(number, which)

    def _components(self, value: Any) -> list[Expr]:
        return list(value) if len(self.acc) == 2 else [value]

    def _value(self) -> Any:
        values = ir.reads(self.acc)
        return tuple(values) if len(values) == 2 else values[0]


def _collapsible(axes: list[int], shape: Shape, strides: Shape | None) -> bool:
    """The axes form one strided dimension of memory."""
    return strides is not None and all(
        strides[k] == strides[j] * shape[j] for k, j in pairwise(axes)
    )


def _narrowest_uint(largest: int, target: Target) -> dt.DType:
    """The narrowest dtype: fewer radix passes."""
    if largest < 1 << 16 and not target.packed_storage:
        return dt.uint16
    return dt.uint32 if largest < 1 << 32 else dt.int64


def _linearize(problem: GpuScatterProblem, linear: Value) -> LoweredKernel:
    """The linear destination of each update; past the end where it is out of bounds."""
    val, threads = problem.val, problem.target.block_size
    e = Emitter(problem.layouts, block_size=threads)
    g, u = ir.var("g"), ir.var("u")
    at = tuple(delinearize(e, u, list(problem.index_shape)))
    destination = linear_destination(e, problem, at)
    start, stop = ir.block_range(g, const(threads), e.dim(problem.count))
    stores = e.store(linear, (u,), destination.cast(linear.dtype))
    loop = ir.For(u, start, stop, "lanes", stores)
    return e.grid_kernel("scatter_linearize", g, [loop], -(-problem.count // threads), (val.op,))


def _segment_starts(
    layouts: Layouts, target: Target, linear: Value, order: Value, starts: Value
) -> LoweredKernel:
    """For each destination, the number of ordered updates before its first."""
    threads = target.block_size
    e = Emitter(layouts, block_size=threads)
    g, destination = ir.var("g"), ir.var("destination")
    (count,) = starts.shape
    search, found = _lower_bound(e, linear, order, destination, "first")
    start, stop = ir.block_range(g, const(threads), e.dim(count))
    body = [*search, *e.store(starts, (destination,), found)]
    loop = ir.For(destination, start, stop, "lanes", body)
    return e.grid_kernel("scatter_starts", g, [loop], -(-count // threads), ("scatter",))


def _lower_bound(
    e: Emitter, linear: Value, order: Value, destination: Expr, tag: str
) -> tuple[list[Stmt], Expr]:
    """A binary search per lane: the number of ordered updates before a destination."""
    (count,) = linear.shape
    low, high = (ir.Register(f"{tag}_{n}", dt.int64, lanes=True) for n in ("low", "high"))
    low_now, high_now, middle, step = (ir.var(f"{tag}_{n}") for n in ("l", "h", "m", "step"))
    less = ir.var(f"{tag}_less", dt.bool_)
    there = ir.minimum(middle, ir.sub(e.dim(count), ONE))
    where = e.value(linear, (e.value(order, (there,)),)).cast(dt.int64)
    iteration: list[Stmt] = [
        ir.Let(low_now, ir.read(low)),
        ir.Let(high_now, ir.read(high)),
        ir.Let(middle, ir.binary("ashr", ir.add(low_now, high_now), ONE)),
        ir.Let(less, (low_now < high_now) & (where < destination)),
        ir.Set(low, select(less, ir.add(middle, ONE), low_now)),
        ir.Set(high, select(less, high_now, ir.minimum(middle, high_now))),
    ]
    steps = e.scalar_arg(count.bit_length())
    search = ir.For(step, ZERO, steps, "serial", iteration)
    return [*ir.sets([low, high], [ZERO, e.dim(count)]), search], ir.read(low)
