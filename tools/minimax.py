"""Minimax polynomial coefficients of the math library (Remez exchange).

    python -m tools.minimax [NAME ...]      all of tools/coefficients.py, or those named

rewrites numus/kernels/math/_coefficients.py. A fit is a Remez exchange in mpmath. Coefficients are
then rounded to the target's precision one by one, the lowest power first, and after each the others
are refitted to compensate for its rounding.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
from scipy.optimize import linprog

Function = Callable[[Any], Any]
TARGET = Path(__file__).parents[1] / "numus/kernels/math/_coefficients.py"
PRECISION = 240


class Problem:
    """f and its weight sampled once on [a, b], at Chebyshev points."""

    def __init__(self, f: Function, a: Any, b: Any, weight: Function, samples: int) -> None:
        a, b = mp.mpf(a), mp.mpf(b)
        middle, half = (a + b) / 2, (b - a) / 2
        self.samples = samples
        self.x = [middle - half * mp.cos(mp.pi * i / samples) for i in range(samples + 1)]
        # Definitions such as (exp(x) - 1 - x) / x**2 cancel at 0: stay a little away from it.
        near = half / 10**9
        self.x = [x if abs(x) > near else near for x in self.x]
        self.f = [mp.mpf(f(x)) for x in self.x]
        w = [abs(mp.mpf(weight(x))) for x in self.x]
        floor = max(w) / 1000  # where the weight vanishes any error would do: keep it in bounds
        self.w = [max(floor, v) for v in w]

    def errors(self, c: Sequence[Any]) -> list[Any]:
        """Weighted errors of a polynomial at the samples."""
        return [w * (_value(c, x) - y) for x, y, w in zip(self.x, self.f, self.w, strict=True)]


def _value(c: Sequence[Any], x: Any) -> Any:
    """A polynomial, by Horner's rule: mpmath's versions differ in the order they take."""
    total = mp.mpf(0)
    for a in reversed(c):
        total = total * x + a
    return total


def remez(p: Problem, degree: int) -> list[Any]:
    """Minimax coefficients of 1, x, ..., x**degree."""
    rows = [[w * x**k for k in range(degree + 1)] for x, w in zip(p.x, p.w, strict=True)]
    return exchange(rows, [w * y for w, y in zip(p.w, p.f, strict=True)])


def exchange(rows: Sequence[Sequence[Any]], right: Sequence[Any]) -> list[Any]:
    """Coefficients c that minimise max |rows c - right|, for smoothly varying rows."""
    n, samples = len(rows[0]), len(rows) - 1
    chosen = [round(i * samples / n) for i in range(n + 1)]
    best: tuple[Any, list[Any]] = (mp.inf, [])
    for _ in range(40):
        matrix, goal = mp.matrix(n + 1, n + 1), mp.matrix(n + 1, 1)
        for row, i in enumerate(chosen):
            for k in range(n):
                matrix[row, k] = rows[i][k]
            matrix[row, n] = (-1) ** row
            goal[row] = right[i]
        solution = mp.lu_solve(matrix, goal)
        c, level = [solution[k] for k in range(n)], abs(solution[n])
        errors = [mp.fdot(c, row) - y for row, y in zip(rows, right, strict=True)]
        extrema: list[int] = []  # one per run of equal sign
        for i, e in enumerate(errors):
            if extrema and (errors[extrema[-1]] > 0) == (e > 0):
                if abs(e) > abs(errors[extrema[-1]]):
                    extrema[-1] = i
            else:
                extrema.append(i)
        largest = max(abs(e) for e in errors)
        best = min(best, (largest, c), key=lambda pair: pair[0])
        while len(extrema) > n + 1:  # drop the smaller end
            extrema.pop(0 if abs(errors[extrema[0]]) < abs(errors[extrema[-1]]) else -1)
        if len(extrema) < n + 1 or largest <= level * mp.mpf("1.001"):
            break
        chosen = extrema
    return best[1]


def fit(
    f: Function, a: Any, b: Any, degree: int, bits: int, weight: Function = lambda x: mp.mpf(1)
) -> tuple[list[float], Any]:
    """Coefficients of 1, x, ..., x**degree rounded to floats of 24 or 53 bits; their error."""
    p = Problem(f, a, b, weight, 24 * (degree + 2))
    c = remez(p, degree)
    for k in range(degree + 1):
        c[k] = mp.mpf(rounded(c[k], bits))
        if k < degree:
            c[k + 1 :] = _refit(p, c, k + 1)
    return [float(v) for v in c], max(abs(e) for e in p.errors(c))


def ratio(
    f: Function, a: Any, b: Any, degrees: tuple[int, int], bits: int
) -> tuple[list[float], list[float], Any]:
    """Coefficients of P and Q, whose ratio is f, rounded; their relative error. Q begins with 1.

    P - f Q is linear in the coefficients. Divided by the Q that was found before, it soon is the
    error of the ratio.
    """
    top, below = degrees
    p = Problem(f, a, b, lambda x: 1 / f(x), 24 * (top + below + 3))
    q = [mp.mpf(1)] * len(p.x)
    for _ in range(8):
        rows = [
            [x**i / (y * d) for i in range(top + 1)] + [-(x**j) / d for j in range(1, below + 1)]
            for x, y, d in zip(p.x, p.f, q, strict=True)
        ]
        c = exchange(rows, [1 / d for d in q])
        over, under = c[: top + 1], [mp.mpf(1), *c[top + 1 :]]
        q = [_value(under, x) for x in p.x]
    over, under = ([mp.mpf(rounded(v, bits)) for v in part] for part in (over, under))
    found = (_value(over, x) / _value(under, x) / y for x, y in zip(p.x, p.f, strict=True))
    error = max(abs(r - 1) for r in found)
    return [float(v) for v in over], [float(v) for v in under], error


def _refit(p: Problem, c: list[Any], first: int) -> list[Any]:
    """The coefficients from x**first on, changed to make the largest error smallest again.

    The changes are as small as the rounding that caused them: a linear program in float64, with
    the errors scaled to about 1, finds them well enough.
    """
    errors = p.errors(c)
    scale = max(abs(e) for e in errors)
    e = np.array([float(v / scale) for v in errors])
    basis = np.array(
        [[float(w * x**k) for k in range(first, len(c))] for x, w in zip(p.x, p.w, strict=True)]
    )
    size = np.abs(basis).max(axis=0)
    basis /= size
    one = np.ones((len(e), 1))
    rows = np.block([[basis, -one], [-basis, -one]])
    objective = np.zeros(basis.shape[1] + 1)
    objective[-1] = 1
    free = [(None, None)] * basis.shape[1] + [(0, None)]
    found = linprog(objective, rows, np.concatenate([-e, e]), bounds=free)
    if found.status != 0 or found.x[-1] > 1:
        return c[first:]
    return [v + scale * mp.mpf(d / s) for v, d, s in zip(c[first:], found.x, size, strict=False)]


def rounded(x: Any, bits: int) -> float:
    """The nearest float of that precision."""
    return float(np.float32(float(x))) if bits == 24 else float(x)


def split(value: Any, bits: int, parts: int) -> list[float]:
    """A real number as a sum of floats, largest first."""
    out = []
    for _ in range(parts):
        out.append(rounded(value, bits))
        value = value - out[-1]
    return out


# -- the file -------------------------------------------------------------------------------------

HEAD = '''"""Made by `python -m tools.minimax`; defined in tools/coefficients.py.

A table is (float32's, float64's): coefficients of 1, x, x**2, ... or the parts of a constant.
"""

# fmt: off
Table = tuple[tuple[float, ...], tuple[float, ...]]
'''


def literal(values: Sequence[float], bits: int) -> str:
    """The items of a tuple of floats as source."""
    words = [f"{v:.9g}" if bits == 24 else repr(v) for v in values]
    words = [w if any(ch in w for ch in ".en") else w + ".0" for w in words]
    lines, line = [], "        "
    for word in words:
        if len(line) + len(word) + 2 > 98:
            lines.append(line.rstrip())
            line = "        "
        line += word + ", "
    return "\n".join([*lines, line.rstrip()])


def block(name: str, about: str, tables: Sequence[tuple[Sequence[float], int, Any]]) -> str:
    """The source of one table."""
    lines = [f"# {about}", f"{name}: Table = ("]
    for values, bits, error in tables:
        note = f"  # error 2**{float(mp.log(error, 2)):.1f}" if error else ""
        items = literal(values, bits)
        row = f"    ({items.strip().rstrip(',') if len(values) > 1 else items.strip()}),{note}"
        fits = "\n" not in items and len(row) <= 98
        lines += [row] if fits else [f"    ({note}", items, "    ),"]
    return "\n".join([*lines, ")"])


def main(names: Sequence[str]) -> None:
    from tools.coefficients import CONSTANTS, FITS, RATIOS

    mp.mp.prec = PRECISION
    blocks: dict[str, str] = {}
    if TARGET.exists():
        written = re.finditer(r"^# [^\n]*\n(\w+): Table = .*?^\)", TARGET.read_text(), re.M | re.S)
        blocks = {found[1]: found[0] for found in written}
    for constant in CONSTANTS:
        if not names or constant.name in names:
            both = [(split(constant.value(), b, constant.parts), b, None) for b in (24, 53)]
            blocks[constant.name] = block(constant.name, constant.about, both)
    for pair in RATIOS:
        if not names or pair.name in names:
            each = zip(pair.on, pair.degrees, (24, 53), strict=True)
            found = [(ratio(pair.of, *on, degrees, bits), bits) for on, degrees, bits in each]
            for i, part in enumerate(("TOP", "BELOW")):
                tables = [(r[i], bits, r[2]) for r, bits in found]
                about = f"{pair.about}: the {('numerator', 'denominator')[i]}"
                blocks[f"{pair.name}_{part}"] = block(f"{pair.name}_{part}", about, tables)
    for want in FITS:
        if names and want.name not in names:
            continue
        tables = []
        for bits, degree in zip((24, 53), want.degrees, strict=True):
            if degree < 0:
                tables.append(((), bits, None))
                continue
            a, b = want.interval(bits)
            c, error = fit(want.function(bits), a, b, degree, bits, want.weight(bits))
            tables.append((c, bits, error))
            print(f"{want.name} {bits} bits, degree {degree}: 2**{float(mp.log(error, 2)):.1f}")
        blocks[want.name] = block(want.name, want.about, tables)
    order = [c.name for c in CONSTANTS] + [f.name for f in FITS]
    order += [f"{r.name}_{part}" for r in RATIOS for part in ("TOP", "BELOW")]
    TARGET.write_text(HEAD + "".join(f"\n\n{blocks[n]}" for n in order if n in blocks) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
