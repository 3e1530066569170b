"""Arrays put together and taken apart by parts: append, insert, delete, block, trim, split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from numus.errors import ShapeError
from numus.functions import api as nm
from numus.functions._base import method, operand
from numus.functions.spelling import spelled
from numus.shapes import as_int, as_shape, normal_axis, size_of
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "append", "block", "delete", "diag_embed", "diagflat", "dsplit", "fliplr", "flipud", "hsplit",
    "insert", "resize", "rollaxis", "row_stack", "split_with_sizes", "tensor_split", "trim_zeros",
    "unbind", "vsplit",
]  # fmt: skip

row_stack = nm.vstack


@spelled
def append(x: ArrayLike, values: Any, /, axis: int | None = None) -> Tensor:
    """x with values after it along an axis (None: both flattened).

    >>> nm.append(nm.asarray([1, 2]), nm.asarray([3])).tolist()
    [1, 2, 3]
    """
    given = operand("append", x)
    parts = [given, nm.asarray(values, device=given.device)]
    if axis is None:
        return nm.concat([nm.reshape(part, -1) for part in parts])
    return nm.concat(parts, axis)


def _positions(op: str, obj: Any, extent: int, insert: bool) -> np.ndarray[Any, Any]:
    """Indices along an axis on the host: the shape of the result depends on them."""
    if isinstance(obj, slice):
        return np.arange(*obj.indices(extent))
    found = np.asarray(obj.numpy() if isinstance(obj, Tensor) else obj)
    if found.dtype == bool:
        if found.shape != (extent,) and not insert:
            raise ShapeError(f"{op}: a mask of shape {found.shape} for an axis of {extent}")
        return np.flatnonzero(found)
    if found.size and found.dtype.kind not in "iu":
        raise TypeError(f"{op}: an index must be made of integers, not {found.dtype}")
    found = found.astype(np.int64).reshape(-1)
    top = extent + insert
    outside = found[(found < -extent) | (found >= top)]
    if outside.size:
        raise IndexError(
            f"{op}: index {outside[0]} is out of range for an axis with {extent} elements"
        )
    return np.where(found < 0, found + extent, found)


@spelled
def delete(x: ArrayLike, obj: Any, /, axis: int | None = None) -> Tensor:
    """x without the parts at some indices along an axis (None: of x flattened).

    >>> nm.delete(nm.asarray([1, 2, 3, 4]), [0, -1]).tolist()
    [2, 3]
    """
    given = operand("delete", x)
    given = nm.reshape(given, -1) if axis is None else given
    at = normal_axis(0 if axis is None else axis, given.ndim, "delete")
    extent = given.shape[at]
    kept = np.delete(np.arange(extent), _positions("delete", obj, extent, insert=False))
    return nm.take(given, nm.asarray(kept, device=given.device), axis=at)


@spelled
def insert(x: ArrayLike, obj: Any, values: Any, /, axis: int | None = None) -> Tensor:
    """x with values put in before some indices along an axis (None: of x flattened).

    >>> nm.insert(nm.asarray([1, 2, 3]), 1, 9).tolist()
    [1, 9, 2, 3]
    """
    op = "insert"
    given = operand(op, x)
    given = nm.reshape(given, -1) if axis is None else given
    at = normal_axis(0 if axis is None else axis, given.ndim, op)
    extent = given.shape[at]
    before = _positions(op, obj, extent, insert=True)
    new = nm.astype(nm.asarray(values, device=given.device), given.dtype)
    if np.ndim(obj) == 0 and not isinstance(obj, slice):
        # as NumPy: at one index the values' first axis is the one inserted along
        new = nm.moveaxis(_with_axes(new, given.ndim), 0, at) if new.ndim else new
        count = new.shape[at] if new.ndim == given.ndim else 1
        before = np.repeat(before, count)
    shape = tuple(len(before) if i == at else n for i, n in enumerate(given.shape))
    new = nm.broadcast_to(new, shape)
    order = np.argsort(np.concatenate([np.arange(extent), before - 0.5]), kind="stable")
    both = nm.concat([given, new], at)
    return nm.take(both, nm.asarray(order, device=given.device), axis=at)


def _with_axes(x: Tensor, ndim: int) -> Tensor:
    return nm.reshape(x, (1,) * (ndim - x.ndim) + x.shape)


@method("resize")
def resize(x: ArrayLike, /, *new_shape: Any) -> Tensor:
    """x in another shape, whatever its size: its elements in order, again and again.

    >>> nm.resize(nm.asarray([1, 2, 3]), (2, 4)).tolist()
    [[1, 2, 3, 1], [2, 3, 1, 2]]
    """
    given = nm.reshape(operand("resize", x), -1)
    wanted = new_shape[0] if len(new_shape) == 1 else new_shape
    shape = as_shape(wanted, "resize")
    if given.size == 0 or size_of(shape) == 0:
        return nm.zeros(shape, dtype=given.dtype, device=given.device)
    times = -(-size_of(shape) // given.size)
    return nm.reshape(nm.tile(given, times)[: size_of(shape)], shape)


@spelled
def trim_zeros(filt: ArrayLike, trim: str = "fb", axis: Any = None) -> Tensor:
    """x without the zeros at its ends, on all axes or some. Evaluates x.

    Args:
        trim: "f" trims the front, "b" the back.

    >>> nm.trim_zeros(nm.asarray([0, 0, 1, 0, 2, 0])).tolist()
    [1, 0, 2]
    """
    given = operand("trim_zeros", filt)
    trim = trim.lower()
    if trim not in ("fb", "bf", "f", "b"):
        raise ValueError(f'trim_zeros: trim must be "fb", "f" or "b", not {trim!r}')
    axes = range(given.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    held = given.numpy() != 0
    cut = [slice(None)] * given.ndim
    for a in (normal_axis(a, given.ndim, "trim_zeros") for a in axes):
        others = tuple(i for i in range(given.ndim) if i != a)
        (found,) = np.nonzero(held.any(others))
        if not found.size:
            cut[a] = slice(0, 0)
            continue
        start = int(found[0]) if "f" in trim else 0
        cut[a] = slice(start, int(found[-1]) + 1 if "b" in trim else given.shape[a])
    return given[tuple(cut)]


def _depth(blocks: Any) -> int:
    return 1 + max(map(_depth, blocks), default=0) if isinstance(blocks, list) else 0


def block(arrays: Any, /) -> Tensor:
    """An array from nested lists of blocks: the innermost lists run along the last axis.

    >>> nm.block([[nm.ones((1, 1)), nm.zeros((1, 2))]]).tolist()
    [[1.0, 0.0, 0.0]]
    """
    depth = _depth(arrays)

    def leaves(part: Any) -> list[Tensor]:
        if isinstance(part, list):
            if not part:
                raise ShapeError("block: a list of blocks must not be empty")
            return [x for inner in part for x in leaves(inner)]
        return [operand("block", part)]

    ndim = max(depth, *(x.ndim for x in leaves(arrays)), 1)

    def joined(part: Any, level: int) -> Tensor:
        if not isinstance(part, list):
            if level != depth:
                raise ShapeError("block: lists of blocks must be nested equally deep")
            return _with_axes(operand("block", part), ndim)
        return nm.concat([joined(inner, level + 1) for inner in part], level - depth)

    found = joined(arrays, 0)
    return found if depth else nm.copy(operand("block", arrays))


def flipud(x: ArrayLike, /) -> Tensor:
    """The rows in reverse order: x[::-1]."""
    given = operand("flipud", x)
    if given.ndim < 1:
        raise ShapeError("flipud: needs an array of one axis or more, not a number")
    return nm.flip(given, 0)


def fliplr(x: ArrayLike, /) -> Tensor:
    """The columns in reverse order: x[:, ::-1]."""
    given = operand("fliplr", x)
    if given.ndim < 2:
        raise ShapeError(f"fliplr: needs an array of two axes or more, not shape {given.shape}")
    return nm.flip(given, 1)


method("flipud")(flipud)
method("fliplr")(fliplr)


@spelled
def rollaxis(x: ArrayLike, /, axis: int, start: int = 0) -> Tensor:
    """An axis moved before another; `moveaxis` is clearer.

    >>> nm.rollaxis(nm.ones((3, 4, 5)), 2).shape
    (5, 3, 4)
    """
    given = operand("rollaxis", x)
    at = normal_axis(axis, given.ndim, "rollaxis")
    to = as_int(start, "start", "rollaxis")
    if not -given.ndim <= to <= given.ndim:
        raise ShapeError(f"rollaxis: start={start} is out of range for {given.ndim} axes")
    to = to + given.ndim if to < 0 else to
    return nm.moveaxis(given, at, to - (at < to))


def _split(op: str, x: ArrayLike, parts: Any, axis: int, least: int) -> tuple[Tensor, ...]:
    given = operand(op, x)
    if given.ndim < least:
        raise ShapeError(f"{op}: needs an array of {least} axes or more, not {given.shape}")
    return nm.split(given, parts, axis)


@method()
def hsplit(x: ArrayLike, /, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """`split` along the second axis; along the first of a vector.

    >>> [part.shape for part in nm.hsplit(nm.ones((2, 4)), 2)]
    [(2, 2), (2, 2)]
    """
    given = operand("hsplit", x)
    return _split("hsplit", given, indices_or_sections, int(given.ndim > 1), 1)


@method()
def vsplit(x: ArrayLike, /, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """`split` along the first axis of two or more."""
    return _split("vsplit", x, indices_or_sections, 0, 2)


@method()
def dsplit(x: ArrayLike, /, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """`split` along the third axis."""
    return _split("dsplit", x, indices_or_sections, 2, 3)


@method()
def tensor_split(x: ArrayLike, indices_or_sections: Any, /, dim: int = 0) -> tuple[Tensor, ...]:
    """`array_split` under PyTorch's name: sections need not be equal.

    >>> [part.tolist() for part in nm.tensor_split(nm.arange(5), 2)]
    [[0, 1, 2], [3, 4]]
    """
    parts = indices_or_sections
    parts = parts.tolist() if isinstance(parts, Tensor) else parts
    return nm.array_split(x, parts, dim)


@method()
def split_with_sizes(x: ArrayLike, /, split_sizes: Sequence[int], dim: int = 0) -> Any:
    """Parts of these sizes along an axis, which they must fill.

    >>> [part.tolist() for part in nm.split_with_sizes(nm.arange(5), [2, 3])]
    [[0, 1], [2, 3, 4]]
    """
    given = operand("split_with_sizes", x)
    at = normal_axis(dim, given.ndim, "split_with_sizes")
    if sum(split_sizes) != given.shape[at] or any(n < 0 for n in split_sizes):
        raise ShapeError(
            f"split_with_sizes: sizes {list(split_sizes)} must add up to axis {at}'s "
            f"{given.shape[at]} elements"
        )
    return nm.split(given, np.cumsum(split_sizes)[:-1].tolist(), at)


def unbind(x: ArrayLike, /, dim: int = 0) -> tuple[Tensor, ...]:
    """The parts along an axis, without it: `unstack` under PyTorch's name."""
    return nm.unstack(x, axis=dim)


@method()
def diagflat(x: ArrayLike, /, k: int = 0) -> Tensor:
    """The matrix with the elements of x, flattened, on its k-th diagonal.

    >>> nm.diagflat(nm.asarray([[1, 2]])).tolist()
    [[1, 0], [0, 2]]
    """
    return nm.diag(nm.reshape(operand("diagflat", x), -1), k)


@method()
def diag_embed(x: ArrayLike, /, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices with the last axis of x on a diagonal, in two new axes.

    >>> nm.diag_embed(nm.asarray([[1, 2]])).tolist()
    [[[1, 0], [0, 2]]]
    """
    op = "diag_embed"
    given = operand(op, x)
    if given.ndim < 1:
        raise ShapeError(f"{op}: needs an array of one axis or more, not a number")
    shift = as_int(offset, "offset", op)
    axes = [normal_axis(d, given.ndim + 1, op) for d in (dim1, dim2)]
    if axes[0] == axes[1]:
        raise ShapeError(f"{op}: dim1 and dim2 must be two axes, not {dim1} twice")
    n = given.shape[-1]
    on = nm.eye(n, device=given.device, dtype="bool")
    square = nm.where(on, nm.expand_dims(given, -2), nm.zeros_like(given[..., :1, None]))
    low, high = max(-shift, 0), max(shift, 0)
    wide = [(0, 0)] * (given.ndim - 1) + [(low, high), (high, low)]
    # rows are shifted down where the diagonal lies below, columns to the right where above
    return nm.moveaxis(nm.pad(square, wide), (-2, -1), tuple(axes))
