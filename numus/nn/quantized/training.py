"""Quantisation-aware training: fake quantisation, straight-through and with learned steps (LSQ).

The forward pass computes with rounded weights, the backward pass as if rounding were the identity
within the range (Bengio et al. 2013); LSQ (Esser et al. 2020) learns the step as well. Observers
follow the range of activations. At the end, layers fold to quantised ones.
"""

from __future__ import annotations

import math
from typing import Any

import numus as nm
from numus.nn.layers.linear import Linear
from numus.nn.module import Module
from numus.nn.parameter import Parameter
from numus.nn.quantized.layers import QLinear
from numus.quant.formats import as_format, grouped, ungrouped
from numus.quant.integers import Integers
from numus.quant.qtensor import QTensor
from numus.tensor import Tensor

__all__ = ["FakeQuantLinear", "RangeObserver", "convert_", "fake_quantize", "prepare_qat_"]


def _round(x: Tensor) -> Tensor:
    """Rounded, with the derivative of the identity."""
    return x + (nm.round(x) - x).detach()


def fake_quantize(x: Any, step: Any, bits: int = 8) -> Tensor:
    """x rounded to a step and clipped to signed integers, differentiable in both.

    >>> from numus import nn
    >>> nn.fake_quantize(nm.asarray([0.26, -9.0]), 0.5, bits=4)
    tensor([ 0.5, -4. ])
    """
    if not 2 <= bits <= 16:
        raise ValueError(f"fake_quantize: bits={bits} must be between 2 and 16")
    top = 1 << (bits - 1)
    x = nm.asarray(x)
    step = nm.asarray(step, dtype=x.dtype, device=x.device)
    return _round(nm.clip(x / step, -top, top - 1)) * step


class RangeObserver(Module):
    """Follows the largest magnitude of what it sees, by a moving average; gives its input back.

    Args:
        momentum: the weight of a new batch; None keeps the largest of all.
        quantile: of the magnitudes, that counts as the largest.
    """

    largest: Tensor

    def __init__(self, momentum: float | None = 0.1, quantile: float = 1.0) -> None:
        if not 0 < quantile <= 1:
            raise ValueError(f"RangeObserver: quantile={quantile} must be in (0, 1]")
        self.momentum, self.quantile = momentum, quantile
        self.register_buffer("largest", nm.zeros(()))

    def forward(self, x: Any) -> Tensor:
        x = nm.asarray(x)
        if self.training:
            size = nm.abs(x.detach())
            seen = nm.max(size) if self.quantile == 1 else nm.quantile(size, self.quantile)
            seen = seen.astype(nm.float32)
            if self.momentum is None:
                new = nm.maximum(self.largest, seen)
            else:
                mixed = self.largest + self.momentum * (seen - self.largest)
                new = nm.where(self.largest == 0, seen, mixed)
            self.largest.assign(new)
        return x

    def step(self, bits: int) -> Tensor:
        """The step of signed integers that span the range."""
        return nm.maximum(self.largest / ((1 << (bits - 1)) - 1), 1e-12)


class FakeQuantLinear(Module):
    """A linear layer that computes with its weight rounded to a format, for training.

    Args:
        format: that the layer will fold to.
        learned_step: LSQ: the steps of the groups are parameters; symmetric integers only.
        activation_bits: inputs are rounded too, by an observed range; None leaves them.
    """

    def __init__(
        self,
        layer: Linear,
        format: Any = "int4-g128",
        learned_step: bool = False,
        activation_bits: int | None = None,
    ) -> None:
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self._format = as_format(format)
        self.activation_bits = activation_bits
        self.observer = RangeObserver() if activation_bits else None
        self.step: Parameter | None = None
        if learned_step:
            f = self._format
            if not isinstance(f, Integers) or not f.symmetric or f.group == -1:
                raise ValueError(f"FakeQuantLinear: {f.name} has no steps of groups to learn")
            largest = nm.max(nm.abs(self._groups(self.weight.detach())), axis=-1)
            top = (1 << (f.bits - 1)) - 1
            self.step = Parameter(nm.maximum(largest / top, 1e-8))

    def _groups(self, w: Tensor) -> Tensor:
        f = self._format
        assert isinstance(f, Integers)
        return grouped(w, f.group if f.group > 0 else w.shape[-1])

    def rounded_weight(self) -> Tensor:
        """The weight as the forward pass uses it."""
        w, f = self.weight, self._format
        if self.step is None:
            found = nm.quant.quantize(w.detach(), f).dequantize(w.dtype)
            return w + (found - w).detach()
        assert isinstance(f, Integers)
        groups = self._groups(w)
        top = (1 << (f.bits - 1)) - 1
        gain = 1 / math.sqrt(groups.shape[-1] * top)  # LSQ's scale of the step's gradient
        step = nm.abs(self.step) * gain
        stored = nm.abs(self.step.detach()).astype(f.scale_dtype).astype(w.dtype)
        step = step + (stored - step).detach()  # as it will be stored
        return ungrouped(fake_quantize(groups, step[..., None], f.bits), w.shape)

    def forward(self, x: Any) -> Tensor:
        x = nm.asarray(x)
        if self.observer is not None and self.activation_bits:
            x = self.observer(x)
            x = fake_quantize(x, self.observer.step(self.activation_bits), self.activation_bits)
        y = x @ self.rounded_weight().T
        return y if self.bias is None else y + self.bias

    def fold(self) -> QLinear:
        """The quantised layer, with the weight that the forward pass used."""
        layer = Linear(self.in_features, self.out_features, bias=self.bias is not None)
        layer.weight, layer.bias = self.weight, self.bias
        f = self._format
        if self.step is None:
            return QLinear.of(layer, f)
        assert isinstance(f, Integers)
        groups = self._groups(self.weight.detach())
        step = nm.abs(self.step.detach()).astype(f.scale_dtype).astype(nm.float32)
        top = 1 << (f.bits - 1)
        codes = nm.clip(nm.round(groups / step[..., None]), -top, top - 1) + top
        shape = self.weight.shape
        parts = f.of_codes(ungrouped(codes, shape), step, None, shape)
        return QLinear.of(layer, QTensor(f, shape, parts, self.weight.dtype))

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"format={self._format.name}, learned_step={self.step is not None}"
        )


def prepare_qat_(
    model: Module, format: Any = "int4-g128", filter: Any = None, **options: Any
) -> Module:
    """Swap linear layers for `FakeQuantLinear`, in place; options are passed to it."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, Linear) and (filter is None or filter(name, layer)):
            model.set_submodule(name, FakeQuantLinear(layer, format, **options))
    return model


def convert_(model: Module) -> Module:
    """Fold the `FakeQuantLinear` layers of a trained model to `QLinear`, in place."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, FakeQuantLinear):
            model.set_submodule(name, layer.fold())
    return model
