"""Graph attention: softmaxes over the edges that arrive at a node.

Edges have a number per head; what nodes have, edges × heads × channels of it, is never stored:
scores are gathers that their kernels read through, results products with the attention matrix.
"""

from __future__ import annotations

import math
from typing import Any

import numus as nm
from numus import nn
from numus.graphs.edges import EdgeIndex
from numus.graphs.layers.base import (
    Channels,
    both,
    edge_features,
    glorot_,
    glorot_linear,
    looped_features,
    operands,
    zero_bias,
)
from numus.graphs.messages import row_softmax
from numus.nn import functional as F
from numus.sparse.entries import at_columns, at_rows, heads_product, row_sums
from numus.tensor import Tensor

Answer = Any  # a tensor, or with attention weights (tensor, (edges, weights))


class _Attention(nn.Module):
    """What the attention layers share: the end of `forward`."""

    heads: int
    in_channels: Channels
    out_channels: int
    concat: bool
    dropout: float

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], self.heads, self.out_channels)

    def _weights(self, edges: EdgeIndex, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Attention, and attention some of which is dropped."""
        alpha = row_softmax(edges.pattern, logits)
        return alpha, F.dropout(alpha, self.dropout, self.training) if self.dropout else alpha

    def _joined(self, found: Tensor) -> Tensor:
        if self.concat:
            return found.reshape(found.shape[0], self.heads * self.out_channels)
        return found.mean(1)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"


class GATConv(_Attention):
    """Attention by a score of the source and one of the target (Veličković et al. 2018).

    >>> from numus import graphs
    >>> edges = graphs.EdgeIndex([[0, 1, 2], [1, 2, 0]], 3)
    >>> graphs.GATConv(4, 2, heads=3)(nm.ones((3, 4)), edges).shape
    (3, 6)
    """

    def __init__(
        self, in_channels: Channels, out_channels: int, heads: int = 1, concat: bool = True,
        negative_slope: float = 0.2, dropout: float = 0.0, add_self_loops: bool = True,
        edge_dim: int | None = None, fill_value: Any = "mean", bias: bool = True,
        residual: bool = False,
    ) -> None:  # fmt: skip
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.negative_slope, self.dropout = concat, negative_slope, dropout
        self.add_self_loops, self.edge_dim, self.fill_value = add_self_loops, edge_dim, fill_value
        wide, total = heads * out_channels, out_channels * (heads if concat else 1)
        self.lin = self.lin_src = self.lin_dst = None
        sources, targets = both(in_channels)
        if isinstance(in_channels, int):
            self.lin = glorot_linear(sources, wide)
        else:
            self.lin_src, self.lin_dst = glorot_linear(sources, wide), glorot_linear(targets, wide)
        shape = (1, heads, out_channels)
        self.att_src, self.att_dst = (nn.Parameter(nm.empty(shape)) for _ in range(2))
        self.lin_edge = None if edge_dim is None else glorot_linear(edge_dim, wide)
        self.att_edge = None if edge_dim is None else nn.Parameter(nm.empty(shape))
        for parameter in (self.att_src, self.att_dst, self.att_edge):
            glorot_(parameter)
        self.res = glorot_linear(targets, total) if residual else None
        self.bias = zero_bias(total, bias)

    def forward(
        self, x: Any, edge_index: Any, edge_attr: Any = None,
        size: tuple[int, int] | None = None, return_attention_weights: bool | None = None,
    ) -> Answer:  # fmt: skip
        edges, source, target = operands(x, edge_index, "GATConv", size)
        given = None
        if edge_attr is not None and self.lin_edge is not None:
            given = edge_features(edges, edge_attr, "GATConv", source)
        if self.add_self_loops:
            edges, given = looped_features(edges, given, self.fill_value)
        first, second = self.lin or self.lin_src, self.lin or self.lin_dst
        assert first is not None
        assert second is not None
        near = self._heads(first(source))
        same = self.lin is not None and source is target
        far = near if same else None if target is None else self._heads(second(target))
        pattern = edges.pattern
        logits = at_columns(pattern, (near * self.att_src).sum(-1))
        if far is not None:
            logits = logits + at_rows(pattern, (far * self.att_dst).sum(-1))
        if given is not None and self.lin_edge is not None:
            own = (self._heads(self.lin_edge(given)) * self.att_edge).sum(-1)
            logits = logits + edges.by_rows(own)
        alpha, kept = self._weights(edges, nm.leaky_relu(logits, self.negative_slope))
        found = self._joined(heads_product(pattern, kept, near))
        if self.res is not None and target is not None:
            found = found + self.res(target)
        found = found if self.bias is None else found + self.bias
        return (found, (edges, edges.by_edges(alpha))) if return_attention_weights else found


class GATv2Conv(_Attention):
    """Attention by a score of both together (Brody, Alon & Yahav 2022).

    >>> from numus import graphs
    >>> edges = graphs.EdgeIndex([[0, 1, 2], [1, 2, 0]], 3)
    >>> graphs.GATv2Conv(4, 2, heads=3)(nm.ones((3, 4)), edges).shape
    (3, 6)
    """

    def __init__(
        self, in_channels: Channels, out_channels: int, heads: int = 1, concat: bool = True,
        negative_slope: float = 0.2, dropout: float = 0.0, add_self_loops: bool = True,
        edge_dim: int | None = None, fill_value: Any = "mean", bias: bool = True,
        share_weights: bool = False, residual: bool = False,
    ) -> None:  # fmt: skip
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.negative_slope, self.dropout = concat, negative_slope, dropout
        self.add_self_loops, self.edge_dim, self.fill_value = add_self_loops, edge_dim, fill_value
        self.share_weights = share_weights
        wide, total = heads * out_channels, out_channels * (heads if concat else 1)
        sources, targets = both(in_channels)
        self.att = nn.Parameter(nm.empty((1, heads, out_channels)))
        glorot_(self.att)
        self.lin_l = glorot_linear(sources, wide, bias)
        self.lin_r = self.lin_l if share_weights else glorot_linear(targets, wide, bias)
        self.lin_edge = None if edge_dim is None else glorot_linear(edge_dim, wide)
        self.res = glorot_linear(targets, total) if residual else None
        self.bias = zero_bias(total, bias)

    def forward(
        self, x: Any, edge_index: Any, edge_attr: Any = None,
        return_attention_weights: bool | None = None,
    ) -> Answer:  # fmt: skip
        edges, source, target = operands(x, edge_index, "GATv2Conv")
        if target is None:
            raise ValueError("GATv2Conv: takes features of sources and targets")
        given = None
        if edge_attr is not None and self.lin_edge is not None:
            given = edge_features(edges, edge_attr, "GATv2Conv", source)
        if self.add_self_loops:
            edges, given = looped_features(edges, given, self.fill_value)
        near = self._heads(self.lin_l(source))
        same = self.share_weights and source is target
        far = near if same else self._heads(self.lin_r(target))
        pattern = edges.pattern
        joined = at_columns(pattern, near) + at_rows(pattern, far)
        if given is not None and self.lin_edge is not None:
            joined = joined + edges.by_rows(self._heads(self.lin_edge(given)))
        logits = (nm.leaky_relu(joined, self.negative_slope) * self.att).sum(-1)
        alpha, kept = self._weights(edges, logits)
        found = self._joined(heads_product(pattern, kept, near))
        found = found if self.res is None else found + self.res(target)
        found = found if self.bias is None else found + self.bias
        return (found, (edges, edges.by_edges(alpha))) if return_attention_weights else found


class TransformerConv(_Attention):
    """Dot-product attention along edges, and a gated residual (Shi et al. 2021).

    >>> from numus import graphs
    >>> edges = graphs.EdgeIndex([[0, 1, 2], [1, 2, 0]], 3)
    >>> graphs.TransformerConv(4, 2, heads=3)(nm.ones((3, 4)), edges).shape
    (3, 6)
    """

    def __init__(
        self, in_channels: Channels, out_channels: int, heads: int = 1, concat: bool = True,
        beta: bool = False, dropout: float = 0.0, edge_dim: int | None = None, bias: bool = True,
        root_weight: bool = True,
    ) -> None:  # fmt: skip
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.dropout, self.edge_dim = concat, dropout, edge_dim
        self.beta, self.root_weight = beta and root_weight, root_weight
        wide, total = heads * out_channels, out_channels * (heads if concat else 1)
        sources, targets = both(in_channels)
        self.lin_key = nn.Linear(sources, wide, bias=bias)
        self.lin_query = nn.Linear(targets, wide, bias=bias)
        self.lin_value = nn.Linear(sources, wide, bias=bias)
        self.lin_edge = None if edge_dim is None else nn.Linear(edge_dim, wide, bias=False)
        self.lin_skip = nn.Linear(targets, total, bias=bias)
        self.lin_beta = nn.Linear(3 * total, 1, bias=False) if self.beta else None

    def forward(
        self, x: Any, edge_index: Any, edge_attr: Any = None,
        return_attention_weights: bool | None = None,
    ) -> Answer:  # fmt: skip
        edges, source, target = operands(x, edge_index, "TransformerConv")
        if target is None:
            raise ValueError("TransformerConv: takes features of sources and targets")
        pattern, own = edges.pattern, None
        query, key = self._heads(self.lin_query(target)), self._heads(self.lin_key(source))
        keys = at_columns(pattern, key)
        if edge_attr is not None and self.lin_edge is not None:
            given = edge_features(edges, edge_attr, "TransformerConv", source)
            own = edges.by_rows(self._heads(self.lin_edge(given)))
            keys = keys + own
        logits = (at_rows(pattern, query) * keys).sum(-1) / math.sqrt(self.out_channels)
        alpha, kept = self._weights(edges, logits)
        out = heads_product(pattern, kept, self._heads(self.lin_value(source)))
        if own is not None:
            out = out + row_sums(pattern, own * kept[:, :, None])
        found = self._joined(out)
        if self.root_weight:
            root = self.lin_skip(target)
            if self.lin_beta is not None:
                gate = nm.sigmoid(self.lin_beta(nm.concat([found, root, found - root], axis=-1)))
                found = gate * root + (1 - gate) * found
            else:
                found = found + root
        return (found, (edges, edges.by_edges(alpha))) if return_attention_weights else found
