"""GPT-2 (Radford et al. 2019): learned positions, layer norms before each block, one projection.

Parameters have transformers' names and layouts: linear layers are `Conv1D`, with a row of the
weight for every input.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from numus import nn
from numus.models.language.attention import Pass, attend, split_heads
from numus.models.language.base import CacheSpec, CausalLM
from numus.models.language.blocks import Conv1D, activation, through_blocks
from numus.models.language.config import Config
from numus.tensor import Tensor

__all__ = ["GPT2Config", "GPT2LMHeadModel"]


@dataclass(frozen=True, kw_only=True)
class GPT2Config(Config):
    """Sizes of a GPT-2; the defaults are those of the 124M model."""

    model_type: str = "gpt2"
    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        if self.n_embd % self.n_head:
            raise ValueError(
                f"GPT2Config: a width of {self.n_embd} is not divisible by {self.n_head} heads"
            )


class GPT2Attention(nn.Module):
    """Self-attention whose queries, keys and values are one projection."""

    attend = staticmethod(attend)

    def __init__(self, config: GPT2Config, layer: int) -> None:
        self.layer, self.heads = layer, config.n_head
        self.c_attn = Conv1D(config.n_embd, 3 * config.n_embd)
        self.c_proj = Conv1D(config.n_embd, config.n_embd)
        self.scale = (config.n_embd // config.n_head) ** -0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            self.scale /= layer + 1

    def forward(self, x: Tensor, seen: Pass) -> Tensor:
        parts = self.c_attn(x)
        width = parts.shape[-1] // 3
        query, key, value = (
            split_heads(parts[..., i * width : (i + 1) * width], self.heads) for i in range(3)
        )
        if seen.cache is not None:
            key, value = seen.cache.update(self.layer, key, value, seen)
        causal = seen.is_plainly_causal(None)
        out = self.attend(query, key, value, seen.mask(), scale=self.scale, is_causal=causal)
        return self.c_proj(out)


class GPT2MLP(nn.Module):
    """The feed-forward layer of a block."""

    def __init__(self, config: GPT2Config) -> None:
        inner = config.n_inner or 4 * config.n_embd
        self.c_fc = Conv1D(config.n_embd, inner)
        self.c_proj = Conv1D(inner, config.n_embd)
        self.act = activation(config.activation_function)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(self.act(self.c_fc(x)))


class GPT2Block(nn.Module):
    """Attention and feed-forward layer, each after a norm and added to what came in."""

    def __init__(self, config: GPT2Config, layer: int) -> None:
        self.ln_1 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.attn = GPT2Attention(config, layer)
        self.ln_2 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.mlp = GPT2MLP(config)

    def forward(self, x: Tensor, seen: Pass) -> Tensor:
        x = x + self.attn(self.ln_1(x), seen)
        return x + self.mlp(self.ln_2(x))


class GPT2Model(nn.Module):
    """Embeddings of tokens and positions, blocks, and the last norm."""

    recompute = False

    def __init__(self, config: GPT2Config) -> None:
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.h = [GPT2Block(config, i) for i in range(config.n_layer)]
        self.ln_f = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)

    def forward(self, tokens: Tensor, seen: Pass) -> Tensor:
        x = self.wte(tokens) + self.wpe(seen.positions)
        blocks = (partial(block, seen=seen) for block in self.h)
        return self.ln_f(through_blocks(blocks, x, self.recompute))


class GPT2LMHeadModel(CausalLM):
    """GPT-2 with the head that scores the next token.

    >>> from numus import models
    >>> config = models.GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2)
    >>> models.GPT2LMHeadModel(config)([[1, 2, 3]]).shape
    (1, 3, 50)
    """

    config: GPT2Config
    base_prefix = "transformer"
    conv1d_layers = ("c_attn", "c_fc", "c_proj")

    def __init__(self, config: GPT2Config) -> None:
        self.config = config
        self.transformer = GPT2Model(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.transformer.wte.weight

    def hidden(self, tokens: Tensor, seen: Pass) -> Tensor:
        return self.transformer(tokens, seen)

    def head(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)

    def cache_specs(self) -> list[CacheSpec]:
        size = self.config.n_embd // self.config.n_head
        return [CacheSpec(self.config.n_head, size)] * self.config.n_layer

    @property
    def max_length(self) -> int | None:
        return self.config.n_positions
