"""The updates of a GPU scatter in the order of their destinations, by a stable radix sort.

Sums of floats depend on their order, so atomics would show in results: a stable sort groups the
updates of each destination in their original order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower.axis import ONE, ZERO, delinearize, temporary
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.scatter.gpu_problem import GpuScatterProblem, linear_destination
from numus.compiler.lower.sort.gpu import lower_sort_gpu
from numus.ir import Expr, Stmt, const, select
from numus.shapes import Shape
from numus.target import Target


@dataclass
class SortedUpdates:
    """Values in memory once `kernels` have run."""

    kernels: Kernels
    layouts: Layouts
    order: Value  # the updates, those of the first destination first
    keys: Value  # their destinations; past the end for those out of bounds, which are last
    starts: Value | None = field(default=None)  # where the updates of each destination begin


def sort_updates(problem: GpuScatterProblem) -> SortedUpdates:
    count, target, bound = problem.count, problem.target, problem.destination_count
    linear = temporary((count,), _narrowest_uint(bound, target))
    keys = temporary((count,), linear.dtype)
    params = (0, False, bound.bit_length())
    order = Value.fresh("argsort", "sort", (linear,), params, (count,), dt.index_dtype(count))
    layouts = {**problem.layouts, linear: (1,)}
    kernels = [_linearize(problem, linear)]
    kernels += lower_sort_gpu(FusionGroup.of_stored(order, 0), layouts, target)
    layouts = {**layouts, order: (1,), keys: (1,)}
    kernels.append(_sorted_keys(layouts, target, linear, order, keys))
    return SortedUpdates(kernels, layouts, order, keys)


def find_starts(updates: SortedUpdates, problem: GpuScatterProblem) -> None:
    """Tabulate, for each destination and past the last, the number of updates before its first."""
    bound, threads = problem.destination_count, problem.target.block_size
    starts = temporary((bound + 1,), updates.order.dtype)
    e = Emitter(updates.layouts, block_size=threads)
    g, destination = ir.var("g"), ir.var("destination")
    search, found = lower_bound(e, updates.keys, destination, "first")
    span = ir.block_range(g, const(threads), e.dim(bound + 1))
    body = [*search, *e.store(starts, (destination,), found.cast(starts.dtype))]
    loop = ir.For(destination, *span, "lanes", body)
    grid = -(-(bound + 1) // threads)
    updates.kernels.append(e.grid_kernel("scatter_starts", g, [loop], grid, ("scatter",)))
    updates.layouts = {**updates.layouts, starts: (1,)}
    updates.starts = starts


def _narrowest_uint(largest: int, target: Target) -> dt.DType:
    """The narrowest dtype: less to move."""
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


def _sorted_keys(
    layouts: Layouts, target: Target, linear: Value, order: Value, keys: Value
) -> LoweredKernel:
    """The destinations in order: searches then read one array."""
    threads, (count,) = target.block_size, keys.shape
    e = Emitter(layouts, block_size=threads)
    g, u = ir.var("g"), ir.var("u")
    span = ir.block_range(g, const(threads), e.dim(count))
    key = e.value(linear, (e.value(order, (u,)).cast(dt.int64),))
    loop = ir.For(u, *span, "lanes", e.store(keys, (u,), key))
    return e.grid_kernel("scatter_keys", g, [loop], -(-count // threads), ("scatter",))


def lower_bound(e: Emitter, keys: Value, destination: Expr, tag: str) -> tuple[list[Stmt], Expr]:
    """A binary search per lane: the number of ordered updates before a destination."""
    (count,) = keys.shape
    low, high = (ir.Register(f"{tag}_{n}", dt.int64, lanes=True) for n in ("low", "high"))
    low_now, high_now, middle, step = (ir.var(f"{tag}_{n}") for n in ("l", "h", "m", "step"))
    less = ir.var(f"{tag}_less", dt.bool_)
    there = ir.minimum(middle, ir.sub(e.dim(count), ONE))
    where = e.value(keys, (there,)).cast(dt.int64)
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


def lead_index(
    e: Emitter, number: Expr, lead: Shape, updates: Value, layouts: Layouts
) -> list[Expr]:
    """The leading indices of an update of this number; one, where its axes are one in memory."""
    along = [k for k, n in enumerate(lead) if n > 1]
    strides = layouts.get(updates)
    if along and strides is not None:
        shape = updates.shape
        if all(strides[k] == strides[j] * shape[j] for k, j in pairwise(along)):
            return [number if k == along[-1] else ZERO for k in range(len(lead))]
    return delinearize(e, number, list(lead))
