"""First values for parameters, in place, under PyTorch's names.

Each takes the tensor to fill and gives it back; `key=` draws from a key of your own.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import numus as nm
from numus.tensor import Tensor

__all__ = [
    "calculate_gain", "constant_", "dirac_", "eye_", "kaiming_normal_", "kaiming_uniform_",
    "normal_", "ones_", "orthogonal_", "sparse_", "trunc_normal_", "uniform_", "xavier_normal_",
    "xavier_uniform_", "zeros_",
]  # fmt: skip


def _fill(tensor: Tensor, values: Tensor) -> Tensor:
    with nm.no_grad():
        return tensor.assign(values.to(tensor.device))


def _options(tensor: Tensor) -> dict[str, Any]:
    return {"dtype": tensor.dtype, "device": tensor.device}


def constant_(tensor: Tensor, val: float) -> Tensor:
    """The same number everywhere."""
    return _fill(tensor, nm.full(tensor.shape, val, **_options(tensor)))


def zeros_(tensor: Tensor) -> Tensor:
    """Zeros."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Ones."""
    return constant_(tensor, 1.0)


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, *, key: Any = None) -> Tensor:
    """Numbers from [a, b)."""
    return _fill(tensor, nm.random.uniform(tensor.shape, a, b, key=key, **_options(tensor)))


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, *, key: Any = None) -> Tensor:
    """Normal numbers."""
    return _fill(tensor, nm.random.normal(tensor.shape, mean, std, key=key, **_options(tensor)))


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    *,
    key: Any = None,
) -> Tensor:
    """Normal numbers on the condition that they lie in [a, b]."""
    low, high = (a - mean) / std, (b - mean) / std
    drawn = nm.random.truncated_normal(tensor.shape, low, high, key=key, **_options(tensor))
    return _fill(tensor, drawn * std + mean)


def eye_(tensor: Tensor) -> Tensor:
    """Ones on the diagonal of a matrix."""
    rows, columns = _ranked("eye_", tensor, 2).shape
    return _fill(tensor, nm.eye(rows, columns, dtype=tensor.dtype))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """A convolution's weight that passes its channels on unchanged."""
    if not 3 <= tensor.ndim <= 5 or tensor.shape[0] % groups:
        raise ValueError(
            f"dirac_: takes a convolution's weight whose outputs part into {groups} groups, not "
            f"one of shape {tensor.shape}"
        )
    rows = tensor.shape[0] // groups
    channel = nm.tile(nm.eye(rows, tensor.shape[1], dtype=tensor.dtype), (groups, 1))
    for extent in tensor.shape[2:]:
        middle = (nm.arange(extent) == extent // 2).astype(tensor.dtype)
        channel = channel[..., None] * middle
    return _fill(tensor, channel)


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, *, key: Any = None) -> Tensor:
    """Normal numbers in a matrix, a share `sparsity` of each column zero."""
    rows, columns = _ranked("sparse_", tensor, 2).shape
    first, second = (None, None) if key is None else nm.random.split(key)
    order = nm.argsort(nm.random.uniform((rows, columns), key=first), axis=0)
    rank = nm.argsort(order, axis=0)
    drawn = nm.random.normal((rows, columns), 0.0, std, dtype=tensor.dtype, key=second)
    return _fill(tensor, nm.where(rank < math.ceil(sparsity * rows), 0.0, drawn))


# -- scaled by the number of inputs and outputs ---------------------------------------------------

_GAINS = {
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d", "sigmoid"), 1.0),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), 1.0),
    **{"tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 3.0 / 4},
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """By how much to scale weights before an activation, so that variances stay as they are."""
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        raise ValueError(f"calculate_gain: {nonlinearity!r} is not one of {', '.join(_GAINS)}")
    return _GAINS[nonlinearity]


def fans(tensor: Tensor) -> tuple[int, int]:
    """How many inputs each output of a weight has, and how many outputs each input."""
    if tensor.ndim < 2:
        raise ValueError(f"init: a tensor of shape {tensor.shape} has no inputs and outputs")
    window = math.prod(tensor.shape[2:])
    return tensor.shape[1] * window, tensor.shape[0] * window


def fan_in_uniform_(layer: Any, fan_in: int) -> None:
    """Draw the weight and bias of a layer from ±1 / sqrt(fan_in), PyTorch's default."""
    bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
    for parameter in (layer.weight, layer.bias):
        if parameter is not None:
            uniform_(parameter, -bound, bound)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, *, key: Any = None) -> Tensor:
    """Uniform numbers whose variance suits both directions (Glorot and Bengio)."""
    bound = gain * math.sqrt(6.0 / sum(fans(tensor)))
    return uniform_(tensor, -bound, bound, key=key)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, *, key: Any = None) -> Tensor:
    """Normal numbers whose variance suits both directions (Glorot and Bengio)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(fans(tensor))), key=key)


def _kaiming(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f'init: mode is "fan_in" or "fan_out", not {mode!r}')
    fan = fans(tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    *,
    key: Any = None,
) -> Tensor:
    """Uniform numbers whose variance suits rectifiers (He et al.)."""
    bound = math.sqrt(3.0) * _kaiming(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, key=key)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    *,
    key: Any = None,
) -> Tensor:
    """Normal numbers whose variance suits rectifiers (He et al.)."""
    return normal_(tensor, 0.0, _kaiming(tensor, a, mode, nonlinearity), key=key)


def orthogonal_(tensor: Tensor, gain: float = 1.0, *, key: Any = None) -> Tensor:
    """Rows (or columns, where those are fewer) at right angles, each of length `gain`."""
    if tensor.ndim < 2:
        raise ValueError(f"orthogonal_: takes at least two axes, not shape {tensor.shape}")
    rows = tensor.shape[0]
    columns = math.prod(tensor.shape[1:])
    tall = nm.random.normal((max(rows, columns), min(rows, columns)), dtype="float64", key=key)
    q, r = np.linalg.qr(tall.numpy())
    basis = nm.asarray(q * np.where(np.diagonal(r) < 0, -1.0, 1.0))  # unique, so uniform
    basis = basis if rows >= columns else basis.T
    return _fill(tensor, (basis * gain).reshape(tensor.shape))


def _ranked(op: str, tensor: Tensor, rank: int) -> Tensor:
    if tensor.ndim != rank:
        raise ValueError(f"{op}: takes a tensor of {rank} axes, not of shape {tensor.shape}")
    return tensor
