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
        return F.embedding(indices, self.weight, self.padding_idx, **self._how())

    def _how(self) -> dict[str, Any]:
        return {
            "max_norm": self.max_norm,
            "norm_type": self.norm_type,
            "scale_grad_by_freq": self.scale_grad_by_freq,
        }

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
            padding_idx=self.padding_idx,
            **self._how(),
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode}"
