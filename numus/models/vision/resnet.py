"""ResNet (He et al. 2016), wide ResNet (Zagoruyko and Komodakis 2016) and ResNeXt (Xie et al.
2017): residual blocks of convolutions, in four stages of which each halves the size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numus import nn
from numus.models.blocks import kaiming_, pooled
from numus.models.registry import factory
from numus.nn import init
from numus.tensor import Tensor

__all__ = [
    "BasicBlock", "Bottleneck", "ResNet", "resnet18", "resnet34", "resnet50", "resnet101",
    "resnet152", "resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d", "wide_resnet50_2",
    "wide_resnet101_2",
]  # fmt: skip


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions, added to the input."""

    expansion = 1

    def __init__(
        self, given: int, planes: int, stride: int, groups: int, base_width: int, dilation: int
    ) -> None:
        if groups != 1 or base_width != 64 or dilation != 1:
            raise ValueError(
                f"BasicBlock: takes groups=1, width_per_group=64 and no dilation, not {groups}, "
                f"{base_width} and {dilation}; Bottleneck takes others"
            )
        self.conv1 = nn.Conv2d(given, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = _shortcut(given, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """Few channels for a (grouped) 3 × 3 convolution, four times as many for the sum."""

    expansion = 4

    def __init__(
        self, given: int, planes: int, stride: int, groups: int, base_width: int, dilation: int
    ) -> None:
        width = planes * base_width // 64 * groups
        self.conv1 = nn.Conv2d(given, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, dilation, dilation, groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(given, 4 * planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


def _shortcut(given: int, channels: int, stride: int) -> nn.Sequential | None:
    """The projection of a block's input where its output has another shape."""
    if stride == 1 and given == channels:
        return None
    conv = nn.Conv2d(given, channels, 1, stride, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels))


class ResNet(nn.Module):
    """A residual network.

    >>> model = nm.models.ResNet(nm.models.BasicBlock, (1, 1, 1, 1), num_classes=7)
    >>> model.eval()(nm.zeros((2, 3, 32, 32))).shape
    (2, 7)

    Args:
        block: `BasicBlock` or `Bottleneck`.
        layers: how many blocks each stage has; there are four as a rule.
        num_classes: how many scores there are.
        zero_init_residual: let every block begin as the identity.
        groups, width_per_group: of the middle convolution of a `Bottleneck`.
        replace_stride_with_dilation: which of the last three stages keep the size instead.
        in_channels: of the images.
    """

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        layers: Sequence[int],
        num_classes: int = 1000,
        zero_init_residual: bool = False,
        groups: int = 1,
        width_per_group: int = 64,
        replace_stride_with_dilation: Sequence[bool] = (False, False, False),
        *,
        in_channels: int = 3,
    ) -> None:
        self.stages = len(layers)
        self.conv1 = nn.Conv2d(in_channels, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        given, dilation = 64, 1
        for i, count in enumerate(layers):
            planes, stride, before = 64 << i, 1 if i == 0 else 2, dilation
            if i > 0 and replace_stride_with_dilation[i - 1]:
                stride, dilation = 1, dilation * 2
            blocks = [block(given, planes, stride, groups, width_per_group, before)]
            given = planes * block.expansion
            more = (given, planes, 1, groups, width_per_group, dilation)
            blocks += [block(*more) for _ in range(count - 1)]
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(given, num_classes)
        kaiming_(self, linear_std=None)
        for module in self.modules() if zero_init_residual else ():
            if isinstance(module, (BasicBlock, Bottleneck)):
                last = module.bn3 if isinstance(module, Bottleneck) else module.bn2
                if last.weight is not None:
                    init.zeros_(last.weight)

    def features(self, x: Tensor) -> list[Tensor]:
        """What each stage gives."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        out = []
        for i in range(1, self.stages + 1):
            x = getattr(self, f"layer{i}")(x)
            out.append(x)
        return out

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(pooled(self.features(x)[-1]))


@factory
def resnet18(**options: Any) -> ResNet:
    """ResNet-18; options are those of `ResNet`."""
    return ResNet(BasicBlock, (2, 2, 2, 2), **options)


@factory
def resnet34(**options: Any) -> ResNet:
    """ResNet-34; options are those of `ResNet`."""
    return ResNet(BasicBlock, (3, 4, 6, 3), **options)


@factory
def resnet50(**options: Any) -> ResNet:
    """ResNet-50; options are those of `ResNet`."""
    return ResNet(Bottleneck, (3, 4, 6, 3), **options)


@factory
def resnet101(**options: Any) -> ResNet:
    """ResNet-101; options are those of `ResNet`."""
    return ResNet(Bottleneck, (3, 4, 23, 3), **options)


@factory
def resnet152(**options: Any) -> ResNet:
    """ResNet-152; options are those of `ResNet`."""
    return ResNet(Bottleneck, (3, 8, 36, 3), **options)


@factory
def resnext50_32x4d(**options: Any) -> ResNet:
    """ResNeXt-50 with 32 groups of 4 channels; options are those of `ResNet`."""
    return ResNet(Bottleneck, (3, 4, 6, 3), **{"groups": 32, "width_per_group": 4} | options)


@factory
def resnext101_32x8d(**options: Any) -> ResNet:
    """ResNeXt-101 with 32 groups of 8 channels; options are those of `ResNet`."""
    return ResNet(Bottleneck, (3, 4, 23, 3), **{"groups": 32, "width_per_group": 8} | options)


@factory
def resnext101_64x4d(**options: Any) -> ResNet:
    """ResNeXt-101 with 64 groups of 4 channels; options are those of `ResNet`."""
    return ResNet(Bottleneck, (3, 4, 23, 3), **{"groups": 64, "width_per_group": 4} | options)


@factory
def wide_resnet50_2(**options: Any) -> ResNet:
    """ResNet-50 with twice as many channels in the middle; options are those of `ResNet`."""
    return ResNet(Bottleneck, (3, 4, 6, 3), **{"width_per_group": 128} | options)


@factory
def wide_resnet101_2(**options: Any) -> ResNet:
    """ResNet-101 with twice as many channels in the middle; options are those of `ResNet`."""
    return ResNet(Bottleneck, (3, 4, 23, 3), **{"width_per_group": 128} | options)
