"""Fused attention (FlashAttention): softmax(scale q k' + bias) v without materialised scores.

Three primitives on stacks of matrices, q (n, L, E), k (n, S, E), v (n, S, F):

    attention_lse    (n, L)     the logarithm of the sum of exp(scores) of each query
    attention        (n, L, F)  exp(scores - lse) v
    attention_grad   like q, k or v: the cotangent of one of them

`lse`, and `delta`, the inner product of the result with its cotangent, are operands that follow
from the others: derivatives are taken with respect to those alone. A fully masked query has the lse
+inf, so that its weights and its result are 0.

The scale is not negative. `bias` is added to the scores, `keep` multiplies the weights (dropout: 0
or 1 / (1 - p)). Both are expressions of shape (n, L, S), fused and never stored. `causal` lets
query i see keys 0 … i.

The backward pass is a kernel; forward mode and second derivatives are compositions
(`attention_rules.py`) that do materialise the scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from numus import dtypes as dt
from numus.dispatch.apply import apply
from numus.dtypes import DType
from numus.graph import Array, Node, Nodes, Primitive, Tangents
from numus.primitives import elementwise as ew
from numus.primitives.attention import rules
from numus.primitives.attention.rules import Operands
from numus.primitives.broadcast import broadcast, reduce_sum
from numus.primitives.views import reshape
from numus.shapes import Shape

# -- parameters and inputs ------------------------------------------------------------------------


class Params(NamedTuple):
    """The names of a node's inputs; of a derivative, also the operand it is the cotangent of."""

    causal: bool
    names: tuple[str, ...]
    which: str = ""


def _operands(node: Node) -> Operands:
    """The operands of any of the three primitives."""
    given = dict(zip(node.params.names, node.inputs, strict=True))
    if node.prim is _lse:
        given["lse"] = node
    return Operands(
        *(given["q"], given["k"], given["scale"], given.get("bias"), given["lse"]),
        *(given.get("v"), given.get("keep"), node.params.causal),
    )


def _apply(
    prim: Primitive,
    inputs: dict[str, Node | None],
    causal: bool,
    shape: Shape,
    dtype: DType,
    which: str = "",
) -> Node:
    given = {name: x for name, x in inputs.items() if x is not None}
    params = Params(causal, tuple(given), which)
    return apply(prim, tuple(given.values()), params, shape, dtype)


def _in_order(node: Node, found: rules.Cotangents) -> tuple[Node | None, ...]:
    """The cotangent of each input."""
    return tuple(found.get(name) for name in node.params.names)


def _named(node: Node, tangents: Tangents) -> dict[str, Node]:
    """The tangents that are not zero, by the names of their operands."""
    pairs = zip(node.params.names, tangents, strict=True)
    return {name: t for name, t in pairs if t is not None}


def _batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    """The new axis joins the stack; the scale is shared."""

    def flattened(x: Node, is_batched: bool) -> Node:
        if x.ndim == 0:
            return x
        if not is_batched:
            x = broadcast(x, (size, *x.shape))
        return reshape(x, (size * x.shape[1], *x.shape[2:]))

    whole = tuple(flattened(x, b) for x, b in zip(inputs, batched, strict=True))
    stack = size * node.shape[0]
    out = apply(node.prim, whole, node.params, (stack, *node.shape[1:]), node.dtype)
    return reshape(out, (size, *node.shape))


def _arrays(node: Node, arrays: Sequence[Array]) -> dict[str, Any]:
    """The reference's operands by name, in the dtype of the computation."""
    wide = dt.compute_dtype(node.inputs[0].dtype).np
    return {name: a.astype(wide) for name, a in zip(node.params.names, arrays, strict=True)}


def _scores(x: dict[str, Any], causal: bool) -> Array:
    s = np.matmul(x["q"] * x["scale"], np.swapaxes(x["k"], 1, 2))
    if "bias" in x:
        s = s + x["bias"]
    if causal:
        s = np.where(np.tri(*s.shape[1:]) != 0, s, -np.inf)
    return np.asarray(s)


# -- the logarithm of the sum ---------------------------------------------------------------------


def _lse_reference(node: Node, *arrays: Array) -> Array:
    x = _arrays(node, arrays)
    with np.errstate(all="ignore"):
        s = _scores(x, node.params.causal)
        top = np.max(s, axis=2, initial=-np.inf)
        shift = np.where(np.isinf(top), 0, top)
        total = np.exp(s - shift[..., None]).sum(2)
        found = np.where(total == 0, np.inf, np.log(total) + shift)
    return found.astype(node.dtype.np)


def _lse_vjp(node: Node, g: Node) -> tuple[Node | None, ...]:
    return _in_order(node, rules.lse_vjp(_operands(node), g))


def _lse_jvp(node: Node, tangents: Tangents) -> Node | None:
    return rules.lse_jvp(_operands(node), _named(node, tangents))


_lse = Primitive("attention_lse", "attention", _lse_reference, _lse_vjp, _lse_jvp, _batch)


def attention_lse(q: Node, k: Node, scale: Node, bias: Node | None, causal: bool) -> Node:
    """log(sum(exp(scores))) of every query, in the dtype of the computation."""
    inputs = {"q": q, "k": k, "scale": scale, "bias": bias}
    return _apply(_lse, inputs, causal, q.shape[:2], dt.compute_dtype(q.dtype))


# -- attention ------------------------------------------------------------------------------------


def _attention_reference(node: Node, *arrays: Array) -> Array:
    x = _arrays(node, arrays)
    with np.errstate(all="ignore"):
        p = np.exp(_scores(x, node.params.causal) - x["lse"][..., None])
        p = p * x["keep"] if "keep" in x else p
        return np.matmul(p, x["v"]).astype(node.dtype.np)


def _attention_vjp(node: Node, g: Node) -> tuple[Node | None, ...]:
    o = _operands(node)
    assert o.v is not None
    wide = o.lse.dtype
    delta = reduce_sum(ew.mul(ew.cast(g, wide), ew.cast(node, wide)), (2,))

    operands = {"q": o.q, "k": o.k, "v": o.v}
    found: rules.Cotangents = {
        which: attention_grad(which, o, g, delta) for which, x in operands.items() if x.tracked
    }
    if o.bias is not None and o.bias.tracked:
        found["bias"] = rules.bias_cotangent(o, g, delta)
    return _in_order(node, found)


def _attention_jvp(node: Node, tangents: Tangents) -> Node | None:
    return rules.attention_jvp(_operands(node), _named(node, tangents), node.dtype)


_attention = Primitive(
    "attention", "attention", _attention_reference, _attention_vjp, _attention_jvp, _batch
)


def attention(
    q: Node,
    k: Node,
    v: Node,
    scale: Node,
    *,
    bias: Node | None = None,
    keep: Node | None = None,
    causal: bool = False,
) -> Node:
    """softmax(scale q k' + bias) v over stacks of matrices of one dtype; `scale` is a number in
    the dtype of the computation.
    """
    lse = attention_lse(q, k, scale, bias, causal)
    o = Operands(q, k, scale, bias, lse, v, keep, causal)
    return _apply(_attention, o.inputs, causal, (*q.shape[:2], v.shape[2]), q.dtype)


# -- its derivative -------------------------------------------------------------------------------


def _grad_reference(node: Node, *arrays: Array) -> Array:
    x = _arrays(node, arrays)
    which = node.params.which
    with np.errstate(all="ignore"):
        p = np.exp(_scores(x, node.params.causal) - x["lse"][..., None])
        keep = x.get("keep", 1)
        if which == "v":
            found = np.matmul(np.swapaxes(p * keep, 1, 2), x["g"])
        else:
            d = np.matmul(x["g"], np.swapaxes(x["v"], 1, 2)) * keep
            d = p * (d - x["delta"][..., None]) * x["scale"]
            other = x["k"] if which == "q" else x["q"]
            found = np.matmul(d if which == "q" else np.swapaxes(d, 1, 2), other)
    return found.astype(node.dtype.np)


def _grad_vjp(node: Node, h: Node) -> tuple[Node | None, ...]:
    g = node.inputs[node.params.names.index("g")]
    return _in_order(node, rules.grad_vjp(_operands(node), g, node.params.which, h))


def _grad_jvp(node: Node, tangents: Tangents) -> Node | None:
    g = node.inputs[node.params.names.index("g")]
    t = _named(node, tangents)
    return rules.grad_jvp(_operands(node), g, node.params.which, t, node.dtype)


_grad = Primitive("attention_grad", "attention_grad", _grad_reference, _grad_vjp, _grad_jvp, _batch)


def attention_grad(which: str, o: Operands, g: Node, delta: Node) -> Node:
    """The cotangent of q, k or v, where g is that of the result and delta holds <g, result>."""
    x = {"q": o.q, "k": o.k, "v": o.v}[which]
    assert x is not None
    inputs = {**o.inputs, "g": g, "delta": delta}
    return _apply(_grad, inputs, o.causal, x.shape, x.dtype, which)
