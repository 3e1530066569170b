"""MobileNetV3 (Howard et al. 2019): inverted residual blocks, some with squeeze-excitation."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from numus import nn
from numus.models.blocks import ConvNorm, SqueezeExcitation, kaiming_, multiple, pooled
from numus.models.registry import factory
from numus.tensor import Tensor

__all__ = ["InvertedResidual", "MobileNetV3", "mobilenet_v3_large", "mobilenet_v3_small"]

_norm = functools.partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01)


class InvertedResidual(NamedTuple):
    """One block: its window, channels in the middle and after it, and how it goes on.

    `squeeze` adds squeeze-excitation, `hard` takes hard-swish instead of the rectifier.
    """

    kernel: int
    expanded: int
    out: int
    squeeze: bool
    hard: bool
    stride: int
    dilation: int = 1


class Block(nn.Module):
    """Expand by a 1 × 1 convolution, convolve each channel, project; added where shapes agree."""

    def __init__(self, given: int, block: InvertedResidual) -> None:
        conv = functools.partial(ConvNorm, norm=_norm)
        activation = nn.Hardswish if block.hard else nn.ReLU
        wide = block.expanded
        stride = 1 if block.dilation > 1 else block.stride
        layers: list[nn.Module] = []
        if wide != given:
            layers.append(conv(given, wide, 1, activation=activation))
        options = (block.kernel, stride, wide, block.dilation)
        layers.append(conv(wide, wide, *options, activation=activation))
        if block.squeeze:
            layers.append(SqueezeExcitation(wide, multiple(wide // 4), scale=nn.Hardsigmoid))
        layers.append(conv(wide, block.out, 1, activation=None))
        self.block = nn.Sequential(*layers)
        self.adds = block.stride == 1 and given == block.out

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(x)
        return x + y if self.adds else y


class MobileNetV3(nn.Module):
    """A MobileNetV3.

    >>> blocks = [nm.models.InvertedResidual(3, 16, 8, True, True, 2)]
    >>> nm.models.MobileNetV3(blocks, 8, 16, num_classes=3).num_parameters()
    2307

    Args:
        blocks: the blocks one after the other.
        stem: how many channels the first convolution gives.
        last_channel: the width of the classifier's hidden layer.
        num_classes: how many scores there are.
        dropout: before the last linear map.
        in_channels: of the images.
    """

    def __init__(
        self,
        blocks: Sequence[InvertedResidual],
        stem: int,
        last_channel: int,
        num_classes: int = 1000,
        dropout: float = 0.2,
        *,
        in_channels: int = 3,
    ) -> None:
        conv = functools.partial(ConvNorm, norm=_norm, activation=nn.Hardswish)
        layers: list[nn.Module] = [conv(in_channels, stem, 3, 2)]
        given = stem
        for block in blocks:
            layers.append(Block(given, block))
            given = block.out
        layers.append(conv(given, 6 * given, 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(6 * given, last_channel),
            nn.Hardswish(),
            nn.Dropout(dropout),
            nn.Linear(last_channel, num_classes),
        )
        kaiming_(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(pooled(self.features(x)))


# kernel, channels in the middle, channels after it, squeeze-excitation, hard-swish, stride
_LARGE = (
    *((3, 16, 16, 0, 0, 1), (3, 64, 24, 0, 0, 2), (3, 72, 24, 0, 0, 1)),
    *((5, 72, 40, 1, 0, 2), (5, 120, 40, 1, 0, 1), (5, 120, 40, 1, 0, 1)),
    *((3, 240, 80, 0, 1, 2), (3, 200, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1)),
    *((3, 480, 112, 1, 1, 1), (3, 672, 112, 1, 1, 1)),
    *((5, 672, 160, 1, 1, 2), (5, 960, 160, 1, 1, 1), (5, 960, 160, 1, 1, 1)),
)
_SMALL = (
    *((3, 16, 16, 1, 0, 2), (3, 72, 24, 0, 0, 2), (3, 88, 24, 0, 0, 1)),
    *((5, 96, 40, 1, 1, 2), (5, 240, 40, 1, 1, 1), (5, 240, 40, 1, 1, 1)),
    *((5, 120, 48, 1, 1, 1), (5, 144, 48, 1, 1, 1)),
    *((5, 288, 96, 1, 1, 2), (5, 576, 96, 1, 1, 1), (5, 576, 96, 1, 1, 1)),
)


def _build(
    table: Sequence[tuple[int, ...]],
    last: int,
    width_mult: float = 1.0,
    reduced_tail: bool = False,
    dilated: bool = False,
    **options: Any,
) -> MobileNetV3:
    blocks = []
    divisor = 2 if reduced_tail else 1
    for i, (kernel, wide, out, squeeze, hard, stride) in enumerate(table):
        tail = len(table) - i  # the last three keep the size where the network is dilated
        wide, out = wide // (divisor if tail < 3 else 1), out // (divisor if tail < 4 else 1)
        wide, out = multiple(wide * width_mult), multiple(out * width_mult)
        dilation = 2 if dilated and tail < 4 else 1
        block = InvertedResidual(kernel, wide, out, bool(squeeze), bool(hard), stride, dilation)
        blocks.append(block)
    last = multiple(last // divisor * width_mult)
    return MobileNetV3(blocks, multiple(16 * width_mult), last, **options)


@factory
def mobilenet_v3_large(**options: Any) -> MobileNetV3:
    """MobileNetV3-Large.

    Args:
        options: `width_mult` scales all channels, `reduced_tail` halves those of the last blocks,
            `dilated` keeps their size; others are those of `MobileNetV3`.
    """
    return _build(_LARGE, 1280, **options)


@factory
def mobilenet_v3_small(**options: Any) -> MobileNetV3:
    """MobileNetV3-Small; options are those of `mobilenet_v3_large`."""
    return _build(_SMALL, 1024, **options)
