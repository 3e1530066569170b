"""Normalisation: over the batch, over channels, over the last axes."""

from __future__ import annotations

from typing import Any, ClassVar

import numus as nm
from numus.errors import ShapeError
from numus.nn import functional as F
from numus.nn.layers.function_layer import UnaryLayer, layer
from numus.nn.module import Module
from numus.nn.parameter import Parameter
from numus.shapes import as_shape
from numus.tensor import Tensor

__all__ = [
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d",
    "InstanceNorm3d", "LayerNorm", "LocalResponseNorm", "RMSNorm",
]  # fmt: skip


class _Affine(Module):
    """A norm with a learned scale and, with `bias`, a learned shift."""

    weight: Parameter | None
    bias: Parameter | None

    def _set(self, shape: Any, affine: bool, bias: bool, device: Any, dtype: Any) -> None:
        options = {"dtype": dtype or nm.float32, "device": device}
        self.weight = Parameter(nm.ones(shape, **options)) if affine else None
        self.bias = Parameter(nm.zeros(shape, **options)) if affine and bias else None


# -- over trailing axes ---------------------------------------------------------------------------


class _TrailingNorm(_Affine):
    normalized_shape: tuple[int, ...]
    eps: Any
    elementwise_affine: bool

    def _set_trailing(self, shape: Any, eps: float | None, affine: bool, *options: Any) -> None:
        self.normalized_shape = as_shape(shape, type(self).__name__)
        self.eps = eps
        self.elementwise_affine = affine
        self._set(self.normalized_shape, affine, *options)

    def extra_repr(self) -> str:
        affine = self.elementwise_affine
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={affine}"


class LayerNorm(_TrailingNorm):
    """Mean 0 and variance 1 over the last axes, then scaled and shifted.

    >>> from numus import nn
    >>> nn.LayerNorm(2, eps=0.0)(nm.asarray([[1.0, 3.0]])).tolist()
    [[-1.0, 1.0]]

    Args:
        normalized_shape: the extents of the axes, or the one extent.
        eps: added to variances.
        elementwise_affine: whether elements are scaled and, with `bias`, shifted by parameters.
    """

    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        self._set_trailing(normalized_shape, eps, elementwise_affine, bias, device, dtype)

    def forward(self, x: Any) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(_TrailingNorm):
    """Divided by the root of the mean of squares over the last axes, then scaled.

    Args:
        normalized_shape: the extents of the axes, or the one extent.
        eps: added to the mean; the machine epsilon of the dtype where it is not given.
        elementwise_affine: whether elements are scaled by parameters.
    """

    def __init__(
        self,
        normalized_shape: Any,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        self._set_trailing(normalized_shape, eps, elementwise_affine, False, device, dtype)

    def forward(self, x: Any) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)


# -- over channels --------------------------------------------------------------------------------


class GroupNorm(_Affine):
    """Groups of channels normalised, each example by itself.

    Args:
        num_groups: into how many equal groups the channels part.
        num_channels: how many channels there are.
        affine: whether channels are scaled and shifted by parameters.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        if num_channels % num_groups:
            raise ValueError(
                f"GroupNorm: num_channels={num_channels} must be divisible by "
                f"num_groups={num_groups}"
            )
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self._set((num_channels,), affine, bias, device, dtype)

    def forward(self, x: Any) -> Tensor:
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        affine = self.weight is not None
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={affine}"


@layer
class LocalResponseNorm(UnaryLayer, function=F.local_response_norm):
    """Divided by a power of the sum of squares of neighbouring channels.

    x / (k + alpha * mean of squares) ** beta, where the mean is over `size` channels.
    """

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    def extra_repr(self) -> str:
        return super().extra_repr().removeprefix("size=")


class _Running(_Affine):
    """Batch and instance norm: an affine map and running statistics by channel."""

    _ranks: ClassVar[tuple[int, ...]]

    def __init_subclass__(cls, ranks: tuple[int, ...] | None = None) -> None:
        super().__init_subclass__()
        if ranks is not None:
            cls._ranks = ranks

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        self._set((num_features,), affine, bias, device, dtype)
        self.running_mean: Tensor | None
        self.running_var: Tensor | None
        self.num_batches_tracked: Tensor | None
        options = {"dtype": dtype or nm.float32, "device": device}
        first = {"running_mean": nm.zeros((num_features,), **options)}
        first |= {"running_var": nm.ones((num_features,), **options)}
        first |= {"num_batches_tracked": nm.zeros((), dtype=nm.int64, device=device)}
        for name, tensor in first.items():
            self.register_buffer(name, tensor if track_running_stats else None)

    def reset_running_stats(self) -> None:
        """Forget what has been seen."""
        if self.running_mean is not None and self.running_var is not None:
            self.running_mean.assign(0.0)
            self.running_var.assign(1.0)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.assign(0)

    def _tensors(self) -> tuple[Any, Any, Any, Any, bool]:
        """Statistics, scale and shift, and whether to use the statistics of the batch."""
        own = (self.running_mean, self.running_var, self.weight, self.bias)
        return *own, self.training or self.running_mean is None

    def _checked(self, x: Any) -> Tensor:
        x = nm.asarray(x)
        if x.ndim not in self._ranks:
            ranks = " or ".join(map(str, self._ranks))
            raise ShapeError(f"{type(self).__name__}: takes {ranks} axes, not shape {x.shape}")
        return x

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_Running):
    def _momentum(self) -> Any:
        """The share by which running statistics move; without one, all batches count alike."""
        if not self.training or self.num_batches_tracked is None:
            return self.momentum or 0.0
        self.num_batches_tracked += 1
        if self.momentum is not None:
            return self.momentum
        return 1.0 / self.num_batches_tracked.astype(nm.float32, copy=False)

    def forward(self, x: Any) -> Tensor:
        x = self._checked(x)
        return F.batch_norm(x, *self._tensors(), self._momentum(), self.eps)


class BatchNorm1d(_BatchNorm, ranks=(2, 3)):
    """Channels of (N, C) or (N, C, L) normalised over the batch. Arguments as of `BatchNorm2d`."""


class BatchNorm2d(_BatchNorm, ranks=(4,)):
    """Channels of (N, C, H, W) normalised over the batch.

    >>> from numus import nn
    >>> norm = nn.BatchNorm2d(3)
    >>> norm(nm.ones((2, 3, 4, 4))).shape, norm.running_mean.shape
    ((2, 3, 4, 4), (3,))

    Args:
        num_features: how many channels there are.
        eps: added to variances.
        momentum: by which share running statistics move towards those of a batch; None: they are
            the mean of all that were seen.
        affine: whether channels are scaled and shifted by parameters.
        track_running_stats: keep running statistics, and use them in evaluation.
    """


class BatchNorm3d(_BatchNorm, ranks=(5,)):
    """Channels of (N, C, D, H, W) normalised over the batch. Arguments as of `BatchNorm2d`."""


class _InstanceNorm(_Running):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        options = (eps, momentum, affine, track_running_stats, device, dtype)
        super().__init__(num_features, *options, bias=bias)

    def forward(self, x: Any) -> Tensor:
        x = self._checked(x)
        single = x.ndim == self._ranks[0]
        x = x[None] if single else x
        y = F.instance_norm(x, *self._tensors(), self.momentum or 0.0, self.eps)
        return y[0] if single else y


class InstanceNorm1d(_InstanceNorm, ranks=(2, 3)):
    """(N, C, L) or (C, L) normalised per example and channel; see `BatchNorm2d`."""


class InstanceNorm2d(_InstanceNorm, ranks=(3, 4)):
    """(N, C, H, W) or (C, H, W) normalised per example and channel; see `BatchNorm2d`."""


class InstanceNorm3d(_InstanceNorm, ranks=(4, 5)):
    """(N, C, D, H, W) or (C, D, H, W) normalised per example and channel; see `BatchNorm2d`."""
