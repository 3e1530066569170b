"""Errors of the math functions in units in the last place (ulp), measured against mpmath.

The table is Markdown, so that it can go into the documentation as it is printed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
from numpy.typing import NDArray

import numus as nm

POINTS = 2000  # per interval
PRECISION = 120  # bits that mpmath works with: enough to call its results exact
DTYPES = (np.float32, np.float64)


@dataclass(frozen=True)
class Case:
    name: str  # in numus
    exact: Callable[[Any], Any]
    intervals: tuple[tuple[float, float], ...]


def _log10(x: Any) -> Any:
    return mpmath.log(x, 10)


def _log2(x: Any) -> Any:
    return mpmath.log(x, 2)


# Each function is sampled where it is smooth, near its zeros, and far out where argument reduction
# has to hold. The ends stay inside what float32 can represent.
CASES = (
    Case("exp", mpmath.exp, ((-1, 1), (-87, 88))),
    Case("exp2", lambda x: mpmath.power(2, x), ((-1, 1), (-125, 127))),
    Case("expm1", mpmath.expm1, ((-1e-3, 1e-3), (-1, 1), (-80, 88))),
    Case("log", mpmath.log, ((0.5, 2), (1e-30, 1e-20), (1, 1e30))),
    Case("log2", _log2, ((0.5, 2), (1, 1e30))),
    Case("log10", _log10, ((0.5, 2), (1, 1e30))),
    Case("log1p", mpmath.log1p, ((-1e-3, 1e-3), (-0.9, 1), (1, 1e30))),
    Case("sqrt", mpmath.sqrt, ((0, 4), (1e10, 1e30))),
    Case("sin", mpmath.sin, ((-1, 1), (-100, 100), (1e4, 1e6))),
    Case("cos", mpmath.cos, ((-1, 1), (-100, 100), (1e4, 1e6))),
    Case("tan", mpmath.tan, ((-1, 1), (-100, 100), (1e4, 1e6))),
    Case("asin", mpmath.asin, ((-1, 1), (-1e-3, 1e-3))),
    Case("acos", mpmath.acos, ((-1, 1), (0.999, 1))),
    Case("atan", mpmath.atan, ((-1, 1), (-1e4, 1e4))),
    Case("sinh", mpmath.sinh, ((-1, 1), (-80, 80))),
    Case("cosh", mpmath.cosh, ((-1, 1), (-80, 80))),
    Case("tanh", mpmath.tanh, ((-1e-3, 1e-3), (-1, 1), (-10, 10))),
    Case("asinh", mpmath.asinh, ((-1e-3, 1e-3), (-1, 1), (-1e4, 1e4))),
    Case("acosh", mpmath.acosh, ((1, 2), (2, 1e4))),
    Case("atanh", mpmath.atanh, ((-1e-3, 1e-3), (-0.999, 0.999))),
    Case("erf", mpmath.erf, ((-1e-3, 1e-3), (-1, 1), (-5, 5))),
    Case("erfc", mpmath.erfc, ((-1, 1), (1, 9))),
    Case("lgamma", mpmath.loggamma, ((0.1, 3), (3, 1e3))),
)


def errors(case: Case, dtype: type[np.floating[Any]]) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Sampled inputs, and the error of numus at each of them in ulp of the exact result."""
    rng = np.random.default_rng(0)
    inputs = np.concatenate([rng.uniform(*ends, POINTS) for ends in case.intervals]).astype(dtype)
    results = np.asarray(getattr(nm, case.name)(nm.asarray(inputs)))
    assert results.dtype == dtype, f"{case.name} of {np.dtype(dtype)} gave {results.dtype}"

    ulps = np.empty(len(inputs))
    with mpmath.workprec(PRECISION):
        for i, (x, result) in enumerate(zip(inputs.tolist(), results.tolist(), strict=True)):
            exact = case.exact(mpmath.mpf(x))
            if math.isfinite(result):
                unit = mpmath.mpf(float(np.spacing(dtype(abs(float(exact))))))
                ulps[i] = float(abs(result - exact) / unit)
            else:
                ulps[i] = math.inf
    return inputs, ulps


def report() -> None:
    """Print the largest and the mean error of every function that numus has."""
    print("| function | dtype | largest error (ulp) | at | mean (ulp) |")
    print("|---|---|---:|---:|---:|")
    for case in CASES:
        if not hasattr(nm, case.name):
            continue
        for dtype in DTYPES:
            inputs, ulps = errors(case, dtype)
            worst = int(ulps.argmax())
            print(
                f"| {case.name} | {np.dtype(dtype)} | {ulps[worst]:.2f} | {inputs[worst]:.6g} "
                f"| {ulps.mean():.3f} |",
                flush=True,
            )
