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

__all__ = ["Embedding", "EmbeddingBag"]


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


class EmbeddingBag(Embedding):
    """The sum, mean or largest of the rows in each bag of indices; see `functional.embedding_bag`.

    Args:
        mode: "sum", "mean" or "max".
        include_last_offset: the last offset is where the last bag ends.
        padding_idx: a row that starts as zeros, gets no gradient, and counts in no bag.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mode: str = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx, device, dtype)
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(self, indices: Any, offsets: Any = None, per_sample_weights: Any = None) -> Tensor:
        return F.embedding_bag(
            *(indices, self.weight, offsets),
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode}"
