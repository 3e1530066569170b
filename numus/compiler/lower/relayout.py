"""Operands of a kernel, laid out in memory before it: a view of a value, and a kernel that fills
what the view describes."""

from __future__ import annotations

from numus.compiler.fusion.group import Group
from numus.compiler.graph.builder import Val
from numus.compiler.lower.emitter import Step
from numus.compiler.lower.loops import lower_loops
from numus.runtime.contract import Facts
from numus.shapes import Shape

Laid = tuple[Val, list[Step]]


def view(op: str, v: Val, params: object, shape: Shape) -> Val:
    return Val(-51, op, "view", (v,), params, shape, v.dtype)


def reshaped(v: Val, *shape: int) -> Val:
    return view("reshape", v, shape, shape)


def permuted(v: Val, *order: int) -> Val:
    return view("permute", v, order, tuple(v.shape[i] for i in order))


def padded(v: Val, shape: Shape, before: Shape = ()) -> Val:
    """Zeros before it, and after it up to a shape."""
    none = (0,) * len(shape)
    low = before or none
    high = tuple(n - a - s for n, a, s in zip(shape, low, v.shape, strict=True))
    if low == high == none:
        return v
    return view("pad", v, (low, high, none), shape)


def in_memory(name: int, v: Val, layouts: dict[Val, Shape], facts: Facts) -> Laid:
    """What is as `v` says, by this name, row by row in memory."""
    found = Val(name, "cast", "elementwise", (v,), None, v.shape, v.dtype)
    return found, lower_loops(Group.storing(found, 0), layouts, facts)
