"""Special functions of one variable."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from numus.graph import Array, Node
from numus.primitives.elementwise import (
    Unary,
    abs_,
    add,
    cos,
    cosh,
    digamma,
    div,
    eq,
    exp,
    floor,
    log,
    lt,
    mul,
    neg,
    sign,
    sin,
    sinh,
    sub,
    unary,
    where,
)
from numus.primitives.references import special
from numus.primitives.special.tables import minus_from, number, plus, times

_ROOT_PI = math.sqrt(math.pi)


def _square(x: Node) -> Node:
    return mul(x, x)


def _safe_div(a: Node, x: Node, at_zero: float) -> Node:
    """a / x, and a number where x is 0."""
    zero = eq(x, number(0, x))
    return where(zero, number(at_zero, x), div(a, where(zero, number(1, x), x)))


def _part(name: str, index: int) -> Callable[..., Array]:
    """One of several results of a function of scipy.special."""

    def reference(*arrays: Array) -> Array:
        out: Array = special(name)(*arrays)[index]
        return out

    return reference


def _nan_below_zero(f: Callable[..., Array]) -> Callable[..., Array]:
    def reference(x: Array) -> Array:
        return np.where(x < 0, np.nan, f(np.abs(x)))

    return reference


# -- the error function's kin ---------------------------------------------------------------------

erfcx: Unary = unary(
    "erfcx", special("erfcx"), lambda y, x: times(sub(mul(x, y), number(1 / _ROOT_PI, x)), 2)
)
erfi: Unary = unary("erfi", special("erfi"), lambda y, x: times(exp(_square(x)), 2 / _ROOT_PI))
dawsn: Unary = unary("dawsn", special("dawsn"), lambda y, x: minus_from(1, times(mul(x, y), 2)))
ndtri: Unary = unary(
    "ndtri",
    special("ndtri"),
    lambda y, x: times(exp(times(_square(y), 0.5)), math.sqrt(2 * math.pi)),
)
erfcinv: Unary = unary(
    "erfcinv", special("erfcinv"), lambda y, x: times(exp(_square(y)), -_ROOT_PI / 2)
)
log_ndtr: Unary = unary(
    "log_ndtr",
    special("log_ndtr"),
    lambda y, x: div(number(math.sqrt(2 / math.pi), x), erfcx(times(x, -math.sqrt(0.5)))),
)

# -- gamma ----------------------------------------------------------------------------------------

gamma: Unary = unary("gamma", special("gamma"), lambda y, x: mul(y, digamma(x)))


def _rgamma_slope(y: Node, x: Node) -> Node:
    """-digamma(x) / gamma(x); at the poles -n the limit (-1)**n n!."""
    at_pole = eq(y, number(0, y))
    n = where(at_pole, neg(x), number(0, x))
    even = eq(sub(n, times(floor(times(n, 0.5)), 2)), number(0, n))
    limit = gamma(plus(n, 1))
    safe = where(at_pole, number(1, x), x)
    return where(at_pole, where(even, limit, neg(limit)), neg(mul(y, digamma(safe))))


rgamma: Unary = unary("rgamma", special("rgamma"), _rgamma_slope)

# -- integrals ------------------------------------------------------------------------------------

exp1: Unary = unary(
    "exp1",
    lambda x: np.where(x < 0, -special("expi")(-x), special("exp1")(np.abs(x))),
    lambda y, x: neg(div(exp(neg(x)), x)),
)
expi: Unary = unary("expi", special("expi"), lambda y, x: div(exp(x), x))
si: Unary = unary("si", _part("sici", 0), lambda y, x: _safe_div(sin(x), x, 1))
ci: Unary = unary("ci", _nan_below_zero(_part("sici", 1)), lambda y, x: div(cos(x), x))


shi: Unary = unary("shi", _part("shichi", 0), lambda y, x: _safe_div(sinh(x), x, 1))
chi: Unary = unary("chi", _nan_below_zero(_part("shichi", 1)), lambda y, x: div(cosh(x), x))


def _spence_slope(y: Node, x: Node) -> Node:
    """log(x) / (1 - x), by its series about 1."""
    d = sub(x, number(1, x))
    near = lt(abs_(d), number(1e-2, x))
    h = where(near, d, number(0, x))
    series = number(0, x)
    for k in range(9, 0, -1):
        series = add(number((-1) ** k / k, x), mul(h, series))
    safe = where(near, number(2, x), x)
    return where(near, series, div(log(safe), minus_from(1, safe)))


spence: Unary = unary("spence", special("spence"), _spence_slope)
fresnel_s: Unary = unary(
    "fresnel_s", _part("fresnel", 0), lambda y, x: sin(times(_square(x), math.pi / 2))
)
fresnel_c: Unary = unary(
    "fresnel_c", _part("fresnel", 1), lambda y, x: cos(times(_square(x), math.pi / 2))
)

# -- Bessel functions of orders 0 and 1 ------------------------------------------------------------

j0: Unary = unary("j0", special("j0"), lambda y, x: neg(j1(x)))
j1: Unary = unary("j1", special("j1"), lambda y, x: sub(j0(x), _safe_div(y, x, 0.5)))
y0: Unary = unary("y0", special("y0"), lambda y, x: neg(y1(x)))
y1: Unary = unary("y1", special("y1"), lambda y, x: sub(y0(x), div(y, x)))
i0: Unary = unary("i0", special("i0"), lambda y, x: i1(x))
i1: Unary = unary("i1", special("i1"), lambda y, x: sub(i0(x), _safe_div(y, x, 0.5)))
i0e: Unary = unary("i0e", special("i0e"), lambda y, x: sub(i1e(x), mul(sign(x), y)))
i1e: Unary = unary(
    "i1e", special("i1e"), lambda y, x: sub(i0e(x), add(mul(sign(x), y), _safe_div(y, x, 0.5)))
)
k0: Unary = unary("k0", special("k0"), lambda y, x: neg(k1(x)))
k1: Unary = unary("k1", special("k1"), lambda y, x: neg(add(k0(x), div(y, x))))
k0e: Unary = unary("k0e", special("k0e"), lambda y, x: sub(y, k1e(x)))
k1e: Unary = unary("k1e", special("k1e"), lambda y, x: sub(sub(y, k0e(x)), div(y, x)))
