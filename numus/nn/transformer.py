"""Transformers: PyTorch's encoder and decoder, and a block to build language models of."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numus as nm
from numus.nn import functional as F
from numus.nn import init
from numus.nn.attention import KVCache, MultiheadAttention, StaticKVCache
from numus.nn.containers import ModuleList
from numus.nn.dropout import Dropout
from numus.nn.linear import Linear
from numus.nn.module import Module
from numus.nn.norm import LayerNorm, RMSNorm
from numus.tensor import Tensor

__all__ = [
    "Transformer", "TransformerBlock", "TransformerDecoder", "TransformerDecoderLayer",
    "TransformerEncoder", "TransformerEncoderLayer",
]  # fmt: skip

Activation = str | Callable[[Tensor], Tensor]
_ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


def _activation(given: Activation) -> Callable[[Tensor], Tensor]:
    if callable(given):
        return given
    if given not in _ACTIVATIONS:
        raise ValueError(f"activation {given!r} is none of {', '.join(_ACTIVATIONS)}, no function")
    return _ACTIVATIONS[given]


# -- a block for language models ------------------------------------------------------------------


class TransformerBlock(Module):
    """Attention to itself and a feed-forward net, each added to x (batch, length, size).

    >>> from numus import nn
    >>> nn.TransformerBlock(8, 2, 16)(nm.ones((3, 5, 8))).shape
    (3, 5, 8)

    Args:
        norm_first: normalise what goes into each part (as GPT does), not what comes out.
        activation: "gelu", "relu", "silu", a function, or "swiglu" for a gated net.
        norm: "layer" or "rms".
        causal: no token sees those after it.
        rotary, num_kv_heads: see MultiheadAttention.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        ff_dim: int,
        dropout: float = 0.0,
        *,
        norm_first: bool = True,
        activation: Activation = "gelu",
        norm: str = "layer",
        causal: bool = False,
        rotary: bool = False,
        num_kv_heads: int | None = None,
        bias: bool = True,
        eps: float = 1e-5,
        dtype: Any = None,
    ) -> None:
        norms: dict[str, type[LayerNorm] | type[RMSNorm]] = {"layer": LayerNorm, "rms": RMSNorm}
        if norm not in norms:
            raise ValueError(f'TransformerBlock: norm is "layer" or "rms", not {norm!r}')
        self.norm_first = norm_first
        self.causal = causal
        self.gated = activation == "swiglu"
        self.activation = F.swiglu if activation == "swiglu" else _activation(activation)
        self.norm1 = norms[norm](d_model, eps, dtype=dtype)
        self.norm2 = norms[norm](d_model, eps, dtype=dtype)
        self.self_attn = MultiheadAttention(
            *(d_model, n_heads, dropout, bias),
            batch_first=True,
            num_kv_heads=num_kv_heads,
            rotary=rotary,
            dtype=dtype,
        )
        self.linear1 = Linear(d_model, ff_dim * (1 + self.gated), bias, dtype=dtype)
        self.linear2 = Linear(ff_dim, d_model, bias, dtype=dtype)
        self.dropout = Dropout(dropout)

    def _attend(self, x: Tensor, mask: Any, padding: Any, cache: Any) -> Tensor:
        out, _ = self.self_attn(
            x,
            key_padding_mask=padding,
            need_weights=False,
            attn_mask=mask,
            is_causal=self.causal,
            cache=cache,
        )
        return self.dropout(out)

    def _feed(self, x: Tensor) -> Tensor:
        return self.dropout(self.linear2(self.activation(self.linear1(x))))

    def forward(
        self,
        x: Any,
        attn_mask: Any = None,
        key_padding_mask: Any = None,
        *,
        cache: KVCache | StaticKVCache | None = None,
    ) -> Tensor:
        """x after the block; masks and cache as in MultiheadAttention."""
        if self.norm_first:
            x = x + self._attend(self.norm1(x), attn_mask, key_padding_mask, cache)
            return x + self._feed(self.norm2(x))
        x = self.norm1(x + self._attend(x, attn_mask, key_padding_mask, cache))
        return self.norm2(x + self._feed(x))


# -- PyTorch's layers -----------------------------------------------------------------------------


class _Layer(Module):
    """What encoder and decoder layers share."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        options: dict[str, Any] = {"device": device, "dtype": dtype}

        def attention() -> MultiheadAttention:
            return MultiheadAttention(
                d_model, nhead, dropout, bias, batch_first=batch_first, **options
            )

        self.self_attn = attention()
        if isinstance(self, TransformerDecoderLayer):
            self.multihead_attn = attention()
        self.linear1 = Linear(d_model, dim_feedforward, bias, **options)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, **options)
        for i in range(1, 3 + isinstance(self, TransformerDecoderLayer)):
            norm = LayerNorm(d_model, layer_norm_eps, bias=bias, **options)
            setattr(self, f"norm{i}", norm)
            setattr(self, f"dropout{i}", Dropout(dropout))
        self.norm_first = norm_first
        self.activation = _activation(activation)

    norm1: LayerNorm
    norm2: LayerNorm
    dropout1: Dropout
    dropout2: Dropout

    def _feed(self, x: Tensor, last: Dropout) -> Tensor:
        return last(self.linear2(self.dropout(self.activation(self.linear1(x)))))


class TransformerEncoderLayer(_Layer):
    """Attention to itself and a feed-forward net.

    >>> from numus import nn
    >>> nn.TransformerEncoderLayer(8, 2, dim_feedforward=16)(nm.ones((5, 3, 8))).shape
    (5, 3, 8)

    Args:
        d_model: the size of a token.
        nhead: how many heads attention has.
        dim_feedforward: the size between the two layers of the net.
        dropout: after each part, in training.
        activation: of the net: "relu", "gelu", or a function.
        layer_norm_eps: added to variances by the norms.
        batch_first: whether inputs are (batch, length, size), not (length, batch, size).
        norm_first: normalise what goes into each part, not what comes out.
    """

    def forward(
        self,
        src: Any,
        src_mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool = False,
    ) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            out, _ = self.self_attn(
                *(x, x, x, src_key_padding_mask),
                need_weights=False,
                attn_mask=src_mask,
                is_causal=is_causal,
            )
            return self.dropout1(out)

        if self.norm_first:
            x = src + attend(self.norm1(src))
            return x + self._feed(self.norm2(x), self.dropout2)
        x = self.norm1(src + attend(src))
        return self.norm2(x + self._feed(x, self.dropout2))


class TransformerDecoderLayer(_Layer):
    """Attention to itself, to what an encoder gave, and a feed-forward net.

    Arguments as of `TransformerEncoderLayer`.
    """

    multihead_attn: MultiheadAttention
    norm3: LayerNorm
    dropout3: Dropout

    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            out, _ = self.self_attn(
                *(x, x, x, tgt_key_padding_mask),
                need_weights=False,
                attn_mask=tgt_mask,
                is_causal=tgt_is_causal,
            )
            return self.dropout1(out)

        def look(x: Tensor) -> Tensor:
            out, _ = self.multihead_attn(
                *(x, memory, memory, memory_key_padding_mask),
                need_weights=False,
                attn_mask=memory_mask,
                is_causal=memory_is_causal,
            )
            return self.dropout2(out)

        if self.norm_first:
            x = tgt + attend(self.norm1(tgt))
            x = x + look(self.norm2(x))
            return x + self._feed(self.norm3(x), self.dropout3)
        x = self.norm1(tgt + attend(tgt))
        x = self.norm2(x + look(x))
        return self.norm3(x + self._feed(x, self.dropout3))


class TransformerEncoder(Module):
    """Encoder layers one after the other: copies of the one given.

    >>> from numus import nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16)
    >>> nn.TransformerEncoder(layer, num_layers=2)(nm.ones((5, 3, 8))).shape
    (5, 3, 8)

    Args:
        encoder_layer, num_layers: what is copied, and how often.
        norm: applied to what the last one gives.
        enable_nested_tensor, mask_check: how PyTorch goes about padding; no difference here.
    """

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        self.layers = ModuleList(copy.deepcopy(encoder_layer) for _ in range(num_layers))
        self.norm = norm

    def forward(
        self,
        src: Any,
        mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool = False,
    ) -> Tensor:
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """Decoder layers one after the other: `num_layers` copies of `decoder_layer`.

    Args:
        norm: applied to what the last one gives.
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        self.layers = ModuleList(copy.deepcopy(decoder_layer) for _ in range(num_layers))
        self.norm = norm

    def forward(self, tgt: Any, memory: Any, *args: Any, **kwargs: Any) -> Tensor:
        """The layers' output; further arguments are those of TransformerDecoderLayer."""
        for layer in self.layers:
            tgt = layer(tgt, memory, *args, **kwargs)
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """An encoder and a decoder that looks at what it gives.

    >>> from numus import nn
    >>> model = nn.Transformer(8, 2, num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=16)
    >>> model(nm.ones((6, 3, 8)), nm.ones((4, 3, 8))).shape
    (4, 3, 8)

    Args:
        num_encoder_layers, num_decoder_layers: how many layers each has. Other arguments as of
            `TransformerEncoderLayer`.
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        shared: Any = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps)
        shared += (batch_first, norm_first, bias, device, dtype)

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype)

        self.encoder = TransformerEncoder(
            TransformerEncoderLayer(*shared), num_encoder_layers, norm()
        )
        self.decoder = TransformerDecoder(
            TransformerDecoderLayer(*shared), num_decoder_layers, norm()
        )
        self.batch_first = batch_first
        for parameter in self.parameters():
            if parameter.ndim > 1:
                init.xavier_uniform_(parameter)

    def forward(
        self,
        src: Any,
        tgt: Any,
        src_mask: Any = None,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        src_key_padding_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        src_is_causal: bool = False,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        return self.decoder(
            *(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask),
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
        """What to add to scores so that no token sees those after it: 0 or -inf."""
        looks = F.causal_mask(sz, sz, device=device)
        return nm.where(looks, nm.zeros((), dtype=dtype or nm.float32), -nm.inf)
