"""Digital and analog filters from analog prototypes: Butterworth, Chebyshev, elliptic.

Computed on the host in float64: coefficients are float64 tensors on the CPU, which filters take to
the signal's device and dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.shapes import as_int
from numus.signal import elliptic
from numus.signal._arguments import Array, choice, host
from numus.signal.zpk import Zpk, warp

__all__ = ["butter", "cheby1", "cheby2", "ellip", "iirfilter"]

_BANDS = {
    **dict.fromkeys(("lowpass", "low", "lp", "l"), "lowpass"),
    **dict.fromkeys(("highpass", "high", "hp", "h"), "highpass"),
    **dict.fromkeys(("bandpass", "pass", "bp"), "bandpass"),
    **dict.fromkeys(("bandstop", "stop", "bs", "bands"), "bandstop"),
}


def _angles(N: int) -> Array:
    return np.pi * np.arange(-N + 1, N, 2) / (2 * N)


def _butterworth(N: int) -> Zpk:
    poles = -np.exp(1j * _angles(N))
    if N % 2:
        poles[N // 2] = -1
    return Zpk(np.zeros(0), poles, 1.0)


def _excess(decibels: float) -> float:
    """10^(d / 10) - 1."""
    return math.expm1(0.1 * math.log(10) * decibels)


def _chebyshev1(N: int, rp: float) -> Zpk:
    if N == 0:
        return Zpk(np.zeros(0), np.zeros(0), 10 ** (-rp / 20))
    ripple = math.sqrt(_excess(rp))
    poles = -np.sinh(math.asinh(1 / ripple) / N + 1j * _angles(N))
    gain = float(np.real(np.prod(-poles)))
    return Zpk(np.zeros(0), poles, gain if N % 2 else gain / math.sqrt(1 + ripple**2))


def _chebyshev2(N: int, rs: float) -> Zpk:
    if N == 0:
        return Zpk(np.zeros(0), np.zeros(0), 1.0)
    mu = math.asinh(math.sqrt(_excess(rs))) / N
    m = np.arange(-N + 1, N, 2)
    zeros = 1j / np.sin(np.pi * m[m != 0] / (2 * N))
    circle = -np.exp(1j * _angles(N))
    poles = 1 / (math.sinh(mu) * circle.real + 1j * math.cosh(mu) * circle.imag)
    return Zpk(zeros, poles, float(np.real(np.prod(-poles) / np.prod(-zeros))))


def _elliptic(N: int, rp: float, rs: float) -> Zpk:
    if N == 0:
        return Zpk(np.zeros(0), np.zeros(0), 10 ** (-rp / 20))
    ripple = _excess(rp)
    if N == 1:
        pole = -math.sqrt(1 / ripple)
        return Zpk(np.zeros(0), np.array([pole]), -pole)
    m1 = ripple / _excess(rs)
    quarter1 = elliptic.complete_integral(1 - m1)
    nome = math.exp(-math.pi * elliptic.complete_integral(m1) / quarter1 / N)
    m = elliptic.nome_to_parameter(nome)
    quarter = elliptic.complete_integral(1 - m)
    s, c, d = elliptic.jacobi(np.arange(1 - N % 2, N, 2) * quarter / N, m, 1 - m)
    zeros = 1j / (math.sqrt(m) * s[np.abs(s) > 2e-16])
    shift = quarter * elliptic.inverse_sc(1 / math.sqrt(ripple), m1) / (N * quarter1)
    sv, cv, dv = (float(f) for f in elliptic.jacobi(np.asarray(shift), 1 - m, m))
    poles = -(c * d * sv * cv + 1j * s * dv) / (1 - (d * sv) ** 2)
    zeros = np.concatenate([zeros, zeros.conj()])
    pairs = poles[np.abs(poles.imag) > 2e-16 * np.abs(poles)]
    reals = poles[np.abs(poles.imag) <= 2e-16 * np.abs(poles)].real
    poles = np.concatenate([pairs, reals, pairs.conj()])
    gain = float(np.real(np.prod(-poles) / np.prod(-zeros)))
    return Zpk(zeros, poles, gain if N % 2 else gain / math.sqrt(1 + ripple))


def _frequencies(op: str, Wn: Any, btype: str, analog: bool, fs: float | None) -> Array:
    wn = host(op, Wn, "Wn").astype(float).reshape(-1)
    needed = 2 if btype in ("bandpass", "bandstop") else 1
    if len(wn) != needed:
        raise ShapeError(f"signal.{op}: Wn has {len(wn)} frequencies; a {btype} has {needed}")
    if analog:
        if fs is not None:
            raise ValueError(f"signal.{op}: fs has no meaning for an analog filter")
        if (wn <= 0).any():
            raise ValueError(f"signal.{op}: Wn is {Wn}; frequencies must be above 0")
    else:
        rate = 2.0 if fs is None else float(fs)
        wn = 2 * wn / rate
        if (wn <= 0).any() or (wn >= 1).any():
            raise ValueError(
                f"signal.{op}: Wn is {Wn}; frequencies must be above 0 and below {rate / 2:g}, "
                "half the sampling rate"
            )
    if needed == 2 and wn[0] >= wn[1]:
        raise ValueError(f"signal.{op}: Wn is {Wn}; the first frequency must be the lower one")
    return wn


def _order(op: str, N: Any) -> int:
    order = as_int(N, "N", f"signal.{op}")
    if order < 1:
        raise ValueError(f"signal.{op}: N is {order}; a filter has an order of at least 1")
    return order


def _decibels(op: str, name: str, value: Any) -> float:
    if value is None or not value > 0:
        raise ValueError(f"signal.{op}: {name} is {value}; it must be a positive number of dB")
    return float(value)


def _designed(
    op: str,
    prototype: Callable[[], Zpk],
    Wn: Any,
    btype: str,
    analog: bool,
    output: str,
    fs: float | None,
) -> Any:
    choice(op, output, "output", "ba", "zpk", "sos")
    if not isinstance(btype, str) or btype.lower() not in _BANDS:
        raise ValueError(f"signal.{op}: btype {btype!r} must be lowpass, highpass, bandpass or "
                         "bandstop")  # fmt: skip
    band = _BANDS[btype.lower()]
    wn = _frequencies(op, Wn, band, analog, fs)
    if not analog:
        wn = warp(wn, 2.0)
    if band in ("lowpass", "highpass"):
        system = getattr(prototype(), band)(float(wn[0]))
    else:
        width, middle = float(wn[1] - wn[0]), math.sqrt(wn[0] * wn[1])
        system = getattr(prototype(), band)(middle, width)
    if not analog:
        system = system.bilinear(2.0)
    if output == "zpk":
        return _on_cpu(system.z, complex), _on_cpu(system.p, complex), system.k
    if output == "sos":
        return _on_cpu(system.sections(analog), float)
    b, a = system.polynomials()
    return _on_cpu(b, float), _on_cpu(a, float)


def _on_cpu(values: Array, kind: type) -> nm.Tensor:
    return nm.asarray(np.ascontiguousarray(values, kind), device="cpu")


def butter(
    N: int,
    Wn: Any,
    btype: str = "low",
    analog: bool = False,
    output: str = "ba",
    fs: float | None = None,
) -> Any:
    """A Butterworth filter: as flat as can be in the passband.

    Args:
        N: the order (bandpass and bandstop filters have twice as many poles).
        Wn: the frequency where the gain is 1 / sqrt 2, or two of them; 1 is half the sampling rate
            unless `fs` names it.
        btype: "lowpass", "highpass", "bandpass" or "bandstop".
        output: "ba" (polynomials), "zpk" (zeros, poles, gain) or "sos" (second-order sections,
            which filter most accurately).

    >>> b, a = nm.signal.butter(1, 0.5)
    >>> b.round(decimals=6).tolist(), a.round(decimals=6).tolist()
    ([0.5, 0.5], [1.0, -0.0])
    """
    order = _order("butter", N)
    return _designed("butter", lambda: _butterworth(order), Wn, btype, analog, output, fs)


def cheby1(
    N: int,
    rp: float,
    Wn: Any,
    btype: str = "low",
    analog: bool = False,
    output: str = "ba",
    fs: float | None = None,
) -> Any:
    """A Chebyshev filter of type I: a ripple of `rp` decibels in the passband. See `butter`.

    >>> nm.signal.cheby1(4, 1.0, 0.3, output="sos").shape
    (2, 6)
    """
    order, ripple = _order("cheby1", N), _decibels("cheby1", "rp", rp)
    return _designed("cheby1", lambda: _chebyshev1(order, ripple), Wn, btype, analog, output, fs)


def cheby2(
    N: int,
    rs: float,
    Wn: Any,
    btype: str = "low",
    analog: bool = False,
    output: str = "ba",
    fs: float | None = None,
) -> Any:
    """A Chebyshev filter of type II: a ripple in the stopband, `rs` decibels down. See `butter`.

    >>> nm.signal.cheby2(4, 40.0, [0.2, 0.4], "bandpass", output="sos").shape
    (4, 6)
    """
    order, down = _order("cheby2", N), _decibels("cheby2", "rs", rs)
    return _designed("cheby2", lambda: _chebyshev2(order, down), Wn, btype, analog, output, fs)


def ellip(
    N: int,
    rp: float,
    rs: float,
    Wn: Any,
    btype: str = "low",
    analog: bool = False,
    output: str = "ba",
    fs: float | None = None,
) -> Any:
    """An elliptic (Cauer) filter: ripples in both bands, and the steepest edge. See `butter`.

    >>> nm.signal.ellip(4, 1.0, 40.0, 0.3, output="sos").shape
    (2, 6)
    """
    order = _order("ellip", N)
    ripple, down = _decibels("ellip", "rp", rp), _decibels("ellip", "rs", rs)
    if ripple >= down:
        raise ValueError(f"signal.ellip: rp={rp} must be less than rs={rs}")
    return _designed("ellip", lambda: _elliptic(order, ripple, down), Wn, btype, analog, output, fs)


def iirfilter(
    N: int,
    Wn: Any,
    rp: float | None = None,
    rs: float | None = None,
    btype: str = "band",
    analog: bool = False,
    ftype: str = "butter",
    output: str = "ba",
    fs: float | None = None,
) -> Any:
    """A filter of any of these families: "butter", "cheby1", "cheby2" or "ellip".

    >>> nm.signal.iirfilter(2, 0.3, btype="low", output="sos").shape
    (1, 6)
    """
    ftype = {"butterworth": "butter", "chebyshev i": "cheby1", "chebyshev ii": "cheby2",
             "cauer": "ellip", "elliptic": "ellip"}.get(ftype, ftype)  # fmt: skip
    choice("iirfilter", ftype, "ftype", "butter", "cheby1", "cheby2", "ellip")
    rest = (Wn, "bandpass" if btype == "band" else btype, analog, output, fs)
    if ftype == "butter":
        return butter(N, *rest)
    if ftype == "cheby1":
        return cheby1(N, _decibels("iirfilter", "rp", rp), *rest)
    if ftype == "cheby2":
        return cheby2(N, _decibels("iirfilter", "rs", rs), *rest)
    ripple, down = _decibels("iirfilter", "rp", rp), _decibels("iirfilter", "rs", rs)
    return ellip(N, ripple, down, *rest)
