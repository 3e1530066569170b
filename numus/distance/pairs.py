"""Distances of all pairs, condensed and square; nearest neighbours in linear memory."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import numus as nm
from numus.distance import metrics
from numus.distance.metrics import _floats, root
from numus.errors import ShapeError
from numus.evaluation.evaluate import is_known
from numus.tensor import ArrayLike, Tensor

_MIN_PRODUCT = 1 << 20  # products a * b of coordinates; fewer are as quick by differences
_MAX_CANCELLATION = 1 / 16  # of |a|^2 + |b|^2, below which a squared distance has lost digits
_NAMES = {"l2": "euclidean", "l1": "manhattan", "cityblock": "manhattan"}
_METRICS = (
    *("braycurtis", "canberra", "chebyshev", "correlation", "cosine", "euclidean", "hamming"),
    *("jaccard", "mahalanobis", "manhattan", "minkowski", "sqeuclidean"),
)


def _metric(op: str, metric: Any, points: Tensor, options: dict[str, Any]) -> Callable[..., Tensor]:
    if callable(metric):
        over_rows = nm.vmap(nm.vmap(metric, in_axes=(None, 0)), in_axes=(0, None))
        return lambda u, v: over_rows(u[:, 0], v[0])
    name = _NAMES.get(metric, metric)
    if name not in _METRICS:
        raise ValueError(f"{op}: there is no metric {metric!r}; use one of {', '.join(_METRICS)}")
    if name == "mahalanobis" and "VI" not in options:
        spread = nm.cov(nm.matrix_transpose(points))
        options = {**options, "VI": nm.linalg.inv(nm.reshape(spread, (points.shape[1],) * 2))}
    return functools.partial(getattr(metrics, name), **options)


def _points(op: str, *given: Any) -> list[Tensor]:
    found = [_floats(x) for x in given]
    for x in found:
        if x.ndim != 2 or x.shape[1] != found[0].shape[1]:
            shapes = " and ".join(str(x.shape) for x in found)
            raise ShapeError(f"{op}: takes points as rows of matrices, of one length, not {shapes}")
    return found


def cdist(XA: ArrayLike, XB: ArrayLike, metric: Any = "euclidean", **options: Any) -> Tensor:
    """The distance of each row of one matrix to each row of another.

    Euclidean distances of many points are computed by one matrix product, |a|^2 + |b|^2 - 2 a·b of
    centred points, where no pair is so close that digits would cancel; else by differences.

    Args:
        metric: the name of a distance of `nm.distance`, or a function of two vectors.
        options: the metric's: `p`, `w`, `VI`.

    >>> nm.distance.cdist(nm.asarray([[0.0, 0.0]]), nm.asarray([[3.0, 4.0], [0.0, 1.0]])).tolist()
    [[5.0, 1.0]]
    """
    a, b = _points("cdist", XA, XB)
    name = metric if callable(metric) else _NAMES.get(metric, metric)
    if name == "minkowski" and options.get("p", 2) == 2 and "w" not in options:
        name, options = "euclidean", {}
    if name in ("euclidean", "sqeuclidean") and not options and _is_large(a, b):
        squared = _squares(a, b)
        return squared if name == "sqeuclidean" else root(squared)
    measure = _metric("cdist", name, nm.concat([a, b]), options)
    return measure(nm.expand_dims(a, 1), nm.expand_dims(b, 0))


def _is_large(a: Tensor, b: Tensor) -> bool:
    """A matrix product pays; no gradient is recorded, which the differences keep exact."""
    count = a.shape[0] * b.shape[0] * a.shape[1]
    wanted = any(x.requires_grad for x in (a, b))
    return count >= _MIN_PRODUCT and not wanted and not a.dtype.is_complex


def _squares(a: Tensor, b: Tensor) -> Tensor:
    """Squared distances: by a matrix product, or by differences where it loses digits."""
    centre = nm.mean(b, 0)
    c, d = a - centre, b - centre
    sizes = nm.expand_dims(nm.sum(c * c, 1), 1) + nm.sum(d * d, 1)
    by_product = sizes - 2 * nm.matmul(c, nm.matrix_transpose(d))
    close = nm.any(by_product < sizes * _MAX_CANCELLATION)

    def by_differences(a: Tensor, b: Tensor, squared: Tensor) -> Tensor:
        difference = nm.expand_dims(a, 1) - nm.expand_dims(b, 0)
        return nm.sum(difference * difference, -1)

    found: Tensor = nm.cond(close, by_differences, lambda a, b, squared: squared, a, b, by_product)
    return found


def pdist(X: ArrayLike, metric: Any = "euclidean", **options: Any) -> Tensor:
    """The distances of all pairs of rows, each once: those of row 0, then of row 1, ...

    >>> nm.distance.pdist(nm.asarray([[0.0], [1.0], [3.0]])).tolist()
    [1.0, 3.0, 2.0]
    """
    (x,) = _points("pdist", X)
    i, j = (nm.asarray(k, device=x.device) for k in np.triu_indices(x.shape[0], 1))
    if callable(metric):
        return nm.vmap(metric)(x[i], x[j])
    return _metric("pdist", metric, x, options)(x[i], x[j])


def squareform(X: ArrayLike) -> Tensor:
    """A symmetric matrix from the distances of all pairs, or these from the matrix.

    >>> nm.distance.squareform(nm.asarray([1.0, 3.0, 2.0])).tolist()
    [[0.0, 1.0, 3.0], [1.0, 0.0, 2.0], [3.0, 2.0, 0.0]]
    """
    x = nm.asarray(X)
    if x.ndim == 2:
        if x.shape[0] != x.shape[1]:
            raise ShapeError(f"squareform: the matrix must be square, not of shape {x.shape}")
        return x[tuple(nm.asarray(k, device=x.device) for k in np.triu_indices(x.shape[0], 1))]
    n = math.isqrt(2 * x.size) + 1
    if x.ndim != 1 or n * (n - 1) // 2 != x.size:
        raise ShapeError(f"squareform: {x.shape} distances are not those of all pairs of points")
    i, j = np.triu_indices(n, 1)
    index = np.zeros((n, n), np.int64)
    index[i, j] = index[j, i] = np.arange(x.size) + 1
    padded = nm.concat([nm.zeros((1,), dtype=x.dtype, device=x.device), x])
    return padded[nm.asarray(index, device=x.device)]


class Neighbors(NamedTuple):
    """Distances to the nearest points, and their indices."""

    distances: Tensor
    indices: Tensor


def nearest_neighbors(
    X: ArrayLike,
    Y: ArrayLike,
    k: int = 1,
    metric: Any = "euclidean",
    *,
    batch_size: int = 1024,
    **options: Any,
) -> Neighbors:
    """The k rows of Y nearest to each row of X, nearest first, by brute force; a batch of rows of
    X is compared at a time, so that memory is linear in both.

    >>> found = nm.distance.nearest_neighbors(nm.asarray([[0.1]]), nm.asarray([[5.0], [0.0]]))
    >>> found.indices.tolist()
    [[1]]
    """
    x, y = _points("nearest_neighbors", X, Y)
    distances, indices = [], []
    for start in range(0, max(x.shape[0], 1), batch_size):
        gap = cdist(x[start : start + batch_size], y, metric, **options)
        found = nm.topk(gap, k, largest=False)
        if not gap.requires_grad and is_known(gap._node):
            nm.eval(found.values, found.indices)
        distances.append(found.values)
        indices.append(found.indices)
    return Neighbors(nm.concat(distances), nm.concat(indices))


class Hausdorff(NamedTuple):
    """A directed Hausdorff distance, and the rows between which it is."""

    distance: Tensor
    index_1: Tensor
    index_2: Tensor


def directed_hausdorff(u: ArrayLike, v: ArrayLike) -> Hausdorff:
    """The largest distance of a row of u to the nearest row of v.

    >>> u, v = nm.asarray([[0.0], [2.0]]), nm.asarray([[0.0], [1.0]])
    >>> nm.distance.directed_hausdorff(u, v).distance.item()
    1.0
    """
    nearest = nearest_neighbors(u, v)
    at = nm.argmax(nearest.distances[:, 0])
    return Hausdorff(nearest.distances[at, 0], at, nearest.indices[at, 0])
