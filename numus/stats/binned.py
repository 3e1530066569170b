"""Statistics of values in bins."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numus as nm
from numus.errors import ShapeError
from numus.stats.descriptive import floats
from numus.tensor import ArrayLike, Tensor

__all__ = ["binned_statistic"]


class Binned(NamedTuple):
    """The result of `binned_statistic`."""

    statistic: Tensor
    bin_edges: Tensor
    binnumber: Tensor


def binned_statistic(
    x: ArrayLike, values: ArrayLike, statistic: str = "mean", bins: Any = 10, range: Any = None
) -> Binned:
    """A statistic of the values whose x fall into each bin: "mean", "std", "sum", "count", "min"
    or "max".

    >>> at, values = nm.asarray([0.1, 0.2, 0.9]), nm.asarray([1, 3, 8])
    >>> found = nm.stats.binned_statistic(at, values, bins=2)
    >>> found.statistic.tolist()
    [2.0, 8.0]
    """
    op = "binned_statistic"
    at, given = floats(x), floats(values)
    if at.shape != given.shape or at.ndim != 1:
        raise ShapeError(f"{op}: needs as many values as points, not {given.shape}, {at.shape}")
    edges = nm.histogram_bin_edges(at, bins, range)
    count = edges.shape[0] - 1
    index = nm.searchsorted(nm.astype(edges, at.dtype), at, side="right")
    index = nm.where(at == edges[-1], count, index)
    inside = (index >= 1) & (index <= count)
    place = nm.where(inside, index - 1, count)
    held = nm.bincount(place, length=count + 1)[:count]
    number = nm.astype(held, given.dtype)
    reduce = {"sum": nm.segment_sum, "min": nm.segment_min, "max": nm.segment_max}
    if statistic == "count":
        found = number
    elif statistic in reduce:
        found = reduce[statistic](given, place, count + 1)[:count]
        if statistic != "sum":
            found = nm.where(held == 0, math.nan, found)
    elif statistic in ("mean", "std"):
        mean = nm.segment_sum(given, place, count + 1)[:count] / number
        found = mean
        if statistic == "std":
            centre = nm.concat([mean, mean[:1] * 0])[place]
            squares = nm.segment_sum((given - centre) ** 2, place, count + 1)[:count]
            found = nm.sqrt(squares / number)
    else:
        raise ValueError(f"{op}: there is no statistic {statistic!r}")
    return Binned(found, edges, index)
