"""T5 (Raffel et al. 2020): an encoder and a decoder whose positions are biases of scores.

Version 1.0 has ReLU and a tied head, 1.1 and Flan-T5 gated GELU. Parameters have transformers'
names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numus as nm
from numus import nn
from numus.models.language.attention import Pass, attend, split_heads
from numus.models.language.base import CacheSpec, EncoderDecoder, key_mask, token_ids
from numus.models.language.blocks import RMSNorm, activation
from numus.models.language.config import Config
from numus.tensor import Tensor

__all__ = ["T5Config", "T5ForConditionalGeneration"]

Memory = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class T5Config(Config):
    """Sizes of a T5; the defaults are those of the small model."""

    model_type: str = "t5"
    vocab_size: int = 32128
    d_model: int = 512
    d_kv: int = 64
    d_ff: int = 2048
    num_layers: int = 6
    num_decoder_layers: int | None = None
    num_heads: int = 8
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: str = "relu"
    scale_decoder_outputs: bool | None = None
    tie_word_embeddings: bool = True
    decoder_start_token_id: int = 0

    @property
    def gated(self) -> bool:
        return self.feed_forward_proj.startswith("gated-")

    @property
    def act(self) -> str:
        # "gated-gelu" has always been the approximation
        name = self.feed_forward_proj.removeprefix("gated-")
        return "gelu_new" if self.feed_forward_proj == "gated-gelu" else name

    @property
    def scales_outputs(self) -> bool:
        own = self.scale_decoder_outputs
        return self.tie_word_embeddings if own is None else own


class T5Attention(nn.Module):
    """Attention without a scale; the first layer of a stack has the biases of positions."""

    def __init__(self, config: T5Config, layer: int, biased: bool) -> None:
        inner = config.num_heads * config.d_kv
        self.layer, self.heads = layer, config.num_heads
        self.q, self.k, self.v = (nn.Linear(config.d_model, inner, bias=False) for _ in range(3))
        self.o = nn.Linear(inner, config.d_model, bias=False)
        if biased:
            buckets = config.relative_attention_num_buckets
            self.relative_attention_bias = nn.Embedding(buckets, config.num_heads)

    def to_memory(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of an encoder's states."""
        return split_heads(self.k(states), self.heads), split_heads(self.v(states), self.heads)

    def forward(self, x: Tensor, seen: Pass, bias: Tensor) -> Tensor:
        query, (key, value) = split_heads(self.q(x), self.heads), self.to_memory(x)
        if seen.cache is not None:
            key, value = seen.cache.update(self.layer, key, value, seen)
        causal = seen.is_plainly_causal(None)
        options: dict[str, Any] = {"scale": 1.0, "bias": bias, "is_causal": causal}
        return self.o(attend(query, key, value, seen.mask(), **options))

    def across(self, x: Tensor, seen: Pass) -> Tensor:
        """Attention to the encoder's states."""
        assert seen.memory is not None
        query, (key, value) = split_heads(self.q(x), self.heads), seen.memory[self.layer]
        return self.o(attend(query, key, value, seen.memory_mask, scale=1.0))


class T5SelfAttention(nn.Module):
    """A norm, self-attention, added to what came in."""

    def __init__(self, config: T5Config, layer: int) -> None:
        self.SelfAttention = T5Attention(config, layer, biased=layer == 0)
        self.layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)

    def forward(self, x: Tensor, seen: Pass, bias: Tensor) -> Tensor:
        return x + self.SelfAttention(self.layer_norm(x), seen, bias)


class T5CrossAttention(nn.Module):
    """A norm, attention to the encoder, added to what came in."""

    def __init__(self, config: T5Config, layer: int) -> None:
        self.EncDecAttention = T5Attention(config, layer, biased=False)
        self.layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)

    def forward(self, x: Tensor, seen: Pass, bias: Tensor) -> Tensor:
        return x + self.EncDecAttention.across(self.layer_norm(x), seen)


class T5Dense(nn.Module):
    """The feed-forward layer, gated or not."""

    def __init__(self, config: T5Config) -> None:
        width, hidden = config.d_model, config.d_ff
        self.gated, self.act = config.gated, activation(config.act)
        if self.gated:
            self.wi_0 = nn.Linear(width, hidden, bias=False)
            self.wi_1 = nn.Linear(width, hidden, bias=False)
        else:
            self.wi = nn.Linear(width, hidden, bias=False)
        self.wo = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.act(self.wi_0(x)) * self.wi_1(x) if self.gated else self.act(self.wi(x))
        return self.wo(hidden)


class T5FeedForward(nn.Module):
    """A norm, the feed-forward layer, added to what came in."""

    def __init__(self, config: T5Config) -> None:
        self.DenseReluDense = T5Dense(config)
        self.layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)

    def forward(self, x: Tensor, seen: Pass, bias: Tensor) -> Tensor:
        return x + self.DenseReluDense(self.layer_norm(x))


class T5Block(nn.Module):
    """The sublayers of one layer."""

    def __init__(self, config: T5Config, layer: int, decodes: bool) -> None:
        cross = [T5CrossAttention(config, layer)] if decodes else []
        self.layer: list[Any] = [T5SelfAttention(config, layer), *cross, T5FeedForward(config)]

    def forward(self, x: Tensor, seen: Pass, bias: Tensor) -> Tensor:
        for sublayer in self.layer:
            x = sublayer(x, seen, bias)
        return x


class T5Stack(nn.Module):
    """An encoder or a decoder."""

    def __init__(self, config: T5Config, words: nn.Embedding, decodes: bool) -> None:
        layers = config.num_layers
        if decodes and config.num_decoder_layers is not None:
            layers = config.num_decoder_layers
        self.embed_tokens = words
        self.block = [T5Block(config, i, decodes) for i in range(layers)]
        self.final_layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)
        self.buckets = config.relative_attention_num_buckets
        self.furthest = config.relative_attention_max_distance
        self.decodes = decodes

    def forward(self, tokens: Tensor, seen: Pass) -> Tensor:
        x, bias = self.embed_tokens(tokens), self._bias(seen)
        for block in self.block:
            x = block(x, seen, bias)
        return self.final_layer_norm(x)

    def _bias(self, seen: Pass) -> Tensor:
        """What positions add to scores, (1, heads, length, keys)."""
        held = nm.arange(seen.keys, device=seen.slots.device)
        which = self._bucket(held - seen.slots[:, None])
        table = self.block[0].layer[0].SelfAttention.relative_attention_bias
        return table(which).permute(2, 0, 1)[None]

    def _bucket(self, behind: Tensor) -> Tensor:
        """Distances up to some are told apart, further ones on a logarithmic scale."""
        count, offset = self.buckets, nm.zeros_like(behind)
        if self.decodes:
            distance = nm.maximum(-behind, 0)
        else:
            count //= 2
            offset = nm.where(behind > 0, count, 0)
            distance = nm.abs(behind)
        exact = count // 2
        far = nm.log(nm.maximum(distance, 1).astype(nm.float32) / exact)
        far = exact + (far / math.log(self.furthest / exact) * (count - exact)).astype(nm.int32)
        return offset + nm.where(distance < exact, distance, nm.minimum(far, count - 1))


class T5ForConditionalGeneration(EncoderDecoder):
    """T5: `logits = model(input_ids, decoder_input_ids)`, or `model.generate(input_ids)`.

    >>> from numus import models
    >>> config = models.T5Config(vocab_size=50, d_model=16, d_kv=4, d_ff=32, num_layers=1)
    >>> models.T5ForConditionalGeneration(config)([[1, 2, 3]], [[0, 4]]).shape
    (1, 2, 50)
    """

    config: T5Config

    def __init__(self, config: T5Config) -> None:
        self.config = config
        self.shared = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder = T5Stack(config, self.shared, decodes=False)
        self.decoder = T5Stack(config, self.shared, decodes=True)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.shared.weight

    def encode(self, inputs: Any, mask: Tensor | None = None) -> Tensor:
        tokens = token_ids(inputs, type(self).__name__, self.config.vocab_size, self.device)
        positions = nm.arange(tokens.shape[1], device=tokens.device)[None]
        return self.encoder(tokens, Pass(positions, mask, causal=False))

    def input_mask(self, inputs: Any, mask: Any) -> Tensor | None:
        name = type(self).__name__
        tokens = token_ids(inputs, name, self.config.vocab_size, self.device)
        return key_mask(mask, tokens, name)

    def memory(self, states: Tensor) -> Memory:
        return [block.layer[1].EncDecAttention.to_memory(states) for block in self.decoder.block]

    def hidden(self, tokens: Tensor, seen: Pass) -> Tensor:
        return self.decoder(tokens, seen)

    def head(self, hidden: Tensor) -> Tensor:
        if self.config.scales_outputs:
            hidden = hidden * self.config.d_model**-0.5
        return self.lm_head(hidden)

    def cache_specs(self) -> list[CacheSpec]:
        return [CacheSpec(self.config.num_heads, self.config.d_kv)] * len(self.decoder.block)
