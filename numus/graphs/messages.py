"""Message passing as gather–transform–segment-reduce over compressed rows (Gilmer et al. 2017).

Sums and means of weighted neighbours are products with the adjacency (SpMM), extremes a segmented
search: neither stores anything of the size edges × features. Sums have a fixed order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.graphs.edges import EdgeIndex, as_edges
from numus.shapes import size_of
from numus.sparse.entries import at_rows, entry_rows, extremes, row_sums
from numus.sparse.pattern import Pattern
from numus.sparse.products import product
from numus.tensor import Tensor

REDUCTIONS = ("sum", "add", "mean", "max", "min")


def propagate(x: Any, edge_index: Any, edge_weight: Any = None, reduce: str = "sum") -> Tensor:
    """What each node receives from its neighbours: a sum, mean, maximum or minimum of weighted
    features.

    Args:
        x: (sources, …): features of the nodes that messages come from.
        edge_index: an EdgeIndex, a Graph, or (2, edges), of which a structure is made each time.
        edge_weight: a factor for each edge.
        reduce: "sum" ("add"), "mean", "max" or "min"; nodes that receive nothing get zeros.

    >>> from numus import graphs
    >>> edges = graphs.EdgeIndex([[0, 1, 2], [2, 2, 0]], 3)
    >>> graphs.propagate(nm.asarray([[1.0], [2.0], [4.0]]), edges).tolist()
    [[4.0], [0.0], [3.0]]
    >>> graphs.propagate(nm.asarray([[1.0], [2.0], [4.0]]), edges, reduce="max").tolist()
    [[4.0], [0.0], [2.0]]
    """
    x = nm.asarray(x)
    if x.ndim == 0:
        raise ShapeError("propagate: features have the shape (nodes, …), not ()")
    edges = edges_for(edge_index, x.shape[0])
    weight = None
    if edge_weight is not None:
        weight = nm.asarray(edge_weight, device=x.device)
        if tuple(weight.shape) != (edges.num_edges,):
            raise ShapeError(
                f"propagate: weights of shape {tuple(weight.shape)} for {edges.num_edges} edges"
            )
        dtype = nm.result_type(x.dtype, weight.dtype)
        x, weight = x.astype(dtype, copy=False), weight.astype(dtype, copy=False)
        weight = edges.by_rows(weight)
    return reduced(edges.pattern, weight, x, reduce)


def edges_for(edge_index: Any, sources: int) -> EdgeIndex:
    """Edges whose sources are this many."""
    edges = as_edges(edge_index)
    if isinstance(getattr(edge_index, "edges", edge_index), EdgeIndex):
        if edges.sizes[0] != sources:
            raise ShapeError(f"{edges!r} with features of {sources} nodes")
        return edges
    return EdgeIndex(edges.numpy(), sources)


def reduced(pattern: Pattern, weight: Tensor | None, x: Tensor, reduce: str) -> Tensor:
    """Rows of weighted columns, weights in the order of the entries."""
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce: {reduce!r} must be one of {', '.join(REDUCTIONS)}")
    wide = x.reshape(x.shape[0], size_of(tuple(x.shape[1:])))
    if reduce in ("max", "min"):
        term, filled = extremes(pattern, weight, wide, largest=reduce == "max")
        found = nm.where(filled, term, nm.zeros((), dtype=x.dtype, device=x.device))
    else:
        ones = nm.ones((pattern.nnz,), dtype=x.dtype, device=x.device)
        found = product(pattern, ones if weight is None else weight, wide)
        if reduce == "mean":
            found = found / row_counts(pattern, x)
    return found.reshape(pattern.shape[0], *x.shape[1:])


def row_counts(pattern: Pattern, like: Tensor) -> Tensor:
    """The number of entries of each row, at least one, as a column."""
    counts = np.maximum(pattern.counts, 1)[:, None]
    return nm.asarray(counts, dtype=like.dtype, device=like.device)


def reduced_entries(pattern: Pattern, messages: Tensor, reduce: str) -> Tensor:
    """Rows of what the entries have: (entries, …) to (rows, …)."""
    if reduce in ("sum", "add"):
        return row_sums(pattern, messages)
    return reduced(entry_rows(pattern), None, messages, reduce)


def row_softmax(pattern: Pattern, logits: Tensor) -> Tensor:
    """The softmax over the entries of each row, of (entries, heads)."""
    largest, _ = extremes(entry_rows(pattern), None, nm.detach(logits))
    powers = nm.exp(logits - at_rows(pattern, nm.detach(largest)))
    return powers / at_rows(pattern, row_sums(pattern, powers))


def edge_softmax(logits: Any, edge_index: Any, num_nodes: int | None = None) -> Tensor:
    """The softmax of numbers on edges, over the edges that arrive at each node.

    Args:
        logits: (edges,) or (edges, heads).
        edge_index: an EdgeIndex, a Graph, or (2, edges).
        num_nodes: of an edge_index that is an array.

    >>> from numus import graphs
    >>> graphs.edge_softmax(nm.zeros(3), graphs.EdgeIndex([[0, 1, 2], [2, 2, 0]], 3)).tolist()
    [0.5, 0.5, 1.0]
    """
    edges, logits = as_edges(edge_index, num_nodes), nm.asarray(logits)
    if logits.ndim not in (1, 2) or logits.shape[0] != edges.num_edges:
        raise ShapeError(
            f"edge_softmax: numbers of shape {tuple(logits.shape)} for {edges.num_edges} edges"
        )
    wide = logits if logits.ndim == 2 else logits[:, None]
    found = row_softmax(edges.pattern, edges.by_rows(wide))
    return edges.by_edges(found).reshape(logits.shape)
