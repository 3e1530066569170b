"""The math library: every function once, branch-free, in kernel IR, for every backend.

`FUNCTIONS` has them by primitive name. Each takes expressions of float32 or float64 and returns one
of the same dtype; float32 functions use 32-bit arithmetic only, so that they run where there is no
float64. Their errors, measured, are in docs/accuracy.md.
"""

from __future__ import annotations

from collections.abc import Callable

from numus.compiler.ir import Expr
from numus.kernels.math.error_function import erf
from numus.kernels.math.exponential import exp, exp2, expm1, logistic
from numus.kernels.math.hyperbolic import tanh
from numus.kernels.math.logarithm import log, log1p, log2, log10
from numus.kernels.math.power import pow, rsqrt
from numus.kernels.math.trigonometry import cos, sin, sincos, tan

FUNCTIONS: dict[str, Callable[..., Expr]] = {
    f.__name__: f
    for f in (
        *(exp, exp2, expm1, logistic, log, log2, log10, log1p),
        *(sin, cos, tan, tanh, pow, rsqrt, erf),
    )
}

__all__ = ["FUNCTIONS", "sincos"]
