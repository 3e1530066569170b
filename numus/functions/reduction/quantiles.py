"""Quantiles: all estimators of Hyndman and Fan (1996) and NumPy's others, weighted, without NaN.

Vectors of many elements are searched (`selection`), everything else is sorted along its axis, so
that derivatives flow to the one or two elements each quantile is made of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.evaluation.evaluate import check_known
from numus.functions import api as nm
from numus.functions._base import as_number, method, operand, require, to_float, wrap
from numus.functions.reduction import selection
from numus.functions.reduction.reductions import Axis, keepdims_shape
from numus.functions.spelling import spelled
from numus.shapes import normal_axes, size_of
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "median", "nanmedian", "nanpercentile", "nanquantile", "percentile", "quantile",
]  # fmt: skip

_MAX_SELECTED = 4  # quantiles; more of them are as quick by sorting

# alpha and beta of the continuous estimators: element n * q + alpha + q * (1 - alpha - beta) - 1
_CONTINUOUS = {
    "interpolated_inverted_cdf": (0.0, 1.0),
    "hazen": (0.5, 0.5),
    "weibull": (0.0, 0.0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
}
METHODS = (
    *("inverted_cdf", "averaged_inverted_cdf", "closest_observation"),
    *_CONTINUOUS,
    *("linear", "lower", "higher", "midpoint", "nearest"),
)


def _position(n: Any, q: Any, how: str, xp: Any) -> tuple[Any, Any]:
    """The index of the element below a quantile among n sorted ones, and how far the quantile is
    on the way to the next. `xp` is NumPy, or numus where n differs from lane to lane."""
    if how in _CONTINUOUS:
        alpha, beta = _CONTINUOUS[how]
        at = n * q + (alpha + q * (1 - alpha - beta)) - 1
        return xp.floor(at), at - xp.floor(at)
    if how in ("inverted_cdf", "averaged_inverted_cdf", "closest_observation"):
        at = n * q - 1 - (0.5 if how == "closest_observation" else 0.0)
        low = xp.floor(at)
        whole = at == low
        if how == "closest_observation":
            whole = whole & (xp.remainder(low, 2) == 1)
        part = 0.5 if how == "averaged_inverted_cdf" else 0.0
        return low, xp.where(whole, part, 1.0)
    at = (n - 1) * q
    low = xp.floor(at)
    if how == "linear":
        return low, at - low
    if how == "nearest":
        return xp.rint(at), at * 0
    steps = {"lower": 0.0, "higher": 1.0, "midpoint": 0.5}
    return low, xp.where(at == low, 0.0, steps[how])


def _between(low: Tensor, high: Tensor, part: Tensor) -> Tensor:
    """Interpolation that is exact at both ends."""
    span = high - low
    found = nm.where(part < 0.5, low + span * part, high - span * (1 - part))
    # infinities have no span, and are no part of what is exactly at one end
    found = nm.where((low == high) | (part == 0), low, found)
    return nm.where(part == 1, high, found)


def _probabilities(op: str, q: Any, scale: float) -> np.ndarray[Any, Any]:
    """q on the host, between 0 and 1."""
    if isinstance(q, Tensor):
        check_known(q._node, op, "give q as numbers")
        if q.size == 1:
            as_number(q, "q", op)  # refuses one that requires gradients
        q = q.detach().numpy()
    found: np.ndarray[Any, Any] = np.asarray(q, np.float64) / scale
    if not np.all((found >= 0) & (found <= 1)):
        raise ValueError(f"{op}: q must lie between 0 and {scale:g}, not {q}")
    return found


def _check_method(op: str, how: str) -> None:
    if how not in METHODS:
        raise ValueError(f"{op}: method must be one of {', '.join(METHODS)}, not {how!r}")


def _lanes(op: str, x: ArrayLike, axis: Axis) -> tuple[Tensor, tuple[int, ...], Tensor]:
    """The operand, its reduced axes, and the operand as floats with these axes as one, the last."""
    given = operand(op, x)
    require(op, given._node, "bool", "uint", "int", "float")
    floats = wrap(to_float(given._node))
    axes = normal_axes(axis, floats.ndim, op)
    kept = [i for i in range(floats.ndim) if i not in axes]
    lanes = nm.permute_dims(floats, (*kept, *axes))
    count = size_of(tuple(floats.shape[i] for i in axes))
    return given, axes, nm.reshape(lanes, (*(floats.shape[i] for i in kept), count))


def _finish(
    y: Tensor, x: Tensor, axes: tuple[int, ...], q: np.ndarray[Any, Any], keepdims: bool
) -> Tensor:
    """The quantiles (the last axis of y) as the first axis of the result, or none for one q."""
    y = nm.moveaxis(y, -1, 0)
    rest = keepdims_shape(x.shape, axes) if keepdims else y.shape[1:]
    return nm.reshape(y, (*q.shape, *rest))


def _wide(x: Tensor) -> Tensor:
    return nm.astype(x, dt.compute_dtype(x.dtype))


def _quantiles(
    op: str, x: ArrayLike, q: Any, axis: Axis, how: str, keepdims: bool, scale: float, weights: Any
) -> Tensor:
    _check_method(op, how)
    levels = _probabilities(op, q, scale)
    given, axes, lanes = _lanes(op, x, axis)
    if weights is not None:
        y = _weighted(op, lanes, _weights(op, weights, given, axes), levels, how)
        return _finish(nm.astype(y, lanes.dtype), given, axes, levels, keepdims)
    count = lanes.shape[-1]
    if count == 0:
        empty = nm.full((*lanes.shape[:-1], levels.size), np.nan, dtype=lanes.dtype)
        return _finish(empty.to_device(given.device), given, axes, levels, keepdims)
    below, part = _position(count, levels.reshape(-1), how, np)
    low = np.clip(below, 0, count - 1).astype(np.int64)
    high = np.clip(below + 1, 0, count - 1).astype(np.int64)
    part = np.where(below < 0, 0.0, np.where(below >= count - 1, 1.0, part))
    has_nan, pick = _sorted_lanes(lanes, levels.size)
    fraction = nm.asarray(part, dtype=dt.compute_dtype(lanes.dtype), device=given.device)
    y = nm.astype(_between(_wide(pick(low)), _wide(pick(high)), fraction), lanes.dtype)
    y = nm.where(nm.expand_dims(has_nan, -1), np.nan, y)
    return _finish(y, given, axes, levels, keepdims)


def _sorted_lanes(lanes: Tensor, levels: int) -> tuple[Tensor, Callable[[Any], Tensor]]:
    """Which lanes have NaN in them, and a function that reads ranks of every lane."""
    if levels <= _MAX_SELECTED and selection.can_select(lanes):
        has_nan = nm.any(nm.isnan(lanes), axis=-1)
        if not bool(has_nan):
            return has_nan, lambda ranks: selection.order_statistics(lanes, ranks.tolist())
    ordered = nm.sort(lanes, axis=-1)
    return nm.isnan(ordered[..., -1]), lambda ranks: ordered[..., ranks]


def _weights(op: str, weights: Any, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Weights with x's reduced axes as one, the last."""
    w = operand(op, weights)
    require(op, w._node, "bool", "uint", "int", "float")
    if w.shape != x.shape:
        if w.shape != tuple(x.shape[i] for i in axes):
            raise ShapeError(
                f"{op}: weights of shape {w.shape} fit neither x of shape {x.shape} nor its axes "
                f"{axes}; give one weight per element, or per index along these axes"
            )
        extents = tuple(x.shape[i] if i in axes else 1 for i in range(x.ndim))
        order = sorted(range(len(axes)), key=lambda i: axes[i])
        w = nm.broadcast_to(nm.reshape(nm.permute_dims(w, order), extents), x.shape)
    return _lanes(op, w, axes)[2]


def _weighted(op: str, lanes: Tensor, w: Tensor, levels: np.ndarray[Any, Any], how: str) -> Tensor:
    if how != "inverted_cdf":
        raise ValueError(f'{op}: weights need method="inverted_cdf", not {how!r}')
    order = nm.argsort(lanes, axis=-1)
    ordered = nm.take_along_axis(lanes, order, axis=-1)
    total = nm.cumsum(_wide(nm.take_along_axis(w, order, axis=-1)), axis=-1)
    # elements without weight are no quantile, not even at q = 0
    total = nm.where(total == 0, -1.0, total)
    wanted = nm.asarray(levels.reshape(-1), dtype=total.dtype, device=lanes.device)
    wanted = wanted * total[..., -1:]
    before = nm.sum(nm.expand_dims(total, -2) < nm.expand_dims(wanted, -1), axis=-1)
    index = nm.minimum(before, lanes.shape[-1] - 1)
    y = nm.take_along_axis(ordered, index, axis=-1)
    return nm.where(nm.isnan(ordered[..., -1:]), np.nan, y)


def _nan_quantiles(
    op: str,
    x: ArrayLike,
    q: Any,
    axis: Axis,
    how: str,
    keepdims: bool,
    scale: float,
    weights: Any = None,
) -> Tensor:
    _check_method(op, how)
    levels = _probabilities(op, q, scale)
    given, axes, lanes = _lanes(op, x, axis)
    if lanes.shape[-1] == 0:
        return _quantiles(op, x, q, axis, how, keepdims, scale, weights)
    if weights is not None:  # NaN is last in order, and weighs nothing
        none = nm.isnan(lanes)
        w = nm.where(none, 0, _weights(op, weights, given, axes))
        y = _weighted(op, nm.where(none, np.inf, lanes), w, levels, how)
        y = nm.where(nm.all(none, axis=-1, keepdims=True), np.nan, y)
        return _finish(nm.astype(y, lanes.dtype), given, axes, levels, keepdims)
    ordered = nm.sort(lanes, axis=-1)
    dtype = dt.float64 if "float64" in given.device.runtime.target.dtypes else dt.float32
    count = nm.expand_dims(nm.count_nonzero(nm.logical_not(nm.isnan(lanes)), axis=-1), -1)
    wanted = nm.asarray(levels.reshape(-1), dtype=dtype, device=given.device)
    below, part = _position(nm.astype(count, dtype), wanted, how, nm)
    last = nm.maximum(count - 1, 0)
    low = nm.clip(nm.astype(below, dt.int64), 0, last)
    high = nm.clip(nm.astype(below, dt.int64) + 1, 0, last)
    part = nm.where(below < 0, 0.0, nm.where(below >= nm.astype(last, dtype), 1.0, part))
    at_low, at_high = (_wide(nm.take_along_axis(ordered, i, axis=-1)) for i in (low, high))
    y = _between(at_low, at_high, nm.astype(part, dt.compute_dtype(lanes.dtype)))
    return _finish(nm.astype(y, lanes.dtype), given, axes, levels, keepdims)


@method()
@spelled
def quantile(
    x: ArrayLike,
    q: Any,
    /,
    axis: Axis = None,
    *,
    method: str = "linear",
    keepdims: bool = False,
    weights: Any = None,
) -> Tensor:
    """The quantiles of the elements over axes: q = 0 is the smallest, 1 the largest, 0.5 the
    median. Several q are the first axis of the result.

    Args:
        method: the estimator, by NumPy's names: "linear", "hazen", "median_unbiased", ...
        weights: what each element counts for; with method="inverted_cdf".

    >>> nm.quantile(nm.asarray([1.0, 2.0, 3.0, 4.0]), [0.25, 0.5]).tolist()
    [1.75, 2.5]
    """
    return _quantiles("quantile", x, q, axis, method, keepdims, 1.0, weights)


@spelled
def percentile(
    x: ArrayLike,
    q: Any,
    /,
    axis: Axis = None,
    *,
    method: str = "linear",
    keepdims: bool = False,
    weights: Any = None,
) -> Tensor:
    """`quantile` with q between 0 and 100.

    >>> nm.percentile(nm.arange(5.0), 75).item()
    3.0
    """
    return _quantiles("percentile", x, q, axis, method, keepdims, 100.0, weights)


@method()
@spelled
def nanquantile(
    x: ArrayLike,
    q: Any,
    /,
    axis: Axis = None,
    *,
    method: str = "linear",
    keepdims: bool = False,
    weights: Any = None,
) -> Tensor:
    """`quantile` of the elements that are not NaN; NaN where there are none.

    >>> nm.nanquantile(nm.asarray([1.0, float("nan"), 3.0]), 0.5).item()
    2.0
    """
    return _nan_quantiles("nanquantile", x, q, axis, method, keepdims, 1.0, weights)


@spelled
def nanpercentile(
    x: ArrayLike,
    q: Any,
    /,
    axis: Axis = None,
    *,
    method: str = "linear",
    keepdims: bool = False,
    weights: Any = None,
) -> Tensor:
    """`percentile` of the elements that are not NaN; NaN where there are none."""
    return _nan_quantiles("nanpercentile", x, q, axis, method, keepdims, 100.0, weights)


@method()
@spelled
def median(x: ArrayLike, /, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """The middle element over axes, or the mean of the two middle ones; NaN where there is one.

    >>> nm.median(nm.asarray([[3.0, 1.0, 2.0], [6.0, 4.0, 5.0]]), axis=1).tolist()
    [2.0, 5.0]
    """
    return _quantiles("median", x, 0.5, axis, "midpoint", keepdims, 1.0, None)


@method()
@spelled
def nanmedian(x: ArrayLike, /, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """The median of the elements that are not NaN; NaN where there are none.

    >>> nm.nanmedian(nm.asarray([1.0, float("nan"), 3.0])).item()
    2.0
    """
    return _nan_quantiles("nanmedian", x, 0.5, axis, "midpoint", keepdims, 1.0)
