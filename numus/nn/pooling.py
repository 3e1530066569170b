"""Poolings: the largest, the mean or a norm of every window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numus as nm
from numus.nn.module import Module
from numus.tensor import Tensor

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d", "LPPool1d",
    "LPPool2d", "LPPool3d", "MaxPool1d", "MaxPool2d", "MaxPool3d", "MaxUnpool1d", "MaxUnpool2d",
    "MaxUnpool3d",
]  # fmt: skip

Sizes = int | tuple[int, ...]


class _Pool(Module):
    """A function of windows; what it was made with is shown in print."""

    _function: Callable[..., Any]

    def _options(self) -> dict[str, Any]:
        hidden = ("training", "_buffers", "_hooks")
        return {name: value for name, value in self.__dict__.items() if name not in hidden}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return type(self)._function(*args, **self._options(), **kwargs)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self._options().items())


# -- the largest ----------------------------------------------------------------------------------


class _MaxPool(_Pool):
    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode


class MaxPool1d(_MaxPool):
    """The largest element of every window of (N, C, L). Arguments as of `MaxPool2d`."""

    _function = staticmethod(nm.max_pool1d)


class MaxPool2d(_MaxPool):
    """The largest element of every window of (N, C, H, W).

    >>> from numus import nn
    >>> nn.MaxPool2d(2)(nm.ones((1, 3, 6, 5))).shape
    (1, 3, 3, 2)

    Args:
        kernel_size: of a window: a number, or one for each axis.
        stride: how far windows are apart; as far as they are wide where it is not given.
        padding: how much is put around, of which nothing is ever the largest.
        dilation: how far the elements of a window are apart.
        return_indices: also give where they were, for `MaxUnpool2d`.
        ceil_mode: also take windows that lie inside only in part.
    """

    _function = staticmethod(nm.max_pool2d)


class MaxPool3d(_MaxPool):
    """The largest element of every window of (N, C, D, H, W). Arguments as of `MaxPool2d`."""

    _function = staticmethod(nm.max_pool3d)


class _MaxUnpool(_Pool):
    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> None:
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding

    def forward(self, x: Any, indices: Any, output_size: Any = None) -> Tensor:
        """Elements back at the indices that a pooling with `return_indices` took them from."""
        return type(self)._function(x, indices, **self._options(), output_size=output_size)


class MaxUnpool1d(_MaxUnpool):
    """The elements of a MaxPool1d back at their indices, zeros elsewhere."""

    _function = staticmethod(nm.max_unpool1d)


class MaxUnpool2d(_MaxUnpool):
    """The elements of a MaxPool2d back at their indices, zeros elsewhere."""

    _function = staticmethod(nm.max_unpool2d)


class MaxUnpool3d(_MaxUnpool):
    """The elements of a MaxPool3d back at their indices, zeros elsewhere."""

    _function = staticmethod(nm.max_unpool3d)


# -- the mean -------------------------------------------------------------------------------------


class AvgPool1d(_Pool):
    """The mean of every window of (N, C, L). Arguments as of `AvgPool2d`."""

    _function = staticmethod(nm.avg_pool1d)

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad


class _AvgPool(_Pool):
    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override


class AvgPool2d(_AvgPool):
    """The mean of every window of (N, C, H, W).

    >>> from numus import nn
    >>> nn.AvgPool2d(2, stride=1)(nm.arange(4.0).reshape((1, 1, 2, 2))).item()
    1.5

    Args:
        kernel_size, stride, padding, ceil_mode: as of `MaxPool2d`; zeros are put around.
        count_include_pad: whether these zeros count.
        divisor_override: what sums are divided by instead of how many elements there are.
    """

    _function = staticmethod(nm.avg_pool2d)


class AvgPool3d(_AvgPool):
    """The mean of every window of (N, C, D, H, W). Arguments as of `AvgPool2d`."""

    _function = staticmethod(nm.avg_pool3d)


class _LPPool(_Pool):
    def __init__(
        self,
        norm_type: float,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        ceil_mode: bool = False,
    ) -> None:
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.ceil_mode = ceil_mode


class LPPool1d(_LPPool):
    """The p-norm of every window of (N, C, L). Arguments as of `LPPool2d`."""

    _function = staticmethod(nm.lp_pool1d)


class LPPool2d(_LPPool):
    """The p-norm of every window of (N, C, H, W).

    Args:
        norm_type: p.
        kernel_size, stride, ceil_mode: as of `MaxPool2d`.
    """

    _function = staticmethod(nm.lp_pool2d)


class LPPool3d(_LPPool):
    """The p-norm of every window of (N, C, D, H, W). Arguments as of `LPPool2d`."""

    _function = staticmethod(nm.lp_pool3d)


# -- to a size ------------------------------------------------------------------------------------


class _AdaptiveAvgPool(_Pool):
    def __init__(self, output_size: Any) -> None:
        self.output_size = output_size


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """Means over (N, C, L), to a given length."""

    _function = staticmethod(nm.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """Means over (N, C, H, W), to a given size; None keeps an axis.

    >>> from numus import nn
    >>> nn.AdaptiveAvgPool2d((1, None))(nm.ones((2, 3, 7, 5))).shape
    (2, 3, 1, 5)
    """

    _function = staticmethod(nm.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """Means over (N, C, D, H, W), to a given size; None keeps an axis."""

    _function = staticmethod(nm.adaptive_avg_pool3d)


class _AdaptiveMaxPool(_Pool):
    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        self.output_size = output_size
        self.return_indices = return_indices


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The largest elements of (N, C, L), to a given length."""

    _function = staticmethod(nm.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The largest elements of (N, C, H, W), to a given size; None keeps an axis."""

    _function = staticmethod(nm.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The largest elements of (N, C, D, H, W), to a given size; None keeps an axis."""

    _function = staticmethod(nm.adaptive_max_pool3d)
