"""Groups that ask for the first few of each row."""

from __future__ import annotations

import math
from collections.abc import Callable

from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import Rows, temporary, without
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops import SMALL, lower_loops
from numus.compiler.lower.sort.cpu import lower_sort
from numus.ir import Expr, const
from numus.kernels.sort import cpu as cpu_sort
from numus.kernels.sort import cpu_topk
from numus.shapes import Shape, row_major
from numus.target import Target

ZERO, ONE = const(0), const(1)

FEW = 128  # are kept in order one by one; for more, rows are sorted
PART = 1 << 14  # elements of a row that are worth a thread

Layouts = dict[Value, Shape]


def topk_by_sorting(
    group: FusionGroup,
    layouts: Layouts,
    target: Target,
    sort_group: Callable[[FusionGroup, Layouts, Target], list[LoweredKernel]] = lower_sort,
) -> list[LoweredKernel]:
    """Sort whole rows, and take what was asked for."""
    (val,) = group.members
    axis, _, descending = val.params
    source = val.inputs[0]
    places = Value.fresh("argsort", "sort", (source,), (axis, descending), source.shape, val.dtype)
    rows = FusionGroup.of_stored(places, group.position)
    layouts = {**layouts, places: row_major(source.shape)}
    starts, steps = (0,) * len(val.shape), (1,) * len(val.shape)
    cut = Value.fresh("slice", "view", (places,), (starts, steps), val.shape, val.dtype)
    copy = Value.fresh("copy", "barrier", (cut,), None, val.shape, val.dtype)
    first = FusionGroup.of_stored(copy, group.position)
    taken = lower_loops(first, layouts, target, redirect={copy: (val, 0, 0)})
    return sort_group(rows, layouts, target) + taken


def lower_topk(group: FusionGroup, layouts: Layouts, target: Target) -> list[LoweredKernel]:
    """A pass over each row, or over its parts where rows are few and long."""
    (val,) = group.members
    axis, count, descending = val.params
    source = val.inputs[0]
    length = source.shape[axis]
    if not 0 < count <= FEW:
        return topk_by_sorting(group, layouts, target)
    layouts = without(layouts, val)
    order = cpu_sort.order(source.dtype, length, descending, places=True, floats=False)
    rows = math.prod(n for i, n in enumerate(source.shape) if i != axis)
    parts = length // PART if rows < 4 * target.num_cores else 1
    if parts <= 1:
        return [_pass("topk", val, layouts, order, 1, None, None)]
    memory = [temporary((rows, parts, count), f) for f in order.fields]
    return [
        _pass("topk_parts", val, layouts, order, parts, None, memory),
        _pass("topk", val, layouts, order, parts, memory, None),
    ]


def _pass(
    name: str,
    val: Value,
    layouts: Layouts,
    order: cpu_sort.Order,
    parts: int,
    given: list[Value] | None,
    found: list[Value] | None,
) -> LoweredKernel:
    """Over the parts of rows, whose best go to `found`; or over rows: of those in `given`, where
    there are some."""
    axis, count, _ = val.params
    source = val.inputs[0]
    length = source.shape[axis]
    e = Emitter(layouts, source.size <= SMALL)
    g = ir.var("g")
    per_row = parts if found is not None else 1
    each = e.scalar_arg(per_row)
    row, part = (ir.idiv(g, each), ir.irem(g, each)) if per_row > 1 else (g, ZERO)
    rows = Rows(e, source.shape, axis)
    index = rows.one(row)
    best = cpu_topk.Best(order, e.dim(count))
    start, stop = ZERO, e.dim(length)
    if found is not None:
        size = e.scalar_arg(-(-length // parts))
        start = ir.mul(part, size)
        stop = ir.minimum(ir.add(start, size), stop)
    first = ZERO
    if given is not None:
        stop = e.dim(parts * count)
        first = ir.mul(row, stop)

    def read(at: Expr) -> list[Expr]:
        if given is not None:
            return [ir.load(e.buffer(m), ir.add(first, at)) for m in given]
        return order.record(e.value(source, index(at)), at)

    def write(rank: Expr, record: list[Expr]) -> list[ir.Stmt]:
        if found is None:
            return e.store(val, index(rank), order.result(record))
        at = ir.add(ir.mul(g, e.dim(count)), rank)
        return [ir.Store(e.buffer(m, "write"), at, v) for m, v in zip(found, record, strict=True)]

    body, scratch = cpu_topk.first_few(best, start, stop, read, write)
    e.scratch += scratch
    return e.grid_kernel(name, g, body, rows.count * per_row, (val.op,))
