"""Layers with a network on each edge, several aggregations, or relations: EdgeConv, PNA, RGCN."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import numus as nm
from numus import nn
from numus.errors import ShapeError
from numus.evaluation.evaluate import is_known
from numus.graphs.edges import EdgeIndex
from numus.graphs.layers.base import (
    Channels,
    both,
    edge_features,
    glorot_,
    operands,
    zero_bias,
)
from numus.graphs.messages import reduced, reduced_entries, row_counts
from numus.sparse.entries import at_columns, at_rows
from numus.sparse.pattern import Array, Pattern
from numus.tensor import Tensor


class EdgeConv(nn.Module):
    """A reduction of nn([x_i, x_j − x_i]) over neighbours j (Wang et al. 2019).

    >>> from numus import graphs, nn
    >>> edges = graphs.EdgeIndex([[0, 1, 2], [1, 2, 0]], 3)
    >>> graphs.EdgeConv(nn.Linear(8, 2))(nm.ones((3, 4)), edges).shape
    (3, 2)
    """

    def __init__(self, nn: Any, aggr: str = "max") -> None:
        self.nn, self.aggr = nn, aggr

    def forward(self, x: Any, edge_index: Any) -> Tensor:
        edges, source, target = operands(x, edge_index, "EdgeConv")
        if target is None:
            raise ValueError("EdgeConv: takes features of sources and targets")
        pattern = edges.pattern
        far = at_rows(pattern, target)
        messages = self.nn(nm.concat([far, at_columns(pattern, source) - far], axis=-1))
        return reduced_entries(pattern, messages, self.aggr)


# -- principal neighbourhood aggregation ----------------------------------------------------------


def _variance(pattern: Pattern, x: Tensor) -> Tensor:
    mean = reduced_entries(pattern, x, "mean")
    return reduced_entries(pattern, x * x, "mean") - mean * mean


def _deviation(pattern: Pattern, x: Tensor) -> Tensor:
    found = nm.sqrt(nm.clip(_variance(pattern, x), 1e-5, None))
    return nm.where(found <= math.sqrt(1e-5), nm.zeros_like(found), found)


AGGREGATORS: dict[str, Callable[[Pattern, Tensor], Tensor]] = {
    **{
        name: lambda pattern, x, name=name: reduced_entries(pattern, x, name)  # type: ignore[misc]
        for name in ("sum", "add", "mean", "max", "min")
    },
    "var": _variance,
    "std": _deviation,
}
SCALERS = ("identity", "amplification", "attenuation", "linear", "inverse_linear")


class _DegreeScaler(nn.Module):
    """Aggregations, each scaled by functions of the degree."""

    avg_deg_lin: Tensor
    avg_deg_log: Tensor

    def __init__(
        self, aggregators: Sequence[str], scalers: Sequence[str], deg: Any, train_norm: bool
    ) -> None:
        for given, known, what in (
            (aggregators, AGGREGATORS, "aggregator"), (scalers, SCALERS, "scaler")
        ):  # fmt: skip
            if unknown := [name for name in given if name not in known]:
                raise ValueError(f"PNAConv: {unknown[0]!r} is no {what}; there are {list(known)}")
        self.aggregators, self.scalers = tuple(aggregators), tuple(scalers)
        counts = np.asarray(deg.numpy() if isinstance(deg, Tensor) else deg, np.float64)
        steps = np.arange(counts.size)
        linear = (steps * counts).sum() / counts.sum()
        log = (np.log(steps + 1) * counts).sum() / counts.sum()
        for name, value in (("avg_deg_lin", linear), ("avg_deg_log", log)):
            tensor = nm.asarray([value], dtype=nm.float32)
            if train_norm:
                setattr(self, name, nn.Parameter(tensor))
            else:
                self.register_buffer(name, tensor)

    def forward(self, pattern: Pattern, messages: Tensor) -> Tensor:
        found = nm.concat([AGGREGATORS[a](pattern, messages) for a in self.aggregators], axis=-1)
        some = row_counts(pattern, found)[:, :, None]
        counts = nm.asarray(pattern.counts, dtype=found.dtype, device=found.device)[:, None, None]
        factors = {
            "identity": lambda: 1.0,
            "amplification": lambda: nm.log(counts + 1) / self.avg_deg_log,
            "attenuation": lambda: self.avg_deg_log / nm.log(some + 1),
            "linear": lambda: counts / self.avg_deg_lin,
            "inverse_linear": lambda: self.avg_deg_lin / some,
        }
        return nm.concat([found * factors[s]() for s in self.scalers], axis=-1)


class PNAConv(nn.Module):
    """Several aggregations of messages, scaled by degrees (Corso et al. 2020).

    Args:
        in_channels: of nodes.
        out_channels: of the result.
        aggregators: of "sum", "mean", "max", "min", "var", "std".
        scalers: of "identity", "amplification", "attenuation", "linear", "inverse_linear".
        deg: how many nodes of the training data have 0, 1, … neighbours.
        edge_dim: channels of edges, if they have any.
        towers: parallel networks, that share the output.
        pre_layers: linear layers before the aggregation.
        post_layers: linear layers after it.
        divide_input: give each tower a part of the channels.
        train_norm: learn the average degree.

    >>> from numus import graphs
    >>> edges = graphs.EdgeIndex([[0, 1, 2], [1, 2, 0]], 3)
    >>> graphs.PNAConv(4, 2, ["mean", "max"], ["identity"], [0, 3])(nm.ones((3, 4)), edges).shape
    (3, 2)
    """

    def __init__(
        self, in_channels: int, out_channels: int, aggregators: Sequence[str],
        scalers: Sequence[str], deg: Any, edge_dim: int | None = None, towers: int = 1,
        pre_layers: int = 1, post_layers: int = 1, divide_input: bool = False,
        train_norm: bool = False,
    ) -> None:  # fmt: skip
        if out_channels % towers or (divide_input and in_channels % towers):
            raise ShapeError(
                f"PNAConv: {towers} towers do not divide {in_channels} and {out_channels} channels"
            )
        self.in_channels, self.out_channels, self.towers = in_channels, out_channels, towers
        self.edge_dim, self.divide_input = edge_dim, divide_input
        self.F_in = in_channels // towers if divide_input else in_channels
        self.F_out = out_channels // towers
        self.aggr_module = _DegreeScaler(aggregators, scalers, deg, train_norm)
        self.edge_encoder = None if edge_dim is None else nn.Linear(edge_dim, self.F_in)
        inputs = (3 if edge_dim else 2) * self.F_in
        wide = (len(aggregators) * len(scalers) + 1) * self.F_in
        self.pre_nns = nn.ModuleList(
            [_layers(inputs, self.F_in, pre_layers) for _ in range(towers)]
        )
        self.post_nns = nn.ModuleList(
            [_layers(wide, self.F_out, post_layers) for _ in range(towers)]
        )
        self.lin = nn.Linear(out_channels, out_channels)

    def forward(self, x: Any, edge_index: Any, edge_attr: Any = None) -> Tensor:
        edges, x, _ = operands(x, edge_index, "PNAConv")
        pattern = edges.pattern
        parts = [
            x[:, i * self.F_in : (i + 1) * self.F_in] if self.divide_input else x
            for i in range(self.towers)
        ]
        own = []
        if self.edge_encoder is not None:
            if edge_attr is None:
                raise ValueError("PNAConv: with edge_dim it takes features of edges")
            given = self.edge_encoder(edge_features(edges, edge_attr, "PNAConv", x))
            own = [edges.by_rows(given)]
        messages = [
            net(nm.concat([at_rows(pattern, part), at_columns(pattern, part), *own], axis=-1))
            for part, net in zip(parts, self.pre_nns, strict=True)
        ]
        found = self.aggr_module(pattern, nm.stack(messages, axis=1))
        outs = [
            net(nm.concat([part, found[:, i]], axis=-1))
            for i, (part, net) in enumerate(zip(parts, self.post_nns, strict=True))
        ]
        return self.lin(nm.concat(outs, axis=1))

    def extra_repr(self) -> str:
        sizes = f"{self.in_channels}, {self.out_channels}"
        return f"{sizes}, towers={self.towers}, edge_dim={self.edge_dim}"


def _layers(inputs: int, outputs: int, count: int) -> nn.Sequential:
    made: list[nn.Module] = [nn.Linear(inputs, outputs)]
    for _ in range(count - 1):
        made += [nn.ReLU(), nn.Linear(outputs, outputs)]
    return nn.Sequential(*made)


# -- relations ------------------------------------------------------------------------------------


def relations(edges: EdgeIndex, edge_type: Any, count: int) -> list[EdgeIndex]:
    """The edges of each type; kept with the edges."""
    if isinstance(edge_type, Tensor):
        if not is_known(edge_type._node):
            raise ShapeError("RGCNConv: types of edges are part of the structure, which is static")
        edge_type = edge_type.numpy()
    types: Array = np.asarray(edge_type)
    if types.shape != (edges.num_edges,) or types.dtype.kind not in "iu":
        raise ShapeError(
            f"RGCNConv: takes an integer type for each of {edges.num_edges} edges, not "
            f"{types.dtype} of shape {types.shape}"
        )
    if types.size and (types.min() < 0 or types.max() >= count):
        raise ValueError(f"RGCNConv: edges have types up to {types.max()}, relations are {count}")
    kept = edges.__dict__.setdefault("relations", {})
    key = (count, types.tobytes())
    if key not in kept:
        kept[key] = [edges.selected(np.flatnonzero(types == i)) for i in range(count)]
    found: list[EdgeIndex] = kept[key]
    return found


class RGCNConv(nn.Module):
    """A weight for each relation, from bases or blocks if wanted (Schlichtkrull et al. 2018).

    >>> from numus import graphs
    >>> edges = graphs.EdgeIndex([[0, 1, 2], [1, 2, 0]], 3)
    >>> graphs.RGCNConv(4, 2, num_relations=2)(nm.ones((3, 4)), edges, [0, 1, 0]).shape
    (3, 2)
    """

    def __init__(
        self, in_channels: Channels, out_channels: int, num_relations: int,
        num_bases: int | None = None, num_blocks: int | None = None, aggr: str = "mean",
        root_weight: bool = True, is_sorted: bool = False, bias: bool = True,
    ) -> None:  # fmt: skip
        sources, targets = both(in_channels)
        if num_bases is not None and num_blocks is not None:
            raise ValueError("RGCNConv: takes bases or blocks, not both")
        if num_blocks is not None and (sources % num_blocks or out_channels % num_blocks):
            raise ShapeError(
                f"RGCNConv: {num_blocks} blocks do not divide {sources} and {out_channels}"
            )
        self.in_channels, self.out_channels = in_channels, out_channels
        self.num_relations, self.num_bases, self.num_blocks = num_relations, num_bases, num_blocks
        self.aggr, self.is_sorted = aggr, is_sorted
        shape: tuple[int, ...] = (num_bases or num_relations, sources, out_channels)
        if num_blocks is not None:
            shape = (num_relations, num_blocks, sources // num_blocks, out_channels // num_blocks)
        self.weight = nn.Parameter(nm.empty(shape))
        has = num_bases is not None
        self.comp = nn.Parameter(nm.empty((num_relations, num_bases or 0))) if has else None
        self.root = nn.Parameter(nm.empty((targets, out_channels))) if root_weight else None
        self.bias = zero_bias(out_channels, bias)
        for parameter in (self.weight, self.comp, self.root):
            glorot_(parameter)

    def forward(self, x: Any, edge_index: Any, edge_type: Any = None) -> Tensor:
        first, second = x if isinstance(x, tuple) else (x, x)
        sources, _ = both(self.in_channels)
        first = nm.arange(sources) if first is None else nm.asarray(first)
        second = first if second is None else nm.asarray(second)
        weight: Tensor = self.weight
        if self.comp is not None:
            shape = (self.num_relations, *weight.shape[1:])
            weight = (self.comp @ weight.reshape(weight.shape[0], -1)).reshape(shape)
        if first.dtype.is_integer:
            return self._embedded(first, second, edge_index, edge_type, weight)
        edges, source, target = operands((first, second), edge_index, "RGCNConv")
        assert target is not None
        found = nm.zeros((target.shape[0], self.out_channels), dtype=source.dtype,
                         device=source.device)  # fmt: skip
        for i, own in enumerate(self._relations(edges, edge_type)):
            if own.num_edges == 0:
                continue
            near = reduced(own.pattern, None, source, self.aggr)
            if self.num_blocks is not None:
                blocks = near.reshape(near.shape[0], *weight.shape[1:3])
                found = found + nm.einsum("abc,bcd->abd", blocks, weight[i]).reshape(found.shape)
            else:
                found = found + near @ weight[i]
        found = found if self.root is None else found + target @ self.root
        return found if self.bias is None else found + self.bias

    def _relations(self, edges: EdgeIndex, edge_type: Any) -> list[EdgeIndex]:
        if edge_type is None:
            raise ValueError("RGCNConv: takes edge_type, the relation of each edge")
        return relations(edges, edge_type, self.num_relations)

    def _embedded(
        self, first: Tensor, second: Tensor, edge_index: Any, edge_type: Any, weight: Tensor
    ) -> Tensor:
        """Nodes without features: their numbers choose rows of the weights."""
        if self.num_blocks is not None:
            raise ValueError("RGCNConv: blocks take features, not numbers of nodes")
        edges, _, _ = operands((first[:, None], second[:, None]), edge_index, "RGCNConv")
        found = nm.zeros((second.shape[0], self.out_channels), dtype=weight.dtype)
        for i, own in enumerate(self._relations(edges, edge_type)):
            if own.num_edges:
                near = nm.take(weight[i], first, axis=0)
                found = found + reduced(own.pattern, None, near, self.aggr)
        found = found if self.root is None else found + nm.take(self.root, second, axis=0)
        return found if self.bias is None else found + self.bias
