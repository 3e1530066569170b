"""Histograms: bin counts, bin edges, and the bin of each value."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numus import dtypes as dt
from numus.errors import DTypeError, ShapeError
from numus.evaluation.evaluate import check_known, evaluate, host_array
from numus.functions._base import as_number, common, method, node_of, require, wrap
from numus.functions.indexing.index_checks import as_index, int_constant
from numus.functions.indexing.searching import count_before
from numus.functions.template_cache import templated
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, full, reduce_sum
from numus.primitives.indexing import scatter
from numus.primitives.reduce import reduce_max, reduce_min
from numus.primitives.source import constant, iota
from numus.primitives.structure import concat
from numus.primitives.views import flip, reshape, take_range
from numus.shapes import as_int, is_sequence, size_of
from numus.tensor import ArrayLike, Tensor

__all__ = ["bincount", "digitize", "histogram"]

MAX_EVEN_BINS = 1 << 16  # among more a quotient may miss by more than one


def counted(index: Node, weights: Node | None, length: int) -> Node:
    """The (weighted) counts of 0 … length - 1; other indices are dropped."""
    if weights is None:
        weights = full(index.shape, 1, dt.int64)
    return scatter(full((length,), 0, weights.dtype), (index,), weights, (0,), "add")


def _weights(given: Any, like: Node, op: str) -> Node | None:
    if given is None:
        return None
    weights = node_of(given, op, like.device)
    if weights.shape != like.shape:
        raise ShapeError(f"{op}: weights of shape {weights.shape} for values of shape {like.shape}")
    if weights.dtype is dt.bool_:
        weights = ew.cast(weights, dt.int64)
    return reshape(weights, (size_of(weights.shape),))


@method()
def bincount(
    x: ArrayLike, /, weights: Any = None, minlength: int = 0, *, length: int | None = None
) -> Tensor:
    """How often each of 0, 1, 2, … occurs among integers that are not negative.

    Args:
        weights: what each element counts for, instead of 1.
        minlength: the least number of bins. The number depends on the largest element: x is
            evaluated.
        length: the exact number of bins; nothing is evaluated, and elements outside are not
            counted.

    >>> nm.bincount(nm.asarray([0, 1, 1, 3])).tolist()
    [1, 2, 0, 1]
    """
    op = "bincount"
    node = node_of(x, op)
    if node.ndim != 1 or not (node.dtype.is_integer or node.dtype is dt.bool_):
        raise DTypeError(
            f"{op}: takes a vector of integers, not {node.dtype.name} of shape {node.shape}"
        )
    index = as_index(node)
    if length is None:
        length = max(as_int(minlength, "minlength", op), _span(index))
    length = as_int(length, "length", op)
    if length < 0:
        raise ShapeError(f"{op}: the number of bins must not be negative, but is {length}")
    return wrap(counted(index, _weights(weights, node, op), length))


def _span(index: Node) -> int:
    """One more than the largest of indices, none of which may be negative."""
    check_known(index, "bincount", "give the number of bins by length=")
    if size_of(index.shape) == 0:
        return 0
    low, high = host_ends(index)
    if low < 0:
        raise ValueError(f"bincount: there is no bin for {low}: elements must not be negative")
    return high + 1


def host_ends(node: Node) -> tuple[int, int]:
    """The least and the largest of a vector of integers, evaluated with it: one transfer."""
    least, most = (reshape(r(node, (0,)), (1,)) for r in (reduce_min, reduce_max))
    ends = concat((least, most), 0)
    evaluate((ends, node))
    low, high = host_array(ends).tolist()
    return low, high


def histogram(
    x: ArrayLike,
    /,
    bins: int | Any = 10,
    range: tuple[float, float] | None = None,
    density: bool = False,
    weights: Any = None,
) -> tuple[Tensor, Tensor]:
    """How many elements fall into each bin, and the edges of the bins.

    Args:
        bins: how many of equal width, or the edges, ascending.
        range: where the bins of equal width begin and end; the least and largest element, unless
            told otherwise. Elements outside count nowhere.
        density: scale so that the integral over the bins is 1.
        weights: what each element counts for, instead of 1.

    Each bin holds its left edge and not its right one, except the last, which holds both.

    >>> counts, edges = nm.histogram(nm.asarray([1.0, 2.0, 2.0, 4.0]), bins=3)
    >>> counts.tolist(), edges.tolist()
    ([1, 2, 1], [1.0, 2.0, 3.0, 4.0])
    """
    op = "histogram"
    given = require(op, node_of(x, op), "bool", "uint", "int", "float")
    if not is_sequence(bins):
        bins = as_int(bins, "bins", op)
        limits = bins, *_limits(bins, range)
        edges = _even_line(wrap(given), *limits)._node
        if weights is None:
            found = _even_counts(wrap(given), *limits)._node
        else:
            found = counted(_even_index(given, *limits), _weights(weights, given, op), bins)
    else:
        edges = require(op, node_of(bins, op), "uint", "int", "float")
        if edges.ndim != 1 or edges.shape[0] < 1:
            raise ShapeError(f"{op}: edges are a vector, not an array of shape {edges.shape}")
        line, values = common(op, wrap(edges), wrap(_flat(given)))
        index = search_bins(line, values)
        found = counted(index, _weights(weights, given, op), edges.shape[0] - 1)
    count = edges.shape[0] - 1
    if density:
        widths = ew.sub(take_range(edges, 0, 1, count + 1), take_range(edges, 0, 0, count))
        heights, widths = common(op, wrap(found), wrap(widths))
        if not heights.dtype.is_inexact:
            heights, widths = (ew.cast(n, dt.default_float) for n in (heights, widths))
        found = ew.div(ew.div(heights, widths), reduce_sum(heights, (0,)))
    return wrap(found), wrap(edges)


def _flat(node: Node) -> Node:
    return reshape(node, (size_of(node.shape),))


def _limits(bins: int, limits: tuple[float, float] | None) -> tuple[float, float] | tuple[()]:
    """Where bins of equal width begin and end, if that is given."""
    if bins < 1:
        raise ValueError(f"histogram: needs at least one bin, not {bins}")
    if limits is None:
        return ()
    low, high = (float(as_number(x, "range", "histogram")) for x in limits)
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ValueError(f"histogram: {limits} is not a range of finite numbers, least first")
    return low, high


@templated
def _even_line(x: Tensor, bins: int, *limits: float) -> Tensor:
    return wrap(_even_edges(_flat(x._node), bins, limits).line(x._node))


@templated
def _even_counts(x: Tensor, bins: int, *limits: float) -> Tensor:
    return wrap(counted(_even_index(x._node, bins, *limits), None, bins))


def _even_index(node: Node, bins: int, *limits: float) -> Node:
    """The bin of equal width of each value."""
    flat = _flat(node)
    return even_index(_even_edges(flat, bins, limits), flat, "histogram")


def even_index(edges: EvenEdges, values: Node, op: str) -> Node:
    line, values = common(op, wrap(edges.line(values)), wrap(values))
    return even_bins(edges, values) if edges.bins <= MAX_EVEN_BINS else search_bins(line, values)


def search_bins(edges: Node, values: Node) -> Node:
    """The bin of each value; one outside, where it falls into none."""
    count = edges.shape[0] - 1
    bins = ew.sub(count_before(edges, values, "right"), int_constant(1))
    last = reshape(take_range(edges, 0, count, count + 1), ())
    return ew.where(ew.eq(values, last), int_constant(count - 1), bins)


class EvenEdges(NamedTuple):
    """The edges of bins of equal width, scalars in a float dtype that tells the values apart."""

    first: Node
    end: Node
    step: Node
    bins: int

    def at(self, index: Node) -> Node:
        """The edges of these numbers (int64)."""
        dtype = self.first.dtype
        inner = ew.add(ew.mul(ew.cast(index, dtype), self.step), self.first)
        return ew.where(ew.eq(index, int_constant(self.bins)), self.end, inner)

    def line(self, like: Node) -> Node:
        """All of them."""
        return self.at(iota(self.bins + 1, dt.int64, like.device))


def even_edges(node: Node, bins: int, limits: tuple[float, float] | None) -> EvenEdges:
    """Of a vector; between its least and largest element, unless limits are given."""
    return _even_edges(node, bins, _limits(bins, limits))


def _even_edges(node: Node, bins: int, limits: tuple[float, ...]) -> EvenEdges:
    dtype = dt.promote(node.dtype, dt.default_float)
    if node.dtype.is_integer and node.dtype.itemsize > 2:
        dtype = dt.float64
    if limits:
        first, end = (constant(x, dtype) for x in limits)
    elif node.shape[0] == 0:
        first, end = constant(0.0, dtype), constant(1.0, dtype)
    else:
        first, end = (ew.cast(r(node, (0,)), dtype) for r in (reduce_min, reduce_max))
    half = ew.where(ew.eq(first, end), constant(0.5, dtype), constant(0.0, dtype))
    first, end = ew.sub(first, half), ew.add(end, half)
    step = ew.div(ew.sub(end, first), constant(float(bins), dtype))
    return EvenEdges(first, end, step, bins)


def even_bins(edges: EvenEdges, values: Node) -> Node:
    """The bins of equal width of values (of the edges' dtype): a quotient, corrected by the
    neighbouring edges, which are computed again rather than read.

    In 32 bits, which hold any number of bins that a float's quotient is good for.
    """
    first, end, _, count = edges
    dtype = first.dtype
    one, top = constant(1, dt.int32), constant(count - 1, dt.int32)
    scale = ew.div(constant(float(count), dtype), ew.sub(end, first))
    quotient = ew.mul(ew.sub(values, first), scale)
    bounds = constant(0.0, dtype), constant(float(count - 1), dtype)
    guess = ew.cast(ew.minimum(ew.maximum(quotient, bounds[0]), bounds[1]), dt.int32)
    at = ew.cast(guess, dt.int64)
    left, right = (edges.at(i) for i in (at, ew.add(at, int_constant(1))))
    guess = ew.where(ew.lt(values, left), ew.sub(guess, one), guess)
    guess = ew.where(ew.le(right, values), ew.add(guess, one), guess)
    in_range = ew.and_(ew.le(first, values), ew.le(values, end))
    found = ew.where(in_range, ew.minimum(guess, top), constant(count, dt.int32))
    return ew.cast(found, dt.int64)


def digitize(x: ArrayLike, bins: Any, /, right: bool = False) -> Tensor:
    """The bin of each element: i, where bins[i - 1] <= x < bins[i].

    Args:
        bins: edges, ascending or descending.
        right: whether a bin holds its right edge instead of its left one.

    >>> nm.digitize(nm.asarray([0.5, 1.0, 9.0]), nm.asarray([1.0, 2.0])).tolist()
    [0, 1, 2]
    """
    op = "digitize"
    values, edges = (require(op, n, "bool", "uint", "int", "float") for n in common(op, x, bins))
    if edges.ndim != 1:
        raise ShapeError(f"{op}: bins are a vector of edges, not an array of shape {edges.shape}")
    count = edges.shape[0]
    if count == 0:
        return wrap(full(values.shape, 0, dt.int64, values))
    ends = (take_range(edges, 0, i, i + 1) for i in (count - 1, 0))
    falling = ew.lt(*ends)
    line = ew.where(falling, flip(edges, (0,)), edges)
    found = count_before(line, values, "left" if right else "right")
    falling = broadcast(reshape(falling, ()), found.shape)
    return wrap(ew.where(falling, ew.sub(int_constant(count), found), found))
