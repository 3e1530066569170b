"""Mixtral (Jiang et al. 2024): Llama with a mixture of experts in place of each feed-forward layer.

A router chooses the experts of each token and how much each counts. Tokens are put in the order of
their experts, and each expert reads its own: by the smallest of a few programs that takes them all,
as shapes are fixed (the grouped products of MegaBlocks, Gale et al. 2022, without their kernel).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil

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
        flat = x.reshape(-1, x.shape[-1])
        count, chosen = flat.shape[0], self.chosen
        chances = nm.softmax(self.gate(flat).astype(nm.float32, copy=False), axis=-1)
        best, which = nm.topk(chances, chosen)
        best = best / nm.sum(best, axis=-1, keepdims=True)
        # pairs of tokens and experts, expert by expert
        order = nm.argsort(which.reshape(-1), stable=True)
        tokens, shares = order // chosen, nm.take(best.reshape(-1), order)
        out = nm.zeros_like(flat)
        start = nm.zeros((), dtype=order.dtype, device=flat.device)
        sizes = _sizes(count, chosen, len(self.experts))
        for number, expert in enumerate(self.experts):
            own = nm.sum(which == number).astype(order.dtype)
            out = _smallest(expert, [0, *sizes], out, flat, tokens, shares, start, own)
            start = start + own
        return out.reshape(x.shape)


def _sizes(tokens: int, chosen: int, experts: int) -> list[int]:
    """How many tokens the programs of an expert take: its share, a little more, twice it, all."""
    mean = tokens * chosen / experts
    return sorted(
        {size for size in (ceil(1.25 * mean), ceil(2 * mean)) if size < tokens} | {tokens}
    )


def _smallest(expert: Expert, sizes: list[int], *operands: Tensor) -> Tensor:
    """What the first of some programs gives whose size is enough."""
    first, *larger = (partial(_add, expert, size) for size in sizes)
    if not larger:
        return first(*operands)
    own = operands[-1]
    return nm.cond(own <= sizes[0], first, partial(_smallest, expert, sizes[1:]), *operands)


def _add(
    expert: Expert, size: int, out: Tensor, x: Tensor, tokens: Tensor, shares: Tensor,
    start: Tensor, own: Tensor,
) -> Tensor:  # fmt: skip
    """Add what an expert makes of its own tokens, of which there are at most `size`."""
    if size == 0:
        return out
    at = nm.arange(size, device=x.device)
    pairs = nm.minimum(start + at, tokens.shape[0] - 1)
    rows = nm.take(tokens, pairs)
    made = expert(nm.take(x, rows, axis=0))
    made = made * nm.take(shares, pairs)[:, None].astype(x.dtype, copy=False)
    return out.at[rows].add(nm.where((at < own)[:, None], made, 0))


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
