"""Searches: extremes, non-zero elements, binary search in sorted arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions._base import common, flat_or_axis, method, node_of, require, wrap
from numus.functions.indexing import index_checks
from numus.functions.indexing.index_checks import int_constant, mask_positions, ramp, unravel
from numus.functions.spelling import spelled
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives import reduce
from numus.primitives.broadcast import full
from numus.primitives.indexing import gather
from numus.primitives.structure import concat
from numus.primitives.views import reshape
from numus.shapes import size_of
from numus.tensor import ArrayLike, Tensor

__all__ = ["argmax", "argmin", "argwhere", "flatnonzero", "nonzero", "searchsorted"]

_REAL = ("bool", "uint", "int", "float")


def _extreme(
    op: str, find: Callable[[Node, int], Node], x: Any, axis: int | None, keepdims: bool
) -> Tensor:
    node = require(op, node_of(x, op), *_REAL)
    flat, at = flat_or_axis(node, axis, op)
    if flat.shape[at] == 0:
        raise ShapeError(
            f"{op}: an array of shape {node.shape} has no elements along "
            f"{'it' if axis is None else f'axis {at}'}, so none is the largest or smallest"
        )
    found = find(flat, at)
    shape = tuple(1 if axis is None or i == at else n for i, n in enumerate(node.shape))
    return wrap(reshape(found, shape) if keepdims else found)


@method()
@spelled
def argmax(x: ArrayLike, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first largest element along an axis (None: of all, in row-major order).

    NaN counts as the largest.

    >>> nm.argmax(nm.asarray([[1, 5], [7, 3]]), axis=1).tolist()
    [1, 0]
    """
    return _extreme("argmax", reduce.argmax, x, axis, keepdims)


@method()
@spelled
def argmin(x: ArrayLike, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first smallest element along an axis (None: of all, in row-major order).

    NaN, wherever it is, wins over every number.

    >>> nm.argmin(nm.asarray([[3, 1], [2, 4]]), axis=1).tolist()
    [1, 0]
    """
    return _extreme("argmin", reduce.argmin, x, axis, keepdims)


def _hits(x: Any, op: str) -> tuple[Node, Node]:
    node = node_of(x, op)
    return node, mask_positions(ew.cast(node, dt.bool_), op)


@method()
def nonzero(x: ArrayLike, /, *, size: int | None = None, fill_value: Any = 0) -> tuple[Tensor, ...]:
    """The indices of the elements that are not zero: an array for each axis. Evaluates x.

    Args:
        size: how many there are to be, where that must be known under `nm.jit`: nothing is
            evaluated, and those that are too few are `fill_value` (one, or one for each axis).

    >>> [i.tolist() for i in nm.nonzero(nm.asarray([[0, 7], [8, 0]]))]
    [[0, 1], [1, 0]]
    """
    node = node_of(x, "nonzero")
    if node.ndim == 0:
        raise ShapeError("nonzero: an array without axes has no indices; compare it with 0")
    if size is not None:
        from numus.functions.ordering.sized import sized_nonzero

        return sized_nonzero(wrap(node), size, fill_value)
    node, hits = _hits(x, "nonzero")
    return tuple(wrap(i) for i in unravel(hits, node.shape))


def argwhere(x: ArrayLike, /, *, size: int | None = None, fill_value: Any = 0) -> Tensor:
    """The indices of the elements that are not zero, as the rows of a matrix. Evaluates x, unless
    `size=` says how many there are to be, as for `nonzero`."""
    if size is not None:
        found = nonzero(x, size=size, fill_value=fill_value)
        return wrap(concat(tuple(reshape(i._node, (size, 1)) for i in found), 1))
    node, hits = _hits(x, "argwhere")
    columns = tuple(reshape(i, (*i.shape, 1)) for i in unravel(hits, node.shape))
    return wrap(concat(columns, 1) if columns else full((*hits.shape, 0), 0, dt.int64, hits))


def flatnonzero(x: ArrayLike, /, *, size: int | None = None, fill_value: Any = 0) -> Tensor:
    """The indices, in row-major order, of the elements that are not zero. Evaluates x, unless
    `size=` says how many there are to be, as for `nonzero`."""
    if size is not None:
        node = node_of(x, "flatnonzero")
        flat = wrap(reshape(node, (size_of(node.shape),)))
        return nonzero(flat, size=size, fill_value=fill_value)[0]
    return wrap(_hits(x, "flatnonzero")[1])


def _before(a: Node, b: Node) -> Node:
    """Whether a comes before b in sorted order: NaN comes last."""
    less = ew.lt(a, b)
    if a.dtype.is_floating:
        less = ew.or_(less, ew.and_(ew.ne(b, b), ew.eq(a, a)))
    return less


def count_before(line: Node, values: Node, side: str) -> Node:
    """The number of elements of sorted lines (the last axis) before each value of the same line.

    The leading axes of `line` and `values` are the same (or the line has none). A binary search
    for all values at once: each iteration halves the step.
    """
    count = line.shape[-1]
    rows = tuple(ramp(values.shape, i, values.device) for i in range(line.ndim - 1))
    found = full(values.shape, 0, dt.int64, values)
    for bit in reversed(range(count.bit_length())):
        reached = ew.add(found, int_constant(1 << bit))
        last = ew.sub(reached, int_constant(1))
        seen = gather(line, (*rows, last), tuple(range(line.ndim)))
        left = side == "left"
        ahead = _before(seen, values) if left else ew.invert(_before(values, seen))
        keep = ew.and_(ahead, ew.le(reached, int_constant(count)))
        found = ew.where(keep, reached, found)
    return found


def searchsorted(
    x1: ArrayLike, x2: ArrayLike, /, *, side: str = "left", sorter: Any = None
) -> Tensor:
    """The indices at which values go into a sorted array so that it stays sorted (int64).

    Args:
        x1: sorted along its last axis; with more axes than one, each line is searched for the
            values of the same line of x2.
        x2: the values.
        side: "left" goes before elements that are equal, "right" after them.
        sorter: indices that sort x1 (from `argsort`), where it is not sorted itself.

    >>> nm.searchsorted(nm.asarray([1, 3, 5]), nm.asarray([3, 4]), side="right").tolist()
    [2, 2]
    """
    op = "searchsorted"
    if side not in ("left", "right", "l", "r"):
        raise ValueError(f'{op}: side is "left" or "right", not {side!r}')
    side = "left" if side[0] == "l" else "right"
    line, values = (require(op, n, *_REAL) for n in common(op, x1, x2))
    if line.ndim == 0 or (line.ndim > 1 and line.shape[:-1] != values.shape[:-1]):
        raise ShapeError(
            f"{op}: an array of shape {line.shape} cannot be searched for values of shape "
            f"{values.shape}: it needs one axis, or the leading axes of the values"
        )
    if sorter is not None:
        index = index_checks.normal_index(sorter, line.shape[-1], line.ndim - 1, op, line)
        if index.shape != line.shape:
            raise ShapeError(
                f"{op}: a sorter of shape {index.shape} does not sort an array of {line.shape}"
            )
        rows = tuple(ramp(line.shape, i, line.device) for i in range(line.ndim - 1))
        line = gather(line, (*rows, index), tuple(range(line.ndim)))
    return wrap(count_before(line, values, side))
