"""Graph convolutions whose messages are neighbours times numbers: products with an adjacency.

A linear map and a linear aggregation commute, so each layer does first what leaves fewer columns
to aggregate; of equal ones the aggregation, whose derivative is then not needed for data.
"""

from __future__ import annotations

from typing import Any

import numus as nm
from numus import nn
from numus.errors import ShapeError
from numus.graphs.layers.base import (
    Channels,
    both,
    edge_features,
    glorot_linear,
    normalized,
    operands,
    zero_bias,
)
from numus.graphs.messages import reduced, reduced_entries
from numus.graphs.operators import laplacian_parts
from numus.nn import functional as F
from numus.sparse.entries import at_columns
from numus.tensor import Tensor


class GCNConv(nn.Module):
    """D^(−1/2) (A + I) D^(−1/2) X W (Kipf & Welling 2017); PyTorch Geometric's parameters.

    `cached` changes nothing: structures are kept by the `EdgeIndex` or `Graph`.

    >>> from numus import graphs
    >>> edges = graphs.EdgeIndex([[0, 1, 2], [1, 2, 0]], 3)
    >>> graphs.GCNConv(4, 2)(nm.ones((3, 4)), edges).shape
    (3, 2)
    """

    def __init__(
        self, in_channels: int, out_channels: int, improved: bool = False, cached: bool = False,
        add_self_loops: bool | None = None, normalize: bool = True, bias: bool = True,
    ) -> None:  # fmt: skip
        self.in_channels, self.out_channels = in_channels, out_channels
        self.improved, self.cached, self.normalize = improved, cached, normalize
        self.add_self_loops = normalize if add_self_loops is None else add_self_loops
        if self.add_self_loops and not normalize:
            raise ValueError("GCNConv: self loops are added by the normalisation, which is off")
        self.lin = glorot_linear(in_channels, out_channels)
        self.bias = zero_bias(out_channels, bias)

    def forward(self, x: Any, edge_index: Any, edge_weight: Any = None) -> Tensor:
        edges, x, _ = operands(x, edge_index, "GCNConv")
        apply = normalized(
            *(edges, edge_weight, x),
            loops=self.add_self_loops,
            improved=self.improved,
            normalize=self.normalize,
        )
        first = self.out_channels < self.in_channels
        found = apply(self.lin(x)) if first else self.lin(apply(x))
        return found if self.bias is None else found + self.bias

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}"


class SAGEConv(nn.Module):
    """W₁ x + W₂ · (mean, maximum or sum of neighbours) (Hamilton, Ying & Leskovec 2017).

    >>> from numus import graphs
    >>> edges = graphs.EdgeIndex([[0, 1, 2], [1, 2, 0]], 3)
    >>> graphs.SAGEConv(4, 2)(nm.ones((3, 4)), edges).shape
    (3, 2)
    """

    def __init__(
        self, in_channels: Channels, out_channels: int, aggr: str = "mean",
        normalize: bool = False, root_weight: bool = True, project: bool = False,
        bias: bool = True,
    ) -> None:  # fmt: skip
        sources, targets = both(in_channels)
        self.in_channels, self.out_channels, self.aggr = in_channels, out_channels, aggr
        self.normalize, self.root_weight = normalize, root_weight
        self.lin = nn.Linear(sources, sources) if project else None
        self.lin_l = nn.Linear(sources, out_channels, bias=bias)
        self.lin_r = nn.Linear(targets, out_channels, bias=False) if root_weight else None

    def forward(self, x: Any, edge_index: Any, size: tuple[int, int] | None = None) -> Tensor:
        edges, source, target = operands(x, edge_index, "SAGEConv", size)
        if self.lin is not None:
            source = nm.relu(self.lin(source))
        pattern, weight, bias = edges.pattern, self.lin_l.weight, self.lin_l.bias
        linear = self.aggr in ("mean", "sum", "add")
        if linear and self.out_channels < source.shape[1]:
            found = reduced(pattern, None, F.linear(source, weight), self.aggr)
            found = found if bias is None else found + bias
        else:
            found = self.lin_l(reduced(pattern, None, source, self.aggr))
        if self.lin_r is not None and target is not None:
            found = found + self.lin_r(target)
        return F.normalize(found, dim=-1) if self.normalize else found

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, aggr={self.aggr}"


class GINConv(nn.Module):
    """nn((1 + ε) x + sum of neighbours) (Xu et al. 2019).

    >>> from numus import graphs, nn
    >>> edges = graphs.EdgeIndex([[0, 1, 2], [1, 2, 0]], 3)
    >>> graphs.GINConv(nn.Linear(4, 2))(nm.ones((3, 4)), edges).shape
    (3, 2)
    """

    eps: Tensor

    def __init__(self, nn: Any, eps: float = 0.0, train_eps: bool = False) -> None:
        self.nn = nn
        self.initial_eps = eps
        _set_eps(self, eps, train_eps)

    def forward(self, x: Any, edge_index: Any, size: tuple[int, int] | None = None) -> Tensor:
        edges, source, target = operands(x, edge_index, type(self).__name__, size)
        found = reduced(edges.pattern, None, source, "sum")
        if target is not None:
            found = found + (1 + self.eps) * target
        out: Tensor = self.nn(found)
        return out


def _set_eps(layer: GINConv | GINEConv, eps: float, train: bool) -> None:
    value = nm.full((1,), eps, dtype=nm.float32)
    if train:
        layer.eps = nn.Parameter(value)
    else:
        layer.register_buffer("eps", value)


class GINEConv(nn.Module):
    """nn((1 + ε) x + sum of relu(neighbour + edge)) (Hu et al. 2020).

    >>> from numus import graphs, nn
    >>> edges = graphs.EdgeIndex([[0, 1, 2], [1, 2, 0]], 3)
    >>> layer = graphs.GINEConv(nn.Linear(4, 2))
    >>> layer(nm.ones((3, 4)), edges, nm.ones((3, 4))).shape
    (3, 2)
    """

    eps: Tensor

    def __init__(
        self, nn: Any, eps: float = 0.0, train_eps: bool = False, edge_dim: int | None = None
    ) -> None:
        self.nn = nn
        self.initial_eps = eps
        _set_eps(self, eps, train_eps)
        self.lin = _edge_map(nn, edge_dim)

    def forward(
        self, x: Any, edge_index: Any, edge_attr: Any = None,
        size: tuple[int, int] | None = None,
    ) -> Tensor:  # fmt: skip
        edges, source, target = operands(x, edge_index, "GINEConv", size)
        if edge_attr is None:
            raise ValueError("GINEConv: takes features of edges")
        given = edge_features(edges, edge_attr, "GINEConv", source)
        given = given if self.lin is None else self.lin(given)
        if given.shape[1] != source.shape[1]:
            raise ShapeError(
                f"GINEConv: edges have {given.shape[1]} channels, nodes {source.shape[1]}; give "
                "edge_dim= to map them"
            )
        near = at_columns(edges.pattern, source)
        found = reduced_entries(edges.pattern, nm.relu(near + edges.by_rows(given)), "sum")
        if target is not None:
            found = found + (1 + self.eps) * target
        out: Tensor = self.nn(found)
        return out


def _edge_map(network: Any, edge_dim: int | None) -> nn.Linear | None:
    if edge_dim is None:
        return None
    first = next((m for m in network.modules() if hasattr(m, "in_features")), None)
    if first is None:
        raise ValueError("GINEConv: the network has no layer that tells its number of inputs")
    return nn.Linear(edge_dim, first.in_features)


class ChebConv(nn.Module):
    """Chebyshev polynomials of the scaled Laplacian (Defferrard, Bresson & Vandergheynst 2016).

    >>> from numus import graphs
    >>> edges = graphs.EdgeIndex([[0, 1, 2], [1, 2, 0]], 3)
    >>> graphs.ChebConv(4, 2, K=3)(nm.ones((3, 4)), edges).shape
    (3, 2)
    """

    def __init__(
        self, in_channels: int, out_channels: int, K: int, normalization: str | None = "sym",
        bias: bool = True,
    ) -> None:  # fmt: skip
        if K < 1:
            raise ValueError(f"ChebConv: K is the number of polynomials, not {K}")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.normalization = normalization
        self.lins = nn.ModuleList([glorot_linear(in_channels, out_channels) for _ in range(K)])
        self.bias = zero_bias(out_channels, bias)

    def forward(
        self, x: Any, edge_index: Any, edge_weight: Any = None, batch: Any = None,
        lambda_max: Any = None,
    ) -> Tensor:  # fmt: skip
        edges, x, _ = operands(x, edge_index, "ChebConv")
        edges, off, diagonal = laplacian_parts(edges, edge_weight, self.normalization)
        off, diagonal = (w.to(x.device).astype(x.dtype, copy=False) for w in (off, diagonal))
        if lambda_max is None:
            largest = nm.concat([off, diagonal]).max()
            by_edge = by_node = 2 * largest
        else:
            by_edge = by_node = nm.asarray(lambda_max, dtype=x.dtype, device=x.device)
            if batch is not None and by_edge.size > 1:
                by_node = nm.take(by_edge, nm.asarray(batch, device=x.device), axis=0)
                sources = nm.asarray(edges.numpy()[0], device=x.device)
                by_edge = nm.take(by_node, sources, axis=0)
        values = edges.by_rows(2 * off / by_edge)
        own = (2 * diagonal / by_node - 1)[:, None]

        def scaled(x: Tensor) -> Tensor:
            return reduced(edges.pattern, values, x, "sum") + own * x

        lins = list(self.lins)
        before, now = x, x
        out = lins[0](x)
        for k, lin in enumerate(lins[1:]):
            before, now = now, (scaled(now) if k == 0 else 2 * scaled(now) - before)
            out = out + lin(now)
        found: Tensor = out if self.bias is None else out + self.bias
        return found


class APPNP(nn.Module):
    """Personalised PageRank of predictions: K times (1 − α) Â z + α x (Gasteiger et al. 2019).

    >>> from numus import graphs
    >>> edges = graphs.EdgeIndex([[0, 1, 2], [1, 2, 0]], 3)
    >>> graphs.APPNP(K=2, alpha=0.1)(nm.ones((3, 4)), edges).shape
    (3, 4)
    """

    def __init__(
        self, K: int, alpha: float, dropout: float = 0.0, cached: bool = False,
        add_self_loops: bool = True, normalize: bool = True,
    ) -> None:  # fmt: skip
        self.K, self.alpha, self.dropout, self.cached = K, alpha, dropout, cached
        self.add_self_loops, self.normalize = add_self_loops, normalize

    def forward(self, x: Any, edge_index: Any, edge_weight: Any = None) -> Tensor:
        edges, x, _ = operands(x, edge_index, "APPNP")
        dropping = self.dropout > 0 and self.training
        z = x
        apply = normalized(
            *(edges, edge_weight, x), loops=self.add_self_loops, normalize=self.normalize
        )
        for _ in range(self.K):
            if dropping:  # of weights, so each step has its own
                kept = F.dropout(nm.ones((edges.num_edges,), dtype=x.dtype), self.dropout)
                weight = kept if edge_weight is None else kept * nm.asarray(edge_weight)
                apply = normalized(
                    *(edges, weight, x), loops=self.add_self_loops, normalize=self.normalize
                )
            z = (1 - self.alpha) * apply(z) + self.alpha * x
        return z
