"""Signals of another rate or form: detrend, hilbert, resample, resample_poly, decimate, savgol."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.functions._base import as_number
from numus.shapes import as_int
from numus.signal._arguments import (
    Array,
    axis_of,
    choice,
    host,
    last,
    positive,
    real_dtype,
    real_signal,
    signal,
    slice_along,
    tensor,
    wide,
)
from numus.signal.extension import MODES, extended
from numus.signal.fir_design import firwin
from numus.signal.iir_design import cheby1
from numus.signal.linear_filters import lfilter, sosfilt, sosfiltfilt
from numus.signal.windows import host_window
from numus.tensor import Tensor

__all__ = [
    "decimate", "detrend", "hilbert", "resample", "resample_poly", "savgol_coeffs",
    "savgol_filter", "upfirdn",
]  # fmt: skip


def _line_basis(n: int) -> Array:
    """Orthonormal: a constant and a line."""
    t = np.arange(1, n + 1) / n
    return np.linalg.qr(np.stack([np.ones(n), t], axis=1))[0]


def detrend(data: Any, axis: int = -1, type: str = "linear", bp: Any = 0) -> Tensor:
    """The signal less its mean ("constant") or its least-squares line ("linear") along an axis.

    Args:
        bp: where the line breaks: indices between parts with lines of their own.

    >>> nm.signal.detrend(nm.asarray([1.0, 2.0, 3.0, 5.0]), type="constant").tolist()
    [-1.75, -0.75, 0.25, 2.25]
    """
    op = "detrend"
    choice(op, type, "type", "linear", "l", "constant", "c")
    x = signal(op, data, "data")
    at = axis_of(op, x, axis)
    if type in ("constant", "c"):
        return x - nm.mean(x, axis=at, keepdims=True)
    rows = nm.moveaxis(x, at, -1)
    n = rows.shape[-1]
    breaks = np.unique(np.concatenate([[0], np.atleast_1d(host(op, bp, "bp")), [n]])).astype(int)
    if breaks[0] < 0 or breaks[-1] > n:
        raise ShapeError(f"signal.{op}: breakpoints {bp} must lie within {n} samples")
    parts = []
    for start, stop in itertools.pairwise(breaks.tolist()):
        part = rows[..., start:stop]
        basis = tensor(_line_basis(stop - start), x.dtype, x.device)
        parts.append(part - (part @ basis) @ basis.T)
    whole = parts[0] if len(parts) == 1 else nm.concat(parts, axis=-1)
    return nm.moveaxis(whole, -1, at)


def hilbert(x: Any, N: int | None = None, axis: int = -1) -> Tensor:
    """The analytic signal along an axis: x + i times its Hilbert transform.

    >>> nm.signal.hilbert(nm.asarray([1.0, 0.0, -1.0, 0.0])).imag.tolist()
    [0.0, 1.0, 0.0, -1.0]
    """
    op = "hilbert"
    rows = last(op, wide(real_signal(op, x)), axis)
    n = rows.shape[-1] if N is None else as_int(N, "N", f"signal.{op}")
    if n <= 0:
        raise ShapeError(f"signal.{op}: N is {n}; it must be positive")
    factor = np.zeros(n)
    factor[0] = 1
    factor[1 : (n + 1) // 2] = 2
    if n % 2 == 0:
        factor[n // 2] = 1
    spectrum = nm.fft.fft(rows, n) * tensor(factor, rows.dtype, rows.device)
    return nm.moveaxis(nm.fft.ifft(spectrum), -1, axis)


def _spectral_window(op: str, window: Any, n: int) -> Array:
    """Weights of the n frequencies of a transform, in its order."""
    if callable(window):
        return np.asarray(window(np.fft.fftfreq(n)))
    if isinstance(window, (str, tuple, int, float)):
        return np.fft.fftshift(host_window(window, n, True, op))
    values = host(op, window, "window")
    if values.shape != (n,):
        raise ShapeError(f"signal.{op}: window has shape {values.shape}; it must be ({n},)")
    return values


def resample(
    x: Any, num: int, t: Any = None, axis: int = 0, window: Any = None, domain: str = "time"
) -> Any:
    """`num` samples of the signal, which is taken as periodic, by its spectrum.

    Args:
        t: the positions of the samples: if given, the result is (samples, new positions).
        window: weights in the frequency domain.
        domain: what x is: "time", or "freq" for the spectrum of the signal.

    >>> nm.signal.resample(nm.asarray([1.0, 0.0, -1.0, 0.0]), 2).round(decimals=6).tolist()
    [1.0, -1.0]
    """
    op = "resample"
    choice(op, domain, "domain", "time", "freq")
    x = wide(signal(op, x))
    count = positive(op, num, "num")
    rows = last(op, x, axis)
    n = rows.shape[-1]
    if not n:
        raise ShapeError(f"signal.{op}: no samples along axis {axis} of shape {x.shape}")
    real = x.dtype.kind != "complex" and domain == "time"
    spectrum = rows if domain == "freq" else nm.fft.rfft(rows) if real else nm.fft.fft(rows)
    if window is not None:
        weights = _spectral_window(op, window, n)
        if real:  # those of both signs of a frequency count by half
            both = weights.copy()
            both[1:] = (weights[1:] + weights[:0:-1]) / 2
            weights = both[: n // 2 + 1]
        spectrum = spectrum * tensor(weights, real_dtype(x), x.device)
    small = min(n, count)
    half = small // 2 + 1
    if real:
        kept = spectrum[..., :half]
        if small % 2 == 0 and n != count:  # one frequency stands for two, or two for one
            kept = kept * _end_factor(half, 2.0 if count < n else 0.5, rows)
        y = nm.fft.irfft(kept, count)
    else:
        y = nm.fft.ifft(_resized_spectrum(spectrum, count))
    y = nm.moveaxis(y * (count / n), -1, axis)
    if t is None:
        return y
    given = t if isinstance(t, Tensor) else nm.asarray(t)
    step = (given[1] - given[0]) * (n / count)
    return y, nm.arange(count, dtype=given.dtype, device=given.device) * step + given[0]


def _end_factor(count: int, factor: float, like: Tensor) -> Tensor:
    values = np.ones(count)
    values[-1] = factor
    return tensor(values, like.dtype, like.device)


def _resized_spectrum(z: Tensor, count: int) -> Tensor:
    """The lowest frequencies of a complex spectrum, or all with zeros between their halves."""
    n = z.shape[-1]
    small = min(n, count)
    front = z[..., : (small + 1) // 2]
    back = z[..., n - (small - 1) // 2 :]
    parts = [front]
    if small % 2 == 0:
        middle = small // 2
        if count < n:
            parts.append(z[..., middle : middle + 1] + z[..., n - middle : n - middle + 1])
        elif count > n:
            parts.append(z[..., middle : middle + 1] * 0.5)
            gap = count - n - 1
            parts.append(nm.zeros((*z.shape[:-1], gap), dtype=z.dtype, device=z.device))
            parts.append(z[..., middle : middle + 1] * 0.5)
        else:
            parts.append(z[..., middle : middle + 1])
    elif count > n:
        parts.append(nm.zeros((*z.shape[:-1], count - n), dtype=z.dtype, device=z.device))
    parts.append(back)
    return nm.concat([p for p in parts if p.shape[-1]], axis=-1)


def upfirdn(
    h: Any,
    x: Any,
    up: int = 1,
    down: int = 1,
    axis: int = -1,
    mode: str = "constant",
    cval: float = 0.0,
) -> Tensor:
    """The signal with `up` - 1 zeros after each sample, filtered by taps h, every `down`-th sample.

    Args:
        mode: the signal beyond its ends: "constant" (`cval`), "wrap" (periodic), "edge" (the last
            sample), "smooth" (the line through the last two), "line" (through the first and the
            last), "symmetric" or "reflect" (backwards, with the last sample twice or once),
            "antisymmetric" or "antireflect" (these turned around zero or the last sample).

    >>> nm.signal.upfirdn([1.0, 1.0, 1.0], nm.asarray([1.0, 2.0, 3.0]), up=3).tolist()
    [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0]
    """
    op = "upfirdn"
    x = signal(op, x)
    up, down = positive(op, up, "up"), positive(op, down, "down")
    taps = h if isinstance(h, Tensor) else nm.asarray(np.asarray(h), device=x.device)
    if taps.ndim != 1 or not taps.shape[0]:
        raise ShapeError(
            f"signal.{op}: h has shape {taps.shape}; it must be a vector with elements"
        )
    if taps.dtype.kind == "complex" and x.dtype.kind != "complex":
        x = x.astype(nm.complex128 if x.dtype is nm.float64 else nm.complex64)
    taps = taps.astype(x.dtype).to_device(x.device)
    choice(op, mode, "mode", *MODES)
    at = axis_of(op, x, axis)
    m, count, start = taps.shape[0], 0, 0
    if not x.shape[at]:
        raise ShapeError(f"signal.{op}: no samples along axis {axis} of shape {x.shape}")
    if mode != "constant" or isinstance(cval, Tensor) or cval:
        margin = -(-(m // up + 1) // down) * down  # that the taps do not reach beyond
        count, start = _upfirdn_count(m, x.shape[at], up, down), margin * up // down
        x = extended(x, at, margin, mode, cval)
    rows = last(op, x, axis)
    n = rows.shape[-1]
    long = (n - 1) * up + 1
    padding = [(m - 1, m - 1)]
    flat = rows.reshape(-1, 1, n)
    found = nm.conv_general(
        flat, nm.flip(taps).reshape(1, 1, m), (down,), padding, lhs_dilation=(up,)
    )
    assert found.shape[-1] == -(-(long + m - 1) // down)
    y = nm.moveaxis(found.reshape(*rows.shape[:-1], found.shape[-1]), -1, axis)
    return slice_along(y, at, start, start + count) if count else y


_LEVELS: dict[str, Any] = {
    "mean": nm.mean,
    "median": nm.median,
    "minimum": nm.min,
    "maximum": nm.max,
}


def resample_poly(
    x: Any,
    up: int,
    down: int,
    axis: int = 0,
    window: Any = ("kaiser", 5.0),
    padtype: str = "constant",
    cval: float | None = None,
) -> Tensor:
    """The signal at up / down times its rate, by a polyphase filter without phase.

    Args:
        window: of the low-pass filter, or its taps.
        padtype: the signal beyond its ends: "mean", "median", "minimum", "maximum", or a mode of
            `upfirdn`: "constant" (`cval`, by default 0), "line", "wrap", "edge" and others.

    >>> nm.signal.resample_poly(nm.ones(6), 1, 2).shape
    (3,)
    """
    op = "resample_poly"
    choice(op, padtype, "padtype", *_LEVELS, *MODES)
    if cval is not None and padtype != "constant":
        raise ValueError(f"signal.{op}: cval has no effect with padtype={padtype!r}")
    x = signal(op, x)
    at = axis_of(op, x, axis)
    up, down = positive(op, up, "up"), positive(op, down, "down")
    common = math.gcd(up, down)
    up, down = up // common, down // common
    if up == down == 1:
        return x + 0
    n = x.shape[at]
    out = -(-n * up // down)
    if isinstance(window, (list, np.ndarray, Tensor)):
        taps = host(op, window, "window").astype(float)
        if taps.ndim != 1:
            raise ShapeError(f"signal.{op}: taps of shape {taps.shape} must be a vector")
        half = (taps.size - 1) // 2
    else:
        half = 10 * max(up, down)
        taps = firwin(2 * half + 1, 1 / max(up, down), window=window).numpy()
    taps = taps * up
    before = down - half % down
    skip = (half + before) // down
    after = 0
    while _upfirdn_count(taps.size + before + after, n, up, down) < out + skip:
        after += 1
    taps = np.concatenate([np.zeros(before), taps, np.zeros(after)])
    if padtype in _LEVELS:
        level = _LEVELS[padtype](x, axis=at, keepdims=True)
        y = upfirdn(taps, x - level, up, down, axis=at)
        return slice_along(y, at, skip, skip + out) + level
    y = upfirdn(taps, x, up, down, axis=at, mode=padtype, cval=0.0 if cval is None else cval)
    return slice_along(y, at, skip, skip + out)


def _upfirdn_count(taps: int, n: int, up: int, down: int) -> int:
    return ((n - 1) * up + taps - 1) // down + 1


def decimate(
    x: Any,
    q: int,
    n: int | None = None,
    ftype: str = "iir",
    axis: int = -1,
    zero_phase: bool = True,
) -> Tensor:
    """Every q-th sample, after an anti-aliasing filter: Chebyshev of order `n` (8), or "fir".

    >>> nm.signal.decimate(nm.ones(100), 4).shape
    (25,)
    """
    op = "decimate"
    choice(op, ftype, "ftype", "iir", "fir")
    x = signal(op, x)
    at = axis_of(op, x, axis)
    q = positive(op, q, "q")
    if ftype == "fir":
        half = 10 * q
        order = 2 * half if n is None else positive(op, n, "n", 0)
        taps = firwin(order + 1, 1 / q, window="hamming").numpy()
        if zero_phase:
            return resample_poly(x, 1, q, axis=at, window=taps)
        y = lfilter(taps, [1.0], x, at)
    else:
        sos = cheby1(8 if n is None else positive(op, n, "n"), 0.05, 0.8 / q, output="sos")
        y = sosfiltfilt(sos, x, at) if zero_phase else sosfilt(sos, x, at)
    return slice_along(y, at, None, None, q)


def _savgol_taps(
    op: str, window_length: int, polyorder: int, deriv: int, delta: float, pos: float
) -> Array:
    if polyorder >= window_length:
        raise ValueError(
            f"signal.{op}: polyorder={polyorder} must be less than window_length={window_length}"
        )
    if deriv > polyorder:
        return np.zeros(window_length)
    t = np.arange(-pos, window_length - pos)
    powers = np.vander(t, polyorder + 1, increasing=True)
    wanted = np.zeros(polyorder + 1)
    wanted[deriv] = math.factorial(deriv) / delta**deriv
    return np.linalg.lstsq(powers.T, wanted, rcond=None)[0]


def savgol_coeffs(
    window_length: int,
    polyorder: int,
    deriv: int = 0,
    delta: float = 1.0,
    pos: int | None = None,
    use: str = "conv",
) -> Tensor:
    """The taps of a Savitzky–Golay filter, for a convolution ("conv") or a dot product ("dot").

    >>> nm.signal.savgol_coeffs(3, 1).round(decimals=4).tolist()
    [0.3333, 0.3333, 0.3333]
    """
    op = "savgol_coeffs"
    choice(op, use, "use", "conv", "dot")
    length = positive(op, window_length, "window_length")
    if pos is None:
        place = length / 2 - 0.5 if length % 2 == 0 else float(length // 2)
    else:
        place = float(pos)
        if not 0 <= place < length:
            raise ValueError(f"signal.{op}: pos={pos} must be from 0 to window_length - 1")
    taps = _savgol_taps(op, length, polyorder, deriv, delta, place)
    return nm.asarray(np.ascontiguousarray(taps[::-1] if use == "conv" else taps), device="cpu")


_PADS = {"mirror": "reflect", "constant": "constant", "nearest": "edge", "wrap": "wrap"}


def savgol_filter(
    x: Any,
    window_length: int,
    polyorder: int,
    deriv: int = 0,
    delta: float = 1.0,
    axis: int = -1,
    mode: str = "interp",
    cval: float = 0.0,
) -> Tensor:
    """The value (or a derivative) of the polynomial that fits a window around each sample best.

    Args:
        mode: the signal beyond its ends: "mirror", "constant" (`cval`), "nearest", "wrap"; or
            "interp": the polynomials of the first and last windows.

    >>> nm.signal.savgol_filter(nm.arange(6.0) ** 2, 5, 2).round(decimals=3).tolist()
    [0.0, 1.0, 4.0, 9.0, 16.0, 25.0]
    """
    op = "savgol_filter"
    choice(op, mode, "mode", "mirror", "constant", "nearest", "wrap", "interp")
    x = signal(op, x)
    at = axis_of(op, x, axis)
    rows = nm.moveaxis(x, at, -1)
    n = rows.shape[-1]
    length = positive(op, window_length, "window_length")
    delta = as_number(delta, "delta", f"signal.{op}")
    taps = savgol_coeffs(length, polyorder, deriv, delta, use="dot").numpy()
    if mode == "interp" and length > n:
        raise ShapeError(
            f"signal.{op}: window_length={length} is longer than {n} samples, with mode='interp'"
        )
    before, after = (length - 1) // 2, length // 2
    edges = [(0, 0)] * (rows.ndim - 1) + [(before, after)]
    if mode in ("interp", "constant"):
        padded = nm.pad(rows, edges, mode="constant", constant_values=cval)
    else:
        padded = nm.pad(rows, edges, mode=_PADS[mode])
    kernel = tensor(taps, x.dtype, x.device).reshape(1, 1, length)
    y = nm.conv1d(padded.reshape(-1, 1, padded.shape[-1]), kernel).reshape(rows.shape)
    if mode == "interp":
        half = length // 2
        head = _fitted_ends(rows[..., :length], range(half), polyorder, deriv, delta)
        tail = _fitted_ends(rows[..., n - length :], range(length - half, length), polyorder,
                            deriv, delta)  # fmt: skip
        y = nm.concat([head, y[..., half : n - half], tail], axis=-1)
    return nm.moveaxis(y, -1, at)


def _fitted_ends(part: Tensor, where: range, order: int, deriv: int, delta: float) -> Tensor:
    """The fitted polynomial of one window at positions near its end."""
    length = part.shape[-1]
    rows = [_savgol_taps("savgol_filter", length, order, deriv, delta, i) for i in where]
    matrix = np.stack(rows, axis=1) if rows else np.zeros((length, 0))
    return part @ tensor(matrix, part.dtype, part.device)
