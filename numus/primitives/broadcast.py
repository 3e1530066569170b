"""broadcast and reduce_sum: linear maps that are each other's transpose; constants of any shape."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numus.dispatch.apply import apply
from numus.dtypes import DType
from numus.graph import Array, Node, Nodes, Primitive
from numus.primitives.base import unary_jvp
from numus.primitives.references import for_sums, widen
from numus.primitives.source import constant
from numus.primitives.views import make_view, reshape, shear
from numus.shapes import Shape, broadcast_strides, check_size

# -- broadcast ------------------------------------------------------------------------------------


def _broadcast_batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    x = inputs[0]
    inner = x.shape[1:]
    ones = (1,) * (len(node.shape) - len(inner))
    return broadcast(reshape(x, (size, *ones, *inner)), (size, *node.shape))


_broadcast = Primitive(
    "broadcast",
    "view",
    vjp=lambda node, g: (unbroadcast(g, node.inputs[0].shape),),
    jvp=unary_jvp(lambda node, t: broadcast(t, node.params)),
    batch=_broadcast_batch,
    reference=lambda node, x: np.broadcast_to(x, node.shape),
)


def broadcast(x: Node, shape: Shape) -> Node:
    """Repeat axes of extent 1 (and new leading ones) to `shape`: stride 0, nothing copied."""
    if x.shape == shape:
        return x
    check_size(shape, "broadcast")
    layout = None
    if x.view is not None:
        layout = (x.view.offset, broadcast_strides(x.shape, x.view.strides, shape))
    return make_view(_broadcast, x, shape, shape, layout)


def batch_all(inputs: Nodes, batched: Sequence[bool], size: int) -> list[Node]:
    """Inputs of a batching rule, all of them over the new leading axis."""
    pairs = zip(inputs, batched, strict=True)
    return [x if is_batched else broadcast(x, (size, *x.shape)) for x, is_batched in pairs]


def sliding_windows(x: Node, axis: int, size: int, step: int = 1, dilation: int = 1) -> Node:
    """Sliding windows along an axis; the position in the window becomes a new last axis."""
    count = max((x.shape[axis] - (size - 1) * dilation - 1) // step + 1, 0)
    wide = broadcast(reshape(x, (*x.shape, 1)), (*x.shape, size))
    return shear(wide, axis, x.ndim, count, step, dilation, 0, 1)


# -- constants ------------------------------------------------------------------------------------


def zeros(shape: Shape, dtype: DType) -> Node:
    return full(shape, 0, dtype)


def full_like(x: Node, number: Any) -> Node:
    """A constant of the shape, dtype and device of x."""
    return full(x.shape, number, x.dtype, x)


def full(shape: Shape, number: Any, dtype: DType, like: Node | None = None) -> Node:
    """A constant of any shape, on the device of `like` if it may be a result by itself; other
    constants belong to no device."""
    kind = {"complex": complex, "float": float, "bool": bool}.get(dtype.kind, int)
    node = broadcast(constant(kind(number), dtype), shape)
    if like is not None:
        node.device = like.device
    return node


# -- sum ------------------------------------------------------------------------------------------


@functools.lru_cache(4096)
def reduced_shape(shape: Shape, axes: Shape) -> Shape:
    return tuple([n for i, n in enumerate(shape) if i not in axes])


def expand(r: Node, x: Node, axes: Shape) -> Node:
    """A reduced value broadcast along the axes it was reduced over."""
    stored = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    return broadcast(reshape(r, stored), x.shape)


def reduction_batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    axes = tuple(a + 1 for a in node.params)
    return apply(node.prim, (inputs[0],), axes, (size, *node.shape), node.dtype)


def define_reduction(name: str, function: Callable[..., Array], vjp: Any, jvp: Any) -> Primitive:
    def reference(node: Node, x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(function(widen(x), node.params)).astype(node.dtype.np)

    return Primitive(name, "reduce", reference, vjp, unary_jvp(jvp), reduction_batch)


def reduce(prim: Primitive, x: Node, axes: Shape) -> Node:
    return apply(prim, (x,), axes, reduced_shape(x.shape, axes), x.dtype)


_sum = define_reduction(
    "reduce_sum",
    lambda x, axes: np.sum(y := for_sums(x), axis=axes, dtype=y.dtype),
    lambda node, g: (expand(g, node.inputs[0], node.params),),
    lambda node, t: reduce_sum(t, node.params),
)


def reduce_sum(x: Node, axes: Shape) -> Node:
    """The sum over axes, in x's own dtype. Booleans are not summed: cast them first."""
    return x if not axes else reduce(_sum, x, axes)


def unbroadcast(g: Node, shape: Shape) -> Node:
    """The transpose of `broadcast`: sum over the axes along which `shape` was repeated."""
    if g.shape == shape:
        return g
    lead = len(g.shape) - len(shape)
    repeated = (lead + i for i, n in enumerate(shape) if n == 1 and g.shape[lead + i] != 1)
    return reshape(reduce_sum(g, (*range(lead), *repeated)), shape)
