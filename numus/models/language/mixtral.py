"""Mixtral (Jiang et al. 2024): Llama with a mixture of experts in place of each feed-forward layer.

A router chooses the experts of each token and how much each counts. Where tokens are few, experts
that none has chosen are skipped; where they are many, all experts see all tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numus as nm
from numus import nn
from numus.models.language.attention import Pass
from numus.models.language.blocks import RMSNorm, activation
from numus.models.language.llama import Angles, LlamaAttention, LlamaConfig, LlamaForCausalLM
from numus.tensor import Tensor

__all__ = ["MixtralConfig", "MixtralForCausalLM"]


@dataclass(frozen=True, kw_only=True)
class MixtralConfig(LlamaConfig):
    """Sizes of a Mixtral: those of a Llama, and of its experts."""

    model_type: str = "mixtral"
    num_local_experts: int = 8
    num_experts_per_tok: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.num_experts_per_tok <= self.num_local_experts:
            raise ValueError(
                f"MixtralConfig: {self.num_experts_per_tok} of {self.num_local_experts} experts "
                "for each token"
            )


class Expert(nn.Module):
    """SwiGLU: w2(act(w1(x)) * w3(x))."""

    def __init__(self, config: MixtralConfig) -> None:
        width, hidden = config.hidden_size, config.intermediate_size
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)
        self.act = activation(config.hidden_act)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(self.act(self.w1(x)) * self.w3(x))


class MixtureOfExperts(nn.Module):
    """The experts that a router chooses for each token, weighted."""

    def __init__(self, config: MixtralConfig) -> None:
        self.gate = nn.Linear(config.hidden_size, config.num_local_experts, bias=False)
        self.experts = [Expert(config) for _ in range(config.num_local_experts)]
        self.chosen = config.num_experts_per_tok

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        flat = x.reshape(rows * length, width)
        shares = self._shares(flat)
        few = rows * length * self.chosen < len(self.experts)
        out = nm.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            share = shares[:, number : number + 1]

            def counted(x: Tensor, share: Tensor, expert: Expert = expert) -> Tensor:
                return expert(x) * share.astype(x.dtype, copy=False)

            if few:
                used = nm.any(share > 0)
                part = nm.cond(used, counted, lambda x, share: nm.zeros_like(x), flat, share)
            else:
                part = counted(flat, share)
            out = out + part
        return out.reshape(rows, length, width)

    def _shares(self, flat: Tensor) -> Tensor:
        """How much each expert counts for each token, (tokens, experts): most of them zero."""
        chances = nm.softmax(self.gate(flat).astype(nm.float32, copy=False), axis=-1)
        best, which = nm.topk(chances, self.chosen)
        best = best / nm.sum(best, axis=-1, keepdims=True)
        experts = nm.arange(len(self.experts), device=flat.device)
        return nm.sum(nm.where(which[..., None] == experts, best[..., None], 0.0), axis=1)


class MixtralLayer(nn.Module):
    """Attention and experts, each after a norm and added to what came in."""

    def __init__(self, config: MixtralConfig, layer: int) -> None:
        self.self_attn = LlamaAttention(config, layer)
        self.block_sparse_moe = MixtureOfExperts(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, angles: Angles, seen: Pass) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), angles, seen)
        return x + self.block_sparse_moe(self.post_attention_layernorm(x))


class MixtralForCausalLM(LlamaForCausalLM):
    """Mixtral with the head that scores the next token."""

    config: MixtralConfig
    layer = MixtralLayer
