"""Images in other sizes: interpolated, shuffled, unfolded."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.nn import functional as F
from numus.nn.module import Module
from numus.tensor import Tensor

__all__ = [
    "ChannelShuffle", "Fold", "PixelShuffle", "PixelUnshuffle", "Unfold", "Upsample",
    "UpsamplingBilinear2d", "UpsamplingNearest2d",
]  # fmt: skip


class Upsample(Module):
    """(N, C, *space) with its space in another size, or some times as large."""

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        if (size is None) == (scale_factor is None):
            raise ValueError("Upsample: give size or scale_factor")
        self.size = size
        self.scale_factor = scale_factor
        self.mode = mode
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, x: Any) -> Tensor:
        return nm.interpolate(
            *(x, self.size, self.scale_factor, self.mode, self.align_corners),
            recompute_scale_factor=self.recompute_scale_factor,
        )

    def extra_repr(self) -> str:
        size = f"size={self.size}" if self.size else f"scale_factor={self.scale_factor}"
        return f"{size}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Each element repeated."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor)


class UpsamplingBilinear2d(Upsample):
    """Lines between elements; the outermost stay outermost."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "bilinear", True)


class PixelShuffle(Module):
    """(N, C r², H, W) as (N, C, H r, W r)."""

    def __init__(self, upscale_factor: int) -> None:
        self.upscale_factor = upscale_factor

    def forward(self, x: Any) -> Tensor:
        return nm.pixel_shuffle(x, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """(N, C, H r, W r) as (N, C r², H, W)."""

    def __init__(self, downscale_factor: int) -> None:
        self.downscale_factor = downscale_factor

    def forward(self, x: Any) -> Tensor:
        return nm.pixel_unshuffle(x, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """Channels of `groups` groups, one of each group in turn."""

    def __init__(self, groups: int) -> None:
        self.groups = groups

    def forward(self, x: Any) -> Tensor:
        return F.channel_shuffle(x, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


class Unfold(Module):
    """All windows of (N, C, H, W) as columns (N, C taps, windows)."""

    def __init__(
        self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
    ) -> None:
        self.options = (kernel_size, dilation, padding, stride)

    def forward(self, x: Any) -> Tensor:
        return nm.unfold(x, *self.options)

    def extra_repr(self) -> str:
        return "kernel_size={}, dilation={}, padding={}, stride={}".format(*self.options)


class Fold(Module):
    """Columns (N, C taps, windows) added up where their windows lie in (N, C, H, W)."""

    def __init__(
        self,
        output_size: Any,
        kernel_size: Any,
        dilation: Any = 1,
        padding: Any = 0,
        stride: Any = 1,
    ) -> None:
        self.output_size = output_size
        self.options = (kernel_size, dilation, padding, stride)

    def forward(self, x: Any) -> Tensor:
        return nm.fold(x, self.output_size, *self.options)

    def extra_repr(self) -> str:
        names = "kernel_size={}, dilation={}, padding={}, stride={}".format(*self.options)
        return f"output_size={self.output_size}, {names}"
