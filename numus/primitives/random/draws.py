"""Draws by rejection: operands are the parameters, a key's two words and a counter per element.

gamma is differentiable by its parameter: implicit reparametrisation (Figurnov et al. 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.graph import Array, Node
from numus.kernels.math.random_bits import threefry2x32
from numus.kernels.random import algorithms
from numus.primitives.elementwise import (
    digamma,
    div,
    exp,
    log,
    lt,
    maximum,
    mul,
    neg,
    sub,
    where,
)
from numus.primitives.random.bits import _normal_reference
from numus.primitives.references import special
from numus.primitives.special.incomplete import _gamma_density, gammainc_by_a
from numus.primitives.special.tables import nary, number, plus


class _Reference:
    """`algorithms.Ops` on NumPy arrays."""

    log, log1p = staticmethod(np.log), staticmethod(np.log1p)
    exp, pow = staticmethod(np.exp), staticmethod(np.power)
    sqrt, abs, floor = staticmethod(np.sqrt), staticmethod(np.abs), staticmethod(np.floor)
    cos, acos, select = staticmethod(np.cos), staticmethod(np.arccos), staticmethod(np.where)
    rarely = staticmethod(np.where)

    def __init__(self, dtype: Any, k0: Array, k1: Array, counter: Array) -> None:
        self.dtype, self.key, self.counter = dtype, (k0, k1), counter

    def number(self, value: float) -> Array:
        return np.full(self.counter.shape, value, self.dtype)

    def first_trial(self) -> Array:
        return np.zeros(self.counter.shape, np.uint32)

    def lgamma(self, x: Array) -> Array:
        return special("gammaln")(x)

    def phi(self, u: Array) -> Array:
        wide = u.astype(np.longdouble)
        return (wide - np.log1p(wide)).astype(self.dtype)

    def words(self, trial: Array, which: int) -> tuple[Array, Array]:
        second = (trial << np.uint32(2)) + np.uint32(which + 1)
        words: Any = threefry2x32(*self.key, self.counter, second)  # type: ignore[arg-type]
        return words

    def uniform(self, trial: Array, which: int) -> Array:
        high, low = self.words(trial, which)
        if self.dtype == np.float32:
            return high.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
        whole = high.astype(np.float64) * 2.0**21 + (low >> np.uint32(11)).astype(np.float64)
        return (whole + 1.0) * 2.0**-53

    def uniforms(self, trial: Array) -> tuple[Array, Array]:
        if self.dtype == np.float32:
            high, low = (
                w.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
                for w in self.words(trial, 1)
            )
            return high, low
        return self.uniform(trial, 1), self.uniform(trial, 2)

    def normal(self, trial: Array) -> Array:
        words = self.words(trial, 0)
        if self.dtype == np.float64:
            pairs = (words, self.words(trial, 1))
            wide = [(a.astype(np.uint64) << np.uint64(32)) | b.astype(np.uint64) for a, b in pairs]
            words = (wide[0], wide[1])
        node: Any = SimpleNamespace(dtype=dt.as_dtype(self.dtype), params=0)
        return _normal_reference(node, *words)

    def iterate(
        self, limit: int, initial: tuple[Any, ...], step: Callable[..., Any]
    ) -> tuple[Array, ...]:
        state = [np.broadcast_to(x, self.counter.shape).copy() for x in initial]
        for _ in range(limit):
            running, following = step(*state)
            if not np.any(running):
                break
            pairs = zip(following, state, strict=True)
            state = [np.where(running, x, y).astype(y.dtype) for x, y in pairs]
        return tuple(state)


def _draw(name: str, partials: Any = None) -> Callable[..., Node]:
    algorithm = getattr(algorithms, name)

    def reference(*operands: Array) -> Array:
        arrays = [np.atleast_1d(x) for x in np.broadcast_arrays(*operands)]
        *parameters, k0, k1, counter = arrays
        ops = _Reference(parameters[0].dtype, k0, k1, counter)
        with np.errstate(all="ignore"):
            out: Array = algorithm(ops, *parameters)
        return out.reshape(np.broadcast_shapes(*(np.shape(x) for x in operands)))

    return nary(f"draw_{name}", reference, partials)


def _log_by_a(log_y: Node, y: Node, a: Node) -> Node:
    """d log(y) / da of a gamma draw at fixed P(a, y).

    Of a tiny draw, which may have underflowed, P(a, y) is y**a / gamma(a + 1).
    """
    single = y.dtype.itemsize == 4
    tiny = lt(log_y, number(-17.0 if single else -37.0, y))
    at = where(tiny, number(1, y), y)
    usual = neg(div(gammainc_by_a(a, at), mul(_gamma_density(a, at), at)))
    return where(tiny, div(sub(digamma(plus(a, 1)), log_y), a), usual)


def _by_a(y: Node, a: Node) -> Node:
    smallest = number(2.0**-126 if y.dtype.itemsize == 4 else 2.0**-1022, y)
    return mul(y, _log_by_a(log(maximum(y, smallest)), y, a))


gamma = _draw("gamma", lambda y, a, *rest: (_by_a(y, a), None, None, None))
log_gamma = _draw("log_gamma", lambda y, a, *rest: (_log_by_a(y, exp(y), a), None, None, None))
poisson = _draw("poisson")
binomial = _draw("binomial")
vonmises = _draw("vonmises")
zipf = _draw("zipf")
hypergeometric = _draw("hypergeometric")
