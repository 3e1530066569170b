"""EfficientNet (Tan and Le 2019) and EfficientNetV2 (2021): inverted residual blocks whose width,
depth and resolution grow together.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from numus import nn
from numus.models.blocks import (
    ConvNorm,
    Norm,
    SqueezeExcitation,
    StochasticDepth,
    kaiming_,
    multiple,
    pooled,
)
from numus.models.registry import factory
from numus.nn import init
from numus.tensor import Tensor

__all__ = [
    "EfficientNet", "MBConv", "efficientnet_b0", "efficientnet_b1", "efficientnet_b2",
    "efficientnet_b3", "efficientnet_b4", "efficientnet_b5", "efficientnet_b6", "efficientnet_b7",
    "efficientnet_v2_l", "efficientnet_v2_m", "efficientnet_v2_s",
]  # fmt: skip

_narrow_norm = functools.partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01)
_v2_norm = functools.partial(nn.BatchNorm2d, eps=1e-3)


class MBConv(NamedTuple):
    """One stage of blocks: their expansion, window, first stride, channels and number.

    `fused` blocks expand by the window itself, and have no squeeze-excitation.
    """

    expand: float
    kernel: int
    stride: int
    given: int
    out: int
    layers: int
    fused: bool = False


class Block(nn.Module):
    """Expand, convolve (each channel by itself unless fused), project; added where shapes agree."""

    def __init__(self, stage: MBConv, given: int, stride: int, drop: float, norm: Norm) -> None:
        conv = functools.partial(ConvNorm, norm=norm, activation=nn.SiLU)
        wide, kernel, out = multiple(given * stage.expand), stage.kernel, stage.out
        layers: list[nn.Module] = []
        if stage.fused and wide == given:
            layers.append(conv(given, out, kernel, stride))
        elif stage.fused:
            layers.append(conv(given, wide, kernel, stride))
            layers.append(conv(wide, out, 1, activation=None))
        else:
            layers += [conv(given, wide, 1)] if wide != given else []
            layers.append(conv(wide, wide, kernel, stride, wide))
            layers.append(SqueezeExcitation(wide, max(1, given // 4), nn.SiLU))
            layers.append(conv(wide, out, 1, activation=None))
        self.block = nn.Sequential(*layers)
        self.stochastic_depth = StochasticDepth(drop)
        self.adds = stride == 1 and given == out

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(x)
        return x + self.stochastic_depth(y) if self.adds else y


class EfficientNet(nn.Module):
    """An EfficientNet of either version.

    >>> stages = [nm.models.MBConv(4, 3, 2, 8, 8, layers=2)]
    >>> nm.models.EfficientNet(stages, num_classes=3).num_parameters()
    2863

    Args:
        stages: the stages one after the other.
        dropout: before the last linear map.
        stochastic_depth_prob: of the last block; it grows from 0 at the first.
        num_classes: how many scores there are.
        norm: takes a number of channels and gives their norm.
        last_channel: how many channels are pooled; by default four times those of the last stage.
        in_channels: of the images.
    """

    def __init__(
        self,
        stages: Sequence[MBConv],
        dropout: float = 0.2,
        stochastic_depth_prob: float = 0.2,
        num_classes: int = 1000,
        norm: Norm = nn.BatchNorm2d,
        last_channel: int | None = None,
        *,
        in_channels: int = 3,
    ) -> None:
        conv = functools.partial(ConvNorm, norm=norm, activation=nn.SiLU)
        layers: list[nn.Module] = [conv(in_channels, stages[0].given, 3, 2)]
        total, count = sum(stage.layers for stage in stages), 0
        for stage in stages:
            blocks = []
            for i in range(stage.layers):
                given, stride = (stage.out, 1) if i else (stage.given, stage.stride)
                drop = stochastic_depth_prob * count / total
                blocks.append(Block(stage, given, stride, drop, norm))
                count += 1
            layers.append(nn.Sequential(*blocks))
        last = 4 * stages[-1].out if last_channel is None else last_channel
        layers.append(conv(stages[-1].out, last, 1))
        self.features = nn.Sequential(*layers)
        head = nn.Linear(last, num_classes)
        self.classifier = nn.Sequential(nn.Dropout(dropout), head)
        kaiming_(self)
        init.uniform_(head.weight, -(num_classes**-0.5), num_classes**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(pooled(self.features(x)))


_V1 = (
    *((1, 3, 1, 32, 16, 1), (6, 3, 2, 16, 24, 2), (6, 5, 2, 24, 40, 2), (6, 3, 2, 40, 80, 3)),
    *((6, 5, 1, 80, 112, 3), (6, 5, 2, 112, 192, 4), (6, 3, 1, 192, 320, 1)),
)


def _v1(
    width: float, depth: float, dropout: float, norm: Norm = nn.BatchNorm2d, **options: Any
) -> EfficientNet:
    stages = []
    for expand, kernel, stride, given, out, layers in _V1:
        channels = (multiple(given * width), multiple(out * width))
        stages.append(MBConv(expand, kernel, stride, *channels, math.ceil(layers * depth)))
    return EfficientNet(stages, **dict[str, Any](dropout=dropout, norm=norm) | options)


@factory
def efficientnet_b0(**options: Any) -> EfficientNet:
    """EfficientNet-B0; options are those of `EfficientNet`."""
    return _v1(1.0, 1.0, 0.2, **options)


@factory
def efficientnet_b1(**options: Any) -> EfficientNet:
    """EfficientNet-B1; options are those of `EfficientNet`."""
    return _v1(1.0, 1.1, 0.2, **options)


@factory
def efficientnet_b2(**options: Any) -> EfficientNet:
    """EfficientNet-B2; options are those of `EfficientNet`."""
    return _v1(1.1, 1.2, 0.3, **options)


@factory
def efficientnet_b3(**options: Any) -> EfficientNet:
    """EfficientNet-B3; options are those of `EfficientNet`."""
    return _v1(1.2, 1.4, 0.3, **options)


@factory
def efficientnet_b4(**options: Any) -> EfficientNet:
    """EfficientNet-B4; options are those of `EfficientNet`."""
    return _v1(1.4, 1.8, 0.4, **options)


@factory
def efficientnet_b5(**options: Any) -> EfficientNet:
    """EfficientNet-B5; options are those of `EfficientNet`."""
    return _v1(1.6, 2.2, 0.4, **{"norm": _narrow_norm} | options)


@factory
def efficientnet_b6(**options: Any) -> EfficientNet:
    """EfficientNet-B6; options are those of `EfficientNet`."""
    return _v1(1.8, 2.6, 0.5, **{"norm": _narrow_norm} | options)


@factory
def efficientnet_b7(**options: Any) -> EfficientNet:
    """EfficientNet-B7; options are those of `EfficientNet`."""
    return _v1(2.0, 3.1, 0.5, **{"norm": _narrow_norm} | options)


def _v2(stages: Sequence[MBConv], dropout: float, **options: Any) -> EfficientNet:
    usual = dict[str, Any](dropout=dropout, norm=_v2_norm, last_channel=1280)
    return EfficientNet(stages, **usual | options)


@factory
def efficientnet_v2_s(**options: Any) -> EfficientNet:
    """EfficientNetV2-S; options are those of `EfficientNet`."""
    stages = (
        MBConv(1, 3, 1, 24, 24, 2, fused=True),
        MBConv(4, 3, 2, 24, 48, 4, fused=True),
        MBConv(4, 3, 2, 48, 64, 4, fused=True),
        MBConv(4, 3, 2, 64, 128, 6),
        MBConv(6, 3, 1, 128, 160, 9),
        MBConv(6, 3, 2, 160, 256, 15),
    )
    return _v2(stages, 0.2, **options)


@factory
def efficientnet_v2_m(**options: Any) -> EfficientNet:
    """EfficientNetV2-M; options are those of `EfficientNet`."""
    stages = (
        MBConv(1, 3, 1, 24, 24, 3, fused=True),
        MBConv(4, 3, 2, 24, 48, 5, fused=True),
        MBConv(4, 3, 2, 48, 80, 5, fused=True),
        MBConv(4, 3, 2, 80, 160, 7),
        MBConv(6, 3, 1, 160, 176, 14),
        MBConv(6, 3, 2, 176, 304, 18),
        MBConv(6, 3, 1, 304, 512, 5),
    )
    return _v2(stages, 0.3, **options)


@factory
def efficientnet_v2_l(**options: Any) -> EfficientNet:
    """EfficientNetV2-L; options are those of `EfficientNet`."""
    stages = (
        MBConv(1, 3, 1, 32, 32, 4, fused=True),
        MBConv(4, 3, 2, 32, 64, 7, fused=True),
        MBConv(4, 3, 2, 64, 96, 7, fused=True),
        MBConv(4, 3, 2, 96, 192, 10),
        MBConv(6, 3, 1, 192, 224, 19),
        MBConv(6, 3, 2, 224, 384, 25),
        MBConv(6, 3, 1, 384, 640, 7),
    )
    return _v2(stages, 0.4, **options)
