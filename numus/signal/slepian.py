"""Slepian windows: discrete prolate spheroidal sequences (Slepian 1978)."""

from __future__ import annotations

from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.shapes import as_int
from numus.signal._arguments import Array, tensor
from numus.signal.window_shapes import HOST, point_count

__all__ = ["dpss"]


def _dpss(
    M: int, NW: float, Kmax: int | None = None, sym: bool = True, norm: Any = None
) -> tuple[Array, Array]:
    """The sequences, and their concentrations."""
    import scipy.linalg  # which solves the tridiagonal eigenproblem alone

    op = "signal.windows.dpss"
    count = point_count("dpss", M)
    one = Kmax is None
    most = 1 if Kmax is None else as_int(Kmax, "Kmax", op)
    norm = norm if norm is not None else ("approximate" if one else 2)
    if norm not in (2, "approximate", "subsample"):
        raise ValueError(f"{op}: norm is {norm!r}; it must be 2, 'approximate' or 'subsample'")
    if count <= 1:
        return np.ones((most, count)), np.ones(most)
    points = count if sym else count + 1
    if not 0 < most <= points:
        raise ValueError(f"{op}: Kmax is {Kmax}; it must be from 1 to M={count}")
    if not 0 < NW < points / 2:
        raise ValueError(f"{op}: NW is {NW}; it must be above 0 and below M / 2")
    n, width = np.arange(points), NW / points
    diagonal = ((points - 1 - 2 * n) / 2) ** 2 * np.cos(2 * np.pi * width)
    off_diagonal = n[1:] * (points - n[1:]) / 2
    which = (points - most, points - 1)
    found = scipy.linalg.eigh_tridiagonal(diagonal, off_diagonal, select="i", select_range=which)
    w = found[1].T[::-1].copy()
    w[::2] *= np.where(w[::2].sum(axis=1) < 0, -1, 1)[:, None]  # symmetric ones: a positive mean
    threshold = max(1e-7, 1 / points)
    for row in w[1::2]:  # antisymmetric ones begin with a positive lobe
        if row[row * row > threshold][0] < 0:
            row *= -1
    padded = np.fft.rfft(w, 2 * points)
    lags = np.fft.irfft(np.abs(padded) ** 2)[:, :points]
    kernel = 4 * width * np.sinc(2 * width * n)
    kernel[0] = 2 * width
    ratios = lags @ kernel
    if norm != 2:
        w /= w.max()
        if points % 2 == 0:
            w *= _peak_correction(w[0], NW, norm)
    return w[:, :count], ratios


def _peak_correction(w: Array, NW: float, norm: str) -> float:
    """The factor by which the peak between two samples is 1."""
    points = len(w)
    if norm == "approximate":
        return points**2 / (points**2 + NW)
    spectrum = np.fft.rfft(w)
    shift = -(1 - 1 / points) * np.arange(1, points // 2 + 1)
    spectrum[1:] *= 2 * np.exp(-1j * np.pi * shift)
    return float(points / spectrum.real.sum())


def dpss(
    M: int,
    NW: float,
    Kmax: int | None = None,
    sym: bool = True,
    norm: int | str | None = None,
    return_ratios: bool = False,
    *,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """Discrete prolate spheroidal (Slepian) sequences, with the most energy in a band of half-width
    NW / M.

    Args:
        Kmax: how many, as rows; without it the first one.
        norm: 2, "approximate" or "subsample": unit norm, or a peak of 1 between samples.
        return_ratios: also the part of the energy inside the band.

    >>> nm.signal.windows.dpss(5, 1.5).shape, nm.signal.windows.dpss(5, 1.5, 2).shape
    ((5,), (2, 5))
    """
    w, ratios = _dpss(M, NW, Kmax, sym, norm)
    first: Any = 0 if Kmax is None else slice(None)
    made = tensor(w[first], dtype or dt.default_float, device)
    if not return_ratios:
        return made
    return made, tensor(np.asarray(ratios[first]), dtype or dt.default_float, device)


HOST["dpss"] = lambda M, NW, sym=True: _dpss(M, NW, None, sym)[0][0]
