"""Reductions over segments: parts of an array that share a number, in whatever order they stand."""

from __future__ import annotations

from typing import Any

from numus import dtypes as dt
from numus.errors import DTypeError, ShapeError
from numus.evaluation.evaluate import check_known, evaluate, host_array
from numus.functions._base import node_of, require, wrap
from numus.functions.indexing.gather_scatter import combining_identity
from numus.functions.indexing.index_checks import as_index
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import full
from numus.primitives.indexing import scatter
from numus.primitives.reduce import reduce_max
from numus.primitives.views import reshape
from numus.shapes import as_int, size_of
from numus.tensor import ArrayLike, Tensor

__all__ = ["segment_max", "segment_mean", "segment_min", "segment_prod", "segment_sum"]


_NUMERIC = ("uint", "int", "float", "complex")
_REAL = ("uint", "int", "float")


def _segments(
    op: str, x: Any, ids: Any, count: int | None, kinds: tuple[str, ...]
) -> tuple[Node, Node, int]:
    """The data, the segment of each part of it, and the number of segments."""
    node = require(op, node_of(x, op), *kinds)
    index = node_of(ids, op, node.device)
    if not index.dtype.is_integer:
        raise DTypeError(f"{op}: segment ids are integers, not {index.dtype.name}")
    if index.ndim == 0 or node.shape[: index.ndim] != index.shape:
        raise ShapeError(
            f"{op}: segment ids of shape {index.shape} do not number the leading axes of data of "
            f"shape {node.shape}"
        )
    index = as_index(index)
    if count is None:
        check_known(index, op, "give the number of segments by num_segments=")
        count = 0
        if size_of(index.shape):
            largest = reduce_max(index, tuple(range(index.ndim)))
            evaluate((largest, index))
            count = max(0, int(host_array(largest)) + 1)
    count = as_int(count, "num_segments", op)
    if count < 0:
        raise ValueError(f"{op}: num_segments must not be negative, but is {count}")
    return node, index, count


def _reduced(mode: str, node: Node, index: Node, count: int) -> Node:
    shape = (count, *node.shape[index.ndim :])
    blank = full(shape, combining_identity(mode, node.dtype), node.dtype)
    return scatter(blank, (index,), node, (0,), mode)


def segment_sum(
    data: ArrayLike, segment_ids: ArrayLike, /, num_segments: int | None = None
) -> Tensor:
    """The sum of each segment.

    Args:
        data: its leading axes are those of the ids.
        segment_ids: which segment each part of the data belongs to; those outside of
            0 … num_segments - 1 are left out.
        num_segments: how many there are. Without it, one more than the largest id, for which the
            ids are evaluated.

    >>> nm.segment_sum(nm.asarray([1.0, 2.0, 4.0]), nm.asarray([0, 2, 0])).tolist()
    [5.0, 0.0, 2.0]
    """
    segments = _segments("segment_sum", data, segment_ids, num_segments, _NUMERIC)
    return wrap(_reduced("add", *segments))


def segment_prod(
    data: ArrayLike, segment_ids: ArrayLike, /, num_segments: int | None = None
) -> Tensor:
    """The product of each segment; 1 for one without elements. Arguments as of `segment_sum`."""
    segments = _segments("segment_prod", data, segment_ids, num_segments, _NUMERIC)
    return wrap(_reduced("mul", *segments))


def segment_max(
    data: ArrayLike, segment_ids: ArrayLike, /, num_segments: int | None = None
) -> Tensor:
    """The largest element of each segment; the least of the dtype for one without elements.

    Arguments as of `segment_sum`.

    >>> nm.segment_max(nm.asarray([1, 5, 3]), nm.asarray([1, 0, 1]), 2).tolist()
    [5, 3]
    """
    segments = _segments("segment_max", data, segment_ids, num_segments, _REAL)
    return wrap(_reduced("max", *segments))


def segment_min(
    data: ArrayLike, segment_ids: ArrayLike, /, num_segments: int | None = None
) -> Tensor:
    """The smallest element of each segment; the largest of the dtype for one without elements.

    Arguments as of `segment_sum`.
    """
    segments = _segments("segment_min", data, segment_ids, num_segments, _REAL)
    return wrap(_reduced("min", *segments))


def segment_mean(
    data: ArrayLike, segment_ids: ArrayLike, /, num_segments: int | None = None
) -> Tensor:
    """The mean of each segment; NaN for one without elements. Arguments as of `segment_sum`.

    >>> nm.segment_mean(nm.asarray([1.0, 2.0, 4.0]), nm.asarray([0, 1, 0])).tolist()
    [2.5, 2.0]
    """
    kinds = ("float", "complex")
    node, index, count = _segments("segment_mean", data, segment_ids, num_segments, kinds)
    total = _reduced("add", node, index, count)
    counted = _reduced("add", full(index.shape, 1, dt.int64), index, count)
    counted = reshape(counted, (count, *(1,) * (total.ndim - 1)))
    return wrap(ew.div(total, ew.cast(counted, node.dtype)))
