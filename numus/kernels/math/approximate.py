"""Approximate math on special-function units (ex2, lg2, rcp), for results rounded to 16 bits.

Errors of 2**-15 at most, mostly of a few 2**-22. The units are float32 and flush subnormals: an
exponential is the square of its root, so that it underflows gradually.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from numus.ir import Expr, fma, reciprocal, select
from numus.ir import exp2 as sfu_exp2
from numus.ir import log2 as sfu_log2
from numus.kernels.math._tools import absolute, chain, copysign, like

Table = dict[str, Callable[[Expr], Expr]]

_LOG2_E, _LN2 = math.log2(math.e), math.log(2)

# The share of the normal distribution below -t is exp(-t**2 / 2) times this polynomial in
# 1 / (1 + _TAIL_SCALE t), to 2e-6 for t up to 13.7.
_TAIL_SCALE = 0.3
_NORMAL_TAIL = (
    *(-7.97803e-05, 0.121274568, 0.106705278, 0.164762333),
    *(-0.0486411303, 0.240570232, -0.0845924392),
)


def _root_of_exp(x: Expr, part: float = 0.5) -> Expr:
    return sfu_exp2(x * like(x, part * _LOG2_E))


def exp(x: Expr) -> Expr:
    root = _root_of_exp(x)
    return root * root


def expm1(x: Expr) -> Expr:
    near = x * chain(x, (1.0, 1 / 2, 1 / 6, 1 / 24))  # keeps the sign of zero
    return select(absolute(x) < 0.125, near, exp(x) - 1.0)


def sigmoid(x: Expr) -> Expr:
    e = exp(-absolute(x))
    return select(x < 0.0, e, like(x, 1.0)) * reciprocal(e + 1.0)


def tanh(x: Expr) -> Expr:
    square = x * x
    near = x * chain(square, (1.0, -1 / 3, 2 / 15))
    e = sfu_exp2(absolute(x) * like(x, -2 * _LOG2_E))  # flushed: the result is 1
    far = copysign((1.0 - e) * reciprocal(e + 1.0), x)
    return select(absolute(x) < 0.125, near, far)


def ndtr(x: Expr) -> Expr:
    size = absolute(x)
    scale = chain(reciprocal(fma(size, _TAIL_SCALE, 1.0)), _NORMAL_TAIL)
    root = sfu_exp2(size * size * like(x, -0.25 * _LOG2_E))
    tail = root * (root * absolute(scale))  # negative only where the root underflows
    return select(x > 0.0, 1.0 - tail, tail)


def log(x: Expr) -> Expr:
    return sfu_log2(x) * like(x, _LN2)


def log10(x: Expr) -> Expr:
    return sfu_log2(x) * like(x, math.log10(2))


def log1p(x: Expr) -> Expr:
    near = fma(x * x, chain(x, (-1 / 2, 1 / 3)), x)
    return select(absolute(x) < 2.0**-5, near, log(x + 1.0))


# Small relative error everywhere.
ANY_ARGUMENT: Table = {f.__name__: f for f in (exp, expm1, ndtr, sigmoid, tanh)}
# Cancellation near 1, where the arguments of bfloat16 are too coarse for it to matter.
BFLOAT16_ONLY: Table = {f.__name__: f for f in (log, log10, log1p, sfu_log2)}
FUNCTIONS = {**ANY_ARGUMENT, **BFLOAT16_ONLY}
