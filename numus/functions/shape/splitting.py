"""Parts of arrays: ranges, sections, diagonals, windows. All of them are views."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from numus.errors import ShapeError
from numus.functions._base import computed, method, node_of, viewed
from numus.functions.spelling import spelled
from numus.primitives import views
from numus.primitives.broadcast import sliding_windows
from numus.primitives.view_updates import main_diagonal
from numus.shapes import as_int, as_shape, normal_axes, normal_axis
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "array_split", "chunk", "diag", "diagonal", "narrow", "sliding_window_view", "split", "unstack",
]  # fmt: skip


@method()
def narrow(x: ArrayLike, /, dim: int, start: int, length: int) -> Tensor:
    """`length` elements from `start` on along one axis."""
    node = node_of(x, "narrow")
    axis = normal_axis(dim, node.ndim, "narrow")
    extent = node.shape[axis]
    start, length = as_int(start, "start", "narrow"), as_int(length, "length", "narrow")
    first = start + extent if start < 0 else start
    if length < 0 or not 0 <= first <= extent - length:
        raise ShapeError(
            f"narrow: {length} elements from {start} on do not lie within axis {axis} with "
            f"{extent} elements"
        )
    cut = views.ranged(node.shape, axis, first, first + length)
    return viewed(x, "narrow", ((views.slice_, *cut),))


@method("select")
def _select(x: Tensor, dim: int, index: int) -> Tensor:
    """The part of x at one index along an axis, without that axis."""
    axis = normal_axis(dim, x.ndim, "select")
    return x[(slice(None),) * axis + (index,)]


@spelled
def unstack(x: ArrayLike, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The parts of x along an axis, one for each index, without that axis.

    >>> [p.tolist() for p in nm.unstack(nm.asarray([[1, 2], [3, 4]]), axis=1)]
    [[1, 3], [2, 4]]
    """
    node = node_of(x, "unstack")
    at = normal_axis(axis, node.ndim, "unstack")
    shape = node.shape[:at] + node.shape[at + 1 :]
    return tuple(
        viewed(
            x,
            "unstack",
            ((views.slice_, *views.ranged(node.shape, at, i, i + 1)), (views.reshape, shape)),
        )
        for i in range(node.shape[at])
    )


@method("unstack", "unbind")
def _unstack(x: Tensor, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis, which they no longer have."""
    return unstack(x, axis=axis)


def _cut(x: ArrayLike, op: str, axis: int, cuts: Sequence[int]) -> tuple[Tensor, ...]:
    """The ranges between neighbouring cuts."""
    shape = node_of(x, op).shape
    return tuple(
        viewed(x, op, ((views.slice_, *views.ranged(shape, axis, start, max(start, stop))),))
        for start, stop in itertools.pairwise(cuts)
    )


@method()
@spelled
def split(
    x: ArrayLike, /, indices_or_sections: int | Sequence[int], axis: int = 0
) -> tuple[Tensor, ...]:
    """Sections along an axis.

    Args:
        indices_or_sections: how many sections of equal extent, or the indices before which to cut.

    >>> [p.tolist() for p in nm.split(nm.arange(5), [1, 3])]
    [[0], [1, 2], [3, 4]]
    """
    node = node_of(x, "split")
    at = normal_axis(axis, node.ndim, "split")
    extent = node.shape[at]
    if isinstance(indices_or_sections, Sequence):
        given = (as_int(i, "indices_or_sections", "split") for i in indices_or_sections)
        inner = [slice(i).indices(extent)[1] for i in given]
        return _cut(x, "split", at, (0, *inner, extent))
    count = as_int(indices_or_sections, "indices_or_sections", "split")
    if count < 1 or extent % count:
        raise ShapeError(
            f"split: axis {at} with {extent} elements must be divisible by {count}; array_split "
            "makes nearly equal sections, chunk sections of one extent but the last"
        )
    return array_split(x, count, axis)


@spelled
def array_split(
    x: ArrayLike, /, indices_or_sections: int | Sequence[int], axis: int = 0
) -> tuple[Tensor, ...]:
    """As `split`, but the sections need only be nearly equal: the first ones may be longer by 1.

    >>> [part.tolist() for part in nm.array_split(nm.arange(5), 3)]
    [[0, 1], [2, 3], [4]]
    """
    if isinstance(indices_or_sections, Sequence):
        return split(x, indices_or_sections, axis)
    node = node_of(x, "array_split")
    at = normal_axis(axis, node.ndim, "array_split")
    count = as_int(indices_or_sections, "indices_or_sections", "array_split")
    if count < 1:
        raise ShapeError(f"array_split: the number of sections must be at least 1, not {count}")
    short, longer = divmod(node.shape[at], count)
    return _cut(x, "array_split", at, [i * short + min(i, longer) for i in range(count + 1)])


@method()
def chunk(x: ArrayLike, /, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` sections along an axis, of one extent but the last, which may be shorter.

    >>> [part.tolist() for part in nm.chunk(nm.arange(5), 2)]
    [[0, 1, 2], [3, 4]]
    """
    node = node_of(x, "chunk")
    axis = normal_axis(dim, node.ndim, "chunk")
    chunks = as_int(chunks, "chunks", "chunk")
    if chunks < 1:
        raise ShapeError(f"chunk: chunks={chunks} must be at least 1")
    extent = node.shape[axis]
    step = -(-extent // chunks)
    cuts = [*range(0, extent, step), extent] if extent else [0] * (chunks + 1)
    return _cut(x, "chunk", axis, cuts)


@method()
def diagonal(x: ArrayLike, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The diagonals of the planes of two axes, as a new last axis.

    Args:
        offset: how far above (positive) or below (negative) the main diagonal.

    >>> nm.diagonal(nm.asarray([[1, 2], [3, 4]])).tolist()
    [1, 4]
    """
    node = node_of(x, "diagonal")
    if node.ndim < 2:
        raise ShapeError(f"diagonal: needs an array of two axes or more, not shape {node.shape}")
    axes = normal_axes((axis1, axis2), node.ndim, "diagonal")
    offset = as_int(offset, "offset", "diagonal")
    rest = tuple(i for i in range(node.ndim) if i not in axes)
    order = rest + axes
    *batch, rows, columns = (node.shape[i] for i in order)
    top, left = max(-offset, 0), max(offset, 0)
    length = max(min(rows - top, columns - left), 0)
    if length == 0:
        top = left = 0
    ones = (1,) * node.ndim
    starts, counts = (*(0 for _ in batch), top, left), (*batch, length, length)
    return viewed(
        x,
        "diagonal",
        ((views.permute, order), (views.slice_, starts, ones, counts), (main_diagonal,)),
    )


@method()
def diag(x: ArrayLike, /, k: int = 0) -> Tensor:
    """The matrix with a vector on its k-th diagonal, or the k-th diagonal of a matrix.

    >>> nm.diag(nm.asarray([1, 2]), 1).tolist()
    [[0, 1, 0], [0, 0, 2], [0, 0, 0]]
    """
    node = node_of(x, "diag")
    if node.ndim == 2:
        return computed(diagonal(x, k)._node)
    if node.ndim != 1:
        raise ShapeError(f"diag: takes a vector or a matrix, not an array of shape {node.shape}")
    n, k = node.shape[0], as_int(k, "k", "diag")
    square = views.shear(views.reshape(node, (1, n)), 0, 1, n, 1, -1, 0, 1)
    low, high = (max(-k, 0), max(k, 0)), (max(k, 0), max(-k, 0))
    return computed(views.pad(square, low, high))


@method("unfold")
def _unfold(x: Tensor, dimension: int, size: int, step: int = 1) -> Tensor:
    """Windows of `size` elements, `step` apart, along one axis; they become a new last axis."""
    axis = normal_axis(dimension, max(x.ndim, 1), "unfold")
    if not x.ndim:
        return _unfold(x.reshape(1), 0, size, step).reshape(-1)
    node = x._node
    size, step = as_int(size, "size", "unfold"), as_int(step, "step", "unfold")
    if not 1 <= size <= node.shape[axis] or step < 1:
        raise ShapeError(
            f"unfold: windows of {size} elements, {step} apart, do not fit axis {axis} of an array "
            f"of shape {x.shape}"
        )
    return viewed(x, "unfold", ((sliding_windows, axis, size, step),))


@spelled
def sliding_window_view(
    x: ArrayLike, /, window_shape: int | Sequence[int], axis: int | Sequence[int] | None = None
) -> Tensor:
    """All windows of a shape over an array; their axes come last.

    >>> nm.sliding_window_view(nm.arange(5), 3).tolist()
    [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
    """
    node = node_of(x, "sliding_window_view")
    sizes = as_shape(window_shape, "sliding_window_view")
    axes = tuple(range(node.ndim)) if axis is None else axis
    axes = axes if isinstance(axes, (tuple, list)) else (axes,)
    if len(axes) != len(sizes):
        raise ShapeError(
            f"sliding_window_view: a window of shape {sizes} over {len(axes)} axes; name as many "
            "axes as the window has"
        )
    out = viewed(x, "sliding_window_view", ())
    for a, size in zip(axes, sizes, strict=True):
        out = _unfold(out, normal_axis(a, node.ndim, "sliding_window_view"), size)
    return out
