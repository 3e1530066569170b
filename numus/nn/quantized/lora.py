"""LoRA (Hu et al. 2022) and QLoRA (Dettmers et al. 2023): adapters of low rank on fixed weights."""

from __future__ import annotations

import math
from typing import Any

import numus as nm
from numus.nn.layers.linear import Linear
from numus.nn.module import Module
from numus.nn.parameter import Parameter
from numus.nn.quantized.layers import QLinear
from numus.tensor import Tensor

__all__ = ["LoRALinear", "add_lora_"]


class LoRALinear(Module):
    """base(x) + alpha / rank * (x @ a.T) @ b.T: only `a` and `b` are learned.

    >>> from numus import nn
    >>> layer = nn.LoRALinear(nn.Linear(64, 32), rank=4, format="nf4-g64")
    >>> [name for name, p in layer.named_parameters() if p.requires_grad]
    ['a', 'b']

    Args:
        layer: the layer to adapt, which is fixed from now on.
        format: that its weight is rounded to (QLoRA); None keeps it in full.
    """

    def __init__(
        self, layer: Linear | QLinear, rank: int = 8, alpha: float = 16.0, format: Any = None
    ) -> None:
        if rank < 1:
            raise ValueError(f"LoRALinear: rank={rank} must be at least 1")
        if format is not None and isinstance(layer, QLinear):
            raise ValueError(f"LoRALinear: the layer is quantised already, as {layer.format}")
        self.in_features, self.out_features = layer.in_features, layer.out_features
        device = layer.weight.device
        if isinstance(layer, Linear) and format is not None:
            layer = QLinear.of(layer, format)
        self.base = layer
        self.base.requires_grad_(False)
        self.rank, self.alpha = rank, alpha
        bound = 1 / math.sqrt(self.in_features)
        start = nm.random.uniform((rank, self.in_features), low=-bound, high=bound)
        self.a = Parameter(start.to(device))
        self.b = Parameter(nm.zeros((self.out_features, rank), device=device))

    def forward(self, x: Any) -> Tensor:
        x = nm.asarray(x)
        low = x @ self.a.T.astype(x.dtype)
        return self.base(x) + (self.alpha / self.rank) * (low @ self.b.T.astype(x.dtype))

    def merge(self) -> Linear:
        """A linear layer whose weight has the adapter added; quantise it again if need be."""
        base = self.base
        if isinstance(base, QLinear):
            w = base.dense_weight()
        else:
            w = base.weight.detach()
        merged = w + (self.alpha / self.rank) * (self.b.detach() @ self.a.detach())
        layer = Linear(self.in_features, self.out_features, bias=base.bias is not None)
        layer.weight = Parameter(merged)
        if base.bias is not None:
            layer.bias = Parameter(base.bias.detach())
        return layer

    def extra_repr(self) -> str:
        return f"rank={self.rank}, alpha={self.alpha}"


def add_lora_(
    model: Module, rank: int = 8, alpha: float = 16.0, format: Any = None, filter: Any = None
) -> Module:
    """Swap linear layers for `LoRALinear` and fix all else, in place."""
    model.requires_grad_(False)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, Linear | QLinear) and (filter is None or filter(name, layer)):
            model.set_submodule(name, LoRALinear(layer, rank, alpha, format))
    return model
