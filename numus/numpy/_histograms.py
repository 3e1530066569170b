"""NumPy's histograms as functions of tensors: their edges and dtypes."""

from __future__ import annotations

from typing import Any

import numpy as host

import numus as nm
from numus import dtypes as dt
from numus.numpy._convert import cast, in_common_dtype, to_tensor
from numus.tensor import Tensor


def histogram(
    a: Tensor, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> Any:
    if weights is not None and weights.shape != a.shape:
        raise ValueError("weights should have the same shape as a.")
    x = cast(a, dt.float64) if not a.dtype.is_inexact else a
    edges = histogram_bin_edges(a, bins, range, weights)
    x, line = in_common_dtype([x, edges])
    flat = None if weights is None else nm.reshape(weights, -1)
    counts, _ = nm.histogram(nm.reshape(x, -1), line, weights=flat, density=bool(density))
    if density:
        return cast(counts, dt.float64), edges
    plain_count = weights is None or weights.dtype is dt.bool_
    return cast(counts, dt.int64 if plain_count else weights.dtype), edges


def histogram_bin_edges(a: Tensor, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    limits = None if range is None else tuple(range)
    given = bins if isinstance(bins, (str, int, host.integer)) else to_tensor(bins)
    given = int(given.item()) if isinstance(given, Tensor) and not given.ndim else given
    x = cast(a, dt.float64) if not a.dtype.is_inexact else a
    return nm.histogram_bin_edges(x, given, limits, weights)


def histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> Any:
    is_array = isinstance(sample, (Tensor, host.ndarray))
    x = cast(to_tensor(sample) if is_array else nm.transpose(to_tensor(sample)), dt.float64)
    many = bins if isinstance(bins, (list, tuple)) else [bins]
    if isinstance(bins, (list, tuple)) and len(bins) != x.shape[-1]:
        many = [bins]
    given = [cast(to_tensor(b), dt.float64) if host.ndim(b) else int(b) for b in map(_host, many)]
    given = given * x.shape[-1] if len(given) == 1 else given
    counts, edges = nm.histogramdd(x, given, range, density, weights)
    return cast(counts, dt.float64), tuple(edges)


def histogram2d(
    x: Tensor,
    y: Tensor,
    bins: Any = 10,
    range: Any = None,
    density: Any = None,
    weights: Any = None,
) -> Any:
    if x.shape != y.shape:
        raise ValueError("x and y must have the same length.")
    counts, edges = histogramdd(nm.stack([x, y], axis=1), bins, range, density, weights)
    return counts, *edges


def _host(x: Any) -> Any:
    return x.__array__() if isinstance(x, Tensor) else x
