"""Integrals of samples: the trapezoidal rule, Simpson's, Romberg's; SciPy's names."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.errors import ShapeError
from numus.functions.numeric.differences import cumulative_trapezoid, trapezoid
from numus.optimize.casting import cast
from numus.shapes import normal_axis
from numus.tensor import ArrayLike, Tensor

__all__ = ["cumulative_simpson", "cumulative_trapezoid", "romb", "simpson", "trapezoid"]


def _samples(op: str, y: ArrayLike, x: Any, dx: Any, axis: int) -> tuple[Tensor, Tensor, int]:
    """The samples and the widths between them, along the last axis, and which axis it was."""
    f = nm.asarray(y)
    f = f if f.dtype.is_inexact else cast(f, nm.float32)
    if f.ndim == 0:
        raise ShapeError(f"{op}: the samples must have an axis")
    at = normal_axis(axis, f.ndim, op)
    f = nm.moveaxis(f, at, -1)
    n = f.shape[-1]
    if n == 0:
        raise ShapeError(f"{op}: there are no samples along axis {axis}")
    if x is None:
        return f, cast(nm.ones_like(f[..., 1:]), nm.real(f).dtype) * dx, at
    points = nm.asarray(x)
    if points.ndim == 1:
        if points.shape[0] != n:
            raise ShapeError(
                f"{op}: coordinates of shape {points.shape} for axis {axis} with {n} elements"
            )
        return f, nm.broadcast_to(nm.diff(points), (*f.shape[:-1], n - 1)), at
    if points.shape != nm.asarray(y).shape:
        raise ShapeError(
            f"{op}: coordinates of shape {points.shape} fit no samples of shape "
            f"{nm.asarray(y).shape}; give a vector, or as many as samples"
        )
    return f, nm.diff(nm.moveaxis(points, at, -1), axis=-1), at


def _safe_ratio(a: Tensor, b: Tensor) -> Tensor:
    zero = b == 0
    return nm.where(zero, 0.0, a / nm.where(zero, 1.0, b))


def _pairs(f: Tensor, h: Tensor, stop: int) -> Tensor:
    """Simpson's rule over intervals 0 and 1, 2 and 3, ... before interval `stop`."""
    y0, y1, y2 = f[..., 0:stop:2], f[..., 1 : stop + 1 : 2], f[..., 2 : stop + 2 : 2]
    h0, h1 = h[..., 0:stop:2], h[..., 1 : stop + 1 : 2]
    total, product = h0 + h1, h0 * h1
    ratio = _safe_ratio(h0, h1)
    ends = y0 * (2.0 - _safe_ratio(nm.ones_like(ratio), ratio)) + y2 * (2.0 - ratio)
    middle = y1 * total * _safe_ratio(total, product)
    return nm.sum(total / 6.0 * (ends + middle), axis=-1)


def simpson(y: ArrayLike, x: Any = None, *, dx: Any = 1.0, axis: int = -1) -> Tensor:
    """The integral along an axis by Simpson's rule.

    Where the number of intervals is odd, the last one is integrated by the parabola through the
    last three samples (Cartwright 2017).

    Args:
        x: where the samples were taken; else they are `dx` apart.

    >>> nm.integrate.simpson(nm.asarray([0.0, 1.0, 4.0])).item()
    2.6666667461395264
    """
    f, h, _ = _samples("simpson", y, x, dx, axis)
    n = f.shape[-1]
    if n == 1:
        return nm.zeros_like(f[..., 0])
    if n == 2:
        return 0.5 * h[..., 0] * (f[..., 0] + f[..., 1])
    if n % 2:
        return _pairs(f, h, n - 2)
    h0, h1 = h[..., -2], h[..., -1]
    last = _safe_ratio(2 * h1**2 + 3 * h0 * h1, 6 * (h1 + h0)) * f[..., -1]
    last = last + _safe_ratio(h1**2 + 3 * h0 * h1, 6 * h0) * f[..., -2]
    return _pairs(f, h, n - 3) + last - _safe_ratio(h1**3, 6 * h0 * (h0 + h1)) * f[..., -3]


def _first_halves(f: Tensor, h: Tensor) -> Tensor:
    """Integrals over the first of every two neighbouring intervals, by parabolas."""
    h0, h1 = h[..., :-1], h[..., 1:]
    y0, y1, y2 = f[..., :-2], f[..., 1:-1], f[..., 2:]
    part = _safe_ratio(h0, h1)
    whole = _safe_ratio(h0, h0 + h1)
    a, b, c = 3 - whole, 3 + part * whole + whole, -part * whole
    return h0 / 6 * (a * y0 + b * y1 + c * y2)


def cumulative_simpson(
    y: ArrayLike, *, x: Any = None, dx: Any = 1.0, axis: int = -1, initial: Any = None
) -> Tensor:
    """The running integral along an axis by Simpson's rule, from the second sample on.

    Each interval is integrated by the parabola through its ends and a neighbour: the next sample
    for even intervals and the one before for odd ones.

    Args:
        initial: the value at the first sample, where it is to be part of the result.

    >>> nm.integrate.cumulative_simpson(nm.asarray([0.0, 1.0, 4.0, 9.0]), dx=3).tolist()
    [1.0, 8.0, 27.0]
    """
    f, h, at = _samples("cumulative_simpson", y, x, dx, axis)
    n = f.shape[-1]
    if n < 3:
        parts = 0.5 * h * (f[..., 1:] + f[..., :-1])
    else:
        forward = _first_halves(f, h)
        flipped = nm.flip(_first_halves(nm.flip(f, axis=-1), nm.flip(h, axis=-1)), axis=-1)
        even = nm.concat([forward, flipped[..., -1:]], -1)
        odd = nm.concat([forward[..., :1], flipped], -1)
        which = nm.arange(n - 1, device=f.device) % 2 == 0
        which = which & (nm.arange(n - 1, device=f.device) < n - 2)
        parts = nm.where(which, even, odd)
    out = nm.cumsum(parts, axis=-1)
    if initial is not None:
        first = nm.broadcast_to(cast(nm.asarray(initial), out.dtype), (*out.shape[:-1], 1))
        out = nm.concat([first, out + first], -1)
    return nm.moveaxis(out, -1, at)


def romb(y: ArrayLike, dx: Any = 1.0, axis: int = -1) -> Tensor:
    """The integral of 2^k + 1 equally spaced samples by Romberg's method (Richardson's
    extrapolation of the trapezoidal rule).

    >>> nm.integrate.romb(nm.asarray([0.0, 1.0, 4.0, 9.0, 16.0]), dx=0.25).item()
    5.333333492279053
    """
    f, h, _ = _samples("romb", y, None, dx, axis)
    n = f.shape[-1] - 1
    if n < 1 or n & (n - 1):
        raise ShapeError(f"romb: takes 2^k + 1 samples, not {n + 1}")
    width = h[..., 0]
    rows = []
    step = n
    while step:
        ends = (f[..., 0] + f[..., -1]) / 2
        rows.append((nm.sum(f[..., step:n:step], axis=-1) + ends) * width * step)
        step //= 2
    return richardson(rows)[-1]


def richardson(rows: list[Tensor]) -> list[Tensor]:
    """The diagonal of Romberg's table, from trapezoidal sums of ever halved steps."""
    diagonal, last = [rows[0]], [rows[0]]
    for row in rows[1:]:
        fresh = [row]
        for k, before in enumerate(last):
            fresh.append(fresh[k] + (fresh[k] - before) / (4.0 ** (k + 1) - 1))
        last = fresh
        diagonal.append(fresh[-1])
    return diagonal
