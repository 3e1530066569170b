"""Linear-phase filters by the window method."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.signal._arguments import Array, choice, host, positive, tensor
from numus.signal.windows import host_window
from numus.tensor import Tensor

__all__ = ["firwin", "kaiser_atten", "kaiser_beta"]


def kaiser_beta(a: float) -> float:
    """The beta of a Kaiser window whose stopband is `a` decibels down.

    >>> round(nm.signal.kaiser_beta(65), 4)
    6.2043
    """
    if a > 50:
        return 0.1102 * (a - 8.7)
    if a > 21:
        return float(0.5842 * (a - 21) ** 0.4 + 0.07886 * (a - 21))
    return 0.0


def kaiser_atten(numtaps: int, width: float) -> float:
    """The attenuation in decibels of a Kaiser filter with a transition of this width (1: half the
    sampling rate).

    >>> round(nm.signal.kaiser_atten(211, 0.0375), 2)
    64.48
    """
    return 2.285 * (numtaps - 1) * math.pi * width + 7.95


def _pass_zero(pass_zero: Any, cutoffs: int) -> bool:
    """Whether the gain at frequency 0 is 1."""
    if isinstance(pass_zero, (bool, np.bool_)):
        return bool(pass_zero)
    choice("firwin", pass_zero, "pass_zero", "lowpass", "highpass", "bandpass", "bandstop", True,
           False)  # fmt: skip
    single = pass_zero in ("lowpass", "highpass")
    if single != (cutoffs == 1):
        raise ValueError(f"signal.firwin: {cutoffs} cutoff frequencies do not make a {pass_zero}")
    return pass_zero in ("lowpass", "bandstop")


def _bands(cutoff: Any, fs: float, pass_zero: Any) -> tuple[Array, bool]:
    """Edges of the passbands, in pairs, and whether the first begins at frequency 0."""
    edges = host("firwin", cutoff, "cutoff").astype(float).reshape(-1) / (fs / 2)
    if not len(edges):
        raise ShapeError("signal.firwin: at least one cutoff frequency is needed")
    if edges.min() <= 0 or edges.max() >= 1:
        raise ValueError(
            f"signal.firwin: cutoff is {cutoff}; frequencies must be above 0 and below {fs / 2:g}"
        )
    if (np.diff(edges) <= 0).any():
        raise ValueError(f"signal.firwin: cutoff is {cutoff}; frequencies must ascend")
    low = _pass_zero(pass_zero, len(edges))
    high = low != (len(edges) % 2 == 1)
    return np.concatenate([[0.0] * low, edges, [1.0] * high]).reshape(-1, 2), high


def firwin(
    numtaps: int,
    cutoff: Any,
    *,
    width: float | None = None,
    window: Any = "hamming",
    pass_zero: Any = True,
    scale: bool = True,
    fs: float | None = None,
    dtype: Any = None,
    device: Any = None,
) -> Tensor:
    """A linear-phase filter: sincs of the passbands, tapered by a window.

    Args:
        cutoff: the edges of the bands; 1 is half the sampling rate unless `fs` names it.
        width: of the transition, for which a Kaiser window is chosen.
        pass_zero: whether frequency 0 passes, or "lowpass", "highpass", "bandpass", "bandstop".
        scale: the gain is exactly 1 in the middle of the first passband.
        dtype: of the result, which is computed in float64 (the default, on the CPU).

    >>> nm.signal.firwin(3, 0.5).round(decimals=4).tolist()
    [0.0462, 0.9076, 0.0462]
    """
    taps = positive("firwin", numtaps, "numtaps")
    rate = 2.0 if fs is None else float(fs)
    bands, passes_end = _bands(cutoff, rate, pass_zero)
    if passes_end and taps % 2 == 0:
        raise ValueError(
            "signal.firwin: a filter with an even number of taps is zero at half the sampling "
            "rate, which is to pass; give an odd numtaps"
        )
    if width is not None:
        window = ("kaiser", kaiser_beta(kaiser_atten(taps, width / (rate / 2))))
    m = np.arange(taps) - (taps - 1) / 2
    h = np.zeros(taps)
    for low, high in bands:
        h += high * np.sinc(high * m) - low * np.sinc(low * m)
    h *= host_window(window, taps, False, "firwin")
    if scale:
        low, high = bands[0]
        middle = 0.0 if low == 0 else 1.0 if high == 1 else (low + high) / 2
        h /= np.sum(h * np.cos(np.pi * m * middle))
    if device is None and dtype is None:
        device = "cpu"
    return tensor(h, dtype or nm.float64, device)
