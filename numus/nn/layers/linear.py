"""Linear maps, and modules that only change shapes."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.nn import functional as F
from numus.nn import init
from numus.nn.layers.function_layer import UnaryLayer, layer
from numus.nn.module import Module
from numus.nn.parameter import Parameter
from numus.tensor import Tensor

__all__ = ["Bilinear", "Flatten", "Identity", "Linear", "SparseLinear", "Unflatten"]


class Identity(Module):
    """Gives back what it is given; takes any arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def forward(self, x: Any) -> Any:
        return x


class Linear(Module):
    """x @ weight.T + bias, with weight of shape (out_features, in_features).

    >>> from numus import nn
    >>> nn.Linear(3, 5)
    Linear(in_features=3, out_features=5, bias=True)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        self.in_features = in_features
        self.out_features = out_features
        options = {"dtype": dtype or nm.float32, "device": device}
        self.weight = Parameter(nm.empty((out_features, in_features), **options))
        self.bias = Parameter(nm.empty((out_features,), **options)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw first values: uniform, within one over the root of the number of inputs."""
        init.fan_in_uniform_(self, self.in_features)

    def forward(self, x: Any) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}"


class SparseLinear(Module):
    """`Linear` with 2:4 structured sparsity: half of the weights, and where they are.

    Args:
        in_features: a multiple of 8.
        out_features: of the result.
        bias: add one.
        dtype: of the weights.

    >>> from numus import nn
    >>> dense = nn.Linear(16, 4)
    >>> sparse = nn.SparseLinear.from_linear(dense)  # keeps the larger two of every four weights
    >>> sparse.weight.shape, sparse(nm.ones((2, 16))).shape
    ((4, 8), (2, 4))
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        self._take(Linear(in_features, out_features, bias, device, dtype))

    @classmethod
    def from_linear(cls, linear: Linear) -> SparseLinear:
        """A layer with the weights of another that 2:4 sparsity keeps."""
        made = cls.__new__(cls)
        made._take(linear)
        return made

    def _take(self, linear: Linear) -> None:
        packed = nm.sparse.to_semi_structured(linear.weight.detach())
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = Parameter(packed.values)
        self.register_buffer("metadata", packed.metadata)
        self.bias = None if linear.bias is None else Parameter(linear.bias.detach())

    metadata: Tensor

    def forward(self, x: Any) -> Tensor:
        x, packed = nm.asarray(x), nm.sparse.SemiStructured(self.weight, self.metadata)
        if x.ndim and x.size and x.shape[-1] == self.in_features:
            columns = x.reshape(-1, self.in_features).T
            if packed.has_sparse_cores(columns):
                found = (packed @ columns).T.reshape(*x.shape[:-1], self.out_features)
                return found if self.bias is None else found + self.bias
        return F.linear(x, packed.to_dense(), self.bias)

    def extra_repr(self) -> str:
        bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}"


class Bilinear(Module):
    """x1 @ weight[k] @ x2 + bias[k] for every output k."""

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        options = {"dtype": dtype or nm.float32, "device": device}
        shape = (out_features, in1_features, in2_features)
        self.weight = Parameter(nm.empty(shape, **options))
        self.bias = Parameter(nm.empty((out_features,), **options)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw first values: uniform, within one over the root of the number of inputs."""
        init.fan_in_uniform_(self, self.weight.shape[1])

    def forward(self, x1: Any, x2: Any) -> Tensor:
        return F.bilinear(x1, x2, self.weight, self.bias)

    def extra_repr(self) -> str:
        out, first, second = self.weight.shape
        return (
            f"in1_features={first}, in2_features={second}, out_features={out}, "
            f"bias={self.bias is not None}"
        )


@layer
class Flatten(UnaryLayer, function=nm.flatten):
    """Axes from start_dim to end_dim as one."""

    start_dim: int = 1
    end_dim: int = -1


@layer
class Unflatten(UnaryLayer):
    """One axis as several."""

    dim: int
    unflattened_size: Any

    def __post_init__(self) -> None:
        self.unflattened_size = tuple(self.unflattened_size)

    def forward(self, x: Any) -> Tensor:
        return nm.unflatten(x, self.dim, self.unflattened_size)
