"""Swin Transformer (Liu et al. 2021) and its second version (2022): attention within windows, which
are shifted from block to block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import numus as nm
from numus import nn
from numus.models.blocks import MLP, Permute, StochasticDepth, trunc_normal_
from numus.models.registry import factory
from numus.nn import functional as F
from numus.nn import init
from numus.tensor import Tensor

__all__ = [
    "SwinTransformer", "swin_b", "swin_s", "swin_t", "swin_v2_b", "swin_v2_s", "swin_v2_t",
]  # fmt: skip

_FAR = -100.0  # added to scores of pixels that are neighbours only since the image was rolled


class WindowAttention(nn.Module):
    """Attention of the pixels of each window, with a bias by how far they are from one another."""

    def __init__(
        self, width: int, window: int, shift: int, heads: int, attention_dropout: float
    ) -> None:
        self.window, self.shift, self.heads = window, shift, heads
        self.attention_dropout = attention_dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self._define_table()
        at = np.stack(np.meshgrid(np.arange(window), np.arange(window), indexing="ij"))
        apart = at.reshape(2, -1, 1) - at.reshape(2, 1, -1) + window - 1
        self.register_buffer(
            "relative_position_index", (apart[0] * (2 * window - 1) + apart[1]).reshape(-1)
        )

    relative_position_index: Tensor

    def _define_table(self) -> None:
        count = (2 * self.window - 1) ** 2
        self.relative_position_bias_table = nn.Parameter(nm.zeros((count, self.heads)))
        init.trunc_normal_(self.relative_position_bias_table, std=0.02)

    def bias_table(self) -> Tensor:
        """The bias of every head for each distance."""
        return self.relative_position_bias_table

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        """Attention over the pixels of windows, (batch, windows, heads, pixels, size)."""
        dropout = self.attention_dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, bias, dropout)

    def in_bias(self) -> Tensor | None:
        """The bias of queries, keys and values."""
        return self.qkv.bias

    def forward(self, x: Tensor) -> Tensor:
        n, height, width, channels = x.shape
        w, pixels = self.window, self.window**2
        down, right = -height % w, -width % w
        x = nm.pad(x, ((0, 0), (0, down), (0, right), (0, 0))) if down or right else x
        rows, columns = (height + down) // w, (width + right) // w
        # one window along an axis sees all of it already
        shifts = tuple(self.shift if count > 1 else 0 for count in (rows, columns))
        if any(shifts):
            x = nm.roll(x, tuple(-s for s in shifts), axis=(1, 2))
        x = x.reshape((n, rows, w, columns, w, channels)).swapaxes(2, 3)
        x = x.reshape((n, rows * columns, pixels, channels))

        heads = (n, rows * columns, pixels, 3, self.heads, channels // self.heads)
        parts = F.linear(x, self.qkv.weight, self.in_bias()).reshape(heads)
        q, k, v = (parts[:, :, :, i].swapaxes(2, 3) for i in range(3))
        bias = self.bias_table()[self.relative_position_index]
        bias = nm.permute_dims(bias.reshape((pixels, pixels, self.heads)), (2, 0, 1))
        if any(shifts):
            far = nm.asarray(_far(rows, columns, w, shifts), dtype=x.dtype, device=x.device)
            bias = bias + far[:, None]
        y = self.attend(q, k, v, bias).swapaxes(2, 3)
        y = self.proj(y.reshape((n, rows, columns, w, w, channels)))

        y = y.swapaxes(2, 3).reshape((n, rows * w, columns * w, channels))
        y = nm.roll(y, shifts, axis=(1, 2)) if any(shifts) else y
        return y[:, :height, :width]


def _far(rows: int, columns: int, w: int, shifts: Sequence[int]) -> np.ndarray:
    """What keeps pixels apart that the roll made neighbours: (windows, pixels, pixels)."""

    def regions(count: int, shift: int) -> np.ndarray:
        at = np.arange(count * w)
        return (at >= count * w - w).astype(int) + (at >= count * w - shift)

    region = 3 * regions(rows, shifts[0])[:, None] + regions(columns, shifts[1])
    region = region.reshape(rows, w, columns, w).swapaxes(1, 2).reshape(rows * columns, w * w)
    return np.where(region[:, None] == region[:, :, None], 0.0, _FAR).astype(np.float32)


class CosineWindowAttention(WindowAttention):
    """Attention by the angle of queries and keys, with a bias that an MLP gives for distances."""

    def __init__(self, width: int, window: int, shift: int, heads: int, *options: Any) -> None:
        super().__init__(width, window, shift, heads, *options)
        self.logit_scale = nn.Parameter(nm.full((heads, 1, 1), math.log(10)))
        last = nn.Linear(512, heads, bias=False)
        self.cpb_mlp = nn.Sequential(nn.Linear(2, 512), nn.ReLU(), last)

    relative_coords_table: Tensor

    def _define_table(self) -> None:
        apart = np.arange(1 - self.window, self.window, dtype=np.float32) / (self.window - 1) * 8
        apart = np.sign(apart) * np.log2(np.abs(apart) + 1) / 3
        table = np.stack(np.meshgrid(apart, apart, indexing="ij"), axis=-1)
        self.register_buffer("relative_coords_table", table[None].astype(np.float32))

    def bias_table(self) -> Tensor:
        """The bias of every head for each distance."""
        given = self.cpb_mlp(self.relative_coords_table)
        return 16 * nm.sigmoid(given.reshape((-1, self.heads)))

    def in_bias(self) -> Tensor | None:
        """The bias of queries and values; keys have none."""
        bias = self.qkv.bias
        if bias is None:
            return None
        q, k, v = nm.split(bias, 3)
        return nm.concat([q, nm.zeros_like(k), v])

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        """Attention over the pixels of windows, scores by cosine."""
        scale = nm.exp(nm.clip(self.logit_scale, max=math.log(100)))
        dropout = self.attention_dropout if self.training else 0.0
        q, k = F.normalize(q, dim=-1) * scale, F.normalize(k, dim=-1)
        return F.scaled_dot_product_attention(q, k, v, bias, dropout, scale=1.0)


class Block(nn.Module):
    """Attention within windows and an MLP, each added to its input; norms first, or last in V2."""

    def __init__(
        self,
        width: int,
        heads: int,
        window: int,
        shift: int,
        mlp_ratio: float,
        dropout: float,
        attention_dropout: float,
        drop: float,
        version: int,
    ) -> None:
        attention = CosineWindowAttention if version == 2 else WindowAttention
        self.norm1 = nn.LayerNorm(width)
        self.attn = attention(width, window, shift, heads, attention_dropout)
        self.dropout = nn.Dropout(dropout)
        self.stochastic_depth = StochasticDepth(drop)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = MLP(width, (int(width * mlp_ratio), width), dropout=dropout)
        self.version = version

    def forward(self, x: Tensor) -> Tensor:
        if self.version == 2:
            x = x + self.stochastic_depth(self.norm1(self.dropout(self.attn(x))))
            return x + self.stochastic_depth(self.norm2(self.mlp(x)))
        x = x + self.stochastic_depth(self.dropout(self.attn(self.norm1(x))))
        return x + self.stochastic_depth(self.mlp(self.norm2(x)))


class PatchMerging(nn.Module):
    """Squares of four pixels as one, with twice the channels."""

    def __init__(self, width: int, version: int) -> None:
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)
        self.norm = nn.LayerNorm(2 * width if version == 2 else 4 * width)
        self.version = version

    def forward(self, x: Tensor) -> Tensor:
        n, height, width, channels = x.shape
        if height % 2 or width % 2:
            x = nm.pad(x, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)))
        rows, columns = (height + 1) // 2, (width + 1) // 2
        x = x.reshape((n, rows, 2, columns, 2, channels))
        x = nm.permute_dims(x, (0, 1, 3, 4, 2, 5)).reshape((n, rows, columns, 4 * channels))
        if self.version == 2:
            return self.norm(self.reduction(x))
        return self.reduction(self.norm(x))


class SwinTransformer(nn.Module):
    """A Swin transformer.

    >>> model = nm.models.SwinTransformer(4, 8, (1, 1), (2, 4), window_size=2, num_classes=5)
    >>> model.head
    Linear(in_features=16, out_features=5, bias=True)

    Args:
        patch_size: the extent of the squares that become the first pixels.
        embed_dim: the channels of the first stage; each stage has twice as many.
        depths: how many blocks each stage has.
        num_heads: how many heads attention has in each stage.
        window_size: the extent of windows; every other block shifts them by half of it.
        mlp_ratio: how many times wider the MLPs' hidden layers are.
        dropout, attention_dropout: after each branch, and of attention's weights.
        stochastic_depth_prob: of the last block; it grows from 0 at the first.
        num_classes: how many scores there are.
        version: 1, or 2: norms after branches, attention by cosine.
        in_channels: of the images.
    """

    def __init__(
        self,
        patch_size: int,
        embed_dim: int,
        depths: Sequence[int],
        num_heads: Sequence[int],
        window_size: int,
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        stochastic_depth_prob: float = 0.1,
        num_classes: int = 1000,
        *,
        version: int = 1,
        in_channels: int = 3,
    ) -> None:
        if version not in (1, 2):
            raise ValueError(f"SwinTransformer: version is 1 or 2, not {version}")
        stem = nn.Conv2d(in_channels, embed_dim, patch_size, patch_size)
        layers: list[nn.Module] = []
        layers.append(nn.Sequential(stem, Permute(0, 2, 3, 1), nn.LayerNorm(embed_dim)))
        drops = iter(nm.linspace(0, stochastic_depth_prob, sum(depths)).tolist())
        width = embed_dim
        options = (mlp_ratio, dropout, attention_dropout)
        for stage, (depth, heads) in enumerate(zip(depths, num_heads, strict=True)):
            if stage > 0:
                layers.append(PatchMerging(width, version))
                width *= 2
            blocks = []
            for i in range(depth):
                window = (window_size, window_size // 2 if i % 2 else 0)
                blocks.append(Block(width, heads, *window, *options, next(drops), version))
            layers.append(nn.Sequential(*blocks))
        self.features = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)
        trunc_normal_(self, convolutions=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.features(x)).mean(axis=(1, 2)))


_TINY = ((2, 2, 6, 2), (3, 6, 12, 24))
_SMALL = ((2, 2, 18, 2), (3, 6, 12, 24))
_BASE = ((2, 2, 18, 2), (4, 8, 16, 32))


def _build(version: int, width: int, sizes: Any, drop: float, options: Any) -> SwinTransformer:
    depths, heads = sizes
    options = {"stochastic_depth_prob": drop, "version": version} | options
    return SwinTransformer(4, width, depths, heads, 8 if version == 2 else 7, **options)


@factory
def swin_t(**options: Any) -> SwinTransformer:
    """Swin-T; options are those of `SwinTransformer`."""
    return _build(1, 96, _TINY, 0.2, options)


@factory
def swin_s(**options: Any) -> SwinTransformer:
    """Swin-S; options are those of `SwinTransformer`."""
    return _build(1, 96, _SMALL, 0.3, options)


@factory
def swin_b(**options: Any) -> SwinTransformer:
    """Swin-B; options are those of `SwinTransformer`."""
    return _build(1, 128, _BASE, 0.5, options)


@factory
def swin_v2_t(**options: Any) -> SwinTransformer:
    """Swin-T of the second version; options are those of `SwinTransformer`."""
    return _build(2, 96, _TINY, 0.2, options)


@factory
def swin_v2_s(**options: Any) -> SwinTransformer:
    """Swin-S of the second version; options are those of `SwinTransformer`."""
    return _build(2, 96, _SMALL, 0.3, options)


@factory
def swin_v2_b(**options: Any) -> SwinTransformer:
    """Swin-B of the second version; options are those of `SwinTransformer`."""
    return _build(2, 128, _BASE, 0.5, options)
