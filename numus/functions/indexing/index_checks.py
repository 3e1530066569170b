"""Index arrays made ready for `gather` and `scatter`: int64, counted from the front.

The policy on indices outside an axis lives here. An index whose value can be looked at for free
(Python and NumPy data, realised tensors in host memory, tensors on a device whose elements came
from the host) is checked at the call. An index that is still pending, or was computed on a device,
is clamped by the kernel that reads and dropped by the one that writes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.errors import DTypeError, IndexRangeError, ShapeError
from numus.evaluation.evaluate import array_at_hand, check_known, evaluate, from_host, host_array
from numus.functions.nesting import SEQUENCES, leaf_types
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, full, reduce_sum
from numus.primitives.indexing import gather, nonzero
from numus.primitives.source import constant, iota
from numus.primitives.views import permute, reshape
from numus.runtime.devices import default
from numus.shapes import Shape, size_of
from numus.tensor import Tensor

Array = np.ndarray[Any, Any]


def int_constant(number: int) -> Node:
    """A constant in the dtype of indices."""
    return constant(number, dt.int64)


def upload(array: Array, like: Node) -> Node:
    """A host array on the device of `like`."""
    return from_host(array, dt.as_dtype(array.dtype), like.device or default.device)


def host_values(node: Node) -> Array | None:
    """The values of a node, where looking at them neither computes nor copies."""
    if node.prim.name == "constant":
        return np.asarray(node.prim.reference(node))
    return array_at_hand(node)


def index_data(given: Any, op: str) -> Node | Array:
    """Indices as they came: the node of a tensor, or a NumPy array of host data."""
    if isinstance(given, Tensor):
        return given._node
    if isinstance(given, SEQUENCES):
        leaf_types(given, op)
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise ShapeError(f"{op}: index {given!r} has rows of unequal lengths") from error
    if array.size == 0 and not isinstance(given, np.ndarray):  # [] has no integers to tell by
        return array.astype(np.int64)
    if array.dtype.kind not in "iub":
        raise DTypeError(
            f"{op}: indices must be integers or booleans, not {array.dtype.name}: {given!r}"
        )
    return array


def normal_index(given: Any, extent: int, axis: int, op: str, like: Node) -> Node:
    """Integer indices into an axis as a node on the device of `like`, checked where they can be.

    Args:
        given: a tensor, a NumPy array, a (nested) list or an integer; negative ones count back.
        extent: the number of elements along the axis.
        axis: the axis, named in errors.
    """
    data = given if isinstance(given, (Node, np.ndarray)) else index_data(given, op)
    if isinstance(data, Node):
        if not data.dtype.is_integer:
            raise DTypeError(
                f"{op}: indices must be integers, not {data.dtype.name}; cast them with astype"
            )
        known = host_values(data)
        negative = data.dtype.kind == "int"
    else:
        if data.dtype.kind not in "iu":
            raise DTypeError(f"{op}: indices must be integers, not {data.dtype.name}")
        known, negative = data, True
    if extent == 0 and size_of(data.shape):
        raise IndexRangeError(f"{op}: axis {axis} is empty, so no index points into it")
    if known is not None and known.size:
        low, high = int(known.min()), int(known.max())
        if low < -extent or high >= extent:
            raise IndexRangeError(
                f"{op}: index {low if low < -extent else high} is out of range for axis {axis} "
                f"with {extent} elements; indices run from {-extent} to {extent - 1}"
            )
        negative = low < 0
    if not isinstance(data, Node):
        return upload(np.where(data < 0, data + extent, data).astype(np.int64), like)
    index = as_index(data)
    if negative:
        below = ew.lt(index, int_constant(0))
        index = ew.where(below, ew.add(index, int_constant(extent)), index)
    return index


def as_index(node: Node) -> Node:
    """Integers as int64, in which those of uint64 beyond it stay the largest."""
    if node.dtype is dt.uint64:
        node = ew.minimum(node, constant((1 << 63) - 1, dt.uint64))
    return ew.cast(node, dt.int64)


COUNT_HINT = (
    "the number of results would depend on it: use nm.where(mask, x, other), masked_fill or a "
    "sum over x * mask, whose shapes do not, or move the call outside"
)


def mask_positions(mask: Node, op: str, *also: Node) -> Node:
    """The indices, in row-major order, at which a bool array of any shape holds (int64, 1-d).

    Their number depends on the values: the mask is evaluated, together with `also`.
    """
    check_known(mask, op, COUNT_HINT)
    size = size_of(mask.shape)
    if size == 0:
        return full((0,), 0, dt.int64, mask)
    flat = reshape(mask, (size,))
    total = reduce_sum(ew.cast(flat, dt.int64), (0,))
    evaluate((total, flat, *also))
    return nonzero(flat, int(host_array(total)))


def unravel(position: Node, shape: Shape) -> tuple[Node, ...]:
    """Row-major positions in an array of `shape` as one index array per axis."""
    out = []
    for extent in reversed(shape[1:]):
        n = int_constant(extent)
        out.append(ew.mod(position, n))
        position = ew.floor_divide(position, n)
    return (*(position,) * bool(shape), *reversed(out))


def ramp(shape: Shape, axis: int, device: Any) -> Node:
    """An array of `shape` that counts along one axis."""
    line = tuple(n if i == axis else 1 for i, n in enumerate(shape))
    return broadcast(reshape(iota(shape[axis], dt.int64, device), line), shape)


def take_axis(node: Node, index: Node, axis: int) -> Node:
    """node read at an index of any shape along one axis: the index's axes replace it."""
    out = gather(node, (index,), (axis,))
    lead = index.ndim
    rest = range(lead, out.ndim)
    return permute(out, (*rest[:axis], *range(lead), *rest[axis:]))
