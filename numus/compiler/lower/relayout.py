"""Relayout (Triton's convert_layout): operands copied into another layout ahead of a kernel."""

from __future__ import annotations

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower.emitter import Kernels
from numus.compiler.lower.loops import lower_loops
from numus.shapes import Shape
from numus.target import Target

Relayout = tuple[Value, Kernels]  # the copy, and the kernels that fill it


def view(op: str, v: Value, params: object, shape: Shape) -> Value:
    return Value.fresh(op, "view", (v,), params, shape, v.dtype)


def reshaped(v: Value, *shape: int) -> Value:
    return view("reshape", v, shape, shape)


def permuted(v: Value, *order: int) -> Value:
    return view("permute", v, order, tuple(v.shape[i] for i in order))


def padded(v: Value, shape: Shape, before: Shape = ()) -> Value:
    """Zero-padded to a shape."""
    none = (0,) * len(shape)
    low = before or none
    high = tuple(n - a - s for n, a, s in zip(shape, low, v.shape, strict=True))
    if low == high == none:
        return v
    return view("pad", v, (low, high, none), shape)


def materialize(v: Value, layouts: Layouts, target: Target) -> Relayout:
    """A row-major copy of a view."""
    copy = Value.fresh("cast", "elementwise", (v,), None, v.shape, v.dtype)
    return copy, lower_loops(FusionGroup.of_stored(copy, 0), layouts, target)
