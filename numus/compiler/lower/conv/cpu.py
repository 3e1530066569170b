"""Convolution groups: which schedule a convolution gets; and plain sums of products for others."""

from __future__ import annotations

from numus import dtypes as dt
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.conv.cpu_channels import lower_spreading, spreading_blocks
from numus.compiler.lower.conv.cpu_spatial import lower_sliding, sliding_cost
from numus.compiler.lower.conv.cpu_wgrad import lower_gathering
from numus.compiler.lower.conv.geometry import Geometry
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.loops import lower_sum
from numus.shapes import Shape, size_of
from numus.target import Target

FEW_OUTPUTS = 3  # do not fill a vector
SMALL = 1 << 14  # convolutions of fewer multiplications are plain loops


def lower_convolution(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """Tiles where they pay; plain sums of products for complex, tiny and unusual ones."""
    product = group.members[0]
    g = Geometry.of(product)
    if g is None or product.dtype.is_complex or g.work < SMALL or target.block_size:
        return _sums(group, layouts, target)
    if size_of(g.extents) < size_of(g.taps):
        if any(gap > 1 for gap in g.gap) or g.outputs < FEW_OUTPUTS:
            return _sums(group, layouts, target)
        return lower_gathering(group, g, layouts, target)
    spread = spreading_blocks(g, product, target)
    if spread is not None and spread.cost < sliding_cost(g, product, target):
        return lower_spreading(group, spread, layouts, target)
    return [lower_sliding(group, g, layouts, target)]


def _sums(group: FusionGroup, layouts: dict[Value, Shape], target: Target) -> list[LoweredKernel]:
    """A convolution as a plain sum of products over a view of its windows."""
    product = group.members[0]
    x, w = product.inputs
    groups, windows, _ = product.params
    n, q, *extents = product.shape
    c, *taps = w.shape[1:]
    size = x.shape[2:]
    rank = len(size)
    wide = product.dtype
    if wide.is_floating:  # products of narrow floats are not rounded one by one
        wide = dt.promote(dt.compute_dtype(wide), x.dtype)

    def view(op: str, v: Value, params: object, shape: tuple[int, ...]) -> Value:
        return Value.fresh(op, "view", (v,), params, shape, v.dtype)

    def reshaped(v: Value, *shape: int) -> Value:
        return view("reshape", v, shape, shape)

    def widened(v: Value) -> Value:
        return (
            v if v.dtype is wide else Value.fresh("cast", "elementwise", (v,), None, v.shape, wide)
        )

    # every output sees the channels of its group: (n, outputs, *space, channels, *taps)
    shape = (n, groups, q // groups, c, *size)
    data = view("broadcast", reshaped(x, n, groups, 1, c, *size), shape, shape)
    data = reshaped(data, n, q, c, *size)
    order = (0, 1, *range(3, 3 + rank), 2)
    data = view("permute", data, order, (n, q, *size, c))
    data = reshaped(data, *data.shape, *(1,) * rank)
    data = view("broadcast", data, (n, q, *size, c, *taps), (n, q, *size, c, *taps))
    for i, v in enumerate(windows):
        params = (
            2 + i,
            3 + rank + i,
            extents[i],
            v.stride,
            v.dilation,
            -v.padding_low,
            v.lhs_dilation,
        )
        shape = (*data.shape[: 2 + i], extents[i], *data.shape[3 + i :])
        data = view("shear", data, params, shape)
    weights = reshaped(w, 1, q, *(1,) * rank, c, *taps)
    factors = (widened(data), widened(weights))
    terms = Value.fresh("mul", "elementwise", factors, None, data.shape, wide)
    axes = tuple(range(2 + rank, 3 + 2 * rank))
    total = Value.fresh("reduce_sum", "reduce", (terms,), axes, product.shape, product.dtype)
    return lower_sum(group, total, layouts, target)
