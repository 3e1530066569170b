"""Scatters where lanes are threads of a group."""

from __future__ import annotations

import math
from typing import Any

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.emit import Emitter, Step
from numus.compiler.group_ordered import lower_group_sort
from numus.compiler.group_rows import Layouts, outside
from numus.compiler.groups import Group
from numus.compiler.ir import Expr, Stmt, const, select
from numus.compiler.local import Val
from numus.compiler.scalar_ops import lower
from numus.runtime.contract import Facts

ZERO, ONE = const(0), const(1)

SHARED = 16  # elements of a place from which on its updates are looked up once for all of them


def lower_group_scatter(group: Group, layouts: Layouts, facts: Facts) -> list[Step]:
    """Updates are put in the order of where they go; then every element of the result takes those
    that are its own, in the order in which they came."""
    (val,) = group.members
    axes, mode = val.params
    base, updates, *indices = val.inputs
    layouts = outside(layouts, val)
    lead = indices[0].shape
    count = math.prod(lead)
    rest = [i for i in range(len(val.shape)) if i not in axes]
    places = math.prod(val.shape[a] for a in axes)
    targets = Val(-90, "partial", "partial", (), None, (count,), dt.int64)
    order = Val(-91, "argsort", "sort", (targets,), (0, False), (count,), dt.int64)
    starts = Val(-92, "partial", "partial", (), None, (places + 1,), dt.int64)
    steps: list[Step] = []
    if count:
        steps.append(_targets(val, layouts, facts, targets))
        layouts = {**layouts, targets: (1,)}
        grouped = Group.storing(order, 0)
        steps += lower_group_sort(grouped, layouts, facts)
        layouts = {**layouts, order: (1,)}
    columns = math.prod(val.shape[k] for k in rest)
    shared = count > 0 and columns >= SHARED
    if shared:
        steps.append(_starts(layouts, facts, targets, order, starts))
        layouts = {**layouts, starts: (1,)}
    e = Emitter(layouts, group=facts.group)
    g, i = ir.var("g"), ir.var("i")
    each = facts.group
    start = ir.mul(g, const(each))
    total = e.number(places * columns)
    stop = ir.minimum(ir.add(start, const(each)), total)
    place = i if columns == 1 else ir.idiv(i, e.number(columns))
    column = ZERO if columns == 1 else ir.irem(i, e.number(columns))
    at_place = dict(zip(axes, _split(e, place, [val.shape[a] for a in axes]), strict=True))
    at_rest = dict(zip(rest, _split(e, column, [val.shape[a] for a in rest]), strict=True))
    target = tuple({**at_place, **at_rest}[k] for k in range(len(val.shape)))
    start_value = e.value(base, target)
    if not count:
        loop = ir.For(i, start, stop, "lanes", e.store(val, target, start_value))
        return [e.blocks("scatter", g, [loop], -(-places * columns // each), (val.op,))]

    def update(n: Expr) -> Any:
        came = e.value(order, (n,))
        at_lead = tuple(_split(e, came, list(lead)))
        return e.value(updates, (*at_lead, *(at_rest[k] for k in rest)))

    parts = 2 if val.dtype.is_complex else 1
    real = dt.real_of(val.dtype)
    kept = [ir.Register(f"kept{p}", real, lanes=True) for p in range(parts)]

    def pair(value: Any) -> list[Expr]:
        return list(value) if parts == 2 else [value]

    def whole(values: list[Expr]) -> Any:
        return tuple(values) if parts == 2 else values[0]

    u = ir.var("u")
    body: list[Stmt] = [ir.Set(r, x) for r, x in zip(kept, pair(start_value), strict=True)]
    low, high = ir.var("low"), ir.var("high")
    for name, at in ((low, place), (high, ir.add(place, ONE))):
        if shared:
            body.append(ir.Let(name, e.value(starts, (at,))))
        else:
            search = _Search(e, targets, order, at, name.attr)
            body += [*search.body, ir.Let(name, ir.read(search.result))]
    if mode == "set":  # the last one stays
        low = ir.maximum(low, ir.sub(high, ONE))
        new = pair(update(u))
    else:
        op = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}[mode]
        old = whole([ir.read(r) for r in kept])
        new = pair(lower(op, [old, update(u)], [val.dtype, val.dtype], val.dtype, None))
    names = [ir.var(f"new{p}", real) for p in range(parts)]
    turn: list[Stmt] = [ir.Let(n, x) for n, x in zip(names, new, strict=True)]
    turn += [ir.Set(r, n) for r, n in zip(kept, names, strict=True)]
    body.append(ir.For(u, low, high, "serial", turn))
    body += e.store(val, target, whole([ir.read(r) for r in kept]))
    loop = ir.For(i, start, stop, "lanes", body)
    return [*steps, e.blocks(f"scatter_{mode}", g, [loop], -(-places * columns // each), (val.op,))]


def _split(e: Emitter, number: Expr, extents: list[int]) -> list[Expr]:
    """A running number as one index per extent, the last running fastest."""
    out = []
    for k, n in enumerate(extents):
        below = math.prod(extents[k + 1 :])
        digit = number if below == 1 else ir.idiv(number, e.number(below))
        out.append(ZERO if n == 1 else ir.irem(digit, e.number(n)) if k else digit)
    return out


def _targets(val: Val, layouts: Layouts, facts: Facts, targets: Val) -> Step:
    """Where each update goes, as one number; past the end for what goes nowhere."""
    axes, _ = val.params
    indices = val.inputs[2:]
    e = Emitter(layouts, group=facts.group)
    g, u = ir.var("g"), ir.var("u")
    at = tuple(_split(e, u, list(indices[0].shape)))
    number: Expr = ZERO
    inside: Expr = const(True, dt.bool_)
    for p, axis in zip(indices, axes, strict=True):
        place = e.value(p, at).cast(dt.int64)
        extent = e.number(val.shape[axis])
        inside = inside & (place >= 0) & (place < extent)
        number = ir.add(ir.mul(number, extent), place)
    end = e.number(math.prod(val.shape[a] for a in axes))
    count = targets.shape[0]
    start = ir.mul(g, const(facts.group))
    stop = ir.minimum(ir.add(start, const(facts.group)), e.number(count))
    stores = e.store(targets, (u,), select(inside, number, end))
    loop = ir.For(u, start, stop, "lanes", stores)
    return e.blocks("scatter_targets", g, [loop], -(-count // facts.group), (val.op,))


def _starts(layouts: Layouts, facts: Facts, targets: Val, order: Val, starts: Val) -> Step:
    """For each place, how many of the ordered updates go to places before it."""
    e = Emitter(layouts, group=facts.group)
    g, place = ir.var("g"), ir.var("place")
    (places,) = starts.shape
    first = _Search(e, targets, order, place, "first")
    start = ir.mul(g, const(facts.group))
    stop = ir.minimum(ir.add(start, const(facts.group)), e.number(places))
    body = [*first.body, *e.store(starts, (place,), ir.read(first.result))]
    loop = ir.For(place, start, stop, "lanes", body)
    return e.blocks("scatter_starts", g, [loop], -(-places // facts.group), ("scatter",))


class _Search:
    """Statements that count the ordered updates that go to places before one; per lane."""

    def __init__(self, e: Emitter, targets: Val, order: Val, place: Expr, tag: str) -> None:
        (count,) = targets.shape
        self.result = ir.Register(f"{tag}_low", dt.int64, lanes=True)
        high = ir.Register(f"{tag}_high", dt.int64, lanes=True)
        low_now, high_now, middle = (ir.var(f"{tag}_{n}") for n in ("l", "h", "m"))
        less = ir.var(f"{tag}_less", dt.bool_)
        step = ir.var(f"{tag}_step")
        there = ir.minimum(middle, ir.sub(e.number(count), ONE))
        where = e.value(targets, (e.value(order, (there,)),))
        turn: list[Stmt] = [
            ir.Let(low_now, ir.read(self.result)),
            ir.Let(high_now, ir.read(high)),
            ir.Let(middle, ir.binary("ashr", ir.add(low_now, high_now), ONE)),
            ir.Let(less, (low_now < high_now) & (where < place)),
            ir.Set(self.result, select(less, ir.add(middle, ONE), low_now)),
            ir.Set(high, select(less, high_now, ir.minimum(middle, high_now))),
        ]
        steps = e.parameter(count.bit_length())
        self.body: list[Stmt] = [
            ir.Set(self.result, ZERO),
            ir.Set(high, e.number(count)),
            ir.For(step, ZERO, steps, "serial", turn),
        ]
