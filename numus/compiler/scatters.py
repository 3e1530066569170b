"""Scatter groups: a copy of the base into which updates are written in order."""

from __future__ import annotations

import math
from typing import Any

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.emit import Emitter, Index, Step
from numus.compiler.fuse import Group
from numus.compiler.ir import Expr, Stmt, const
from numus.compiler.local import Val
from numus.compiler.loops import SMALL, lower_loops
from numus.compiler.rows import digits, without
from numus.compiler.scalar_ops import lower
from numus.runtime.contract import Facts
from numus.shapes import Shape, row_major

ZERO, ONE = const(0), const(1)

_COLUMNS = 1024  # lanes that one block of a scan or scatter handles


def lower_scatter(group: Group, layouts: dict[Val, Shape], facts: Facts) -> list[Step]:
    """Copy the base, then apply the updates in order; blocks own columns, so nothing races."""
    (val,) = group.members
    axes, mode = val.params
    base, updates, *indices = val.inputs
    copy = Val(-1, "copy", "barrier", (base,), None, base.shape, base.dtype)
    first = Group(copy, group.position)
    first.stored = {copy}
    steps = lower_loops(first, layouts, facts, redirect={copy: (val, 0, 0)})
    if updates.size == 0:
        return steps
    e = Emitter(without(layouts, val), val.size <= SMALL)
    rest = [i for i in range(len(val.shape)) if i not in axes]
    lead = indices[0].shape
    lane = max(rest, key=lambda i: (val.shape[i] > 1, i), default=None)
    lane_extent = val.shape[lane] if lane is not None else 1
    others = [i for i in rest if i != lane]
    blocks = -(-lane_extent // _COLUMNS)
    g, u = ir.var("g"), ir.var("u")
    at_lead = tuple(digits(e, u, list(lead)))
    places: dict[int, Expr] = {}
    inside: Expr = const(True, dt.bool_)
    for p, axis in zip(indices, axes, strict=True):
        place = e.value(p, at_lead)
        places[axis] = place
        inside = inside & (place >= 0) & (place < e.number(val.shape[axis]))
    j = e.variable("j", e.number(lane_extent))
    o = ir.var("o")
    at_others = dict(zip(others, digits(e, o, [val.shape[i] for i in others]), strict=True))

    def at(i: int) -> Expr:
        if i in places:
            return places[i]
        return j if i == lane else at_others[i]

    target = tuple(at(i) for i in range(len(val.shape)))
    value = e.value(updates, (*at_lead, *(at(i) for i in rest)))
    body = _stored_whole(e, val, target, _combined(e, val, target, value, mode))
    start = ir.mul(g, const(_COLUMNS))
    if lane is not None:
        stop = ir.minimum(ir.add(start, const(_COLUMNS)), e.number(lane_extent))
        body = [ir.For(j, start, stop, "lanes", body)]
    if others:
        total = e.number(math.prod(val.shape[i] for i in others))
        body = [ir.For(o, ZERO, total, "serial", body)]
    count = e.number(math.prod(lead))
    body = [ir.For(u, ZERO, count, "serial", [ir.If(inside, body)])]
    return [*steps, e.blocks(f"scatter_{mode}", g, body, blocks, (val.op,))]


def _stored_whole(e: Emitter, val: Val, target: Index, value: Any) -> list[Stmt]:
    """Store what was computed from the value it replaces: both parts before either is written."""
    if not val.dtype.is_complex:
        return e.store(val, target, value)
    names = (ir.var("new_real", value[0].dtype), ir.var("new_imag", value[1].dtype))
    lets: list[Stmt] = [ir.Let(n, v) for n, v in zip(names, value, strict=True)]
    return lets + e.store(val, target, names)


def _combined(e: Emitter, val: Val, target: Index, value: Any, mode: str) -> Any:
    if mode == "set":
        return value
    address = e.address(val, target, row_major(val.shape))
    buffer = e.buffer(val, "write")
    op = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}[mode]
    if val.dtype.is_complex:
        twice = ir.mul(address, const(2))
        old: Any = (ir.load(buffer, twice), ir.load(buffer, ir.add(twice, ONE)))
    else:
        old = ir.load(buffer, address)
    return lower(op, [old, value], [val.dtype, val.dtype], val.dtype, None)
