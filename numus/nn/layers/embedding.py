"""Embeddings: rows of a table by index, and learned, sinusoidal or rotary positions."""

from __future__ import annotations

import math
from typing import Any

import numus as nm
from numus.errors import ShapeError
from numus.nn import functional as F
from numus.nn import init
from numus.nn.layers.function_layer import FunctionLayer, layer
from numus.nn.module import Module
from numus.nn.parameter import Parameter
from numus.tensor import Tensor

__all__ = [
    "Embedding", "EmbeddingBag", "LearnedPositionalEncoding", "RotaryEmbedding",
    "SinusoidalPositionalEncoding",
]  # fmt: skip


class Embedding(Module):
    """A row of the weight for each index.

    To tie it to an output layer, let both hold one parameter: `head.weight = embedding.weight`.

    >>> from numus import nn
    >>> nn.Embedding(10, 3)(nm.asarray([[1, 2, 9], [0, 0, 1]])).shape
    (2, 3, 3)

    Args:
        num_embeddings, embedding_dim: how many rows there are, and how long they are.
        padding_idx: a row that starts as zeros and gets no gradient.
        max_norm: rows that are looked up are shortened to this `norm_type`-norm first, in place.
        scale_grad_by_freq: gradients of rows are divided by how often they were looked up.
        sparse: taken for PyTorch's sake; gradients are dense.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ShapeError(
                f"Embedding: padding_idx {padding_idx} is not one of {num_embeddings} rows"
            )
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.sparse = sparse
        shape = (num_embeddings, embedding_dim)
        self.weight = Parameter(nm.empty(shape, dtype=dtype or nm.float32, device=device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw first values: standard normal."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with nm.no_grad():
                self.weight[self.padding_idx] = 0.0

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Any,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Embedding:
        """An embedding with these rows, learned further or not."""
        rows = nm.asarray(embeddings)
        count, width = rows.shape
        options = (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        out = cls(count, width, *options, dtype=rows.dtype)
        out.weight = Parameter(rows, requires_grad=not freeze)
        return out

    def forward(self, indices: Any) -> Tensor:
        return F.embedding(indices, self.weight, **self._options())

    def _options(self) -> dict[str, Any]:
        names = ("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq")
        return {name: getattr(self, name) for name in names}

    def extra_repr(self) -> str:
        shown = f"{self.num_embeddings}, {self.embedding_dim}"
        for name in ("padding_idx", "max_norm"):
            if getattr(self, name) is not None:
                shown += f", {name}={getattr(self, name)}"
        return shown + ", scale_grad_by_freq=True" * self.scale_grad_by_freq


class EmbeddingBag(Embedding):
    """The sum, mean or largest of the rows in each bag of indices; see `functional.embedding_bag`.

    >>> from numus import nn
    >>> nn.EmbeddingBag(10, 3)(nm.asarray([1, 2, 9, 0]), offsets=nm.asarray([0, 3])).shape
    (2, 3)

    Args:
        num_embeddings, embedding_dim, max_norm, norm_type, scale_grad_by_freq, sparse: as of
            `Embedding`.
        mode: "sum", "mean" or "max".
        include_last_offset: the last offset is where the last bag ends.
        padding_idx: a row that starts as zeros, gets no gradient, and counts in no bag.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        options = (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        super().__init__(num_embeddings, embedding_dim, *options, device=device, dtype=dtype)
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(self, indices: Any, offsets: Any = None, per_sample_weights: Any = None) -> Tensor:
        return F.embedding_bag(
            *(indices, self.weight, offsets),
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            **self._options(),
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode}"


# -- positions ------------------------------------------------------------------------------------


class _PositionalEncoding(Module):
    """A row for each position, added to x (batch, length, size)."""

    dropout: float

    def _table(self) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Any, offset: int = 0) -> Tensor:
        """x with its positions, which begin at `offset`."""
        table = self._table()
        length = x.shape[-2]
        if offset + length > table.shape[0]:
            raise ShapeError(
                f"{type(self).__name__}: positions {offset} to {offset + length - 1} go beyond the "
                f"{table.shape[0]} there are"
            )
        rows = table[offset : offset + length].astype(x.dtype, copy=False)
        return F.dropout(x + rows, self.dropout, self.training)

    def extra_repr(self) -> str:
        length, width = self._table().shape
        return f"{length}, {width}, dropout={self.dropout}"


class LearnedPositionalEncoding(_PositionalEncoding):
    """A learned vector for each of max_len positions, added."""

    def __init__(self, max_len: int, d_model: int, dropout: float = 0.0, dtype: Any = None) -> None:
        self.dropout = dropout
        self.weight = Parameter(nm.empty((max_len, d_model), dtype=dtype or nm.float32))
        init.normal_(self.weight, 0.0, 0.02)

    def _table(self) -> Tensor:
        return self.weight


class SinusoidalPositionalEncoding(_PositionalEncoding):
    """Sines and cosines of wavelengths from 2π to 2π * base, added."""

    def __init__(
        self, d_model: int, max_len: int = 5000, dropout: float = 0.0, base: float = 10000.0
    ) -> None:
        self.dropout = dropout
        rates = nm.exp(nm.arange(0, d_model, 2, dtype=nm.float64) * (-math.log(base) / d_model))
        angles = nm.arange(max_len, dtype=nm.float64)[:, None] * rates
        pairs = nm.stack([nm.sin(angles), nm.cos(angles)], axis=-1)
        table = pairs.reshape((max_len, -1))[:, :d_model]
        self.table: Tensor
        self.register_buffer("table", table.astype(nm.float32), persistent=False)

    def _table(self) -> Tensor:
        return self.table


@layer
class RotaryEmbedding(FunctionLayer):
    """Queries and keys (..., length, size) rotated by angles proportional to position (RoFormer).

    Args:
        dim: the number of elements that are rotated; all by default.
        interleaved: pairs are adjacent; otherwise element i goes with element i + dim / 2.
    """

    dim: int | None = None
    base: float = 10000.0
    interleaved: bool = False

    def forward(self, x: Any, positions: Any = None, offset: int = 0) -> Tensor:
        if positions is None:
            positions = nm.arange(x.shape[-2], device=x.device) + offset
        return F.rotary_embedding(x, positions, **self._options())
