"""Reductions over axes. The result drops the axes; callers put them back with a reshape.

Sums are accurate (blocked, better than pairwise) and in a fixed order, so that the same input gives
the same bits whatever the thread count. Narrow floats are accumulated in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.dispatch.apply import apply
from numus.graph import Array, Node, Primitive
from numus.primitives import elementwise as ew
from numus.primitives.base import zero_jvp, zero_vjp
from numus.primitives.source import constant, full
from numus.primitives.views import broadcast, reshape
from numus.shapes import Shape, size_of


def _reduced(shape: Shape, axes: Shape) -> Shape:
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def _kept(shape: Shape, axes: Shape) -> Shape:
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def _expand(r: Node, x: Node, axes: Shape) -> Node:
    """A reduced value laid along the axes it was reduced over."""
    return broadcast(reshape(r, _kept(x.shape, axes)), x.shape)


def _batch(node: Node, inputs: Sequence[Node], batched: Sequence[bool], size: int) -> Node:
    axes = tuple(a + 1 for a in node.params)
    return apply(node.prim, (inputs[0],), axes, (size, *node.shape), node.dtype)


def _define(name: str, function: Callable[..., Array], vjp: Any, jvp: Any) -> Primitive:
    def reference(node: Node, x: Array) -> Array:
        if node.inputs[0].dtype.is_narrow_float:
            x = x.astype(np.float32)
        with np.errstate(all="ignore"):
            return np.asarray(function(x, node.params)).astype(node.dtype.np)

    return Primitive(name, "reduce", reference=reference, vjp=vjp, jvp=jvp, batch=_batch)


def _build(prim: Primitive, x: Node, axes: Shape) -> Node:
    return apply(prim, (x,), axes, _reduced(x.shape, axes), x.dtype)


# -- sum ------------------------------------------------------------------------------------------

_sum = _define(
    "reduce_sum",
    lambda x, axes: np.sum(x, axis=axes, dtype=x.dtype),
    lambda node, g: (_expand(g, node.inputs[0], node.params),),
    lambda node, ts: None if ts[0] is None else reduce_sum(ts[0], node.params),
)


def reduce_sum(x: Node, axes: Shape) -> Node:
    """The sum over axes, in x's own dtype. Booleans are not summed: cast them first."""
    return x if not axes else _build(_sum, x, axes)


# -- product --------------------------------------------------------------------------------------


def _others_product(x: Node, axes: Shape) -> Node:
    """For each element the product of all others over the axes: right when some are zero."""
    from numus.primitives.scan import scan
    from numus.primitives.structure import concat
    from numus.primitives.views import permute, take_range

    rest = tuple(i for i in range(x.ndim) if i not in axes)
    order = (*rest, *axes)
    count = size_of(tuple(x.shape[a] for a in axes))
    flat = reshape(permute(x, order), (*(x.shape[a] for a in rest), count))
    last = flat.ndim - 1

    def shifted(products: Node, left: bool) -> Node:
        # drop the last (first) product and put a one before (after) the others
        one = full((*flat.shape[:-1], 1), 1, x.dtype)
        if left:
            return concat((one, take_range(products, last, 0, count - 1)), last)
        return concat((take_range(products, last, 1, count), one), last)

    if count == 0:
        return x
    before = shifted(scan("prod", flat, last, reverse=False), left=True)
    after = shifted(scan("prod", flat, last, reverse=True), left=False)
    others = reshape(ew.mul(before, after), tuple(x.shape[a] for a in order))
    back = tuple(order.index(i) for i in range(x.ndim))
    return permute(others, back)


def _prod_vjp(node: Node, g: Node) -> tuple[Node]:
    x = node.inputs[0]
    d = _others_product(x, node.params)
    if x.dtype.is_complex:
        d = ew.conj(d)
    return (ew.mul(_expand(g, x, node.params), d),)


def _prod_jvp(node: Node, tangents: Sequence[Node | None]) -> Node | None:
    t = tangents[0]
    if t is None:
        return None
    return reduce_sum(ew.mul(t, _others_product(node.inputs[0], node.params)), node.params)


_prod = _define(
    "reduce_prod", lambda x, axes: np.prod(x, axis=axes, dtype=x.dtype), _prod_vjp, _prod_jvp
)


def reduce_prod(x: Node, axes: Shape) -> Node:
    """The product over axes."""
    return x if not axes else _build(_prod, x, axes)


# -- max and min ----------------------------------------------------------------------------------


def _hits(node: Node) -> Node:
    """Each element's share of the extreme: ties share it equally; NaN counts as a hit on NaN."""
    x = node.inputs[0]
    y = _expand(node, x, node.params)
    hit = ew.or_(ew.eq(x, y), ew.and_(ew.ne(x, x), ew.ne(y, y)))
    ones = ew.cast(hit, x.dtype)
    return ew.div(ones, _expand(reduce_sum(ones, node.params), x, node.params))


def _extreme_vjp(node: Node, g: Node) -> tuple[Node]:
    return (ew.mul(_expand(g, node.inputs[0], node.params), _hits(node)),)


def _extreme_jvp(node: Node, tangents: Sequence[Node | None]) -> Node | None:
    t = tangents[0]
    return None if t is None else reduce_sum(ew.mul(t, _hits(node)), node.params)


_max = _define("reduce_max", lambda x, axes: np.max(x, axis=axes), _extreme_vjp, _extreme_jvp)
_min = _define("reduce_min", lambda x, axes: np.min(x, axis=axes), _extreme_vjp, _extreme_jvp)


def reduce_max(x: Node, axes: Shape) -> Node:
    """The largest element over (non-empty) axes; NaN wins. On bool: whether any is true."""
    return x if not axes else _build(_max, x, axes)


def reduce_min(x: Node, axes: Shape) -> Node:
    """The smallest element over (non-empty) axes; NaN wins. On bool: whether all are true."""
    return x if not axes else _build(_min, x, axes)


# -- squared deviations ---------------------------------------------------------------------------


def _deviation(x: Node, axes: Shape) -> Node:
    count = size_of(tuple(x.shape[a] for a in axes))
    mean = ew.div(reduce_sum(x, axes), constant(float(count), x.dtype))
    return ew.sub(x, _expand(mean, x, axes))


def _sqdev_reference(x: Array, axes: Shape) -> Array:
    return np.square(x - np.mean(x, axis=axes, keepdims=True)).sum(axis=axes)


def _sqdev_vjp(node: Node, g: Node) -> tuple[Node]:
    x = node.inputs[0]
    d = _deviation(x, node.params)
    return (ew.mul(_expand(ew.mul(g, constant(2.0, g.dtype)), x, node.params), d),)


def _sqdev_jvp(node: Node, tangents: Sequence[Node | None]) -> Node | None:
    t = tangents[0]
    if t is None:
        return None
    d = _deviation(node.inputs[0], node.params)
    return reduce_sum(ew.mul(ew.mul(t, constant(2.0, t.dtype)), d), node.params)


_sqdev = _define("reduce_sqdev", _sqdev_reference, _sqdev_vjp, _sqdev_jvp)


def reduce_sqdev(x: Node, axes: Shape) -> Node:
    """The sum of squared deviations from the mean, in one pass over real x."""
    # over no axes every element is its own mean, and infinity minus itself is NaN
    return ew.sub(x, x) if not axes else _build(_sqdev, x, axes)


# -- arg max and arg min --------------------------------------------------------------------------


def _arg(name: str, function: Callable[..., Array]) -> Primitive:
    def reference(node: Node, x: Array) -> Array:
        if node.inputs[0].dtype.is_narrow_float:
            x = x.astype(np.float32)
        return np.asarray(function(x, axis=node.params[0])).astype(np.int64)

    return Primitive(name, "reduce", reference=reference, vjp=zero_vjp, jvp=zero_jvp, batch=_batch)


_argmax = _arg("argmax", np.argmax)
_argmin = _arg("argmin", np.argmin)


def argmax(x: Node, axis: int) -> Node:
    """The index of the first largest element along one (non-empty) axis; NaN wins."""
    return apply(_argmax, (x,), (axis,), _reduced(x.shape, (axis,)), dt.int64)


def argmin(x: Node, axis: int) -> Node:
    """The index of the first smallest element along one (non-empty) axis; NaN wins."""
    return apply(_argmin, (x,), (axis,), _reduced(x.shape, (axis,)), dt.int64)
