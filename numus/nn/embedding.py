"""Embeddings: rows of a table by index."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.errors import ShapeError
from numus.nn import functional as F
from numus.nn import init
from numus.nn.module import Module
from numus.nn.parameter import Parameter
from numus.tensor import Tensor

__all__ = ["Embedding"]


class Embedding(Module):
    """A row of the weight for each index.

    To tie it to an output layer, let both hold one parameter: `head.weight = embedding.weight`.

    Args:
        padding_idx: a row that starts as zeros and gets no gradient.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
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
        cls, embeddings: Any, freeze: bool = True, padding_idx: int | None = None
    ) -> Embedding:
        """An embedding with these rows, learned further or not."""
        rows = nm.asarray(embeddings)
        count, width = rows.shape
        out = cls(count, width, padding_idx, dtype=rows.dtype)
        out.weight = Parameter(rows, requires_grad=not freeze)
        return out

    def forward(self, indices: Any) -> Tensor:
        return F.embedding(indices, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"
