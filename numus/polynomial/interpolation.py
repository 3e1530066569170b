"""Piecewise polynomials: cubic and monotone splines, and multilinear interpolation on grids."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numus as nm
from numus.errors import ShapeError
from numus.tensor import ArrayLike, Tensor


def _floats(x: Any) -> Tensor:
    given = nm.asarray(x)
    return given if given.dtype.is_inexact else nm.astype(given, nm.float32)


class PPoly:
    """A piecewise polynomial: coefficients, the highest power first, of each piece, and the
    breakpoints. Beyond the ends the outer pieces go on.

    >>> p = nm.polynomial.PPoly(nm.asarray([[1.0, 2.0]]), nm.asarray([0.0, 1.0, 2.0]))
    >>> p(nm.asarray([0.5, 1.5])).tolist()
    [1.0, 2.0]
    """

    def __init__(self, c: ArrayLike, x: ArrayLike) -> None:
        self.c, self.x = _floats(c), _floats(x)
        if self.c.ndim < 2 or self.c.shape[1] != self.x.shape[0] - 1:
            raise ShapeError(
                f"PPoly: {self.x.shape[0] - 1} pieces need coefficients of shape (order, pieces, "
                f"...), not {self.c.shape}"
            )

    def __call__(self, x: Any, nu: int = 0) -> Tensor:
        """The value, or the nu-th derivative, at x."""
        if nu:
            return self.derivative(nu)(x)
        at = _floats(x)
        flat = nm.reshape(at, -1)
        last = self.x.shape[0] - 2
        piece = nm.clip(nm.searchsorted(self.x, flat, side="right") - 1, 0, last)
        t = flat - self.x[piece]
        t = nm.reshape(t, (-1,) + (1,) * (self.c.ndim - 2))
        value = self.c[0][piece]
        for power in range(1, self.c.shape[0]):
            value = value * t + self.c[power][piece]
        return nm.reshape(value, at.shape + self.c.shape[2:])

    def derivative(self, nu: int = 1) -> PPoly:
        """The nu-th derivative."""
        c = self.c
        for _ in range(nu):
            n = c.shape[0] - 1
            if n == 0:
                c = c * 0
                break
            powers = nm.arange(n, 0, -1, dtype=c.dtype, device=c.device)
            c = c[:-1] * nm.reshape(powers, (-1,) + (1,) * (c.ndim - 1))
        return PPoly(c, self.x)

    def integrate(self, a: float, b: float) -> Tensor:
        """The integral from a to b, two points between the breakpoints."""
        whole = self._antiderivative()
        return whole(nm.asarray(b, dtype=self.x.dtype)) - whole(nm.asarray(a, dtype=self.x.dtype))

    def _antiderivative(self) -> PPoly:
        n = self.c.shape[0]
        powers = nm.arange(n, 0, -1, dtype=self.c.dtype, device=self.c.device)
        c = self.c / nm.reshape(powers, (-1,) + (1,) * (self.c.ndim - 1))
        width = nm.reshape(nm.diff(self.x), (-1,) + (1,) * (self.c.ndim - 2))
        area: Any = 0
        for power in range(n):
            area = (area + c[power]) * width
        start = nm.concat([area[:1] * 0, nm.cumsum(area, axis=0)[:-1]])
        return PPoly(nm.concat([c, nm.expand_dims(start, 0)]), self.x)


def _hermite(x: Tensor, y: Tensor, slope: Tensor) -> Tensor:
    """The cubic pieces with these values and slopes at the breakpoints."""
    h = nm.reshape(nm.diff(x), (-1,) + (1,) * (y.ndim - 1))
    secant = nm.diff(y, axis=0) / h
    bend = (slope[:-1] + slope[1:] - 2 * secant) / h
    return nm.stack([bend / h, (secant - slope[:-1]) / h - bend, slope[:-1], y[:-1]])


def _checked(op: str, x: ArrayLike, y: ArrayLike) -> tuple[Tensor, Tensor]:
    at, values = _floats(x), _floats(y)
    if at.ndim != 1 or values.shape[:1] != at.shape or at.shape[0] < 2:
        raise ShapeError(
            f"{op}: needs two points or more and as many values: {at.shape}, {values.shape}"
        )
    return at, values


class CubicSpline(PPoly):
    """The twice continuously differentiable piecewise cubic through points.

    Args:
        bc_type: "not-a-knot", "natural" (no second derivative at the ends) or "clamped" (no
            slope there).

    >>> x = nm.arange(5.0)
    >>> s = nm.polynomial.CubicSpline(x, x**2)
    >>> round(s(nm.asarray(2.5)).item(), 4)
    6.25
    """

    def __init__(self, x: ArrayLike, y: ArrayLike, bc_type: str = "not-a-knot") -> None:
        at, values = _checked("CubicSpline", x, y)
        n = at.shape[0]
        if bc_type not in ("not-a-knot", "natural", "clamped"):
            raise ValueError(f"CubicSpline: there is no bc_type {bc_type!r}")
        if bc_type == "not-a-knot" and n < 4:
            raise ShapeError(f'CubicSpline: "not-a-knot" needs four points or more, not {n}')
        flat = nm.reshape(values, (n, -1))
        h = nm.diff(at)
        secant = nm.diff(flat, axis=0) / nm.expand_dims(h, 1)
        middle = 2 * (h[:-1] + h[1:])
        inner = 3 * (
            nm.expand_dims(h[1:], 1) * secant[:-1] + nm.expand_dims(h[:-1], 1) * secant[1:]
        )
        rows = nm.diag_embed(h[1:], 0), nm.diag_embed(middle, 0), nm.diag_embed(h[:-1], 0)
        wide = [nm.pad(part, ((0, 0), (i, 2 - i))) for i, part in enumerate(rows)]
        ends = self._ends(bc_type, h, secant, n)
        matrix = nm.concat([ends[0][0], wide[0] + wide[1] + wide[2], ends[1][0]])
        right = nm.concat([ends[0][1], inner, ends[1][1]])
        slope = nm.reshape(nm.linalg.solve(matrix, right), values.shape)
        super().__init__(_hermite(at, values, slope), at)

    @staticmethod
    def _ends(bc_type: str, h: Tensor, secant: Tensor, n: int) -> Any:
        """The equations of the two ends: a row and a right side each."""
        found = []
        for step, rise in ((h, secant), (nm.flip(h), nm.flip(secant, 0))):
            if bc_type == "clamped":
                row, value = nm.stack([step[0] * 0 + 1, step[0] * 0]), rise[:1] * 0
            elif bc_type == "natural":
                row, value = nm.stack([step[0] * 0 + 2, step[0] * 0 + 1]), 3 * rise[:1]
            else:
                total = step[0] + step[1]
                row = nm.stack([step[1], total])
                value = (
                    (step[0] + 2 * total) * step[1] * rise[:1] + step[0] ** 2 * rise[1:2]
                ) / total
            line = nm.pad(row, ((0, n - 2),))
            found.append((nm.expand_dims(line, 0), value))
        (first, a), (last, b) = found
        return (first, a), (nm.flip(last, 1), b)


class PchipInterpolator(PPoly):
    """The monotone piecewise cubic through points (Fritsch and Butland): it overshoots nowhere.

    >>> x = nm.asarray([0.0, 1.0, 2.0, 3.0])
    >>> p = nm.polynomial.PchipInterpolator(x, nm.asarray([0.0, 0.0, 1.0, 1.0]))
    >>> p(nm.asarray([0.5, 2.5])).tolist()
    [0.0, 1.0]
    """

    def __init__(self, x: ArrayLike, y: ArrayLike) -> None:
        at, values = _checked("PchipInterpolator", x, y)
        h = nm.reshape(nm.diff(at), (-1,) + (1,) * (values.ndim - 1))
        secant = nm.diff(values, axis=0) / h
        if at.shape[0] == 2:
            slope = nm.concat([secant, secant])
        else:
            before, after = 2 * h[1:] + h[:-1], h[1:] + 2 * h[:-1]
            same = secant[:-1] * secant[1:] > 0
            safe = [nm.where(same, part, 1.0) for part in (secant[:-1], secant[1:])]
            mean = (before + after) / (before / safe[0] + after / safe[1])
            ends = [
                self._end(*parts)
                for parts in (
                    (h[0], h[1], secant[0], secant[1]),
                    (h[-1], h[-2], secant[-1], secant[-2]),
                )
            ]
            slope = nm.concat([ends[0], nm.where(same, mean, 0.0), ends[1]])
        super().__init__(_hermite(at, values, slope), at)

    @staticmethod
    def _end(h0: Tensor, h1: Tensor, d0: Tensor, d1: Tensor) -> Tensor:
        """A one-sided slope of three points that keeps the shape."""
        slope = ((2 * h0 + h1) * d0 - h0 * d1) / (h0 + h1)
        steep = (nm.sign(d0) != nm.sign(d1)) & (nm.abs(slope) > 3 * nm.abs(d0))
        slope = nm.where(steep, 3 * d0, slope)
        return nm.expand_dims(nm.where(nm.sign(slope) != nm.sign(d0), 0.0, slope), 0)


class RegularGridInterpolator:
    """Multilinear (or nearest) interpolation on a grid of any number of axes.

    Args:
        points: the coordinates along each axis, ascending.
        values: the values on the grid; further axes are interpolated together.
        bounds_error: raise for points outside; else they get `fill_value`, or, where that is None,
            the outer cells go on.

    >>> axes = (nm.arange(2.0), nm.arange(3.0))
    >>> f = nm.polynomial.RegularGridInterpolator(axes, nm.arange(6.0).reshape(2, 3))
    >>> f(nm.asarray([[0.5, 1.5]])).tolist()
    [3.0]
    """

    def __init__(
        self,
        points: Sequence[ArrayLike],
        values: ArrayLike,
        method: str = "linear",
        bounds_error: bool = True,
        fill_value: float | None = math.nan,
    ) -> None:
        self.grid = [_floats(p) for p in points]
        self.values = _floats(values)
        shape = tuple(p.shape[0] for p in self.grid)
        if self.values.shape[: len(shape)] != shape:
            raise ShapeError(f"RegularGridInterpolator: a grid of {shape} for {self.values.shape}")
        if method not in ("linear", "nearest"):
            raise ValueError(
                f'RegularGridInterpolator: method is "linear" or "nearest": {method!r}'
            )
        self.method, self.bounds_error, self.fill_value = method, bounds_error, fill_value

    def __call__(self, xi: ArrayLike) -> Tensor:
        """The values at points, whose coordinates are the last axis."""
        at = _floats(xi)
        rank = len(self.grid)
        if at.ndim == 0 or at.shape[-1] != rank:
            raise ShapeError(
                f"RegularGridInterpolator: points of {rank} coordinates, not {at.shape}"
            )
        flat = nm.reshape(at, (-1, rank))
        lows, parts = [], []
        outside: Any = nm.zeros((flat.shape[0],), dtype=nm.bool, device=at.device)
        for i, line in enumerate(self.grid):
            x = flat[:, i]
            outside = outside | (x < line[0]) | (x > line[-1])
            low = nm.clip(nm.searchsorted(line, x, side="right") - 1, 0, line.shape[0] - 2)
            lows.append(low)
            parts.append((x - line[low]) / (line[low + 1] - line[low]))
        if self.bounds_error and bool(nm.any(outside)):
            raise ValueError("RegularGridInterpolator: a point lies outside the grid")
        tail = self.values.shape[rank:]
        spread = (-1,) + (1,) * len(tail)
        if self.method == "nearest":
            index = [low + nm.astype(t > 0.5, nm.int64) for low, t in zip(lows, parts, strict=True)]
            value = self.values[tuple(index)]
        else:
            value = nm.zeros((flat.shape[0], *tail), dtype=self.values.dtype, device=at.device)
            for corner in itertools.product((0, 1), repeat=rank):
                weight: Any = 1.0
                for side, t in zip(corner, parts, strict=True):
                    weight = weight * (t if side else 1 - t)
                index = [low + side for low, side in zip(lows, corner, strict=True)]
                value = value + nm.reshape(weight, spread) * self.values[tuple(index)]
        if not self.bounds_error and self.fill_value is not None:
            value = nm.where(nm.reshape(outside, spread), self.fill_value, value)
        return nm.reshape(value, at.shape[:-1] + tail)
