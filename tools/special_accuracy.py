"""Errors of nm.special against mpmath, beside SciPy's: the table in docs/special.md.

    python -m tools.special_accuracy [NAME ...]      needs mpmath and SciPy

Functions of one variable are measured in ulp, and near a zero in ulp of a tenth of the function's
size nearby; those of several in relative error, at parameters up to 10,000.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import scipy.special as sp

import numus as nm

PAGE = Path(__file__).parents[1] / "docs/special.md"
START, END = "<!-- errors -->", "<!-- end of errors -->"
R = np.random.default_rng(0)


def logs(low: float, high: float, n: int = 150) -> np.ndarray:
    return np.exp(R.uniform(np.log(low), np.log(high), n))


def both(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, -x])


POSITIVE = np.concatenate([logs(1e-6, 80), R.uniform(0, 12, 150)])
BESSEL = np.concatenate([POSITIVE, logs(80, 1e4, 40)])


@dataclass(frozen=True)
class Measured:
    name: str
    exact: Callable[..., Any]
    scipy: Callable[..., Any]
    points: tuple[np.ndarray, ...]
    size: Callable[..., np.ndarray] | None = None  # of an oscillating function
    result: int | None = None  # of a function with several results
    call: Callable[..., Any] | None = None  # of complex numbers: one of their parts


def wave(x: np.ndarray) -> np.ndarray:
    return np.minimum(1.0, 1 / np.sqrt(np.abs(x)))


def one(name: str, exact: Any, points: np.ndarray, scipy: Any = None, **options: Any) -> Measured:
    return Measured(name, exact, scipy or getattr(sp, name), (points,), **options)


def exact_ndtri(p: Any) -> Any:
    start = float(sp.ndtri(float(p)))
    return (
        mp.findroot(lambda t: mp.log(mp.ncdf(t)) - mp.log(p), start)
        if p < 0.4
        else (mp.sqrt(2) * mp.erfinv(2 * p - 1))
    )


UNIT = np.concatenate([R.uniform(0, 1, 100), logs(1e-30, 0.5, 60)])
GAMMAS = np.concatenate([logs(1e-6, 33), -R.uniform(0, 30, 150)])
A = logs(1e-2, 1e4)
X = A * np.exp(R.normal(0, 0.6, 150) / np.maximum(1, A) ** 0.3)
B = logs(1e-2, 1e3)
A_SMALL = logs(1e-2, 1e3)
Z = (
    A_SMALL
    / (A_SMALL + B)
    * np.exp(R.normal(0, 0.4, 150) / np.maximum(1, np.minimum(A_SMALL, B)) ** 0.4)
)
Z = np.clip(Z, 1e-6, 1 - 1e-6)

ORDERED = (
    np.concatenate([logs(1e-2, 200), np.floor(R.uniform(0, 60, 75)), logs(5, 2000, 75)]),
    np.concatenate([logs(1e-2, 300), R.uniform(0.1, 90, 75), logs(5, 2000, 75)]),
)
MODIFIED = ORDERED[0][:150], ORDERED[1][:150]  # mpmath takes minutes for larger ones
STRUVE = R.uniform(-3, 12, 150), logs(1e-2, 90)
WHOLE = np.floor(R.uniform(0, 40, 150)), logs(1e-2, 90)
AIRY = np.concatenate([logs(1e-3, 60), -logs(1e-3, 1e3), R.uniform(-6, 6, 150)])
P, Q, C = R.uniform(-6, 9, 150), R.uniform(-6, 9, 150), R.uniform(0.2, 9, 150)
Y = np.concatenate([R.uniform(-30, 30, 100), logs(1e-2, 200, 50)])
UNIT_AND_BELOW = np.concatenate([R.uniform(-3, 1, 75), 1 - logs(1e-6, 0.5, 40), -logs(1, 1e4, 35)])


def order_wave(v: np.ndarray, x: np.ndarray) -> np.ndarray:
    return wave(x) * (x > np.maximum(v, 2))


def faddeeva(x: Any, y: Any) -> Any:
    z = mp.mpc(x, y)
    with mp.workdps(900 if abs(z) > 15 else 200):
        return mp.exp(-z * z) * mp.erfc(-1j * z)


def owen(h: Any, a: Any) -> Any:
    def density(t: Any) -> Any:
        return mp.exp(-h * h * (1 + t * t) / 2) / (1 + t * t)

    return mp.quad(density, mp.linspace(0, a, 6)) / (2 * mp.pi)


ALL = (
    one(
        "erfcx",
        lambda x: mp.exp(x * x) * mp.erfc(x),
        np.concatenate([logs(1e-6, 15), -logs(1e-6, 9)]),
    ),
    one("erfi", mp.erfi, both(logs(1e-6, 9))),
    one("dawsn", lambda x: mp.sqrt(mp.pi) / 2 * mp.exp(-x * x) * mp.erfi(x), both(logs(1e-6, 20))),
    one("ndtri", exact_ndtri, UNIT),
    one("log_ndtr", lambda x: mp.log(mp.ncdf(x)), np.concatenate([logs(1e-6, 8), -logs(1e-6, 30)])),
    one("gamma", mp.gamma, GAMMAS),
    one("rgamma", mp.rgamma, GAMMAS),
    one("exp1", mp.e1, POSITIVE),
    one(
        "expi",
        mp.ei,
        both(POSITIVE),
        size=lambda x: np.full_like(x, 2.0) * (np.abs(x - 0.37) < 0.2),
    ),
    one("si", mp.si, both(POSITIVE), lambda x: sp.sici(x)[0]),
    one("ci", mp.ci, POSITIVE, lambda x: sp.sici(x)[1], size=lambda x: np.minimum(1, 1 / x)),
    one("shi", mp.shi, both(POSITIVE), lambda x: sp.shichi(x)[0]),
    one(
        "chi",
        mp.chi,
        POSITIVE,
        lambda x: sp.shichi(x)[1],
        size=lambda x: 1.0 * (np.abs(x - 0.52) < 0.2),
    ),
    one("spence", lambda z: mp.polylog(2, 1 - z).real, POSITIVE),
    one("fresnel", mp.fresnels, both(logs(1e-4, 30)), lambda x: sp.fresnel(x)[0], result=0),
    one("j0", mp.j0, BESSEL, size=wave),
    one("j1", mp.j1, BESSEL, size=lambda x: wave(x) * (x > 2)),
    one("y0", lambda x: mp.bessely(0, x), BESSEL, size=wave),
    one("y1", lambda x: mp.bessely(1, x), BESSEL, size=wave),
    one("i0", lambda x: mp.besseli(0, x), POSITIVE),
    one("i1", lambda x: mp.besseli(1, x), POSITIVE),
    one("i0e", lambda x: mp.besseli(0, x) * mp.exp(-x), BESSEL[:320]),
    one("i1e", lambda x: mp.besseli(1, x) * mp.exp(-x), BESSEL[:320]),
    one("k0", lambda x: mp.besselk(0, x), POSITIVE),
    one("k1", lambda x: mp.besselk(1, x), POSITIVE),
    one("k0e", lambda x: mp.besselk(0, x) * mp.exp(x), POSITIVE),
    one("k1e", lambda x: mp.besselk(1, x) * mp.exp(x), POSITIVE),
    Measured("gammainc", lambda a, x: mp.gammainc(a, 0, x, regularized=True), sp.gammainc, (A, X)),
    Measured(
        "gammaincc", lambda a, x: mp.gammainc(a, x, mp.inf, regularized=True), sp.gammaincc, (A, X)
    ),
    Measured(
        "betainc",
        lambda a, b, x: mp.betainc(a, b, 0, x, regularized=True),
        sp.betainc,
        (A_SMALL, B, Z),
    ),
    Measured("zeta", mp.zeta, sp.zeta, (1 + logs(1e-2, 30), logs(0.1, 100))),
    Measured("expn", mp.expint, sp.expn, (np.floor(logs(1, 20)), logs(1e-3, 50))),
    Measured("beta", mp.beta, sp.beta, (logs(1e-2, 100), logs(1e-2, 100))),
    Measured("poch", mp.rf, sp.poch, (logs(1e-2, 50), logs(1e-2, 30))),
    # -- any order
    Measured("jv", mp.besselj, sp.jv, ORDERED, size=order_wave),
    Measured("yv", mp.bessely, sp.yv, ORDERED, size=order_wave),
    Measured("iv", mp.besseli, sp.iv, MODIFIED),
    Measured("kv", mp.besselk, sp.kv, MODIFIED),
    Measured("struve", mp.struveh, sp.struve, STRUVE, size=order_wave),
    Measured(
        *("spherical_jn", lambda n, x: mp.sqrt(mp.pi / 2 / x) * mp.besselj(n + 0.5, x)),
        lambda n, x: sp.spherical_jn(n.astype(int), x),
        WHOLE,
        size=lambda n, x: (x > n) / np.maximum(x, 1),
    ),
    Measured(
        *("spherical_kn", lambda n, x: mp.sqrt(mp.pi / 2 / x) * mp.besselk(n + 0.5, x)),
        lambda n, x: sp.spherical_kn(n.astype(int), x),
        WHOLE,
    ),
    *(
        Measured(
            *("airy", exact, lambda x, i=i: sp.airy(x)[i], (AIRY,)),
            size=lambda x, i=i: (x < 0) * np.maximum(np.abs(x), 1) ** (0.25 if i % 2 else -0.25),
            result=i,
        )
        for i, exact in enumerate(
            (
                mp.airyai,
                lambda x: mp.airyai(x, derivative=1),
                mp.airybi,
                lambda x: mp.airybi(x, derivative=1),
            )
        )
    ),
    # -- hypergeometric and complex functions
    Measured("hyp0f1", mp.hyp0f1, sp.hyp0f1, (C, Y * 3)),
    Measured("hyp1f1", mp.hyp1f1, sp.hyp1f1, (P, C, Y)),
    Measured("hyp2f1", mp.hyp2f1, sp.hyp2f1, (P, Q, C, UNIT_AND_BELOW)),
    Measured("hyperu", mp.hyperu, sp.hyperu, (P, C, logs(1e-4, 100))),
    Measured(
        *("wofz", lambda x, y: faddeeva(x, y).real, lambda x, y: sp.wofz(x + 1j * y).real),
        (logs(1e-4, 30), logs(1e-6, 30)),
        call=lambda x, y: nm.real(nm.special.wofz(x + 1j * y)),
    ),
    Measured("owens_t", owen, sp.owens_t, (R.uniform(-6, 6, 60), R.normal(size=60))),
    Measured(
        *("loggamma", lambda x, y: mp.loggamma(mp.mpc(x, y)).real),
        lambda x, y: sp.loggamma(x + 1j * y).real,
        (R.uniform(-9, 9, 150), R.uniform(-9, 9, 150)),
        size=lambda x, y: 10 * np.abs(sp.loggamma(x + 1j * y)),
        call=lambda x, y: nm.real(nm.special.loggamma(x + 1j * y)),
    ),
    Measured(
        *("lambertw", lambda x, y: mp.lambertw(mp.mpc(x, y)).imag),
        lambda x, y: sp.lambertw(x + 1j * y).imag,
        (R.normal(size=150), R.normal(size=150)),
        call=lambda x, y: nm.imag(nm.special.lambertw(x + 1j * y)),
    ),
)


def measure(m: Measured, dtype: Any) -> tuple[float, float]:
    """(error of numus, error of SciPy)."""
    given = [p.astype(dtype) for p in m.points]
    with np.errstate(all="ignore"):
        found = (m.call or getattr(nm.special, m.name))(*map(nm.asarray, given))
        got = (found if m.result is None else found[m.result]).numpy().astype(np.float64)
        theirs = np.asarray(m.scipy(*given)).astype(np.float64)
    want = [
        mp.mpf(m.exact(*(mp.mpf(float(v)) for v in row)).real) for row in zip(*given, strict=True)
    ]
    size = np.zeros(len(want)) if m.size is None else m.size(*m.points) * 0.1
    info = np.finfo(dtype)
    worst = [0.0, 0.0]
    for i, w in enumerate(want):
        if not info.tiny * 16 < abs(w) < info.max / 16:
            continue
        at = max(abs(w), mp.mpf(float(size[i])))
        unit = at if len(given) > 1 else mp.mpf(2) ** mp.floor(mp.log(at, 2)) * float(info.eps)
        for j, values in enumerate((got, theirs)):
            error = (
                float(abs(mp.mpf(float(values[i])) - w) / unit)
                if np.isfinite(values[i])
                else np.inf
            )
            worst[j] = max(worst[j], error)
    return worst[0], worst[1]


def main(names: Sequence[str]) -> None:
    mp.mp.dps = 50
    lines = ["| function | float32 | float64 | SciPy, float64 |", "|---|---:|---:|---:|"]
    for m in ALL:
        if names and m.name not in names:
            continue
        (single, _), (double, theirs) = (measure(m, d) for d in (np.float32, np.float64))
        digits = ".1f" if len(m.points) == 1 else ".1e"
        lines.append(f"| `{m.name}` | {single:{digits}} | {double:{digits}} | {theirs:{digits}} |")
        print(lines[-1], flush=True)
    if not names:
        table = "\n".join([START, *lines, END])
        text = PAGE.read_text()
        PAGE.write_text(re.sub(f"{START}.*{END}", lambda _: table, text, flags=re.S))


if __name__ == "__main__":
    main(sys.argv[1:])
