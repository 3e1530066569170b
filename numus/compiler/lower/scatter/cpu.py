"""Scatter groups: a copy of the base into which updates are written in order.

Nothing races, and every element sees its updates in an order that depends on shapes alone:

    columns   each block goes through all updates and owns some of the columns they have
    tables    many updates of few elements: each block combines a stretch of the updates in a table
              of its own; then tables are combined, in the order of the stretches
"""

from __future__ import annotations

import math
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import digits, temporary, without
from numus.compiler.lower.elementwise import lower
from numus.compiler.lower.emitter import Emitter, Index, LoweredKernel
from numus.compiler.lower.loops import SMALL, lower_loops
from numus.ir import Expr, Stmt, const
from numus.kernels.scan.cpu import identity
from numus.shapes import Shape, row_major
from numus.target import Target

ZERO, ONE = const(0), const(1)

STRETCH = 1 << 14  # updates that are worth a table
TABLES = 32  # at most
COMBINE = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}


def lower_scatter(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """By columns, or in tables where there are many updates for each element."""
    (val,) = group.members
    base, updates, *indices = val.inputs
    count = math.prod(indices[0].shape)
    tables = min(TABLES, count // max(STRETCH, 4 * val.size))
    if val.params[1] in COMBINE and tables > 1 and not val.dtype.is_complex:
        return _in_tables(val, without(layouts, val), count, tables)
    copy = Value.fresh("copy", "barrier", (base,), None, base.shape, base.dtype)
    first = FusionGroup.of_stored(copy, group.position)
    steps = lower_loops(first, layouts, target, redirect={copy: (val, 0, 0)})
    if updates.size == 0:
        return steps
    return [*steps, _by_columns(val, without(layouts, val), count, target)]


class _Updates:
    """The loops over updates: which element each changes, and by what."""

    def __init__(self, e: Emitter, val: Value) -> None:
        axes, self.mode = val.params
        _, self.updates, *indices = val.inputs
        self.e, self.val = e, val
        self.rest = [i for i in range(len(val.shape)) if i not in axes]
        self.lane = max(self.rest, key=lambda i: (val.shape[i] > 1, i), default=None)
        self.extent = val.shape[self.lane] if self.lane is not None else 1
        self.others = [i for i in self.rest if i != self.lane]
        self.number, self.column, self.other = ir.var("u"), ir.var("j"), ir.var("o")
        e.extents[self.column] = e.dim(self.extent)
        self.lead = tuple(digits(e, self.number, list(indices[0].shape)))
        self.places: dict[int, Expr] = {}
        self.inside: Expr = const(True, dt.bool_)
        for p, axis in zip(indices, axes, strict=True):
            place = e.value(p, self.lead)
            self.places[axis] = place
            self.inside = self.inside & (place >= 0) & (place < e.dim(val.shape[axis]))

    def destination(self) -> tuple[Index, Any]:
        """The element that an update changes, and the update."""
        shape = self.val.shape
        found = digits(self.e, self.other, [shape[i] for i in self.others])
        known = {**self.places, **dict(zip(self.others, found, strict=True))}
        if self.lane is not None:
            known[self.lane] = self.column
        index = tuple(known[i] for i in range(len(shape)))
        value = self.e.value(self.updates, (*self.lead, *(known[i] for i in self.rest)))
        return index, value

    def loops(
        self, body: list[Stmt], columns: tuple[Expr, Expr], stretch: tuple[Expr, Expr]
    ) -> Stmt:
        if self.lane is not None:
            body = [ir.For(self.column, *columns, "lanes", body)]
        if self.others:
            total = self.e.dim(math.prod(self.val.shape[i] for i in self.others))
            body = [ir.For(self.other, ZERO, total, "serial", body)]
        return ir.For(self.number, *stretch, "serial", [ir.If(self.inside, body)])


def _by_columns(
    val: Value, layouts: dict[Value, Shape], count: int, target: Target
) -> LoweredKernel:
    e = Emitter(layouts, val.size <= SMALL)
    u = _Updates(e, val)
    # a block's columns fill whole lines of memory, and there is one for each thread where there can
    # be: the more columns a block has, the less often it goes through the indices
    line = max(1, target.vector_bytes // val.dtype.itemsize)
    columns = -(-u.extent // target.num_cores // line) * line if u.extent > line else u.extent
    columns = max(columns, line)
    blocks = -(-u.extent // columns)
    g, width = ir.var("g"), e.scalar_arg(columns)
    index, value = u.destination()
    body = _stored_whole(e, val, index, _combined(e, val, index, value, u.mode))
    start = ir.mul(g, width)
    stop = ir.minimum(ir.add(start, width), e.dim(u.extent))
    loop = u.loops(body, (start, stop), (ZERO, e.dim(count)))
    return e.grid_kernel(f"scatter_{u.mode}", g, [loop], blocks, (val.op,))


def _in_tables(
    val: Value, layouts: dict[Value, Shape], count: int, tables: int
) -> list[LoweredKernel]:
    mode = val.params[1]
    memory = temporary((tables, *val.shape), val.dtype)
    wide = dt.compute_dtype(val.dtype)
    op = {"add": "sum", "mul": "prod"}.get(mode, mode)
    blank = identity(op, wide, 1)[0].cast(val.dtype)

    e = Emitter(layouts)
    u = _Updates(e, val)
    g, i = ir.var("g"), ir.var("blank_i")
    size, stretch = e.dim(val.size), e.scalar_arg(-(-count // tables))
    table = e.buffer(memory, "write")
    first = ir.mul(g, size)
    index, value = u.destination()
    at = ir.add(first, e.address(val, index, row_major(val.shape)))
    new = lower(COMBINE[mode], [ir.load(table, at), value], [val.dtype] * 2, val.dtype, None)
    start = ir.mul(g, stretch)
    stop = ir.minimum(ir.add(start, stretch), e.dim(count))
    body: list[Stmt] = [
        ir.For(i, ZERO, size, "lanes", [ir.Store(table, ir.add(first, i), blank)]),
        u.loops([ir.Store(table, at, new)], (ZERO, e.dim(u.extent)), (start, stop)),
    ]
    combine = e.grid_kernel(f"scatter_{mode}_tables", g, body, tables, (val.op,))

    e = Emitter(layouts)
    g, t, i = ir.var("g"), ir.var("table"), e.variable("i", e.dim(val.size))
    stop = ir.minimum(ir.add(g, const(SMALL)), e.dim(val.size))
    total = ir.Register("total", val.dtype, lanes=True)
    part = ir.load(e.buffer(memory), ir.add(ir.mul(t, e.dim(val.size)), i))
    place = tuple(digits(e, i, list(val.shape)))
    both = lower(COMBINE[mode], [ir.read(total), part], [val.dtype] * 2, val.dtype, None)
    turn = ir.For(t, ZERO, e.scalar_arg(tables), "serial", [ir.Set(total, both)])
    store = e.store(val, place, ir.read(total))
    body = [ir.Set(total, e.value(val.inputs[0], place)), turn, *store]
    loop = ir.For(i, g, stop, "lanes", body)
    blocks = -(-val.size // SMALL)
    grid = ir.For(g, ZERO, e.dim(val.size), "grid", [loop], step=const(SMALL))
    return [combine, e.finish(f"scatter_{mode}_merge", [grid], blocks, (val.op,))]


def _stored_whole(e: Emitter, val: Value, target: Index, value: Any) -> list[Stmt]:
    """Store what was computed from the value it replaces: both parts before either is written."""
    if not val.dtype.is_complex:
        return e.store(val, target, value)
    names = (ir.var("new_real", value[0].dtype), ir.var("new_imag", value[1].dtype))
    lets: list[Stmt] = [ir.Let(n, v) for n, v in zip(names, value, strict=True)]
    return lets + e.store(val, target, names)


def _combined(e: Emitter, val: Value, target: Index, value: Any, mode: str) -> Any:
    if mode == "set":
        return value
    address = e.address(val, target, row_major(val.shape))
    buffer = e.buffer(val, "write")
    if val.dtype.is_complex:
        twice = ir.mul(address, const(2))
        old: Any = (ir.load(buffer, twice), ir.load(buffer, ir.add(twice, ONE)))
    else:
        old = ir.load(buffer, address)
    return lower(COMBINE[mode], [old, value], [val.dtype, val.dtype], val.dtype, None)
