"""Layers of U-Nets and autoencoders: residual blocks, attention over places, embeddings of time."""

from __future__ import annotations

import math

import numus as nm
from numus import nn
from numus.nn import functional as F
from numus.nn import init
from numus.tensor import Tensor


def time_embedding(times: Tensor, size: int, longest: float = 10000.0) -> Tensor:
    """Cosines and sines of times at `size` / 2 frequencies (Vaswani et al. 2017)."""
    half = size // 2
    steps = nm.arange(half, dtype=nm.float32, device=times.device)
    rates = nm.exp(steps * (-math.log(longest) / half))
    angles = times.astype(nm.float32, copy=False)[:, None] * rates
    return nm.concat([nm.cos(angles), nm.sin(angles)], axis=-1)


def norm(channels: int, groups: int = 32) -> nn.GroupNorm:
    """A group norm of at most `groups` groups."""
    return nn.GroupNorm(math.gcd(groups, channels), channels, eps=1e-6)


class ResidualBlock(nn.Module):
    """Two 3 × 3 convolutions after norms, added to the input; an embedding shifts the first's."""

    def __init__(self, given: int, channels: int, embedding: int = 0, dropout: float = 0.0) -> None:
        self.norm1 = norm(given)
        self.conv1 = nn.Conv2d(given, channels, 3, padding=1)
        self.embedding = nn.Linear(embedding, channels) if embedding else None
        self.norm2 = norm(channels)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.shortcut = nn.Conv2d(given, channels, 1) if given != channels else None
        _zero(self.conv2)  # a block begins as its shortcut

    def forward(self, x: Tensor, embedded: Tensor | None = None) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        if self.embedding is not None and embedded is not None:
            y = y + self.embedding(F.silu(embedded))[:, :, None, None]
        y = self.conv2(self.dropout(F.silu(self.norm2(y))))
        return y + (x if self.shortcut is None else self.shortcut(x))


class SpatialAttention(nn.Module):
    """Attention of all places of an image to one another, added to the input."""

    def __init__(self, channels: int, heads: int) -> None:
        self.norm = norm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)
        self.heads = heads
        _zero(self.proj)

    def forward(self, x: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        places = self.norm(x).reshape((n, channels, height * width)).mT
        parts = self.qkv(places).reshape((n, -1, 3, self.heads, channels // self.heads))
        q, k, v = (parts[:, :, i].swapaxes(1, 2) for i in range(3))
        y = F.scaled_dot_product_attention(q, k, v).swapaxes(1, 2)
        y = self.proj(y.reshape((n, -1, channels)))
        return x + y.mT.reshape(x.shape)


class Upsample(nn.Module):
    """Twice the size: every pixel four times, then a convolution."""

    def __init__(self, channels: int) -> None:
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(nm.repeat(nm.repeat(x, 2, axis=2), 2, axis=3))


def downsample(channels: int) -> nn.Conv2d:
    """Half the size, by a convolution."""
    return nn.Conv2d(channels, channels, 3, 2, 1)


def _zero(layer: nn.Conv2d | nn.Linear) -> None:
    init.zeros_(layer.weight)
    if layer.bias is not None:
        init.zeros_(layer.bias)
