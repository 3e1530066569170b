"""Attention: weighted means of values, the weights a softmax of how queries match keys."""

from __future__ import annotations

import math
from typing import Any

from numus import dtypes as dt
from numus.errors import DTypeError, ShapeError
from numus.functions._base import common, node_of, require, scalar_node, wrap
from numus.functions.autocast import lowers
from numus.functions.template_cache import templated
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.attention.fused import attention
from numus.primitives.broadcast import broadcast
from numus.primitives.source import constant
from numus.primitives.views import reshape
from numus.shapes import Shape, size_of
from numus.shapes import broadcast as broadcast_shapes
from numus.tensor import Tensor

__all__ = ["scaled_dot_product_attention"]

_NAME = "scaled_dot_product_attention"


def _shared_heads(q: Node, x: Node, name: str) -> Node:
    """Keys or values with each head seen by its group of query heads: a view, never a copy."""
    if q.ndim < 3 or x.ndim < 3:
        raise ShapeError(
            f"{_NAME}: enable_gqa needs heads as axis -3; query is of shape {q.shape}, "
            f"{name} of shape {x.shape}"
        )
    heads, own = q.shape[-3], x.shape[-3]
    if own == 0 or heads % own:
        raise ShapeError(
            f"{_NAME}: {heads} query heads do not share {own} {name} heads evenly; "
            f"query is of shape {q.shape}, {name} of shape {x.shape}"
        )
    if heads == own:
        return x
    *lead, _, rows, columns = x.shape
    grouped = reshape(x, (*lead, own, 1, rows, columns))
    grouped = broadcast(grouped, (*lead, own, heads // own, rows, columns))
    return reshape(grouped, (*lead, heads, rows, columns))


def _bias(mask: Any, q: Node, shape: Shape) -> Node:
    """A mask as an addend of the scores: -inf where a boolean one is false."""
    node, wide = node_of(mask, _NAME, q.device), dt.compute_dtype(q.dtype)
    if node.dtype is dt.bool_:
        node = ew.where(node, constant(0.0, wide), constant(-math.inf, wide))
    elif not node.dtype.is_floating:
        raise DTypeError(
            f"{_NAME}: attn_mask is bool (true: the key counts) or float (added to the scores), "
            f"not {node.dtype.name}"
        )
    if broadcast_shapes(node.shape, shape, _NAME) != shape:
        raise ShapeError(
            f"{_NAME}: attn_mask of shape {node.shape} does not broadcast to the scores' "
            f"shape {shape}"
        )
    return broadcast(ew.cast(node, wide), shape)


def _check(q: Node, k: Node, v: Node) -> None:
    shapes = f"query {q.shape}, key {k.shape}, value {v.shape}"
    if min(q.ndim, k.ndim, v.ndim) < 2:
        raise ShapeError(f"{_NAME}: takes at least two axes, (length, size); got {shapes}")
    if q.shape[-1] != k.shape[-1]:
        raise ShapeError(f"{_NAME}: queries and keys must be of one size; got {shapes}")
    if k.shape[-2] != v.shape[-2]:
        raise ShapeError(f"{_NAME}: there must be a value for each key; got {shapes}")


@lowers
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    dropout_key: Tensor | None = None,
) -> Tensor:
    """softmax(query @ key.mT * scale + mask) @ value, in memory linear in the lengths.

    Shapes are (..., L, E), (..., S, E) and (..., S, F); leading axes broadcast. Scores are computed
    in tiles that never reach memory, forwards and in reverse: saved for backward are the result and
    one number per query. Forward mode, gradients of gradients and the gradient of a mask do store
    all scores.

    Args:
        attn_mask: of a shape that broadcasts to (..., L, S). Boolean: the keys that count. Float:
            added to the scores. A query that may look at no key gives zeros.
        dropout_p: the probability with which a weight is left out; the others are divided by
            1 - dropout_p. Drawn from `dropout_key`, or from the generator.
        is_causal: query i looks at keys 0 … i alone. Not together with a mask.
        scale: 1 / sqrt(E) unless it is given.
        enable_gqa: several query heads (axis -3) share a head of keys and values, which is not
            repeated in memory.

    >>> q, k = nm.zeros((1, 2, 4)), nm.zeros((1, 2, 4))
    >>> v = nm.asarray([[[1.0, 2.0], [3.0, 4.0]]])
    >>> nm.scaled_dot_product_attention(q, k, v).tolist()
    [[[2.0, 3.0], [2.0, 3.0]]]
    >>> nm.scaled_dot_product_attention(q, k, v, is_causal=True).tolist()
    [[[1.0, 2.0], [2.0, 3.0]]]
    """
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"{_NAME}: dropout_p={dropout_p} must be between 0 and 1")
    given = (query, key, value, attn_mask, is_causal, scale, enable_gqa)
    return _attend(*given, dropout_p, dropout_key) if dropout_p else _attend_to_all(*given)


def _attend(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    dropout_p: float = 0.0,
    dropout_key: Tensor | None = None,
) -> Tensor:
    q, k, v = (require(_NAME, x, "float") for x in common(_NAME, query, key, value))
    _check(q, k, v)
    if is_causal and attn_mask is not None:
        raise ValueError(f"{_NAME}: give attn_mask or is_causal, not both")
    if enable_gqa:
        k, v = _shared_heads(q, k, "key"), _shared_heads(q, v, "value")
    lead: Shape = ()
    for x in (q, k, v):
        lead = broadcast_shapes(lead, x.shape[:-2], _NAME)
    stack, (length, size), keys = size_of(lead), q.shape[-2:], k.shape[-2]

    def stacked(x: Node) -> Node:
        return reshape(broadcast(x, (*lead, *x.shape[-2:])), (stack, *x.shape[-2:]))

    wide = dt.compute_dtype(q.dtype)
    bias = None
    if attn_mask is not None:
        bias = stacked(_bias(attn_mask, q, (*lead, length, keys)))
    keep = None
    if dropout_p:
        from numus.random import dropout_mask  # a layer above this one

        mask = dropout_mask((stack, length, keys), dropout_p, device=q.device, key=dropout_key)
        rest = 0.0 if dropout_p == 1 else 1 / (1 - dropout_p)
        keep = ew.where(mask._node, constant(rest, wide), constant(0.0, wide))
    if scale is None:
        scale = 1 / math.sqrt(size) if size else 1.0
    elif isinstance(scale, Tensor):  # gradients flow to it through the query
        q, scale = ew.cast(ew.mul(ew.cast(q, wide), scalar_node(scale, wide)), q.dtype), 1.0
    elif scale < 0:  # kernels take the maximum of scores before they scale them
        q, scale = ew.neg(q), -scale
    operands = (stacked(q), stacked(k), stacked(v), scalar_node(scale, wide))
    out = attention(*operands, bias=bias, keep=keep, causal=bool(is_causal))
    return wrap(reshape(out, (*lead, length, v.shape[-1])))


_attend_to_all = templated(_attend, rows=3)  # without dropout, which draws other numbers each time
