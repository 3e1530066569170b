"""Convolution and correlation of two vectors, as NumPy defines them."""

from __future__ import annotations

from typing import Any

from numus.errors import ShapeError
from numus.functions import api as nm
from numus.functions._base import common, wrap
from numus.functions.layers.convolution import conv1d
from numus.tensor import ArrayLike, Tensor

__all__ = ["convolve", "correlate"]

_MODES = ("full", "same", "valid")


def _vectors(op: str, a: Any, v: Any, mode: str) -> tuple[Tensor, Tensor]:
    x, y = (wrap(node) for node in common(op, a, v))
    for part in (x, y):
        if part.ndim > 1 or part.size == 0:
            raise ShapeError(
                f"{op}: takes two vectors that are not empty, not {x.shape}, {y.shape}"
            )
    if mode not in _MODES:
        raise ValueError(f"{op}: mode must be one of {', '.join(_MODES)}, not {mode!r}")
    return nm.reshape(x, -1), nm.reshape(y, -1)


def _slid(x: Tensor, taps: Tensor, mode: str) -> Tensor:
    """Sums of products of taps with every stretch of x, the longer of both: mode is "full" or
    "valid"."""
    n = taps.shape[0]
    edge = n - 1 if mode == "full" else 0
    padded = nm.pad(x, ((edge, edge),))
    y = conv1d(nm.reshape(padded, (1, 1, -1)), nm.reshape(taps, (1, 1, -1)))
    return nm.reshape(y, -1)


def convolve(a: ArrayLike, v: ArrayLike, /, mode: str = "full") -> Tensor:
    """The convolution of two vectors: the coefficients of the product of two polynomials.

    Args:
        mode: "full" gives every overlap, "same" as many as the longer one has elements, "valid"
            those where the vectors overlap completely.

    >>> nm.convolve(nm.asarray([1, 2, 3]), nm.asarray([0, 1])).tolist()
    [0, 1, 2, 3]
    """
    x, y = _vectors("convolve", a, v, mode)
    if y.shape[0] > x.shape[0]:
        x, y = y, x
    n = y.shape[0]
    if mode == "same":
        return _slid(x, nm.flip(y), "full")[(n - 1) // 2 : (n - 1) // 2 + x.shape[0]]
    return _slid(x, nm.flip(y), mode)


def correlate(a: ArrayLike, v: ArrayLike, /, mode: str = "valid") -> Tensor:
    """The cross-correlation of two vectors: sums of a[n + k] times the conjugate of v[n].

    >>> nm.correlate(nm.asarray([1, 2, 3]), nm.asarray([0, 1]), "same").tolist()
    [1, 2, 3]
    """
    x, y = _vectors("correlate", a, v, mode)
    y = nm.conj(y) if y.dtype.is_complex else y
    swapped = y.shape[0] > x.shape[0]
    long, short = (y, x) if swapped else (x, y)
    found = _slid(long, short, "full" if mode == "same" else mode)
    found = nm.flip(found) if swapped else found
    if mode != "same":
        return found
    n = short.shape[0]
    start = n // 2 if swapped else (n - 1) // 2
    return found[start : start + long.shape[0]]
