"""Whisper (Radford et al. 2022): an encoder of log-mel features, and a decoder of tokens.

Parameters have transformers' names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numus as nm
from numus import nn
from numus.errors import ShapeError
from numus.models.language.attention import Pass, attend, split_heads
from numus.models.language.base import CacheSpec, EncoderDecoder
from numus.models.language.blocks import activation
from numus.models.language.config import Config
from numus.tensor import Tensor

__all__ = ["WhisperConfig", "WhisperForConditionalGeneration"]

Memory = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class WhisperConfig(Config):
    """Sizes of a Whisper; the defaults are those of the tiny model."""

    model_type: str = "whisper"
    vocab_size: int = 51865
    num_mel_bins: int = 80
    d_model: int = 384
    encoder_layers: int = 4
    encoder_attention_heads: int = 6
    encoder_ffn_dim: int = 1536
    decoder_layers: int = 4
    decoder_attention_heads: int = 6
    decoder_ffn_dim: int = 1536
    max_source_positions: int = 1500
    max_target_positions: int = 448
    activation_function: str = "gelu"
    scale_embedding: bool = False
    tie_word_embeddings: bool = True
    decoder_start_token_id: int = 50257


class WhisperAttention(nn.Module):
    """Attention whose keys have no bias."""

    def __init__(self, width: int, heads: int, layer: int) -> None:
        self.layer, self.heads = layer, heads
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def to_memory(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of an encoder's states."""
        key, value = self.k_proj(states), self.v_proj(states)
        return split_heads(key, self.heads), split_heads(value, self.heads)

    def forward(self, x: Tensor, seen: Pass) -> Tensor:
        query, (key, value) = split_heads(self.q_proj(x), self.heads), self.to_memory(x)
        if seen.cache is not None:
            key, value = seen.cache.update(self.layer, key, value, seen)
        causal = seen.is_plainly_causal(None)
        return self.out_proj(attend(query, key, value, seen.mask(), is_causal=causal))

    def across(self, x: Tensor, seen: Pass) -> Tensor:
        """Attention to the encoder's states."""
        assert seen.memory is not None
        query, (key, value) = split_heads(self.q_proj(x), self.heads), seen.memory[self.layer]
        return self.out_proj(attend(query, key, value, seen.memory_mask))


class WhisperLayer(nn.Module):
    """Self-attention, attention to the encoder if it decodes, and a feed-forward layer."""

    def __init__(self, config: WhisperConfig, layer: int, decodes: bool) -> None:
        kind, width = "decoder" if decodes else "encoder", config.d_model
        heads = getattr(config, f"{kind}_attention_heads")
        hidden = getattr(config, f"{kind}_ffn_dim")
        self.self_attn = WhisperAttention(width, heads, layer)
        self.self_attn_layer_norm = nn.LayerNorm(width)
        if decodes:
            self.encoder_attn = WhisperAttention(width, heads, layer)
            self.encoder_attn_layer_norm = nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.final_layer_norm = nn.LayerNorm(width)
        self.act, self.decodes = activation(config.activation_function), decodes

    def forward(self, x: Tensor, seen: Pass) -> Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x), seen)
        if self.decodes:
            x = x + self.encoder_attn.across(self.encoder_attn_layer_norm(x), seen)
        return x + self.fc2(self.act(self.fc1(self.final_layer_norm(x))))


class WhisperEncoder(nn.Module):
    """Two convolutions over time, the second of stride two, positions, and layers."""

    def __init__(self, config: WhisperConfig) -> None:
        width = config.d_model
        self.conv1 = nn.Conv1d(config.num_mel_bins, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(config.max_source_positions, width)
        self.layers = [WhisperLayer(config, i, False) for i in range(config.encoder_layers)]
        self.layer_norm = nn.LayerNorm(width)
        self.frames = 2 * config.max_source_positions

    def forward(self, features: Tensor) -> Tensor:
        if features.ndim != 3 or features.shape[2] != self.frames:
            raise ShapeError(
                f"WhisperEncoder: takes features (rows, mel bins, {self.frames} frames), not "
                f"shape {features.shape}; pad or cut them"
            )
        x = nn.gelu(self.conv2(nn.gelu(self.conv1(features)))).permute(0, 2, 1)
        x = x + self.embed_positions.weight
        seen = Pass(nm.arange(x.shape[1], device=x.device)[None], causal=False)
        for layer in self.layers:
            x = layer(x, seen)
        return self.layer_norm(x)


class WhisperDecoder(nn.Module):
    """Tokens and positions, and layers."""

    def __init__(self, config: WhisperConfig) -> None:
        width = config.d_model
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.embed_positions = nn.Embedding(config.max_target_positions, width)
        self.layers = [WhisperLayer(config, i, True) for i in range(config.decoder_layers)]
        self.layer_norm = nn.LayerNorm(width)
        self._scale = width**0.5 if config.scale_embedding else 1.0

    def forward(self, tokens: Tensor, seen: Pass) -> Tensor:
        x = self.embed_tokens(tokens) * self._scale + self.embed_positions(seen.positions)
        for layer in self.layers:
            x = layer(x, seen)
        return self.layer_norm(x)


class WhisperModel(nn.Module):
    """Encoder and decoder."""

    def __init__(self, config: WhisperConfig) -> None:
        self.encoder = WhisperEncoder(config)
        self.decoder = WhisperDecoder(config)


class WhisperForConditionalGeneration(EncoderDecoder):
    """Whisper: `logits = model(features, decoder_input_ids)`, or `model.generate(features)`.

    Features are log-mel spectrograms (rows, mel bins, frames), 30 seconds long.
    """

    config: WhisperConfig

    def __init__(self, config: WhisperConfig) -> None:
        self.config = config
        self.model = WhisperModel(config)
        self.proj_out = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.proj_out.weight = self.model.decoder.embed_tokens.weight

    def encode(self, inputs: Any, mask: Tensor | None = None) -> Tensor:
        return self.model.encoder(nm.asarray(inputs, device=self.device).astype(self.dtype))

    def memory(self, states: Tensor) -> Memory:
        return [layer.encoder_attn.to_memory(states) for layer in self.model.decoder.layers]

    def hidden(self, tokens: Tensor, seen: Pass) -> Tensor:
        return self.model.decoder(tokens, seen)

    def head(self, hidden: Tensor) -> Tensor:
        return self.proj_out(hidden)

    def cache_specs(self) -> list[CacheSpec]:
        c = self.config
        size = c.d_model // c.decoder_attention_heads
        return [CacheSpec(c.decoder_attention_heads, size)] * c.decoder_layers

    @property
    def max_length(self) -> int | None:
        return self.config.max_target_positions
