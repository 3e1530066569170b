"""Edges of a graph: pairs of nodes, with the compressed structures by target and by source.

A message goes from source to target, so that what a node receives is a row of the matrix whose
entries are the edges, rows targets and columns sources. That pattern and all that follows from it
are made on the host, once, and are static under `nm.jit`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import numus as nm
from numus.errors import DTypeError, IndexRangeError, ShapeError
from numus.evaluation.evaluate import is_known
from numus.shapes import as_int
from numus.sparse.pattern import (
    Array,
    OnDevices,
    Pattern,
    from_coordinates,
    grouped,
    index_dtype,
)
from numus.sparse.products import taken
from numus.sparse.structure import CSR
from numus.sparse.tensor import SparseTensor
from numus.tensor import Tensor

_MANY_EDGES = 1 << 20  # whose order takes 4 MiB


class EdgeIndex:
    """The edges of a graph, from `source` to `target`; it never changes, and compares by content.

    Args:
        edge_index: (2, edges): the source and the target of each.
        num_nodes: of both sides, or (sources, targets) of a bipartite graph; without it, one more
            than the largest index.

    >>> from numus import graphs
    >>> edges = graphs.EdgeIndex([[0, 1, 2], [1, 2, 0]])
    >>> edges
    EdgeIndex(num_nodes=3, num_edges=3)
    >>> edges.in_degrees.tolist()
    [1, 1, 1]
    """

    def __init__(self, edge_index: Any, num_nodes: int | tuple[int, int] | None = None) -> None:
        pairs = _pairs(edge_index)
        if num_nodes is None:
            count = int(pairs.max()) + 1 if pairs.size else 0
            sizes = (count, count)
        elif isinstance(num_nodes, tuple):
            sizes = (as_int(num_nodes[0], "num_nodes", "EdgeIndex"), int(num_nodes[1]))
        else:
            count = as_int(num_nodes, "num_nodes", "EdgeIndex")
            sizes = (count, count)
        for row, count, what in zip(pairs, sizes, ("source", "target"), strict=True):
            if row.size and (row.min() < 0 or row.max() >= count):
                bad = row[(row < 0) | (row >= count)][0]
                raise IndexRangeError(f"EdgeIndex: {what} {bad} is no node of a graph of {count}")
        dtype = index_dtype(*sizes, pairs.shape[1])
        self.source, self.target = (OnDevices(row.astype(dtype, copy=False)) for row in pairs)
        self.sizes = sizes

    @property
    def num_edges(self) -> int:
        return int(self.source.array.shape[0])

    @property
    def num_nodes(self) -> int:
        """Of a graph that is not bipartite."""
        if self.sizes[0] != self.sizes[1]:
            raise ShapeError(f"num_nodes: a bipartite graph has {self.sizes} sources and targets")
        return self.sizes[0]

    def numpy(self) -> Array:
        """(2, edges), as int64."""
        return np.stack([self.source.array, self.target.array]).astype(np.int64)

    def tensor(self, device: Any = None) -> Tensor:
        """(2, edges), as a tensor of int64."""
        return nm.asarray(self.numpy(), device=device)

    @functools.cached_property
    def by_target(self) -> tuple[Pattern, OnDevices | None]:
        """Targets × sources by rows, and which edge each entry is; None: in the same order."""
        if "pattern" in self.__dict__:
            _, order = grouped(self.target.array, self.sizes[1])
            return self.pattern, _unless_in_order(order.copy())
        pattern, order = from_coordinates(self.target.array, self.source.array, self.sizes[::-1])
        return pattern, _unless_in_order(order)

    @functools.cached_property
    def pattern(self) -> Pattern:
        """Targets × sources by rows. The order of many edges is found again where it is needed,
        which it is not where edges have no weights."""
        if "by_target" in self.__dict__ or self.num_edges < _MANY_EDGES:
            return self.by_target[0]
        found, _ = from_coordinates(self.target.array, self.source.array, self.sizes[::-1])
        return Pattern(found.shape, found.pointers.array.copy(), found.indices.array)

    def by_rows(self, values: Tensor) -> Tensor:
        """What edges have, in the order of the pattern's entries."""
        order = self.by_target[1]
        return values if order is None else taken(values, order)

    def by_edges(self, values: Tensor) -> Tensor:
        """What entries have, in the order of the edges."""
        return values if self._inverse is None else taken(values, self._inverse)

    @functools.cached_property
    def _inverse(self) -> OnDevices | None:
        order = self.by_target[1]
        if order is None:
            return None
        inverse = np.empty_like(order.array)
        inverse[order.array] = np.arange(order.array.size, dtype=inverse.dtype)
        return OnDevices(inverse)

    @functools.cached_property
    def in_degrees(self) -> Array:
        """Edges that arrive at each target."""
        return np.bincount(self.target.array, minlength=self.sizes[1])

    @functools.cached_property
    def out_degrees(self) -> Array:
        """Edges that leave each source."""
        return np.bincount(self.source.array, minlength=self.sizes[0])

    @functools.cached_property
    def reversed(self) -> EdgeIndex:
        """Every edge the other way."""
        pairs = np.stack([self.target.array, self.source.array])
        found = EdgeIndex(pairs, self.sizes[::-1])
        found.__dict__["reversed"] = self
        return found

    @functools.cached_property
    def is_loop(self) -> Array:
        """Whether each edge goes from a node to itself."""
        return self.source.array == self.target.array

    @functools.cached_property
    def looped(self) -> tuple[EdgeIndex, Array]:
        """Without the loops that there are, then one for each node; and the edges that stay."""
        dtype = self.source.array.dtype
        keep = np.flatnonzero(~self.is_loop).astype(dtype)
        loops = np.arange(min(self.sizes), dtype=dtype)
        pairs = np.stack(
            [np.concatenate([side.array[keep], loops]) for side in (self.source, self.target)]
        )
        return EdgeIndex(pairs, self.sizes), keep

    def selected(self, keep: Array) -> EdgeIndex:
        """Some of the edges, by number."""
        return EdgeIndex(np.stack([self.source.array[keep], self.target.array[keep]]), self.sizes)

    def adjacency(self, edge_weight: Tensor | None = None) -> SparseTensor:
        """The matrix A of targets × sources: A @ x adds up what each node receives.

        >>> from numus import graphs
        >>> graphs.EdgeIndex([[0, 1], [1, 0]], 2).adjacency().to_dense().tolist()
        [[0.0, 1.0], [1.0, 0.0]]
        """
        if edge_weight is None:
            return SparseTensor(CSR(self.pattern), nm.ones((self.num_edges,)))
        weight = on_edges("adjacency", self, edge_weight, single=True)
        return SparseTensor(CSR(self.pattern), self.by_rows(weight))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, EdgeIndex)
            and self.sizes == other.sizes
            and np.array_equal(self.source.array, other.source.array)
            and np.array_equal(self.target.array, other.target.array)
        )

    def __hash__(self) -> int:
        return hash((self.sizes, self.num_edges))

    def __repr__(self) -> str:
        nodes = self.sizes[0] if self.sizes[0] == self.sizes[1] else self.sizes
        return f"EdgeIndex(num_nodes={nodes}, num_edges={self.num_edges})"


def _unless_in_order(order: Array) -> OnDevices | None:
    in_order = bool((np.diff(order) == 1).all()) and (order.size == 0 or order[0] == 0)
    return None if in_order else OnDevices(order)


def _pairs(edge_index: Any) -> Array:
    """(2, edges) on the host."""
    if isinstance(edge_index, Tensor):
        if not is_known(edge_index._node):
            raise ShapeError(
                "EdgeIndex: the structure of a graph is static; make the EdgeIndex, or the Graph, "
                "outside of the traced function"
            )
        edge_index = edge_index.numpy()
    pairs = np.asarray(edge_index)
    if pairs.size == 0:
        pairs = pairs.reshape(2, 0).astype(np.int64)
    if pairs.ndim != 2 or pairs.shape[0] != 2:
        raise ShapeError(f"EdgeIndex: takes an edge_index of shape (2, edges), not {pairs.shape}")
    if pairs.dtype.kind not in "iu":
        raise DTypeError(f"EdgeIndex: nodes are numbered by integers, not {pairs.dtype}")
    return pairs


def as_edges(edge_index: Any, num_nodes: int | tuple[int, int] | None = None) -> EdgeIndex:
    """An EdgeIndex, that of a graph, or one that is made from (2, edges)."""
    found = getattr(edge_index, "edges", edge_index)
    if not isinstance(found, EdgeIndex):
        return EdgeIndex(found, num_nodes)
    sizes = (num_nodes, num_nodes) if isinstance(num_nodes, int) else num_nodes
    if sizes is not None and sizes != found.sizes:
        raise ShapeError(
            f"{found!r} with features of {sizes} nodes; give it num_nodes= when it is made"
        )
    return found


def on_edges(
    op: str, edges: EdgeIndex, given: Any, *, single: bool = False, like: Tensor | None = None
) -> Tensor:
    """What each edge has, one number with `single`; in the dtype and on the device of `like`."""
    if like is None:
        found = nm.asarray(given)
    else:
        found = nm.asarray(given, dtype=like.dtype, device=like.device)
    shape = tuple(found.shape)
    if shape[:1] != (edges.num_edges,) or (single and len(shape) > 1):
        raise ShapeError(f"{op}: weights of shape {shape} for {edges.num_edges} edges")
    return found
