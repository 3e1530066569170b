"""Classical algorithms as programs over semirings and frontiers (Kepner & Gilbert 2011).

Each is a loop of sparse products that runs outside of Python, on the device of its operands: BFS
over (or, and), shortest paths over (min, +), components over (min, first), PageRank over (+, ×).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.graphs.edges import EdgeIndex, as_edges, on_edges
from numus.shapes import as_int
from numus.sparse.entries import extremes
from numus.sparse.products import product
from numus.tensor import Tensor


def _source(edges: EdgeIndex, source: int, op: str) -> int:
    number = as_int(source, "source", op)
    if not 0 <= number < edges.num_nodes:
        raise ValueError(f"{op}: {number} is no node of a graph of {edges.num_nodes}")
    return number


def bfs(
    edge_index: Any, source: int, *, num_nodes: int | None = None, device: Any = None
) -> Tensor:
    """Breadth-first search: how many edges each node is away from the source; -1: not reached.

    >>> from numus import graphs
    >>> graphs.bfs([[0, 1, 3], [1, 2, 2]], 0, num_nodes=4).tolist()
    [0, 1, 2, -1]
    """
    edges = as_edges(edge_index, num_nodes)
    start = _source(edges, source, "bfs")
    n, pattern = edges.num_nodes, edges.pattern
    here = nm.asarray(np.arange(n) == start, device=device)
    levels = nm.where(here, 0, -1).astype(nm.int32)
    ones = nm.ones((pattern.nnz,), device=device)

    def step(state: Any) -> Any:
        depth, frontier, levels = state
        reached = product(pattern, ones, frontier.astype(nm.float32)[:, None])[:, 0] > 0
        new = reached & (levels < 0)
        return depth + 1, new, nm.where(new, depth + 1, levels)

    depth = nm.zeros((), dtype=nm.int32, device=device)
    _, _, found = nm.while_loop(lambda s: nm.any(s[1]), step, (depth, here, levels))
    return found


class ShortestPaths(NamedTuple):
    """Distances, and the edge by which each node is reached; -1 where there is none."""

    distances: Tensor
    edges: Tensor


def shortest_paths(
    edge_index: Any, source: int, edge_weight: Any = None, *, num_nodes: int | None = None
) -> ShortestPaths:
    """Shortest paths from one node, with what Dijkstra's algorithm finds and, for weights that are
    negative, Bellman and Ford's: all nodes are relaxed together until nothing changes.

    Args:
        edge_index: an EdgeIndex, a Graph, or (2, edges).
        source: the node that paths begin at.
        edge_weight: lengths of edges; ones without it. A cycle of negative length is an error.
        num_nodes: of an edge_index that is an array.

    >>> from numus import graphs
    >>> found = graphs.shortest_paths([[0, 0, 1], [1, 2, 2]], 0, [1.0, 5.0, 2.0])
    >>> found.distances.tolist(), found.edges.tolist()
    ([0.0, 1.0, 3.0], [-1, 0, 2])
    """
    op = "shortest_paths"
    edges = as_edges(edge_index, num_nodes)
    start = _source(edges, source, op)
    weight = nm.ones((edges.num_edges,)) if edge_weight is None else nm.asarray(edge_weight)
    if tuple(weight.shape) != (edges.num_edges,):
        raise ShapeError(f"{op}: weights of {tuple(weight.shape)} for {edges.num_edges} edges")
    if not weight.dtype.is_floating:
        weight = weight.astype(nm.float32)
    n, pattern, dev = edges.num_nodes, edges.pattern, weight.device
    with nm.no_grad():
        lengths = edges.by_rows(nm.detach(weight))
        first = np.where(np.arange(n) == start, 0.0, np.inf)
        begin = nm.asarray(first, dtype=weight.dtype, device=dev)

        def relaxed(distance: Tensor) -> Tensor:
            term, filled = extremes(
                pattern, lengths, distance[:, None], combine="add", largest=False
            )
            return nm.minimum(distance, nm.where(filled, term, nm.inf)[:, 0])

        def step(state: Any) -> Any:
            turn, distance, _ = state
            new = relaxed(distance)
            return turn + 1, new, nm.any(new < distance)

        going = nm.ones((), dtype=nm.bool, device=dev)
        turn = nm.zeros((), dtype=nm.int32, device=dev)
        turn, distance, still = nm.while_loop(
            lambda s: s[2] & (s[0] <= n), step, (turn, begin, going)
        )
        if n and bool(still):
            raise ValueError(f"{op}: the graph has a cycle of negative length")
        return ShortestPaths(distance, _reached_by(edges, weight, distance, start))


def _reached_by(edges: EdgeIndex, weight: Tensor, distance: Tensor, start: int) -> Tensor:
    """The first edge along which each distance is attained."""
    d, w = distance.numpy(), weight.numpy()
    source, target = edges.source.array, edges.target.array
    tight = np.flatnonzero(np.isfinite(d[target]) & (d[source] + w == d[target]))[::-1]
    tight = tight[source[tight] != target[tight]]
    found = np.full(edges.num_nodes, -1, np.int64)
    found[target[tight]] = tight
    found[start] = -1
    return nm.asarray(found, device=distance.device)


def connected_components(
    edge_index: Any, *, num_nodes: int | None = None, device: Any = None
) -> tuple[int, Tensor]:
    """The number of components, directions ignored, and the component of each node.

    The least number in reach is passed on along edges and, by pointer jumping, along chains.

    >>> from numus import graphs
    >>> count, labels = graphs.connected_components([[0, 3], [1, 2]], num_nodes=5)
    >>> count, labels.tolist()
    (3, [0, 0, 1, 1, 2])
    """
    edges = as_edges(edge_index, num_nodes)
    n = edges.num_nodes
    start = nm.arange(n, dtype=nm.int32, device=device)

    def least(labels: Tensor, way: EdgeIndex) -> Tensor:
        term, filled = extremes(way.pattern, None, labels[:, None], combine="add", largest=False)
        return nm.minimum(labels, nm.where(filled, term, labels[:, None])[:, 0])

    def step(state: Any) -> Any:
        labels, _ = state
        new = least(least(labels, edges), edges.reversed)
        new = nm.take(new, new.astype(nm.int64), axis=0)
        return new, nm.any(new != labels)

    going = nm.full((), n > 0, dtype=nm.bool, device=device)
    with nm.no_grad():
        labels, _ = nm.while_loop(lambda s: s[1], step, (start, going))
    roots, numbers = np.unique(labels.numpy(), return_inverse=True)
    return int(roots.size), nm.asarray(numbers.reshape(-1), device=device)


def pagerank(
    edge_index: Any, damping: float = 0.85, edge_weight: Any = None, *, tol: float = 1e-6,
    max_iter: int = 100, num_nodes: int | None = None,
) -> Tensor:  # fmt: skip
    """PageRank by power iteration: the share of time a random walk spends at each node.

    Args:
        edge_index: an EdgeIndex, a Graph, or (2, edges).
        damping: how likely the walk follows an edge, in proportion to its weight, rather than
            jumping to any node; from nodes without edges it always jumps.
        edge_weight: ones without it.
        tol: of the change of an iteration, summed over nodes, at which it ends.
        max_iter: at most this many iterations.
        num_nodes: of an edge_index that is an array.

    >>> from numus import graphs
    >>> graphs.pagerank([[0, 1, 2], [1, 2, 0]]).round(3).tolist()
    [0.33300000429153442, 0.33300000429153442, 0.33300000429153442]
    """
    if not 0 <= damping <= 1:
        raise ValueError(f"pagerank: a damping of {damping} is not between 0 and 1")
    edges = as_edges(edge_index, num_nodes)
    n, pattern = edges.num_nodes, edges.pattern
    given = nm.ones((edges.num_edges,)) if edge_weight is None else edge_weight
    weight = on_edges("pagerank", edges, given, single=True)
    with nm.no_grad():
        values = edges.by_rows(weight)
        backward = edges.reversed
        ones = nm.ones((n, 1), dtype=weight.dtype, device=weight.device)
        out = product(backward.pattern, backward.by_rows(weight), ones)
        share = nm.where(out > 0, 1 / nm.where(out > 0, out, ones), 0 * ones)
        dangling = (out <= 0).astype(weight.dtype)
        start = ones / max(n, 1)

        def step(state: Any) -> Any:
            turn, rank, _ = state
            lost = nm.sum(rank * dangling) / max(n, 1)
            new = damping * (product(pattern, values, rank * share) + lost)
            new = new + (1 - damping) / max(n, 1)
            return turn + 1, new, nm.sum(nm.abs(new - rank))

        turn = nm.zeros((), dtype=nm.int32, device=weight.device)
        change = nm.full((), 2.0 * tol + 1, dtype=weight.dtype, device=weight.device)
        _, rank, _ = nm.while_loop(
            lambda s: (s[2] > tol) & (s[0] < max_iter), step, (turn, start, change)
        )
    return rank[:, 0]
