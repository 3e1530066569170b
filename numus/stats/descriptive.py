"""Descriptive statistics: moments, means, spread, ranks, entropy."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numus as nm
from numus.errors import ShapeError
from numus.functions.ordering.selection import longest_runs
from numus.shapes import normal_axis
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "entropy", "gmean", "hmean", "iqr", "kurtosis", "mad", "median_abs_deviation", "mode", "moment",
    "rankdata", "sem", "skew", "trim_mean", "variation", "zscore",
]  # fmt: skip


def floats(x: Any) -> Tensor:
    """An operand as a tensor of inexact numbers."""
    given = nm.asarray(x)
    return given if given.dtype.is_inexact else nm.astype(given, nm.float32)


def lanes(x: Any, axis: int | None) -> tuple[Tensor, int]:
    """Floats and the axis to reduce; None takes all of them as one."""
    given = floats(x)
    if axis is None or given.ndim == 0:
        return nm.reshape(given, -1), 0
    return given, normal_axis(axis, given.ndim, "stats")


def _central(x: Tensor, axis: int, order: int) -> Tensor:
    centred = x - nm.mean(x, axis, keepdims=True)
    return nm.mean(centred**order, axis)


def moment(a: ArrayLike, order: int = 1, axis: int | None = 0, *, center: Any = None) -> Tensor:
    """The mean of powers of the deviations from the mean, or from `center`.

    >>> nm.stats.moment(nm.asarray([1.0, 2.0, 3.0]), 2).item()
    0.6666666865348816
    """
    x, at = lanes(a, axis)
    about = nm.mean(x, at, keepdims=True) if center is None else center
    return nm.mean((x - about) ** order, at)


def skew(a: ArrayLike, axis: int | None = 0, bias: bool = True) -> Tensor:
    """The skewness: the third standardised moment (Fisher-Pearson).

    Args:
        bias: False corrects for the size of the sample.

    >>> nm.stats.skew(nm.asarray([1.0, 2.0, 3.0])).item()
    0.0
    """
    x, at = lanes(a, axis)
    n = x.shape[at]
    found = _central(x, at, 3) / _central(x, at, 2) ** 1.5
    return found if bias or n < 3 else found * math.sqrt(n * (n - 1)) / (n - 2)


def kurtosis(a: ArrayLike, axis: int | None = 0, fisher: bool = True, bias: bool = True) -> Tensor:
    """The kurtosis: the fourth standardised moment, less the normal distribution's 3.

    Args:
        fisher: False does not subtract 3.
        bias: False corrects for the size of the sample.

    >>> round(nm.stats.kurtosis(nm.asarray([1.0, 2.0, 3.0])).item(), 4)
    -1.5
    """
    x, at = lanes(a, axis)
    n = x.shape[at]
    found = _central(x, at, 4) / _central(x, at, 2) ** 2
    if not bias and n > 3:
        found = ((n * n - 1) * found - 3 * (n - 1) ** 2) / ((n - 2) * (n - 3)) + 3
    return found - 3 if fisher else found


class ModeResult(NamedTuple):
    """The result of `mode`."""

    mode: Tensor
    count: Tensor  # type: ignore[assignment]  # the name that SciPy has


def mode(a: ArrayLike, axis: int | None = 0, keepdims: bool = False) -> ModeResult:
    """The most frequent element, the smallest of several, and how often it occurs.

    >>> [x.item() for x in nm.stats.mode(nm.asarray([3, 1, 3, 2]))]
    [3, 2]
    """
    given = nm.asarray(a)
    x = nm.reshape(given, -1) if axis is None else given
    at = normal_axis(0 if axis is None else axis, x.ndim, "mode")
    values, counts = longest_runs(nm.sort(x, axis=at), at)
    if keepdims:
        shape = (1,) * given.ndim if axis is None else values.shape
        return ModeResult(nm.reshape(values, shape), nm.reshape(counts, shape))
    return ModeResult(nm.squeeze(values, at), nm.squeeze(counts, at))


def _weighted_mean(x: Tensor, axis: int, weights: Any) -> Tensor:
    return nm.average(x, axis, None if weights is None else nm.asarray(weights))


def gmean(a: ArrayLike, axis: int | None = 0, *, weights: Any = None) -> Tensor:
    """The geometric mean: the exponential of the mean logarithm.

    >>> round(nm.stats.gmean(nm.asarray([1.0, 4.0])).item(), 5)
    2.0
    """
    x, at = lanes(a, axis)
    return nm.exp(_weighted_mean(nm.log(x), at, weights))


def hmean(a: ArrayLike, axis: int | None = 0, *, weights: Any = None) -> Tensor:
    """The harmonic mean: the inverse of the mean inverse.

    >>> nm.stats.hmean(nm.asarray([1.0, 1.0])).item()
    1.0
    """
    x, at = lanes(a, axis)
    return 1 / _weighted_mean(1 / x, at, weights)


def sem(a: ArrayLike, axis: int | None = 0, ddof: int = 1) -> Tensor:
    """The standard error of the mean."""
    x, at = lanes(a, axis)
    return nm.std(x, at, correction=ddof) / math.sqrt(x.shape[at])


def variation(a: ArrayLike, axis: int | None = 0, ddof: int = 0) -> Tensor:
    """The coefficient of variation: the standard deviation over the mean."""
    x, at = lanes(a, axis)
    return nm.std(x, at, correction=ddof) / nm.mean(x, at)


def zscore(a: ArrayLike, axis: int | None = 0, ddof: int = 0) -> Tensor:
    """The deviations from the mean in standard deviations.

    >>> nm.stats.zscore(nm.asarray([1.0, 3.0])).tolist()
    [-1.0, 1.0]
    """
    x, at = lanes(a, axis)
    spread = nm.std(x, at, correction=ddof, keepdims=True)
    return nm.reshape((x - nm.mean(x, at, keepdims=True)) / spread, nm.asarray(a).shape)


def iqr(
    x: ArrayLike, axis: Any = None, rng: tuple[float, float] = (25, 75), scale: float = 1.0
) -> Tensor:
    """The range between two percentiles, the quartiles unless told otherwise.

    >>> nm.stats.iqr(nm.arange(5.0)).item()
    2.0
    """
    low, high = nm.percentile(x, list(rng), axis)
    return (high - low) / scale


def median_abs_deviation(x: ArrayLike, axis: int | None = 0, *, scale: Any = 1.0) -> Tensor:
    """The median of the absolute deviations from the median.

    Args:
        scale: a divisor, or "normal", with which it estimates a normal standard deviation.

    >>> nm.stats.mad(nm.asarray([1.0, 2.0, 4.0])).item()
    1.0
    """
    y, at = lanes(x, axis)
    found = nm.median(nm.abs(y - nm.median(y, at, keepdims=True)), at)
    return found / (0.6744897501960817 if scale == "normal" else scale)


mad = median_abs_deviation


def trim_mean(a: ArrayLike, proportiontocut: float, axis: int | None = 0) -> Tensor:
    """The mean without a proportion of the elements at each end.

    >>> nm.stats.trim_mean(nm.asarray([0.0, 1.0, 2.0, 99.0]), 0.25).item()
    1.5
    """
    x, at = lanes(a, axis)
    cut = int(proportiontocut * x.shape[at])
    if 2 * cut >= x.shape[at]:
        raise ShapeError(f"trim_mean: proportiontocut={proportiontocut} leaves no element")
    kept = nm.narrow(nm.sort(x, axis=at), at, cut, x.shape[at] - 2 * cut)
    return nm.mean(kept, at)


def entropy(pk: ArrayLike, qk: Any = None, base: float | None = None, axis: int = 0) -> Tensor:
    """The entropy of a distribution, or its divergence from another (Kullback-Leibler); both are
    scaled to sum to 1.

    >>> round(nm.stats.entropy(nm.asarray([0.5, 0.5]), base=2).item(), 5)
    1.0
    """
    p, at = lanes(pk, axis)
    p = p / nm.sum(p, at, keepdims=True)
    if qk is None:
        terms = nm.special.entr(p)
    else:
        q = floats(qk)
        terms = nm.special.rel_entr(p, q / nm.sum(q, at, keepdims=True))
    total = nm.sum(terms, at)
    return total if base is None else total / math.log(base)


def rankdata(a: ArrayLike, method: str = "average", *, axis: int | None = None) -> Tensor:
    """The rank of each element along an axis, from 1; ties by "average", "min", "max", "dense" or
    "ordinal".

    >>> nm.stats.rankdata(nm.asarray([10, 30, 20, 20])).tolist()
    [1.0, 4.0, 2.5, 2.5]
    """
    if method not in ("average", "min", "max", "dense", "ordinal"):
        raise ValueError(f"rankdata: there is no method {method!r} for ties")
    given = nm.asarray(a)
    x = nm.reshape(given, -1) if axis is None else given
    at = normal_axis(0 if axis is None else axis, x.ndim, "rankdata")
    lines = nm.moveaxis(x, at, -1)
    n = lines.shape[-1]
    order = nm.argsort(lines, axis=-1)
    ordered = nm.take_along_axis(lines, order, axis=-1)
    position = nm.arange(n, device=x.device)
    if method == "ordinal":
        rank = nm.broadcast_to(position + 1, lines.shape)
    else:
        new = ordered != nm.roll(ordered, 1, axis=-1)
        new = new | (position == 0)
        first = nm.cummax(nm.where(new, position, 0), -1)
        last = nm.roll(new, -1, axis=-1) | (position == n - 1)
        backwards = nm.flip(nm.where(last, position, n), -1)
        end = nm.flip(nm.cummin(backwards, -1), -1)
        if method == "dense":
            rank = nm.cumsum(nm.astype(new, nm.int64), axis=-1)
        else:
            rank = {"min": first + 1, "max": end + 1}.get(method)  # type: ignore[assignment]
            if method == "average":
                wide = nm.float64 if lines.dtype is nm.float64 else nm.float32
                rank = nm.astype(first + end + 2, wide) / 2
    found = nm.zeros_like(lines, dtype=rank.dtype)
    found = nm.put_along_axis(found, order, rank, axis=-1)
    return nm.moveaxis(found, -1, at)
