"""Shapes and axes: every function here changes how elements are indexed and moves none of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from numus.aliases import layout
from numus.errors import ShapeError
from numus.functions._base import computed, method, node_of, owned, pair, viewed, wrap
from numus.functions.spelling import spelled
from numus.primitives import elementwise as ew
from numus.primitives import views
from numus.primitives.broadcast import broadcast as broadcast_node
from numus.primitives.structure import copy as copy_node
from numus.primitives.view_updates import Path
from numus.shapes import (
    Shape,
    as_int,
    as_shape,
    is_row_major,
    is_sequence,
    normal_axes,
    normal_axis,
    reshape_strides,
    size_of,
)
from numus.shapes import broadcast as broadcast_shapes
from numus.tensor import ArrayLike, Tensor, attribute, view_of

__all__ = [
    "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_arrays", "broadcast_to", "clone", "copy",
    "expand", "expand_dims", "flatten", "flip", "matrix_transpose", "moveaxis", "movedim",
    "permute", "permute_dims", "ravel", "reshape", "rot90", "squeeze", "swapaxes", "transpose",
    "unflatten", "unsqueeze",
]  # fmt: skip


def _numbers(given: tuple[Any, ...]) -> Any:
    """Arguments given one by one or as one sequence: x.reshape(2, 3), x.reshape((2, 3))."""
    return given[0] if len(given) == 1 and is_sequence(given[0]) else given


def _filled(shape: Any, size: int, what: str, op: str) -> Shape:
    """A shape of `size` elements in which one extent may be -1: whatever is left."""
    given = tuple(shape) if is_sequence(shape) else (shape,)
    gaps = [i for i, n in enumerate(given) if n == -1]
    known = as_shape([n for n in given if n != -1], op)
    rest = size_of(known)
    if len(gaps) > 1:
        raise ShapeError(f"{op}: only one extent of {given} may be -1")
    if gaps and rest and size % rest == 0:
        known = (*known[: gaps[0]], size // rest, *known[gaps[0] :])
    elif gaps or rest != size:
        raise ShapeError(f"{op}: {what} with {size} elements does not take the shape {given}")
    return known


@functools.lru_cache(4096)
def _known(shape: Shape, old: Shape) -> Shape | None:
    """`_filled` for a tuple of integers, in place of a shape; None where that is an error."""
    try:
        return _filled(shape, size_of(old), "", "")
    except ShapeError:
        return None


def reshape(x: ArrayLike, /, shape: int | Sequence[int], *, copy: bool | None = None) -> Tensor:
    """The elements, in row-major order, under another shape.

    Args:
        shape: one extent may be -1, which stands for whatever is left.
        copy: True gives memory of its own; False refuses where a view is not possible.

    >>> nm.reshape(nm.arange(6), (2, -1)).shape
    (2, 3)
    """
    node = node_of(x, "reshape")
    new = None
    if shape.__class__ is tuple and set(map(type, shape)) == {int}:
        new = _known(shape, node.shape)
    if new is not None and copy is None:
        return _reshaped(x, "reshape", new)
    if new is None:
        new = _filled(shape, size_of(node.shape), f"an array of shape {node.shape}", "reshape")
    if copy:
        return wrap(owned(copy_node(views.reshape(node, new)), node))
    seen = node.view
    if copy is False and seen and reshape_strides(node.shape, seen.strides, new) is None:
        raise ShapeError(
            f"reshape: an array of shape {node.shape} with strides {seen.strides} cannot be "
            f"viewed as {new}; leave out copy=False to copy it"
        )
    return _reshaped(x, "reshape", new)


def _reshaped(x: ArrayLike, op: str, shape: Shape) -> Tensor:
    """A view under another shape, where NumPy's strides allow one; else a tensor of its own."""
    path = ((views.reshape, shape),)
    if not isinstance(x, Tensor):
        return viewed(x, op, path)
    strides = None if x._alias is None else layout(x)
    if strides is not None and reshape_strides(x.shape, strides, shape) is None:
        return computed(views.reshape(x._node, shape))
    return view_of(x, path)


@method("reshape", "view")
def _reshape(x: Tensor, *shape: Any, copy: bool | None = None) -> Tensor:
    """`nm.reshape` with a shape, or its extents one by one: x.reshape(2, -1)."""
    given = shape[0] if len(shape) == 1 and shape[0].__class__ is tuple else shape
    if copy is None and (x._alias is None or layout(x) is None):  # a shorter way for most
        for n in given:
            if n.__class__ is not int:
                break
        else:
            new = _known(given, x._node.shape)
            if new is not None:
                return view_of(x, ((views.reshape, new),))
    return reshape(x, _numbers(shape), copy=copy)


@method()
def flatten(x: ArrayLike, /, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Axes start_dim to end_dim as one (all of them, unless told otherwise).

    >>> nm.flatten(nm.ones((2, 3, 4)), 1).shape
    (2, 12)
    """
    node = node_of(x, "flatten")
    if node.ndim == 0:
        return _reshaped(x, "flatten", (1,))
    first = normal_axis(start_dim, node.ndim, "flatten")
    last = normal_axis(end_dim, node.ndim, "flatten")
    if first > last:
        raise ShapeError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}")
    shape = node.shape
    joined = size_of(shape[first : last + 1])
    return _reshaped(x, "flatten", (*shape[:first], joined, *shape[last + 1 :]))


@method()
def ravel(x: ArrayLike, /) -> Tensor:
    """All elements along one axis."""
    return flatten(x)


@method()
def unflatten(x: ArrayLike, /, dim: int, sizes: Sequence[int]) -> Tensor:
    """One axis as several: the opposite of `flatten`. One of the sizes may be -1.

    >>> nm.unflatten(nm.ones((2, 12)), 1, (3, -1)).shape
    (2, 3, 4)
    """
    node = node_of(x, "unflatten")
    axis = normal_axis(dim, node.ndim, "unflatten")
    parts = _filled(sizes, node.shape[axis], f"axis {axis}", "unflatten")
    return _reshaped(x, "unflatten", (*node.shape[:axis], *parts, *node.shape[axis + 1 :]))


def _insert_axes(x: ArrayLike, axes: Shape, op: str) -> Tensor:
    old = node_of(x, op).shape
    extents = iter(old)
    shape = tuple(1 if i in axes else next(extents) for i in range(len(old) + len(axes)))
    return viewed(x, op, ((views.reshape, shape),))


@method()
@spelled
def expand_dims(x: ArrayLike, /, axis: int | tuple[int, ...] = 0) -> Tensor:
    """New axes of extent 1, at these positions of the result.

    >>> nm.expand_dims(nm.zeros((3, 4)), axis=1).shape
    (3, 1, 4)
    """
    node = node_of(x, "expand_dims")
    count = len(axis) if isinstance(axis, (tuple, list)) else 1
    axes = normal_axes(axis, node.ndim + count, "expand_dims")
    return _insert_axes(x, axes, "expand_dims")


@method()
def unsqueeze(x: ArrayLike, /, dim: int) -> Tensor:
    """A new axis of extent 1 at position `dim` of the result: `expand_dims`."""
    return expand_dims(x, dim)


@method()
@spelled
def squeeze(x: ArrayLike, /, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """Drop these axes of extent 1 (all of that extent, where none is named).

    >>> nm.squeeze(nm.ones((1, 3, 1)), axis=0).shape
    (3, 1)
    """
    node = node_of(x, "squeeze")
    if axis is None:
        axes = tuple(i for i, n in enumerate(node.shape) if n == 1)
    else:
        axes = normal_axes(axis, node.ndim, "squeeze")
    for i in axes:
        if node.shape[i] != 1:
            raise ShapeError(
                f"squeeze: axis {i} of an array of shape {node.shape} has extent {node.shape[i]}, "
                "only axes of extent 1 can be dropped"
            )
    shape = tuple(n for i, n in enumerate(node.shape) if i not in axes)
    return viewed(x, "squeeze", ((views.reshape, shape),))


def _at_least(rank: int, arrays: tuple[Any, ...], op: str) -> Any:
    # where the axes of extent 1 go, by rank: NumPy puts a vector in the middle of three axes
    new = {0: (0, 1, 2)[:rank], 1: (0, 2)[: rank - 1], 2: (2,)[: rank - 2]}
    out = []
    for x in arrays:
        ndim = node_of(x, op).ndim
        out.append(_insert_axes(x, new[ndim], op) if ndim < rank else viewed(x, op, ()))
    return out[0] if len(out) == 1 else tuple(out)


def atleast_1d(*arrays: Tensor) -> Any:
    """Scalars as arrays of one axis, all else as it is; a tuple where several are given."""
    return _at_least(1, arrays, "atleast_1d")


def atleast_2d(*arrays: Tensor) -> Any:
    """Arrays with at least two axes: a vector becomes a row; a tuple where several are given."""
    return _at_least(2, arrays, "atleast_2d")


def atleast_3d(*arrays: Tensor) -> Any:
    """Arrays with at least three axes: (n,) becomes (1, n, 1), (m, n) becomes (m, n, 1)."""
    return _at_least(3, arrays, "atleast_3d")


@method()
def broadcast_to(x: ArrayLike, /, shape: int | Sequence[int]) -> Tensor:
    """Repeat axes of extent 1 (and new leading ones) to a shape, without copying anything.

    >>> nm.broadcast_to(nm.arange(3), (2, 3)).tolist()
    [[0, 1, 2], [0, 1, 2]]
    """
    node = node_of(x, "broadcast_to")
    target = as_shape(shape, "broadcast_to")
    try:
        fits = broadcast_shapes(node.shape, target) == target
    except ShapeError:
        fits = False
    if not fits:
        raise ShapeError(
            f"broadcast_to: an array of shape {node.shape} does not broadcast to {target}; aligned "
            "from the right, its extents must be equal to those or 1"
        )
    return viewed(x, "broadcast_to", ((broadcast_node, target),))


@method()
def expand(x: ArrayLike, /, *shape: Any) -> Tensor:
    """`broadcast_to` with extents one by one; -1 keeps an axis as it is."""
    given = tuple(_numbers(shape))
    own = node_of(x, "expand").shape
    lead = len(given) - len(own)
    extents = (own[i - lead] if n == -1 and i >= lead else n for i, n in enumerate(given))
    return broadcast_to(x, tuple(extents))


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """All arrays broadcast to one shape.

    >>> a, b = nm.broadcast_arrays(nm.ones((2, 1)), nm.ones(3))
    >>> a.shape, b.shape
    ((2, 3), (2, 3))
    """
    nodes = [node_of(x, "broadcast_arrays") for x in arrays]
    shape: Shape = ()
    for node in nodes:
        shape = broadcast_shapes(shape, node.shape, "broadcast_arrays")
    return [viewed(x, "broadcast_arrays", ((broadcast_node, shape),)) for x in arrays]


@method()
def broadcast_add(x: Tensor, other: Any) -> Tensor:
    """x + other: every operator broadcasts; this is its long name."""
    return wrap(ew.add(*pair("broadcast_add", x, other)))


@method()
def broadcast_sub(x: Tensor, other: Any) -> Tensor:
    """x - other, under its long name."""
    return wrap(ew.sub(*pair("broadcast_sub", x, other)))


@method()
def broadcast_mul(x: Tensor, other: Any) -> Tensor:
    """x * other, under its long name."""
    return wrap(ew.mul(*pair("broadcast_mul", x, other)))


def _permuted(x: ArrayLike, axes: Any, op: str) -> Tensor:
    node = node_of(x, op)
    order = normal_axes(tuple(axes), node.ndim, op)
    if len(order) != node.ndim:
        raise ShapeError(
            f"{op}: {tuple(axes)} does not name all {node.ndim} axes of an array of shape "
            f"{node.shape}; to exchange two of them use swapaxes"
        )
    return viewed(x, op, ((views.permute, order),))


def permute_dims(x: ArrayLike, /, axes: Sequence[int]) -> Tensor:
    """The axes in another order: axis i of the result is axis axes[i] of x.

    >>> nm.permute_dims(nm.zeros((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    return _permuted(x, axes, "permute_dims")


permute = permute_dims


@method("permute", "permute_dims")
def _permute(x: Tensor, *axes: Any) -> Tensor:
    """`nm.permute_dims` with axes in a tuple, or one by one: x.permute(2, 0, 1)."""
    return permute_dims(x, _numbers(axes))


@functools.cache
def _reversal(ndim: int) -> Path:
    return ((views.permute, tuple(range(ndim - 1, -1, -1))),)


def transpose(x: ArrayLike, /, axes: Sequence[int] | None = None) -> Tensor:
    """The axes in reverse order, or in the order given (as `permute_dims`).

    >>> nm.transpose(nm.ones((2, 3, 4)), (1, 0, 2)).shape
    (3, 2, 4)
    """
    if axes is None:
        return viewed(x, "transpose", _reversal(len(node_of(x, "transpose").shape)))
    return _permuted(x, axes, "transpose")


@method("transpose")
def _transpose(x: Tensor, *axes: Any) -> Tensor:
    """The axes in reverse order, or in that given: all of them (to exchange two: `swapaxes`)."""
    return transpose(x, _numbers(axes) if axes and axes != (None,) else None)


def _reversed(x: Tensor) -> Tensor:
    return view_of(x, _reversal(len(x._node.shape)))


attribute("T", _reversed, "The array with its axes in reverse order.")


@method("swapaxes", "transpose_tracked", "swapdims")
def swapaxes(x: ArrayLike, /, axis1: int, axis2: int) -> Tensor:
    """The array with two axes exchanged.

    >>> nm.swapaxes(nm.ones((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    node = node_of(x, "swapaxes")
    a = normal_axis(axis1, node.ndim, "swapaxes")
    b = normal_axis(axis2, node.ndim, "swapaxes")
    order = list(range(node.ndim))
    order[a], order[b] = b, a
    return viewed(x, "swapaxes", ((views.permute, tuple(order)),))


def matrix_transpose(x: ArrayLike, /) -> Tensor:
    """The last two axes exchanged: every matrix of a stack transposed."""
    shape = node_of(x, "matrix_transpose").shape
    if len(shape) < 2:
        raise ShapeError(
            f"matrix_transpose: needs an array of at least two axes, not of shape {shape}"
        )
    return swapaxes(x, -1, -2)


attribute("mT", matrix_transpose, "Every matrix transposed.")
method("batched_transpose")(matrix_transpose)


@method("moveaxis", "movedim")
def moveaxis(
    x: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int], /
) -> Tensor:
    """Move axes to new positions; the others keep their order.

    >>> nm.moveaxis(nm.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    node = node_of(x, "moveaxis")
    sources = normal_axes(source, node.ndim, "moveaxis")
    destinations = normal_axes(destination, node.ndim, "moveaxis")
    if len(sources) != len(destinations):
        raise ShapeError(
            f"moveaxis: as many destinations as sources are needed, not {len(destinations)} for "
            f"{len(sources)}"
        )
    placed = dict(zip(destinations, sources, strict=True))
    others = iter([i for i in range(node.ndim) if i not in sources])
    order = tuple(placed[i] if i in placed else next(others) for i in range(node.ndim))
    return viewed(x, "moveaxis", ((views.permute, order),))


movedim = moveaxis


@method()
@spelled
def flip(x: ArrayLike, /, axis: int | Sequence[int] | None = None) -> Tensor:
    """The elements in reverse order along these axes (all, where none is named)."""
    node = node_of(x, "flip")
    axes = normal_axes(axis, node.ndim, "flip")
    return viewed(x, "flip", ((views.slice_, *views.flipped(node.shape, axes)),))


@method()
def rot90(x: ArrayLike, /, k: int = 1, axes: Sequence[int] = (0, 1)) -> Tensor:
    """Rotate by 90 degrees k times in the plane of two axes, from the first towards the second.

    >>> nm.rot90(nm.asarray([[1, 2], [3, 4]])).tolist()
    [[2, 4], [1, 3]]
    """
    node = node_of(x, "rot90")
    plane = normal_axes(tuple(axes), node.ndim, "rot90")
    if len(plane) != 2:
        raise ShapeError(f"rot90: a plane has two axes, not {tuple(axes)}")
    quarters = as_int(k, "k", "rot90") % 4
    if quarters == 2:
        return flip(x, plane)
    if quarters == 1:
        return swapaxes(flip(x, plane[1]), *plane)
    return flip(swapaxes(x, *plane), plane[1]) if quarters else viewed(x, "rot90", ())


@method("clone", "copy")
def copy(x: ArrayLike, /) -> Tensor:
    """The same values in memory of their own, row-major; gradients flow through."""
    node = node_of(x, "copy")
    return wrap(owned(copy_node(node), node))


clone = copy


@method("contiguous", "contiguous_tracked")
def _contiguous(x: Tensor) -> Tensor:
    """The same values in row-major order without gaps: x itself where it already is."""
    node = x._node
    if node.view is None:
        return wrap(copy_node(node)) if node.prim.kind == "view" else x
    return x if is_row_major(node.shape, node.view.strides) else wrap(copy_node(node))
