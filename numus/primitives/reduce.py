"""Reductions over axes, which the result drops; `reduce_sum` is in broadcast.py.

Blocked summation in a fixed order: bits do not depend on the number of threads. Floats below 32
bits accumulate in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.dispatch.apply import apply
from numus.graph import Array, Node, Primitive
from numus.primitives import elementwise as ew
from numus.primitives.base import nondifferentiable
from numus.primitives.broadcast import (
    define_reduction,
    expand,
    full,
    reduce,
    reduce_sum,
    reduced_shape,
    reduction_batch,
)
from numus.primitives.references import for_sums, widen
from numus.primitives.scan import scan
from numus.primitives.source import constant
from numus.primitives.structure import concat
from numus.primitives.views import permute, reshape, take_range
from numus.shapes import Shape, size_of

# -- product --------------------------------------------------------------------------------------


def _others_product(x: Node, axes: Shape) -> Node:
    """For each element the product of all others over the axes, correct where some are zero."""
    rest = tuple(i for i in range(x.ndim) if i not in axes)
    order = (*rest, *axes)
    count = size_of(tuple(x.shape[a] for a in axes))
    flat = reshape(permute(x, order), (*(x.shape[a] for a in rest), count))
    last = flat.ndim - 1

    if count == 0:
        return x
    one = full((*flat.shape[:-1], 1), 1, x.dtype)
    before = take_range(scan("prod", flat, last, reverse=False), last, 0, count - 1)
    after = take_range(scan("prod", flat, last, reverse=True), last, 1, count)
    before, after = concat((one, before), last), concat((after, one), last)
    others = reshape(ew.mul(before, after), tuple(x.shape[a] for a in order))
    back = tuple(order.index(i) for i in range(x.ndim))
    return permute(others, back)


def _slope_rules(slope: Callable[[Node], Node]) -> tuple[Any, Any]:
    """vjp and jvp of a reduction whose derivatives by the elements are slope(node)."""
    return (
        lambda node, g: (
            ew.mul(expand(g, node.inputs[0], node.params), ew.conjugate(slope(node))),
        ),
        lambda node, t: reduce_sum(ew.mul(t, slope(node)), node.params),
    )


_prod = define_reduction(
    "reduce_prod",
    lambda x, axes: np.prod(x, axis=axes, dtype=x.dtype),
    *_slope_rules(lambda node: _others_product(node.inputs[0], node.params)),
)


def reduce_prod(x: Node, axes: Shape) -> Node:
    """The product over axes."""
    return x if not axes else reduce(_prod, x, axes)


# -- max and min ----------------------------------------------------------------------------------


def _hits(node: Node) -> Node:
    """Each element's share of the extreme: ties share it equally; NaN counts as a hit on NaN."""
    x = node.inputs[0]
    y = expand(node, x, node.params)
    hit = ew.or_(ew.eq(x, y), ew.and_(ew.ne(x, x), ew.ne(y, y)))
    ones = ew.cast(hit, x.dtype)
    return ew.div(ones, expand(reduce_sum(ones, node.params), x, node.params))


_max, _min = (
    define_reduction(name, lambda x, axes, f=f: f(x, axis=axes), *_slope_rules(_hits))
    for name, f in (("reduce_max", np.max), ("reduce_min", np.min))
)


def reduce_max(x: Node, axes: Shape) -> Node:
    """The largest element over (non-empty) axes; NaN wins. On bool: whether any is true."""
    return x if not axes else reduce(_max, x, axes)


def reduce_min(x: Node, axes: Shape) -> Node:
    """The smallest element over (non-empty) axes; NaN wins. On bool: whether all are true."""
    return x if not axes else reduce(_min, x, axes)


# -- squared deviations ---------------------------------------------------------------------------


def _deviation(x: Node, axes: Shape) -> Node:
    count = size_of(tuple(x.shape[a] for a in axes))
    mean = ew.div(reduce_sum(x, axes), constant(float(count), x.dtype))
    return ew.sub(x, expand(mean, x, axes))


def _sqdev_reference(x: Array, axes: Shape) -> Array:
    x = for_sums(x)
    return np.square(x - np.mean(x, axis=axes, keepdims=True)).sum(axis=axes)


def _sqdev_vjp(node: Node, g: Node) -> tuple[Node]:
    x = node.inputs[0]
    d = _deviation(x, node.params)
    return (ew.mul(expand(ew.mul(g, constant(2.0, g.dtype)), x, node.params), d),)


def _sqdev_jvp(node: Node, t: Node) -> Node:
    d = _deviation(node.inputs[0], node.params)
    return reduce_sum(ew.mul(ew.mul(t, constant(2.0, t.dtype)), d), node.params)


_sqdev = define_reduction("reduce_sqdev", _sqdev_reference, _sqdev_vjp, _sqdev_jvp)


def reduce_sqdev(x: Node, axes: Shape) -> Node:
    """The sum of squared deviations from the mean, in one pass over real x."""
    # over no axes every element is its own mean, and infinity minus itself is NaN
    return ew.sub(x, x) if not axes else reduce(_sqdev, x, axes)


# -- arg max and arg min --------------------------------------------------------------------------


def _arg(name: str, function: Callable[..., Array]) -> Primitive:
    def reference(node: Node, x: Array) -> Array:
        return np.asarray(function(widen(x), axis=node.params[0])).astype(np.int64)

    return nondifferentiable(name, "reduce", reference, reduction_batch)


_argmax = _arg("argmax", np.argmax)
_argmin = _arg("argmin", np.argmin)


def argmax(x: Node, axis: int) -> Node:
    """The index of the first largest element along one (non-empty) axis; NaN wins."""
    return apply(_argmax, (x,), (axis,), reduced_shape(x.shape, (axis,)), dt.int64)


def argmin(x: Node, axis: int) -> Node:
    """The index of the first smallest element along one (non-empty) axis; NaN wins."""
    return apply(_argmin, (x,), (axis,), reduced_shape(x.shape, (axis,)), dt.int64)
