"""Parts of an order: partitions, the k-th element, the most frequent one, runs of equal ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions import api as nm
from numus.functions._base import as_line, flat_or_axis, method, operand, require, wrap
from numus.functions.spelling import spelled
from numus.shapes import as_int, normal_axis
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "aminmax", "argpartition", "kthvalue", "mode", "msort", "partition", "unique_consecutive",
]  # fmt: skip


def _check_kth(op: str, kth: Any, extent: int) -> None:
    kth = kth.tolist() if isinstance(kth, (Tensor, np.ndarray)) and kth.ndim else kth
    for k in kth if isinstance(kth, (tuple, list)) else (kth,):
        at = as_int(k, "kth", op)
        if not -extent <= at < extent:
            raise ShapeError(f"{op}: kth={at} is out of range for {extent} elements")


@method()
@spelled
def partition(x: ArrayLike, kth: Any, /, axis: int | None = -1) -> Tensor:
    """x with the k-th element in its place in order along an axis, no larger one before it and no
    smaller one after it. All of them are in order.

    >>> nm.partition(nm.asarray([3, 1, 2]), 1).tolist()
    [1, 2, 3]
    """
    given = operand("partition", x)
    _check_kth("partition", kth, given.size if axis is None else _extent(given, axis, "partition"))
    return nm.sort(given, axis=axis)


@method()
@spelled
def argpartition(x: ArrayLike, kth: Any, /, axis: int | None = -1) -> Tensor:
    """The indices that `partition` x along an axis; they sort it.

    >>> nm.argpartition(nm.asarray([3, 1, 2]), 1).tolist()
    [1, 2, 0]
    """
    given = operand("argpartition", x)
    extent = given.size if axis is None else _extent(given, axis, "argpartition")
    _check_kth("argpartition", kth, extent)
    return nm.argsort(given, axis=axis)


def _extent(x: Tensor, axis: int, op: str) -> int:
    return x.shape[normal_axis(axis, x.ndim, op)]


@method()
def msort(x: ArrayLike, /) -> Tensor:
    """The elements in order along the first axis."""
    return nm.sort(x, axis=0)


class Selected(NamedTuple):
    """Elements and their indices: the result of `kthvalue` and `mode`."""

    values: Tensor
    indices: Tensor


class Extremes(NamedTuple):
    """The result of `aminmax`."""

    min: Tensor
    max: Tensor


@method()
def aminmax(x: ArrayLike, /, *, dim: Any = None, keepdim: bool = False) -> Extremes:
    """The smallest and the largest element over axes, in one pass.

    >>> [y.item() for y in nm.aminmax(nm.asarray([3, 1, 2]))]
    [1, 3]
    """
    return Extremes(nm.min(x, dim, keepdims=keepdim), nm.max(x, dim, keepdims=keepdim))


@method()
def kthvalue(x: ArrayLike, /, k: int, dim: int = -1, keepdim: bool = False) -> Selected:
    """The k-th smallest element along an axis, counted from 1, and its index.

    >>> nm.kthvalue(nm.asarray([5.0, 3.0, 4.0]), 2).values.item()
    4.0
    """
    op = "kthvalue"
    given = operand(op, x)
    given = given if given.ndim else nm.reshape(given, (1,))
    at = normal_axis(dim, given.ndim, op)
    rank = as_int(k, "k", op)
    if not 1 <= rank <= given.shape[at]:
        raise ShapeError(f"{op}: axis {at} with {given.shape[at]} elements has no {rank}-th one")
    index = nm.narrow(nm.argsort(given, axis=at), at, rank - 1, 1)
    values = nm.take_along_axis(given, index, axis=at)
    if keepdim and operand(op, x).ndim:
        return Selected(values, index)
    return Selected(nm.squeeze(values, at), nm.squeeze(index, at))


def longest_runs(ordered: Tensor, at: int) -> tuple[Tensor, Tensor]:
    """The first element of the longest run of equal ones in sorted lines, and its length; both
    keep the axis."""
    n = ordered.shape[at]
    position = as_line(nm.arange(n, device=ordered.device), at, ordered.ndim)
    before = nm.roll(ordered, 1, axis=at)
    same = (ordered == before) | ((ordered != ordered) & (before != before))
    starts = nm.where(same & (position > 0), 0, nm.broadcast_to(position, ordered.shape))
    length = position - nm.cummax(starts, at) + 1
    best = nm.argmax(length, at, keepdims=True)
    values = nm.take_along_axis(ordered, best, axis=at)
    return values, nm.take_along_axis(length, best, axis=at)


@method()
def mode(x: ArrayLike, /, dim: int = -1, keepdim: bool = False) -> Selected:
    """The most frequent element along an axis, the smallest of several, and its last index.

    >>> nm.mode(nm.asarray([3, 1, 2, 1])).values.item()
    1
    """
    op = "mode"
    given = operand(op, x)
    require(op, given._node, "bool", "uint", "int", "float")
    lines = given if given.ndim else nm.reshape(given, (1,))
    at = normal_axis(dim, lines.ndim, op)
    if lines.shape[at] == 0:
        raise ShapeError(f"{op}: axis {at} of shape {lines.shape} has no elements")
    values, _ = longest_runs(nm.sort(lines, axis=at), at)
    hit = (lines == values) | ((lines != lines) & (values != values))
    last = lines.shape[at] - 1 - nm.argmax(nm.flip(hit, at), at, keepdims=True)
    values = nm.take_along_axis(lines, last, axis=at)
    if keepdim and given.ndim:
        return Selected(values, last)
    return Selected(nm.squeeze(values, at), nm.squeeze(last, at))


@method()
def unique_consecutive(
    x: ArrayLike,
    /,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The first of each run of equal elements (or of equal parts along an axis). Evaluates x.

    Args:
        return_inverse: also the number of the run of each element.
        return_counts: also how long the runs are.

    >>> nm.unique_consecutive(nm.asarray([1, 1, 2, 2, 1])).tolist()
    [1, 2, 1]
    """
    op = "unique_consecutive"
    given = operand(op, x)
    node, at = flat_or_axis(given._node, dim, op)
    lines = wrap(node)
    n = lines.shape[at]
    before = nm.narrow(lines, at, 0, max(n - 1, 0))
    after = nm.narrow(lines, at, min(1, n), max(n - 1, 0))
    others = tuple(i for i in range(lines.ndim) if i != at)
    new = nm.any(after != before, axis=others) if others else after != before
    first = nm.ones((min(n, 1),), dtype=dt.bool_, device=lines.device)
    starts = nm.concat([first, new])
    index = nm.flatnonzero(starts)
    found: list[Tensor] = [nm.take(lines, index, axis=at)]
    if return_inverse:
        number = nm.cumsum(nm.astype(starts, dt.int64)) - 1
        found.append(nm.reshape(number, given.shape) if dim is None else number)
    if return_counts:
        end = nm.full((1,), n, dtype=dt.int64, device=index.device)
        found.append(nm.diff(nm.concat([index, end])))
    return found[0] if len(found) == 1 else tuple(found)
