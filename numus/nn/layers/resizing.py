"""Images in other sizes: interpolated, shuffled, unfolded."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.nn import functional as F
from numus.nn.layers.function_layer import UnaryLayer, layer

__all__ = [
    "ChannelShuffle", "Fold", "PixelShuffle", "PixelUnshuffle", "Unfold", "Upsample",
    "UpsamplingBilinear2d", "UpsamplingNearest2d",
]  # fmt: skip


@layer
class Upsample(UnaryLayer, function=nm.interpolate):
    """(N, C, *space) with its space in another size, or some times as large."""

    size: Any = None
    scale_factor: Any = None
    mode: str = "nearest"
    align_corners: bool | None = None
    recompute_scale_factor: bool | None = None

    def __post_init__(self) -> None:
        if (self.size is None) == (self.scale_factor is None):
            raise ValueError("Upsample: give size or scale_factor")

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


@layer
class PixelShuffle(UnaryLayer, function=nm.pixel_shuffle):
    """(N, C r², H, W) as (N, C, H r, W r)."""

    upscale_factor: int


@layer
class PixelUnshuffle(UnaryLayer, function=nm.pixel_unshuffle):
    """(N, C, H r, W r) as (N, C r², H, W)."""

    downscale_factor: int


@layer
class ChannelShuffle(UnaryLayer, function=F.channel_shuffle):
    """Channels of `groups` groups, one of each group in turn."""

    groups: int


@layer
class Unfold(UnaryLayer, function=nm.unfold):
    """All windows of (N, C, H, W) as columns (N, C taps, windows)."""

    kernel_size: Any
    dilation: Any = 1
    padding: Any = 0
    stride: Any = 1


@layer
class Fold(UnaryLayer, function=nm.fold):
    """Columns (N, C taps, windows) added up at the positions of their windows in (N, C, H, W)."""

    output_size: Any
    kernel_size: Any
    dilation: Any = 1
    padding: Any = 0
    stride: Any = 1
