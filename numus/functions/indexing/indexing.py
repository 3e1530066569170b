"""x[index] and x[index] = value, with NumPy's rules.

An index is read into a plan of three steps, each a primitive: a strided slice of every axis, a
reshape that drops the axes of integers and puts in new ones, and a gather at the index arrays.
Reading takes the steps forwards; assigning takes them backwards and re-binds the tensor, so that
gradients flow to what stood there before and to what was put in.

Indices outside an axis: those whose values can be looked at for free (Python and NumPy data,
realised tensors in host memory) raise IndexRangeError at the call; those still pending are clamped
to the axis when they read and dropped when they write.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple

import numpy as np

from numus import dtypes as dt
from numus.errors import DTypeError, IndexRangeError, ShapeError
from numus.functions._base import method, moved, node_of, viewed, wrap
from numus.functions.indexing import index_checks
from numus.functions.indexing.index_checks import index_data, normal_index, upload
from numus.functions.nesting import SEQUENCES, leaf_types
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast
from numus.primitives.indexing import gather, scatter
from numus.primitives.source import VALUE
from numus.primitives.structure import copy
from numus.primitives.view_updates import Path, read_path, write_slice
from numus.primitives.views import permute, reshape, slice_, window
from numus.shapes import Shape, reshape_strides
from numus.shapes import broadcast as broadcast_shapes
from numus.tensor import ArrayLike, Tensor, registered, scalar_node

__all__ = ["index_put"]


class _Mask(NamedTuple):
    """A boolean index: the node of its values, or host data."""

    data: Node | np.ndarray[Any, Any]


class _Plan(NamedTuple):
    """How an index reads an array."""

    starts: Shape  # the slice of each axis
    steps: Shape
    counts: Shape
    middle: Shape  # that slice without the axes of integers, with new axes put in
    indices: tuple[Node, ...]  # index arrays of one shape, for some axes of `middle`
    axes: Shape
    lead_axis: int  # before which of the other axes the index arrays' axes stand

    def path(self) -> Path:
        """The view before the index arrays."""
        return ((slice_, self.starts, self.steps, self.counts), (reshape, self.middle))

    @property
    def shape(self) -> Shape:
        rest = tuple(n for i, n in enumerate(self.middle) if i not in self.axes)
        lead = self.indices[0].shape if self.indices else ()
        return rest[: self.lead_axis] + lead + rest[self.lead_axis :]

    def order(self) -> Shape:
        """The permutation from a gather's result (the index arrays' axes first) to the result."""
        lead = self.indices[0].ndim
        rest = tuple(range(lead, lead + len(self.middle) - len(self.axes)))
        return rest[: self.lead_axis] + tuple(range(lead)) + rest[self.lead_axis :]


def _read_item(item: Any, op: str) -> Any:
    """One item of an index: an int, a slice, None, ..., a _Mask, or a node or array of integers."""
    kind = type(item)
    if kind is int or kind is slice or item is None or item is Ellipsis:
        return item
    if isinstance(item, (bool, np.bool_)):
        return _Mask(np.asarray(item))
    if isinstance(item, (Tensor, np.ndarray, list)):
        data = index_data(item, op)
        if data.dtype in (dt.bool_, np.bool_):
            return _Mask(data)
        return int(data) if isinstance(data, np.ndarray) and data.ndim == 0 else data
    if isinstance(item, dt.Weak) and item.weak_kind == "int":
        return item.node(dt.int64)  # a number that each call of a program knows anew
    try:
        return operator.index(item)
    except TypeError:
        raise DTypeError(
            f"{op}: an index is made of integers, slices, None, ..., integer and boolean arrays, "
            f"not {item!r} of type {kind.__name__}"
        ) from None


def _read_items(index: Any, x: Node, op: str) -> list[Any]:
    """The items of an index that covers every axis: the ellipsis becomes full slices, or stays
    where it stands for no axes and separates index arrays."""
    given = index if type(index) is tuple else (index,)
    items = [_read_item(i, op) for i in given]
    used = 0
    ellipsis = len(items)
    for position, item in enumerate(items):
        if item is Ellipsis:
            if ellipsis < len(items):
                raise IndexRangeError(f"{op}: an index can have one ellipsis (...), not two")
            ellipsis = position
        elif type(item) is _Mask:
            used += item.data.ndim
        elif item is not None:
            used += 1
    if used > x.ndim:
        raise IndexRangeError(
            f"{op}: too many indices: an array of shape {x.shape} has {x.ndim} axes, the index "
            f"asks for {used}"
        )
    full_slices: list[Any] = [slice(None)] * (x.ndim - used)
    items[ellipsis : ellipsis + 1] = full_slices or [Ellipsis]
    return items


def _cut(item: Any, extent: int, axis: int, op: str) -> tuple[int, int, int]:
    """The start, step and count of an integer or a slice along an axis."""
    if type(item) is int:
        if not -extent <= item < extent:
            raise IndexRangeError(
                f"{op}: index {item} is out of range for axis {axis} with {extent} elements"
            )
        return item + extent if item < 0 else item, 1, 1
    start, stop, step = item.indices(extent)
    count = len(range(start, stop, step))
    return (start, step, count) if count else (0, 1, 0)


def _basic_plan(items: tuple[Any, ...], shape: Shape, op: str) -> _Plan | None:
    """The plan of an index of integers and slices alone, the usual case."""
    cuts = []
    middle = []
    for axis, (item, extent) in enumerate(zip(items, shape, strict=False)):
        if type(item) is slice:
            cuts.append(cut := _cut(item, extent, axis, op))
            middle.append(cut[2])
        elif type(item) is int:
            cuts.append(_cut(item, extent, axis, op))
        else:
            return None
    rest = shape[len(cuts) :]
    if len(cuts) != len(items):
        return None
    starts, steps, counts = zip(*cuts, strict=True) if cuts else ((), (), ())
    none, one = (0,) * len(rest), (1,) * len(rest)
    return _Plan(starts + none, steps + one, counts + rest, (*middle, *rest), (), (), 0)


def _plan(index: Any, x: Node, op: str) -> _Plan:
    basic = _basic_plan(index if type(index) is tuple else (index,), x.shape, op)
    if basic is not None:
        return basic
    cuts: list[tuple[int, int, int]] = []  # start, step and count of each axis
    middle: list[int] = []
    arrays: list[Node] = []
    axes: list[int] = []
    advanced: list[int] = []  # positions of integers and index arrays among the items
    leads: list[int] = []  # for each of those, the number of axes without index arrays before it

    def array(data: Node, extent: int) -> None:
        arrays.append(data)
        axes.append(len(middle))
        middle.append(extent)

    for position, item in enumerate(_read_items(index, x, op)):
        axis = len(cuts)
        if type(item) is slice:
            cuts.append(cut := _cut(item, x.shape[axis], axis, op))
            middle.append(cut[2])
            continue
        if item is None or item is Ellipsis:
            middle.extend((1,) * (item is None))
            continue
        advanced.append(position)
        leads.append(len(middle) - len(axes))
        if type(item) is int:
            cuts.append(_cut(item, x.shape[axis], axis, op))
        elif type(item) is _Mask:
            for data, extent in _mask_arrays(item, x, axis, op):
                if item.data.ndim:
                    cuts.append((0, 1, extent))
                array(data, extent)
        else:
            extent = x.shape[axis]
            cuts.append((0, 1, extent))
            array(normal_index(item, extent, axis, op, x), extent)
    shape: Shape = ()
    for a in arrays:
        shape = broadcast_shapes(shape, a.shape, f"{op}: index arrays")
    indices = tuple(broadcast(a, shape) for a in arrays)
    are_adjacent = bool(arrays) and advanced[-1] - advanced[0] == len(advanced) - 1
    lead_axis = leads[0] if are_adjacent else 0
    starts, steps, counts = zip(*cuts, strict=True) if cuts else ((), (), ())
    return _Plan(starts, steps, counts, tuple(middle), indices, tuple(axes), lead_axis)


def _mask_arrays(mask: _Mask, x: Node, axis: int, op: str) -> list[tuple[Node, int]]:
    """A boolean index as index arrays with the extents of their axes; 0-d: a new axis of 1."""
    data = mask.data
    _check_mask(data.shape, x.shape[axis : axis + data.ndim], axis, op)
    if isinstance(data, np.ndarray):
        found = [upload(i.astype(np.int64), x) for i in np.nonzero(np.atleast_1d(data))]
    else:
        position = index_checks.mask_positions(data, f"{op} by a boolean mask")
        found = list(index_checks.unravel(position, data.shape)) if data.ndim else [position]
    extents = x.shape[axis : axis + data.ndim] or (1,)
    return list(zip(found, extents, strict=True))


def _check_mask(mask: Shape, extents: Shape, axis: int, op: str) -> None:
    """A mask fits the axes it stands for; an axis of extent 0 fits any, and selects nothing."""
    fits = len(mask) == len(extents)
    if not fits or any(m not in (0, n) for m, n in zip(mask, extents, strict=True)):
        raise IndexRangeError(
            f"{op}: a boolean index of shape {mask} does not fit axes of extents {extents} "
            f"(from axis {axis})"
        )


def _cuts(index: Any) -> Any:
    """An index of integers, slices of integers, None and ... as a hashable key; else None."""
    cuts: list[Any] = []
    for item in index if index.__class__ is tuple else (index,):
        if item.__class__ is slice:
            cut = (item.start, item.stop, item.step)
            for number in cut:
                if number is not None and number.__class__ is not int:
                    return None
            cuts.append(cut)
        elif item.__class__ is int or item is None or item is Ellipsis:
            cuts.append(item)
        else:
            return None
    return tuple(cuts)


def _basic(cuts: Any, shape: Shape) -> _Plan:
    """The plan of the key of a basic index."""
    items = tuple(slice(*cut) if cut.__class__ is tuple else cut for cut in cuts)
    return _plan(items, Node(VALUE, (), None, shape, dt.float32, None), "indexing")


@functools.lru_cache(4096)
def _path(cuts: Any, shape: Shape) -> Path:
    """The view that a basic index is."""
    return _basic(cuts, shape).path()


@functools.lru_cache(4096)
def _window(cuts: Any, shape: Shape, strides: Shape) -> tuple[int, Shape, Shape, Path] | None:
    """The offset, strides, shape and path of a basic index; None if it selects all or nothing."""
    plan = _basic(cuts, shape)
    if 0 in plan.counts:
        return None
    start = sum(map(operator.mul, plan.starts, strides))
    steps = tuple(map(operator.mul, plan.steps, strides))
    if start == 0 and steps == strides and plan.middle == shape:
        return None
    found = reshape_strides(plan.counts, steps, plan.middle)
    return None if found is None else (start, found, plan.middle, plan.path())


@method("__getitem__")
def _getitem(x: Tensor, index: Any) -> Tensor:
    node = x._node
    cuts = _cuts(index)
    if cuts is not None:
        view = node.view
        if view is None or node.tracked:
            return viewed(x, "indexing", _path(cuts, node.shape))
        found = _window(cuts, node.shape, view.strides)
        if found is not None and (out := window(node, *found[:3])) is not None:
            return registered(x, out, found[3])
    if isinstance(index, Tensor) and index.dtype.is_integer and node.ndim:  # the fast path
        at = normal_index(index._node, node.shape[0], 0, "indexing", node)
        return wrap(gather(node, (at,), (0,)))
    plan = _plan(index, node, "indexing")
    if not plan.indices:
        return viewed(x, "indexing", plan.path())
    out = read_path(node, plan.path())
    return wrap(permute(gather(out, plan.indices, plan.axes), plan.order()))


@method("__setitem__")
def _setitem(x: Tensor, index: Any, value: Any) -> None:
    op = "assignment"
    if isinstance(value, Tensor) and value._alias is not None and _is_item(value, x, index):
        return  # x[i] += y has written to x already
    given = cast_value(value, x._node, op)
    node = assign(x._node, index, given, "set", op)
    # what was given stays a tensor of its own: neither sees what is written to the other's memory
    x.rebind(copy(node) if node is given else node, op)


def _is_item(value: Tensor, x: Tensor, index: Any) -> bool:
    """True if a tensor is the view x[index]."""
    own, base = value._alias, x._alias
    if own is None or base is None or own[0] is not base[0] or _cuts(index) is None:
        return False
    return own[1] == base[1] + _plan(index, x._node, "assignment").path()


@method("assign")
def _assign(x: Tensor, value: Any) -> Tensor:
    """Let x have these values, broadcast to its shape, wherever they come from.

    x keeps its device, its dtype and, as a leaf, its .grad.

    >>> x = nm.zeros(3)
    >>> x.assign(nm.arange(3.0)).tolist()
    [0.0, 1.0, 2.0]
    """
    if isinstance(value, Tensor):
        old, new = x._node, value._node
        if new.device is not old.device and x.device is not value.device:
            value = wrap(moved(new, x.device))
        elif new.shape == old.shape and new.dtype is old.dtype and new.device is old.device:
            return x.rebind(copy(new), "assignment")  # the fast path
    _setitem(x, ..., value)
    return x


@method()
def index_put(
    x: ArrayLike, indices: tuple[Any, ...], values: Any, accumulate: bool = False
) -> Tensor:
    """A copy of x with values written at x[indices].

    Args:
        indices: what would stand in x[...]: index arrays, masks, integers, slices.
        values: broadcast to the shape of x[indices].
        accumulate: add to what is there (repeated indices add up) instead of replacing it.

    >>> nm.index_put(nm.zeros(3), ([0, 0, 2],), 1.0, accumulate=True).tolist()
    [2.0, 0.0, 1.0]
    """
    op = "index_put"
    node = node_of(x, op)
    given = cast_value(values, node, op)
    return wrap(assign(node, tuple(indices), given, "add" if accumulate else "set", op))


_KINDS = ("bool", "uint", "int", "float", "complex")


def cast_value(value: Any, into: Node, op: str) -> Node:
    """A value in the dtype and on the device of the array it goes into; wider kinds are refused."""
    dtype = into.dtype
    kind = dt.scalar_kind(value)
    if kind is not None:
        if _KINDS.index(kind) <= _KINDS.index(dtype.kind) or (kind, dtype.kind) == ("int", "uint"):
            return scalar_node(value, dtype)
        found = f"the Python {kind} {value!r}"
    else:
        if isinstance(value, SEQUENCES):
            leaf_types(value, op)
        node = node_of(value if isinstance(value, Tensor) else np.asarray(value), op, into.device)
        if _KINDS.index(node.dtype.kind) <= _KINDS.index(dtype.kind):
            return ew.cast(node, dtype)
        found = f"a value of {node.dtype.name}"
    raise DTypeError(
        f"{op}: {found} does not go into an array of {dtype.name} without loss of its kind; "
        f"cast it first with astype(nm.{dtype.name})"
    )


def fit_value(value: Node, shape: Shape, op: str) -> Node:
    """A value broadcast to the shape it is written to; leading axes of extent 1 fall away."""
    extra = value.ndim - len(shape)
    if extra > 0 and all(n == 1 for n in value.shape[:extra]):
        value = reshape(value, value.shape[extra:])
    if value.shape != shape:
        try:
            fits = broadcast_shapes(value.shape, shape, op) == shape
        except ShapeError:
            fits = False
        if not fits:
            raise ShapeError(
                f"{op}: a value of shape {value.shape} does not broadcast to the shape {shape} "
                "that the index selects"
            )
    return broadcast(value, shape)


def assign(x: Node, index: Any, value: Node, mode: str, op: str) -> Node:
    """x with a value set (or added, or otherwise combined: a mode of `scatter`) at an index; one
    other than set or added needs an index array."""
    mask = _only_mask(index, x, op) if mode in ("set", "add") else None
    lead = 0 if mask is None else max(value.ndim - (x.ndim - mask.ndim), 0)
    if mask is not None and all(n == 1 for n in value.shape[:lead]):
        # one value for the whole mask: nothing has to be counted, so nothing is evaluated
        value = fit_value(value, (1,) * mask.ndim + x.shape[mask.ndim :], op)
        mask = reshape(mask, mask.shape + (1,) * (x.ndim - mask.ndim))
        return ew.where(mask, ew.add(x, value) if mode == "add" else value, x)
    plan = _plan(index, x, op)
    value = fit_value(value, plan.shape, op)
    if plan.indices:
        order = plan.order()
        value = permute(value, tuple(order.index(i) for i in range(len(order))))
        part = reshape(slice_(x, plan.starts, plan.steps, plan.counts), plan.middle)
        value = scatter(part, plan.indices, value, plan.axes, mode)
        mode = "set"
    return write_slice(x, reshape(value, plan.counts), plan.starts, plan.steps, mode)


def _only_mask(index: Any, x: Node, op: str) -> Node | None:
    """The mask of an index that is nothing but one."""
    if type(index) is tuple and len(index) == 1:
        index = index[0]
    if type(index) is tuple:
        return None
    item = _read_item(index, op)
    if type(item) is not _Mask:
        return None
    data = item.data
    _check_mask(data.shape, x.shape[: data.ndim], 0, op)
    if data.shape != x.shape[: data.ndim]:
        return None
    return upload(data, x) if isinstance(data, np.ndarray) else data
