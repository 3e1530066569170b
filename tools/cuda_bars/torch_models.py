"""Peers in PyTorch: Llama, the U-Net of DDPM, ResNet-50 and ViT.

Parameters have the names of `numus.models`, whose weights they load.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Any) -> Any:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def _rotate(x: Any, cos: Any, sin: Any) -> Any:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class LlamaLayer(nn.Module):
    def __init__(self, c: Any) -> None:
        super().__init__()
        width, size = c.hidden_size, c.head_size
        self.heads, self.kv_heads, self.size = c.num_attention_heads, c.kv_heads, size
        self.self_attn, self.mlp = nn.Module(), nn.Module()
        for name, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)):
            setattr(self.self_attn, f"{name}_proj", nn.Linear(width, heads * size, bias=False))
        self.self_attn.o_proj = nn.Linear(self.heads * size, width, bias=False)
        self.mlp.gate_proj = nn.Linear(width, c.intermediate_size, bias=False)
        self.mlp.up_proj = nn.Linear(width, c.intermediate_size, bias=False)
        self.mlp.down_proj = nn.Linear(c.intermediate_size, width, bias=False)
        self.input_layernorm = RMSNorm(width, c.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(width, c.rms_norm_eps)

    def forward(self, x: Any, cos: Any, sin: Any, cache: Any, at: Any, mask: Any) -> Any:
        own, h = self.self_attn, self.input_layernorm(x)
        rows, length, _ = h.shape

        def heads(y: Any, count: int) -> Any:
            return y.view(rows, length, count, self.size).transpose(1, 2)

        q = _rotate(heads(own.q_proj(h), self.heads), cos, sin)
        k = _rotate(heads(own.k_proj(h), self.kv_heads), cos, sin)
        v = heads(own.v_proj(h), self.kv_heads)
        if cache is not None:
            k, v = (c.index_copy_(2, at, new) for c, new in zip(cache, (k, v), strict=True))
        y = F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=cache is None, enable_gqa=self.heads != self.kv_heads
        )
        x = x + own.o_proj(y.transpose(1, 2).reshape(rows, length, -1))
        h = self.post_attention_layernorm(x)
        return x + self.mlp.down_proj(F.silu(self.mlp.gate_proj(h)) * self.mlp.up_proj(h))


class Llama(nn.Module):
    """A decoder, with a static cache where it is given one."""

    def __init__(self, c: Any) -> None:
        super().__init__()
        self.config = c
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.model.layers = nn.ModuleList([LlamaLayer(c) for _ in range(c.num_hidden_layers)])
        self.model.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        if c.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        rates = c.rope_theta ** -(torch.arange(0, c.head_size, 2).float() / c.head_size)
        self.register_buffer("rates", torch.cat([rates, rates]), persistent=False)

    def forward(self, tokens: Any, cache: Any = None, at: Any = None, last: bool = False) -> Any:
        x = self.model.embed_tokens(tokens)
        positions = torch.arange(tokens.shape[1], device=tokens.device) if at is None else at
        angles = positions[:, None].float() * self.rates.float()
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        mask = None
        if cache is not None:
            mask = torch.arange(cache[0][0].shape[2], device=tokens.device) <= positions[:, None]
        for i, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, None if cache is None else cache[i], at, mask)
        x = self.model.norm(x)
        return self.lm_head(x[:, -1:] if last else x)

    def cache(self, rows: int, length: int) -> list[Any]:
        c, w = self.config, self.lm_head.weight
        shape = (rows, c.kv_heads, length, c.head_size)
        return [
            tuple(torch.zeros(shape, dtype=w.dtype, device=w.device) for _ in "kv")
            for _ in range(c.num_hidden_layers)
        ]


def _norm(channels: int) -> Any:
    return nn.GroupNorm(math.gcd(32, channels), channels, eps=1e-6)


class ResidualBlock(nn.Module):
    def __init__(self, given: int, channels: int, embedding: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = _norm(given), _norm(channels)
        self.conv1 = nn.Conv2d(given, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.embedding = nn.Linear(embedding, channels)
        self.shortcut = nn.Conv2d(given, channels, 1) if given != channels else None

    def forward(self, x: Any, embedded: Any) -> Any:
        y = self.conv1(F.silu(self.norm1(x)))
        y = y + self.embedding(F.silu(embedded))[:, :, None, None]
        y = self.conv2(F.silu(self.norm2(y)))
        return y + (x if self.shortcut is None else self.shortcut(x))


class SpatialAttention(nn.Module):
    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.norm, self.heads = _norm(channels), heads
        self.qkv, self.proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x: Any) -> Any:
        n, c, height, width = x.shape
        places = self.norm(x).reshape(n, c, height * width).mT
        parts = self.qkv(places).reshape(n, -1, 3, self.heads, c // self.heads)
        q, k, v = (parts[:, :, i].transpose(1, 2) for i in range(3))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, -1, c)
        return x + self.proj(y).mT.reshape(x.shape)


class Level(nn.Module):
    def __init__(self, widths: Any, embedding: int, heads: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(ResidualBlock(n, m, embedding) for n, m in widths)
        attention = (SpatialAttention(m, heads) for _, m in widths if heads)
        self.attention = nn.ModuleList(attention)

    def step(self, i: int, x: Any, embedded: Any) -> Any:
        x = self.blocks[i](x, embedded)
        return self.attention[i](x) if len(self.attention) else x


class Upsample(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return self.conv(F.interpolate(x, scale_factor=2, mode="nearest"))


class UNet(nn.Module):
    """`numus.models.UNet` with times and without classes or dropout."""

    def __init__(self, width: int, multipliers: Any, blocks: int, attends: Any, heads: int) -> None:
        super().__init__()
        embedding, sizes = 4 * width, len(multipliers)
        self.width, self.count, self.sizes = width, blocks, sizes
        layers = (nn.Linear(width, embedding), nn.SiLU(), nn.Linear(embedding, embedding))
        self.time = nn.Sequential(*layers)
        self.first = nn.Conv2d(3, width, 3, padding=1)
        given, kept = width, [width]
        own = [heads if at else 0 for at in attends]
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        for i, times in enumerate(multipliers):
            channels = width * times
            widths = [(given, channels)] + [(channels, channels)] * (blocks - 1)
            self.down.append(Level(widths, embedding, own[i]))
            kept += [channels] * blocks
            given = channels
            if i < sizes - 1:
                self.shrink.append(nn.Conv2d(channels, channels, 3, 2, 1))
                kept.append(channels)
        middle = (
            *(ResidualBlock(given, given, embedding), SpatialAttention(given, heads)),
            ResidualBlock(given, given, embedding),
        )
        self.middle = nn.ModuleList(middle)
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for i in reversed(range(sizes)):
            channels, widths = width * multipliers[i], []
            for _ in range(blocks + 1):
                widths.append((given + kept.pop(), channels))
                given = channels
            self.up.append(Level(widths, embedding, own[i]))
            if i > 0:
                self.grow.append(Upsample(channels))
        self.norm, self.last = _norm(given), nn.Conv2d(given, 3, 3, padding=1)

    def forward(self, x: Any, times: Any) -> Any:
        half = self.width // 2
        rates = torch.exp(torch.arange(half, device=x.device) * (-math.log(10000.0) / half))
        angles = times.float()[:, None] * rates
        embedded = self.time(torch.cat([angles.cos(), angles.sin()], -1))
        x = self.first(x)
        kept = [x]
        for i, level in enumerate(self.down):
            for j in range(self.count):
                x = level.step(j, x, embedded)
                kept.append(x)
            if i < self.sizes - 1:
                x = self.shrink[i](x)
                kept.append(x)
        for part in self.middle:
            x = part(x, embedded) if isinstance(part, ResidualBlock) else part(x)
        for i, level in enumerate(self.up):
            for j in range(self.count + 1):
                x = level.step(j, torch.cat([x, kept.pop()], 1), embedded)
            if i < self.sizes - 1:
                x = self.grow[i](x)
        return self.last(F.silu(self.norm(x)))


class Bottleneck(nn.Module):
    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        sizes = ((given, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1))
        for i, (n, m, kernel, step) in enumerate(sizes, 1):
            setattr(self, f"conv{i}", nn.Conv2d(n, m, kernel, step, kernel // 2, bias=False))
            setattr(self, f"bn{i}", nn.BatchNorm2d(m))
        self.downsample = None
        if given != 4 * width:
            skip = nn.Conv2d(given, 4 * width, 1, stride, bias=False)
            self.downsample = nn.Sequential(skip, nn.BatchNorm2d(4 * width))

    def forward(self, x: Any) -> Any:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """Of bottlenecks, with torchvision's names, as `numus.models.ResNet` has them."""

    def __init__(self, counts: tuple[int, ...]) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        given = 64
        for i, count in enumerate(counts, 1):
            width, blocks = 32 << i, []
            for j in range(count):
                blocks.append(Bottleneck(given, width, 2 if i > 1 and j == 0 else 1))
                given = 4 * width
            setattr(self, f"layer{i}", nn.Sequential(*blocks))
        self.fc = nn.Linear(given, 1000)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class EncoderLayer(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = (nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        layers = (nn.Linear(width, hidden), nn.GELU(), nn.Dropout(0.0))
        self.mlp = nn.Sequential(*layers, nn.Linear(hidden, width), nn.Dropout(0.0))

    def forward(self, x: Any) -> Any:
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class ViT(nn.Module):
    """With torchvision's names, as `numus.models.vit_b_16` has them."""

    def __init__(self, side: int, patch: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.encoder = nn.Module()
        places = (side // patch) ** 2 + 1
        self.encoder.pos_embedding = nn.Parameter(torch.zeros(1, places, width))
        blocks = {
            f"encoder_layer_{i}": EncoderLayer(width, heads, 4 * width) for i in range(layers)
        }
        self.encoder.layers = nn.Sequential()
        for name, block in blocks.items():
            self.encoder.layers.add_module(name, block)
        self.encoder.ln = nn.LayerNorm(width, eps=1e-6)
        self.heads = nn.Sequential()
        self.heads.add_module("head", nn.Linear(width, 1000))

    def forward(self, x: Any) -> Any:
        x = self.conv_proj(x).flatten(2).mT
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1)
        x = self.encoder.layers(x + self.encoder.pos_embedding)
        return self.heads(self.encoder.ln(x)[:, 0])
