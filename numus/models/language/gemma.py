"""Gemma (Gemma Team 2024), Gemma 2 (2024) and the text model of Gemma 3 (2025).

Llama's blocks with scaled embeddings, GELU gates, and norms whose weights are stored less one.
Gemma 2 adds norms after each block, caps on scores, and a sliding window in every other layer;
Gemma 3 norms queries and keys, and has rotary positions of its own in layers with a window.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numus as nm
from numus import nn
from numus.models.language.attention import Pass
from numus.models.language.blocks import GatedMLP, RMSNorm, through_blocks
from numus.models.language.config import RopeParameters
from numus.models.language.llama import Angles, LlamaAttention, LlamaConfig, LlamaForCausalLM
from numus.models.language.rope import Rope
from numus.tensor import Tensor

__all__ = ["GemmaConfig", "GemmaForCausalLM"]

_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, kw_only=True)
class GemmaConfig(LlamaConfig):
    """Sizes of a Gemma; `model_type` says which: gemma, gemma2 or gemma3_text."""

    model_type: str = "gemma"
    hidden_act: str = "gelu_pytorch_tanh"
    hidden_activation: str | None = None
    head_dim: int | None = 256
    tie_word_embeddings: bool = True
    query_pre_attn_scalar: float | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    rope_local_base_freq: float = 10000.0
    sliding_window_pattern: int | None = None

    @property
    def act(self) -> str:
        # configurations of the first Gemma say gelu and mean its approximation
        return self.hidden_activation or "gelu_pytorch_tanh"

    def window(self, layer: int) -> int | None:
        return self.sliding_window if self.layer_type(layer) == _SLIDING else None

    def layer_type(self, layer: int) -> str:
        """Whether a layer looks at a window or at all tokens."""
        if self.model_type == "gemma":
            return _FULL
        if self.layer_types is not None:
            return str(self.layer_types[layer])
        every = self.sliding_window_pattern or (2 if self.model_type == "gemma2" else 6)
        return _FULL if (layer + 1) % every == 0 else _SLIDING

    def ropes(self) -> dict[str, Rope]:
        """Rotary embeddings by the type of a layer."""
        given: Any = self.rope_parameters or {}
        found = {}
        for kind in (_SLIDING, _FULL):
            local = kind == _SLIDING and self.model_type.startswith("gemma3")
            theta = self.rope_local_base_freq if local else self.rope_theta
            scaling = None if local else self.rope_scaling
            parameters = RopeParameters.of(given.get(kind, given), theta, scaling)
            found[kind] = Rope(parameters, self.head_size, self.max_position_embeddings)
        return found

    def rope(self) -> Rope:
        return self.ropes()[_FULL]


class GemmaLayer(nn.Module):
    """Attention and a gated feed-forward layer; from Gemma 2 on with norms around both."""

    def __init__(self, config: GemmaConfig, layer: int) -> None:
        width, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = LlamaAttention(config, layer)
        scalar = config.query_pre_attn_scalar
        self.self_attn.scale = (config.head_size if scalar is None else scalar) ** -0.5
        self.self_attn.softcap = config.attn_logit_softcapping
        if config.model_type.startswith("gemma3"):
            self.self_attn.q_norm = RMSNorm(config.head_size, eps, offset=1.0)
            self.self_attn.k_norm = RMSNorm(config.head_size, eps, offset=1.0)
        self.mlp = GatedMLP(width, config.intermediate_size, config.act)
        self.input_layernorm = RMSNorm(width, eps, offset=1.0)
        self.post_attention_layernorm = RMSNorm(width, eps, offset=1.0)
        self.around = config.model_type != "gemma"
        if self.around:
            self.pre_feedforward_layernorm = RMSNorm(width, eps, offset=1.0)
            self.post_feedforward_layernorm = RMSNorm(width, eps, offset=1.0)

    def forward(self, x: Tensor, angles: Angles, seen: Pass) -> Tensor:
        y = self.self_attn(self.input_layernorm(x), angles, seen)
        if not self.around:
            x = x + y
            return x + self.mlp(self.post_attention_layernorm(x))
        x = x + self.post_attention_layernorm(y)
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class GemmaModel(nn.Module):
    """Scaled embeddings, layers and the last norm."""

    recompute = False

    def __init__(self, config: GemmaConfig) -> None:
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = [GemmaLayer(config, i) for i in range(config.num_hidden_layers)]
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, offset=1.0)
        self._scale = config.hidden_size**0.5
        self._ropes = config.ropes()
        self._rope = self._ropes[_FULL]
        self._types = [config.layer_type(i) for i in range(config.num_hidden_layers)]

    def forward(self, tokens: Tensor, seen: Pass) -> Tensor:
        x = self.embed_tokens(tokens)
        # the factor is rounded to the dtype of the embeddings, as in training
        x = x * nm.asarray(self._scale, dtype=x.dtype, device=x.device)
        angles = {kind: rope(seen.positions, x.dtype) for kind, rope in self._ropes.items()}
        blocks = (
            partial(layer, angles=angles[kind], seen=seen)
            for kind, layer in zip(self._types, self.layers, strict=True)
        )
        return self.norm(through_blocks(blocks, x, self.recompute))


class GemmaForCausalLM(LlamaForCausalLM):
    """Gemma, Gemma 2, or the text model of Gemma 3, by `config.model_type`."""

    config: GemmaConfig

    def __init__(self, config: GemmaConfig) -> None:
        self.config = config
        self.model: Any = GemmaModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def head(self, hidden: Tensor) -> Tensor:
        scores = self.lm_head(hidden)
        cap = self.config.final_logit_softcapping
        return scores if cap is None else cap * nm.tanh(scores / cap)
