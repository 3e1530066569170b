"""Vocabulary parallelism (Megatron-LM, Shoeybi et al. 2019): each rank has the rows of the
embedding, and computes the scores, of some of the tokens.

The cross entropy of such scores needs their maximum, the sum of exponentials and the score of the
target: three numbers per token travel instead of a score for each token of the vocabulary.
"""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.distributed.collectives import all_reduce, reduce_scatter
from numus.distributed.groups import Group, world
from numus.distributed.parallel.linear import divided
from numus.distributed.parallel.regions import leave
from numus.distributed.parallel.shards import Shard
from numus.errors import ShapeError
from numus.nn import functional as F
from numus.nn.layers.embedding import Embedding
from numus.nn.module import Module
from numus.nn.parameter import Parameter
from numus.tensor import Tensor

__all__ = ["VocabParallelEmbedding", "vocab_parallel_cross_entropy"]


class VocabParallelEmbedding(Module):
    """`nn.Embedding` whose rows are divided among ranks.

    Args:
        group: the ranks, such as `mesh.group("tensor")`; all by default.
        sequence: what comes out is cut along the sequence, axis -2.
        layer: an `Embedding` to take the values of.

    >>> layer = nm.distributed.parallel.VocabParallelEmbedding(10, 3)
    >>> layer(nm.asarray([[1, 2, 9]])).shape
    (1, 3, 3)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        group: Group | None = None,
        sequence: bool = False,
        layer: Embedding | None = None,
    ) -> None:
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self._group = world() if group is None else group
        self._sequence = sequence
        rows = divided(num_embeddings, self._group, "VocabParallelEmbedding: num_embeddings")
        self._first = self._group.rank * rows
        self._rows = rows
        whole = (layer or Embedding(num_embeddings, embedding_dim)).weight
        self.shards = {"weight": (Shard(self._group, 0),)}
        with nm.no_grad():
            part = self.shards["weight"][0].of(whole.detach(), "VocabParallelEmbedding: weight")
            self.weight = Parameter(part.clone(), whole.requires_grad)

    def forward(self, indices: Any) -> Tensor:
        at = nm.asarray(indices) - self._first
        mine = (at >= 0) & (at < self._rows)
        rows = F.embedding(nm.where(mine, at, 0), self.weight)
        rows = nm.where(mine[..., None], rows, 0.0)
        if self._sequence:
            return reduce_scatter(rows, axis=-2, group=self._group)
        return leave(rows, group=self._group)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, ranks={self._group.size}"


def vocab_parallel_cross_entropy(
    input: Any,
    target: Any,
    ignore_index: int = -100,
    reduction: str = "mean",
    *,
    group: Group | None = None,
) -> Tensor:
    """The cross entropy of scores (..., C / ranks), of which each rank has some classes, against
    class indices (...) that all ranks know; the same on all of them.

    Args:
        ignore_index: a class index that does not count.
        reduction: "mean", "sum" or "none".
        group: the ranks, such as `mesh.group("tensor")`; all by default.

    >>> loss = nm.distributed.parallel.vocab_parallel_cross_entropy
    >>> round(loss(nm.zeros((2, 4)), nm.asarray([0, 3])).item(), 4)
    1.3863
    """
    op = "vocab_parallel_cross_entropy"
    group = world() if group is None else group
    scores, classes = nm.asarray(input), nm.asarray(target)
    if scores.shape[:-1] != classes.shape:
        raise ShapeError(
            f"{op}: the target's shape is {classes.shape}, scores of shape {scores.shape} ask for "
            f"{scores.shape[:-1]}: classes are the last axis"
        )
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{op}: reduction {reduction!r} must be one of mean, sum, none")
    wide = scores.astype(nm.float32) if scores.dtype.itemsize < 4 else scores
    top = all_reduce(nm.max(wide.detach(), axis=-1), "max", group=group)
    shifted = wide - top[..., None]
    total = leave(nm.sum(nm.exp(shifted), axis=-1), group=group)
    own = scores.shape[-1]
    at = classes - group.rank * own
    hit = at[..., None] == nm.arange(own, device=scores.device)
    score = leave(nm.sum(nm.where(hit, shifted, 0.0), axis=-1), group=group)
    counts = classes != ignore_index
    loss = nm.where(counts, nm.log(total) - score, 0.0)
    if reduction == "none":
        return loss
    if reduction == "sum":
        return nm.sum(loss)
    return nm.sum(loss) / nm.sum(counts.astype(loss.dtype))
