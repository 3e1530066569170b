"""Distances of two points along the last axis; the other axes broadcast."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.tensor import ArrayLike, Tensor

Points = ArrayLike


def _floats(x: Any) -> Tensor:
    given = nm.asarray(x)
    return given if given.dtype.is_inexact else nm.astype(given, nm.float32)


def _weighted(x: Tensor, w: Any) -> Tensor:
    return x if w is None else x * nm.asarray(w)


def root(x: Tensor) -> Tensor:
    """The square root whose derivative at 0 is 0."""
    zero = x == 0
    return nm.where(zero, 0.0, nm.sqrt(nm.where(zero, 1.0, x)))


def sqeuclidean(u: Points, v: Points, w: Any = None) -> Tensor:
    """The squared Euclidean distance.

    >>> nm.distance.sqeuclidean(nm.asarray([0.0, 0.0]), nm.asarray([3.0, 4.0])).item()
    25.0
    """
    d = _floats(u) - _floats(v)
    return nm.sum(_weighted(d * d, w), -1)


def euclidean(u: Points, v: Points, w: Any = None) -> Tensor:
    """The Euclidean distance; its gradient at zero is zero.

    >>> nm.distance.euclidean(nm.asarray([0.0, 0.0]), nm.asarray([3.0, 4.0])).item()
    5.0
    """
    return root(sqeuclidean(u, v, w))


def manhattan(u: Points, v: Points, w: Any = None) -> Tensor:
    """The sum of the absolute differences."""
    return nm.sum(_weighted(nm.abs(_floats(u) - _floats(v)), w), -1)


cityblock = manhattan


def chebyshev(u: Points, v: Points, w: Any = None) -> Tensor:
    """The largest absolute difference."""
    gap = nm.abs(_floats(u) - _floats(v))
    return nm.max(gap if w is None else nm.where(nm.asarray(w) > 0, gap, 0.0), -1)


def minkowski(u: Points, v: Points, p: float = 2, w: Any = None) -> Tensor:
    """The p-norm of the difference.

    >>> nm.distance.minkowski(nm.asarray([0.0, 0.0]), nm.asarray([3.0, 4.0]), 1).item()
    7.0
    """
    if p == float("inf"):
        return chebyshev(u, v, w)
    if p == 1 or p == 2:
        return (manhattan if p == 1 else euclidean)(u, v, w)
    gap = nm.abs(_floats(u) - _floats(v))
    zero = gap == 0
    powers = nm.where(zero, 0.0, nm.where(zero, 1.0, gap) ** p)
    total = nm.sum(_weighted(powers, w), -1)
    none = total == 0
    return nm.where(none, 0.0, nm.where(none, 1.0, total) ** (1 / p))


def cosine(u: Points, v: Points, w: Any = None) -> Tensor:
    """One minus the cosine of the angle.

    >>> nm.distance.cosine(nm.asarray([1.0, 0.0]), nm.asarray([0.0, 1.0])).item()
    1.0
    """
    a, b = _floats(u), _floats(v)
    product = nm.sum(_weighted(a * b, w), -1)
    lengths = [nm.sqrt(nm.sum(_weighted(x * x, w), -1)) for x in (a, b)]
    return 1 - nm.clip(product / lengths[0] / lengths[1], -1, 1)


def correlation(u: Points, v: Points, w: Any = None) -> Tensor:
    """One minus Pearson's correlation coefficient of the coordinates."""
    a, b = _floats(u), _floats(v)
    if w is None:
        return cosine(a - nm.mean(a, -1, keepdims=True), b - nm.mean(b, -1, keepdims=True))
    share = nm.asarray(w) / nm.sum(nm.asarray(w))
    a, b = (x - nm.sum(x * share, -1, keepdims=True) for x in (a, b))
    return cosine(a, b, share)


def _mean_of(hits: Tensor, w: Any) -> Tensor:
    found = nm.astype(hits, nm.float32)
    if w is None:
        return nm.mean(found, -1)
    return nm.sum(found * nm.asarray(w), -1) / nm.sum(nm.asarray(w))


def hamming(u: Points, v: Points, w: Any = None) -> Tensor:
    """The share of coordinates that differ.

    >>> nm.distance.hamming(nm.asarray([1, 0, 0, 1]), nm.asarray([1, 1, 0, 1])).item()
    0.25
    """
    return _mean_of(nm.asarray(u) != nm.asarray(v), w)


def jaccard(u: Points, v: Points, w: Any = None) -> Tensor:
    """Of the coordinates in which one point is not zero, the share that differ."""
    a, b = nm.asarray(u), nm.asarray(v)
    either = (a != 0) | (b != 0)
    unequal = nm.sum(_weighted(nm.astype(either & (a != b), nm.float32), w), -1)
    total = nm.sum(_weighted(nm.astype(either, nm.float32), w), -1)
    return nm.where(total == 0, 0.0, unequal / nm.where(total == 0, 1.0, total))


def canberra(u: Points, v: Points, w: Any = None) -> Tensor:
    """The sum of |u - v| / (|u| + |v|), 0 where both are."""
    a, b = _floats(u), _floats(v)
    size = nm.abs(a) + nm.abs(b)
    share = nm.where(size == 0, 0.0, nm.abs(a - b) / nm.where(size == 0, 1.0, size))
    return nm.sum(_weighted(share, w), -1)


def braycurtis(u: Points, v: Points, w: Any = None) -> Tensor:
    """The sum of |u - v| over the sum of |u + v|."""
    a, b = _floats(u), _floats(v)
    gap, total = nm.abs(a - b), nm.abs(a + b)
    return nm.sum(_weighted(gap, w), -1) / nm.sum(_weighted(total, w), -1)


def mahalanobis(u: Points, v: Points, VI: Any) -> Tensor:
    """The length of the difference in the metric of an inverse covariance matrix.

    >>> nm.distance.mahalanobis(nm.asarray([0.0, 0.0]), nm.asarray([3.0, 4.0]), nm.eye(2)).item()
    5.0
    """
    d = _floats(u) - _floats(v)
    return root(nm.sum(nm.matmul(d, nm.asarray(VI)) * d, -1))
