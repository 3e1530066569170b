"""Convolution groups: which schedule a convolution gets, and its epilogue."""

from __future__ import annotations

from numus import dtypes as dt
from numus.compiler.emit import Step
from numus.compiler.fuse import Group
from numus.compiler.local import Val
from numus.compiler.loops import lower_loops
from numus.runtime.contract import Facts
from numus.shapes import Shape


def lower_convolution(group: Group, layouts: dict[Val, Shape], facts: Facts) -> list[Step]:
    """Plain sums of products."""
    return _sums(group, layouts, facts)


def _sums(group: Group, layouts: dict[Val, Shape], facts: Facts) -> list[Step]:
    """A convolution as a plain sum of products over a view of its windows."""
    product, *tail = group.members
    x, w = product.inputs
    groups, windows = product.params
    n, q, *extents = product.shape
    c, *taps = w.shape[1:]
    size = x.shape[2:]
    rank = len(size)
    wide = product.dtype
    if wide.is_floating:  # products of narrow floats are not rounded one by one
        wide = dt.promote(dt.compute_dtype(wide), x.dtype)

    def view(op: str, v: Val, params: object, shape: tuple[int, ...]) -> Val:
        return Val(-10, op, "view", (v,), params, shape, v.dtype)

    def reshaped(v: Val, *shape: int) -> Val:
        return view("reshape", v, shape, shape)

    def widened(v: Val) -> Val:
        return v if v.dtype is wide else Val(-11, "cast", "elementwise", (v,), None, v.shape, wide)

    # every output sees the channels of its group: (n, outputs, *space, channels, *taps)
    shape = (n, groups, q // groups, c, *size)
    data = view("broadcast", reshaped(x, n, groups, 1, c, *size), shape, shape)
    data = reshaped(data, n, q, c, *size)
    order = (0, 1, *range(3, 3 + rank), 2)
    data = view("permute", data, order, (n, q, *size, c))
    data = reshaped(data, *data.shape, *(1,) * rank)
    data = view("broadcast", data, (n, q, *size, c, *taps), (n, q, *size, c, *taps))
    for i, v in enumerate(windows):
        params = (2 + i, 3 + rank + i, extents[i], v.stride, v.dilation, -v.low, v.gap)
        shape = (*data.shape[: 2 + i], extents[i], *data.shape[3 + i :])
        data = view("shear", data, params, shape)
    weights = reshaped(w, 1, q, *(1,) * rank, c, *taps)
    factors = (widened(data), widened(weights))
    terms = Val(-13, "mul", "elementwise", factors, None, data.shape, wide)
    axes = tuple(range(2 + rank, 3 + 2 * rank))
    total = Val(-14, "reduce_sum", "reduce", (terms,), axes, product.shape, product.dtype)
    rows = Group(total, group.position)
    rows.members = [total, *tail]
    rows.stored = {total if v is product else v for v in group.stored}
    return lower_loops(rows, layouts, facts, {total: (product, 0, 0)}, {product: total})
