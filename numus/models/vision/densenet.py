"""DenseNet (Huang et al. 2017): every layer takes what all layers before it in its block give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numus as nm
from numus import nn
from numus.models.blocks import Renamed, pooled
from numus.models.registry import factory
from numus.nn import functional as F
from numus.nn import init
from numus.tensor import Tensor

__all__ = ["DenseNet", "densenet121", "densenet161", "densenet169", "densenet201"]


class DenseLayer(nn.Module):
    """A 1 × 1 and a 3 × 3 convolution, each after its norm and rectifier."""

    def __init__(self, given: int, growth: int, bn_size: int, drop: float) -> None:
        self.norm1 = nn.BatchNorm2d(given)
        self.conv1 = nn.Conv2d(given, bn_size * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(bn_size * growth)
        self.conv2 = nn.Conv2d(bn_size * growth, growth, 3, padding=1, bias=False)
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(self.norm1(x).relu())
        x = self.conv2(self.norm2(x).relu())
        return F.dropout(x, self.drop, self.training) if self.drop else x


class DenseBlock(nn.ModuleDict):
    """Layers whose results are joined to their inputs."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.values():
            x = nm.concat([x, layer(x)], axis=1)
        return x


class DenseNet(Renamed):
    """A DenseNet with bottlenecks and compression.

    >>> model = nm.models.DenseNet(4, (1, 2), 8, num_classes=5)
    >>> model.classifier
    Linear(in_features=14, out_features=5, bias=True)

    Args:
        growth_rate: how many channels each layer adds.
        block_config: how many layers each block has.
        num_init_features: how many channels the first convolution gives.
        bn_size: how many times the growth rate the channels between a layer's convolutions are.
        drop_rate: of dropout after every layer.
        num_classes: how many scores there are.
        in_channels: of the images.
    """

    # names of weights stored before modules could not have dots in theirs
    old_names = ((r"(denselayer\d+\.(?:norm|conv))\.([12])\.", r"\1\2."),)

    def __init__(
        self,
        growth_rate: int = 32,
        block_config: Sequence[int] = (6, 12, 24, 16),
        num_init_features: int = 64,
        bn_size: int = 4,
        drop_rate: float = 0.0,
        num_classes: int = 1000,
        *,
        in_channels: int = 3,
    ) -> None:
        count = num_init_features
        layers: dict[str, nn.Module] = {
            "conv0": nn.Conv2d(in_channels, count, 7, 2, 3, bias=False),
            "norm0": nn.BatchNorm2d(count),
            "relu0": nn.ReLU(),
            "pool0": nn.MaxPool2d(3, 2, 1),
        }
        for i, depth in enumerate(block_config, 1):
            if i > 1:
                layers[f"transition{i - 1}"] = _transition(count, count // 2)
                count //= 2
            block = DenseBlock()
            for j in range(depth):
                block[f"denselayer{j + 1}"] = DenseLayer(count, growth_rate, bn_size, drop_rate)
                count += growth_rate
            layers[f"denseblock{i}"] = block
        layers["norm5"] = nn.BatchNorm2d(count)
        self.features = nn.Sequential(layers)
        self.classifier = nn.Linear(count, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                init.kaiming_normal_(module.weight)
        if self.classifier.bias is not None:
            init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(pooled(self.features(x).relu()))


def _transition(given: int, channels: int) -> nn.Sequential:
    """Fewer channels, and half the size."""
    layers: dict[str, nn.Module] = {"norm": nn.BatchNorm2d(given), "relu": nn.ReLU()}
    layers["conv"] = nn.Conv2d(given, channels, 1, bias=False)
    layers["pool"] = nn.AvgPool2d(2)
    return nn.Sequential(layers)


@factory
def densenet121(**options: Any) -> DenseNet:
    """DenseNet-121; options are those of `DenseNet`."""
    return DenseNet(32, (6, 12, 24, 16), 64, **options)


@factory
def densenet161(**options: Any) -> DenseNet:
    """DenseNet-161; options are those of `DenseNet`."""
    return DenseNet(48, (6, 12, 36, 24), 96, **options)


@factory
def densenet169(**options: Any) -> DenseNet:
    """DenseNet-169; options are those of `DenseNet`."""
    return DenseNet(32, (6, 12, 32, 32), 64, **options)


@factory
def densenet201(**options: Any) -> DenseNet:
    """DenseNet-201; options are those of `DenseNet`."""
    return DenseNet(32, (6, 12, 48, 32), 64, **options)
