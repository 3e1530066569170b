"""Sums over one hit: the sum of `where(place == counting, x, 0)` along an axis is x at that place.

So cross entropy, and whatever else is written with one-hot masks, reads an element of a row instead
of walking it; and unlike a gather its derivative is no scatter, but a map that fuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numus.shapes import Shape

if TYPE_CHECKING:
    from numus.compiler.graph.builder import GraphBuilder, Value


def picked(local: GraphBuilder, x: Value, axis: int, shape: Shape) -> Value | None:
    """The sum of x over an axis as a pick, where x is not zero at one place of it at most."""
    signs = 0
    while x.op == "neg":
        x = x.inputs[0]
        signs += 1
    if x.op != "where" or x.dtype.is_complex or x.shape[axis] == 0:
        return None
    hit, source, nothing = x.inputs
    if hit.op != "eq" or not _is_zero(nothing):
        return None
    from_end = len(x.shape) - axis
    for counting, place in (hit.inputs, hit.inputs[::-1]):
        place = _narrowed(place)
        if (
            place.dtype.is_integer
            and _extent(place, from_end) == 1
            and _counts(counting, x.shape[axis], from_end)
        ):
            kept = tuple(1 if i == axis else n for i, n in enumerate(x.shape))
            place = local.make("broadcast", "view", (place,), kept, kept, place.dtype)
            place = local.make("reshape", "view", (place,), shape, shape, place.dtype)
            params = (axis, x.shape[axis])
            out = local.make("pick", "gather", (source, place), params, shape, x.dtype)
            if signs % 2:
                out = local.make("neg", "elementwise", (out,), None, shape, x.dtype)
            return out
    return None


def _narrowed(v: Value) -> Value:
    """A value before it was broadcast; axes keep their distance from the last."""
    while v.op == "broadcast":
        v = v.inputs[0]
    return v


def _extent(v: Value, from_end: int) -> int:
    return v.shape[-from_end] if from_end <= len(v.shape) else 1


def _counts(v: Value, extent: int, from_end: int) -> bool:
    """Whether a value is 0, 1, 2 … along one axis, and the same along all others."""
    v = _narrowed(v)
    if _extent(v, from_end) != extent or v.size != extent:
        return False
    while v.op in ("reshape", "broadcast") and v.inputs[0].size == extent:
        v = v.inputs[0]
    return v.op == "iota"


def _is_zero(v: Value) -> bool:
    while v.op in ("broadcast", "reshape"):
        v = v.inputs[0]
    return v.op == "constant" and v.params[0] == 0 and v.params[0] is not None
