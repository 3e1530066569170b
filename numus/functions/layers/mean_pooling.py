"""Means and norms of windows of space, with PyTorch's arguments.

Windows are views of the data; gradients gather from the windows that cover an element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.functions._base import as_number, like, method, node_of, require, widened, wrap
from numus.functions.indexing.index_checks import int_constant, upload
from numus.functions.layers import windows as win
from numus.functions.layers.max_pooling import Nodes, max_pool
from numus.functions.layers.small_windows import cover_few, sums_over_windows, window_sums
from numus.functions.layers.windows import Sizes, Windows, by_rank, pooled, unbatched, windows_of
from numus.functions.template_cache import templated
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, reduce_sum
from numus.primitives.custom import custom
from numus.primitives.source import iota
from numus.primitives.structure import copy
from numus.primitives.views import reshape
from numus.shapes import as_int
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "avg_pool1d", "avg_pool2d",
    "avg_pool3d", "lp_pool1d", "lp_pool2d", "lp_pool3d",
]  # fmt: skip


def _sum(x: Node, axes: Sequence[Windows]) -> Node:
    """The sum of every window; low-precision floats come out in float32."""
    wide = widened(x)
    return custom(_Sums(tuple(axes)), 0, _totals(ew.stop_gradient(wide), axes), (wide,))


def _totals(x: Node, axes: Sequence[Windows]) -> Node:
    if cover_few(axes, x.device):
        return copy(window_sums(x, axes))
    wide, _ = windows_of(x, axes)
    return reduce_sum(wide, win.taps_of(wide, len(axes)))


@dataclass(frozen=True)
class _Sums:
    """The derivative of sums of windows."""

    axes: tuple[Windows, ...]
    count = 1
    is_pure = True

    def vjp(self, operands: Sequence[Node], cotangents: Nodes) -> Nodes:
        g = cotangents[0]
        if g is None:
            return (None,)
        if cover_few(self.axes, g.device):
            return (copy(sums_over_windows(g, self.axes)),)
        wide = reshape(g, (*g.shape, *(1,) * len(self.axes)))
        wide = broadcast(wide, (*g.shape, *(a.taps for a in self.axes)))
        return (win.from_windows(wide, self.axes),)

    def jvp(self, operands: Sequence[Node], tangents: Nodes) -> Nodes:
        t = tangents[0]
        return (None if t is None else _totals(t, self.axes),)

    def batched(self, size: int, flags: tuple[bool, ...]) -> _Sums:
        return self  # windows are over the last axes, however many come before


@templated
def _avg_pool(
    rank: int,
    x: ArrayLike,
    /,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    op = f"avg_pool{rank}d"
    node, has_batch = pooled(op, x, rank, "float")
    axes = win.strided_windows(op, node, kernel_size, stride, padding, 1, ceil_mode)
    total = _sum(node, axes)
    if divisor_override is not None:
        divisor_override = as_int(divisor_override, "divisor_override", op)
        if divisor_override == 0:
            raise ValueError(f"{op}: divisor_override must not be 0")
        y = ew.div(total, like(total, divisor_override))
    else:
        y = ew.div(total, _elements(total, axes, count_include_pad))
    return unbatched(ew.cast(y, node.dtype), has_batch)


def _elements(total: Node, axes: Sequence[Windows], margins: bool) -> Node:
    """The number of elements of each window, with or without padding."""
    count: Node = like(total, 1)
    for i, a in enumerate(axes):
        low, high = (-a.low, a.size + a.low) if margins else (0, a.size)
        starts = [p * a.stride - a.low for p in (0, a.count - 1)]
        if starts[0] >= low and starts[1] + a.taps <= high:
            count = ew.mul(count, like(total, a.taps))
            continue
        first = ew.mul(iota(a.count, dt.int64, total.device), int_constant(a.stride))
        first = ew.sub(first, int_constant(a.low))
        last = ew.minimum(ew.add(first, int_constant(a.taps)), int_constant(high))
        length = ew.sub(last, ew.maximum(first, int_constant(low)))
        length = reshape(length, win.along_axis(axes, i))
        count = ew.mul(count, ew.cast(length, total.dtype))
    return count


avg_pool1d, avg_pool2d, avg_pool3d = by_rank(
    _avg_pool,
    "avg_pool",
    """The mean of every window of (batch, channels, width).

    Args:
        stride: from window to window; without one, the size of the window.
        padding: how far windows reach beyond both ends, over zeros; at most half of one.
        ceil_mode: whether a last window that is not full counts.
        count_include_pad: whether those zeros are elements of a mean.

    >>> nm.avg_pool1d(nm.asarray([[1.0, 5.0, 2.0, 4.0]]), 2).tolist()
    [[3.0, 3.0]]
    """,
    """The mean of every window of (batch, channels, height, width); as `avg_pool1d`.

    `divisor_override` is what sums are divided by instead.
    """,
    "The mean of every window of three axes of space; as `avg_pool2d`.",
)


def _adaptive_avg(rank: int, x: ArrayLike, /, output_size: Any) -> Tensor:
    op = f"adaptive_avg_pool{rank}d"
    node, has_batch = pooled(op, x, rank, "float")
    axes = win.adaptive_windows(op, node, output_size)
    total = _sum(node, axes)
    for i, a in enumerate(axes):
        if a.lengths is None:
            total = ew.div(total, like(total, a.taps))
        else:
            lengths = upload(np.asarray(a.lengths, np.int64), total)
            lengths = ew.cast(reshape(lengths, win.along_axis(axes, i)), total.dtype)
            total = ew.div(total, lengths)
    return unbatched(ew.cast(total, node.dtype), has_batch)


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = by_rank(
    _adaptive_avg,
    "adaptive_avg_pool",
    """The means of output_size windows that cover (batch, channels, width) evenly.

    None for an axis keeps its size.

    >>> nm.adaptive_avg_pool1d(nm.asarray([[1.0, 2.0, 3.0]]), 2).tolist()
    [[1.5, 2.5]]
    """,
    "The means of windows that cover two axes evenly; as `adaptive_avg_pool1d`.",
    "The means of windows that cover three axes evenly; as `adaptive_avg_pool1d`.",
)


@method("adaptive_avg_pool2d")
def _adaptive_avg_pool2d(x: Tensor, height: int | None, width: int | None = None) -> Tensor:
    """The means of windows that cover the last two axes evenly, height by width of them."""
    return adaptive_avg_pool2d(x, (height, width))


def _lp_pool(
    rank: int,
    x: ArrayLike,
    /,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    op = f"lp_pool{rank}d"
    norm_type = as_number(norm_type, "norm_type", op)
    if math.isinf(norm_type):  # the largest magnitude of a window, or the smallest
        sign = math.copysign(1.0, norm_type)
        sizes = sign * wrap(ew.abs_(require(op, node_of(x, op), "float")))
        found: Tensor = max_pool(rank, sizes, kernel_size, stride, 0, 1, ceil_mode, False)
        return sign * found
    node, has_batch = pooled(op, x, rank, "float")
    axes = win.strided_windows(op, node, kernel_size, stride, 0, 1, ceil_mode)
    wide = widened(node)
    total = _sum(ew.pow_(wide, like(wide, float(norm_type))), axes)
    if ceil_mode:  # a window that goes over the end counts as if it were full of its mean
        taps = math.prod(a.taps for a in axes)
        total = ew.div(ew.mul(total, like(total, float(taps))), _elements(total, axes, True))
    # an odd power of negative numbers may sum to less than zero: it counts as zero
    clamped = ew.where(ew.lt(like(total, 0), total), total, like(total, 0))
    y = ew.pow_(clamped, like(total, 1.0 / float(norm_type)))
    return unbatched(ew.cast(y, node.dtype), has_batch)


lp_pool1d, lp_pool2d, lp_pool3d = by_rank(
    _lp_pool,
    "lp_pool",
    "(sum of x ** norm_type) ** (1 / norm_type) over every window.",
    "(sum of x ** norm_type) ** (1 / norm_type) over every window of two axes.",
    "(sum of x ** norm_type) ** (1 / norm_type) over every window of three axes.",
)
