"""Graphs: edges with features of nodes and edges, and batches of them as one graph of parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.graphs.edges import EdgeIndex, as_edges
from numus.sparse.pattern import Array
from numus.tensor import Tensor
from numus.transforms import tree


class Graph:
    """Edges, and features by name: `x` and others of nodes, `edge_attr` and `edge_weight` of edges.

    It is a container of its features, so that it passes through `nm.jit` and `nm.grad`; the edges
    are static.

    Args:
        edge_index: (2, edges), or an EdgeIndex.
        num_nodes: where neither the edges nor `x` tell.
        features: tensors by name; names that begin with `edge_` belong to edges, `y` to whatever
            has its number, others to nodes.

    >>> from numus import graphs
    >>> g = graphs.Graph([[0, 1], [1, 2]], x=nm.ones((3, 4)))
    >>> g
    Graph(num_nodes=3, num_edges=2, x=(3, 4))
    >>> g.edges.in_degrees.tolist()
    [0, 1, 1]
    """

    def __init__(
        self, edge_index: Any, num_nodes: int | None = None, *, batch: Any = None, **features: Any
    ) -> None:
        given = {name: nm.asarray(x) for name, x in features.items() if x is not None}
        if num_nodes is None and "x" in given:
            num_nodes = given["x"].shape[0]
        self.edges: EdgeIndex = as_edges(edge_index, num_nodes)
        self.features: dict[str, Tensor] = given
        self.batch: Array | None = None if batch is None else np.asarray(batch, np.int64)
        for name, x in given.items():
            rows = x.shape[0] if x.ndim else 0
            wanted = self.num_edges if name.startswith("edge_") else self.num_nodes
            if name != "y" and rows != wanted:
                raise ShapeError(
                    f"Graph: {name!r} has the shape {tuple(x.shape)}, but there are {wanted} "
                    + ("edges" if name.startswith("edge_") else "nodes")
                )

    def __getattr__(self, name: str) -> Any:
        if name != "features" and name in self.features:
            return self.features[name]
        if name in ("x", "y", "edge_attr", "edge_weight"):
            return None
        raise AttributeError(f"this graph has no {name!r}; it has {', '.join(self.features)}")

    @property
    def num_nodes(self) -> int:
        return self.edges.num_nodes

    @property
    def num_edges(self) -> int:
        return self.edges.num_edges

    @property
    def num_graphs(self) -> int:
        """Of a batch; 1 for a graph that is none."""
        return 1 if self.batch is None else int(self.batch.max(initial=-1)) + 1

    @property
    def edge_index(self) -> Tensor:
        """(2, edges), as a tensor."""
        return self.edges.tensor()

    def to(self, device: Any) -> Graph:
        """Features on another device."""
        return _made((self.edges, tuple(self.features), self.batch), [
            x.to(device) for x in self.features.values()
        ])  # fmt: skip

    def with_features(self, **features: Any) -> Graph:
        """The same edges with more features, or others."""
        return Graph(self.edges, batch=self.batch, **{**self.features, **features})

    def __repr__(self) -> str:
        parts = [f"num_nodes={self.num_nodes}", f"num_edges={self.num_edges}"]
        parts += [f"num_graphs={self.num_graphs}"] if self.batch is not None else []
        parts += [f"{name}={tuple(x.shape)}" for name, x in self.features.items()]
        return f"Graph({', '.join(parts)})"


class _Static:
    """The structure of a graph, compared by content."""

    def __init__(self, parts: tuple[EdgeIndex, tuple[str, ...], Array | None]) -> None:
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Static):
            return False
        (a, names, batch), (b, others, parts) = self.parts, other.parts
        same = batch is parts or (
            batch is not None and parts is not None and np.array_equal(batch, parts)
        )
        return names == others and same and a == b

    def __hash__(self) -> int:
        return hash(self.parts[:2])


def _made(parts: tuple[EdgeIndex, tuple[str, ...], Array | None], leaves: Sequence[Any]) -> Graph:
    graph = object.__new__(Graph)
    edges, names, batch = parts
    graph.__dict__.update(edges=edges, features=dict(zip(names, leaves, strict=True)), batch=batch)
    return graph


tree.register(
    Graph,
    lambda g: (list(g.features.values()), _Static((g.edges, tuple(g.features), g.batch))),
    lambda static, leaves: _made(static.parts, leaves),
)


def batch(graphs: Sequence[Graph]) -> Graph:
    """Many graphs as one, whose parts are not connected; `graph.batch` tells where nodes are from.

    Features are concatenated along their first axis, numbers are stacked.

    >>> from numus import graphs
    >>> one = graphs.Graph([[0], [1]], x=nm.ones((2, 3)), y=1)
    >>> both = graphs.batch([one, one])
    >>> both.num_graphs, both.batch.tolist(), both.edges.numpy().tolist()
    (2, [0, 0, 1, 1], [[0, 2], [1, 3]])
    """
    if not graphs:
        raise ShapeError("batch: takes at least one graph")
    names = tuple(graphs[0].features)
    if any(tuple(g.features) != names for g in graphs):
        raise ShapeError(f"batch: graphs have different features; the first has {names}")
    counts = np.array([g.num_nodes for g in graphs])
    first = np.cumsum(counts) - counts
    pairs = np.concatenate([g.edges.numpy() + at for g, at in zip(graphs, first, strict=True)], 1)
    joined = {
        name: nm.concat([nm.atleast_1d(g.features[name]) for g in graphs], axis=0) for name in names
    }
    numbers = np.repeat(np.arange(len(graphs)), counts)
    return _made((EdgeIndex(pairs, int(counts.sum())), names, numbers), list(joined.values()))


def unbatch(graph: Graph) -> Iterator[Graph]:
    """The parts of a batch.

    >>> from numus import graphs
    >>> one = graphs.Graph([[0], [1]], x=nm.ones((2, 3)))
    >>> [g.num_nodes for g in graphs.unbatch(graphs.batch([one, one]))]
    [2, 2]
    """
    if graph.batch is None:
        yield graph
        return
    owner = graph.batch[graph.edges.source.array]
    counts = np.bincount(graph.batch, minlength=graph.num_graphs)
    first = np.cumsum(counts) - counts
    for i in range(graph.num_graphs):
        keep = np.flatnonzero(owner == i)
        edges = EdgeIndex(graph.edges.numpy()[:, keep] - first[i], int(counts[i]))
        nodes = slice(int(first[i]), int(first[i] + counts[i]))
        features = {}
        for name, x in graph.features.items():
            if name.startswith("edge_"):
                features[name] = x[nm.asarray(keep)]
            elif name == "y" and x.shape[0] == graph.num_graphs:
                features[name] = x[i : i + 1]
            else:
                features[name] = x[nodes]
        yield _made((edges, tuple(features), None), list(features.values()))
