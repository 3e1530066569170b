"""Means and norms of windows of space, with PyTorch's arguments.

Windows are views of the data; gradients gather from the windows that cover an element.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.functions._base import like, method, node_of, require, wrap
from numus.functions.indexing.index_checks import int_constant, upload
from numus.functions.layers.max_pooling import max_pool
from numus.functions.layers.pooling_windows import (
    Sizes,
    Windows,
    adaptive,
    even,
    pooled,
    taps_of,
    unbatched,
    windows_of,
)
from numus.functions.layers.window_arguments import of_rank
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import reduce_sum
from numus.primitives.source import iota
from numus.primitives.views import reshape
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "avg_pool1d", "avg_pool2d",
    "avg_pool3d", "lp_pool1d", "lp_pool2d", "lp_pool3d",
]  # fmt: skip


# -- the mean -------------------------------------------------------------------------------------


def _sum(x: Node, axes: Sequence[Windows]) -> Node:
    """The sum of every window; narrow floats come out in float32."""
    wide, _ = windows_of(ew.cast(x, dt.compute_dtype(x.dtype)), axes)
    return reduce_sum(wide, taps_of(wide, len(axes)))


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
    axes = even(op, node, kernel_size, stride, padding, 1, ceil_mode, rank)
    total = _sum(node, axes)
    if divisor_override is not None:
        if operator.index(divisor_override) == 0:
            raise ValueError(f"{op}: divisor_override must not be 0")
        y = ew.div(total, like(total, divisor_override))
    else:
        y = ew.div(total, _elements(total, axes, count_include_pad))
    return unbatched(ew.cast(y, node.dtype), has_batch)


def _elements(total: Node, axes: Sequence[Windows], margins: bool) -> Node:
    """How many elements a window has: within the data, or within its margins."""
    count: Node = like(total, 1)
    rank = len(axes)
    for i, a in enumerate(axes):
        low, high = (-a.low, a.size + a.low) if margins else (0, a.size)
        starts = [p * a.stride - a.low for p in (0, a.count - 1)]
        if starts[0] >= low and starts[1] + a.taps <= high:
            count = ew.mul(count, like(total, a.taps))
            continue
        first = ew.sub(
            ew.mul(iota(a.count, dt.int64, total.device), int_constant(a.stride)),
            int_constant(a.low),
        )
        last = ew.minimum(ew.add(first, int_constant(a.taps)), int_constant(high))
        length = ew.sub(last, ew.maximum(first, int_constant(low)))
        shape = (1, 1, *(a.count if j == i else 1 for j in range(rank)))
        count = ew.mul(count, ew.cast(reshape(length, shape), total.dtype))
    return count


avg_pool1d = of_rank(
    _avg_pool,
    1,
    "avg_pool1d",
    """The mean of every window of (batch, channels, width).

    Args:
        stride: from window to window; without one, the size of the window.
        padding: how far windows reach beyond both ends, over zeros; at most half of one.
        ceil_mode: whether a last window that is not full counts.
        count_include_pad: whether those zeros are elements of a mean.

    >>> nm.avg_pool1d(nm.asarray([[1.0, 5.0, 2.0, 4.0]]), 2).tolist()
    [[3.0, 3.0]]
    """,
)

avg_pool2d = of_rank(
    _avg_pool,
    2,
    "avg_pool2d",
    """The mean of every window of (batch, channels, height, width); as `avg_pool1d`.

    `divisor_override` is what sums are divided by instead.
    """,
)

avg_pool3d = of_rank(
    _avg_pool,
    3,
    "avg_pool3d",
    """The mean of every window of three axes of space; as `avg_pool2d`.""",
)


def _adaptive_avg(rank: int, x: ArrayLike, /, output_size: Any) -> Tensor:
    op = f"adaptive_avg_pool{rank}d"
    node, has_batch = pooled(op, x, rank, "float")
    y = adaptive_mean(node, adaptive(op, node, output_size, rank))
    return unbatched(ew.cast(y, node.dtype), has_batch)


def adaptive_mean(x: Node, axes: Sequence[Windows]) -> Node:
    """The mean of every window."""
    total = _sum(x, axes)
    rank = len(axes)
    for i, a in enumerate(axes):
        if a.lengths is None:
            total = ew.div(total, like(total, a.taps))
        else:
            lengths = upload(np.asarray(a.lengths, np.int64), total)
            shape = (1, 1, *(a.count if j == i else 1 for j in range(rank)))
            total = ew.div(total, ew.cast(reshape(lengths, shape), total.dtype))
    return total


adaptive_avg_pool1d = of_rank(
    _adaptive_avg,
    1,
    "adaptive_avg_pool1d",
    """The means of output_size windows that cover (batch, channels, width) evenly.

    None for an axis keeps its size.

    >>> nm.adaptive_avg_pool1d(nm.asarray([[1.0, 2.0, 3.0]]), 2).tolist()
    [[1.5, 2.5]]
    """,
)

adaptive_avg_pool2d = of_rank(
    _adaptive_avg,
    2,
    "adaptive_avg_pool2d",
    """The means of windows that cover two axes evenly; as `adaptive_avg_pool1d`.""",
)


@method("adaptive_avg_pool2d")
def _adaptive_avg_pool2d(x: Tensor, height: int | None, width: int | None = None) -> Tensor:
    """The means of windows that cover the last two axes evenly, height by width of them."""
    return adaptive_avg_pool2d(x, (height, width))


adaptive_avg_pool3d = of_rank(
    _adaptive_avg,
    3,
    "adaptive_avg_pool3d",
    """The means of windows that cover three axes evenly; as `adaptive_avg_pool1d`.""",
)

# -- norms ----------------------------------------------------------------------------------------


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
    if math.isinf(norm_type):  # the greatest size of a window's elements, or the least
        sign = math.copysign(1.0, norm_type)
        sizes = sign * wrap(ew.abs_(require(op, node_of(x, op), "float")))
        found: Tensor = max_pool(rank, sizes, kernel_size, stride, 0, 1, ceil_mode, False)
        return sign * found
    node, has_batch = pooled(op, x, rank, "float")
    axes = even(op, node, kernel_size, stride, 0, 1, ceil_mode, rank)
    wide = ew.cast(node, dt.compute_dtype(node.dtype))
    power = like(wide, float(norm_type))
    total = _sum(ew.pow_(wide, power), axes)
    if ceil_mode:  # a window that goes over the end counts as if it were full of its mean
        taps = math.prod(a.taps for a in axes)
        total = ew.div(ew.mul(total, like(total, float(taps))), _elements(total, axes, True))
    # an odd power of negative numbers may sum to less than zero: it counts as zero
    held = ew.where(ew.lt(like(total, 0), total), total, like(total, 0))
    y = ew.pow_(held, like(total, 1.0 / float(norm_type)))
    return unbatched(ew.cast(y, node.dtype), has_batch)


lp_pool1d = of_rank(
    _lp_pool, 1, "lp_pool1d", """(sum of x ** norm_type) ** (1 / norm_type) over every window."""
)

lp_pool2d = of_rank(
    _lp_pool,
    2,
    "lp_pool2d",
    """(sum of x ** norm_type) ** (1 / norm_type) over every window of two axes.""",
)

lp_pool3d = of_rank(
    _lp_pool,
    3,
    "lp_pool3d",
    """(sum of x ** norm_type) ** (1 / norm_type) over every window of three axes.""",
)
