"""Where a token stands: learned, sinusoidal or rotary positions."""

from __future__ import annotations

import math
from typing import Any

import numus as nm
from numus.errors import ShapeError
from numus.nn import functional as F
from numus.nn import init
from numus.nn.module import Module
from numus.nn.parameter import Parameter
from numus.tensor import Tensor

__all__ = ["LearnedPositionalEncoding", "RotaryEmbedding", "SinusoidalPositionalEncoding"]


class _Added(Module):
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


class LearnedPositionalEncoding(_Added):
    """A learned vector for each of max_len positions, added."""

    def __init__(self, max_len: int, d_model: int, dropout: float = 0.0, dtype: Any = None) -> None:
        self.dropout = dropout
        self.weight = Parameter(nm.empty((max_len, d_model), dtype=dtype or nm.float32))
        init.normal_(self.weight, 0.0, 0.02)

    def _table(self) -> Tensor:
        return self.weight


class SinusoidalPositionalEncoding(_Added):
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


class RotaryEmbedding(Module):
    """Queries and keys (..., length, size) turned by angles that grow with position.

    Args:
        dim: how many elements are turned; all, unless it is given.
        interleaved: pairs are neighbours; otherwise element i goes with element i + dim / 2.
    """

    def __init__(
        self, dim: int | None = None, base: float = 10000.0, interleaved: bool = False
    ) -> None:
        self.dim = dim
        self.base = base
        self.interleaved = interleaved

    def forward(self, x: Any, positions: Any = None, offset: int = 0) -> Tensor:
        if positions is None:
            positions = nm.arange(x.shape[-2], device=x.device) + offset
        options: dict[str, Any] = {"dim": self.dim, "interleaved": self.interleaved}
        return F.rotary_embedding(x, positions, base=self.base, **options)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, base={self.base}, interleaved={self.interleaved}"
