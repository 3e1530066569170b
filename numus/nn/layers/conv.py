"""Convolutions and their transposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numus as nm
from numus.nn import functional as F
from numus.nn import init
from numus.nn.module import Module
from numus.nn.parameter import Parameter
from numus.shapes import as_int, is_sequence
from numus.tensor import Tensor

__all__ = [
    "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d",
]  # fmt: skip

Sizes = int | tuple[int, ...]
_MODES = ("zeros", "reflect", "replicate", "circular")


class _Windowed(Module):
    """Arguments, parameters and `repr` of convolutions and transposed convolutions."""

    _rank: ClassVar[int]
    _function: ClassVar[Callable[..., Tensor]]
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Any
    dilation: tuple[int, ...]
    weight: Parameter
    bias: Parameter | None

    def __init_subclass__(cls, rank: int = 0, function: Any = None) -> None:
        super().__init_subclass__()
        if function is not None:
            cls._rank, cls._function = rank, staticmethod(function)

    def _per_axis(self, name: str, sizes: Sizes) -> tuple[int, ...]:
        given = sizes if is_sequence(sizes) else (sizes,) * self._rank
        found = tuple(as_int(n, name, type(self).__name__) for n in given)
        if len(found) != self._rank:
            raise ValueError(
                f"{type(self).__name__}: {name} is a number or {self._rank} of them, not {sizes}"
            )
        return found

    def _set(self, in_channels: int, out_channels: int, groups: int, **sizes: Any) -> None:
        counts = {"in_channels": in_channels, "out_channels": out_channels, "groups": groups}
        in_channels, out_channels, groups = (
            as_int(n, name, type(self).__name__) for name, n in counts.items()
        )
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{type(self).__name__}: in_channels={in_channels} and out_channels={out_channels} "
                f"must be divisible by groups={groups}"
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.groups = groups
        for name, size in sizes.items():
            setattr(self, name, size if isinstance(size, str) else self._per_axis(name, size))

    def _fill(self, shape: tuple[int, ...], bias: bool, device: Any, dtype: Any) -> None:
        options = {"dtype": dtype or nm.float32, "device": device}
        self.weight = Parameter(nm.empty(shape, **options))
        self.bias = Parameter(nm.empty((self.out_channels,), **options)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw first values: uniform, within one over the root of the number of inputs."""
        init.fan_in_uniform_(self, init.fans(self.weight)[0])

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
                f"{type(self).__name__}: padding_mode {padding_mode!r} must be one of "
                f"{', '.join(_MODES)}"
            )
        sizes = {"kernel_size": kernel_size, "stride": stride, "dilation": dilation}
        self._set(in_channels, out_channels, groups, **sizes, padding=padding)
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
        options = (self.stride, padding, self.dilation, self.groups)
        return self._function(x, self.weight, self.bias, *options)

    def _margins(self) -> list[int]:
        """The padding before and after each axis, the last axis first."""
        if self.padding == "same":
            totals = [d * (k - 1) for k, d in zip(self.kernel_size, self.dilation, strict=True)]
            return [n for t in reversed(totals) for n in (t // 2, t - t // 2)]
        padding = (0,) * self._rank if self.padding == "valid" else self.padding
        return [p for p in reversed(padding) for _ in range(2)]


class Conv1d(_Conv, rank=1, function=nm.conv1d):
    """Convolution of (N, C, L). Arguments as of `Conv2d`, one number each."""


class Conv2d(_Conv, rank=2, function=nm.conv2d):
    """Convolution of (N, C, H, W) with a weight of shape (outputs, channels / groups, taps).

    >>> from numus import nn
    >>> nn.Conv2d(3, 8, 3, padding=1)(nm.ones((2, 3, 6, 5))).shape
    (2, 8, 6, 5)

    Args:
        in_channels, out_channels: the number of channels of the input and of the result.
        kernel_size: the number of taps of a window: one, or one for each axis.
        stride: the distance between windows.
        padding: the width of the padding; "same" keeps the size of the input, "valid" is 0.
        dilation: the distance between the taps of a window.
        groups: the number of channel groups that are convolved separately.
        padding_mode: "zeros", "reflect", "replicate" or "circular".
    """


class Conv3d(_Conv, rank=3, function=nm.conv3d):
    """Convolution of (N, C, D, H, W). Arguments as of `Conv2d`."""


class _ConvTranspose(_Windowed):
    output_padding: tuple[int, ...]

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
        sizes = {"kernel_size": kernel_size, "stride": stride, "dilation": dilation}
        sizes |= {"padding": padding, "output_padding": output_padding}
        self._set(in_channels, out_channels, groups, **sizes)
        shape = (in_channels, out_channels // groups, *self.kernel_size)
        self._fill(shape, bias, device, dtype)

    def forward(self, x: Any, output_size: Any = None) -> Tensor:
        """Each element's window of weights, added up; `output_size` names one of several sizes."""
        extra = self.output_padding if output_size is None else self._extra(x, output_size)
        options = (self.stride, self.padding, extra, self.groups, self.dilation)
        return self._function(x, self.weight, self.bias, *options)

    def _extra(self, x: Any, output_size: Any) -> tuple[int, ...]:
        wanted = tuple(output_size)[-self._rank :]
        shape, steps = x.shape[-self._rank :], (self.stride, self.padding, self.dilation)
        sizes = zip(shape, *steps, self.kernel_size, strict=True)
        smallest = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, s, p, d, k in sizes]
        extra = tuple(w - m for w, m in zip(wanted, smallest, strict=True))
        limits = map(max, self.stride, self.dilation)
        if not all(0 <= e < limit for e, limit in zip(extra, limits, strict=True)):
            raise nm.errors.ShapeError(
                f"{type(self).__name__}: output_size {wanted} is not within a stride of {smallest}"
            )
        return extra


class ConvTranspose1d(_ConvTranspose, rank=1, function=nm.conv_transpose1d):
    """The transpose of Conv1d. Arguments as of `ConvTranspose2d`, one number each."""


class ConvTranspose2d(_ConvTranspose, rank=2, function=nm.conv_transpose2d):
    """The transpose of Conv2d; weights are (channels, outputs / groups, taps).

    >>> from numus import nn
    >>> nn.ConvTranspose2d(3, 8, 2, stride=2)(nm.ones((1, 3, 4, 5))).shape
    (1, 8, 8, 10)

    Args:
        output_padding: rows that are added at one side of the result, where strides leave open
            which of several sizes it came from. Other arguments as of `Conv2d`.
    """


class ConvTranspose3d(_ConvTranspose, rank=3, function=nm.conv_transpose3d):
    """The transpose of Conv3d. Arguments as of `ConvTranspose2d`."""
