"""Blocks that image models share: normed convolutions, squeeze-excitation, stochastic depth.

Submodules have torchvision's names (`Conv2dNormActivation`, `SqueezeExcitation`, `MLP`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numus as nm
from numus import nn
from numus.nn import init
from numus.tensor import Tensor

Activation = Callable[[], nn.Module]
Norm = Callable[[int], nn.Module]


def multiple(number: float, divisor: int = 8) -> int:
    """The multiple of a divisor nearest to a number of channels, and not below 0.9 of it."""
    near = max(divisor, int(number + divisor / 2) // divisor * divisor)
    return near + divisor if near < 0.9 * number else near


class ConvNorm(nn.Sequential):
    """A convolution that keeps sizes (over the stride), a norm and an activation.

    Args:
        norm: takes a number of channels and gives their norm; None: the convolution has a bias.
        activation: gives the activation; None: there is none.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        stride: int = 1,
        groups: int = 1,
        dilation: int = 1,
        *,
        padding: int | None = None,
        norm: Norm | None = nn.BatchNorm2d,
        activation: Activation | None = nn.ReLU,
        bias: bool | None = None,
    ) -> None:
        room = (kernel_size - 1) // 2 * dilation if padding is None else padding
        biased = norm is None if bias is None else bias
        options = (stride, room, dilation, groups, biased)
        layers: list[nn.Module] = [nn.Conv2d(in_channels, out_channels, kernel_size, *options)]
        layers += [norm(out_channels)] if norm is not None else []
        layers += [activation()] if activation is not None else []
        super().__init__(*layers)


class SqueezeExcitation(nn.Module):
    """Channels scaled by what all places together say of them (Hu et al. 2018)."""

    def __init__(
        self,
        channels: int,
        squeezed: int,
        activation: Activation = nn.ReLU,
        scale: Activation = nn.Sigmoid,
    ) -> None:
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.activation = activation()
        self.scale_activation = scale()

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(axis=(2, 3), keepdims=True)
        return x * self.scale_activation(self.fc2(self.activation(self.fc1(mean))))


class StochasticDepth(nn.Module):
    """A residual branch left out for some examples, in training (Huang et al. 2016)."""

    def __init__(self, p: float) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"StochasticDepth: p={p} must be between 0 and 1")
        self.p = p

    def forward(self, x: Tensor, *, key: Any = None) -> Tensor:
        if not self.training or self.p == 0:
            return x
        ones = nm.ones((x.shape[0], *(1,) * (x.ndim - 1)), dtype=x.dtype, device=x.device)
        return x * nm.random.dropout(ones, self.p, key=key)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class MLP(nn.Sequential):
    """Linear maps with an activation after each but the last, and dropout after all of them."""

    def __init__(
        self,
        in_features: int,
        widths: Sequence[int],
        activation: Activation = nn.GELU,
        dropout: float = 0.0,
    ) -> None:
        layers: list[nn.Module] = []
        for i, width in enumerate(widths):
            layers.append(nn.Linear(in_features, width))
            layers += [activation()] if i < len(widths) - 1 else []
            layers.append(nn.Dropout(dropout))
            in_features = width
        super().__init__(*layers)


class Permute(nn.Module):
    """Axes in another order."""

    def __init__(self, *axes: int) -> None:
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        return nm.permute_dims(x, self.axes)

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.axes))


class LayerNorm2d(nn.LayerNorm):
    """The channels of each place of (N, C, H, W), normalised."""

    def forward(self, x: Tensor) -> Tensor:
        normed = super().forward(nm.permute_dims(x, (0, 2, 3, 1)))
        return nm.permute_dims(normed, (0, 3, 1, 2))


class Renamed(nn.Module):
    """A module that also loads state dicts with names from before some were changed."""

    # regular expressions and what replaces them; a name that becomes empty is left out
    old_names: ClassVar[tuple[tuple[str, str], ...]]

    def load_state_dict(
        self, state: Mapping[str, Any], strict: bool = True, *, prefix: str = ""
    ) -> nn.IncompatibleKeys:
        """Take the values of a state dict, by today's or by earlier names."""

        def today(name: str) -> str:
            for old, new in self.old_names:
                name = re.sub(old, new, name)
            return name

        renamed = {today(name): value for name, value in state.items() if today(name)}
        return super().load_state_dict(renamed, strict, prefix=prefix)


def pooled(x: Tensor) -> Tensor:
    """The mean over all places: (N, C, H, W) to (N, C)."""
    return x.mean(axis=(2, 3))


def kaiming_(model: nn.Module, *, linear_std: float | None = 0.01) -> None:
    """Draw a convolutional network anew: He's normal numbers by outputs, norms the identity.

    Args:
        linear_std: of the linear maps' weights, whose biases become zero; None: they stay.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Linear) and linear_std is not None:
            init.normal_(module.weight, 0.0, linear_std)
            if module.bias is not None:
                init.zeros_(module.bias)


def trunc_normal_(model: nn.Module, std: float = 0.02, *, convolutions: bool = True) -> None:
    """Draw linear maps (and convolutions) anew: normal numbers within ±2, biases zero."""
    kinds = (nn.Linear, nn.Conv2d) if convolutions else (nn.Linear,)
    for module in model.modules():
        if isinstance(module, kinds):
            init.trunc_normal_(module.weight, std=std)
            if module.bias is not None:
                init.zeros_(module.bias)
