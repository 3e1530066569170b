"""Overlapping frames of a signal, and their sum: the two are transposes of each other.

Both go through blocks of one stride, so that either costs one pass per frame that covers a sample.
"""

from __future__ import annotations

from numus.primitives import views
from numus.primitives.broadcast import reduce_sum, sliding_windows
from numus.tensor import Tensor, node_of


def frame_count(n: int, length: int, stride: int) -> int:
    """The number of whole frames."""
    return max(0, (n - length) // stride + 1)


def frames(x: Tensor, length: int, stride: int) -> Tensor:
    """Whole frames along the last axis: (..., frames, length)."""
    node = node_of(x, "frames")
    count, n = frame_count(node.shape[-1], length, stride), node.shape[-1]
    lead, axis = node.shape[:-1], node.ndim - 1
    overlap = -(-length // stride)
    size = (count - 1 + overlap) * stride if count else 0
    if size <= n:
        node = views.take_range(node, axis, 0, size)
    else:
        before = (0,) * node.ndim
        node = views.pad(node, before, (*before[:-1], size - n))
    if not count:
        return Tensor(views.reshape(node, (*lead, 0, length)))
    blocks = views.reshape(node, (*lead, size // stride, stride))
    windows = sliding_windows(blocks, axis, overlap)  # (..., frames, stride, overlap)
    ordered = views.permute(windows, (*range(axis + 1), axis + 2, axis + 1))
    whole = views.reshape(ordered, (*lead, count, overlap * stride))
    return Tensor(views.take_range(whole, axis + 1, 0, length))


def overlap_add(x: Tensor, stride: int) -> Tensor:
    """The sum of frames (..., frames, length) that begin a stride apart, along one axis."""
    node = node_of(x, "overlap_add")
    *lead, count, length = node.shape
    axis = len(lead)
    overlap = -(-length // stride)
    before = (0,) * node.ndim
    padded = views.pad(node, before, (*before[:-1], overlap * stride - length))
    parts = views.reshape(padded, (*lead, count, overlap, stride))
    shifted = views.shear(parts, axis, axis + 1, count + overlap - 1, 1, -1, 0, 1)
    blocks = reduce_sum(shifted, (axis + 1,))
    flat = views.reshape(blocks, (*lead, (count + overlap - 1) * stride))
    size = (count - 1) * stride + length if count else 0
    return Tensor(views.take_range(flat, axis, 0, size))
