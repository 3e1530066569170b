"""Activations as modules; each is the function of the same name in `nn.functional`."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.nn import functional as F
from numus.nn.layers.function_layer import UnaryLayer, layer
from numus.nn.module import Module
from numus.nn.parameter import Parameter
from numus.tensor import Tensor

__all__ = [
    "CELU", "ELU", "GELU", "GLU", "SELU", "GeGLU", "Hardshrink", "Hardsigmoid", "Hardswish",
    "Hardtanh", "LeakyReLU", "LogSigmoid", "LogSoftmax", "Mish", "PReLU", "RReLU", "ReLU", "ReLU6",
    "SiLU", "Sigmoid", "Softmax", "Softmax2d", "Softmin", "Softplus", "Softshrink", "Softsign",
    "SwiGLU", "Tanh", "Tanhshrink", "Threshold",
]  # fmt: skip


# -- without hyperparameters ----------------------------------------------------------------------


class _Plain(UnaryLayer):
    def forward(self, x: Any) -> Tensor:
        return self._function(x)


class Sigmoid(_Plain, function=F.sigmoid):
    """1 / (1 + exp(-input))."""


class Tanh(_Plain, function=F.tanh):
    """The hyperbolic tangent."""


class Softsign(_Plain, function=F.softsign):
    """input / (1 + |input|)."""


class LogSigmoid(_Plain, function=F.logsigmoid):
    """log(sigmoid(input))."""


class Tanhshrink(_Plain, function=F.tanhshrink):
    """input - tanh(input)."""


@layer
class _InPlace(UnaryLayer):
    inplace: bool = False

    def forward(self, x: Any) -> Tensor:
        return self._function(x, inplace=self.inplace)


class ReLU(_InPlace, function=F.relu):
    """input where it is positive, 0 elsewhere."""


class ReLU6(_InPlace, function=F.relu6):
    """input clamped between 0 and 6."""


class SELU(_InPlace, function=F.selu):
    """An ELU with the scale at which layers keep mean 0 and variance 1."""


class SiLU(_InPlace, function=F.silu):
    """input * sigmoid(input), also known as swish."""


class Mish(_InPlace, function=F.mish):
    """input * tanh(softplus(input))."""


class Hardsigmoid(_InPlace, function=F.hardsigmoid):
    """A sigmoid made of straight pieces."""


class Hardswish(_InPlace, function=F.hardswish):
    """input * hardsigmoid(input)."""


# -- with hyperparameters -------------------------------------------------------------------------


@layer
class LeakyReLU(UnaryLayer):
    """input where it is positive, a fraction of it elsewhere."""

    negative_slope: float = 0.01
    inplace: bool = False

    def forward(self, x: Any) -> Tensor:
        return F.leaky_relu(x, self.negative_slope, inplace=self.inplace)


@layer
class _ELU(UnaryLayer):
    alpha: float = 1.0
    inplace: bool = False

    def forward(self, x: Any) -> Tensor:
        return self._function(x, self.alpha, inplace=self.inplace)


class ELU(_ELU, function=F.elu):
    """input where it is positive, alpha * (exp(input) - 1) elsewhere."""


class CELU(_ELU, function=F.celu):
    """An ELU whose slope at 0 is 1 for every alpha."""


@layer
class GELU(UnaryLayer):
    """input times the normal distribution's share below it."""

    approximate: str = "none"

    def forward(self, x: Any) -> Tensor:
        return F.gelu(x, self.approximate)


@layer
class Softplus(UnaryLayer):
    """log(1 + exp(beta * input)) / beta."""

    beta: float = 1.0
    threshold: float = 20.0

    def forward(self, x: Any) -> Tensor:
        return F.softplus(x, self.beta, self.threshold)


@layer
class Hardtanh(UnaryLayer, function=F.hardtanh):
    """input clamped between two values."""

    min_val: float = -1.0
    max_val: float = 1.0
    inplace: bool = False


@layer
class _Shrink(UnaryLayer):
    lambd: float = 0.5


class Hardshrink(_Shrink, function=F.hardshrink):
    """input, but 0 within [-lambd, lambd]."""


class Softshrink(_Shrink, function=F.softshrink):
    """input moved towards 0 by lambd."""


@layer
class Threshold(UnaryLayer, function=F.threshold):
    """input where it is above the threshold, the value elsewhere."""

    threshold: float
    value: float
    inplace: bool = False


@layer
class RReLU(UnaryLayer):
    """A leaky relu whose slope is random in training."""

    lower: float = 1 / 8
    upper: float = 1 / 3
    inplace: bool = False

    def forward(self, x: Any) -> Tensor:
        return F.rrelu(x, self.lower, self.upper, self.training, inplace=self.inplace)


class PReLU(Module):
    """A leaky relu with a learned slope, one for all or one for each channel."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, dtype: Any = None) -> None:
        self.weight = Parameter(nm.full((num_parameters,), init, dtype=dtype or nm.float32))

    def forward(self, x: Any) -> Tensor:
        return F.prelu(x, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.weight.size}"


# -- gated, and over an axis ----------------------------------------------------------------------


@layer
class _Gated(UnaryLayer):
    dim: int = -1

    def forward(self, x: Any) -> Tensor:
        return self._function(x, self.dim)


class GLU(_Gated, function=F.glu):
    """The first half times the sigmoid of the second."""


class SwiGLU(_Gated, function=F.swiglu):
    """The silu of the first half times the second."""


@layer
class GeGLU(_Gated):
    """The gelu of the first half times the second."""

    approximate: str = "none"

    def forward(self, x: Any) -> Tensor:
        return F.geglu(x, self.dim, self.approximate)


@layer
class _OverAxis(UnaryLayer):
    dim: int | None = None

    def forward(self, x: Any) -> Tensor:
        return self._function(x, self.dim)


class Softmax(_OverAxis, function=F.softmax):
    """exp(input) over its sum along an axis."""


class Softmin(_OverAxis, function=F.softmin):
    """The softmax of -input."""


class LogSoftmax(_OverAxis, function=F.log_softmax):
    """The logarithm of the softmax."""


class Softmax2d(UnaryLayer):
    """A softmax over the channels of (N, C, H, W) or (C, H, W)."""

    def forward(self, x: Any) -> Tensor:
        if nm.asarray(x).ndim not in (3, 4):
            raise nm.errors.ShapeError(f"Softmax2d: takes (N, C, H, W), not shape {x.shape}")
        return F.softmax(x, -3)
