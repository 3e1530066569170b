"""Polynomial coefficients of the math library, made again from their definitions.

`fit(f, a, b, degree)` finds the polynomial whose largest weighted error on [a, b] is smallest
(Remez exchange in mpmath). Coefficients are rounded to the target's precision one at a time, the
lowest power first, and the rest fitted again, so that a rounded coefficient is paid for by its
neighbours. `python -m tools.minimax NAME ...` prints the tables of tools/coefficients.py that
`numus/kernels/math` holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mpmath as mp
import numpy as np

Function = Callable[[Any], Any]


class Problem:
    """f and its weight sampled once on [a, b], densest at the ends as Chebyshev's points are."""

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
        self.two_sided = a < 0 < b


def _errors(p: Problem, powers: Sequence[int], c: Sequence[Any], known: Sequence[float]) -> list:
    dense = [mp.mpf(0)] * (max([*powers, len(known) - 1]) + 1)
    for k, v in zip(powers, c, strict=True):
        dense[k] += v
    for k, v in enumerate(known):
        dense[k] += v
    dense.reverse()
    return [w * (mp.polyval(dense, x) - y) for x, y, w in zip(p.x, p.f, p.w, strict=True)]


def remez(p: Problem, powers: Sequence[int], known: Sequence[float] = ()) -> list[Any]:
    """Minimax coefficients of x**k, k in powers, beside the known ones of 1, x, x**2, ..."""
    n = len(powers)
    chosen = [round(i * p.samples / n) for i in range(n + 1)]
    best: tuple[Any, list[Any]] = (mp.inf, [])
    for _ in range(40):
        matrix, right = mp.matrix(n + 1, n + 1), mp.matrix(n + 1, 1)
        for row, i in enumerate(chosen):
            x, w = p.x[i], p.w[i]
            for j, k in enumerate(powers):
                matrix[row, j] = w * x**k
            matrix[row, n] = (-1) ** row
            right[row] = w * (p.f[i] - mp.polyval(list(known)[::-1] or [0], x))
        solution = mp.lu_solve(matrix, right)
        c, level = [solution[j] for j in range(n)], abs(solution[n])
        errors = _errors(p, powers, c, known)
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
    f: Function,
    a: Any,
    b: Any,
    degree: int,
    bits: int,
    weight: Function = lambda x: mp.mpf(1),
    keep: int = 3,
) -> tuple[list[float], Any]:
    """Coefficients of 1, x, ..., x**degree rounded to floats of 24 or 53 bits; their error.

    The first `keep` of them are rounded one by one and the others fitted again.
    """
    p = Problem(f, a, b, weight, 24 * (degree + 2))
    known: list[float] = []
    for k in range(min(keep, degree)):
        # Powers from x on cannot alternate on both sides of 0: there all are rounded at the end.
        if p.two_sided:
            break
        known.append(rounded(remez(p, range(k, degree + 1), known)[0], bits))
    rest = remez(p, range(len(known), degree + 1), known)
    c = known + [rounded(v, bits) for v in rest]
    return c, max(abs(e) for e in _errors(p, range(degree + 1), c, ()))


def rounded(x: Any, bits: int) -> float:
    """The nearest float of that precision."""
    return float(np.float32(float(x))) if bits == 24 else float(x)


def show(name: str, coefficients: Sequence[float], bits: int, error: Any) -> str:
    """Python source of a coefficient table, lowest power first."""
    digits = 9 if bits == 24 else 17
    lines = [f"{name} = (  # error 2**{float(mp.log(error, 2)):.1f}"]
    lines += [f"    {c:.{digits}g}," for c in coefficients]
    return "\n".join([*lines, ")"])
