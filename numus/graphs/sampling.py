"""Neighbour sampling (Hamilton, Ying & Leskovec 2017), from memory or from a memory-mapped file.

A graph file is a `.rrec` file: a record that describes it, then pointers, sources and features in
parts of some rows. Sampling reads the rows that it asks for, so a graph may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import numus as nm
from numus.data.records import RecordDataset, RecordWriter
from numus.errors import RecordError, ShapeError
from numus.files import PathLike
from numus.graphs.edges import EdgeIndex
from numus.graphs.graph import Graph
from numus.sparse.pattern import Array, repeated_ranges
from numus.tensor import Tensor

_KIND = "numus graph"


class _Parts:
    """An array along its first axis, in parts of one length, read as they are asked for."""

    def __init__(self, records: RecordDataset, first: int, count: int, rows: int) -> None:
        self._records, self._first, self._count, self._rows = records, first, count, rows

    def _part(self, number: int) -> Array:
        found = self._records[self._first + number]
        return found.numpy() if isinstance(found, Tensor) else np.asarray(found)

    def __getitem__(self, at: Array) -> Array:
        part, row = np.divmod(at, self._rows)
        if at.size == 0:
            return self._part(0)[:0]
        used = np.unique(part)
        if used.size == 1:
            return self._part(int(used[0]))[row]
        sample = self._part(int(used[0]))
        out = np.empty((at.size, *sample.shape[1:]), sample.dtype)
        for number in used:
            here = part == number
            out[here] = self._part(int(number))[row[here]]
        return out


def save_graph(path: PathLike, graph: Graph, *, rows: int = 1 << 16) -> None:
    """Write a graph to a `.rrec` file, from which `GraphFile` reads the parts it needs.

    Args:
        path: of the file, which is replaced when it is finished.
        graph: its features are written in parts.
        rows: of a part.
    """
    pattern, order = graph.edges.by_target
    number = np.arange(pattern.nnz) if order is None else order.array
    arrays: dict[str, Array] = {
        "pointers": pattern.pointers.array, "sources": pattern.indices.array, "edges": number
    }  # fmt: skip
    arrays |= {f"x/{name}": value.numpy() for name, value in graph.features.items()}
    head = {
        "kind": _KIND, "num_nodes": graph.num_nodes, "num_edges": graph.num_edges, "rows": rows,
        "names": list(arrays), "sizes": [len(a) for a in arrays.values()],
    }  # fmt: skip
    with RecordWriter.create(path) as writer:
        writer.write_record(head)
        for array in arrays.values():
            for start in range(0, max(len(array), 1), rows):
                writer.write_record(nm.asarray(array[start : start + rows], device="cpu"))


class GraphFile:
    """A graph in a memory-mapped file: what `NeighborLoader` samples from.

    >>> import tempfile, os
    >>> from numus import graphs
    >>> path = os.path.join(tempfile.mkdtemp(), "graph.rrec")
    >>> graphs.save_graph(path, graphs.Graph([[0, 1], [1, 2]], x=nm.ones((3, 4))))
    >>> graphs.GraphFile(path).num_nodes
    3
    """

    def __init__(self, path: PathLike) -> None:
        records = RecordDataset(path)
        head = records[0] if len(records) else None
        if not isinstance(head, dict) or head.get("kind") != _KIND:
            raise RecordError(f"{path} is no graph file: see graphs.save_graph")
        self.num_nodes, self.num_edges = int(head["num_nodes"]), int(head["num_edges"])
        rows, first = int(head["rows"]), 1
        self._arrays: dict[str, _Parts] = {}
        for name, size in zip(head["names"], head["sizes"], strict=True):
            count = max(1, -(-int(size) // rows))
            self._arrays[name] = _Parts(records, first, count, rows)
            first += count
        if first != len(records):
            raise RecordError(f"{path}: {len(records)} records, but its head asks for {first}")

    def arrays(self) -> dict[str, Any]:
        return self._arrays


def _arrays(graph: Graph | GraphFile) -> dict[str, Any]:
    if isinstance(graph, GraphFile):
        return graph.arrays()
    pattern, order = graph.edges.by_target
    number = np.arange(pattern.nnz) if order is None else order.array
    found: dict[str, Any] = {
        "pointers": pattern.pointers.array, "sources": pattern.indices.array, "edges": number
    }  # fmt: skip
    return found | {f"x/{name}": value.numpy() for name, value in graph.features.items()}


class Sample(NamedTuple):
    """A sampled graph; its first `num_seeds` nodes are those that were asked for.

    `nodes` and `edges` are the numbers that its nodes and edges have in the whole graph.
    """

    graph: Graph
    nodes: Array
    edges: Array
    num_seeds: int


class NeighborLoader:
    """Batches of nodes, each with a sampled neighbourhood of some hops.

    The structure of a sample is another each time: train on samples without `nm.jit`, which would
    trace each of them; plans of evaluations are shared by all sizes.

    Args:
        graph: in memory, or a GraphFile.
        num_neighbors: how many to draw of the edges that arrive at a node, for each hop; -1: all.
        input_nodes: which nodes batches are made of; all, without it.
        batch_size: nodes of a batch.
        shuffle: in another order in each epoch.
        seed: of the draws: the same seed gives the same batches.

    >>> from numus import graphs
    >>> g = graphs.Graph([[0, 1, 2, 3], [1, 2, 3, 0]], x=nm.ones((4, 2)))
    >>> batches = list(graphs.NeighborLoader(g, [1, 1], batch_size=2))
    >>> len(batches), batches[0].num_seeds, batches[0].nodes.tolist()
    (2, 2, [0, 1, 3, 2])
    """

    def __init__(
        self, graph: Graph | GraphFile, num_neighbors: Sequence[int], *,
        input_nodes: Any = None, batch_size: int = 1, shuffle: bool = False, seed: int = 0,
    ) -> None:  # fmt: skip
        if batch_size < 1 or any(k < -1 for k in num_neighbors):
            raise ValueError("NeighborLoader: a batch has nodes, and hops a number of neighbours")
        self._arrays, self._count = _arrays(graph), graph.num_nodes
        given = np.arange(self._count) if input_nodes is None else input_nodes
        found = np.asarray(given.numpy() if isinstance(given, Tensor) else given)
        nodes = np.flatnonzero(found) if found.dtype == bool else found.astype(np.int64)
        if nodes.ndim != 1 or (nodes.size and (nodes.min() < 0 or nodes.max() >= self._count)):
            raise ShapeError(f"NeighborLoader: input_nodes are nodes of {self._count}")
        self.input_nodes, self.num_neighbors = nodes, tuple(num_neighbors)
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self._epoch = 0

    def __len__(self) -> int:
        return -(-self.input_nodes.size // self.batch_size)

    def __iter__(self) -> Iterator[Sample]:
        rng = np.random.default_rng((self.seed, self._epoch))
        self._epoch += 1
        nodes = rng.permutation(self.input_nodes) if self.shuffle else self.input_nodes
        for start in range(0, nodes.size, self.batch_size):
            yield self.sample(nodes[start : start + self.batch_size], rng)

    def sample(self, seeds: Array, rng: np.random.Generator) -> Sample:
        """The neighbourhood of some nodes."""
        known = np.unique(seeds)
        if known.size != seeds.size:
            raise ShapeError("NeighborLoader: a batch has a node twice")
        nodes, frontier = seeds, seeds
        targets, sources, numbers = [], [], []
        for limit in self.num_neighbors:
            owner, at = self._drawn(frontier, limit, rng)
            source = np.asarray(self._arrays["sources"][at], np.int64)
            targets.append(frontier[owner])
            sources.append(source)
            numbers.append(np.asarray(self._arrays["edges"][at], np.int64))
            _, first = np.unique(source, return_index=True)
            new = source[np.sort(first)]
            frontier = new[~np.isin(new, nodes)]
            nodes = np.concatenate([nodes, frontier])
        order = np.argsort(nodes)
        ends = [np.concatenate([*side, np.zeros(0, np.int64)]) for side in (sources, targets)]
        pairs = np.stack([order[np.searchsorted(nodes, end, sorter=order)] for end in ends])
        edges = np.concatenate([*numbers, np.zeros(0, np.int64)])
        features: dict[str, Any] = {
            name.removeprefix("x/"): nm.asarray(
                parts[edges if name.startswith("x/edge_") else nodes]
            )
            for name, parts in self._arrays.items()
            if name.startswith("x/")
        }
        graph = Graph(EdgeIndex(pairs, int(nodes.size)), **features)
        return Sample(graph, nodes, edges, int(seeds.size))

    def _drawn(self, nodes: Array, limit: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Which of the nodes each drawn entry belongs to, and where it is among the sources."""
        starts = np.asarray(self._arrays["pointers"][nodes], np.int64)
        counts = np.asarray(self._arrays["pointers"][nodes + 1], np.int64) - starts
        owner = np.repeat(np.arange(nodes.size), counts)
        at = repeated_ranges(starts, counts)
        if limit < 0 or not (counts > limit).any():
            return owner, at
        # the entries of least random numbers, in their old order
        order = np.lexsort((rng.random(at.size), owner))
        rank = np.arange(at.size) - np.repeat(np.cumsum(counts) - counts, counts)
        keep = np.sort(order[rank < limit])
        return owner[keep], at[keep]
