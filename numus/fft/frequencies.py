"""Frequencies of the elements of a transform, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions.creation.creation import arange
from numus.functions.elementwise.comparison import where
from numus.functions.shape.tiling import roll
from numus.functions.spelling import spelled
from numus.shapes import as_int, normal_axis
from numus.tensor import ArrayLike, Tensor, node_of


def _count(op: str, n: Any) -> int:
    count = as_int(n, "n", f"fft.{op}")
    if count < 1:
        raise ShapeError(f"fft.{op}: {count} points; a transform has at least 1")
    return count


def fftfreq(n: int, /, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequencies of the elements of a transform of n points, d apart: cycles per unit of d.

    >>> nm.fft.fftfreq(4, d=0.25).tolist()
    [0.0, 1.0, -2.0, -1.0]
    """
    count = _count("fftfreq", n)
    k = arange(count, device=device)
    wrapped = where(k < (count + 1) // 2, k, k - count)
    return _over(wrapped, count, d, dtype)


def rfftfreq(n: int, /, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequencies of the elements of a real transform of n points, d apart.

    >>> nm.fft.rfftfreq(4, d=0.25).tolist()
    [0.0, 1.0, 2.0]
    """
    count = _count("rfftfreq", n)
    return _over(arange(count // 2 + 1, device=device), count, d, dtype)


def _over(k: Tensor, count: int, d: float, dtype: Any) -> Tensor:
    return k.astype(dt.default_float if dtype is None else dt.as_dtype(dtype)) / (count * d)


def _axes(op: str, x: ArrayLike, axes: int | Sequence[int] | None) -> list[int]:
    ndim = node_of(x, f"fft.{op}").ndim
    if axes is None:
        return list(range(ndim))
    given = axes if isinstance(axes, (tuple, list)) else [axes]
    return [normal_axis(a, ndim, f"fft.{op}") for a in given]


@spelled
def fftshift(x: ArrayLike, /, axes: int | Sequence[int] | None = None) -> Tensor:
    """The elements of a transform with frequency 0 in the middle of the axes (default: of all).

    >>> nm.fft.fftshift(nm.fft.fftfreq(4, d=0.25)).tolist()
    [-2.0, -1.0, 0.0, 1.0]
    """
    where_, shape = _axes("fftshift", x, axes), node_of(x, "fft.fftshift").shape
    return roll(x, tuple(shape[a] // 2 for a in where_), tuple(where_))


@spelled
def ifftshift(x: ArrayLike, /, axes: int | Sequence[int] | None = None) -> Tensor:
    """The inverse of `fftshift`.

    >>> nm.fft.ifftshift(nm.asarray([-2.0, -1.0, 0.0, 1.0])).tolist()
    [0.0, 1.0, -2.0, -1.0]
    """
    where_, shape = _axes("ifftshift", x, axes), node_of(x, "fft.ifftshift").shape
    return roll(x, tuple(-(shape[a] // 2) for a in where_), tuple(where_))
