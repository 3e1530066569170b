"""Ordering along an axis: stable, NaN last (first when descending, as NumPy's reversed order)."""

from __future__ import annotations

import numpy as np

from numus import dtypes as dt
from numus.dispatch.apply import apply
from numus.graph import Array, Node, Primitive
from numus.primitives.base import nondifferentiable, unary_jvp
from numus.primitives.broadcast import full
from numus.primitives.indexing import gather, index_along, scatter
from numus.shapes import Shape


def _order_reference(x: Array, axis: int, descending: bool) -> Array:
    if x.dtype.name.startswith(("bfloat", "float8")):  # NumPy has no order for these
        x = x.astype(np.float32)
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # stable and descending: reverse, sort, reverse the indices
    flipped = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - flipped, axis)


_argsort = nondifferentiable(
    "argsort",
    "sort",
    lambda node, x: _order_reference(x, *node.params).astype(np.int64),
    lambda node, xs, batched, size: argsort(xs[0], node.params[0] + 1, node.params[1]),
)


def argsort(x: Node, axis: int, descending: bool = False) -> Node:
    """The indices of the elements in sorted order (int64), ties in order of index."""
    return apply(_argsort, (x,), (axis, descending), x.shape, dt.int64)


_topk = nondifferentiable(
    "topk",
    "topk",
    lambda node, x: np.take(
        _order_reference(x, node.params[0], node.params[2]), range(node.params[1]), node.params[0]
    ).astype(np.int64),
    lambda node, xs, batched, size: topk(xs[0], node.params[0] + 1, *node.params[1:]),
)


def topk(x: Node, axis: int, count: int, descending: bool) -> Node:
    """The first `count` of what `argsort` would give."""
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return apply(_topk, (x,), (axis, count, descending), shape, dt.int64)


def _sorted_from(node: Node) -> tuple[tuple[Node, ...], Shape]:
    """Indices and axes of the input's elements in sorted order."""
    return index_along(argsort(node.inputs[0], *node.params), node.params[0])


def _sort_vjp(node: Node, g: Node) -> tuple[Node]:
    at, axes = _sorted_from(node)
    return (scatter(full(node.shape, 0, g.dtype), at, g, axes, "set"),)


_sort = Primitive(
    "sort",
    "sort",
    reference=lambda node, x: np.take_along_axis(
        x, _order_reference(x, *node.params), node.params[0]
    ),
    vjp=_sort_vjp,
    jvp=unary_jvp(lambda node, t: gather(t, *_sorted_from(node))),
    batch=lambda node, xs, batched, size: sort(xs[0], node.params[0] + 1, node.params[1]),
)


def sort(x: Node, axis: int, descending: bool = False) -> Node:
    """The elements in order."""
    return apply(_sort, (x,), (axis, descending), x.shape, x.dtype)
