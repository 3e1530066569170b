"""What graph layers share: operands of bipartite graphs, first values, normalised edges."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import numus as nm
from numus import nn
from numus.errors import ShapeError
from numus.graphs.edges import EdgeIndex, as_edges, on_edges
from numus.graphs.messages import reduced, reduced_entries
from numus.graphs.operators import add_self_loops, degree, edges_on
from numus.nn import init
from numus.sparse.pattern import OnDevices
from numus.tensor import Tensor

Channels = int | tuple[int, int]


def both(channels: Channels) -> tuple[int, int]:
    """Of sources and targets."""
    return (channels, channels) if isinstance(channels, int) else (channels[0], channels[1])


def operands(
    x: Any, edge_index: Any, layer: str, size: tuple[int, int] | None = None
) -> tuple[EdgeIndex, Tensor, Tensor | None]:
    """Edges, features of sources and, unless they are not given, of targets."""
    if isinstance(x, tuple):
        first, second = x
        source = nm.asarray(first)
        target = None if second is None else nm.asarray(second)
    else:
        source = target = nm.asarray(x)
    if source.ndim != 2:
        raise ShapeError(
            f"{layer}: features have the shape (nodes, channels), not {tuple(source.shape)}"
        )
    given = getattr(edge_index, "edges", edge_index)
    if isinstance(given, EdgeIndex):
        edges = given
    else:
        targets = source.shape[0] if target is None else target.shape[0]
        edges = as_edges(edge_index, size or (source.shape[0], targets))
    counts = (source.shape[0], edges.sizes[1] if target is None else target.shape[0])
    if edges.sizes != counts:
        raise ShapeError(f"{layer}: {edges!r} with features of {counts} sources and targets")
    return edges, source, target


def glorot_(parameter: Any) -> None:
    """Draw uniform values by the last two extents (Glorot & Bengio 2010)."""
    if parameter is not None:
        bound = math.sqrt(6.0 / (parameter.shape[-2] + parameter.shape[-1]))
        init.uniform_(parameter, -bound, bound)


def glorot_linear(inputs: int, outputs: int, bias: bool = False) -> nn.Linear:
    """A linear layer with Glorot's first weights, and a bias of zeros."""
    made = nn.Linear(inputs, outputs, bias=bias)
    glorot_(made.weight)
    if made.bias is not None:
        init.zeros_(made.bias)
    return made


def zero_bias(count: int, bias: bool) -> nn.Parameter | None:
    return nn.Parameter(nm.zeros((count,))) if bias else None


def edge_features(edges: EdgeIndex, given: Any, layer: str, like: Tensor) -> Tensor:
    """Features of edges, as (edges, channels)."""
    found = nm.asarray(given, device=like.device)
    found = found[:, None] if found.ndim == 1 else found
    if found.ndim != 2 or found.shape[0] != edges.num_edges:
        raise ShapeError(
            f"{layer}: edge features of shape {tuple(found.shape)} for {edges.num_edges} edges"
        )
    return found


def looped_features(
    edges: EdgeIndex, features: Tensor | None, fill: Any
) -> tuple[EdgeIndex, Tensor | None]:
    """One loop at each node in place of those that there are; their features are a number, or a
    reduction ("mean", …) of those that arrive."""
    looped, keep = edges.looped
    if features is None:
        return looped, None
    kept = nm.take(features, nm.asarray(keep, device=features.device), axis=0)
    count = min(edges.sizes)
    if isinstance(fill, str):
        own = edges.selected(keep)
        loops = reduced_entries(own.pattern, own.by_rows(kept), fill)[:count]
    else:
        value = nm.asarray(fill, dtype=features.dtype, device=features.device)
        loops = nm.broadcast_to(value, (count, *features.shape[1:]))
    return looped, nm.concat([kept, loops], axis=0)


def normalized(
    edges: EdgeIndex, edge_weight: Any, like: Tensor, *, loops: bool, improved: bool = False,
    normalize: bool = True,
) -> Callable[[Tensor], Tensor]:  # fmt: skip
    """The product with D^(−1/2) (A + I) D^(−1/2) (Kipf & Welling 2017).

    Without weights it is a sum over neighbours, scaled before and after, and reads no values.
    """
    if edge_weight is None:
        looped = edges.looped[0] if loops and normalize else edges
        pattern = looped.pattern
        if not normalize:
            return lambda x: reduced(pattern, None, x, "sum")
        scale = _inverse_root(looped, like)
        return lambda x: scale * reduced(pattern, None, scale * x, "sum")
    weight = on_edges("edge_weight", edges, edge_weight, single=True, like=like)
    if not normalize:
        return lambda x: reduced(edges.pattern, edges.by_rows(weight), x, "sum")
    if loops:
        edges, found = add_self_loops(edges, weight, 2.0 if improved else 1.0)
        assert found is not None
        weight = found
    total = degree(edges, weight)
    some = total > 0
    safe = nm.where(some, total, nm.ones((), dtype=total.dtype, device=total.device))
    root = nm.where(some, nm.rsqrt(safe), nm.zeros((), dtype=total.dtype, device=total.device))
    weight = weight * nm.take(root, edges_on(edges.source, weight), axis=0)
    weight = weight * nm.take(root, edges_on(edges.target, weight), axis=0)
    values = edges.by_rows(weight)
    return lambda x: reduced(edges.pattern, values, x, "sum")


def _inverse_root(edges: EdgeIndex, like: Tensor) -> Tensor:
    """1 / sqrt(degree) as a column, 0 for nodes without edges; kept with the edges."""
    kept = edges.__dict__.setdefault("inverse_roots", {})
    if like.dtype.name not in kept:
        degrees = edges.in_degrees.astype(np.float64)
        root = np.where(degrees > 0, 1 / np.sqrt(np.maximum(degrees, 1)), 0)[:, None]
        kept[like.dtype.name] = OnDevices(
            root.astype(np.float64 if like.dtype is nm.float64 else np.float32)
        )
    return Tensor(kept[like.dtype.name].on(like.device)).astype(like.dtype, copy=False)
