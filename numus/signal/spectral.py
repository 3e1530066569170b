"""Power spectra averaged over frames: welch, csd, coherence, periodogram, and spectrogram."""

from __future__ import annotations

from typing import Any

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.signal._arguments import (
    axis_of,
    choice,
    last,
    positive,
    real_dtype,
    signal,
    slice_along,
    tensor,
    wide,
)
from numus.signal.short_time import (
    frame_times,
    frequencies,
    is_onesided,
    power_scale,
    segments_of,
    stft,
    transforms,
)
from numus.tensor import Tensor

__all__ = ["coherence", "csd", "periodogram", "spectrogram", "welch"]


def _powers(
    op: str,
    x: Any,
    y: Any,
    fs: float,
    window: Any,
    nperseg: Any,
    noverlap: Any,
    nfft: Any,
    detrending: Any,
    return_onesided: bool,
    scaling: str,
    axis: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Frequencies, times, and the (cross) power of each frame: (..., frames, frequencies)."""
    choice(op, scaling, "scaling", "density", "spectrum")
    x = wide(signal(op, x))
    same = y is None
    y = x if same else wide(signal(op, y, "y"))
    a, b = last(op, x, axis), last(op, y, axis)
    n = max(a.shape[-1], b.shape[-1])
    if not min(a.shape[-1], b.shape[-1]):
        raise ShapeError(f"signal.{op}: no samples in shapes {x.shape} and {y.shape}")
    a, b = (nm.pad(s, [(0, 0)] * (s.ndim - 1) + [(0, n - s.shape[-1])]) for s in (a, b))
    seg = segments_of(op, window, nperseg, noverlap, nfft, n)
    onesided = is_onesided(op, return_onesided, a, b)
    first = transforms(a, seg, detrending, onesided)
    if same:
        power = nm.square(nm.real(first)) + nm.square(nm.imag(first))
    else:
        power = nm.conj(first) * transforms(b, seg, detrending, onesided)
    factor = np.full(power.shape[-1], power_scale(seg.window, scaling, fs))
    if onesided:  # the negative frequencies, which are not returned
        factor[1 : None if seg.points % 2 else -1] *= 2
    power = power * tensor(factor, real_dtype(x), x.device)
    times = frame_times(seg, power.shape[-2], fs, seg.length / 2, x)
    return frequencies(seg.points, fs, onesided, x), times, power


def csd(
    x: Any,
    y: Any,
    fs: float = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    average: str = "mean",
) -> tuple[Tensor, Tensor]:
    """The cross power spectral density of two signals by Welch's method: (frequencies, power).

    >>> f, p = nm.signal.csd(nm.ones(512), nm.ones(512))
    >>> f.shape, p.dtype.name
    ((129,), 'complex64')
    """
    return _welch("csd", x, y, fs, window, nperseg, noverlap, nfft, detrend, return_onesided,
                  scaling, axis, average)  # fmt: skip


def welch(
    x: Any,
    fs: float = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    average: str = "mean",
) -> tuple[Tensor, Tensor]:
    """The power spectral density by Welch's method: the mean (or median) over overlapping frames.

    >>> f, p = nm.signal.welch(nm.random.normal((4, 1024)), fs=100.0)
    >>> f.shape, p.shape
    ((129,), (4, 129))
    """
    return _welch("welch", x, None, fs, window, nperseg, noverlap, nfft, detrend, return_onesided,
                  scaling, axis, average)  # fmt: skip


def _median_bias(n: int) -> float:
    """The mean of the median of n exponential variables."""
    k = 2 * np.arange(1, (n - 1) // 2 + 1)
    return float(1 + np.sum(1 / (k + 1) - 1 / k))


def _median(x: Tensor) -> Tensor:
    """Over the frames: the mean of the two in the middle."""
    ordered, n = nm.sort(x, axis=-2), x.shape[-2]
    return (ordered[..., (n - 1) // 2, :] + ordered[..., n // 2, :]) / 2


def _welch(
    op: str,
    x: Any,
    y: Any,
    fs: float,
    window: Any,
    nperseg: Any,
    noverlap: Any,
    nfft: Any,
    detrending: Any,
    onesided: bool,
    scaling: str,
    axis: int,
    average: str,
) -> tuple[Tensor, Tensor]:
    choice(op, average, "average", "mean", "median")
    f, _, power = _powers(op, x, y, fs, window, nperseg, noverlap, nfft, detrending, onesided,
                          scaling, axis)  # fmt: skip
    if average == "mean" or power.shape[-2] == 1:
        found = nm.mean(power, axis=-2)
    else:
        bias = _median_bias(power.shape[-2])
        if power.dtype.kind == "complex":
            found = _median(nm.real(power)) + 1j * _median(nm.imag(power))
        else:
            found = _median(power)
        found = found / bias
    return f, _frequency_axis(op, found, x, axis)


def _frequency_axis(op: str, found: Tensor, x: Any, axis: int) -> Tensor:
    """Frequencies moved from the end to the place of the signal's axis."""
    if axis == -1:
        return found
    return nm.moveaxis(found, -1, axis_of(op, found, axis))


def periodogram(
    x: Any,
    fs: float = 1.0,
    window: Any = "boxcar",
    nfft: int | None = None,
    detrend: Any = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
) -> tuple[Tensor, Tensor]:
    """The power spectral density of the whole signal: one frame of `welch`.

    >>> f, p = nm.signal.periodogram(nm.ones(8))
    >>> f.shape, p.shape
    ((5,), (5,))
    """
    op = "periodogram"
    x = signal(op, x)
    n = last(op, x, axis).shape[-1]
    points = n if nfft is None else positive(op, nfft, "nfft")
    if points < n:
        at = axis_of(op, x, axis)
        x = x[(slice(None),) * at + (slice(points),)]
    return _welch(op, x, None, fs, window if window is not None else "boxcar", min(n, points), 0,
                  points, detrend, return_onesided, scaling, axis, "mean")  # fmt: skip


def coherence(
    x: Any,
    y: Any,
    fs: float = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = "constant",
    axis: int = -1,
) -> tuple[Tensor, Tensor]:
    """The magnitude-squared coherence of two signals: |csd|^2 over both power densities.

    >>> f, c = nm.signal.coherence(nm.arange(512.0) % 7, nm.arange(512.0) % 5)
    >>> f.shape, c.shape
    ((129,), (129,))
    """
    options = (fs, window, nperseg, noverlap, nfft, detrend, True, "density", axis, "mean")
    f, own = _welch("coherence", x, None, *options)
    _, other = _welch("coherence", y, None, *options)
    _, cross = _welch("coherence", x, y, *options)
    power = nm.square(nm.real(cross)) + nm.square(nm.imag(cross))
    return f, power / own / other


def spectrogram(
    x: Any,
    fs: float = 1.0,
    window: Any = ("tukey", 0.25),
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    mode: str = "psd",
) -> tuple[Tensor, Tensor, Tensor]:
    """Spectra of overlapping frames: (frequencies, times, spectra), frames along the last axis.

    Args:
        noverlap: by default an eighth of a frame.
        mode: "psd", "complex", "magnitude", "angle" or "phase" (the angle, unwrapped).

    >>> f, t, s = nm.signal.spectrogram(nm.arange(1024.0))
    >>> f.shape, t.shape, s.shape
    ((129,), (4,), (129, 4))
    """
    op = "spectrogram"
    choice(op, mode, "mode", "psd", "complex", "magnitude", "angle", "phase")
    x = wide(signal(op, x))
    n = last(op, x, axis).shape[-1]
    length = segments_of(op, window, nperseg, 0, None, n).length
    if noverlap is None:
        noverlap = length // 8
    at = axis_of(op, x, axis)
    if mode == "psd":
        f, t, power = _powers(op, x, None, fs, window, nperseg, noverlap, nfft, detrend,
                              return_onesided, scaling, axis)  # fmt: skip
        return f, t, nm.moveaxis(power, -1, at)
    size = None if not isinstance(window, (str, tuple)) else length
    f, t, z = stft(x, fs, window, size, noverlap, nfft, detrend, return_onesided, None, False,
                   axis, "psd" if scaling == "density" else "spectrum")  # fmt: skip
    if mode == "complex":
        return f, t, z
    if mode == "magnitude":
        return f, t, nm.abs(z)
    angle = nm.atan2(nm.imag(z), nm.real(z))
    return f, t, angle if mode == "angle" else _unwrapped(angle, at)


def _unwrapped(angle: Tensor, axis: int) -> Tensor:
    """Jumps of more than pi along an axis made up for by whole turns."""
    n = angle.shape[axis]
    first, rest = slice_along(angle, axis, 0, 1), slice_along(angle, axis, 1, n)
    step = rest - slice_along(angle, axis, 0, n - 1)
    turns = nm.cumulative_sum(nm.round(step / (2 * np.pi)), axis=axis)
    return nm.concat([first, rest - 2 * np.pi * turns], axis=axis)
