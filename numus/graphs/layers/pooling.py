"""Pools of the nodes of each graph of a batch, and top-k pooling (Gao & Ji 2019)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import numus as nm
from numus import nn
from numus.errors import ShapeError
from numus.evaluation.evaluate import is_known
from numus.graphs.edges import EdgeIndex, as_edges
from numus.graphs.graph import Graph
from numus.graphs.messages import reduced, row_softmax
from numus.graphs.operators import subgraph
from numus.nn import init
from numus.sparse.pattern import Array
from numus.tensor import Tensor


def _members(x: Tensor, batch: Any, size: int | None, op: str) -> EdgeIndex:
    """Edges from nodes to their graphs."""
    nodes = x.shape[0]
    if isinstance(batch, EdgeIndex):
        return batch
    if isinstance(batch, Graph):
        size = size or batch.num_graphs
        batch = batch.batch
    owner = _owners(batch, nodes, op)
    count = (int(owner.max(initial=-1)) + 1 if batch is not None else 1) if size is None else size
    return EdgeIndex(np.stack([np.arange(nodes), owner]), (nodes, count))


def _owners(batch: Any, nodes: int, op: str) -> Array:
    if batch is None:
        return np.zeros(nodes, np.int64)
    if isinstance(batch, Tensor):
        if not is_known(batch._node):
            raise ShapeError(f"{op}: the graphs of nodes are part of the structure, and static")
        batch = batch.numpy()
    owner = np.asarray(batch, np.int64)
    if owner.shape != (nodes,):
        raise ShapeError(f"{op}: takes the graph of each of {nodes} nodes, not {owner.shape}")
    return owner


def _pool(x: Any, batch: Any, size: int | None, op: str, reduce: str) -> Tensor:
    x = nm.asarray(x)
    return reduced(_members(x, batch, size, op).pattern, None, x, reduce)


def global_add_pool(x: Any, batch: Any = None, size: int | None = None) -> Tensor:
    """The sum of the nodes of each graph.

    Args:
        x: (nodes, channels).
        batch: the graph of each node, or a batch of graphs; None: all are of one.
        size: the number of graphs.

    >>> from numus import graphs
    >>> graphs.global_add_pool(nm.asarray([[1.0], [2.0], [4.0]]), [0, 0, 1]).tolist()
    [[3.0], [4.0]]
    """
    return _pool(x, batch, size, "global_add_pool", "sum")


def global_mean_pool(x: Any, batch: Any = None, size: int | None = None) -> Tensor:
    """The mean of the nodes of each graph; arguments as of `global_add_pool`.

    >>> from numus import graphs
    >>> graphs.global_mean_pool(nm.asarray([[1.0], [2.0], [4.0]]), [0, 0, 1]).tolist()
    [[1.5], [4.0]]
    """
    return _pool(x, batch, size, "global_mean_pool", "mean")


def global_max_pool(x: Any, batch: Any = None, size: int | None = None) -> Tensor:
    """The largest element of each channel of each graph; arguments as of `global_add_pool`.

    >>> from numus import graphs
    >>> graphs.global_max_pool(nm.asarray([[1.0], [2.0], [4.0]]), [0, 0, 1]).tolist()
    [[2.0], [4.0]]
    """
    return _pool(x, batch, size, "global_max_pool", "max")


class _Select(nn.Module):
    """The vector that nodes are scored by."""

    def __init__(self, in_channels: int) -> None:
        self.weight = nn.Parameter(nm.empty((1, in_channels)))
        bound = 1 / math.sqrt(in_channels)
        init.uniform_(self.weight, -bound, bound)


class TopKPooling(nn.Module):
    """The nodes of highest score of each graph, and the edges among them (Gao & Ji 2019).

    Which nodes stay depends on values: it cannot be traced by `nm.jit`.

    Args:
        in_channels: of nodes.
        ratio: the share of nodes to keep, or, as an integer, their number.
        min_score: keep the nodes whose softmax is above it, instead.
        multiplier: of what is kept.
        nonlinearity: of scores: a function, or the name of one.

    >>> from numus import graphs
    >>> pool = graphs.TopKPooling(2, ratio=0.5)
    >>> x, edges, *_ = pool(nm.ones((4, 2)), [[0, 1, 2], [1, 2, 3]])
    >>> x.shape, edges
    ((2, 2), EdgeIndex(num_nodes=2, num_edges=1))
    """

    def __init__(
        self, in_channels: int, ratio: float = 0.5, min_score: float | None = None,
        multiplier: float = 1.0, nonlinearity: str | Callable[[Tensor], Tensor] = "tanh",
    ) -> None:  # fmt: skip
        self.in_channels, self.ratio, self.min_score = in_channels, ratio, min_score
        self.multiplier = multiplier
        self.act: Callable[[Tensor], Tensor] = (
            getattr(nm, nonlinearity) if isinstance(nonlinearity, str) else nonlinearity
        )
        self.select = _Select(in_channels)

    def forward(
        self, x: Any, edge_index: Any, edge_attr: Any = None, batch: Any = None, attn: Any = None
    ) -> tuple[Tensor, EdgeIndex, Tensor | None, Tensor, Tensor, Tensor]:
        """Features, edges, their features, graphs of nodes, which nodes are kept, their scores."""
        x = nm.asarray(x)
        if not is_known(x._node):
            raise ShapeError("TopKPooling: which nodes stay depends on values: it is not traced")
        edges = as_edges(edge_index, x.shape[0])
        owner = _owners(
            batch.batch if isinstance(batch, Graph) else batch, x.shape[0], "TopKPooling"
        )
        weight = self.select.weight
        seen = x if attn is None else nm.asarray(attn)
        raw = (seen * weight).sum(-1)
        if self.min_score is None:
            score = self.act(raw / nm.sqrt((weight * weight).sum()))
        else:
            members = _members(x, owner, None, "TopKPooling")
            score = members.by_edges(row_softmax(members.pattern, members.by_rows(raw[:, None])))[
                :, 0
            ]
        kept = self._kept(nm.detach(score).numpy(), owner)
        where = nm.asarray(kept, device=x.device)
        gate = nm.take(score, where, axis=0)
        found = nm.take(x, where, axis=0) * gate[:, None]
        found = found if self.multiplier == 1 else self.multiplier * found
        among, of = subgraph(kept, edges)
        given = None
        if edge_attr is not None:
            given = nm.take(nm.asarray(edge_attr), nm.asarray(of, device=x.device), axis=0)
        return found, among, given, nm.asarray(owner[kept], device=x.device), where, gate

    def _kept(self, score: Array, owner: Array) -> Array:
        count = int(owner.max(initial=-1)) + 1
        if self.min_score is not None:
            best = np.full(count, -np.inf)
            np.maximum.at(best, owner, score)
            return np.flatnonzero(score > np.minimum(best[owner] - 1e-7, self.min_score))
        sizes = np.bincount(owner, minlength=count)
        if self.ratio >= 1:
            wanted = np.full(count, int(self.ratio))
        else:
            wanted = np.ceil(np.float32(self.ratio) * sizes.astype(np.float32)).astype(np.int64)
        order = np.lexsort((-score, owner))
        rank = np.arange(owner.size) - (np.cumsum(sizes) - sizes)[owner[order]]
        return order[rank < wanted[owner[order]]]

    def extra_repr(self) -> str:
        how = f"ratio={self.ratio}" if self.min_score is None else f"min_score={self.min_score}"
        return f"{self.in_channels}, {how}, multiplier={self.multiplier}"
