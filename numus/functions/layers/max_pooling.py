"""The largest element of every window of space, with PyTorch's arguments, and the way back.

A window is a view of its data, so a pooling is one reduction that fuses with its neighbours, and
its gradient gathers, for every element, from the windows that cover it: nothing is added up in
memory. It goes to the first of equal elements.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions._base import like
from numus.functions.indexing.index_checks import int_constant, upload
from numus.functions.layers import windows as win
from numus.functions.layers.small_windows import (
    are_small,
    cover_few,
    covering,
    taps_along,
    taps_of_all,
)
from numus.functions.layers.windows import Sizes, Windows, by_rank, pooled, unbatched, windows_of
from numus.functions.template_cache import templated
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, full, reduce_sum
from numus.primitives.custom import custom
from numus.primitives.indexing import scatter
from numus.primitives.reduce import argmax, reduce_max
from numus.primitives.source import constant, iota
from numus.primitives.structure import copy
from numus.primitives.views import reshape
from numus.shapes import Shape, as_int, size_of
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "max_pool1d", "max_pool2d",
    "max_pool3d", "max_unpool1d", "max_unpool2d", "max_unpool3d",
]  # fmt: skip


Nodes = Sequence[Node | None]


def _seen(x: Node, axes: Sequence[Windows]) -> Node:
    """Windows of x, padded with the least value."""
    wide, in_bounds = windows_of(x, axes)
    return wide if in_bounds is None else ew.where(in_bounds, wide, constant(_lowest(x), x.dtype))


def _lowest(x: Node) -> float:
    return -math.inf if x.dtype.is_floating else dt.int_range(x.dtype)[0]


def _flat_windows(x: Node, axes: Sequence[Windows]) -> Node:
    """Windows with their taps along one axis, row-major."""
    seen = _seen(x, axes)
    return reshape(seen, (*seen.shape[: x.ndim], size_of(tuple(a.taps for a in axes))))


def _best(x: Node, axes: Sequence[Windows]) -> Node:
    """The largest of each window: one axis after the other where windows are small."""
    if not are_small(axes, x.device):
        seen = _seen(x, axes)
        return reduce_max(seen, win.taps_of(seen, len(axes)))
    for axis, a in enumerate(axes, x.ndim - len(axes)):
        x = functools.reduce(ew.maximum, taps_along(x, axis, a, _lowest(x)))
    # stored once: a convolution that reads it would compute each element for all of its taps
    return copy(x)


def _which(x: Node, axes: Sequence[Windows]) -> Node:
    """The first tap of each window that is the largest element, row-major, in few bits."""
    lead = x.ndim - len(axes)
    taps = size_of(tuple(a.taps for a in axes))
    if not are_small(axes, x.device):
        which = argmax(_flat_windows(x, axes), x.ndim)
        if any(a.low for a in axes):  # no tap of the data comes before the first inside
            first = _raveled(_first_inside(axes, x.device), [a.taps for a in axes])
            which = ew.maximum(which, first)
        return ew.cast(which, dt.uint8 if taps <= 256 else dt.int32)
    # NaN is the largest; of windows of nothing but -inf the first tap that is no padding
    shape = (*x.shape[:lead], *(a.count for a in axes))
    best: Node = broadcast(constant(_lowest(x), x.dtype), shape)
    first = _raveled(_first_inside(axes, x.device), [a.taps for a in axes])
    which = broadcast(ew.cast(first, dt.int32), shape)
    for k, tap in enumerate(taps_of_all(x, axes, _lowest(x))):
        larger = ew.lt(best, tap)
        if x.dtype.is_floating:
            larger = ew.or_(larger, ew.and_(ew.ne(tap, tap), ew.eq(best, best)))
        best = ew.where(larger, tap, best)
        which = ew.where(larger, constant(k, dt.int32), which)
    return which


def _largest(x: Node, axes: Sequence[Windows]) -> tuple[Node, Node]:
    """The largest of each window, and its index: row-major over space."""
    # from x detached: a tracked copy would be saved for backward
    alone = ew.stop_gradient(x)
    which = _which(alone, axes)
    if are_small(axes, x.device):
        best = _best(alone, axes)
    else:  # of the same view: one kernel finds both
        best = reduce_max(_flat_windows(alone, axes), (x.ndim,))
    index = _flat_index(ew.cast(which, dt.int64), axes, x.device)
    return custom(_First(tuple(axes)), 0, best, (x, which)), index


@dataclass(frozen=True)
class _First:
    """The derivative of a sum over windows in which all but the first largest element are zero."""

    axes: tuple[Windows, ...]
    count = 1
    is_pure = True

    def _chosen(self, which: Node) -> Node:
        taps = tuple(a.taps for a in self.axes)
        tap = reshape(iota(size_of(taps), which.dtype, which.device), taps)
        return ew.eq(tap, reshape(which, (*which.shape, *(1,) * len(taps))))

    def vjp(self, operands: Sequence[Node], cotangents: Nodes) -> Nodes:
        (g,), (_, which) = cotangents, operands
        if g is None:
            return None, None
        if cover_few(self.axes, g.device):
            total, zero, one = like(g, 0), like(g, 0), constant(1, dt.int32)
            numbers = ew.add(which, one)  # from 1: 0 is no window
            for tap, seen, (part, chosen) in covering((g, numbers), self.axes):
                mine = ew.eq(chosen, ew.add(tap, one))
                mine = mine if seen is None else ew.and_(mine, seen)
                total = ew.add(total, ew.where(mine, part, zero))
            return copy(total), None
        wide = reshape(g, (*g.shape, *(1,) * len(self.axes)))
        chosen = self._chosen(copy(which))
        return win.from_windows(ew.where(chosen, wide, like(g, 0)), self.axes), None

    def jvp(self, operands: Sequence[Node], tangents: Nodes) -> Nodes:
        t, which = tangents[0], operands[1]
        if t is None:
            return (None,)
        wide, _ = windows_of(t, self.axes)
        chosen = ew.where(self._chosen(copy(which)), wide, like(t, 0))
        return (reduce_sum(chosen, win.taps_of(chosen, len(self.axes))),)

    def batched(self, size: int, flags: tuple[bool, ...]) -> _First:
        return self  # windows are over the last axes, however many come before


def _first_inside(axes: Sequence[Windows], device: Any) -> list[Node]:
    """Along each axis, the first tap of every window that is not padding."""
    found = []
    for i, a in enumerate(axes):
        first: Node = int_constant(0)
        if a.low:
            ahead = ew.sub(int_constant(a.low + a.dilation - 1), _starts(i, axes, device, 0))
            if a.dilation > 1:
                ahead = ew.floor_divide(ahead, int_constant(a.dilation))
            first = ew.maximum(first, ahead)
        found.append(first)
    return found


def _flat_index(which: Node, axes: Sequence[Windows], device: Any) -> Node:
    """Row-major indices into space of taps."""
    at = []
    for i, (a, k) in enumerate(zip(axes, _taps(which, axes), strict=True)):
        if a.starts is None:
            k = ew.mul(k, int_constant(a.dilation))
        at.append(ew.add(_starts(i, axes, device, a.low), k))
    return _raveled(at, [a.size for a in axes])


def _taps(which: Node, axes: Sequence[Windows]) -> list[Node]:
    """The tap along each axis of a row-major index."""
    found = []
    for i, a in reversed(list(enumerate(axes))):
        found.append(ew.mod(which, int_constant(a.taps)) if i else which)
        which = ew.floor_divide(which, int_constant(a.taps))
    return found[::-1]


def _starts(i: int, axes: Sequence[Windows], device: Any, low: int) -> Node:
    """The first index of each window along an axis, with `low` elements of padding."""
    a = axes[i]
    if a.starts is not None:
        first: Node = upload(np.asarray(a.starts, np.int64), iota(a.count, dt.int64, device))
    else:
        first = ew.mul(iota(a.count, dt.int64, device), int_constant(a.stride))
        first = ew.sub(first, int_constant(low))
    return reshape(first, win.along_axis(axes, i))


def _raveled(numbers: Sequence[Node], extents: Sequence[int]) -> Node:
    """The row-major index of indices along axes."""
    total = numbers[0]
    for number, extent in zip(numbers[1:], extents[1:], strict=True):
        total = ew.add(ew.mul(total, int_constant(extent)), number)
    return total


def max_pool(
    rank: int,
    x: ArrayLike,
    /,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of every window over `rank` axes."""
    given = (rank, x, kernel_size, stride, padding, dilation, ceil_mode)
    return _max_and_indices(*given) if return_indices else _max_alone(*given)


def _max_and_indices(rank: int, x: ArrayLike, *sizes: Any) -> tuple[Tensor, Tensor]:
    op = f"max_pool{rank}d"
    node, has_batch = pooled(op, x, rank, "uint", "int", "float")
    best, index = _largest(node, win.strided_windows(op, node, *sizes))
    return unbatched(best, has_batch), unbatched(index, has_batch)


@templated
def _max_alone(rank: int, x: ArrayLike, *sizes: Any) -> Tensor:
    return _max_and_indices(rank, x, *sizes)[0]


max_pool1d, max_pool2d, max_pool3d = by_rank(
    max_pool,
    "max_pool",
    """The largest element of every window of (batch, channels, width).

    Args:
        stride: from window to window; without one, the size of the window.
        padding: how far windows reach beyond both ends, at most half of one.
        ceil_mode: whether a last window that is not full counts.
        return_indices: also return the indices of the largest elements, for `max_unpool1d`.

    >>> nm.max_pool1d(nm.asarray([[1.0, 5.0, 2.0, 3.0]]), 2).tolist()
    [[5.0, 3.0]]
    """,
    "The largest element of every window of (batch, channels, height, width); as `max_pool1d`.",
    "The largest element of every window of three axes of space; as `max_pool1d`.",
)


def _adaptive_max(
    rank: int, x: ArrayLike, /, output_size: Any, return_indices: bool = False
) -> Any:
    op = f"adaptive_max_pool{rank}d"
    node, has_batch = pooled(op, x, rank, "uint", "int", "float")
    axes = win.adaptive_windows(op, node, output_size)
    found = [unbatched(y, has_batch) for y in _largest(node, axes)]
    return tuple(found) if return_indices else found[0]


adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = by_rank(
    _adaptive_max,
    "adaptive_max_pool",
    """The largest elements of output_size windows that cover (batch, channels, width) evenly.

    None for an axis keeps its size.
    """,
    "The largest elements of windows that cover two axes evenly; as `adaptive_max_pool1d`.",
    "The largest elements of windows that cover three axes evenly; as `adaptive_max_pool1d`.",
)


def _max_unpool(
    rank: int,
    x: ArrayLike,
    indices: ArrayLike,
    /,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    op = f"max_unpool{rank}d"
    node, has_batch = pooled(op, x, rank, "uint", "int", "float")
    at, _ = pooled(op, indices, rank, "uint", "int")
    if at.shape != node.shape:
        raise ShapeError(f"{op}: indices of shape {at.shape} for data of shape {node.shape}")
    taps = win.per_axis(op, "kernel_size", kernel_size, rank)
    strides = taps if stride is None else win.per_axis(op, "stride", stride, rank)
    low = win.per_axis(op, "padding", padding, rank, 0)
    axes = zip(node.shape[2:], strides, low, taps, strict=True)
    size: Shape = tuple((n - 1) * s - 2 * p + k for n, s, p, k in axes)
    if output_size is not None:
        wanted = tuple(as_int(n, "output_size", op) for n in output_size)[-rank:]
        fits = zip(wanted, size, strides, strict=False)
        if len(wanted) != rank or any(abs(w - n) >= s for w, n, s in fits):
            raise ShapeError(f"{op}: output_size={output_size!r} is not near {size}")
        size = wanted
    rows, pixels = size_of(node.shape[:2]), size_of(node.shape[2:])
    row = reshape(iota(rows, dt.int64, node.device), (rows, 1))
    where = (broadcast(row, (rows, pixels)), reshape(ew.cast(at, dt.int64), (rows, pixels)))
    blank = full((rows, size_of(size)), 0, node.dtype)
    y = scatter(blank, where, reshape(node, (rows, pixels)), (0, 1), "set")
    return unbatched(reshape(y, (*node.shape[:2], *size)), has_batch)


max_unpool1d, max_unpool2d, max_unpool3d = by_rank(
    _max_unpool,
    "max_unpool",
    "Elements put where `max_pool1d(..., return_indices=True)` found them; zeros elsewhere.",
    "Elements put where `max_pool2d(..., return_indices=True)` found them; zeros elsewhere.",
    "Elements put where `max_pool3d(..., return_indices=True)` found them; zeros elsewhere.",
)
