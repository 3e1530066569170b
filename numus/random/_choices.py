"""Orders and selections."""

from __future__ import annotations

import operator
from typing import Any

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions._base import node_of, require, to_float, wrap
from numus.functions.indexing.searching import count_before
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import full
from numus.primitives.indexing import gather
from numus.primitives.scan import scan
from numus.primitives.sort import argsort
from numus.primitives.source import constant
from numus.primitives.views import permute, reshape, take_range
from numus.random._distributions import gumbel
from numus.random._draws import bits, integers, uniform
from numus.random._words import device_of
from numus.shapes import as_shape, normal_axis, size_of
from numus.tensor import Tensor


def _order(count: int, device: Any, key: Tensor | None) -> Node:
    # 64 bits each: two alike, which would keep their order, are not to be met with
    return argsort(bits((count,), dtype=dt.uint64, device=device, key=key)._node, 0)


def _take(x: Node, index: Node, axis: int) -> Node:
    """x at places along an axis; the places' axes stand where it stood."""
    taken = gather(x, (index,), (axis,))
    lead = index.ndim
    front = range(lead, lead + axis)
    return permute(taken, (*front, *range(lead), *range(lead + axis, taken.ndim)))


def _source(op: str, x: int | Tensor, axis: int) -> tuple[Node | None, int, int]:
    """The tensor chosen from (None for 0 … x - 1), the axis, and how many there are."""
    if not isinstance(x, Tensor):
        count = operator.index(x)
        if count < 0:
            raise ShapeError(f"{op}: there are not {count} numbers to choose from")
        return None, 0, count
    axis = normal_axis(axis, x.ndim, op)
    return x._node, axis, x.shape[axis]


def permutation(
    x: int | Tensor, axis: int = 0, *, device: Any = None, key: Tensor | None = None
) -> Tensor:
    """The numbers 0 … x - 1, or a tensor's slices along an axis, in random order.

    >>> import numus as nm
    >>> sorted(nm.random.permutation(4).tolist())
    [0, 1, 2, 3]
    """
    node, axis, count = _source("permutation", x, axis)
    if node is None:
        return wrap(_order(count, device, key))
    return wrap(_take(node, _order(count, device or node.device, key), axis))


def shuffle(x: Tensor, axis: int = 0, *, key: Tensor | None = None) -> None:
    """Put a tensor's slices along an axis in random order, in place."""
    x.rebind(permutation(x, axis, key=key)._node, "shuffle")


def choice(
    a: int | Tensor,
    shape: Any = (),
    replace: bool = True,
    p: Any = None,
    axis: int = 0,
    *,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Random elements of a (or of 0 … a - 1), with or without replacement.

    `p` weighs them; it need not sum to 1. Of a tensor with more axes, slices along `axis` are
    chosen.
    """
    node, axis, count = _source("choice", a, axis)
    shape = as_shape(shape, "choice")
    size = size_of(shape)
    weights = None if p is None else require("choice", to_float(node_of(p, "choice")), "float")
    if weights is not None and weights.shape != (count,):
        raise ShapeError(f"choice: p of shape {weights.shape} does not weigh {count} elements")
    if size and not count:
        raise ShapeError("choice: there is nothing to choose from")
    if not replace and size > count:
        raise ShapeError(f"choice: {size} of {count} cannot be chosen without replacement")
    if weights is not None:
        weights = ew.cast(weights, dt.compute_dtype(weights.dtype))
    keyed = None if key is None else key._node
    place = device_of(device, *(n for n in (node, weights, keyed) if n is not None))
    if not size:
        index = full(shape, 0, dt.int64)
    elif replace and weights is None:
        index = integers(0, count, shape, device=place, key=key)._node
    elif replace:
        index = _weighted(weights, shape, place, key)
    else:
        if weights is None:
            order = _order(count, place, key)
        else:  # the largest of log p + noise are a sample without replacement (Gumbel's top k)
            noise = gumbel((count,), dtype=weights.dtype, device=place, key=key)._node
            order = argsort(ew.add(ew.log(weights), noise), 0, descending=True)
        index = reshape(take_range(order, 0, 0, size), shape)
    return wrap(index if node is None else _take(node, index, axis))


def _shares(weights: Node) -> Node:
    """Running sums that stay as they are where a weight is 0, and never fall: sums are rounded each
    for itself, so that neighbours may differ by more than the weight between them."""
    none = constant(float("-inf"), weights.dtype)
    rises = ew.lt(constant(0.0, weights.dtype), weights)
    return scan("max", ew.where(rises, scan("sum", weights, 0), none), 0)


def _weighted(weights: Any, shape: Any, device: Any, key: Tensor | None) -> Node:
    """Places with these weights: where a uniform number falls among their running sums."""
    count = weights.shape[0]
    sums = _shares(weights)
    total = reshape(take_range(sums, 0, count - 1, count), ())
    u = uniform(shape, dtype=weights.dtype, device=device, key=key)._node
    # never up to the total itself, where elements of weight 0 may lie
    u = ew.minimum(ew.mul(u, total), ew.nextafter(total, constant(0.0, total.dtype)))
    return count_before(sums, u, "right")
