"""Self loops, degrees, Laplacians and other graphs of a graph's edges."""

from __future__ import annotations

from typing import Any

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.graphs.edges import EdgeIndex, as_edges, on_edges
from numus.graphs.messages import propagate
from numus.sparse.pattern import Array
from numus.sparse.tensor import SparseTensor
from numus.tensor import Tensor


def degree(edge_index: Any, edge_weight: Any = None, *, num_nodes: int | None = None) -> Tensor:
    """How many edges arrive at each node, or the sum of their weights.

    >>> from numus import graphs
    >>> graphs.degree([[0, 1], [2, 2]]).tolist()
    [0.0, 0.0, 2.0]
    """
    edges = as_edges(edge_index, num_nodes)
    if edge_weight is None:
        return nm.asarray(edges.in_degrees.astype(np.float32))
    weight = nm.asarray(edge_weight)
    ones = nm.ones((edges.sizes[0], 1), dtype=weight.dtype, device=weight.device)
    return propagate(ones, edges, weight)[:, 0]


def add_self_loops(
    edge_index: Any, edge_weight: Any = None, fill_value: float = 1.0, *,
    num_nodes: int | None = None,
) -> tuple[EdgeIndex, Tensor | None]:  # fmt: skip
    """One loop at every node: those that are there keep their weight, others get `fill_value`.

    >>> from numus import graphs
    >>> edges, _ = graphs.add_self_loops([[0, 1], [1, 1]])
    >>> edges.numpy().tolist()
    [[0, 0, 1], [1, 0, 1]]
    """
    edges = as_edges(edge_index, num_nodes)
    looped, keep = edges.looped
    if edge_weight is None:
        return looped, None
    weight = on_edges("add_self_loops", edges, edge_weight)
    loops = np.flatnonzero(edges.is_loop)
    own = nm.full((min(edges.sizes), *weight.shape[1:]), fill_value, dtype=weight.dtype,
                  device=weight.device)  # fmt: skip
    if loops.size:
        last = np.full(min(edges.sizes), -1)
        last[edges.source.array[loops]] = loops  # of several loops the last one counts
        there = nm.asarray(last >= 0, device=weight.device)
        there = there.reshape(-1, *(1,) * (weight.ndim - 1))
        own = nm.where(there, _rows(weight, np.maximum(last, 0)), own)
    return looped, nm.concat([_rows(weight, keep), own], axis=0)


def _rows(x: Tensor, at: Array) -> Tensor:
    return nm.take(x, nm.asarray(at, device=x.device), axis=0)


def remove_self_loops(
    edge_index: Any, edge_weight: Any = None, *, num_nodes: int | None = None
) -> tuple[EdgeIndex, Tensor | None]:
    """The edges between different nodes, and their weights.

    >>> from numus import graphs
    >>> graphs.remove_self_loops([[0, 1], [1, 1]])[0].numpy().tolist()
    [[0], [1]]
    """
    edges = as_edges(edge_index, num_nodes)
    keep = np.flatnonzero(~edges.is_loop)
    if edge_weight is None:
        return edges.selected(keep), None
    weight = on_edges("remove_self_loops", edges, edge_weight)
    return edges.selected(keep), _rows(weight, keep)


def to_undirected(edge_index: Any, *, num_nodes: int | None = None) -> EdgeIndex:
    """Every edge in both directions, each once, in the order of sources and targets.

    >>> from numus import graphs
    >>> graphs.to_undirected([[0, 1], [1, 2]]).numpy().tolist()
    [[0, 1, 1, 2], [1, 0, 2, 1]]
    """
    edges = as_edges(edge_index, num_nodes)
    n = edges.num_nodes
    a, b = edges.numpy()
    numbers = np.unique(np.concatenate([a * n + b, b * n + a]))
    return EdgeIndex(np.stack(np.divmod(numbers, max(n, 1))), n)


def subgraph(
    nodes: Any, edge_index: Any, *, num_nodes: int | None = None
) -> tuple[EdgeIndex, Array]:
    """The edges among some nodes, which are numbered anew, and which of the edges they are.

    >>> from numus import graphs
    >>> edges, kept = graphs.subgraph([2, 1], [[0, 1], [1, 2]])
    >>> edges.numpy().tolist(), kept.tolist()
    ([[1], [0]], [1])
    """
    edges = as_edges(edge_index, num_nodes)
    chosen = np.asarray(nodes.numpy() if isinstance(nodes, Tensor) else nodes)
    number = np.full(max(edges.sizes), -1)
    number[chosen] = np.arange(chosen.size)
    source, target = number[edges.source.array], number[edges.target.array]
    kept = np.flatnonzero((source >= 0) & (target >= 0))
    return EdgeIndex(np.stack([source[kept], target[kept]]), int(chosen.size)), kept


def laplacian(
    edge_index: Any, edge_weight: Any = None, normalization: str | None = None, *,
    num_nodes: int | None = None,
) -> SparseTensor:  # fmt: skip
    """The Laplacian as a sparse matrix, differentiable by the weights; loops are left out.

    Args:
        edge_index: an EdgeIndex, a Graph, or (2, edges).
        edge_weight: ones without it.
        normalization: None: D − A; "sym": I − D^(−1/2) A D^(−1/2); "rw": I − D^(−1) A. Degrees are
            those of sources, as in PyTorch Geometric.
        num_nodes: of an edge_index that is an array.

    >>> from numus import graphs
    >>> graphs.laplacian([[0, 1], [1, 0]]).to_dense().tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    edges, off, diagonal = laplacian_parts(edge_index, edge_weight, normalization, num_nodes)
    looped, _ = edges.looped
    return looped.reversed.adjacency(nm.concat([off, diagonal]))


def laplacian_parts(
    edge_index: Any, edge_weight: Any, normalization: str | None, num_nodes: int | None = None
) -> tuple[EdgeIndex, Tensor, Tensor]:
    """Edges without loops, what the Laplacian has on them and on its diagonal."""
    if normalization not in (None, "sym", "rw"):
        raise ValueError(f"laplacian: a normalization of {normalization!r} must be one of sym, rw")
    given = as_edges(edge_index, num_nodes)
    edges, weight = remove_self_loops(given, edge_weight)
    if given.sizes[0] != given.sizes[1]:
        raise ShapeError(f"laplacian: a bipartite graph of {given.sizes} has none")
    if weight is None:
        weight = nm.ones((edges.num_edges,))
    total = degree(edges.reversed, weight)
    if normalization is None:
        return edges, -weight, total
    some = total != 0
    safe = nm.where(some, total, nm.ones((), dtype=total.dtype, device=total.device))
    power = -0.5 if normalization == "sym" else -1.0
    scale = nm.where(some, safe**power, nm.zeros((), dtype=total.dtype, device=total.device))
    off = -weight * nm.take(scale, edges_on(edges.source, weight), axis=0)
    if normalization == "sym":
        off = off * nm.take(scale, edges_on(edges.target, weight), axis=0)
    return edges, off, nm.ones_like(total)


def edges_on(side: Any, like: Tensor) -> Tensor:
    """Sources or targets as indices on the device of a tensor."""
    return nm.asarray(side.array.astype(np.int64), device=like.device)
