"""VGG (Simonyan and Zisserman 2015): 3 × 3 convolutions and poolings, then three linear maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numus import nn
from numus.models.blocks import kaiming_
from numus.models.registry import factory
from numus.tensor import Tensor

__all__ = [
    "VGG", "vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn",
]  # fmt: skip


class VGG(nn.Module):
    """A VGG network.

    >>> nm.models.VGG([(8,), (16, 16)], num_classes=5, hidden=4).classifier[0]
    Linear(in_features=784, out_features=4, bias=True)

    Args:
        stages: the channels of the convolutions of each stage; a pooling follows each stage.
        batch_norm: normalise after every convolution.
        num_classes: how many scores there are.
        dropout: after both hidden layers of the classifier.
        hidden: the width of those.
        in_channels: of the images.
    """

    def __init__(
        self,
        stages: Sequence[Sequence[int]],
        batch_norm: bool = False,
        num_classes: int = 1000,
        dropout: float = 0.5,
        *,
        hidden: int = 4096,
        in_channels: int = 3,
    ) -> None:
        layers: list[nn.Module] = []
        given = in_channels
        for stage in stages:
            for width in stage:
                layers.append(nn.Conv2d(given, width, 3, padding=1))
                layers += [nn.BatchNorm2d(width)] if batch_norm else []
                layers.append(nn.ReLU())
                given = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            *(nn.Linear(given * 49, hidden), nn.ReLU(), nn.Dropout(dropout)),
            *(nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(dropout)),
            nn.Linear(hidden, num_classes),
        )
        kaiming_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))
        return self.classifier(x.reshape((x.shape[0], -1)))


def _build(batch_norm: bool, counts: tuple[int, ...], options: Any) -> VGG:
    widths = zip((64, 128, 256, 512, 512), counts, strict=True)
    return VGG([(width,) * count for width, count in widths], batch_norm, **options)


@factory
def vgg11(**options: Any) -> VGG:
    """VGG-11; options are those of `VGG`."""
    return _build(False, (1, 1, 2, 2, 2), options)


@factory
def vgg11_bn(**options: Any) -> VGG:
    """VGG-11 with batch norm; options are those of `VGG`."""
    return _build(True, (1, 1, 2, 2, 2), options)


@factory
def vgg13(**options: Any) -> VGG:
    """VGG-13; options are those of `VGG`."""
    return _build(False, (2, 2, 2, 2, 2), options)


@factory
def vgg13_bn(**options: Any) -> VGG:
    """VGG-13 with batch norm; options are those of `VGG`."""
    return _build(True, (2, 2, 2, 2, 2), options)


@factory
def vgg16(**options: Any) -> VGG:
    """VGG-16; options are those of `VGG`."""
    return _build(False, (2, 2, 3, 3, 3), options)


@factory
def vgg16_bn(**options: Any) -> VGG:
    """VGG-16 with batch norm; options are those of `VGG`."""
    return _build(True, (2, 2, 3, 3, 3), options)


@factory
def vgg19(**options: Any) -> VGG:
    """VGG-19; options are those of `VGG`."""
    return _build(False, (2, 2, 4, 4, 4), options)


@factory
def vgg19_bn(**options: Any) -> VGG:
    """VGG-19 with batch norm; options are those of `VGG`."""
    return _build(True, (2, 2, 4, 4, 4), options)
