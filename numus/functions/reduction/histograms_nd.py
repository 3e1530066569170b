"""Histograms over several axes, bin edges by estimators, and PyTorch's names of both."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions import api as nm
from numus.functions._base import as_line, common, method, node_of, operand, require, wrap
from numus.functions.reduction.histograms import counted, even_edges, even_index, search_bins
from numus.primitives.views import reshape
from numus.shapes import as_int, is_sequence, size_of
from numus.tensor import ArrayLike, Tensor

__all__ = ["bucketize", "histc", "histogram2d", "histogram_bin_edges", "histogramdd"]


def histogram_bin_edges(
    x: ArrayLike, /, bins: Any = 10, range: tuple[float, float] | None = None, weights: Any = None
) -> Tensor:
    """The edges that `histogram` uses: of bins of equal width, as many as `bins` says.

    Args:
        bins: a number, the edges themselves, or NumPy's name of an estimator, such as "auto",
            "fd" or "sturges", which evaluates x.

    >>> nm.histogram_bin_edges(nm.asarray([0.0, 4.0]), 2).tolist()
    [0.0, 2.0, 4.0]
    """
    op = "histogram_bin_edges"
    if isinstance(bins, str):
        host = operand(op, x).detach().numpy()
        bins = len(np.histogram_bin_edges(host, bins, range, weights)) - 1
    node = require(op, node_of(x, op), "bool", "uint", "int", "float")
    if is_sequence(bins):
        return nm.asarray(bins)
    flat = reshape(node, (size_of(node.shape),))
    return wrap(even_edges(flat, as_int(bins, "bins", op), range).line(flat))


def histogramdd(
    sample: Any,
    bins: Any = 10,
    range: Any = None,
    density: bool | None = None,
    weights: Any = None,
) -> tuple[Tensor, list[Tensor]]:
    """How many points fall into each bin of a grid, and the edges of the bins along each axis.

    Args:
        sample: points as rows, or a sequence of their coordinates along each axis.
        bins: how many along every axis, or for each axis how many or the edges.
        range: for each axis where the bins begin and end, or None.
        density: scale so that the integral over the grid is 1.
        weights: what each point counts for.

    >>> counts, edges = nm.histogramdd(nm.asarray([[0.0, 0.0], [1.0, 1.0], [1.0, 0.9]]), 2)
    >>> counts.tolist()
    [[1.0, 0.0], [0.0, 2.0]]
    """
    op = "histogramdd"
    points = nm.stack(list(sample), 1) if isinstance(sample, (tuple, list)) else operand(op, sample)
    points = nm.reshape(points, (-1, 1)) if points.ndim == 1 else points
    if points.ndim != 2:
        raise ShapeError(f"{op}: takes points as rows of a matrix, not shape {points.shape}")
    count, rank = points.shape
    per_axis = list(bins) if is_sequence(bins) else [bins] * rank
    limits = [None] * rank if range is None else list(range)
    if len(per_axis) != rank or len(limits) != rank:
        raise ShapeError(f"{op}: points of {rank} coordinates need bins and ranges for each")
    flat: Any = nm.zeros((count,), dtype=dt.int64, device=points.device)
    inside: Any = nm.ones((count,), dtype=dt.bool_, device=points.device)
    all_edges = []
    for axis in builtins.range(rank):
        edges, index = _bins(op, points[:, axis], per_axis[axis], limits[axis])
        n = edges.shape[0] - 1
        inside = inside & (index >= 0) & (index < n)
        flat = flat * n + index
        all_edges.append(edges)
    extents = tuple(e.shape[0] - 1 for e in all_edges)
    flat = nm.where(inside, flat, size_of(extents))
    one = dt.float64 if points.dtype is dt.float64 else dt.float32
    weight = nm.ones((count,), dtype=one, device=points.device)
    if weights is not None:
        weight = nm.astype(operand(op, weights), one)
    found = wrap(counted(flat._node, weight._node, size_of(extents)))
    found = nm.reshape(found, extents)
    if density:
        for axis, edges in enumerate(all_edges):
            widths = nm.astype(nm.diff(edges), found.dtype)
            found = found / as_line(widths, axis, rank)
        found = found / nm.sum(weight * nm.astype(inside, weight.dtype))
    return found, all_edges


def _bins(op: str, x: Tensor, bins: Any, limits: Any) -> tuple[Tensor, Tensor]:
    """The edges along one axis, and the bin of each coordinate; one outside, where in none."""
    node = require(op, x._node, "bool", "uint", "int", "float")
    if is_sequence(bins):
        edges = nm.asarray(bins)
        line, values = common(op, edges, x)
        return edges, wrap(search_bins(line, values))
    number = as_int(bins, "bins", op)
    even = even_edges(node, number, limits)
    return wrap(even.line(node)), wrap(even_index(even, node, op))


def histogram2d(
    x: ArrayLike,
    y: ArrayLike,
    /,
    bins: Any = 10,
    range: Any = None,
    density: bool | None = None,
    weights: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """How many points fall into each bin of a plane, and the edges of the bins.

    >>> counts, _, _ = nm.histogram2d(nm.asarray([0.0, 1.0]), nm.asarray([0.0, 1.0]), 2)
    >>> counts.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if is_sequence(bins) and len(list(bins)) not in (1, 2):
        bins = [bins, bins]
    given = [operand("histogram2d", x), operand("histogram2d", y)]
    counts, edges = histogramdd(given, bins, range, density, weights)
    return counts, edges[0], edges[1]


@method()
def histc(x: ArrayLike, /, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements fall into each of `bins` bins from min to max, in x's dtype; from the
    smallest element to the largest, where both are 0.

    >>> nm.histc(nm.asarray([1.0, 2.0, 1.0]), 4, 0, 3).tolist()
    [0.0, 2.0, 1.0, 0.0]
    """
    given = operand("histc", x)
    limits = None if min == max == 0 else (min, max)
    return nm.astype(nm.histogram(given, bins, limits)[0], given.dtype)


def bucketize(x: ArrayLike, boundaries: Any, /, *, right: bool = False) -> Tensor:
    """The bin of each element among sorted boundaries.

    Args:
        right: whether a boundary belongs to the bin after it.

    >>> nm.bucketize(nm.asarray([3, 6]), nm.asarray([1, 3, 5])).tolist()
    [1, 3]
    """
    given = operand("bucketize", x)
    side = "right" if right else "left"
    found = nm.searchsorted(nm.asarray(boundaries), nm.reshape(given, -1), side=side)
    return nm.reshape(found, given.shape)
