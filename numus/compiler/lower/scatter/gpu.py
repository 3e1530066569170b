"""Scatters where lanes are threads of a group."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis_gpu import Layouts, outside
from numus.compiler.lower.elementwise import lower
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops.reduce_rows_registers import ACCESS, PACK, WARP
from numus.compiler.lower.scan.gpu import lower_group_sort
from numus.ir import Expr, Stmt, const, select
from numus.shapes import Shape
from numus.target import Target

ZERO, ONE = const(0), const(1)

_TURN = ir.var("u")

SHARED = 16  # elements of a place from which on its updates are looked up once for all of them


def lower_group_scatter(
    group: FusionGroup, layouts: Layouts, target: Target
) -> list[LoweredKernel]:
    """Updates are put in the order of where they go; then every element of the result takes those
    that are its own, in the order in which they came."""
    (val,) = group.members
    axes, _ = val.params
    layouts = outside(layouts, val)
    count = math.prod(val.inputs[2].shape)
    places = math.prod(val.shape[a] for a in axes)
    columns = math.prod(n for i, n in enumerate(val.shape) if i not in axes)
    targets = Value.fresh("partial", "partial", (), None, (count,), _narrowest(places, target))
    order = Value.fresh("argsort", "sort", (targets,), (0, False), (count,), dt.int64)
    starts = Value.fresh("partial", "partial", (), None, (places + 1,), dt.int64)
    steps: list[LoweredKernel] = []
    if count:
        steps.append(_targets(val, layouts, target, targets))
        layouts = {**layouts, targets: (1,)}
        grouped = FusionGroup.of_stored(order, 0)
        steps += lower_group_sort(grouped, layouts, target)
        layouts = {**layouts, order: (1,)}
    shared = count > 0 and columns >= SHARED
    if shared:
        steps.append(_starts(layouts, target, targets, order, starts))
        layouts = {**layouts, starts: (1,)}
    updating = _Updating(val, layouts, targets, order, starts if shared else None)
    if shared and target.subgroup_size and columns >= WARP:
        return [*steps, updating.by_warps()]
    return [*steps, updating.by_elements(target.block_size)]


class _Updating:
    """The kernel by which every element of the result takes the updates that are its own."""

    def __init__(
        self, val: Value, layouts: Layouts, targets: Value, order: Value, starts: Value | None
    ) -> None:
        self.val, self.layouts = val, layouts
        self.targets, self.order, self.starts = targets, order, starts
        self.axes, self.mode = val.params
        self.rest = [i for i in range(len(val.shape)) if i not in self.axes]
        self.lead = val.inputs[2].shape
        self.places = math.prod(val.shape[a] for a in self.axes)
        self.columns = math.prod(val.shape[k] for k in self.rest)
        parts = 2 if val.dtype.is_complex else 1
        real = dt.real_of(val.dtype)
        self.kept = [ir.Register(f"kept{p}", real, lanes=True) for p in range(parts)]

    def by_elements(self, each: int) -> LoweredKernel:
        """A thread for each."""
        e = Emitter(self.layouts, block_size=each)
        g, i = ir.var("g"), ir.var("i")
        start = ir.mul(g, const(each))
        stop = ir.minimum(ir.add(start, const(each)), e.dim(self.places * self.columns))
        place = i if self.columns == 1 else ir.idiv(i, e.dim(self.columns))
        column = ZERO if self.columns == 1 else ir.irem(i, e.dim(self.columns))
        body = self._begin(e, place, column)
        if math.prod(self.lead):
            turn, came = self._turn(e, column)
            body += self._of(e, place, [came, *turn])
        body += self._end(e, place, column)
        loop = ir.For(i, start, stop, "lanes", body)
        return self._kernel(e, g, [loop], -(-self.places * self.columns // each))

    def by_warps(self) -> LoweredKernel:
        """What a warp stores at once is of one place: its updates are looked up for all of it."""
        e = Emitter(self.layouts, block_size=WARP)
        e.packed_blocks = PACK
        width = 1 if self.val.dtype.is_complex else max(1, ACCESS // self.val.dtype.itemsize)
        while self.columns % width:
            width //= 2
        each = WARP * width
        pieces = -(-self.columns // each)
        g, t = ir.var("g"), ir.var("t")
        place = ir.idiv(g, e.scalar_arg(pieces))
        first = ir.mul(ir.irem(g, e.scalar_arg(pieces)), const(each))
        column, extent = ir.add(first, t), e.dim(self.columns)
        e.extents[column] = extent
        end = ir.minimum(const(each), ir.sub(extent, first)) if self.columns % each else const(each)

        def by_lanes(body: list[Stmt]) -> ir.For:
            return ir.For(t, ZERO, end, "lanes", body, width=width, resident=True)

        turn, came = self._turn(e, column)
        body: list[Stmt] = [by_lanes(self._begin(e, place, column))]
        body += self._of(e, place, [came, by_lanes(turn)])
        body.append(by_lanes(self._end(e, place, column)))
        return self._kernel(e, g, body, self.places * pieces)

    def _kernel(self, e: Emitter, g: Expr, body: list[Stmt], grid: int) -> LoweredKernel:
        return e.grid_kernel(f"scatter_{self.mode}", g, body, grid, (self.val.op,))

    def _target(self, e: Emitter, place: Expr, column: Expr) -> tuple[Expr, ...]:
        at_place = _split(e, place, [self.val.shape[a] for a in self.axes])
        at_rest = _split(e, column, [self.val.shape[a] for a in self.rest])
        at = dict(zip((*self.axes, *self.rest), (*at_place, *at_rest), strict=True))
        return tuple(at[k] for k in range(len(self.val.shape)))

    def _begin(self, e: Emitter, place: Expr, column: Expr) -> list[Stmt]:
        """What was there."""
        value = e.value(self.val.inputs[0], self._target(e, place, column))
        return [ir.Set(r, x) for r, x in zip(self.kept, self._pair(value), strict=True)]

    def _end(self, e: Emitter, place: Expr, column: Expr) -> list[Stmt]:
        return e.store(self.val, self._target(e, place, column), self._value())

    def _of(self, e: Emitter, place: Expr, turn: list[Stmt]) -> list[Stmt]:
        """Every update of a place, in the order in which they came."""
        body: list[Stmt] = []
        low, high = ir.var("low"), ir.var("high")
        for name, limit in ((low, place), (high, ir.add(place, ONE))):
            if self.starts is not None:
                body.append(ir.Let(name, e.value(self.starts, (limit,))))
            else:
                search = _Search(e, self.targets, self.order, limit, name.attr)
                body += [*search.body, ir.Let(name, ir.read(search.result))]
        if self.mode == "set":  # the last one stays
            low = ir.maximum(low, ir.sub(high, ONE))
        return [*body, ir.For(_TURN, low, high, "serial", turn)]

    def _turn(self, e: Emitter, column: Expr) -> tuple[list[Stmt], ir.Let]:
        """What an update does; before it, which one it is."""
        val, lead = self.val, self.lead
        updates = val.inputs[1]
        came = ir.var("came")
        at_lead = _split(e, came, list(lead))
        along = [k for k, n in enumerate(lead) if n > 1]
        if along and _follow_each_other(along, updates.shape, self.layouts.get(updates)):
            at_lead = [came if k == along[-1] else ZERO for k in range(len(lead))]
        at_rest = _split(e, column, [val.shape[a] for a in self.rest])
        update = new = e.value(updates, (*at_lead, *at_rest))
        if self.mode != "set":
            op = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}[self.mode]
            new = lower(op, [self._value(), update], [val.dtype, val.dtype], val.dtype, None)
        names = [ir.var(f"new{p}", r.dtype) for p, r in enumerate(self.kept)]
        turn: list[Stmt] = [ir.Let(n, x) for n, x in zip(names, self._pair(new), strict=True)]
        turn += [ir.Set(r, n) for r, n in zip(self.kept, names, strict=True)]
        return turn, ir.Let(came, e.value(self.order, (_TURN,)))

    def _pair(self, value: Any) -> list[Expr]:
        return list(value) if len(self.kept) == 2 else [value]

    def _value(self) -> Any:
        values = [ir.read(r) for r in self.kept]
        return tuple(values) if len(values) == 2 else values[0]


def _follow_each_other(axes: list[int], shape: Shape, strides: Shape | None) -> bool:
    """Whether memory has what is along these axes in steps that are all alike."""
    return strides is not None and all(
        strides[k] == strides[j] * shape[j] for k, j in pairwise(axes)
    )


def _narrowest(most: int, target: Target) -> dt.DType:
    """A dtype of numbers up to this: what has fewer digits is in order after fewer passes."""
    if most < 1 << 16 and not target.packed_storage:
        return dt.uint16
    return dt.uint32 if most < 1 << 32 else dt.int64


def _split(e: Emitter, number: Expr, extents: list[int]) -> list[Expr]:
    """A running number as one index per extent, the last running fastest."""
    out = []
    for k, n in enumerate(extents):
        below = math.prod(extents[k + 1 :])
        digit = number if below == 1 else ir.idiv(number, e.dim(below))
        out.append(ZERO if n == 1 else ir.irem(digit, e.dim(n)) if k else digit)
    return out


def _targets(val: Value, layouts: Layouts, target: Target, targets: Value) -> LoweredKernel:
    """Where each update goes, as one number; past the end for what goes nowhere."""
    axes, _ = val.params
    indices = val.inputs[2:]
    e = Emitter(layouts, block_size=target.block_size)
    g, u = ir.var("g"), ir.var("u")
    at = tuple(_split(e, u, list(indices[0].shape)))
    number: Expr = ZERO
    inside: Expr = const(True, dt.bool_)
    for p, axis in zip(indices, axes, strict=True):
        place = e.value(p, at).cast(dt.int64)
        extent = e.dim(val.shape[axis])
        inside = inside & (place >= 0) & (place < extent)
        number = ir.add(ir.mul(number, extent), place)
    end = e.dim(math.prod(val.shape[a] for a in axes))
    count = targets.shape[0]
    start = ir.mul(g, const(target.block_size))
    stop = ir.minimum(ir.add(start, const(target.block_size)), e.dim(count))
    stores = e.store(targets, (u,), select(inside, number, end).cast(targets.dtype))
    loop = ir.For(u, start, stop, "lanes", stores)
    return e.grid_kernel("scatter_targets", g, [loop], -(-count // target.block_size), (val.op,))


def _starts(
    layouts: Layouts, target: Target, targets: Value, order: Value, starts: Value
) -> LoweredKernel:
    """For each place, how many of the ordered updates go to places before it."""
    e = Emitter(layouts, block_size=target.block_size)
    g, place = ir.var("g"), ir.var("place")
    (places,) = starts.shape
    first = _Search(e, targets, order, place, "first")
    start = ir.mul(g, const(target.block_size))
    stop = ir.minimum(ir.add(start, const(target.block_size)), e.dim(places))
    body = [*first.body, *e.store(starts, (place,), ir.read(first.result))]
    loop = ir.For(place, start, stop, "lanes", body)
    return e.grid_kernel("scatter_starts", g, [loop], -(-places // target.block_size), ("scatter",))


class _Search:
    """Statements that count the ordered updates that go to places before one; per lane."""

    def __init__(self, e: Emitter, targets: Value, order: Value, place: Expr, tag: str) -> None:
        (count,) = targets.shape
        self.result = ir.Register(f"{tag}_low", dt.int64, lanes=True)
        high = ir.Register(f"{tag}_high", dt.int64, lanes=True)
        low_now, high_now, middle = (ir.var(f"{tag}_{n}") for n in ("l", "h", "m"))
        less = ir.var(f"{tag}_less", dt.bool_)
        step = ir.var(f"{tag}_step")
        there = ir.minimum(middle, ir.sub(e.dim(count), ONE))
        where = e.value(targets, (e.value(order, (there,)),)).cast(dt.int64)
        turn: list[Stmt] = [
            ir.Let(low_now, ir.read(self.result)),
            ir.Let(high_now, ir.read(high)),
            ir.Let(middle, ir.binary("ashr", ir.add(low_now, high_now), ONE)),
            ir.Let(less, (low_now < high_now) & (where < place)),
            ir.Set(self.result, select(less, ir.add(middle, ONE), low_now)),
            ir.Set(high, select(less, high_now, ir.minimum(middle, high_now))),
        ]
        steps = e.scalar_arg(count.bit_length())
        self.body: list[Stmt] = [
            ir.Set(self.result, ZERO),
            ir.Set(high, e.dim(count)),
            ir.For(step, ZERO, steps, "serial", turn),
        ]
