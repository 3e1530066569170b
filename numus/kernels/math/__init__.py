"""The math library: every function once, branch-free, in kernel IR, for every backend.

`FUNCTIONS` has them by primitive name. Each takes expressions of float32 or float64 and returns one
of the same dtype; float32 functions use 32-bit arithmetic only, so that they run where there is no
float64. Their errors, measured, are in docs/accuracy.md.
"""

from __future__ import annotations

from collections.abc import Callable

from numus.ir import Expr
from numus.kernels.math.error_function import erf, erfc, erfinv, ndtr
from numus.kernels.math.exponential import exp, exp2, exp_decay, expm1
from numus.kernels.math.gamma import digamma, lgamma, trigamma
from numus.kernels.math.hyperbolic import acosh, asinh, atanh, cosh, sigmoid, sinh, tanh
from numus.kernels.math.inverse_trig import acos, asin, atan, atan2
from numus.kernels.math.logarithm import log, log1p, log2, log10, logaddexp
from numus.kernels.math.power import cbrt, hypot, pow, rsqrt
from numus.kernels.math.remainder import fmod, frexp, ldexp, nextafter
from numus.kernels.math.trigonometry import cos, sin, sincos, tan

FUNCTIONS: dict[str, Callable[..., Expr]] = {
    f.__name__: f
    for f in (
        *(exp, exp2, expm1, log, log2, log10, log1p, pow, cbrt, hypot, rsqrt),
        *(sin, cos, tan, asin, acos, atan, atan2),
        *(sinh, cosh, tanh, asinh, acosh, atanh, sigmoid),
        *(erf, erfc, erfinv, ndtr, lgamma, digamma, trigamma, logaddexp, fmod, nextafter),
    )
}

__all__ = ["FUNCTIONS", "exp_decay", "frexp", "ldexp", "sincos"]
