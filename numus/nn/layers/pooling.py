"""Poolings: the maximum, the mean or a norm of every window."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.nn.layers.function_layer import FunctionLayer, layer
from numus.tensor import Tensor

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d", "LPPool1d",
    "LPPool2d", "LPPool3d", "MaxPool1d", "MaxPool2d", "MaxPool3d", "MaxUnpool1d", "MaxUnpool2d",
    "MaxUnpool3d",
]  # fmt: skip

Sizes = int | tuple[int, ...]


class _Pool(FunctionLayer):
    """Windows whose stride is their size by default."""

    kernel_size: Any
    stride: Any

    def __post_init__(self) -> None:
        if self.stride is None:
            self.stride = self.kernel_size


# -- the maximum ----------------------------------------------------------------------------------


@layer
class _MaxPool(_Pool):
    kernel_size: Sizes
    stride: Sizes | None = None
    padding: Sizes = 0
    dilation: Sizes = 1
    return_indices: bool = False
    ceil_mode: bool = False


class MaxPool1d(_MaxPool, function=nm.max_pool1d):
    """The largest element of every window of (N, C, L). Arguments as of `MaxPool2d`."""


class MaxPool2d(_MaxPool, function=nm.max_pool2d):
    """The largest element of every window of (N, C, H, W).

    >>> from numus import nn
    >>> nn.MaxPool2d(2)(nm.ones((1, 3, 6, 5))).shape
    (1, 3, 3, 2)

    Args:
        kernel_size: the size of a window: a number, or one for each axis.
        stride: the distance between windows; `kernel_size` by default.
        padding: the width of implicit -inf padding around the input.
        dilation: the distance between the elements of a window.
        return_indices: also give the indices of the maxima, for `MaxUnpool2d`.
        ceil_mode: also take windows that are only partly within the input.
    """


class MaxPool3d(_MaxPool, function=nm.max_pool3d):
    """The largest element of every window of (N, C, D, H, W). Arguments as of `MaxPool2d`."""


@layer
class _MaxUnpool(_Pool):
    kernel_size: Sizes
    stride: Sizes | None = None
    padding: Sizes = 0

    def forward(self, x: Any, indices: Any, output_size: Any = None) -> Tensor:
        """Elements back at the indices that a pooling with `return_indices` took them from."""
        return self._function(x, indices, **self._options(), output_size=output_size)


class MaxUnpool1d(_MaxUnpool, function=nm.max_unpool1d):
    """The elements of a MaxPool1d back at their indices, zeros elsewhere."""


class MaxUnpool2d(_MaxUnpool, function=nm.max_unpool2d):
    """The elements of a MaxPool2d back at their indices, zeros elsewhere."""


class MaxUnpool3d(_MaxUnpool, function=nm.max_unpool3d):
    """The elements of a MaxPool3d back at their indices, zeros elsewhere."""


# -- the mean, and norms --------------------------------------------------------------------------


@layer
class _AvgPool(_Pool):
    kernel_size: Sizes
    stride: Sizes | None = None
    padding: Sizes = 0
    ceil_mode: bool = False
    count_include_pad: bool = True


@layer
class _AvgPoolWithDivisor(_AvgPool):
    divisor_override: int | None = None


class AvgPool1d(_AvgPool, function=nm.avg_pool1d):
    """The mean of every window of (N, C, L). Arguments as of `AvgPool2d`."""


class AvgPool2d(_AvgPoolWithDivisor, function=nm.avg_pool2d):
    """The mean of every window of (N, C, H, W).

    >>> from numus import nn
    >>> nn.AvgPool2d(2, stride=1)(nm.arange(4.0).reshape((1, 1, 2, 2))).item()
    1.5

    Args:
        kernel_size, stride, padding, ceil_mode: as of `MaxPool2d`; the padding is zeros.
        count_include_pad: whether the padding counts.
        divisor_override: the divisor of sums; by default, the number of elements.
    """


class AvgPool3d(_AvgPoolWithDivisor, function=nm.avg_pool3d):
    """The mean of every window of (N, C, D, H, W). Arguments as of `AvgPool2d`."""


@layer
class _LPPool(_Pool):
    norm_type: float
    kernel_size: Sizes
    stride: Sizes | None = None
    ceil_mode: bool = False


class LPPool1d(_LPPool, function=nm.lp_pool1d):
    """The p-norm of every window of (N, C, L). Arguments as of `LPPool2d`."""


class LPPool2d(_LPPool, function=nm.lp_pool2d):
    """The p-norm of every window of (N, C, H, W).

    Args:
        norm_type: p.
        kernel_size, stride, ceil_mode: as of `MaxPool2d`.
    """


class LPPool3d(_LPPool, function=nm.lp_pool3d):
    """The p-norm of every window of (N, C, D, H, W). Arguments as of `LPPool2d`."""


# -- to a size ------------------------------------------------------------------------------------


@layer
class _AdaptivePool(FunctionLayer):
    output_size: Any


class AdaptiveAvgPool1d(_AdaptivePool, function=nm.adaptive_avg_pool1d):
    """Means over (N, C, L), to a given length."""


class AdaptiveAvgPool2d(_AdaptivePool, function=nm.adaptive_avg_pool2d):
    """Means over (N, C, H, W), to a given size; None keeps an axis.

    >>> from numus import nn
    >>> nn.AdaptiveAvgPool2d((1, None))(nm.ones((2, 3, 7, 5))).shape
    (2, 3, 1, 5)
    """


class AdaptiveAvgPool3d(_AdaptivePool, function=nm.adaptive_avg_pool3d):
    """Means over (N, C, D, H, W), to a given size; None keeps an axis."""


@layer
class _AdaptiveMaxPool(_AdaptivePool):
    return_indices: bool = False


class AdaptiveMaxPool1d(_AdaptiveMaxPool, function=nm.adaptive_max_pool1d):
    """The largest elements of (N, C, L), to a given length."""


class AdaptiveMaxPool2d(_AdaptiveMaxPool, function=nm.adaptive_max_pool2d):
    """The largest elements of (N, C, H, W), to a given size; None keeps an axis."""


class AdaptiveMaxPool3d(_AdaptiveMaxPool, function=nm.adaptive_max_pool3d):
    """The largest elements of (N, C, D, H, W), to a given size; None keeps an axis."""
