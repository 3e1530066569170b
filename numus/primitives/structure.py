"""Concatenation, materialisation and device transfers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from numus.dispatch.apply import apply
from numus.graph import Node, Primitive, Tangents
from numus.primitives.base import unary_jvp
from numus.primitives.broadcast import batch_all, full
from numus.primitives.views import take_range
from numus.runtime.devices import Device

# -- concat ---------------------------------------------------------------------------------------


def _concat_vjp(node: Node, g: Node) -> tuple[Node, ...]:
    sizes = [x.shape[node.params] for x in node.inputs]
    ends = itertools.accumulate(sizes)
    return tuple(take_range(g, node.params, e - n, e) for n, e in zip(sizes, ends, strict=True))


def _concat_jvp(node: Node, tangents: Tangents) -> Node | None:
    if all(t is None for t in tangents):
        return None
    parts = tuple(
        full(x.shape, 0, x.dtype) if t is None else t
        for x, t in zip(node.inputs, tangents, strict=True)
    )
    return concat(parts, node.params)


_concat = Primitive(
    "concat",
    "concat",
    reference=lambda node, *xs: np.concatenate(xs, axis=node.params),
    vjp=_concat_vjp,
    jvp=_concat_jvp,
    batch=lambda node, *args: concat(tuple(batch_all(*args)), node.params + 1),
)


def concat(xs: tuple[Node, ...], axis: int) -> Node:
    """Concatenation along an existing axis."""
    if len(xs) == 1:
        return xs[0]
    first = xs[0]
    total = sum(x.shape[axis] for x in xs)
    shape = tuple(total if i == axis else n for i, n in enumerate(first.shape))
    return apply(_concat, xs, axis, shape, first.dtype)


# -- copy, barrier, transfer ----------------------------------------------------------------------


def _identity(name: str) -> Primitive:
    return Primitive(
        name,
        "barrier",
        reference=lambda node, x: np.array(x),
        vjp=lambda node, g: (g,),
        jvp=lambda node, ts: ts[0],
        batch=lambda node, xs, *_: apply(node.prim, (xs[0],), node.params, xs[0].shape, node.dtype),
    )


_copy = _identity("copy")


def copy(x: Node) -> Node:
    """A row-major copy."""
    return apply(_copy, (x,), None, x.shape, x.dtype)


def distinct_copy(x: Node, token: int) -> Node:
    """A copy that is never merged with another of the same value."""
    return apply(_copy, (x,), token, x.shape, x.dtype)


_barrier = _identity("barrier")


def barrier(x: Node, token: Any) -> Node:
    """The same value, computed anew: never merged with an equal computation elsewhere.

    `token` names the occasion; barriers with the same token and input are one.
    """
    return apply(_barrier, (x,), token, x.shape, x.dtype)


def _transfer_vjp(node: Node, g: Node) -> tuple[Node]:
    source = node.inputs[0].device
    return (transfer(g, source) if source is not None else g,)


_transfer = Primitive(
    "transfer",
    "barrier",
    reference=lambda node, x: np.array(x),
    vjp=_transfer_vjp,
    jvp=unary_jvp(lambda node, t: transfer(t, node.params)),
    batch=lambda node, xs, batched, size: transfer(xs[0], node.params),
)


def transfer(x: Node, device: Device) -> Node:
    """The value on another device."""
    if x.device is device:
        return x
    device.require(x.dtype, "to")
    node = apply(_transfer, (x,), device, x.shape, x.dtype)
    node.device = device
    return node
