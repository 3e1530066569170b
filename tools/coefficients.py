"""Definitions of the approximations in numus/kernels/math/_coefficients.py.

The functions are in the form that the kernels use: leading terms that a kernel adds exactly are
removed, and the weight is the effect of an error on the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath as mp

Function = Callable[[Any], Any]
S = mp.sqrt


@dataclass(frozen=True)
class Constant:
    name: str
    about: str
    value: Callable[[], Any]
    parts: int


@dataclass(frozen=True)
class Fit:
    """A polynomial for each precision. `of`, `on` and `weighted` may depend on its bits."""

    name: str
    about: str
    of: Callable[..., Any]
    on: Any  # (a, b), as strings or numbers, or a function of the bits
    degrees: tuple[int, int]  # float32, float64; -1: none
    weighted: Callable[..., Any] = lambda x: mp.mpf(1)
    by_bits: bool = False  # whether of and weighted take the bits first

    def function(self, bits: int) -> Function:
        return (lambda x: self.of(bits, x)) if self.by_bits else self.of

    def weight(self, bits: int) -> Function:
        return (lambda x: self.weighted(bits, x)) if self.by_bits else self.weighted

    def interval(self, bits: int) -> tuple[Any, Any]:
        a, b = self.on(bits) if callable(self.on) else self.on
        return mp.mpf(a), mp.mpf(b)


@dataclass(frozen=True)
class Ratio:
    """A polynomial over another; `on` and `degrees` for each precision."""

    name: str
    about: str
    of: Function
    on: tuple[tuple[str, str], tuple[str, str]]
    degrees: tuple[tuple[int, int], tuple[int, int]]


CONSTANTS = (
    Constant("LN2", "ln 2", lambda: mp.log(2), 2),
    Constant("LOG2_E", "log2 e", lambda: 1 / mp.log(2), 2),
    Constant("LOG10_E", "log10 e", lambda: 1 / mp.log(10), 2),
    Constant("LOG10_2", "log10 2", lambda: mp.log(2) / mp.log(10), 2),
    Constant("PI", "pi", lambda: +mp.pi, 3),
    Constant("PI_2", "pi / 2", lambda: mp.pi / 2, 3),
    Constant("HALF_ROOT_PI", "sqrt(pi) / 2", lambda: mp.sqrt(mp.pi) / 2, 2),
    Constant("DIGAMMA_ROOT", "the zero of digamma", lambda: mp.mpf(DIGAMMA_ZERO), 2),
    Constant("DIGAMMA_ROOT_LESS_1", "that less 1", lambda: mp.mpf(DIGAMMA_ZERO) - 1, 2),
    Constant("THIRD", "1 / 3", lambda: mp.mpf(1) / 3, 2),
    Constant("TWO_OVER_LN2", "2 / ln 2", lambda: 2 / mp.log(2), 2),
)

HALF_LN2 = "0.34675"  # a little more than ln 2 / 2
ROOTS = ("-0.2929", "0.4143")  # sqrt(1/2) - 1, sqrt(2) - 1


DIGAMMA_ZERO = "1.4616321449683623412626595423257213284681962040064463512959884085987864403538"


def erfcx(x: Any) -> Any:
    """exp(x**2) erfc(x)."""
    with mp.workprec(mp.mp.prec + int(1.5 * float(x) ** 2) + 60):
        return mp.exp(x * x) * mp.erfc(x)


def inverse_erf_ratio(w: Any) -> Any:
    """erfinv(x) / x by w = -log(1 - x**2), from erfc(t) = 1 - x by Halley's method."""
    if w < mp.mpf(10) ** -25:
        return S(mp.pi) / 2
    x = S(-mp.expm1(-w))
    rest = mp.exp(-w) / (1 + x)  # 1 - x
    t = S(w) * mp.mpf("0.9") if w < 1 else S(w - mp.log(S(w)) - mp.mpf("0.57"))
    for _ in range(60):
        step = (mp.erfc(t) - rest) * mp.exp(t * t) * S(mp.pi) / 2
        step = step / (1 - t * step) if abs(t * step) < 0.5 else step
        t = t + step
        if abs(step) < t * mp.mpf(2) ** (10 - mp.mp.prec):
            break
    return t / x


def stirling_rest(x: Any) -> Any:
    """x (lgamma(x) - (x - 1/2) log(x) + x - log(2 pi) / 2)."""
    with mp.workprec(2 * mp.mp.prec):
        main = (x - mp.mpf(1) / 2) * mp.log(x) - x + mp.log(2 * mp.pi) / 2
        return x * (mp.loggamma(x) - main)


def digamma_rest(x: Any) -> Any:
    """x**2 (log(x) - 1 / (2 x) - digamma(x))."""
    with mp.workprec(2 * mp.mp.prec):
        return x * x * (mp.log(x) - 1 / (2 * x) - mp.digamma(x))


def trigamma_rest(x: Any) -> Any:
    """x**3 (trigamma(x) - 1/x - 1 / (2 x**2))."""
    with mp.workprec(2 * mp.mp.prec):
        return x**3 * (mp.polygamma(1, x) - 1 / x - 1 / (2 * x * x))


def _at_root(f: Function) -> Function:
    """f(1 / sqrt(t)); t = 0 stands for a far but finite argument."""
    return lambda t: f(1 / S(max(t, mp.mpf(10) ** -16)))


FITS = (
    Fit(
        "EXP",
        "(exp(r) - 1 - r) / r**2, |r| <= ln 2 / 2",
        lambda r: (mp.expm1(r) - r) / r**2,
        ("-" + HALF_LN2, HALF_LN2),
        (4, 9),
        lambda r: r * r,
    ),
    Fit(
        "EXP2",
        "(2**r - 1) / r, |r| <= 1/2",
        lambda r: mp.expm1(r * mp.log(2)) / r,
        ("-0.5005", "0.5005"),
        (5, 10),
        lambda r: r,
    ),
    Fit(
        "LOG",
        "(log(1 + f) - f + f**2 / 2) / f**3, sqrt(1/2) <= 1 + f <= sqrt(2)",
        lambda f: (mp.log1p(f) - f + f * f / 2) / f**3,
        ROOTS,
        (7, 18),
        lambda f: f * f,
    ),
    Fit(
        "ATANH_TAIL",
        "(atanh(s) / s - 1 - s**2 / 3) / s**4 in s**2, s <= (sqrt(2) - 1) / (sqrt(2) + 1)",
        lambda z: (mp.atanh(S(z)) / S(z) - 1 - z / 3) / z**2,
        (0, "0.02949"),
        (2, 7),
        lambda z: z * z,
    ),
    Fit(
        "SIN",
        "(sin(r) / r - 1) / r**2 in r**2, r <= pi/4",
        lambda z: (mp.sin(S(z)) / S(z) - 1) / z,
        (0, "0.6192"),
        (2, 6),
        lambda z: z,
    ),
    Fit(
        "COS",
        "(cos(r) - 1 + r**2 / 2) / r**4 in r**2, r <= pi/4",
        lambda z: (mp.cos(S(z)) - 1 + z / 2) / z**2,
        (0, "0.6192"),
        (2, 5),
        lambda z: z * z,
    ),
    Fit(
        "ASIN",
        "(asin(x) / x - 1) / x**2 in x**2, x <= 1/2",
        lambda z: (mp.asin(S(z)) / S(z) - 1) / z,
        (0, "0.25001"),
        (4, 12),
        lambda z: z,
    ),
    Fit(
        "ATAN",
        "(atan(x) / x - 1) / x**2 in x**2, x <= 1",
        lambda z: (mp.atan(S(z)) / S(z) - 1) / z,
        (0, 1),
        (8, 19),
        lambda z: z * S(z) / mp.atan(S(z)),
    ),
    Fit(
        "SINH",
        "(sinh(r) / r - 1) / r**2 in r**2, r <= ln 2 / 2",
        lambda z: (mp.sinh(S(z)) / S(z) - 1) / z,
        (0, "0.1203"),
        (2, 5),
        lambda z: z,
    ),
    Fit(
        "COSH",
        "(cosh(r) - 1) / r**2 in r**2, r <= ln 2 / 2",
        lambda z: (mp.cosh(S(z)) - 1) / z,
        (0, "0.1203"),
        (2, 5),
        lambda z: z,
    ),
    Fit(
        "TANH",
        "(tanh(x) / x - 1) / x**2 in x**2, x <= 5/8",
        lambda z: (mp.tanh(S(z)) / S(z) - 1) / z,
        (0, "0.3907"),
        (4, 11),
        lambda z: z * S(z) / mp.tanh(S(z)),
    ),
    Fit(
        "CBRT",
        "m**(-1/3), 1 <= m <= 2",
        lambda m: m ** (-mp.mpf(1) / 3),
        (1, 2),
        (3, 5),
        lambda m: m ** (mp.mpf(1) / 3),
    ),
    Fit(
        "ERF",
        "erf(x) / x - 1 in x**2, x <= 5/4",
        lambda z: mp.erf(S(z)) / S(z) - 1,
        (0, "1.5627"),
        (7, 13),
        lambda z: S(z) / mp.erf(S(z)),
    ),
    Fit(
        "ERFC_ROOT",
        "erfc(x)**(1/4) in x - 2.59375 up to 3.9375; erfc(x)**(1/8) in x - 3.625 up to 6; x >= 5/4",
        lambda bits, u: mp.erfc(u + _middle(bits)) ** (mp.mpf(1) / _root(bits)),
        lambda bits: (mp.mpf("1.25") - _middle(bits), _middle(bits) - mp.mpf("1.25")),
        (8, 22),
        lambda bits, u: (
            _root(bits)
            * mp.erfc(u + _middle(bits)) ** (1 - mp.mpf(1) / _root(bits))
            / mp.erf(u + _middle(bits))
        ),
        by_bits=True,
    ),
    Fit(
        "ERFCX",
        "exp(x**2) erfc(x) (x + k) in w = (x - k) / (x + k), x >= 1; k = 3/2, 5/2 in float64",
        lambda bits, w: erfcx(_from_w(bits, w)) * (_from_w(bits, w) + _k(bits)),
        lambda bits: (_to_w(bits, "0.97"), _to_w(bits, "10.2" if bits == 24 else "27.5")),
        (10, 21),
        lambda bits, w: 1 / (erfcx(_from_w(bits, w)) * (_from_w(bits, w) + _k(bits))),
        by_bits=True,
    ),
    Fit(
        "ERFINV",
        "(erfinv(x) / x - sqrt(pi) / 2) / w in w - 5/2, w = -log(1 - x**2) <= 5",
        lambda u: (inverse_erf_ratio(u + mp.mpf("2.5")) - S(mp.pi) / 2) / (u + mp.mpf("2.5")),
        ("-2.4999999999", "2.5"),
        (9, 21),
        lambda u: (u + mp.mpf("2.5")) / inverse_erf_ratio(u + mp.mpf("2.5")),
    ),
    Fit(
        "ERFINV_TAIL",
        "erfinv(x) / x in sqrt(w) - 3, w >= 5, up to 16.7; up to 15 in float64",
        lambda u: inverse_erf_ratio((u + 3) ** 2),
        lambda bits: (S(5) - 3, S(mp.mpf("16.7") if bits == 24 else 15) - 3),
        (9, 20),
        lambda u: 1 / inverse_erf_ratio((u + 3) ** 2),
    ),
    Fit(
        "ERFINV_FAR",
        "erfinv(x) / x in sqrt(w) - 5, 15 <= w <= 37",
        lambda u: inverse_erf_ratio((u + 5) ** 2),
        lambda bits: (S(15) - 5, S(37) - 5),
        (-1, 19),
        lambda u: 1 / inverse_erf_ratio((u + 5) ** 2),
    ),
    Fit(
        "LGAMMA",
        "lgamma(z) / ((z - 1) (z - 2)) in z - 2, 1 <= z <= 3",
        lambda u: mp.loggamma(u + 2) / (u * (u + 1)),
        ("-0.99999999", "0.99999999"),
        (12, 28),
        lambda u: u * (u + 1) / mp.loggamma(u + 2),
    ),
    Fit(
        "STIRLING",
        "x (lgamma(x) - (x - 1/2) log(x) + x - log(2 pi) / 2) in 1 / x**2, x >= 3 (8)",
        _at_root(stirling_rest),
        lambda bits: (0, mp.mpf(1) / (9 if bits == 24 else 64)),
        (3, 6),
    ),
    Fit(
        "DIGAMMA",
        "digamma(x) / (x - its zero) in x - 3/2, 1 <= x <= 2",
        lambda u: mp.digamma(u + mp.mpf("1.5")) / (u + mp.mpf("1.5") - mp.mpf(DIGAMMA_ZERO)),
        ("-0.5", "0.5"),
        (9, 21),
        lambda u: (u + mp.mpf("1.5") - mp.mpf(DIGAMMA_ZERO)) / mp.digamma(u + mp.mpf("1.5")),
    ),
    Fit(
        "DIGAMMA_FAR",
        "x**2 (log(x) - 1 / (2 x) - digamma(x)) in 1 / x**2, x >= 6",
        _at_root(digamma_rest),
        (0, mp.mpf(1) / 36),
        (3, 8),
    ),
    Fit(
        "TRIGAMMA_FAR",
        "x**3 (trigamma(x) - 1/x - 1 / (2 x**2)) in 1 / x**2, x >= 6",
        _at_root(trigamma_rest),
        (0, mp.mpf(1) / 36),
        (3, 9),
    ),
)

RATIOS = (
    Ratio(
        "NORMAL",
        "exp(x**2 / 2) times the normal distribution's share above x, x >= 0",
        lambda x: erfcx(x / S(2)) / 2,
        (("0", "14.4"), ("0", "38.7")),
        ((4, 5), (10, 11)),
    ),
)


def _middle(bits: int) -> Any:
    return mp.mpf("2.59375") if bits == 24 else mp.mpf("3.625")


def _root(bits: int) -> int:
    return 4 if bits == 24 else 8


def _k(bits: int) -> Any:
    return mp.mpf("1.5") if bits == 24 else mp.mpf("2.5")


def _from_w(bits: int, w: Any) -> Any:
    return _k(bits) * (1 + w) / (1 - w)


def _to_w(bits: int, x: str) -> Any:
    return (mp.mpf(x) - _k(bits)) / (mp.mpf(x) + _k(bits))
