"""U-Net (Ronneberger et al. 2015) of residual blocks, with attention and an embedding of time where
it denoises (Ho et al. 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numus as nm
from numus import nn
from numus.errors import ShapeError
from numus.models.diffusion.layers import (
    ResidualBlock,
    SpatialAttention,
    Upsample,
    downsample,
    norm,
    time_embedding,
)
from numus.models.registry import factory
from numus.nn import functional as F
from numus.tensor import Tensor

__all__ = ["UNet", "unet_ddpm", "unet_segmentation"]


class Level(nn.Module):
    """Blocks of one size, each followed by attention where there is any."""

    def __init__(
        self, widths: Sequence[tuple[int, int]], embedding: int, dropout: float, heads: int
    ) -> None:
        self.blocks = nn.ModuleList(ResidualBlock(n, m, embedding, dropout) for n, m in widths)
        self.attention = nn.ModuleList(SpatialAttention(m, heads) for _, m in widths if heads)

    def step(self, i: int, x: Tensor, embedded: Tensor | None) -> Tensor:
        """What the i-th block and its attention give."""
        x = self.blocks[i](x, embedded)
        return self.attention[i](x) if len(self.attention) else x


class UNet(nn.Module):
    """Images to images of the same size, at several sizes: of noise, of classes, of anything.

    >>> model = nm.models.UNet(1, 3, width=8, multipliers=(1, 2), blocks=1, time=False)
    >>> model.eval()(nm.zeros((2, 1, 8, 8))).shape
    (2, 3, 8, 8)

    Args:
        in_channels, out_channels: of the images it takes and gives.
        width: the channels of the largest size.
        multipliers: how many times as many each size has; each has half the extent of the one
            before it.
        blocks: how many blocks there are at each size on the way down; one more on the way up.
        attention: whether places attend to each other, by size; at the smallest alone by default.
        heads: how many heads attention has.
        dropout: within the blocks.
        time: whether it takes the time of each image's noise.
        num_classes: how many classes images may be conditioned on; None: it takes none.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        width: int = 64,
        multipliers: Sequence[int] = (1, 2, 4, 8),
        blocks: int = 2,
        attention: Sequence[bool] | None = None,
        heads: int = 4,
        dropout: float = 0.0,
        *,
        time: bool = True,
        num_classes: int | None = None,
    ) -> None:
        sizes = len(multipliers)
        attends = [i == sizes - 1 for i in range(sizes)] if attention is None else attention
        embedding = 4 * width if time or num_classes is not None else 0
        self.width, self.blocks, self.sizes = width, blocks, sizes
        self.time = None
        if time:
            layers = (nn.Linear(width, embedding), nn.SiLU(), nn.Linear(embedding, embedding))
            self.time = nn.Sequential(*layers)
        self.classes = None if num_classes is None else nn.Embedding(num_classes, embedding)
        self.first = nn.Conv2d(in_channels, width, 3, padding=1)
        given, kept = width, [width]
        options = [(embedding, dropout, heads if at else 0) for at in attends]
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        for i, times in enumerate(multipliers):
            channels = width * times
            widths = [(given, channels)] + [(channels, channels)] * (blocks - 1)
            self.down.append(Level(widths, *options[i]))
            kept += [channels] * blocks
            given = channels
            if i < sizes - 1:
                self.shrink.append(downsample(channels))
                kept.append(channels)
        self.middle = nn.ModuleList(
            [
                ResidualBlock(given, given, embedding, dropout),
                SpatialAttention(given, heads),
                ResidualBlock(given, given, embedding, dropout),
            ]
        )
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for i in reversed(range(sizes)):
            channels = width * multipliers[i]
            widths = []
            for _ in range(blocks + 1):
                widths.append((given + kept.pop(), channels))
                given = channels
            self.up.append(Level(widths, *options[i]))
            if i > 0:
                self.grow.append(Upsample(channels))
        self.norm = norm(given)
        self.last = nn.Conv2d(given, out_channels, 3, padding=1)

    def forward(self, x: Any, times: Any = None, classes: Any = None) -> Tensor:
        """The image for an image, its time (N,) and its class (N,), where the model has them."""
        x = nm.asarray(x)
        whole = 1 << (self.sizes - 1)
        if x.shape[-1] % whole or x.shape[-2] % whole:
            raise ShapeError(
                f"UNet: {self.sizes} sizes take extents that are multiples of {whole}, not shape "
                f"{x.shape}; pad the images"
            )
        embedded = self._embedded(x, times, classes)
        x = self.first(x)
        kept = [x]
        for i, level in enumerate(self.down):
            for j in range(self.blocks):
                x = level.step(j, x, embedded)
                kept.append(x)
            if i < self.sizes - 1:
                x = self.shrink[i](x)
                kept.append(x)
        for part in self.middle:
            x = part(x, embedded) if isinstance(part, ResidualBlock) else part(x)
        for i, level in enumerate(self.up):
            for j in range(self.blocks + 1):
                x = level.step(j, nm.concat([x, kept.pop()], axis=1), embedded)
            if i < self.sizes - 1:
                x = self.grow[i](x)
        return self.last(F.silu(self.norm(x)))

    def _embedded(self, x: Tensor, times: Any, classes: Any) -> Tensor | None:
        given = {"times": (self.time, times), "classes": (self.classes, classes)}
        for name, (layer, values) in given.items():
            if (layer is None) != (values is None):
                takes = "takes no" if layer is None else "takes"
                raise ValueError(f"UNet: this model {takes} {name}, one for each image")
        parts: list[Tensor] = []
        if self.time is not None:
            times = nm.broadcast_to(nm.asarray(times, device=x.device), (x.shape[0],))
            parts.append(self.time(time_embedding(times, self.width).astype(x.dtype, copy=False)))
        if self.classes is not None:
            parts.append(self.classes(nm.asarray(classes, device=x.device)))
        return None if not parts else parts[0] if len(parts) == 1 else parts[0] + parts[1]


@factory
def unet_ddpm(**options: Any) -> UNet:
    """The denoiser of 32² colour images of Ho et al. (2020); options are those of `UNet`.

    It has 128 channels, and attention at a quarter of the extent.
    """
    usual = dict[str, Any](width=128, multipliers=(1, 2, 2, 2), dropout=0.1, heads=1)
    usual["attention"] = (False, True, False, False)
    return UNet(options.pop("in_channels", 3), options.pop("out_channels", 3), **usual | options)


@factory
def unet_segmentation(**options: Any) -> UNet:
    """A U-Net that scores `num_classes` classes for each pixel; options are those of `UNet`."""
    classes = options.pop("num_classes", 21)
    usual = dict[str, Any](width=32, multipliers=(1, 2, 4, 8), time=False)
    return UNet(options.pop("in_channels", 3), classes, **usual | options)
