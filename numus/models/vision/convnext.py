"""ConvNeXt (Liu et al. 2022): depthwise 7 × 7 convolutions and MLPs over channels."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numus as nm
from numus import nn
from numus.models.blocks import ConvNorm, LayerNorm2d, Permute, StochasticDepth, trunc_normal_
from numus.models.registry import factory
from numus.tensor import Tensor

__all__ = [
    "ConvNeXt", "convnext_base", "convnext_large", "convnext_small", "convnext_tiny",
]  # fmt: skip

_norm = functools.partial(LayerNorm2d, eps=1e-6)


class Block(nn.Module):
    """A depthwise convolution, a norm and an MLP over channels, scaled and added to the input."""

    def __init__(self, channels: int, layer_scale: float, drop: float) -> None:
        self.layer_scale = nn.Parameter(nm.full((channels, 1, 1), layer_scale))
        self.block = nn.Sequential(
            nn.Conv2d(channels, channels, 7, padding=3, groups=channels),
            Permute(0, 2, 3, 1),
            nn.LayerNorm(channels, eps=1e-6),
            nn.Linear(channels, 4 * channels),
            nn.GELU(),
            nn.Linear(4 * channels, channels),
            Permute(0, 3, 1, 2),
        )
        self.stochastic_depth = StochasticDepth(drop)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.stochastic_depth(self.layer_scale * self.block(x))


class ConvNeXt(nn.Module):
    """A ConvNeXt.

    >>> model = nm.models.ConvNeXt((8, 16), (1, 2), num_classes=5)
    >>> model.num_parameters()
    7997

    Args:
        widths: the channels of each stage.
        depths: how many blocks each stage has.
        stochastic_depth_prob: of the last block; it grows from 0 at the first.
        layer_scale: by which blocks are scaled at first.
        num_classes: how many scores there are.
        in_channels: of the images.
    """

    def __init__(
        self,
        widths: Sequence[int],
        depths: Sequence[int],
        stochastic_depth_prob: float = 0.0,
        layer_scale: float = 1e-6,
        num_classes: int = 1000,
        *,
        in_channels: int = 3,
    ) -> None:
        stem = ConvNorm(
            *(in_channels, widths[0], 4, 4), padding=0, norm=_norm, activation=None, bias=True
        )
        layers: list[nn.Module] = [stem]
        drops = iter(nm.linspace(0, stochastic_depth_prob, sum(depths)).tolist())
        for i, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            if i > 0:
                before = widths[i - 1]
                layers.append(nn.Sequential(_norm(before), nn.Conv2d(before, width, 2, 2)))
            blocks = [Block(width, layer_scale, next(drops)) for _ in range(depth)]
            layers.append(nn.Sequential(*blocks))
        self.features = nn.Sequential(*layers)
        last = widths[-1]
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(_norm(last), nn.Flatten(1), nn.Linear(last, num_classes))
        trunc_normal_(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)))


@factory
def convnext_tiny(**options: Any) -> ConvNeXt:
    """ConvNeXt-T; options are those of `ConvNeXt`."""
    options = {"stochastic_depth_prob": 0.1} | options
    return ConvNeXt((96, 192, 384, 768), (3, 3, 9, 3), **options)


@factory
def convnext_small(**options: Any) -> ConvNeXt:
    """ConvNeXt-S; options are those of `ConvNeXt`."""
    options = {"stochastic_depth_prob": 0.4} | options
    return ConvNeXt((96, 192, 384, 768), (3, 3, 27, 3), **options)


@factory
def convnext_base(**options: Any) -> ConvNeXt:
    """ConvNeXt-B; options are those of `ConvNeXt`."""
    options = {"stochastic_depth_prob": 0.5} | options
    return ConvNeXt((128, 256, 512, 1024), (3, 3, 27, 3), **options)


@factory
def convnext_large(**options: Any) -> ConvNeXt:
    """ConvNeXt-L; options are those of `ConvNeXt`."""
    options = {"stochastic_depth_prob": 0.5} | options
    return ConvNeXt((192, 384, 768, 1536), (3, 3, 27, 3), **options)
