"""Blocks that families of language models share: norms, gated feed-forward layers, heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numus as nm
from numus import nn
from numus.tensor import Tensor

__all__ = ["Conv1D", "GatedMLP", "RMSNorm", "activation", "through_blocks", "wide_norm"]


def _gelu_tanh(x: Tensor) -> Tensor:
    return nn.gelu(x, approximate="tanh")


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": nn.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "relu": nm.relu,
    "silu": nn.silu,
    "swish": nn.silu,
    "tanh": nm.tanh,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """An activation under transformers' name."""
    if name not in _ACTIVATIONS:
        known = ", ".join(sorted(_ACTIVATIONS))
        raise ValueError(f"the activation {name!r} is not known; {known} are")
    return _ACTIVATIONS[name]


def through_blocks(
    blocks: Iterable[Callable[[Tensor], Tensor]], x: Tensor, recompute: bool
) -> Tensor:
    """x through blocks; with `recompute`, backward computes what is inside of each once more."""
    for block in blocks:
        x = nm.checkpoint(block)(x) if recompute else block(x)
    return x


def wide_norm(x: Tensor, eps: float) -> Tensor:
    """x over the root of the mean of its squares, in at least float32."""
    wide = x.astype(nm.float32, copy=False) if x.dtype.itemsize < 4 else x
    return wide * nm.rsqrt(nm.mean(wide * wide, axis=-1, keepdims=True) + eps)


class RMSNorm(nn.Module):
    """x over the root of its mean square, times the weight (Zhang and Sennrich 2019).

    Args:
        offset: added to the weight; Gemma stores its weights less one.
    """

    def __init__(self, size: int, eps: float = 1e-6, offset: float = 0.0) -> None:
        self.weight = nn.Parameter(nm.zeros(size) if offset else nm.ones(size))
        self.eps, self.offset = eps, offset

    def forward(self, x: Tensor) -> Tensor:
        normed = wide_norm(x, self.eps)
        if self.offset:
            return (normed * (self.weight.astype(normed.dtype) + self.offset)).astype(x.dtype)
        return self.weight * normed.astype(x.dtype, copy=False)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)): SwiGLU and its kin (Shazeer 2020)."""

    def __init__(self, width: int, hidden: int, act: str, bias: bool = False) -> None:
        self.gate_proj = nn.Linear(width, hidden, bias=bias)
        self.up_proj = nn.Linear(width, hidden, bias=bias)
        self.down_proj = nn.Linear(hidden, width, bias=bias)
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class Conv1D(nn.Module):
    """x @ weight + bias, the weight with a row for every input: GPT-2's linear layers."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.weight = nn.Parameter(nm.random.normal((inputs, outputs)) * 0.02)
        self.bias = nn.Parameter(nm.zeros(outputs))

    def forward(self, x: Any) -> Tensor:
        return x @ self.weight + self.bias

    def as_linear(self) -> nn.Linear:
        """The same as a linear layer, whose weight has a row for every output."""
        inputs, outputs = self.weight.shape
        layer = nn.Linear(inputs, outputs)
        layer.weight = nn.Parameter(self.weight.detach().T)
        layer.bias = nn.Parameter(self.bias.detach())
        return layer

    @staticmethod
    def of(layer: nn.Linear) -> Conv1D:
        """A linear layer in this form."""
        made = Conv1D(0, 0)
        made.weight = nn.Parameter(layer.weight.detach().T)
        bias = nm.zeros(layer.out_features) if layer.bias is None else layer.bias.detach()
        made.bias = nn.Parameter(bias.to(layer.weight.device))
        return made

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"
