"""Heterogeneous graphs: nodes and edges of several types, and layers with one for each relation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import numus as nm
from numus import nn
from numus.errors import ShapeError
from numus.graphs.edges import EdgeIndex
from numus.graphs.graph import Graph
from numus.sparse.pattern import Array
from numus.tensor import Tensor
from numus.transforms import tree

Relation = tuple[str, str, str]  # source, name, target


class HeteroGraph:
    """Nodes of several types with features, and edges of relations (source, name, target).

    It is a container of its features; the edges are static.

    Args:
        edges: an edge_index for each relation.
        x: features of each type of nodes.
        num_nodes: of types without features.
        edge_attr: features of relations.

    >>> from numus import graphs
    >>> g = graphs.HeteroGraph(
    ...     {("author", "writes", "paper"): [[0, 1], [0, 0]]},
    ...     x={"author": nm.ones((2, 3)), "paper": nm.ones((1, 4))},
    ... )
    >>> g
    HeteroGraph(author=2, paper=1, author→writes→paper=2)
    """

    def __init__(
        self, edges: Mapping[Relation, Any], x: Mapping[str, Any] | None = None,
        num_nodes: Mapping[str, int] | None = None,
        edge_attr: Mapping[Relation, Any] | None = None,
    ) -> None:  # fmt: skip
        self.x: dict[str, Tensor] = {t: nm.asarray(v) for t, v in (x or {}).items()}
        self.num_nodes = {**(num_nodes or {}), **{t: v.shape[0] for t, v in self.x.items()}}
        self.edges: dict[Relation, EdgeIndex] = {}
        for relation, pairs in edges.items():
            source, _, target = relation
            if missing := [t for t in (source, target) if t not in self.num_nodes]:
                raise ShapeError(f"HeteroGraph: there are no nodes of type {missing[0]!r}")
            sizes = (self.num_nodes[source], self.num_nodes[target])
            found = pairs if isinstance(pairs, EdgeIndex) else EdgeIndex(pairs, sizes)
            if found.sizes != sizes:
                raise ShapeError(f"HeteroGraph: {relation} is {found!r}, for {sizes} nodes")
            self.edges[relation] = found
        self.edge_attr = {r: nm.asarray(v) for r, v in (edge_attr or {}).items()}

    def to_homogeneous(self) -> tuple[Graph, Array, Array]:
        """One graph of all nodes, types in the order of `num_nodes`; the types of its nodes and, as
        `RGCNConv` takes them, those of its edges."""
        types = list(self.num_nodes)
        first = dict(zip(types, np.cumsum([0, *self.num_nodes.values()]), strict=False))
        pairs = [
            e.numpy() + np.array([[first[s]], [first[t]]]) for (s, _, t), e in self.edges.items()
        ]
        joined = np.concatenate([*pairs, np.zeros((2, 0), np.int64)], 1)
        widths = {v.shape[1:] for v in self.x.values()}
        same_width = len(widths) == 1 and len(self.x) == len(types)
        x = nm.concat([self.x[t] for t in types], axis=0) if same_width else None
        node_type = np.repeat(np.arange(len(types)), list(self.num_nodes.values()))
        counts = [e.num_edges for e in self.edges.values()]
        edge_type = np.repeat(np.arange(len(counts)), counts)
        return Graph(joined, int(node_type.size), x=x), node_type, edge_type

    def __repr__(self) -> str:
        parts = [f"{t}={n}" for t, n in self.num_nodes.items()]
        parts += [f"{'→'.join(r)}={e.num_edges}" for r, e in self.edges.items()]
        return f"HeteroGraph({', '.join(parts)})"


def _flat(g: HeteroGraph) -> tuple[list[Any], Any]:
    static = (
        tuple(g.num_nodes.items()), tuple(g.edges.items()), tuple(g.x), tuple(g.edge_attr)
    )  # fmt: skip
    return [*g.x.values(), *g.edge_attr.values()], static


def _made(static: Any, leaves: Any) -> HeteroGraph:
    counts, edges, types, relations = static
    g = object.__new__(HeteroGraph)
    g.num_nodes, g.edges = dict(counts), dict(edges)
    g.x = dict(zip(types, leaves[: len(types)], strict=True))
    g.edge_attr = dict(zip(relations, leaves[len(types) :], strict=True))
    return g


tree.register(HeteroGraph, _flat, _made)


class HeteroConv(nn.Module):
    """A layer for each relation; what a type of nodes receives from several is reduced.

    Args:
        convs: a layer for each relation; those between different types take (sources, targets).
        aggr: "sum", "mean", "max" or "min".

    >>> from numus import graphs
    >>> writes, cites = ("author", "writes", "paper"), ("paper", "cites", "paper")
    >>> x = {"author": nm.ones((2, 3)), "paper": nm.ones((2, 4))}
    >>> g = graphs.HeteroGraph({writes: [[0, 1], [0, 0]], cites: [[0], [1]]}, x=x)
    >>> conv = graphs.HeteroConv({writes: graphs.SAGEConv((3, 4), 5), cites: graphs.GCNConv(4, 5)})
    >>> {t: tuple(v.shape) for t, v in conv(g.x, g.edges).items()}
    {'paper': (2, 5)}
    """

    def __init__(self, convs: Mapping[Relation, nn.Module], aggr: str = "sum") -> None:
        if aggr not in _REDUCE:
            raise ValueError(f"HeteroConv: {aggr!r} must be one of {', '.join(_REDUCE)}")
        self.relations = tuple(convs)
        self.aggr = aggr
        self.convs = nn.ModuleDict({_key(r): layer for r, layer in convs.items()})

    def forward(
        self, x: Mapping[str, Any], edges: Mapping[Relation, Any], *given: Any
    ) -> dict[str, Tensor]:
        """`given`: further arguments of the layers, each a mapping by relation."""
        found: dict[str, list[Tensor]] = {}
        for relation in self.relations:
            source, _, target = relation
            if relation not in edges or source not in x or target not in x:
                continue
            own = x[source] if source == target else (x[source], x[target])
            more = [g.get(relation) for g in given]
            out = self.convs[_key(relation)](own, edges[relation], *more)
            found.setdefault(target, []).append(out)
        return {t: _REDUCE[self.aggr](nm.stack(parts)) for t, parts in found.items()}


_REDUCE = {
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(0),
    "max": lambda x: x.max(0),
    "min": lambda x: x.min(0),
}


def _key(relation: Relation) -> str:
    return f"<{'___'.join(relation)}>"
