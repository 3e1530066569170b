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
            pick = _Pick(make, index, axis, x.shape)
            out = pick.of(source)
            if out.op != "onehot_gather":  # of no element, zero rather than a function of zeros
                zero = make("reshape", "view", (_without_broadcasts(otherwise),), (), (), x.dtype)
                operands = (pick.element(mask), out, zero)
                out = make("where", "elementwise", operands, None, shape, x.dtype)
            return make("neg", "elementwise", (out,), None, shape, x.dtype) if signs % 2 else out
    return None


class _Pick:
    """The element of each row at an index. A function of elements and of values that are constant
    along rows is computed of what was picked: then a product's results alone are read twice."""

    def __init__(self, make: Make, index: Value, axis: int, shape: Shape) -> None:
        self.make, self.index, self.axis, self.whole = make, index, axis, shape
        self.shape = index.shape
        self.from_end = len(shape) - axis

    def of(self, x: Value) -> Value:
        varying = [y for y in x.inputs if _extent(y, self.from_end) != 1]
        if x.kind != "elementwise" or len(varying) != 1 or varying[0].shape != self.whole:
            return self.element(x)
        operands = tuple(self.of(y) if y is varying[0] else self._of_row(y) for y in x.inputs)
        return self.make(x.op, x.kind, operands, x.params, self.shape, x.dtype)

    def element(self, x: Value) -> Value:
        params = (self.axis, self.whole[self.axis])
        operands = (x, self.index)
        return self.make("onehot_gather", "gather", operands, params, self.shape, x.dtype)

    def _of_row(self, x: Value) -> Value:
        """A value without the axis, along which it is constant."""
        at = len(x.shape) - self.from_end
        if at < 0:
            return x
        shape = x.shape[:at] + x.shape[at + 1 :]
        return self.make("reshape", "view", (x,), shape, shape, x.dtype)


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
