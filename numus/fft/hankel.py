"""Fast Hankel transforms of logarithmically spaced samples (FFTLog, Talman 1978, Hamilton 2000)."""

from __future__ import annotations

import math
import warnings

import numpy as np

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.fft.functions import real_operand
from numus.fft.transform import inverse_real_transform, real_transform, scaled
from numus.functions._base import as_number, computed
from numus.functions.indexing.index_checks import upload
from numus.graph import Array, Node
from numus.primitives import elementwise as ew
from numus.primitives import views
from numus.tensor import ArrayLike, Tensor

_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


def log_gamma(z: Array) -> Array:
    """log Gamma of complex numbers, up to multiples of 2 pi i: Stirling's series, after the
    recurrence has brought the real part above 10; by reflection on the left half-plane."""
    z = np.asarray(z, np.complex128)
    left = z.real < 0.5
    w = np.where(left, 1 - z, z)
    shift = np.zeros_like(w)
    for _ in range(11):
        near = w.real < 10
        shift = np.where(near, shift + np.log(np.where(near, w, 1)), shift)
        w = np.where(near, w + 1, w)
    tail = sum(c / w ** (2 * i + 1) for i, c in enumerate(_STIRLING))
    found = (w - 0.5) * np.log(w) - w + 0.5 * math.log(2 * math.pi) + tail - shift
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        # log sin(pi z), from its decaying exponential where the other one would overflow
        up = np.where(z.imag > 0, 1, -1)
        sine = -1j * up * np.pi * (z - 0.5) + np.log1p(-np.exp(2j * up * np.pi * z)) - math.log(2)
        return np.where(left, math.log(math.pi) - sine - found, found)


def _ratio_at_zero(above: float, below: float) -> float:
    """Gamma(above) / Gamma(below) where one of them or both are poles."""

    def is_pole(x: float) -> bool:
        return x <= 0 and x == int(x)

    if is_pole(above) and is_pole(below):  # the ratio of their residues
        m, n = int(-above), int(-below)
        sign = -1.0 if (m - n) % 2 else 1.0
        return sign * math.exp(math.lgamma(n + 1) - math.lgamma(m + 1))
    if is_pole(above):
        return math.inf
    return 0.0


def _coefficients(n: int, dln: float, mu: float, offset: float, bias: float) -> Array:
    """The factors of the spectrum: 2^z Gamma((mu + 1 + z) / 2) / Gamma((mu + 1 - z) / 2) for
    z = bias + 2 pi i m / (n dln), rotated by the offset."""
    eta = 2 * np.pi * np.arange(n // 2 + 1) / (n * dln)
    above, below = (mu + 1 + bias) / 2, (mu + 1 - bias) / 2
    with np.errstate(all="ignore"):
        logs = log_gamma(above + 0.5j * eta) - log_gamma(below - 0.5j * eta)
        u = np.exp(logs + math.log(2) * bias + 1j * eta * (math.log(2) - offset))
    if n % 2 == 0:
        u[-1] = u[-1].real  # of a real signal
    u[0] = u[0].real
    if not np.isfinite(u[0]):
        u[0] = 2**bias * _ratio_at_zero(above, below)
    return u


def _biased(x: Node, exponent: float, start: float) -> Node:
    """x_j times exp(exponent * (j - (n - 1) / 2) + start)."""
    n = x.shape[-1]
    factor = np.exp(exponent * (np.arange(n) - (n - 1) / 2) + start)
    return ew.mul(x, upload(factor.astype(x.dtype.np), x))


def _transformed(
    op: str, a: ArrayLike, dln: float, mu: float, offset: float, bias: float, inverse: bool
) -> Tensor:
    given = {"dln": dln, "mu": mu, "offset": offset, "bias": bias}
    dln, mu, offset, bias = (as_number(v, name, f"fft.{op}") for name, v in given.items())
    x = real_operand(op, a)
    n = x.shape[-1] if x.ndim else 0
    if n < 1:
        raise ShapeError(f"fft.{op}: no points in an array of shape {x.shape}")
    u = _coefficients(n, dln, mu, offset, bias)
    if (u[0] == 0) if inverse else np.isinf(u[0]):
        warnings.warn(f"fft.{op}: singular transform; consider another bias", stacklevel=3)
        u[0] = np.inf if inverse else 0
    with np.errstate(all="ignore"):
        factor = 1 / np.conj(u) if inverse else u
    if bias:
        step = bias * dln
        x = _biased(x, step, bias * offset) if inverse else _biased(x, -step, 0.0)
    dtype = dt.complex_of(x.dtype)
    table = upload(factor.astype(dtype.np), x)
    y = scaled(inverse_real_transform(ew.mul(real_transform(x), table), n), 1 / n)
    y = views.flip(y, (y.ndim - 1,))
    if bias:
        y = _biased(y, step, 0.0) if inverse else _biased(y, -step, -bias * offset)
    return computed(y)


def fht(a: ArrayLike, /, dln: float, mu: float, offset: float = 0.0, bias: float = 0.0) -> Tensor:
    """The fast Hankel transform of order mu, along the last axis, of samples at r_c exp(j dln).

    Results are at k_c exp(j dln), with log(k_c r_c) = offset. `bias` is the exponent of a power
    law that is taken out of the samples and put back.

    >>> r = nm.asarray(np.logspace(-7, 1, 128))
    >>> nm.fft.fht(r * nm.exp(-r * r / 2), dln=np.log(10) * 8 / 127, mu=0.0).shape
    (128,)
    """
    return _transformed("fht", a, dln, mu, offset, bias, False)


def ifht(a: ArrayLike, /, dln: float, mu: float, offset: float = 0.0, bias: float = 0.0) -> Tensor:
    """The inverse of `fht`.

    >>> a = nm.asarray([1.0, 2.0, 3.0])
    >>> nm.fft.ifht(nm.fft.fht(a, 0.1, 0.5), 0.1, 0.5).round(decimals=4).tolist()
    [1.0, 2.0, 3.0]
    """
    return _transformed("ifht", a, dln, mu, offset, bias, True)


def fhtoffset(dln: float, mu: float, initial: float = 0.0, bias: float = 0.0) -> float:
    """The offset nearest to `initial` for which `fht` rings least: its last factor is real.

    >>> round(nm.fft.fhtoffset(0.1, mu=0.0, initial=0.5), 6)
    0.547484
    """
    above, below = (mu + 1 + bias) / 2, (mu + 1 - bias) / 2
    y = math.pi / (2 * dln)
    phase = log_gamma(np.asarray(above + 1j * y)).imag + log_gamma(np.asarray(below + 1j * y)).imag
    turns = (math.log(2) - initial) / dln + float(phase) / math.pi
    return initial + (turns - round(turns)) * dln
