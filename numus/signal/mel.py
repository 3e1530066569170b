"""Mel scales, filter banks and spectrograms, as librosa and torchaudio have them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import numus as nm
from numus import dtypes as dt
from numus.errors import ShapeError
from numus.signal._arguments import Array, choice, host, last, positive, real_signal, tensor, wide
from numus.signal.framing import frames
from numus.signal.windows import host_window
from numus.tensor import Tensor

__all__ = ["hz_to_mel", "mel_filter_bank", "mel_spectrogram", "mel_to_hz"]

_LINEAR_HZ = 200 / 3  # of a mel below 1000 Hz, on Slaney's scale
_LOG_STEP = math.log(6.4) / 27  # of a mel above it


def _to_mel(hz: Array, scale: str) -> Array:
    if scale == "htk":
        return 2595 * np.log10(1 + hz / 700)
    return np.where(
        hz < 1000, hz / _LINEAR_HZ, 15 + np.log(np.maximum(hz, 1e-9) / 1000) / _LOG_STEP
    )


def _to_hz(mel: Array, scale: str) -> Array:
    if scale == "htk":
        return 700 * (10 ** (mel / 2595) - 1)
    return np.where(mel < 15, mel * _LINEAR_HZ, 1000 * np.exp(_LOG_STEP * (mel - 15)))


def hz_to_mel(frequencies: Any, scale: str = "htk") -> Tensor:
    """Frequencies on the mel scale of HTK ("htk") or of Slaney ("slaney"), computed in float64.

    >>> nm.signal.hz_to_mel(0.0).item()
    0.0
    """
    choice("hz_to_mel", scale, "scale", "htk", "slaney")
    values = host("hz_to_mel", frequencies, "frequencies").astype(float)
    return tensor(_to_mel(values, scale), dt.default_float)


def mel_to_hz(mels: Any, scale: str = "htk") -> Tensor:
    """The inverse of `hz_to_mel`.

    >>> nm.signal.mel_to_hz(15.0, "slaney").item()
    1000.0
    """
    choice("mel_to_hz", scale, "scale", "htk", "slaney")
    values = host("mel_to_hz", mels, "mels").astype(float)
    return tensor(_to_hz(values, scale), dt.default_float)


def _bank(
    op: str, n_mels: Any, n_fft: Any, fs: float, fmin: float, fmax: float | None, scale: str,
    norm: str | None,
) -> Array:  # fmt: skip
    """Triangles over the frequencies of a real transform: (n_mels, n_fft // 2 + 1)."""
    choice(op, scale, "scale", "htk", "slaney")
    choice(op, norm, "norm", "slaney", None)
    count, points = positive(op, n_mels, "n_mels"), positive(op, n_fft, "n_fft")
    top = fs / 2 if fmax is None else float(fmax)
    if not 0 <= fmin < top <= fs / 2:
        raise ValueError(f"signal.{op}: need 0 <= fmin={fmin} < fmax={top} <= fs / 2 = {fs / 2}")
    ends = _to_mel(np.array([fmin, top]), scale)
    edges = _to_hz(np.linspace(ends[0], ends[1], count + 2), scale)
    hz = np.arange(points // 2 + 1) * (fs / points)
    rising = (hz - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - hz) / np.diff(edges)[1:, None]
    bank = np.maximum(0, np.minimum(rising, falling))
    return bank * (2 / (edges[2:] - edges[:-2]))[:, None] if norm == "slaney" else bank


def mel_filter_bank(
    n_mels: int,
    n_fft: int,
    fs: float,
    fmin: float = 0.0,
    fmax: float | None = None,
    scale: str = "htk",
    norm: str | None = None,
    *,
    dtype: Any = None,
    device: Any = None,
) -> Tensor:
    """Triangular filters, evenly spaced on the mel scale: (n_mels, n_fft // 2 + 1).

    Args:
        norm: "slaney" divides each triangle by half its width in Hz (librosa's default); None
            leaves peaks at 1 (torchaudio's).

    >>> nm.signal.mel_filter_bank(40, 512, 16000.0).shape
    (40, 257)
    """
    bank = _bank("mel_filter_bank", n_mels, n_fft, fs, fmin, fmax, scale, norm)
    return tensor(bank, dtype or dt.default_float, device)


def mel_spectrogram(
    x: Any,
    fs: float,
    n_fft: int = 400,
    stride: int | None = None,
    n_mels: int = 128,
    *,
    window: Any = "hann",
    power: float = 2.0,
    center: bool = True,
    fmin: float = 0.0,
    fmax: float | None = None,
    scale: str = "htk",
    norm: str | None = None,
) -> Tensor:
    """Powers of short-time spectra in mel bands: (..., n_mels, frames) of (..., samples).

    Args:
        stride: samples between frames, by default half of `n_fft`.
        power: 2 for powers, 1 for magnitudes.
        center: frames are centred at multiples of the stride; the signal is mirrored at its ends.

    >>> nm.signal.mel_spectrogram(nm.zeros(16000), 16000.0, n_mels=64).shape
    (64, 81)
    """
    op = "mel_spectrogram"
    rows = last(op, wide(real_signal(op, x)), -1)
    points = positive(op, n_fft, "n_fft")
    step = points // 2 if stride is None else positive(op, stride, "stride")
    bank = _bank(op, n_mels, points, fs, fmin, fmax, scale, norm)
    if center:
        if rows.shape[-1] <= points // 2:
            raise ShapeError(f"signal.{op}: {rows.shape[-1]} samples are too few to mirror half of "
                             f"n_fft={points}")  # fmt: skip
        margins = [(0, 0)] * (rows.ndim - 1) + [(points // 2, points // 2)]
        rows = nm.pad(rows, margins, mode="reflect")
    if isinstance(window, (str, tuple)):
        weights = host_window(window, points, True, op)
    else:
        weights = host(op, window, "window")
        if weights.shape != (points,):
            raise ShapeError(
                f"signal.{op}: window has shape {weights.shape}; it must be ({points},)"
            )
    z = nm.fft.rfft(frames(rows, points, step) * tensor(weights, rows.dtype, rows.device))
    squares = nm.square(nm.real(z)) + nm.square(nm.imag(z))
    if power != 2:
        squares = squares ** (power / 2)
    return nm.matrix_transpose(squares @ tensor(bank.T, rows.dtype, rows.device))
