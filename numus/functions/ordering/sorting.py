"""Ordering along an axis.

Indices are in a stable order, and NaN counts as the largest number: it comes last, or first when
descending. Of equal sorted values only the signs of zeros tell the order, which is not stable.
Complex numbers are ordered by their real, then by their imaginary parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions._base import flat_or_axis, method, node_of, wrap
from numus.functions.spelling import spelled
from numus.functions.template_cache import templated
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.indexing import gather, index_along
from numus.primitives.sort import argsort as argsort_node
from numus.primitives.sort import sort as sort_node
from numus.primitives.sort import topk as topk_node
from numus.primitives.source import constant
from numus.primitives.views import reshape, take_range
from numus.shapes import as_int, normal_axis
from numus.tensor import ArrayLike, Tensor

__all__ = ["argsort", "lexsort", "sort", "topk"]


def read_along(x: Node, index: Node, axis: int) -> Node:
    """Each line of x along an axis, read at that line's own indices."""
    return gather(x, *index_along(index, axis))


def order(x: Node, axis: int, descending: bool = False) -> Node:
    """The indices of x's elements in sorted order, whatever its dtype."""
    if not x.dtype.is_complex:
        return argsort_node(x, axis, descending)
    real, imag = ew.real(x), ew.imag(x)
    # as NumPy: numbers with NaN in them come after all others, those with a NaN real part last
    lost = ew.mul(ew.cast(ew.ne(real, real), dt.int8), constant(2, dt.int8))
    lost = ew.add(lost, ew.cast(ew.ne(imag, imag), dt.int8))
    return lexical_order((imag, real, lost), axis, descending)


def lexical_order(keys: Sequence[Node], axis: int, descending: bool = False) -> Node:
    """The order by several keys, the last is primary: stable sorts, one after the other."""
    found = order(keys[0], axis, descending)
    for key in keys[1:]:
        again = order(read_along(key, found, axis), axis, descending)
        found = read_along(found, again, axis)
    return found


@method()
@templated
@spelled
def sort(
    x: ArrayLike, /, *, axis: int | None = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    """The elements in order along an axis (axis=None: all of them along one).

    `stable` is there for those who say so: equal values are the same in any order.

    >>> nm.sort(nm.asarray([3.0, float("nan"), 1.0])).tolist()
    [1.0, 3.0, nan]
    """
    node, at = flat_or_axis(node_of(x, "sort"), axis, "sort")
    if node.dtype.is_complex:
        return wrap(read_along(node, order(node, at, descending), at))
    return wrap(sort_node(node, at, descending))


@method()
@templated
@spelled
def argsort(
    x: ArrayLike, /, *, axis: int | None = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    """The indices that sort x along an axis (int64); equal elements keep their order.

    >>> nm.argsort(nm.asarray([3, 1, 2]), descending=True).tolist()
    [0, 2, 1]
    """
    return wrap(order(*flat_or_axis(node_of(x, "argsort"), axis, "argsort"), descending))


@spelled
def lexsort(keys: Sequence[Tensor] | Tensor, /, axis: int = -1) -> Tensor:
    """The indices that sort by several keys of one shape: by the last, ties by the one before it.

    >>> nm.lexsort((nm.asarray([2, 1, 1]), nm.asarray([0, 1, 0]))).tolist()
    [2, 0, 1]
    """
    nodes = [node_of(k, "lexsort") for k in keys]
    if not nodes or any(n.shape != nodes[0].shape for n in nodes):
        shapes = ", ".join(str(n.shape) for n in nodes) or "none"
        raise ShapeError(f"lexsort: needs keys of one shape, not {shapes}")
    return wrap(lexical_order(nodes, normal_axis(axis, nodes[0].ndim, "lexsort")))


class TopK(NamedTuple):
    """The result of `topk`."""

    values: Tensor
    indices: Tensor


@method()
def topk(x: ArrayLike, /, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> TopK:
    """The k largest (or smallest) elements along an axis and their indices, in order.

    They come sorted whether asked for or not. Gradients flow through the values.

    >>> nm.topk(nm.asarray([1.0, 4.0, 3.0]), 2).values.tolist()
    [4.0, 3.0]
    """
    node = node_of(x, "topk")
    line = node if node.ndim else reshape(node, (1,))
    axis = normal_axis(dim, line.ndim, "topk")
    k = as_int(k, "k", "topk")
    if not 0 <= k <= line.shape[axis]:
        raise ShapeError(
            f"topk: axis {axis} with {line.shape[axis]} elements has no {k} largest or smallest"
        )
    if line.dtype.is_complex:
        index = take_range(order(line, axis, largest), axis, 0, k)
    else:
        index = topk_node(line, axis, k, largest)
    values = read_along(line, index, axis)
    if node.ndim == 0 and k == 1:
        values, index = reshape(values, ()), reshape(index, ())
    return TopK(wrap(values), wrap(index))
