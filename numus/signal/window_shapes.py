"""Windows: weights that taper a signal to its ends, with SciPy's names and arguments.

They are computed on the host in float64 and rounded once, to `dtype` (default: the default float),
on `device`. `sym=False` gives a periodic window, as transforms take them.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec

import numpy as np

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.shapes import as_int
from numus.signal._arguments import Array, tensor
from numus.tensor import Tensor

__all__ = [
    "barthann", "bartlett", "blackman", "blackmanharris", "bohman", "boxcar", "chebwin", "cosine",
    "exponential", "flattop", "gaussian", "general_cosine", "general_gaussian",
    "general_hamming", "hamming", "hann", "kaiser", "kaiser_bessel_derived", "lanczos", "nuttall",
    "parzen", "taylor", "triang", "tukey",
]  # fmt: skip


P = ParamSpec("P")
HOST: dict[str, Callable[..., Array]] = {}  # float64 arrays, by name


def point_count(name: str, M: Any) -> int:
    count = as_int(M, "M", f"signal.windows.{name}")
    if count < 0:
        raise ShapeError(f"signal.windows.{name}: M is {count}; a window has at least 0 points")
    return count


def _window(shape: Callable[Concatenate[int, P], Array]) -> Callable[..., Tensor]:
    """A public window from the formula of a symmetric one of two points or more."""
    name = shape.__name__

    def host(M: int, *args: Any, sym: bool = True, **options: Any) -> Array:
        count = point_count(name, M)
        if count <= 1:
            return np.ones(count)
        if sym:
            return shape(count, *args, **options)
        return shape(count + 1, *args, **options)[:-1]

    HOST[name] = host
    return _public(shape, host)


def _public(described: Callable[..., Any], host: Callable[..., Array]) -> Callable[..., Tensor]:
    @functools.wraps(described)
    def function(
        M: int, *args: Any, sym: bool = True, dtype: Any = None, device: Any = None, **options: Any
    ) -> Tensor:
        extra = described.__code__.co_argcount - 1
        if len(args) == extra + 1:  # sym by position, as SciPy takes it
            args, sym = args[:-1], args[-1]
        return tensor(host(M, *args, sym=sym, **options), dtype or dt.default_float, device)

    return function


def _cosines(M: int, a: Sequence[float]) -> Array:
    angle = np.linspace(-np.pi, np.pi, M)
    return sum((c * np.cos(k * angle) for k, c in enumerate(a)), np.zeros(M))


def _centred(M: int) -> Array:
    return np.arange(M) - (M - 1) / 2


@_window
def general_cosine(M: int, a: Sequence[float]) -> Array:
    """A sum of cosines with coefficients `a`.

    >>> nm.signal.windows.general_cosine(3, [0.5, 0.5]).tolist()
    [0.0, 1.0, 0.0]
    """
    return _cosines(M, a)


@_window
def general_hamming(M: int, alpha: float) -> Array:
    """alpha - (1 - alpha) cos: `hann` for 0.5, `hamming` for 0.54.

    >>> nm.signal.windows.general_hamming(3, 0.75).tolist()
    [0.5, 1.0, 0.5]
    """
    return _cosines(M, (alpha, 1 - alpha))


@_window
def boxcar(M: int) -> Array:
    """Ones.

    >>> nm.signal.windows.boxcar(3).tolist()
    [1.0, 1.0, 1.0]
    """
    return np.ones(M)


@_window
def hann(M: int) -> Array:
    """A raised cosine that ends in zeros.

    >>> nm.signal.windows.hann(4, sym=False).tolist()
    [0.0, 0.5, 1.0, 0.5]
    """
    return _cosines(M, (0.5, 0.5))


@_window
def hamming(M: int) -> Array:
    """A raised cosine whose first side lobe is cancelled.

    >>> nm.signal.windows.hamming(3).round(decimals=2).tolist()
    [0.07999999821186066, 1.0, 0.07999999821186066]
    """
    return _cosines(M, (0.54, 0.46))


@_window
def blackman(M: int) -> Array:
    """Three cosine terms.

    >>> nm.signal.windows.blackman(3).round(decimals=2)[1].item()
    1.0
    """
    return _cosines(M, (0.42, 0.50, 0.08))


@_window
def nuttall(M: int) -> Array:
    """Four cosine terms with the least side lobe, as Nuttall gives them.

    >>> nm.signal.windows.nuttall(5)[2].item()
    1.0
    """
    return _cosines(M, (0.3635819, 0.4891775, 0.1365995, 0.0106411))


@_window
def blackmanharris(M: int) -> Array:
    """Four cosine terms with low side lobes.

    >>> nm.signal.windows.blackmanharris(5)[2].item()
    1.0
    """
    return _cosines(M, (0.35875, 0.48829, 0.14128, 0.01168))


@_window
def flattop(M: int) -> Array:
    """Five cosine terms with a flat main lobe, for amplitudes.

    >>> nm.signal.windows.flattop(5).shape
    (5,)
    """
    return _cosines(M, (0.21557895, 0.41663158, 0.277263158, 0.083578947, 0.006947368))


@_window
def triang(M: int) -> Array:
    """A triangle that does not reach zero.

    >>> nm.signal.windows.triang(4).tolist()
    [0.25, 0.75, 0.75, 0.25]
    """
    rising = np.arange(1, (M + 1) // 2 + 1)
    if M % 2 == 0:
        half = (2 * rising - 1) / M
        return np.concatenate([half, half[::-1]])
    half = 2 * rising / (M + 1)
    return np.concatenate([half, half[-2::-1]])


@_window
def bartlett(M: int) -> Array:
    """A triangle that ends in zeros.

    >>> nm.signal.windows.bartlett(5).tolist()
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    n = np.arange(M)
    return np.where(n <= (M - 1) / 2, 2 * n / (M - 1), 2 - 2 * n / (M - 1))


@_window
def barthann(M: int) -> Array:
    """A mean of Bartlett's and Hann's windows.

    >>> nm.signal.windows.barthann(3)[1].item()
    1.0
    """
    distance = np.abs(np.arange(M) / (M - 1) - 0.5)
    return 0.62 - 0.48 * distance + 0.38 * np.cos(2 * np.pi * distance)


@_window
def parzen(M: int) -> Array:
    """A cubic B-spline.

    >>> nm.signal.windows.parzen(3)[1].item()
    1.0
    """
    n = np.abs(_centred(M))
    t = n / (M / 2)
    return np.where(n <= (M - 1) / 4, 1 - 6 * t**2 + 6 * t**3, 2 * (1 - t) ** 3)


@_window
def bohman(M: int) -> Array:
    """Two half-cycle cosines convolved.

    >>> nm.signal.windows.bohman(3).tolist()
    [0.0, 1.0, 0.0]
    """
    t = np.abs(np.linspace(-1, 1, M)[1:-1])
    inside = (1 - t) * np.cos(np.pi * t) + np.sin(np.pi * t) / np.pi
    return np.concatenate([[0], inside, [0]])


@_window
def cosine(M: int) -> Array:
    """Half a cycle of a sine.

    >>> nm.signal.windows.cosine(1).tolist()
    [1.0]
    """
    return np.sin(np.pi / M * (np.arange(M) + 0.5))


@_window
def lanczos(M: int) -> Array:
    """The main lobe of a sinc.

    >>> nm.signal.windows.lanczos(3)[1].item()
    1.0
    """
    half = np.sinc(2 * np.arange((M + 1) // 2) / (M - 1) - 1)
    return np.concatenate([half, half[::-1][M % 2 :]])


@_window
def gaussian(M: int, std: float) -> Array:
    """A Gaussian.

    >>> nm.signal.windows.gaussian(3, 1.0)[1].item()
    1.0
    """
    return np.exp(-0.5 * (_centred(M) / std) ** 2)


@_window
def general_gaussian(M: int, p: float, sig: float) -> Array:
    """exp(-|n / sig|^(2 p) / 2): a Gaussian for p = 1.

    >>> nm.signal.windows.general_gaussian(3, 1.5, 2.0)[1].item()
    1.0
    """
    return np.exp(-0.5 * np.abs(_centred(M) / sig) ** (2 * p))


@_window
def kaiser(M: int, beta: float) -> Array:
    """Kaiser's window: i0(beta sqrt(1 - t^2)) / i0(beta).

    >>> nm.signal.windows.kaiser(3, 0.0).tolist()
    [1.0, 1.0, 1.0]
    """
    half = (M - 1) / 2
    t = _centred(M) / half
    return np.i0(beta * np.sqrt(np.maximum(0, 1 - t * t))) / np.i0(beta)


@_window
def tukey(M: int, alpha: float = 0.5) -> Array:
    """A flat top between two halves of a Hann window, which are `alpha` of it.

    >>> nm.signal.windows.tukey(5).tolist()
    [0.0, 1.0, 1.0, 1.0, 0.0]
    """
    if alpha <= 0:
        return np.ones(M)
    if alpha >= 1:
        return _cosines(M, (0.5, 0.5))
    width = math.floor(alpha * (M - 1) / 2)
    n = np.arange(width + 1)
    rise = 0.5 * (1 + np.cos(np.pi * (-1 + 2 * n / alpha / (M - 1))))
    fall = np.arange(M - width - 1, M)
    end = 0.5 * (1 + np.cos(np.pi * (-2 / alpha + 1 + 2 * fall / alpha / (M - 1))))
    return np.concatenate([rise, np.ones(M - 2 * width - 2), end])


@_window
def taylor(M: int, nbar: int = 4, sll: float = 30, norm: bool = True) -> Array:
    """Taylor's window: `nbar` side lobes of nearly constant level, `sll` decibels down.

    >>> nm.signal.windows.taylor(5)[2].round(decimals=4).item()
    1.0
    """
    A = math.acosh(10 ** (sll / 20)) / math.pi
    s2 = nbar**2 / (A**2 + (nbar - 0.5) ** 2)
    m = np.arange(1, nbar)
    terms = np.empty(nbar - 1)
    for i, k in enumerate(m):
        above = np.prod(1 - k**2 / s2 / (A**2 + (m - 0.5) ** 2))
        below = 2 * np.prod(1 - k**2 / m[m != k] ** 2.0)
        terms[i] = (-1) ** i * above / below

    def value(n: Any) -> Array:
        return 1 + 2 * terms @ np.cos(2 * np.pi * m[:, None] * (n - M / 2 + 0.5) / M)

    w = value(np.arange(M))
    return w / value((M - 1) / 2) if norm else w


def _chebyshev(order: int, x: Array) -> Array:
    """The Chebyshev polynomial, on the real line."""
    inside = np.cos(order * np.arccos(np.clip(x, -1, 1)))
    outside = np.cosh(order * np.arccosh(np.maximum(np.abs(x), 1)))
    return np.where(np.abs(x) <= 1, inside, outside * np.where((x < 0) & (order % 2 == 1), -1, 1))


@_window
def chebwin(M: int, at: float) -> Array:
    """The Dolph–Chebyshev window: all side lobes `at` decibels down.

    >>> nm.signal.windows.chebwin(5, 100.0)[2].item()
    1.0
    """
    if abs(at) < 45:
        warnings.warn(
            "signal.windows.chebwin: below 45 dB the window is unsuited to spectral analysis",
            stacklevel=4,
        )
    order = M - 1
    beta = math.cosh(math.acosh(10 ** (abs(at) / 20)) / order)
    k = np.arange(M)
    p = _chebyshev(order, beta * np.cos(np.pi * k / M))
    if M % 2:
        half = np.fft.fft(p).real[: (M + 1) // 2]
        w = np.concatenate([half[:0:-1], half])
    else:
        half = np.fft.fft(p * np.exp(1j * np.pi / M * k)).real[: M // 2 + 1]
        w = np.concatenate([half[:0:-1], half[1:]])
    return w / w.max()


def _exponential(M: int, center: float | None = None, tau: float = 1.0, sym: bool = True) -> Array:
    if sym and center is not None:
        raise ValueError("signal.windows.exponential: center needs sym=False")
    count = point_count("exponential", M)
    if count <= 1:
        return np.ones(count)
    extended = count if sym else count + 1
    middle = (extended - 1) / 2 if center is None else center
    return np.exp(-np.abs(np.arange(extended) - middle) / tau)[:count]


def exponential(
    M: int,
    center: float | None = None,
    tau: float = 1.0,
    sym: bool = True,
    *,
    dtype: Any = None,
    device: Any = None,
) -> Tensor:
    """exp(-|n - center| / tau).

    >>> nm.signal.windows.exponential(3, tau=1.0)[1].item()
    1.0
    """
    return tensor(_exponential(M, center, tau, sym), dtype or dt.default_float, device)


def _kaiser_bessel_derived(M: int, beta: float, *, sym: bool = True) -> Array:
    if not sym:
        raise ValueError("signal.windows.kaiser_bessel_derived: there is no periodic form")
    count = point_count("kaiser_bessel_derived", M)
    if count % 2:
        raise ShapeError(f"signal.windows.kaiser_bessel_derived: M is {count}; it must be even")
    sums = np.cumsum(HOST["kaiser"](count // 2 + 1, beta))
    half = np.sqrt(sums[:-1] / sums[-1])
    return np.concatenate([half, half[::-1]])


def kaiser_bessel_derived(
    M: int, beta: float, *, sym: bool = True, dtype: Any = None, device: Any = None
) -> Tensor:
    """The window of modified cosine transforms: squares of its halves add up to 1.

    >>> nm.signal.windows.kaiser_bessel_derived(2, 1.0)[0].round(decimals=3).item()
    0.7070000171661377
    """
    host = _kaiser_bessel_derived(M, beta, sym=sym)
    return tensor(host, dtype or dt.default_float, device)


HOST["exponential"] = _exponential
HOST["kaiser_bessel_derived"] = _kaiser_bessel_derived
