"""Weights of a length, or of a largest gain, that is learned or known."""

from __future__ import annotations

import numus as nm
from numus.errors import ShapeError
from numus.nn import functional as F
from numus.nn.layers.conv import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from numus.nn.module import Module
from numus.nn.utils.parametrize import register_parametrization
from numus.tensor import Tensor

__all__ = ["spectral_norm", "weight_norm"]


class _WeightNorm(Module):
    """Directions v with lengths g: g v / |v|, along one axis or over all."""

    def __init__(self, dim: int | None) -> None:
        self.dim = dim

    def _length(self, weight: Tensor) -> Tensor:
        if self.dim is None or self.dim == -1:
            return nm.sqrt(nm.sum(weight * weight))
        others = tuple(a for a in range(weight.ndim) if a != self.dim % weight.ndim)
        return nm.sqrt(nm.sum(weight * weight, axis=others, keepdims=True))

    def forward(self, g: Tensor, v: Tensor) -> Tensor:
        return v * (g / self._length(v))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return self._length(weight), weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Learn the lengths of a weight's slices along `dim`, and their directions, apart.

    >>> from numus import nn
    >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 5))
    >>> [(name, p.shape) for name, p in layer.named_parameters() if "original" in name]
    [('parametrizations.weight.original0', (5, 1)), ('parametrizations.weight.original1', (5, 3))]
    """
    return register_parametrization(module, name, _WeightNorm(dim), unsafe=True)


class _SpectralNorm(Module):
    """A weight divided by its largest singular value, which power iterations follow."""

    _u: Tensor
    _v: Tensor

    def __init__(self, weight: Tensor, iterations: int, dim: int, eps: float) -> None:
        if iterations < 1:
            raise ValueError(f"spectral_norm: n_power_iterations is at least 1, not {iterations}")
        if not -weight.ndim <= dim < weight.ndim:
            raise ShapeError(f"spectral_norm: there is no axis {dim} in shape {weight.shape}")
        self.dim = dim % weight.ndim
        self.iterations = iterations
        self.eps = eps
        if weight.ndim > 1:
            matrix = self._matrix(weight.detach())
            for buffer, size in zip(("_u", "_v"), matrix.shape, strict=True):
                drawn = nm.random.normal((size,), dtype=weight.dtype).to(weight.device)
                self.register_buffer(buffer, F.normalize(drawn, dim=0, eps=eps))
            self._iterate(matrix, 15)

    def _matrix(self, weight: Tensor) -> Tensor:
        first = nm.moveaxis(weight, self.dim, 0)
        return first.reshape((first.shape[0], -1))

    def _iterate(self, matrix: Tensor, times: int) -> None:
        with nm.no_grad():
            u, v = self._u, self._v
            for _ in range(times):
                u = F.normalize(matrix @ v, dim=0, eps=self.eps)
                v = F.normalize(u @ matrix, dim=0, eps=self.eps)
            self._u.assign(u)
            self._v.assign(v)

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return F.normalize(weight, dim=0, eps=self.eps)
        matrix = self._matrix(weight)
        if self.training:
            self._iterate(matrix.detach(), self.iterations)
        u, v = self._u.detach(), self._v.detach()
        return weight / nm.sum(u * (matrix @ v))

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight


def spectral_norm(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Module:
    """Divide a weight by its largest singular value.

    Args:
        dim: the axis of outputs; 1 for transposed convolutions, else 0.
    """
    weight = vars(module).get(name)
    if not isinstance(weight, Tensor):
        raise ValueError(f"spectral_norm: {type(module).__name__} has no parameter {name!r}")
    if dim is None:
        transposed = isinstance(module, (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d))
        dim = 1 if transposed else 0
    parametrization = _SpectralNorm(weight, n_power_iterations, dim, eps)
    return register_parametrization(module, name, parametrization)
