"""Llama (Touvron et al. 2023) and its kin: Mistral, Qwen2, Qwen3.

Decoders of RMSNorm before each block, rotary positions, heads that share keys, and SwiGLU. Mistral
adds a sliding window, Qwen2 biases of queries, keys and values, Qwen3 norms of queries and keys.
Parameters have transformers' names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from numus import nn
from numus.models.language.attention import Pass, attend, split_heads
from numus.models.language.base import CacheSpec, CausalLM
from numus.models.language.blocks import GatedMLP, RMSNorm, through_blocks
from numus.models.language.config import Config, RopeParameters
from numus.models.language.rope import Rope, rotate
from numus.tensor import Tensor

__all__ = ["LlamaConfig", "LlamaForCausalLM"]

Angles = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(Config):
    """Sizes of a Llama; `model_type` says which of its kin it is."""

    model_type: str = "llama"
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: Any = None
    rope_parameters: Any = field(default_factory=dict)
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    use_sliding_window: bool = True
    max_window_layers: int = 0
    layer_types: Any = None

    def __post_init__(self) -> None:
        problems = []
        if self.num_attention_heads % self.kv_heads:
            problems.append(
                f"{self.num_attention_heads} query heads do not share {self.kv_heads} key heads"
            )
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            problems.append(
                f"a width of {self.hidden_size} is not divisible by {self.num_attention_heads}"
            )
        if self.layer_types is not None and len(self.layer_types) != self.num_hidden_layers:
            problems.append(
                f"layer_types names {len(self.layer_types)} of {self.num_hidden_layers} layers"
            )
        if problems:
            raise ValueError(f"{type(self).__name__}: {'; '.join(problems)}")

    @property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def window(self, layer: int) -> int | None:
        """The sliding window of a layer; None: it looks at all tokens."""
        if self.layer_types is not None:
            return self.sliding_window if self.layer_types[layer] == "sliding_attention" else None
        if self.model_type.startswith("qwen"):
            slides = self.use_sliding_window and layer >= self.max_window_layers
            return self.sliding_window if slides else None
        return self.sliding_window

    def rope(self) -> Rope:
        """The rotary embedding of all layers."""
        given = RopeParameters.of(self.rope_parameters or {}, self.rope_theta, self.rope_scaling)
        return Rope(given, self.head_size, self.max_position_embeddings)


class LlamaAttention(nn.Module):
    """Self-attention with rotary positions and shared heads of keys."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        self.layer, self.window = layer, config.window(layer)
        self.heads, self.kv_heads, self.size = (
            config.num_attention_heads,
            config.kv_heads,
            config.head_size,
        )
        width, bias = config.hidden_size, config.attention_bias
        inner = bias or config.model_type == "qwen2"
        self.q_proj = nn.Linear(width, self.heads * self.size, bias=inner)
        self.k_proj = nn.Linear(width, self.kv_heads * self.size, bias=inner)
        self.v_proj = nn.Linear(width, self.kv_heads * self.size, bias=inner)
        self.o_proj = nn.Linear(self.heads * self.size, width, bias=bias)
        self.scale, self.softcap = self.size**-0.5, None
        if config.model_type == "qwen3":
            self.q_norm = RMSNorm(self.size, config.rms_norm_eps)
            self.k_norm = RMSNorm(self.size, config.rms_norm_eps)

    attend = staticmethod(attend)
    q_norm: RMSNorm | None = None
    k_norm: RMSNorm | None = None
    softcap: float | None

    def forward(self, x: Tensor, angles: Angles, seen: Pass) -> Tensor:
        query = split_heads(self.q_proj(x), self.heads)
        key = split_heads(self.k_proj(x), self.kv_heads)
        value = split_heads(self.v_proj(x), self.kv_heads)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = rotate(query, angles), rotate(key, angles)
        if seen.cache is not None:
            key, value = seen.cache.update(self.layer, key, value, seen)
        mask, causal = seen.mask(self.window), seen.is_plainly_causal(self.window)
        options: dict[str, Any] = {"scale": self.scale, "softcap": self.softcap}
        return self.o_proj(self.attend(query, key, value, mask, is_causal=causal, **options))


class LlamaLayer(nn.Module):
    """Attention and a gated feed-forward layer, each after a norm and added to what came in."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        self.self_attn = LlamaAttention(config, layer)
        self.mlp = GatedMLP(
            config.hidden_size, config.intermediate_size, config.hidden_act, config.mlp_bias
        )
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, angles: Angles, seen: Pass) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), angles, seen)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaModel(nn.Module):
    """Embeddings, layers and the last norm."""

    recompute = False

    def __init__(self, config: LlamaConfig, layer: Any = LlamaLayer) -> None:
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = [layer(config, i) for i in range(config.num_hidden_layers)]
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self._rope = config.rope()

    def forward(self, tokens: Tensor, seen: Pass) -> Tensor:
        x = self.embed_tokens(tokens)
        angles = self._rope(seen.positions, x.dtype)
        blocks = (partial(layer, angles=angles, seen=seen) for layer in self.layers)
        return self.norm(through_blocks(blocks, x, self.recompute))


class LlamaForCausalLM(CausalLM):
    """Llama, Mistral, Qwen2 or Qwen3, by `config.model_type`.

    >>> from numus import models
    >>> sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    >>> config = models.LlamaConfig(vocab_size=100, num_attention_heads=4, **sizes)
    >>> model = models.LlamaForCausalLM(config)
    >>> model([[1, 2, 3]]).shape
    (1, 3, 100)
    >>> model.generate([[1, 2, 3]], max_new_tokens=4).shape
    (1, 7)
    """

    config: LlamaConfig
    layer: Any = LlamaLayer

    def __init__(self, config: LlamaConfig) -> None:
        self.config = config
        self.model = LlamaModel(config, type(self).layer)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def hidden(self, tokens: Tensor, seen: Pass) -> Tensor:
        return self.model(tokens, seen)

    def head(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)

    def cache_specs(self) -> list[CacheSpec]:
        c = self.config
        return [CacheSpec(c.kv_heads, c.head_size, c.window(i)) for i in range(c.num_hidden_layers)]

    @property
    def whole_prompts(self) -> bool:
        return self.model._rope.kind == "dynamic"
