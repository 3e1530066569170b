"""Variational autoencoder (Kingma and Welling 2014) of convolutions, with attention in the middle,
as latent diffusion uses them (Rombach et al. 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numus as nm
from numus import nn
from numus.models.diffusion.layers import (
    ResidualBlock,
    SpatialAttention,
    Upsample,
    downsample,
    norm,
)
from numus.models.registry import factory
from numus.nn import functional as F
from numus.tensor import Tensor

__all__ = ["VAE", "VAEOutput", "vae_f8", "vae_loss"]


class VAEOutput(NamedTuple):
    """What was decoded, and mean and log-variance of the latent image it was decoded from."""

    reconstruction: Tensor
    mean: Tensor
    log_variance: Tensor


def _middle(channels: int) -> list[nn.Module]:
    parts = (ResidualBlock(channels, channels), SpatialAttention(channels, 1))
    return [*parts, ResidualBlock(channels, channels)]


class VAE(nn.Module):
    """Images to smaller latent images with noise, and back.

    >>> model = nm.models.VAE(1, 2, width=8, multipliers=(1, 2), blocks=1).eval()
    >>> out = model(nm.zeros((3, 1, 8, 8)))
    >>> out.mean.shape, out.reconstruction.shape
    ((3, 2, 4, 4), (3, 1, 8, 8))

    Args:
        in_channels, latent_channels: of images and of latent images.
        width: the channels of the largest size.
        multipliers: how many times as many each size has; each has half the extent of the one
            before it.
        blocks: how many residual blocks each size has; one more in the decoder.
    """

    def __init__(
        self,
        in_channels: int = 3,
        latent_channels: int = 4,
        width: int = 64,
        multipliers: Sequence[int] = (1, 2, 4),
        blocks: int = 2,
    ) -> None:
        self.encoder = nn.Sequential(
            *_encoder(in_channels, latent_channels, width, multipliers, blocks)
        )
        self.decoder = nn.Sequential(
            *_decoder(in_channels, latent_channels, width, multipliers, blocks)
        )

    def encode(self, x: Any) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the latent image of each image."""
        mean, log_variance = nm.split(self.encoder(nm.asarray(x)), 2, axis=1)
        return mean, nm.clip(log_variance, -30.0, 20.0)

    def decode(self, z: Any) -> Tensor:
        """The image of each latent image."""
        return self.decoder(nm.asarray(z))

    def forward(self, x: Any, *, key: Any = None) -> VAEOutput:
        """Encode and decode; in training, from a latent image drawn with `key`."""
        mean, log_variance = self.encode(x)
        z = mean
        if self.training:
            options = {"dtype": mean.dtype, "device": mean.device, "key": key}
            z = mean + nm.exp(0.5 * log_variance) * nm.random.normal(mean.shape, **options)
        return VAEOutput(self.decode(z), mean, log_variance)


def _encoder(
    channels: int, latent: int, width: int, multipliers: Sequence[int], blocks: int
) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1)]
    given = width
    for i, times in enumerate(multipliers):
        layers += [downsample(given)] if i else []
        for _ in range(blocks):
            layers.append(ResidualBlock(given, width * times))
            given = width * times
    layers += [*_middle(given), norm(given), nn.SiLU()]
    return [*layers, nn.Conv2d(given, 2 * latent, 3, padding=1)]


def _decoder(
    channels: int, latent: int, width: int, multipliers: Sequence[int], blocks: int
) -> list[nn.Module]:
    given = width * multipliers[-1]
    layers: list[nn.Module] = [nn.Conv2d(latent, given, 3, padding=1), *_middle(given)]
    for i, times in enumerate(reversed(multipliers)):
        layers += [Upsample(given)] if i else []
        for _ in range(blocks + 1):
            layers.append(ResidualBlock(given, width * times))
            given = width * times
    return [*layers, norm(given), nn.SiLU(), nn.Conv2d(given, channels, 3, padding=1)]


def vae_loss(output: VAEOutput, x: Any, beta: float = 1.0) -> Tensor:
    """Squared error plus `beta` times the divergence from standard normal numbers, per image.

    The sums over an image's elements are averaged over the batch: the negative evidence lower bound
    of a decoder of variance 1/2, but for a constant.
    """
    count = output.mean.shape[0]
    error = F.mse_loss(output.reconstruction, nm.asarray(x), reduction="sum")
    mean, log_variance = output.mean, output.log_variance
    divergence = 0.5 * (mean**2 + nm.exp(log_variance) - 1 - log_variance).sum()
    return (error + beta * divergence) / count


@factory
def vae_f8(**options: Any) -> VAE:
    """The autoencoder of latent diffusion with an eighth of the extent; options as of `VAE`."""
    return VAE(**dict[str, Any](width=128, multipliers=(1, 2, 4, 4)) | options)
