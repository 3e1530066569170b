"""One-hot-to-gather rewrite: sum(where(index == iota, x, 0)) along an axis is x[index].

Cross entropy and other code written with one-hot masks reads one element instead of a row. Unlike
that of a gather, the derivative is no scatter, but elementwise, and fuses.
"""

from __future__ import annotations

from numus.compiler.graph.value import Make, Value, is_constant
from numus.shapes import Shape


def onehot_to_gather(make: Make, x: Value, axis: int, shape: Shape) -> Value | None:
    """The sum over an axis of which a one-hot mask leaves one element at most, as a gather."""
    signs = 0
    while x.op == "neg":
        x = x.inputs[0]
        signs += 1
    if x.op != "where" or x.dtype.is_complex or x.shape[axis] == 0:
        return None
    mask, source, otherwise = x.inputs
    if mask.op != "eq" or not is_constant(otherwise, 0):
        return None
    from_end = len(x.shape) - axis
    for iota, index in (mask.inputs, mask.inputs[::-1]):
        index = _without_broadcasts(index)
        if (
            index.dtype.is_integer
            and _extent(index, from_end) == 1
            and _is_iota(iota, x.shape[axis], from_end)
        ):
            keepdims = tuple(1 if i == axis else n for i, n in enumerate(x.shape))
            index = make("broadcast", "view", (index,), keepdims, keepdims, index.dtype)
            index = make("reshape", "view", (index,), shape, shape, index.dtype)
            params = (axis, x.shape[axis])
            out = make("onehot_gather", "gather", (source, index), params, shape, x.dtype)
            return make("neg", "elementwise", (out,), None, shape, x.dtype) if signs % 2 else out
    return None


def _without_broadcasts(v: Value) -> Value:
    """The broadcast operand; axes keep their distance from the last."""
    while v.op == "broadcast":
        v = v.inputs[0]
    return v


def _extent(v: Value, from_end: int) -> int:
    return v.shape[-from_end] if from_end <= len(v.shape) else 1


def _is_iota(v: Value, extent: int, from_end: int) -> bool:
    """The value is 0, 1, 2 ... along one axis, constant along the others."""
    v = _without_broadcasts(v)
    if _extent(v, from_end) != extent or v.size != extent:
        return False
    while v.op in ("reshape", "broadcast") and v.inputs[0].size == extent:
        v = v.inputs[0]
    return v.op == "iota"
