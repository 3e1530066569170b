"""Permutations and choices, with and without replacement."""

from __future__ import annotations

from typing import Any

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions._base import node_of, require, to_float, wrap
from numus.functions.indexing.index_checks import take_axis
from numus.functions.indexing.searching import count_before
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import full
from numus.primitives.scan import scan
from numus.primitives.sort import argsort
from numus.primitives.source import constant
from numus.primitives.views import reshape, take_range
from numus.random._bits import device_of
from numus.random._distributions import gumbel
from numus.random._sampling import bits, integers, uniform
from numus.shapes import as_int, as_shape, normal_axis, size_of
from numus.tensor import Tensor


def _order(count: int, device: Any, key: Tensor | None) -> Node:
    # 64-bit sort keys: ties, which would bias the order, are negligible
    return argsort(bits((count,), dtype=dt.uint64, device=device, key=key)._node, 0)


def _source(op: str, x: int | Tensor, axis: int) -> tuple[Node | None, int, int]:
    """The population (None for 0 … x - 1), the axis, and its size."""
    if not isinstance(x, Tensor) or x.ndim == 0:
        count = as_int(x, "the number of elements", op)
        if count < 0:
            raise ShapeError(f"{op}: the number of elements must not be negative, but is {count}")
        return None, 0, count
    axis = normal_axis(axis, x.ndim, op)
    return x._node, axis, x.shape[axis]


def permutation(
    x: int | Tensor, axis: int = 0, *, device: Any = None, key: Tensor | None = None
) -> Tensor:
    """The numbers 0 … x - 1, or a tensor's slices along an axis, in random order.

    >>> sorted(nm.random.permutation(4).tolist())
    [0, 1, 2, 3]
    """
    node, axis, count = _source("permutation", x, axis)
    if node is None:
        return wrap(_order(count, device, key))
    return wrap(take_axis(node, _order(count, device or node.device, key), axis))


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
        raise ShapeError(f"choice: p must have shape ({count},), not {weights.shape}")
    if size and not count:
        raise ShapeError("choice: a must not be empty where shape is not")
    if not replace and size > count:
        raise ShapeError(
            f"choice: without replacement at most {count} elements can be chosen, not {size}"
        )
    if weights is not None:
        weights = ew.cast(weights, dt.compute_dtype(weights.dtype))
    keyed = None if key is None else key._node
    dev = device_of(device, *(n for n in (node, weights, keyed) if n is not None))
    if not size:
        index = full(shape, 0, dt.int64)
    elif replace and weights is None:
        index = integers(0, count, shape, device=dev, key=key)._node
    elif replace:
        index = _inverse_cdf(weights, shape, dev, key)
    else:
        if weights is None:
            order = _order(count, dev, key)
        else:  # Gumbel top-k: the largest of log p + noise
            noise = gumbel((count,), dtype=weights.dtype, device=dev, key=key)._node
            order = argsort(ew.add(ew.log(weights), noise), 0, descending=True)
        index = reshape(take_range(order, 0, 0, size), shape)
    return wrap(index if node is None else take_axis(node, index, axis))


def _cumulative_weights(weights: Node) -> Node:
    """A monotone cumulative sum, constant where a weight is 0: the scan's prefixes are rounded
    independently, so the raw sum may decrease."""
    none = constant(float("-inf"), weights.dtype)
    rises = ew.lt(constant(0.0, weights.dtype), weights)
    return scan("max", ew.where(rises, scan("sum", weights, 0), none), 0)


def _inverse_cdf(weights: Any, shape: Any, device: Any, key: Tensor | None) -> Node:
    """Weighted indices by inversion of the cumulative weights."""
    count = weights.shape[0]
    sums = _cumulative_weights(weights)
    total = reshape(take_range(sums, 0, count - 1, count), ())
    u = uniform(shape, dtype=weights.dtype, device=device, key=key)._node
    # never up to the total itself, where elements of weight 0 may lie
    u = ew.minimum(ew.mul(u, total), ew.nextafter(total, constant(0.0, total.dtype)))
    return count_before(sums, u, "right")
