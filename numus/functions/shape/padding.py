"""Margins that are computed: statistics of an axis, ramps, and odd reflections, as NumPy's pad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numus.errors import ShapeError
from numus.functions import api as nm
from numus.functions.reduction.quantiles import median
from numus.shapes import as_int
from numus.tensor import Tensor


def _part(x: Tensor, axis: int, start: int, stop: int) -> Tensor:
    return x[(slice(None),) * axis + (slice(start, stop),)]


def _rounded(y: Tensor, like: Tensor) -> Tensor:
    return nm.astype(nm.round(y) if like.dtype.is_integer else y, like.dtype)


def _mean(x: Tensor, axis: int) -> Tensor:
    return _rounded(nm.mean(x, axis, keepdims=True), x)


def _median(x: Tensor, axis: int) -> Tensor:
    return _rounded(median(x, axis, keepdims=True), x)


_STATISTICS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "maximum": lambda x, axis: nm.max(x, axis, keepdims=True),
    "mean": _mean,
    "median": _median,
    "minimum": lambda x, axis: nm.min(x, axis, keepdims=True),
}
MODES = (*_STATISTICS, "linear_ramp", "empty")


def _statistic(x: Tensor, axis: int, width: int, mode: str, length: Any, at_end: bool) -> Tensor:
    extent = x.shape[axis]
    count = extent if length is None else min(as_int(length, "stat_length", "pad"), extent)
    if count < 1:
        raise ShapeError(f"pad: stat_length={length} leaves no element for {mode}")
    chunk = _part(x, axis, extent - count, extent) if at_end else _part(x, axis, 0, count)
    shape = tuple(width if i == axis else n for i, n in enumerate(x.shape))
    return nm.broadcast_to(_STATISTICS[mode](chunk, axis), shape)


def _ramp(x: Tensor, axis: int, width: int, end: Any, at_end: bool) -> Tensor:
    """From a value to the array's edge, which is not repeated."""
    edge = _part(x, axis, x.shape[axis] - 1, x.shape[axis]) if at_end else _part(x, axis, 0, 1)
    flat = nm.squeeze(edge, axis)
    wide = nm.linspace(
        nm.full_like(flat, end), flat, width, endpoint=False, axis=axis, dtype=x.dtype
    )
    return nm.flip(wide, axis) if at_end else wide


def computed_margins(
    x: Tensor,
    low: tuple[int, ...],
    high: tuple[int, ...],
    mode: str,
    lengths: list[tuple[Any, Any]],
    ends: list[tuple[Any, Any]],
) -> Tensor:
    """x with margins of one of `MODES`, one axis after the other."""
    for axis, widths in enumerate(zip(low, high, strict=True)):
        parts: list[Tensor] = [x]
        for side, width in enumerate(widths):
            if not width:
                continue
            if not x.shape[axis] and mode != "empty":
                raise ShapeError(f"pad: axis {axis} is empty: {mode} has nothing to fill it with")
            if mode == "linear_ramp":
                margin = _ramp(x, axis, width, ends[axis][side], bool(side))
            elif mode == "empty":
                shape = tuple(width if i == axis else n for i, n in enumerate(x.shape))
                margin = nm.zeros(shape, dtype=x.dtype, device=x.device)
            else:
                margin = _statistic(x, axis, width, mode, lengths[axis][side], bool(side))
            parts.insert(len(parts) if side else 0, margin)
        x = nm.concat(parts, axis) if len(parts) > 1 else x
    return x


def odd_reflection(x: Tensor, axis: int, low: int, high: int, skip: int) -> Tensor:
    """Margins along an axis, mirrored in value as well: twice the edge, less what is mirrored at
    the last element (skip = 1) or behind it (0); over and over for wide ones."""
    while low or high:
        extent = x.shape[axis]
        skip = min(skip, extent - 1)  # the mirror shows the only element
        a, b = min(low, extent - skip), min(high, extent - skip)
        first, last = _part(x, axis, 0, 1), _part(x, axis, extent - 1, extent)
        before = 2 * first - nm.flip(_part(x, axis, skip, skip + a), axis)
        after = 2 * last - nm.flip(_part(x, axis, extent - skip - b, extent - skip), axis)
        x = nm.concat([before, x, after], axis)
        low, high = low - a, high - b
    return x
