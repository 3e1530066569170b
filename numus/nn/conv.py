"""Convolutions and their transposes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numus as nm
from numus.nn import functional as F
from numus.nn import init
from numus.nn.module import Module
from numus.nn.parameter import Parameter
from numus.tensor import Tensor

__all__ = [
    "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d",
]  # fmt: skip

Sizes = int | tuple[int, ...]
_MODES = ("zeros", "reflect", "replicate", "circular")


def _each(layer: _Windowed, name: str, sizes: Sizes) -> tuple[int, ...]:
    """One number for each axis of space."""
    rank = layer._rank
    found = (sizes,) * rank if isinstance(sizes, int) else tuple(sizes)
    if len(found) != rank:
        raise ValueError(
            f"{type(layer).__name__}: {name} is a number or {rank} of them, not {sizes}"
        )
    return found


class _Windowed(Module):
    """What convolutions and their transposes share."""

    _rank: int
    padding: Any
    _function: Callable[..., Tensor]
    weight: Parameter
    bias: Parameter | None

    def _set(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes,
        padding: Any,
        dilation: Sizes,
        groups: int,
    ) -> None:
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{type(self).__name__}: in_channels={in_channels} and out_channels={out_channels} "
                f"must be divisible by groups={groups}"
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = _each(self, "kernel_size", kernel_size)
        self.stride = _each(self, "stride", stride)
        self.padding = padding if isinstance(padding, str) else _each(self, "padding", padding)
        self.dilation = _each(self, "dilation", dilation)
        self.groups = groups

    def _fill(self, shape: tuple[int, ...], bias: bool, device: Any, dtype: Any) -> None:
        options = {"dtype": dtype or nm.float32, "device": device}
        self.weight = Parameter(nm.empty(shape, **options))
        self.bias = Parameter(nm.empty((self.out_channels,), **options)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw first values: uniform, within one over the root of the number of inputs."""
        bound = 1 / math.sqrt(init.fans(self.weight)[0])
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        shown = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        shown += f", stride={self.stride}"
        for name, usual in (("padding", 0), ("dilation", 1), ("output_padding", 0)):
            value = self.__dict__.get(name, usual)
            if value not in (usual, (usual,) * self._rank):
                shown += f", {name}={value}"
        shown += f", groups={self.groups}" if self.groups != 1 else ""
        return shown + (", bias=False" if self.bias is None else "")


class _Conv(_Windowed):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Any = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if padding_mode not in _MODES:
            raise ValueError(
                f"{type(self).__name__}: padding_mode {padding_mode!r} is none of "
                f"{', '.join(_MODES)}"
            )
        self._set(in_channels, out_channels, kernel_size, stride, padding, dilation, groups)
        if isinstance(self.padding, str) and self.padding not in ("valid", "same"):
            raise ValueError(
                f"{type(self).__name__}: padding is numbers, 'valid' or 'same', not {padding!r}"
            )
        if self.padding == "same" and any(s != 1 for s in self.stride):
            raise ValueError(
                f"{type(self).__name__}: padding 'same' keeps sizes only with a stride of 1, not "
                f"{self.stride}"
            )
        self.padding_mode = padding_mode
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self._fill(shape, bias, device, dtype)

    def forward(self, x: Any) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            x = F.pad(x, self._margins(), mode=self.padding_mode)
            padding = (0,) * self._rank
        convolve = type(self)._function
        options = (self.stride, padding, self.dilation, self.groups)
        return convolve(x, self.weight, self.bias, *options)

    def _margins(self) -> list[int]:
        """Widths around an input, the last axis first."""
        margins = []
        for k, d, p in zip(self.kernel_size, self.dilation, self._numbers(), strict=True):
            total = d * (k - 1)
            low = p if p is not None else total // 2
            margins.append((low, p if p is not None else total - total // 2))
        return [n for pair in reversed(margins) for n in pair]

    def _numbers(self) -> tuple[int | None, ...]:
        """The padding of each axis; None: as much as keeps the size."""
        if self.padding == "same":
            return (None,) * self._rank
        return (0,) * self._rank if isinstance(self.padding, str) else self.padding


class Conv1d(_Conv):
    """Windows of (N, C, L) times weights of shape (outputs, channels / groups, taps).

    Arguments as of `Conv2d`, one number each.
    """

    _rank, _function = 1, staticmethod(nm.conv1d)


class Conv2d(_Conv):
    """Windows of (N, C, H, W) times weights of shape (outputs, channels / groups, taps).

    >>> from numus import nn
    >>> nn.Conv2d(3, 8, 3, padding=1)(nm.ones((2, 3, 6, 5))).shape
    (2, 8, 6, 5)

    Args:
        in_channels, out_channels: how many the input has, and the result.
        kernel_size: how many taps a window has: a number, or one for each axis.
        stride: how far windows are apart.
        padding: how many elements are put around the input; "same" keeps its size, "valid" puts
            none.
        dilation: how far the taps of a window are apart.
        groups: parts of the channels that do not see each other.
        padding_mode: what is put around: "zeros", "reflect", "replicate" or "circular".
    """

    _rank, _function = 2, staticmethod(nm.conv2d)


class Conv3d(_Conv):
    """Windows of (N, C, D, H, W) times weights of shape (outputs, channels / groups, taps).

    Arguments as of `Conv2d`.
    """

    _rank, _function = 3, staticmethod(nm.conv3d)


class _ConvTranspose(_Windowed):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if padding_mode != "zeros":
            raise ValueError(
                f"{type(self).__name__}: only padding_mode 'zeros' has a transpose, not "
                f"{padding_mode!r}"
            )
        self._set(in_channels, out_channels, kernel_size, stride, padding, dilation, groups)
        self.output_padding = _each(self, "output_padding", output_padding)
        shape = (in_channels, out_channels // groups, *self.kernel_size)
        self._fill(shape, bias, device, dtype)

    def forward(self, x: Any, output_size: Any = None) -> Tensor:
        """Each element's window of weights, added up; `output_size` names one of several sizes."""
        extra = self.output_padding if output_size is None else self._extra(x, output_size)
        convolve = type(self)._function
        options = (self.stride, self.padding, extra, self.groups, self.dilation)
        return convolve(x, self.weight, self.bias, *options)

    def _extra(self, x: Any, output_size: Any) -> tuple[int, ...]:
        wanted = tuple(output_size)[-self._rank :]
        sizes = zip(
            x.shape[-self._rank :],
            self.stride,
            self.padding,
            self.dilation,
            self.kernel_size,
            strict=True,
        )
        least = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, s, p, d, k in sizes]
        extra = tuple(w - m for w, m in zip(wanted, least, strict=True))
        if any(
            not 0 <= e < max(s, d)
            for e, s, d in zip(extra, self.stride, self.dilation, strict=True)
        ):
            raise nm.errors.ShapeError(
                f"{type(self).__name__}: output_size {wanted} is not within a stride of {least}"
            )
        return extra


class ConvTranspose1d(_ConvTranspose):
    """The transpose of Conv1d; weights are (channels, outputs / groups, taps).

    Arguments as of `ConvTranspose2d`, one number each.
    """

    _rank, _function = 1, staticmethod(nm.conv_transpose1d)


class ConvTranspose2d(_ConvTranspose):
    """The transpose of Conv2d; weights are (channels, outputs / groups, taps).

    >>> from numus import nn
    >>> nn.ConvTranspose2d(3, 8, 2, stride=2)(nm.ones((1, 3, 4, 5))).shape
    (1, 8, 8, 10)

    Args:
        output_padding: rows that are added at one side of the result, where strides leave open
            which of several sizes it came from. Other arguments as of `Conv2d`.
    """

    _rank, _function = 2, staticmethod(nm.conv_transpose2d)


class ConvTranspose3d(_ConvTranspose):
    """The transpose of Conv3d; weights are (channels, outputs / groups, taps).

    Arguments as of `ConvTranspose2d`.
    """

    _rank, _function = 3, staticmethod(nm.conv_transpose3d)
