"""Short-time Fourier transforms and their inverse, with SciPy's names, arguments and scalings.

Frames, detrending and the window are read by the first pass of the transforms.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.signal._arguments import (
    Array,
    axis_of,
    choice,
    host,
    last,
    positive,
    real_dtype,
    signal,
    tensor,
    wide,
)
from numus.signal.filtering import detrend
from numus.signal.framing import frames, overlap_add
from numus.signal.windows import host_window
from numus.tensor import Tensor

__all__ = ["istft", "stft"]


@dataclass(frozen=True)
class Segments:
    """Frames of a signal: their window, overlap, and the points of their transforms."""

    window: Array
    length: int
    stride: int
    points: int

    @property
    def overlap(self) -> int:
        return self.length - self.stride


def segments_of(
    op: str, window: Any, nperseg: Any, noverlap: Any, nfft: Any, have: int | None
) -> Segments:
    """The segments of a signal of `have` samples (None: of any), with SciPy's defaults."""
    if isinstance(window, (str, tuple)):
        length = 256 if nperseg is None else positive(op, nperseg, "nperseg")
        if have is not None:
            length = min(length, have)
        values = host_window(window, length, True, op)
    else:
        values = host(op, window, "window")
        if values.ndim != 1 or not values.size:
            raise ShapeError(f"signal.{op}: window has shape {values.shape}; it must be a vector")
        length = values.size
        if have is not None and length > have:
            raise ShapeError(f"signal.{op}: a window of {length} is longer than {have} samples")
        if nperseg is not None and nperseg != length:
            raise ValueError(f"signal.{op}: nperseg={nperseg} differs from the window's {length}")
    overlap = length // 2 if noverlap is None else positive(op, noverlap, "noverlap", 0)
    if overlap >= length:
        raise ShapeError(f"signal.{op}: noverlap={overlap} must be less than nperseg={length}")
    points = length if nfft is None else positive(op, nfft, "nfft")
    if points < length:
        raise ValueError(f"signal.{op}: nfft={points} must be at least nperseg={length}")
    return Segments(values, length, length - overlap, points)


_BOUNDARIES = {"even": ("reflect", 1), "odd": ("reflect", -1), "constant": ("edge", 1)}


def _extended(op: str, x: Tensor, boundary: str | None, by: int) -> Tensor:
    """The last axis continued by half a segment at both ends."""
    choice(op, boundary, "boundary", "even", "odd", "constant", "zeros", None)
    if boundary is None or not by:
        return x
    margins = [(0, 0)] * (x.ndim - 1) + [(by, by)]
    if boundary == "zeros":
        return nm.pad(x, margins)
    if by >= x.shape[-1] and boundary != "constant":
        raise ShapeError(f"signal.{op}: {x.shape[-1]} samples are too few to mirror {by} of them")
    how, sign = _BOUNDARIES[boundary]
    padded = nm.pad(x, margins, mode=how)
    if sign == 1:
        return padded
    first = 2 * x[..., :1] - padded[..., :by]
    after = 2 * x[..., -1:] - padded[..., padded.shape[-1] - by :]
    return nm.concat([first, x, after], axis=-1)


def power_scale(values: Array, scaling: str, fs: float) -> float:
    """The factor of a power spectrum."""
    if scaling == "density":
        return 1 / (fs * float(np.sum(np.abs(values) ** 2)))
    return 1 / float(abs(np.sum(values)) ** 2)


def transforms(x: Tensor, seg: Segments, detrending: Any, onesided: bool) -> Tensor:
    """Spectra of the frames along the last axis: (..., frames, frequencies)."""
    parts = frames(x, seg.length, seg.stride)
    if callable(detrending):
        parts = detrending(parts)
    elif detrending:
        parts = detrend(parts, axis=-1, type=detrending)
    kind = complex if seg.window.dtype.kind == "c" else real_dtype(x)
    weights = tensor(seg.window, None if kind is complex else kind, x.device)
    parts = parts * weights
    if onesided:
        return nm.fft.rfft(parts, seg.points)
    return nm.fft.fft(parts, seg.points)


def frequencies(n: int, fs: float, onesided: bool, x: Tensor) -> Tensor:
    made = nm.fft.rfftfreq if onesided else nm.fft.fftfreq
    return made(n, 1 / fs, dtype=real_dtype(x), device=x.device)


def is_onesided(op: str, return_onesided: bool, *signals: Tensor) -> bool:
    return bool(return_onesided) and all(x.dtype.kind != "complex" for x in signals)


def frame_times(seg: Segments, count: int, fs: float, start: float, x: Tensor) -> Tensor:
    k = nm.arange(count, dtype=real_dtype(x), device=x.device)
    return (k * seg.stride + start) / fs


def stft(
    x: Any,
    fs: float = 1.0,
    window: Any = "hann",
    nperseg: int | None = 256,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = False,
    return_onesided: bool = True,
    boundary: str | None = "zeros",
    padded: bool = True,
    axis: int = -1,
    scaling: str = "spectrum",
) -> tuple[Tensor, Tensor, Tensor]:
    """The short-time Fourier transform: (frequencies, times, spectra of overlapping frames).

    The axis of time becomes that of the frequencies, and frames are the last axis. PyTorch's
    `torch.stft(x, n_fft, stride, window=w)` is `stft(x, window=w, noverlap=n_fft - stride,
    boundary="even", padded=False)`, times the sum of the window.

    Args:
        window: a name, (name, *arguments), or the weights themselves.
        nperseg: samples of a frame; `noverlap` of them (by default half) are in the next one too.
        detrend: "constant" or "linear" removes the trend of each frame.
        boundary: the continuation by half a frame at both ends: "zeros", "even", "odd", "constant"
            or None.
        padded: zeros at the end, so that frames cover all samples.
        scaling: "spectrum" (a sine of amplitude 1 has peaks of 1/2) or "psd".

    >>> f, t, z = nm.signal.stft(nm.ones(1000), nperseg=100)
    >>> f.shape, t.shape, z.shape
    ((51,), (21,), (51, 21))
    """
    op = "stft"
    choice(op, scaling, "scaling", "spectrum", "psd")
    x = wide(signal(op, x))
    at = axis_of(op, x, axis)
    rows = last(op, x, axis)
    if not rows.shape[-1]:
        raise ShapeError(f"signal.{op}: no samples along axis {axis} of shape {x.shape}")
    seg = segments_of(op, window, nperseg, noverlap, nfft, rows.shape[-1])
    half = seg.length // 2 if boundary is not None else 0
    rows = _extended(op, rows, boundary, half)
    if padded:
        missing = -(rows.shape[-1] - seg.length) % seg.stride % seg.length
        rows = nm.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, missing)])
    onesided = is_onesided(op, return_onesided, rows)
    z = transforms(rows, seg, detrend, onesided)
    factor = power_scale(seg.window, "density" if scaling == "psd" else "spectrum", fs) ** 0.5
    start = 0.0 if boundary is not None else seg.length / 2
    times = frame_times(seg, z.shape[-2], fs, start, x)
    z = nm.moveaxis(z * factor, -1, at)
    return frequencies(seg.points, fs, onesided, x), times, z


def istft(
    Zxx: Any,
    fs: float = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    input_onesided: bool = True,
    boundary: bool = True,
    time_axis: int = -1,
    freq_axis: int = -2,
    scaling: str = "spectrum",
) -> tuple[Tensor, Tensor]:
    """The inverse of `stft`: (times, signal), exact where the squares of the window cover it.

    >>> x = nm.arange(1000.0)
    >>> t, y = nm.signal.istft(nm.signal.stft(x)[2])
    >>> nm.max(nm.abs(y[:1000] - x)).item() < 1e-3
    True
    """
    op = "istft"
    choice(op, scaling, "scaling", "spectrum", "psd")
    z = signal(op, Zxx, "Zxx")
    if z.ndim < 2:
        raise ShapeError(f"signal.{op}: Zxx has shape {z.shape}; it must have at least 2 axes")
    along, freq = axis_of(op, z, time_axis), axis_of(op, z, freq_axis)
    if along == freq:
        raise ValueError(f"signal.{op}: time_axis and freq_axis are the same axis, {along}")
    z = nm.moveaxis(z, (along, freq), (-2, -1))
    bins = z.shape[-1]
    default = 2 * (bins - 1) if input_onesided else bins
    if not isinstance(window, (str, tuple)) and nperseg is None:
        nperseg = host(op, window, "window").size
    length = default if nperseg is None else positive(op, nperseg, "nperseg")
    if nfft is None:
        nfft = default + 1 if input_onesided and length == default + 1 else default
    seg = segments_of(op, window, length, noverlap, nfft, None)
    parts = nm.fft.irfft(z, seg.points) if input_onesided else nm.fft.ifft(z, seg.points)
    weights = tensor(seg.window, real_dtype(parts), z.device)
    x = overlap_add(parts[..., : seg.length] * weights, seg.stride)
    norm = _overlapped_squares(seg, z.shape[-2])
    cut = seg.length // 2 if boundary else 0
    stop = x.shape[-1] - cut
    kept = norm[cut:stop]
    bare = kept <= 1e-10
    if bare.any():
        warnings.warn(
            f"signal.{op}: the window with nperseg={seg.length}, noverlap={seg.overlap} leaves "
            "samples uncovered, which are not restored",
            stacklevel=2,
        )
        kept = np.where(bare, 1, kept)
    factor = power_scale(seg.window, "density" if scaling == "psd" else "spectrum", fs) ** -0.5
    x = x[..., cut:stop] * tensor(factor / kept, real_dtype(x), z.device)
    times = nm.arange(x.shape[-1], dtype=real_dtype(x), device=z.device) / fs
    if x.ndim > 1 and along != z.ndim - 1:
        where = along - (freq < along)
        x = nm.moveaxis(x, -1, where)
    return times, x


def _overlapped_squares(seg: Segments, count: int) -> Array:
    """The sum of the squares of the window over all frames."""
    squares = np.abs(seg.window) ** 2
    out = np.zeros((count - 1) * seg.stride + seg.length)
    pieces = -(-seg.length // seg.stride)
    blocks = np.zeros((count + pieces - 1, seg.stride))
    padded = np.pad(squares, (0, pieces * seg.stride - seg.length)).reshape(pieces, seg.stride)
    for k in range(pieces):
        blocks[k : k + count] += padded[k]
    out[:] = blocks.reshape(-1)[: out.size]
    return out
