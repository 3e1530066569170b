"""Layout assignment of convolution networks: channels last (NHWC) in memory, as XLA and PyTorch's
Inductor choose for tensor cores.

Where channels are adjacent in memory, a 1×1 convolution is one GEMM over the pixels of all images,
a tap of another window is a box of pixels that TMA copies, and the gradient of weights sums over
pixels with channels as rows. Graphs are written with channels first (NCHW). Here every convolution
gets a twin that reads and writes channels last, and the values computed from it follow: the twin of
a value is a permutation that is computed instead of it. Operations on axes become those on permuted
axes, and permutations only remain where layouts meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from numus import dtypes as dt
from numus.compiler.graph.builder import GraphBuilder
from numus.compiler.graph.value import CHANNELS_LAST_CONVOLVE, Layouts, Value
from numus.shapes import Shape, row_major, size_of
from numus.target import Target

_BATCH_K_N = (0, 2, 1)  # a batch of matrices, transposed
MIN_MACS = 1 << 23  # of a convolution whose layout is worth choosing; measured on one H200
MIN_CHANNELS = 16  # of the result: fewer fill no tile
PART_OF_A_TILE = range(9, 33)  # channels of images, whose taps padded GEMMs merge
MAX_REPEATS = 32  # of an operand's elements, whose order the result takes: those of a window
_HALF = (dt.bfloat16, dt.float16)


def channels_last(values: Sequence[Value], leaves: Layouts, target: Target) -> dict[Value, Value]:
    """Copies of all values, in graphs with convolutions of 16-bit floats on targets whose
    tensor cores read them channels last; `leaves` have these strides. Else empty."""
    if not target.wgmma:
        return {}
    anchors = {v for v in values if _is_anchor(v)}
    if not anchors or any(_is_depthwise(v) for v in values):
        return {}
    if len(anchors) == 1 and any(v.inputs[1].shape[1] in PART_OF_A_TILE for v in anchors):
        return {}
    return _Assignment(anchors, leaves).run(values)


def _is_anchor(v: Value) -> bool:
    """A convolution (or the gradient of its input) that is to write channels last."""
    if v.op != "convolve" or v.dtype not in _HALF or not 3 <= len(v.shape) <= 5:
        return False
    x, w = v.inputs
    groups = v.params[0]
    taps, extents = size_of(w.shape[2:]), size_of(v.shape[2:])
    large = v.size * w.shape[1] * taps >= MIN_MACS and v.shape[1] >= MIN_CHANNELS
    is_wgrad = taps > extents
    return groups == 1 and large and not is_wgrad and x.dtype is w.dtype is v.dtype


def _is_depthwise(v: Value) -> bool:
    """A convolution whose kernels have pixels as lanes."""
    return v.op == "convolve" and v.params[0] > 1 and v.inputs[1].shape[1] == 1


def _inverse(order: Shape) -> Shape:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _ordered(numbers: Shape, order: Shape) -> Shape:
    return tuple(numbers[a] for a in order)


def _last(rank: int) -> Shape:
    """The order of axes of channels last."""
    return (0, *range(2, rank), 1)


class _Assignment:
    def __init__(self, anchors: set[Value], leaves: Layouts) -> None:
        self.anchors, self.leaves = anchors, leaves
        self.g = GraphBuilder(stores_views=True)
        self.new: dict[Value, Value] = {}  # with the axes of the original
        # Axis i of a twin is axis order[i] of its value.
        self.twins: dict[Value, tuple[Value, Shape]] = {}
        self.straight: set[Value] = set()  # views of twins in the order of these

    def run(self, values: Sequence[Value]) -> dict[Value, Value]:
        for v in values:
            if v in self.new:
                continue
            found = self._follow(v)
            if found is None:
                inputs = tuple(self.new[x] for x in v.inputs)
                self.new[v] = self.g.make(v.op, v.kind, inputs, v.params, v.shape, v.dtype)
                self._recognise(v)
                continue
            twin, order = found
            self.new[v] = self._permuted(twin, _inverse(order))
            if order == tuple(range(len(order))):
                self.straight.add(v)
            else:
                self.twins[v] = found
        return self.new

    # -- twins ------------------------------------------------------------------------------------

    def _recognise(self, v: Value) -> None:
        """A leaf whose channels are last in memory."""
        order = _last(len(v.shape))
        strides = self.leaves.get(v)
        if strides is None or len(v.shape) < 3 or v.dtype not in _HALF or 1 in v.shape[1:]:
            return
        if _ordered(strides, order) == row_major(_ordered(v.shape, order)):
            self.twins[v] = self._permuted(self.new[v], order), order

    def _permuted(self, x: Value, order: Shape) -> Value:
        if order == tuple(range(len(order))):
            return x
        return self.g.make("permute", "view", (x,), order, _ordered(x.shape, order), x.dtype)

    def ordered(self, x: Value, order: Shape) -> Value:
        """The twin of x with this order of axes, by views of what there is."""
        own = self.twins.get(x)
        if own is not None:
            twin, axes = own
            return self._permuted(twin, tuple(axes.index(a) for a in order))
        shape = _ordered(x.shape, order)
        if x.op == "broadcast":
            source = self._spread(x.inputs[0], order)
            return self.g.make("broadcast", "view", (source,), shape, shape, x.dtype)
        return self._moved(self.new[x], order)

    def _spread(self, x: Value, order: Shape) -> Value:
        """What broadcasts to a value of this order of axes, of what broadcasts to the original."""
        missing = len(order) - len(x.shape)
        if x in self.twins and not missing:
            return self.ordered(x, order)
        return self._moved(self.g.reshaped(self.new[x], (1,) * missing + x.shape), order)

    def _moved(self, x: Value, order: Shape) -> Value:
        """A permutation: a reshape where it moves axes of extent 1 only."""
        long = [a for a in order if x.shape[a] != 1]
        if all(a < b for a, b in pairwise(long)):
            return self.g.reshaped(x, _ordered(x.shape, order))
        return self._permuted(x, order)

    def _follow(self, v: Value) -> tuple[Value, Shape] | None:
        """The twin of a value and its order of axes; None where no operand has one."""
        if v in self.anchors:
            return self._convolve(v)
        if v.kind == "elementwise" or v.op == "copy":
            return self._elementwise(v)
        if v.kind == "contract":
            return self._pointwise_convolve(v)
        if v.kind == "reduce" and v.inputs[0].kind == "contract":
            return self._pointwise_wgrad(v)
        if v.op == "concat":
            return self._concat(v)
        rule = _RULES.get(v.op) or (_reduce if v.kind == "reduce" else None)
        if rule is None or v.inputs[0] not in self.twins:
            return None
        return rule(self.g, v, *self.twins[v.inputs[0]])

    def _elementwise(self, v: Value) -> tuple[Value, Shape] | None:
        same = [x for x in v.inputs if x in self.twins and x.shape == v.shape]
        if not same:  # operands that are repeated along windows
            same = [x for x in v.inputs if x in self.twins and len(x.shape) == len(v.shape)]
            same = [x for x in same if x.size * MAX_REPEATS >= v.size]
        if not same:
            return None
        order = self.twins[same[0]][1]
        inputs = []
        for x in v.inputs:
            if x.shape == v.shape:
                inputs.append(self.ordered(x, order))
            else:
                inputs.append(self._spread(x, order) if x.shape else self.new[x])
        shape = _ordered(v.shape, order)
        return self.g.make(v.op, v.kind, tuple(inputs), v.params, shape, v.dtype), order

    def _concat(self, v: Value) -> tuple[Value, Shape] | None:
        orders = [self.twins[x][1] for x in v.inputs if x in self.twins]
        if not orders:
            return None
        order = orders[0]
        parts = tuple(self.ordered(x, order) for x in v.inputs)
        shape, axis = _ordered(v.shape, order), order.index(v.params)
        return self.g.make(v.op, v.kind, parts, axis, shape, v.dtype), order

    # -- convolutions -----------------------------------------------------------------------------

    def _convolve(self, v: Value) -> tuple[Value, Shape]:
        x, w = v.inputs
        order = _last(len(v.shape))
        operands = self.ordered(x, order), self.new[w]
        shape = _ordered(v.shape, order)
        op, kind = CHANNELS_LAST_CONVOLVE, "convolve"
        return self.g.make(op, kind, operands, v.params, shape, v.dtype), order

    def _pointwise_convolve(self, v: Value) -> tuple[Value, Shape] | None:
        """Weights (o, c) by (c, pixels) of every image: pixels of all images by (c, o)."""
        if len(v.shape) != 3 or v.dtype not in _HALF:
            return None
        w, x = v.inputs
        weights = self._one_of_batch(w)
        if weights is None or self.twins.get(x, (x, ()))[1] != _BATCH_K_N:
            return None
        n, o, pixels = v.shape
        rows = self.g.reshaped(self.twins[x][0], (1, n * pixels, x.shape[1]))
        product = self._contract(v, rows, self._permuted(weights, _BATCH_K_N))
        return self.g.reshaped(product, (n, pixels, o)), _BATCH_K_N

    def _pointwise_wgrad(self, v: Value) -> tuple[Value, Shape] | None:
        """The sum of (o, pixels) by (pixels, c) over images: one product over all pixels."""
        product = v.inputs[0]
        if v.op != "reduce_sum" or v.params != (0,) or product.dtype not in _HALF:
            return None
        a, b = product.inputs
        if len(product.shape) != 3 or not (self._is_last(a, 1) and self._is_last(b, 2)):
            return None
        n, m, k = a.shape
        columns = b.shape[2]
        left = self.g.reshaped(self.ordered(a, _BATCH_K_N), (1, n * k, m))
        right = self.g.reshaped(self.ordered(b, (0, 1, 2)), (1, n * k, columns))
        total = self._contract(product, self._permuted(left, _BATCH_K_N), right)
        return self.g.reshaped(total, (m, columns)), (0, 1)

    def _is_last(self, x: Value, axis: int) -> bool:
        """This axis of a batch of matrices is adjacent in memory, behind a twin's pixels."""
        if x in self.twins:
            return self.twins[x][1][2] == axis
        return axis == 2 and x in self.straight

    def _contract(self, v: Value, a: Value, b: Value) -> Value:
        shape = (a.shape[0], a.shape[1], b.shape[2])
        return self.g.make("contract", "contract", (a, b), v.params, shape, v.dtype)

    def _one_of_batch(self, x: Value) -> Value | None:
        """The one matrix (1, a, b) that a batch repeats."""
        if x.op == "permute" and x.params == _BATCH_K_N:
            found = self._one_of_batch(x.inputs[0])
            return None if found is None else self._permuted(found, _BATCH_K_N)
        if x.shape[0] == 1:
            return self.new[x]
        if x.op != "broadcast":
            return None
        y = x.inputs[0]
        if y.shape[-2:] != x.shape[-2:] or size_of(y.shape[:-2]) != 1:
            return None
        return self.g.reshaped(self.new[y], (1, *y.shape[-2:]))


# -- views and reductions: the same of a twin ------------------------------------------------------

Twin = tuple[Value, Shape]


def _reduce(g: GraphBuilder, v: Value, twin: Value, order: Shape) -> Twin:
    axes = tuple(sorted(order.index(a) for a in v.params))
    rest = [a for a in order if a not in v.params]
    own = tuple(sorted(rest).index(a) for a in rest)
    shape = tuple(n for i, n in enumerate(twin.shape) if i not in axes)
    return g.make(v.op, v.kind, (twin,), axes, shape, v.dtype), own


def _permute(g: GraphBuilder, v: Value, twin: Value, order: Shape) -> Twin:
    return twin, tuple(v.params.index(a) for a in order)


def _slice_or_pad(g: GraphBuilder, v: Value, twin: Value, order: Shape) -> Twin:
    params = tuple(_ordered(numbers, order) for numbers in v.params)
    return g.make(v.op, v.kind, (twin,), params, _ordered(v.shape, order), v.dtype), order


def _shear(g: GraphBuilder, v: Value, twin: Value, order: Shape) -> Twin:
    axis, along, *rest = v.params
    params = (order.index(axis), order.index(along), *rest)
    return g.make(v.op, v.kind, (twin,), params, _ordered(v.shape, order), v.dtype), order


def _broadcast(g: GraphBuilder, v: Value, twin: Value, order: Shape) -> Twin:
    added = len(v.shape) - len(order)
    order = (*range(added), *(a + added for a in order))
    shape = _ordered(v.shape, order)
    return g.make(v.op, v.kind, (twin,), shape, shape, v.dtype), order


def _reshape(g: GraphBuilder, v: Value, twin: Value, order: Shape) -> Twin | None:
    """Axes that are joined are brought together in the twin, the last one left where it is; where
    that cannot be, there is none."""
    x_shape = _ordered(twin.shape, _inverse(order))
    parts = _regroupings(x_shape, v.shape)
    if parts is None:
        return None
    long = [a for a in order if x_shape[a] != 1]
    groups = sorted(parts, key=lambda part: min(map(long.index, part[0])))
    moved = [a for before, _ in groups for a in before]
    if moved != long:
        if moved[-1] != long[-1]:
            return None
        own = (*moved, *(a for a in order if x_shape[a] == 1))
        shape, axes = _ordered(x_shape, own), tuple(map(order.index, own))
        twin = g.make("permute", "view", (twin,), axes, shape, twin.dtype)
    ordered = [axis for _, after in groups for axis in after]  # of the result
    for axis in range(len(v.shape)):  # those of extent 1 follow their predecessors
        if axis not in ordered:
            ordered.insert(ordered.index(axis - 1) + 1 if axis - 1 in ordered else 0, axis)
    out = tuple(ordered)
    return g.reshaped(twin, _ordered(v.shape, out)), out


def _regroupings(before: Shape, after: Shape) -> list[tuple[Shape, Shape]] | None:
    """The smallest groups of axes, of more than one element, that a reshape splits or joins."""
    if 0 in before or 0 in after:
        return None
    old = [i for i, n in enumerate(before) if n != 1]
    new = [i for i, n in enumerate(after) if n != 1]
    found: list[tuple[Shape, Shape]] = []
    while old or new:
        a, b = [old.pop(0)], [new.pop(0)]
        while (n := size_of(tuple(before[i] for i in a))) != (
            m := size_of(tuple(after[i] for i in b))
        ):
            if n < m:
                a.append(old.pop(0))
            else:
                b.append(new.pop(0))
        found.append((tuple(a), tuple(b)))
    return found


_RULES: dict[str, Callable[[GraphBuilder, Value, Value, Shape], Twin | None]] = {
    "permute": _permute,
    "slice": _slice_or_pad,
    "pad": _slice_or_pad,
    "shear": _shear,
    "broadcast": _broadcast,
    "reshape": _reshape,
}
