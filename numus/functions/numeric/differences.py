"""Differences, integrals and interpolation of sampled functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from numus import dtypes as dt
from numus.errors import DTypeError, ShapeError
from numus.functions import api as nm
from numus.functions._base import as_line, operand
from numus.functions.spelling import spelled
from numus.shapes import normal_axes, normal_axis
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "cumulative_trapezoid", "ediff1d", "gradient", "interp", "trapezoid", "trapz", "unwrap",
]  # fmt: skip


def _floats(op: str, x: Any) -> Tensor:
    given = operand(op, x)
    return given if given.dtype.is_inexact else nm.astype(given, dt.default_float)


def _along(x: Tensor, axis: int, *cut: int | None) -> Tensor:
    """A slice of one axis."""
    return x[(slice(None),) * axis + (slice(*cut),)]


_KINDS = ("bool", "uint", "int", "float", "complex")


def ediff1d(x: ArrayLike, /, to_end: Any = None, to_begin: Any = None) -> Tensor:
    """The differences of consecutive elements, all axes taken as one.

    >>> nm.ediff1d(nm.asarray([1, 2, 4]), to_begin=0).tolist()
    [0, 1, 2]
    """
    flat = nm.reshape(operand("ediff1d", x), -1)
    parts = [nm.diff(flat)]
    for ends, place in ((to_begin, 0), (to_end, len(parts) + (to_begin is not None))):
        if ends is not None:
            kind = dt.as_dtype(ends.dtype).kind if hasattr(ends, "dtype") else "bool"
            if _KINDS.index(kind) > _KINDS.index(flat.dtype.kind):
                raise DTypeError(f"ediff1d: ends of {ends.dtype} do not fit {flat.dtype.name}")
            end = nm.reshape(nm.asarray(ends, dtype=flat.dtype, device=flat.device), -1)
            parts.insert(place, end)
    return nm.concat(parts)


def _gradient(f: Tensor, spacing: Any, axis: int, edge_order: int) -> Tensor:
    """Second-order central differences along one axis, one-sided at its ends."""
    n = f.shape[axis]
    if n < edge_order + 1:
        raise ShapeError(
            f"gradient: axis {axis} with {n} elements needs at least edge_order + 1 = "
            f"{edge_order + 1}"
        )
    step: Any = spacing if isinstance(spacing, (int, float)) else _floats("gradient", spacing)
    if isinstance(step, Tensor) and step.ndim == 1:
        if step.shape != (n,):
            raise ShapeError(
                f"gradient: coordinates of shape {step.shape} for axis {axis} with {n} elements"
            )
        step = as_line(nm.diff(step), axis, f.ndim)
        before, after = _along(step, axis, 0, -1), _along(step, axis, 1, None)
        first, last = _along(step, axis, 0, 1), _along(step, axis, -1, None)
    else:
        before = after = first = last = step
    low, mid, high = (_along(f, axis, *cut) for cut in ((0, -2), (1, -1), (2, None)))
    inner = (
        -after / (before * (before + after)) * low
        + (after - before) / (before * after) * mid
        + before / (after * (before + after)) * high
    )
    a, b = _along(f, axis, 0, 1), _along(f, axis, 1, 2)
    y, z = _along(f, axis, n - 2, n - 1), _along(f, axis, n - 1, n)
    start, end = (b - a) / first, (z - y) / last
    if edge_order == 2:
        start = start + (start - (_along(f, axis, 2, 3) - b) / _second(after, axis, 0)) * _share(
            first, _second(after, axis, 0)
        )
        end = end + (end - (y - _along(f, axis, n - 3, n - 2)) / _second(before, axis, -1)) * (
            _share(last, _second(before, axis, -1))
        )
    return nm.concat([start, inner, end], axis) if n > 2 else nm.concat([start, end], axis)


def _second(step: Any, axis: int, at: int) -> Any:
    """The spacing next to the one at an end."""
    if not isinstance(step, Tensor) or step.ndim == 0:
        return step
    return _along(step, axis, 0, 1) if at == 0 else _along(step, axis, -1, None)


def _share(near: Any, far: Any) -> Any:
    return near / (near + far)


@spelled
def gradient(f: ArrayLike, /, *spacing: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Derivatives of a sampled function: second-order central differences, one-sided at the ends.

    Args:
        spacing: nothing (1), a number for all axes, or for each axis a number or the coordinates.
        axis: those to differentiate along; one gives a tensor, several (or None: all) a list.
        edge_order: the order of accuracy at the ends, 1 or 2.

    >>> nm.gradient(nm.asarray([1.0, 2.0, 4.0, 7.0])).tolist()
    [1.0, 1.5, 2.5, 3.0]
    """
    x = _floats("gradient", f)
    if edge_order not in (1, 2):
        raise ValueError(f"gradient: edge_order must be 1 or 2, not {edge_order}")
    axes = normal_axes(axis, x.ndim, "gradient")
    steps = spacing or (1.0,)
    steps = steps * len(axes) if len(steps) == 1 else steps
    if len(steps) != len(axes):
        raise ShapeError(f"gradient: {len(steps)} spacings for {len(axes)} axes")
    found = [_gradient(x, h, a, edge_order) for h, a in zip(steps, axes, strict=True)]
    alone = isinstance(axis, int) or (axis is None and x.ndim == 1)
    return found[0] if alone else found


def _widths(op: str, y: Tensor, x: Any, dx: Any, axis: int) -> Any:
    """The distances of neighbouring samples along an axis."""
    if x is None:
        return dx
    at = _floats(op, x)
    if at.ndim != 1:
        return nm.diff(at, axis=axis)
    if at.shape[0] != y.shape[axis]:
        raise ShapeError(
            f"{op}: coordinates of shape {at.shape} for axis {axis} with {y.shape[axis]} elements"
        )
    return as_line(nm.diff(at), axis, y.ndim)


def _areas(op: str, y: ArrayLike, x: Any, dx: Any, axis: int) -> tuple[Tensor, int]:
    """The areas of the trapezoids between neighbouring samples."""
    f = _floats(op, y)
    at = normal_axis(axis, f.ndim, op)
    n = f.shape[at]
    pairs = _along(f, at, 1, None) + _along(f, at, 0, max(n - 1, 0))
    return pairs * _widths(op, f, x, dx, at) / 2, at


@spelled
def trapezoid(y: ArrayLike, x: Any = None, /, dx: Any = 1.0, axis: int = -1) -> Tensor:
    """The integral along an axis by the trapezoidal rule.

    Args:
        x: where the samples were taken; else they are `dx` apart.

    >>> nm.trapezoid(nm.asarray([1.0, 2.0, 3.0]), dx=2).item()
    8.0
    """
    areas, at = _areas("trapezoid", y, x, dx, axis)
    return nm.sum(areas, at)


trapz = trapezoid


@spelled
def cumulative_trapezoid(
    y: ArrayLike, x: Any = None, /, dx: Any = 1.0, axis: int = -1, initial: Any = None
) -> Tensor:
    """The running integral along an axis by the trapezoidal rule, from the second sample on.

    Args:
        initial: the value at the first sample, 0, where it is to be part of the result.

    >>> nm.cumulative_trapezoid(nm.asarray([1.0, 2.0, 3.0])).tolist()
    [1.5, 4.0]
    """
    areas, at = _areas("cumulative_trapezoid", y, x, dx, axis)
    out = nm.cumsum(areas, axis=at)
    if initial is None:
        return out
    first = nm.full_like(_along(operand("cumulative_trapezoid", y), at, 0, 1), initial)
    return nm.concat([nm.astype(first, out.dtype), out], at)


@spelled
def unwrap(
    p: ArrayLike, /, discont: float | None = None, axis: int = -1, *, period: float = 2 * math.pi
) -> Tensor:
    """Angles without jumps: steps of more than half a period get the period's complement.

    >>> nm.unwrap(nm.asarray([0.0, 3.0, 6.5]) % 4, period=4).tolist()
    [0.0, -1.0, -1.5]
    """
    given = operand("unwrap", p)
    at = normal_axis(axis, given.ndim, "unwrap")
    limit = period / 2 if discont is None else max(discont, period / 2)
    steps = nm.diff(given, axis=at)
    low: Any = -period / 2
    on_edge = True
    if given.dtype.is_integer:
        half, odd = divmod(int(period), 2)
        low, on_edge = -half, odd == 0
    wrapped = nm.remainder(steps - low, period) + low
    if on_edge:
        wrapped = nm.where((wrapped == low) & (steps > 0), -low, wrapped)
    change = nm.where(nm.abs(steps) < limit, 0, wrapped - steps)
    rest = _along(given, at, 1, None) + nm.astype(nm.cumsum(change, axis=at), given.dtype)
    return nm.concat([_along(given, at, 0, 1), rest], at)


def interp(
    x: ArrayLike,
    xp: ArrayLike | Sequence[float],
    fp: ArrayLike | Sequence[float],
    /,
    left: Any = None,
    right: Any = None,
    period: float | None = None,
) -> Tensor:
    """Piecewise linear interpolation: the values at x of a function known at ascending points.

    Args:
        xp: the points, ascending (with a period: any).
        fp: the values there, real or complex.
        left: the value before the first point; that of the first, unless told otherwise.
        right: the value after the last point.
        period: that of the function: points and x are taken modulo it.

    >>> nm.interp(nm.asarray([0.5, 1.5, 9.0]), nm.asarray([0.0, 1.0, 2.0]), nm.asarray([0, 10, 40]))
    tensor([ 5., 25., 40.])
    """
    op = "interp"
    at, points = _floats(op, x), _floats(op, xp if isinstance(xp, Tensor) else nm.asarray(xp))
    values = _floats(op, fp if isinstance(fp, Tensor) else nm.asarray(fp))
    if points.ndim != 1 or points.shape != values.shape or points.shape[0] == 0:
        raise ShapeError(
            f"{op}: needs as many values as points, both vectors, not {points.shape} points and "
            f"{values.shape} values"
        )
    if period is not None:
        if period == 0:
            raise ValueError(f"{op}: the period must not be 0")
        size = abs(period)
        at, points = nm.remainder(at, size), nm.remainder(points, size)
        order = nm.argsort(points)
        points, values = points[order], values[order]
        points = nm.concat([points[-1:] - size, points, points[:1] + size])
        values = nm.concat([values[-1:], values, values[:1]])
        left = right = None
    real = dt.promote(at.dtype, points.dtype)
    at, points = nm.astype(at, real), nm.astype(points, real)
    last = points.shape[0] - 1
    after = nm.clip(nm.searchsorted(points, nm.ravel(at), side="right"), 1, max(last, 1))
    after = nm.reshape(nm.minimum(after, last), at.shape)
    before = nm.maximum(after - 1, 0)
    x0, x1, y0, y1 = points[before], points[after], values[before], values[after]
    width = x1 - x0
    flat = width == 0
    part = nm.where(flat, 0.0, (at - x0) / nm.where(flat, 1.0, width))
    out = nm.where(part < 0.5, y0 + (y1 - y0) * part, y1 - (y1 - y0) * (1 - part))
    out = nm.where(at < points[0], values[0] if left is None else left, out)
    out = nm.where(at > points[-1], values[-1] if right is None else right, out)
    return nm.where(nm.isnan(at), math.nan, out)
