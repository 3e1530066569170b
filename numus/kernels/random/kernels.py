"""The algorithms in kernel IR: operands are the parameters, then key words and the counter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numus import dtypes as dt
from numus.ir import Expr, const, iterate, select, slow_path_select, sqrt, unary
from numus.kernels.math import FUNCTIONS as MATH
from numus.kernels.math._tools import absolute
from numus.kernels.math.random_bits import normal_pair, normal_pair64, threefry2x32
from numus.kernels.random import algorithms
from numus.kernels.special.incomplete import phi


class Kernel:
    """`algorithms.Ops` on expressions."""

    iterate = staticmethod(iterate)
    sqrt, abs = staticmethod(sqrt), staticmethod(absolute)
    phi, select = staticmethod(phi), staticmethod(select)
    rarely = staticmethod(slow_path_select)
    log, log1p = staticmethod(MATH["log"]), staticmethod(MATH["log1p"])
    exp, pow = staticmethod(MATH["exp"]), staticmethod(MATH["pow"])
    cos, acos = staticmethod(MATH["cos"]), staticmethod(MATH["acos"])
    lgamma = staticmethod(MATH["lgamma"])

    def __init__(self, dtype: dt.DType, k0: Expr, k1: Expr, counter: Expr) -> None:
        self.dtype, self.key, self.counter = dtype, (k0, k1), counter

    def number(self, value: float) -> Expr:
        return const(value, self.dtype)

    def first_trial(self) -> Expr:
        return const(0, dt.uint32)

    def floor(self, x: Expr) -> Expr:
        return unary("floor", x)

    def words(self, trial: Expr, which: int) -> tuple[Expr, Expr]:
        return threefry2x32(*self.key, self.counter, (trial << 2) + (which + 1))

    def uniform(self, trial: Expr, which: int) -> Expr:
        high, low = self.words(trial, which)
        if self.dtype is dt.float32:
            return high.cast(dt.float32) * 2.0**-32 + 2.0**-33
        whole = high.cast(dt.float64) * 2.0**21 + (low >> 11).cast(dt.float64)
        return (whole + 1.0) * 2.0**-53

    def uniforms(self, trial: Expr) -> tuple[Expr, Expr]:
        if self.dtype is dt.float32:
            high, low = (w.cast(dt.float32) * 2.0**-32 + 2.0**-33 for w in self.words(trial, 1))
            return high, low
        return self.uniform(trial, 1), self.uniform(trial, 2)

    def normal(self, trial: Expr) -> Expr:
        words = self.words(trial, 0)
        if self.dtype is dt.float32:
            return normal_pair(*words)[0]
        pairs = (words, self.words(trial, 1))
        wide = ((a.cast(dt.uint64) << 32) | b.cast(dt.uint64) for a, b in pairs)
        return normal_pair64(*wide)[0]


def _lowered(algorithm: Callable[..., Any]) -> Callable[..., Expr]:
    def kernel(*operands: Expr) -> Expr:
        *parameters, k0, k1, counter = operands
        result: Expr = algorithm(Kernel(parameters[0].dtype, k0, k1, counter), *parameters)
        return result

    return kernel


FUNCTIONS = {
    f"draw_{f.__name__}": _lowered(f)
    for f in (
        *(algorithms.gamma, algorithms.log_gamma, algorithms.poisson, algorithms.binomial),
        *(algorithms.vonmises, algorithms.zipf, algorithms.hypergeometric),
    )
}
