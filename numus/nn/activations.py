"""Activations as modules; each is the function of the same name in `nn.functional`."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.nn import functional as F
from numus.nn.module import Module
from numus.nn.parameter import Parameter
from numus.tensor import Tensor

__all__ = [
    "CELU", "ELU", "GELU", "GLU", "SELU", "GeGLU", "Hardshrink", "Hardsigmoid", "Hardswish",
    "Hardtanh", "LeakyReLU", "LogSigmoid", "LogSoftmax", "Mish", "PReLU", "RReLU", "ReLU", "ReLU6",
    "SiLU", "Sigmoid", "Softmax", "Softmax2d", "Softmin", "Softplus", "Softshrink", "Softsign",
    "SwiGLU", "Tanh", "Tanhshrink", "Threshold",
]  # fmt: skip


class _Activation(Module):
    """A module without parameters; what it was made with is shown in print."""

    def extra_repr(self) -> str:
        hidden = ("training", "_buffers", "_hooks")
        shown = ((n, v) for n, v in self.__dict__.items() if n not in hidden)
        shown = ((n, v) for n, v in shown if n != "inplace" or v)
        return ", ".join(f"{name}={value!r}" for name, value in shown)


class ReLU(_Activation):
    """input where it is positive, 0 elsewhere."""

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace

    def forward(self, x: Any) -> Tensor:
        return F.relu(x, inplace=self.inplace)


class ReLU6(_Activation):
    """input held between 0 and 6."""

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace

    def forward(self, x: Any) -> Tensor:
        return F.relu6(x, inplace=self.inplace)


class LeakyReLU(_Activation):
    """input where it is positive, a fraction of it elsewhere."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        self.negative_slope = negative_slope
        self.inplace = inplace

    def forward(self, x: Any) -> Tensor:
        return F.leaky_relu(x, self.negative_slope, inplace=self.inplace)


class ELU(_Activation):
    """input where it is positive, alpha * (exp(input) - 1) elsewhere."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        self.alpha = alpha
        self.inplace = inplace

    def forward(self, x: Any) -> Tensor:
        return F.elu(x, self.alpha, inplace=self.inplace)


class SELU(_Activation):
    """An ELU with the scale at which layers keep mean 0 and variance 1."""

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace

    def forward(self, x: Any) -> Tensor:
        return F.selu(x, inplace=self.inplace)


class CELU(_Activation):
    """An ELU whose slope at 0 is 1 for every alpha."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        self.alpha = alpha
        self.inplace = inplace

    def forward(self, x: Any) -> Tensor:
        return F.celu(x, self.alpha, inplace=self.inplace)


class GELU(_Activation):
    """input times the normal distribution's share below it."""

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def forward(self, x: Any) -> Tensor:
        return F.gelu(x, self.approximate)


class SiLU(_Activation):
    """input * sigmoid(input), also known as swish."""

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace

    def forward(self, x: Any) -> Tensor:
        return F.silu(x, inplace=self.inplace)


class Mish(_Activation):
    """input * tanh(softplus(input))."""

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace

    def forward(self, x: Any) -> Tensor:
        return F.mish(x, inplace=self.inplace)


class Sigmoid(_Activation):
    """1 / (1 + exp(-input))."""

    def forward(self, x: Any) -> Tensor:
        return F.sigmoid(x)


class Tanh(_Activation):
    """The hyperbolic tangent."""

    def forward(self, x: Any) -> Tensor:
        return F.tanh(x)


class Softplus(_Activation):
    """log(1 + exp(beta * input)) / beta."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta = beta
        self.threshold = threshold

    def forward(self, x: Any) -> Tensor:
        return F.softplus(x, self.beta, self.threshold)


class Softsign(_Activation):
    """input / (1 + |input|)."""

    def forward(self, x: Any) -> Tensor:
        return F.softsign(x)


class LogSigmoid(_Activation):
    """log(sigmoid(input))."""

    def forward(self, x: Any) -> Tensor:
        return F.logsigmoid(x)


class Tanhshrink(_Activation):
    """input - tanh(input)."""

    def forward(self, x: Any) -> Tensor:
        return F.tanhshrink(x)


class Hardtanh(_Activation):
    """input held between two values."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        self.min_val = min_val
        self.max_val = max_val
        self.inplace = inplace

    def forward(self, x: Any) -> Tensor:
        return F.hardtanh(x, self.min_val, self.max_val, inplace=self.inplace)


class Hardsigmoid(_Activation):
    """A sigmoid made of straight pieces."""

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace

    def forward(self, x: Any) -> Tensor:
        return F.hardsigmoid(x, inplace=self.inplace)


class Hardswish(_Activation):
    """input * hardsigmoid(input)."""

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace

    def forward(self, x: Any) -> Tensor:
        return F.hardswish(x, inplace=self.inplace)


class Hardshrink(_Activation):
    """input, but 0 within [-lambd, lambd]."""

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd

    def forward(self, x: Any) -> Tensor:
        return F.hardshrink(x, self.lambd)


class Softshrink(_Activation):
    """input moved towards 0 by lambd."""

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd

    def forward(self, x: Any) -> Tensor:
        return F.softshrink(x, self.lambd)


class Threshold(_Activation):
    """input where it is above the threshold, the value elsewhere."""

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        self.threshold = threshold
        self.value = value
        self.inplace = inplace

    def forward(self, x: Any) -> Tensor:
        return F.threshold(x, self.threshold, self.value, inplace=self.inplace)


class GLU(_Activation):
    """The first half times the sigmoid of the second."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: Any) -> Tensor:
        return F.glu(x, self.dim)


class SwiGLU(_Activation):
    """The silu of the first half times the second."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: Any) -> Tensor:
        return F.swiglu(x, self.dim)


class GeGLU(_Activation):
    """The gelu of the first half times the second."""

    def __init__(self, dim: int = -1, approximate: str = "none") -> None:
        self.dim = dim
        self.approximate = approximate

    def forward(self, x: Any) -> Tensor:
        return F.geglu(x, self.dim, self.approximate)


class Softmax(_Activation):
    """exp(input) over its sum along an axis."""

    def __init__(self, dim: int | None = None) -> None:
        self.dim = dim

    def forward(self, x: Any) -> Tensor:
        return F.softmax(x, self.dim)


class Softmin(_Activation):
    """The softmax of -input."""

    def __init__(self, dim: int | None = None) -> None:
        self.dim = dim

    def forward(self, x: Any) -> Tensor:
        return F.softmin(x, self.dim)


class LogSoftmax(_Activation):
    """The logarithm of the softmax."""

    def __init__(self, dim: int | None = None) -> None:
        self.dim = dim

    def forward(self, x: Any) -> Tensor:
        return F.log_softmax(x, self.dim)


class Softmax2d(_Activation):
    """A softmax over the channels of (N, C, H, W) or (C, H, W)."""

    def forward(self, x: Any) -> Tensor:
        if nm.asarray(x).ndim not in (3, 4):
            raise nm.errors.ShapeError(f"Softmax2d: takes (N, C, H, W), not shape {x.shape}")
        return F.softmax(x, -3)


class RReLU(_Activation):
    """A leaky relu whose slope is random in training."""

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False) -> None:
        self.lower = lower
        self.upper = upper
        self.inplace = inplace

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
