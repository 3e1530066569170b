"""Reading and writing at index arrays, by name: take, gather, scatter and their relatives.

All of them return new arrays except `put` and `put_along_axis`, which re-bind their first argument
as NumPy's change it. What happens to indices outside an axis is said in `indexing`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.dtypes import DType
from numus.errors import DTypeError, ShapeError
from numus.functions._base import computed, flat_or_axis, method, node_of, wrap
from numus.functions.creation.dtype_functions import ends
from numus.functions.indexing.index_checks import (
    host_values,
    index_data,
    int_constant,
    normal_index,
    take_axis,
    upload,
)
from numus.functions.indexing.indexing import cast_value, fit_value
from numus.functions.spelling import spelled
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, full
from numus.primitives.indexing import gather as gather_node
from numus.primitives.indexing import index_along
from numus.primitives.indexing import scatter as scatter_node
from numus.primitives.scan import scan
from numus.primitives.source import iota
from numus.primitives.view_updates import write_slice
from numus.primitives.views import permute, reshape, take_range
from numus.shapes import Shape, as_int, normal_axis, size_of
from numus.shapes import broadcast as broadcast_shapes
from numus.tensor import Tensor

__all__ = [
    "embedding_lookup", "gather", "gather_nd", "index_add", "index_select", "masked_fill",
    "masked_scatter", "masked_select", "put", "put_along_axis", "scatter", "scatter_add",
    "scatter_reduce", "slice_assign", "take", "take_along_axis",
]  # fmt: skip


@method()
@spelled
def take(x: Tensor, indices: Any, /, axis: int | None = None, *, mode: str = "raise") -> Tensor:
    """The parts of x at indices along an axis.

    Args:
        indices: integers of any shape; their axes stand in the result where `axis` was.
        axis: without one, x is taken as one long axis.
        mode: what becomes of indices out of range: "raise" refuses them, "wrap" counts them around
            the axis, "clip" takes its nearer end.

    >>> nm.take(nm.asarray([[1, 2, 3], [4, 5, 6]]), nm.asarray([2, 0]), axis=1).tolist()
    [[3, 1], [6, 4]]
    """
    node, at = flat_or_axis(node_of(x, "take"), axis, "take")
    index = _within(indices, node.shape[at], mode, "take", node)
    return wrap(take_axis(node, normal_index(index, node.shape[at], at, "take", node), at))


def _within(indices: Any, extent: int, mode: str, op: str, like: Node) -> Any:
    """Indices moved into the range of an axis, if a mode asks for it."""
    if mode == "raise":
        return indices
    if mode not in ("wrap", "clip"):
        raise ValueError(f'{op}: mode must be "raise", "wrap" or "clip", not {mode!r}')
    data = index_data(indices, op)
    node = data if isinstance(data, Node) else upload(data, like)
    index = ew.cast(node, dt.int64)
    if mode == "wrap":
        return ew.mod(index, int_constant(max(extent, 1)))
    top = int_constant(max(extent - 1, 0))
    return ew.minimum(ew.maximum(index, int_constant(0)), top)


@method()
def index_select(x: Tensor, /, dim: int, index: Any) -> Tensor:
    """The parts of x at a vector of indices along an axis: `take` with its arguments turned.

    >>> nm.index_select(nm.asarray([[1, 2], [3, 4]]), 1, nm.asarray([1])).tolist()
    [[2], [4]]
    """
    return take(x, index, dim)


@method()
def index_add(x: Tensor, /, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Tensor:
    """x with alpha * source added to its parts at a vector of indices along an axis.

    Indices given several times receive the sum.

    >>> nm.index_add(nm.zeros(3), 0, nm.asarray([0, 2, 0]), nm.asarray([1.0, 2.0, 4.0])).tolist()
    [5.0, 0.0, 2.0]
    """
    op = "index_add"
    node = node_of(x, op)
    axis = normal_axis(dim, node.ndim, op)
    at = normal_index(index, node.shape[axis], axis, op, node)
    if at.ndim > 1:
        raise ShapeError(f"{op}: takes a vector of indices, not one of shape {at.shape}")
    at = reshape(at, (size_of(at.shape),))
    value = cast_value(source, node, op)
    value = fit_value(value, (*node.shape[:axis], *at.shape, *node.shape[axis + 1 :]), op)
    if alpha != 1:
        value = ew.mul(value, cast_value(alpha, node, op))
    value = permute(value, (axis, *(i for i in range(node.ndim) if i != axis)))
    return wrap(scatter_node(node, (at,), value, (axis,), "add"))


def embedding_lookup(weight: Tensor, indices: Any, /) -> Tensor:
    """The rows of a weight matrix at indices of any shape.

    Whole floats are taken too; fractions are an error where the CPU knows them, and cut off
    elsewhere, as on a GPU.

    >>> nm.embedding_lookup(nm.asarray([[1, 2], [3, 4]]), nm.asarray([1, 1, 0])).tolist()
    [[3, 4], [3, 4], [1, 2]]
    """
    op = "embedding_lookup"
    node = node_of(weight, op)
    if node.ndim == 0:
        raise ShapeError(f"{op}: the weight needs rows to look up, its shape is ()")
    if isinstance(indices, Tensor) and indices.dtype.is_floating:
        known = host_values(indices._node)
        if known is not None and np.any(known != np.floor(known)):
            raise DTypeError(f"{op}: indices must be whole numbers, not {indices.tolist()}")
        indices = wrap(ew.cast(indices._node, dt.int64))
    return wrap(take_axis(node, normal_index(indices, node.shape[0], 0, op, node), 0))


@method("embedding_forward")
def _embedding_forward(x: Tensor, weight: Tensor) -> Tensor:
    """The rows of `weight` at the indices that x holds."""
    return embedding_lookup(weight, x)


@method()
@spelled
def slice_assign(x: Tensor, value: Any, /, axis: int, start: int) -> Tensor:
    """A copy of x with a value written from `start` on along an axis."""
    op = "slice_assign"
    node = node_of(x, op)
    at = normal_axis(axis, node.ndim, op)
    given, start = cast_value(value, node, op), as_int(start, "start", op)
    if given.ndim != node.ndim or not 0 <= start <= node.shape[at] - given.shape[at]:
        raise ShapeError(
            f"{op}: a value of shape {given.shape} does not fit an array of shape {node.shape} "
            f"from {start} on along axis {at}"
        )
    given = fit_value(given, (*node.shape[:at], given.shape[at], *node.shape[at + 1 :]), op)
    starts = tuple(start if i == at else 0 for i in range(node.ndim))
    return computed(write_slice(node, given, starts, (1,) * node.ndim))


def _broadcast_index(x: Node, index: Any, axis: int, op: str) -> tuple[Node, Node]:
    """x and an index along one of its axes, broadcast against each other in the others."""
    at = normal_index(index, x.shape[axis], axis, op, x)
    if at.ndim != x.ndim:
        raise ShapeError(
            f"{op}: indices of shape {at.shape} for an array of shape {x.shape}; both need the "
            "same number of axes"
        )

    def but_axis(shape: Shape, extent: int) -> Shape:
        return (*shape[:axis], extent, *shape[axis + 1 :])

    common = broadcast_shapes(but_axis(x.shape, 1), but_axis(at.shape, 1), op)
    wide, at = (broadcast(n, but_axis(common, n.shape[axis])) for n in (x, at))
    return wide, at


@method()
@spelled
def take_along_axis(x: Tensor, indices: Any, /, axis: int | None = -1) -> Tensor:
    """For each line of x along an axis, its elements at that line's own indices.

    The way to use what `argsort` and `argmax` give. axis=None takes x as one long axis.

    >>> x = nm.asarray([[3, 1, 2], [4, 6, 5]])
    >>> nm.take_along_axis(x, nm.argsort(x, axis=1), axis=1).tolist()
    [[1, 2, 3], [4, 5, 6]]
    """
    op = "take_along_axis"
    node, at = flat_or_axis(node_of(x, op), axis, op)
    node, index = _broadcast_index(node, indices, at, op)
    return wrap(gather_node(node, *index_along(index, at)))


@spelled
def put_along_axis(x: Tensor, indices: Any, values: Any, /, axis: int | None = -1) -> Tensor:
    """Put values into each line of x along an axis, at that line's own indices; gives x back.

    >>> nm.put_along_axis(nm.zeros((2, 2)), nm.asarray([[0], [1]]), 7.0, axis=1).tolist()
    [[7.0, 0.0], [0.0, 7.0]]
    """
    op = "put_along_axis"
    node = node_of(x, op)
    flat, at = flat_or_axis(node, axis, op)
    wide, index = _broadcast_index(flat, indices, at, op)
    if wide.shape != flat.shape:
        raise ShapeError(f"{op}: indices of shape {index.shape} go beyond an array of {x.shape}")
    value = fit_value(cast_value(values, node, op), index.shape, op)
    indices_, axes = index_along(index, at)
    return x.rebind(reshape(scatter_node(flat, indices_, value, axes, "set"), node.shape), op)


def put(x: Tensor, indices: Any, values: Any, /, mode: str = "raise") -> Tensor:
    """Put values at indices into x taken as one long axis; gives x back.

    Values that are too few are used over and over; `mode` is that of `take`.
    """
    op = "put"
    node = node_of(x, op)
    size = size_of(node.shape)
    at = normal_index(_within(indices, size, mode, op, node), size, 0, op, node)
    count = size_of(at.shape)
    value = cast_value(values, node, op)
    given = size_of(value.shape)
    if count == 0 or given == 0:  # as NumPy: no values change nothing
        return x
    which = ew.mod(iota(count, dt.int64, node.device), int_constant(given))
    value = take_axis(reshape(value, (given,)), which, 0)
    flat = scatter_node(reshape(node, (size,)), (reshape(at, (count,)),), value, (0,), "set")
    return x.rebind(reshape(flat, node.shape), op)


def _lines(x: Tensor, dim: int, index: Any, op: str) -> tuple[Node, Node, int]:
    """x, an index into one of its axes and that axis, checked by PyTorch's rules."""
    node = node_of(x, op)
    line = node if node.ndim else reshape(node, (1,))
    axis = normal_axis(dim, line.ndim, op)
    at = normal_index(index, line.shape[axis], axis, op, node)
    at = at if at.ndim or node.ndim else reshape(at, (1,))
    extents = enumerate(zip(at.shape, line.shape, strict=False))
    if at.ndim != line.ndim or any(n > m for i, (n, m) in extents if i != axis):
        raise ShapeError(
            f"{op}: an index of shape {at.shape} does not fit an array of shape {node.shape}: it "
            f"needs as many axes, none but axis {axis} longer"
        )
    return line, at, axis


@method()
def gather(x: Tensor, /, dim: int, index: Any) -> Tensor:
    """For each element of `index`, the element of x at the same index but for axis `dim`.

    out[i, j] = x[index[i, j], j] for dim=0; `take_along_axis` without broadcasting.

    >>> nm.gather(nm.asarray([[1, 2], [3, 4]]), 1, nm.asarray([[0], [1]])).tolist()
    [[1], [4]]
    """
    node, at, axis = _lines(x, dim, index, "gather")
    out = gather_node(node, *index_along(at, axis))
    return wrap(out if x.ndim or np.ndim(index) else reshape(out, ()))


def gather_nd(x: Tensor, indices: Any, /) -> Tensor:
    """The parts of x at points: the last axis of `indices` holds an index for each leading axis.

    >>> nm.gather_nd(nm.asarray([[1, 2], [3, 4]]), nm.asarray([[0, 1], [1, 0]])).tolist()
    [2, 3]
    """
    op = "gather_nd"
    node = node_of(x, op)
    given = index_data(indices, op)
    depth = given.shape[-1] if given.ndim else 0
    if not 1 <= depth <= node.ndim:
        raise ShapeError(
            f"{op}: points of {depth} indices (from indices of shape {given.shape}) into an array "
            f"of shape {node.shape}"
        )
    axes = tuple(range(depth))

    def part(axis: int) -> Any:
        if not isinstance(given, Node):
            return given[..., axis]
        return reshape(take_range(given, given.ndim - 1, axis, axis + 1), given.shape[:-1])

    found = tuple(normal_index(part(i), node.shape[i], i, op, node) for i in axes)
    return wrap(gather_node(node, found, axes))


_MODES: dict[str | None, str] = {
    **{None: "set", "add": "add", "sum": "add", "mean": "add", "multiply": "mul", "prod": "mul"},
    **{"amax": "max", "max": "max", "amin": "min", "min": "min"},
}


def combining_identity(mode: str, dtype: DType) -> Any:
    """The identity element of a combination."""
    if mode in ("add", "mul"):
        return int(mode == "mul")
    return (ends(dtype) if dtype.is_floating else dt.int_range(dtype))[mode == "min"]


def _scattered(
    x: Tensor, dim: int, index: Any, src: Any, reduce: str | None, include_self: bool, op: str
) -> Tensor:
    if reduce not in _MODES:
        names = ", ".join(n for n in _MODES if n)
        raise ValueError(f"{op}: there is no reduction {reduce!r}; reductions: {names}")
    mode = _MODES[reduce]
    node, at, axis = _lines(x, dim, index, op)
    refused = {"set": (), "max": ("complex",), "min": ("complex",)}.get(mode, ("bool",))
    if node.dtype.kind in refused:
        raise DTypeError(f"{op}: {reduce} is not defined for {node.dtype.name}")
    value = cast_value(src, node, op)
    if value.ndim:
        for i, (n, m) in enumerate(zip(at.shape, value.shape, strict=False)):
            if m < n or value.ndim != at.ndim:
                raise ShapeError(
                    f"{op}: a source of shape {value.shape} has no element for every index of "
                    f"shape {at.shape}"
                )
            value = take_range(value, i, 0, n)
    value = broadcast(value, at.shape)
    where, axes = index_along(at, axis)
    if not include_self:
        blank = full(at.shape, combining_identity(mode, node.dtype), node.dtype)
        node = scatter_node(node, where, blank, axes, "set")
    out = scatter_node(node, where, value, axes, mode)
    if reduce == "mean":
        ones = full(at.shape, 1, dt.int64)
        count = full(node.shape, int(include_self), dt.int64)
        count = scatter_node(count, where, ones, axes, "add")
        count = ew.cast(ew.maximum(count, int_constant(1)), out.dtype)
        out = (ew.div if out.dtype.is_inexact else ew.floor_divide)(out, count)
    return wrap(reshape(out, x.shape))


@method()
def scatter(x: Tensor, /, dim: int, index: Any, src: Any, reduce: str | None = None) -> Tensor:
    """A copy of x into which each element of src is written at its own index along an axis.

    Args:
        index: as many axes as x; x[index[i, j], j] = src[i, j] for dim=0.
        src: a number, or an array at least as large as the index.
        reduce: combine with what is there ("add", "multiply", …) instead of replacing it. Without,
            the last of several writes to one index stays.

    >>> nm.scatter(nm.zeros(4), 0, nm.asarray([1, 3]), nm.asarray([5.0, 7.0])).tolist()
    [0.0, 5.0, 0.0, 7.0]
    """
    return _scattered(x, dim, index, src, reduce, True, "scatter")


@method()
def scatter_add(x: Tensor, /, dim: int, index: Any, src: Any) -> Tensor:
    """A copy of x to which each element of src is added at its own index along an axis.

    >>> nm.scatter_add(nm.zeros(3), 0, nm.asarray([0, 2, 0]), nm.asarray([1.0, 2.0, 4.0])).tolist()
    [5.0, 0.0, 2.0]
    """
    return _scattered(x, dim, index, src, "add", True, "scatter_add")


@method()
def scatter_reduce(
    x: Tensor, /, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True
) -> Tensor:
    """A copy of x with the elements of src combined at their indices along an axis.

    Args:
        reduce: "sum", "mean", "prod", "amax" or "amin".
        include_self: whether the element of x takes part.

    >>> x, i = nm.zeros(2), nm.asarray([0, 0, 1])
    >>> nm.scatter_reduce(x, 0, i, nm.asarray([1.0, 3.0, 5.0]), "mean", include_self=False).tolist()
    [2.0, 5.0]
    """
    return _scattered(x, dim, index, src, reduce, include_self, "scatter_reduce")


def _masked(x: Tensor, mask: Any, op: str) -> tuple[Node, Node]:
    node = node_of(x, op)
    hit = node_of(mask, op, node.device)
    if hit.dtype is not dt.bool_:
        raise DTypeError(f"{op}: a mask is of bool, not {hit.dtype.name}; compare to make one")
    return node, hit


@method()
def masked_select(x: Tensor, mask: Any, /) -> Tensor:
    """The elements at which the mask holds, along one axis; both broadcast. Evaluates the mask.

    >>> x = nm.asarray([1, 5, 3])
    >>> nm.masked_select(x, x > 2).tolist()
    [5, 3]
    """
    node, hit = _masked(x, mask, "masked_select")
    shape = broadcast_shapes(node.shape, hit.shape, "masked_select")
    return wrap(broadcast(node, shape))[wrap(broadcast(hit, shape))]


@method()
def masked_fill(x: Tensor, mask: Any, value: Any, /) -> Tensor:
    """x with a value where the (broadcast) mask holds.

    >>> nm.masked_fill(nm.arange(4), nm.arange(4) > 1, 0).tolist()
    [0, 1, 0, 0]
    """
    node, hit = _masked(x, mask, "masked_fill")
    return wrap(ew.where(hit, cast_value(value, node, "masked_fill"), node))


@method()
def masked_scatter(x: Tensor, mask: Any, source: Any, /) -> Tensor:
    """x with the elements of source, in order, where the mask holds; x and mask broadcast.

    Nothing is evaluated: a source with too few elements repeats its last one.
    """
    op = "masked_scatter"
    node, hit = _masked(x, mask, op)
    shape = broadcast_shapes(node.shape, hit.shape, op)
    node, hit = broadcast(node, shape), broadcast(hit, shape)
    value = cast_value(source, node, op)
    given = size_of(value.shape)
    if given == 0:
        return computed(node)
    flat = reshape(hit, (size_of(hit.shape),))
    rank = ew.sub(scan("sum", ew.cast(flat, dt.int64), 0), int_constant(1))
    taken = take_axis(reshape(value, (given,)), rank, 0)
    return wrap(ew.where(hit, reshape(taken, node.shape), node))
