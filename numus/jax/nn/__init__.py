"""`jax.nn`: activations, softmax, attention, and `initializers`."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.jax import numpy as jnp
from numus.jax._adapt import forwarder, to_tensor
from numus.jax.nn import initializers
from numus.nn import functional as F
from numus.tensor import Tensor

_SAME = "celu elu relu relu6 selu sigmoid silu softplus tanh identity logsumexp mish"
_OTHER = {
    "hard_sigmoid": "hardsigmoid", "hard_silu": "hardswish", "hard_swish": "hardswish",
    "hard_tanh": "hardtanh", "log_sigmoid": "logsigmoid", "soft_sign": "softsign", "swish": "silu",
}  # fmt: skip


def _source(name: str) -> Any:
    name = _OTHER.get(name, name)
    return getattr(nm, name) if hasattr(nm, name) else getattr(F, name)


__getattr__, __dir__ = forwarder(__name__, [*_SAME.split(), *_OTHER], _source, {})
__all__ = ["initializers"]  # and what follows


def gelu(x: Any, approximate: bool = True) -> Tensor:
    """GELU, by default the approximation by tanh."""
    return nm.gelu(to_tensor(x), approximate="tanh" if approximate else "none")


def leaky_relu(x: Any, negative_slope: Any = 0.01) -> Tensor:
    """ReLU with a slope below 0."""
    return nm.leaky_relu(to_tensor(x), negative_slope)


def glu(x: Any, axis: int = -1) -> Tensor:
    """Gated linear unit."""
    return F.glu(to_tensor(x), dim=axis)


def _masked(x: Any, where: Any) -> Tensor:
    return to_tensor(x) if where is None else jnp.where(where, x, -nm.inf)


def softmax(x: Any, axis: Any = -1, where: Any = None, **hints: Any) -> Tensor:
    """Softmax along an axis or several."""
    x = _masked(x, where)
    return nm.exp(log_softmax(x, axis)) if isinstance(axis, tuple) else nm.softmax(x, axis=axis)


def log_softmax(x: Any, axis: Any = -1, where: Any = None) -> Tensor:
    """The logarithm of softmax."""
    x = _masked(x, where)
    if isinstance(axis, tuple):
        return x - nm.logsumexp(x, axis=axis, keepdims=True)
    return nm.log_softmax(x, axis=axis)


def one_hot(x: Any, num_classes: int, *, dtype: Any = float, axis: int = -1) -> Tensor:
    """Vectors with a one at an index."""
    x = to_tensor(x)
    hot = jnp.expand_dims(x, axis) == nm.reshape(
        nm.arange(num_classes), [-1 if k == axis % (x.ndim + 1) else 1 for k in range(x.ndim + 1)]
    )
    return to_tensor(hot, dtype)


def standardize(x: Any, axis: Any = -1, epsilon: float = 1e-5, **options: Any) -> Tensor:
    """With mean 0 and variance 1 along an axis."""
    x = to_tensor(x)
    mean, variance = (f(x, axis=axis, keepdims=True) for f in (nm.mean, nm.var))
    return (x - mean) * nm.rsqrt(variance + epsilon)


def squareplus(x: Any, b: Any = 4) -> Tensor:
    """A smooth ReLU without exponentials."""
    x = to_tensor(x)
    return 0.5 * (x + nm.sqrt(x * x + b))


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    **hints: Any,
) -> Tensor:
    """Attention of (batch, time, heads, size); heads of keys may be shared."""
    q, k, v = (nm.swapaxes(to_tensor(x), -2, -3) for x in (query, key, value))
    shared = q.shape[-3] // k.shape[-3]
    if shared > 1:
        k, v = (nm.repeat(x, shared, axis=-3) for x in (k, v))
    bias = None if bias is None else to_tensor(bias)
    if mask is not None:
        hidden = jnp.where(mask, 0.0, -nm.inf)
        bias = hidden if bias is None else bias + hidden
    found = nm.scaled_dot_product_attention(
        q, k, v, attn_mask=bias, is_causal=is_causal, scale=scale
    )
    return nm.swapaxes(found, -2, -3)
