"""Operands of a kernel, laid out in memory before it: a view of a value, and a kernel that fills
what the view describes."""

from __future__ import annotations

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.loops import lower_loops
from numus.shapes import Shape
from numus.target import Target

Laid = tuple[Value, list[LoweredKernel]]


def view(op: str, v: Value, params: object, shape: Shape) -> Value:
    return Value.fresh(op, "view", (v,), params, shape, v.dtype)


def reshaped(v: Value, *shape: int) -> Value:
    return view("reshape", v, shape, shape)


def permuted(v: Value, *order: int) -> Value:
    return view("permute", v, order, tuple(v.shape[i] for i in order))


def padded(v: Value, shape: Shape, before: Shape = ()) -> Value:
    """Zeros before it, and after it up to a shape."""
    none = (0,) * len(shape)
    low = before or none
    high = tuple(n - a - s for n, a, s in zip(shape, low, v.shape, strict=True))
    if low == high == none:
        return v
    return view("pad", v, (low, high, none), shape)


def in_memory(v: Value, layouts: dict[Value, Shape], target: Target) -> Laid:
    """What is as `v` says, row by row in memory."""
    found = Value.fresh("cast", "elementwise", (v,), None, v.shape, v.dtype)
    return found, lower_loops(FusionGroup.of_stored(found, 0), layouts, target)
