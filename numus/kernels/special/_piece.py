"""Polynomials of the special functions on intervals, for each precision."""

from __future__ import annotations

from typing import NamedTuple

from numus.ir import Expr
from numus.kernels.math import _tools as fp


class Piece(NamedTuple):
    """A polynomial in u - at: its coefficients in float32 and in float64."""

    at: float
    single: tuple[float, ...]
    double: tuple[float, ...]

    def __call__(self, u: Expr) -> Expr:
        v = u - self.at if self.at else u
        return fp.horner(v, self.single if fp.is32(u) else self.double)


def from_zero(x: Expr, zero: tuple[tuple[float, float], tuple[float, float]]) -> Expr:
    """x - zero, which is a double-word."""
    high, low = zero[0 if fp.is32(x) else 1]
    return (x - high) - low
