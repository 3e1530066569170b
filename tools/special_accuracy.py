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
    size: Callable[[np.ndarray], np.ndarray] | None = None  # of an oscillating function
    result: int | None = None  # of a function with several results


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
)


def measure(m: Measured, dtype: Any) -> tuple[float, float]:
    """(error of numus, error of SciPy)."""
    given = [p.astype(dtype) for p in m.points]
    with np.errstate(all="ignore"):
        found = getattr(nm.special, m.name)(*map(nm.asarray, given))
        got = (found if m.result is None else found[m.result]).numpy().astype(np.float64)
        theirs = np.asarray(m.scipy(*given)).astype(np.float64)
    want = [
        mp.mpf(m.exact(*(mp.mpf(float(v)) for v in row)).real) for row in zip(*given, strict=True)
    ]
    size = np.zeros(len(want)) if m.size is None else m.size(m.points[0]) * 0.1
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
