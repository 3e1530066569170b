"""BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019): encoders that fill in masked tokens.

Layer norms come after each block. RoBERTa counts positions from the first token that is not
padding, and its head lies under other names. Parameters have transformers' names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numus as nm
from numus import nn
from numus.errors import ShapeError
from numus.models.language.attention import Pass, attend, split_heads
from numus.models.language.base import key_mask, token_ids
from numus.models.language.blocks import activation
from numus.models.language.config import Config
from numus.tensor import Tensor

__all__ = ["BertConfig", "BertForMaskedLM", "RobertaForMaskedLM"]


@dataclass(frozen=True, kw_only=True)
class BertConfig(Config):
    """Sizes of a BERT or RoBERTa; the defaults are those of BERT's base model."""

    model_type: str = "bert"
    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float = 0.1
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"BertConfig: a width of {self.hidden_size} is not divisible by "
                f"{self.num_attention_heads} heads"
            )


class _Embeddings(nn.Module):
    """Tokens, positions and segments, added and normed."""

    def __init__(self, config: BertConfig) -> None:
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self._pad = config.pad_token_id if config.model_type == "roberta" else None

    def forward(self, tokens: Tensor, segments: Tensor) -> Tensor:
        if self._pad is None:
            positions = nm.arange(tokens.shape[1], device=tokens.device)[None]
        else:
            there = (tokens != self._pad).astype(nm.int32)
            positions = nm.cumulative_sum(there, axis=1) * there + self._pad
        x = self.word_embeddings(tokens) + self.position_embeddings(positions)
        return self.dropout(self.LayerNorm(x + self.token_type_embeddings(segments)))


class _Projection(nn.Module):
    """A linear layer, added to what came in, and a norm."""

    def __init__(self, inputs: int, config: BertConfig) -> None:
        self.dense = nn.Linear(inputs, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, came_in: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(x)) + came_in)


class _SelfAttention(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor, seen: Pass) -> Tensor:
        layers = (self.query, self.key, self.value)
        query, key, value = (split_heads(layer(x), self.heads) for layer in layers)
        return attend(query, key, value, seen.mask())


class _Attention(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        self.self = _SelfAttention(config)
        self.output = _Projection(config.hidden_size, config)

    def forward(self, x: Tensor, seen: Pass) -> Tensor:
        return self.output(self.self(x, seen), x)


class _Intermediate(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.act = activation(config.hidden_act)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.dense(x))


class _Layer(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        self.attention = _Attention(config)
        self.intermediate = _Intermediate(config)
        self.output = _Projection(config.intermediate_size, config)

    def forward(self, x: Tensor, seen: Pass) -> Tensor:
        x = self.attention(x, seen)
        return self.output(self.intermediate(x), x)


class _Encoder(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        self.layer = [_Layer(config) for _ in range(config.num_hidden_layers)]

    def forward(self, x: Tensor, seen: Pass) -> Tensor:
        for layer in self.layer:
            x = layer(x, seen)
        return x


class BertModel(nn.Module):
    """Embeddings and layers: hidden states (rows, length, width)."""

    def __init__(self, config: BertConfig) -> None:
        self.config = config
        self.embeddings = _Embeddings(config)
        self.encoder = _Encoder(config)

    def forward(
        self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None
    ) -> Tensor:
        name = type(self).__name__
        device = self.embeddings.word_embeddings.weight.device
        tokens = token_ids(input_ids, name, self.config.vocab_size, device)
        limit = self.config.max_position_embeddings
        if tokens.shape[1] > limit:
            raise ShapeError(f"{name}: {tokens.shape[1]} tokens go beyond {limit} positions")
        segments = nm.zeros_like(tokens)
        if token_type_ids is not None:
            segments = token_ids(token_type_ids, name, self.config.type_vocab_size, device)
        positions = nm.arange(tokens.shape[1], device=device)[None]
        seen = Pass(positions, key_mask(attention_mask, tokens, name), causal=False)
        return self.encoder(self.embeddings(tokens, segments), seen)


class _Transform(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.act = activation(config.hidden_act)

    def forward(self, x: Tensor) -> Tensor:
        return self.LayerNorm(self.act(self.dense(x)))


class _Predictions(nn.Module):
    def __init__(self, config: BertConfig, words: nn.Parameter) -> None:
        self.bias = nn.Parameter(nm.zeros(config.vocab_size))
        self.transform = _Transform(config)
        self.decoder = _tied_head(config, words, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.transform(x))


def _tied_head(config: BertConfig, words: nn.Parameter, bias: nn.Parameter) -> nn.Linear:
    head = nn.Linear(config.hidden_size, config.vocab_size)
    head.bias = bias
    if config.tie_word_embeddings:
        head.weight = words
    return head


class _Heads(nn.Module):
    def __init__(self, config: BertConfig, words: nn.Parameter) -> None:
        self.predictions = _Predictions(config, words)


class BertForMaskedLM(nn.Module):
    """BERT with the head that scores tokens: `logits = model(input_ids, attention_mask)`.

    >>> from numus import models
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> config = models.BertConfig(vocab_size=50, intermediate_size=32, **sizes)
    >>> models.BertForMaskedLM(config)([[1, 2, 3]]).shape
    (1, 3, 50)
    """

    base_prefix = "bert"
    ignored = re.compile(r"^bert\.pooler\.|^cls\.seq_relationship\.")

    def __init__(self, config: BertConfig) -> None:
        self.config = config
        self.bert = BertModel(config)
        self.cls = _Heads(config, self.bert.embeddings.word_embeddings.weight)

    def forward(
        self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None
    ) -> Tensor:
        return self.cls.predictions(self.bert(input_ids, attention_mask, token_type_ids))


class _RobertaHead(nn.Module):
    def __init__(self, config: BertConfig, words: nn.Parameter) -> None:
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.layer_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.bias = nn.Parameter(nm.zeros(config.vocab_size))
        self.decoder = _tied_head(config, words, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.layer_norm(nn.gelu(self.dense(x))))


class RobertaForMaskedLM(nn.Module):
    """RoBERTa with the head that scores tokens."""

    base_prefix = "roberta"
    ignored = re.compile(r"^roberta\.pooler\.")

    def __init__(self, config: BertConfig) -> None:
        if config.pad_token_id is None:
            raise ValueError("RobertaForMaskedLM: positions are counted from pad_token_id")
        self.config = config
        self.roberta = BertModel(config)
        self.lm_head = _RobertaHead(config, self.roberta.embeddings.word_embeddings.weight)

    def forward(
        self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None
    ) -> Tensor:
        return self.lm_head(self.roberta(input_ids, attention_mask, token_type_ids))
