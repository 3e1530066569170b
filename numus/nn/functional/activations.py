"""Activations: element by element, gated by another half, or over an axis.

Composites on narrow floats are computed in float32 and rounded once, at their end.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numus as nm
from numus.nn.functional._tools import in_place, rounds_once, vector
from numus.tensor import Tensor

__all__ = [
    "celu", "elu", "geglu", "gelu", "glu", "gumbel_softmax", "hardshrink", "hardsigmoid",
    "hardswish", "hardtanh", "leaky_relu", "log_softmax", "logsigmoid", "mish", "prelu", "relu",
    "relu6", "rrelu", "selu", "sigmoid", "silu", "softmax", "softmin", "softplus", "softshrink",
    "softsign", "swiglu", "tanh", "tanhshrink", "threshold",
]  # fmt: skip

elu = in_place(nm.elu)
gelu = nm.gelu
leaky_relu = in_place(nm.leaky_relu)
relu = in_place(nm.relu)
sigmoid = nm.sigmoid
silu = in_place(nm.silu)
tanh = nm.tanh

# -- rectifiers and their kin ---------------------------------------------------------------------

_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


@in_place
def threshold(input: Any, threshold: float, value: float) -> Tensor:
    """input where it is above the threshold, the value elsewhere."""
    return nm.where(nm.asarray(input) > threshold, input, value)


@in_place
def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """input clamped between two values."""
    x = nm.where(nm.asarray(input) <= min_val, min_val, input)
    return nm.where(x >= max_val, max_val, x)


@in_place
def relu6(input: Any) -> Tensor:
    """input clamped between 0 and 6."""
    return hardtanh(input, 0.0, 6.0)


@in_place
@rounds_once
def selu(input: Any) -> Tensor:
    """An elu with the scale at which layers keep mean 0 and variance 1."""
    return nm.elu(input, _SELU_ALPHA) * _SELU_SCALE


@in_place
@rounds_once
def celu(input: Any, alpha: float = 1.0) -> Tensor:
    """An elu whose slope at 0 is 1 for every alpha."""
    positive = input >= 0
    below = nm.where(positive, 0.0, input)
    return nm.where(positive, input, alpha * nm.expm1(below / alpha))


def prelu(input: Any, weight: Tensor) -> Tensor:
    """A leaky relu with a learned slope, one for all or one for each channel (axis 1)."""
    x = nm.asarray(input)
    slope = weight.astype(x.dtype, copy=False)
    if slope.size > 1 and (x.ndim < 2 or x.shape[1] != slope.size):
        raise nm.errors.ShapeError(
            f"prelu: {slope.size} slopes for an input of shape {x.shape}; it needs as many "
            "channels (axis 1)"
        )
    shape = (slope.size, *(1,) * (x.ndim - 2)) if slope.size > 1 else ()
    return nm.where(x > 0, x, x * slope.reshape(shape))


@in_place
def rrelu(
    input: Any,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    *,
    key: Any = None,
) -> Tensor:
    """A leaky relu whose slope is random in training, and the middle of its range otherwise."""
    x = nm.asarray(input)
    if not training:
        return nm.leaky_relu(x, (lower + upper) / 2)
    slope = nm.random.uniform(x.shape, lower, upper, dtype=x.dtype, device=x.device, key=key)
    return nm.where(x > 0, x, x * slope)


# -- smooth ---------------------------------------------------------------------------------------


def softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * input)) / beta; input itself where beta * input is past a threshold."""
    x = nm.asarray(input)
    return nm.where(x * beta > threshold, x, nm.softplus(x, beta))


@in_place
@rounds_once
def mish(input: Any) -> Tensor:
    """input * tanh(softplus(input))."""
    return input * nm.tanh(nm.softplus(input))


@rounds_once
def logsigmoid(input: Any) -> Tensor:
    """log(sigmoid(input)), exact where that underflows."""
    return -nm.softplus(-input)


@rounds_once
def softsign(input: Any) -> Tensor:
    """input / (1 + |input|)."""
    return input / (1.0 + nm.abs(input))


@rounds_once
def tanhshrink(input: Any) -> Tensor:
    """input - tanh(input)."""
    return input - nm.tanh(input)


# -- straight pieces ------------------------------------------------------------------------------


@in_place
@rounds_once
def hardsigmoid(input: Any) -> Tensor:
    """A sigmoid made of straight pieces."""
    return relu6(input + 3.0) / 6.0


@in_place
@rounds_once
def hardswish(input: Any) -> Tensor:
    """input * hardsigmoid(input)."""
    return input * relu6(input + 3.0) / 6.0


def hardshrink(input: Any, lambd: float = 0.5) -> Tensor:
    """input, but 0 within [-lambd, lambd]."""
    x = nm.asarray(input)
    return nm.where(nm.abs(x) <= lambd, 0.0, x)


def softshrink(input: Any, lambd: float = 0.5) -> Tensor:
    """input moved towards 0 by lambd, and 0 where it was within [-lambd, lambd]."""
    x = nm.asarray(input)
    return nm.where(x > lambd, x - lambd, nm.where(x < -lambd, x + lambd, 0.0))


# -- gated ----------------------------------------------------------------------------------------


def _halves(op: str, input: Any, dim: int) -> tuple[Tensor, ...]:
    x = nm.asarray(input)
    if x.ndim == 0 or x.shape[dim] % 2:
        raise nm.errors.ShapeError(f"{op}: axis {dim} of shape {x.shape} does not part in halves")
    return nm.split(x, 2, axis=dim)


def glu(input: Any, dim: int = -1) -> Tensor:
    """The first half times the sigmoid of the second."""
    a, gate = _halves("glu", input, dim)
    return a * nm.sigmoid(gate)


def swiglu(input: Any, dim: int = -1) -> Tensor:
    """The silu of the first half times the second."""
    gate, a = _halves("swiglu", input, dim)
    return nm.silu(gate) * a


def geglu(input: Any, dim: int = -1, approximate: str = "none") -> Tensor:
    """The gelu of the first half times the second."""
    gate, a = _halves("geglu", input, dim)
    return nm.gelu(gate, approximate) * a


# -- over an axis ---------------------------------------------------------------------------------


def _cast(input: Any, dtype: Any) -> Tensor:
    x = nm.asarray(input)
    return x if dtype is None else x.astype(dtype, copy=False)


def _axis(x: Tensor, dim: int | None) -> int:
    """The axis meant; none given: the one that PyTorch takes then, and warns of."""
    if dim is not None:
        return dim
    implied = 0 if x.ndim in (0, 1, 3) else 1
    if implied < x.ndim - 1:
        warnings.warn(
            f"softmax without dim is over axis {implied} of shape {x.shape}, as in PyTorch; say "
            "which axis you mean",
            stacklevel=4,
        )
    return implied


def _over_axis(function: Callable[..., Tensor], input: Any, dim: int | None, dtype: Any) -> Tensor:
    x = _cast(input, dtype)
    out = function(vector(x), axis=_axis(x, dim))
    return out if x.ndim else out.reshape(())


def softmax(input: Any, dim: int | None = None, *, dtype: Any = None) -> Tensor:
    """exp(input) over its sum along an axis."""
    return _over_axis(nm.softmax, input, dim, dtype)


def softmin(input: Any, dim: int | None = None, *, dtype: Any = None) -> Tensor:
    """The softmax of -input."""
    return _over_axis(nm.softmin, input, dim, dtype)


def log_softmax(input: Any, dim: int | None = None, *, dtype: Any = None) -> Tensor:
    """The logarithm of the softmax."""
    return _over_axis(nm.log_softmax, input, dim, dtype)


def gumbel_softmax(
    logits: Any, tau: float = 1.0, hard: bool = False, dim: int = -1, *, key: Any = None
) -> Tensor:
    """A sample of a categorical distribution that gradients flow through.

    Args:
        tau: the temperature; near 0 the sample is nearly one-hot.
        hard: give a one-hot sample, with the gradient of the soft one.
    """
    x = nm.asarray(logits)
    noise = nm.random.gumbel(x.shape, dtype=x.dtype, device=x.device, key=key)
    soft = nm.softmax((x + noise) / tau, axis=dim)
    if not hard:
        return soft
    winner = nm.argmax(soft, axis=dim, keepdims=True)
    count = nm.arange(x.shape[dim], device=x.device)
    axis = dim % x.ndim
    ones = count.reshape((x.shape[dim], *(1,) * (x.ndim - 1 - axis))) == winner
    return ones.astype(x.dtype, copy=False) - soft.detach() + soft
