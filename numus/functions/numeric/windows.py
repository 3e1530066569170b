"""Window functions under NumPy's and PyTorch's names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from numus import dtypes as dt
from numus.functions import api as nm
from numus.functions._base import as_number
from numus.shapes import as_int
from numus.tensor import Tensor

__all__ = [
    "bartlett", "bartlett_window", "blackman", "blackman_window", "hamming", "hamming_window",
    "hann_window", "hanning", "kaiser", "kaiser_window",
]  # fmt: skip

Shape = Callable[[Tensor], Tensor]  # of the position in the window, from -1 to 1


def _window(
    op: str,
    length: int,
    shape: Shape,
    periodic: bool = False,
    dtype: Any = None,
    device: Any = None,
) -> Tensor:
    """A window: a function of the position in it, in float64 where the device has it."""
    n = as_int(length, "M", op)
    result = dt.default_float if dtype is None else dt.as_dtype(dtype)
    if n < 1:
        return nm.zeros((0,), dtype=result, device=device)
    if n == 1:
        return nm.ones((1,), dtype=result, device=device)
    steps = n if periodic else n - 1
    index = nm.arange(n, dtype=dt.int64, device=device)
    target = index.device.runtime.target
    wide = dt.float64 if "float64" in target.dtypes else dt.float32
    # 2 i - steps is exact and symmetric, unlike 2 i / steps - 1
    return nm.astype(shape(nm.astype(2 * index - steps, wide) / steps), result)


def _cosines(*terms: float) -> Shape:
    """A sum of cosines, over a full period, from the middle out."""

    def shape(t: Tensor) -> Tensor:
        total: Any = terms[0]
        for k, a in enumerate(terms[1:], 1):
            total = total + a * nm.cos(math.pi * k * t)
        return total

    return shape


def _bessel_i0(x: Tensor) -> Tensor:
    """The modified Bessel function of order 0, by its power series: all terms are positive."""
    quarter = x * x / 4
    term = total = nm.ones_like(x)
    for k in range(1, 60):
        term = term * quarter / (k * k)
        total = total + term
    return total


def _kaiser(beta: float) -> Shape:
    def shape(t: Tensor) -> Tensor:
        top = _bessel_i0(beta * nm.sqrt(nm.maximum(1 - t * t, 0.0)))
        return top / _bessel_i0(nm.full_like(t[:1], beta))

    return shape


def _triangle(t: Tensor) -> Tensor:
    return 1 - nm.abs(t)


_HANN = _cosines(0.5, 0.5)
_BLACKMAN = _cosines(0.42, 0.5, 0.08)


def bartlett(M: int, /) -> Tensor:
    """The triangular window of M points whose ends are zero.

    >>> nm.bartlett(5).tolist()
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    return _window("bartlett", M, _triangle)


def hanning(M: int, /) -> Tensor:
    """Hann's window of M points, a raised cosine.

    >>> nm.hanning(5).tolist()
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    return _window("hanning", M, _HANN)


def hamming(M: int, /) -> Tensor:
    """Hamming's window of M points, a cosine on a pedestal."""
    return _window("hamming", M, _cosines(0.54, 0.46))


def blackman(M: int, /) -> Tensor:
    """Blackman's window of M points, three terms."""
    return _window("blackman", M, _BLACKMAN)


def kaiser(M: int, beta: float, /) -> Tensor:
    """Kaiser's window of M points; beta trades the width of the main lobe for lower side lobes."""
    return _window("kaiser", M, _kaiser(float(as_number(beta, "beta", "kaiser"))))


def hann_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """Hann's window under PyTorch's name, periodic unless told otherwise.

    >>> nm.hann_window(4).tolist()
    [0.0, 0.5, 1.0, 0.5]
    """
    return _window("hann_window", window_length, _HANN, periodic, dtype, device)


def hamming_window(
    window_length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    *,
    dtype: Any = None,
    device: Any = None,
) -> Tensor:
    """Hamming's window under PyTorch's name."""
    shape = _cosines(alpha, beta)
    return _window("hamming_window", window_length, shape, periodic, dtype, device)


def blackman_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """Blackman's window under PyTorch's name."""
    return _window("blackman_window", window_length, _BLACKMAN, periodic, dtype, device)


def bartlett_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """The triangular window under PyTorch's name."""
    return _window("bartlett_window", window_length, _triangle, periodic, dtype, device)


def kaiser_window(
    window_length: int,
    periodic: bool = True,
    beta: float = 12.0,
    *,
    dtype: Any = None,
    device: Any = None,
) -> Tensor:
    """Kaiser's window under PyTorch's name."""
    shape = _kaiser(float(as_number(beta, "beta", "kaiser_window")))
    return _window("kaiser_window", window_length, shape, periodic, dtype, device)
