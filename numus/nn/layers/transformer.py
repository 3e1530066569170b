"""Transformers: PyTorch's encoder and decoder, and a block to build language models of."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numus as nm
from numus.nn import functional as F
from numus.nn import init
from numus.nn.layers.attention import KVCache, MultiheadAttention, StaticKVCache
from numus.nn.layers.containers import ModuleList
from numus.nn.layers.dropout import Dropout
from numus.nn.layers.linear import Linear
from numus.nn.layers.norm import LayerNorm, RMSNorm
from numus.nn.module import Module
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
        raise ValueError(
            f"activation {given!r} must be one of {', '.join(_ACTIVATIONS)}, no function"
        )
    return _ACTIVATIONS[given]


class _Residual(Module):
    """Blocks added to their input, with a norm before each (`norm_first`) or after each sum."""

    norm_first: bool

    def _add(self, x: Tensor, norm: Module, block: Callable[[Tensor], Tensor]) -> Tensor:
        out: Tensor = x + block(norm(x)) if self.norm_first else norm(x + block(x))
        return out


# -- a block for language models ------------------------------------------------------------------


class TransformerBlock(_Residual):
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

    def forward(
        self,
        x: Any,
        attn_mask: Any = None,
        key_padding_mask: Any = None,
        *,
        cache: KVCache | StaticKVCache | None = None,
    ) -> Tensor:
        """x after the block; masks and cache as in MultiheadAttention."""

        def attend(x: Tensor) -> Tensor:
            masks = {"key_padding_mask": key_padding_mask, "attn_mask": attn_mask}
            options: dict[str, Any] = {"is_causal": self.causal, "cache": cache}
            return self.dropout(self.self_attn(x, need_weights=False, **masks, **options)[0])

        def feed(x: Tensor) -> Tensor:
            return self.dropout(self.linear2(self.activation(self.linear1(x))))

        return self._add(self._add(x, self.norm1, attend), self.norm2, feed)


# -- PyTorch's layers -----------------------------------------------------------------------------


class _Layer(_Residual):
    """PyTorch's encoder and decoder layers: one or two attentions, and a feed-forward net."""

    _attentions = 1
    self_attn: MultiheadAttention
    norm1: LayerNorm
    norm2: LayerNorm
    dropout1: Dropout
    dropout2: Dropout

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
        names = ("self_attn", "multihead_attn")[: self._attentions]
        for name in names:
            heads = (d_model, nhead, dropout, bias)
            setattr(self, name, MultiheadAttention(*heads, batch_first=batch_first, **options))
        self.linear1 = Linear(d_model, dim_feedforward, bias, **options)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, **options)
        for i in range(1, self._attentions + 2):
            setattr(self, f"norm{i}", LayerNorm(d_model, layer_norm_eps, bias=bias, **options))
            setattr(self, f"dropout{i}", Dropout(dropout))
        self.norm_first = norm_first
        self.activation = _activation(activation)

    def _attend(self, x: Tensor, padding: Any, mask: Any, causal: bool) -> Tensor:
        """Attention to the input itself."""
        options = {"need_weights": False, "attn_mask": mask, "is_causal": causal}
        return self.dropout1(self.self_attn(x, x, x, padding, **options)[0])

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
        masks = (src_key_padding_mask, src_mask, is_causal)
        x = self._add(src, self.norm1, lambda x: self._attend(x, *masks))
        return self._add(x, self.norm2, lambda x: self._feed(x, self.dropout2))


class TransformerDecoderLayer(_Layer):
    """Attention to itself, to what an encoder gave, and a feed-forward net.

    Arguments as of `TransformerEncoderLayer`.
    """

    _attentions = 2
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
        def look(x: Tensor) -> Tensor:
            options = {"attn_mask": memory_mask, "is_causal": memory_is_causal}
            sources = (x, memory, memory, memory_key_padding_mask)
            return self.dropout2(self.multihead_attn(*sources, need_weights=False, **options)[0])

        masks = (tgt_key_padding_mask, tgt_mask, tgt_is_causal)
        x = self._add(tgt, self.norm1, lambda x: self._attend(x, *masks))
        x = self._add(x, self.norm2, look)
        return self._add(x, self.norm3, lambda x: self._feed(x, self.dropout3))


class _Stack(Module):
    """Copies of a layer one after the other, and a norm after the last."""

    def _copies(self, layer: Module, count: int, norm: Module | None) -> None:
        self.layers = ModuleList(copy.deepcopy(layer) for _ in range(count))
        self.norm = norm

    def _apply(self, x: Any, *args: Any, **kwargs: Any) -> Tensor:
        for layer in self.layers:
            x = layer(x, *args, **kwargs)
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
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
        self._copies(encoder_layer, num_layers, norm)

    def forward(
        self, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False
    ) -> Tensor:
        return self._apply(src, mask, src_key_padding_mask, is_causal)


class TransformerDecoder(_Stack):
    """Decoder layers one after the other: `num_layers` copies of `decoder_layer`.

    Args:
        norm: applied to what the last one gives.
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        self._copies(decoder_layer, num_layers, norm)

    def forward(self, tgt: Any, memory: Any, *args: Any, **kwargs: Any) -> Tensor:
        """The layers' output; further arguments are those of TransformerDecoderLayer."""
        return self._apply(tgt, memory, *args, **kwargs)


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

        options: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        norms = [LayerNorm(d_model, layer_norm_eps, **options) for _ in range(2)]
        first, second = TransformerEncoderLayer(*shared), TransformerDecoderLayer(*shared)
        self.encoder = TransformerEncoder(first, num_encoder_layers, norms[0])
        self.decoder = TransformerDecoder(second, num_decoder_layers, norms[1])
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
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        return self.decoder(tgt, memory, *masks, tgt_is_causal, memory_is_causal)

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
        """An additive causal mask: 0, or -inf for later tokens."""
        looks = F.causal_mask(sz, sz, device=device)
        return nm.where(looks, nm.zeros((), dtype=dtype or nm.float32), -nm.inf)
