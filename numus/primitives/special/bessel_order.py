"""Bessel functions of any order; derivatives by the argument come from the next order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from numus.graph import Array, Node
from numus.primitives.elementwise import (
    Unary,
    abs_,
    add,
    div,
    eq,
    maximum,
    mul,
    sign,
    sqrt,
    sub,
    unary,
    where,
)
from numus.primitives.references import special
from numus.primitives.special.tables import nary, number, plus, times

_ORDER = {0: "v"}
_WHOLE_ORDER = {0: "n"}


def _over(y: Node, nu: Node, x: Node, at_zero: Node) -> Node:
    """nu / x y; where x is 0, its limit: that of order 1 or -1 is given, others are 0."""
    zero = eq(x, number(0, x))
    limit = where(eq(abs_(nu), number(1, nu)), at_zero, number(0, x))
    return where(zero, limit, mul(div(nu, where(zero, number(1, x), x)), y))


def _half(nu: Node) -> Node:
    return number(0.5, nu)


jv: Callable[..., Node] = nary(
    "jv",
    special("jv"),
    lambda y, nu, x: (None, sub(_over(y, nu, x, _half(nu)), jv(plus(nu, 1), x))),
    _ORDER,
)
yv: Callable[..., Node] = nary(
    "yv",
    special("yv"),
    lambda y, nu, x: (None, sub(mul(div(nu, x), y), yv(plus(nu, 1), x))),
    _ORDER,
)
iv: Callable[..., Node] = nary(
    "iv",
    special("iv"),
    lambda y, nu, x: (None, add(_over(y, nu, x, times(nu, 0.5)), iv(plus(nu, 1), x))),
    _ORDER,
)
kv: Callable[..., Node] = nary(
    "kv",
    special("kv"),
    lambda y, nu, x: (None, sub(mul(div(nu, x), y), kv(plus(nu, 1), x))),
    _ORDER,
)
ive: Callable[..., Node] = nary(
    "ive",
    special("ive"),
    lambda y, nu, x: (
        None,
        sub(add(_over(y, nu, x, times(nu, 0.5)), ive(plus(nu, 1), x)), mul(sign(x), y)),
    ),
    _ORDER,
)
kve: Callable[..., Node] = nary(
    "kve",
    special("kve"),
    lambda y, nu, x: (None, sub(add(mul(div(nu, x), y), y), kve(plus(nu, 1), x))),
    _ORDER,
)


def _whole(name: str) -> Callable[..., Array]:
    """A function of scipy.special that takes whole orders."""

    def reference(n: Array, x: Array) -> Array:
        n, x = np.broadcast_arrays(n, x)
        wrong = (n < 0) | (n != np.floor(n))
        return np.where(wrong, np.nan, special(name)(np.where(wrong, 0, n).astype(np.int64), x))

    return reference


def _third(n: Node) -> Node:
    return number(1 / 3, n)


spherical_jn: Callable[..., Node] = nary(
    "spherical_jn",
    _whole("spherical_jn"),
    lambda y, n, x: (None, sub(_over(y, n, x, _third(n)), spherical_jn(plus(n, 1), x))),
    _WHOLE_ORDER,
)
spherical_yn: Callable[..., Node] = nary(
    "spherical_yn",
    _whole("spherical_yn"),
    lambda y, n, x: (None, sub(mul(div(n, x), y), spherical_yn(plus(n, 1), x))),
    _WHOLE_ORDER,
)
spherical_in: Callable[..., Node] = nary(
    "spherical_in",
    _whole("spherical_in"),
    lambda y, n, x: (None, add(_over(y, n, x, _third(n)), spherical_in(plus(n, 1), x))),
    _WHOLE_ORDER,
)
spherical_kn: Callable[..., Node] = nary(
    "spherical_kn",
    _whole("spherical_kn"),
    lambda y, n, x: (None, sub(mul(div(n, x), y), spherical_kn(plus(n, 1), x))),
    _WHOLE_ORDER,
)


def _struve_slope(y: Node, v: Node, x: Node) -> tuple[None, Node]:
    return None, sub(struve(plus(v, -1), x), _over(y, v, x, number(0, x)))


struve: Callable[..., Node] = nary("struve", special("struve"), _struve_slope, _ORDER)

# -- Airy functions -------------------------------------------------------------------------------


def _part(name: str, index: int) -> Callable[..., Array]:
    """One of the four results of SciPy's airy, or airye."""

    def reference(x: Array) -> Array:
        out: Array = special(name)(x)[index]
        return out

    return reference


airy_ai: Unary = unary("airy_ai", _part("airy", 0), lambda y, x: airy_ai_slope(x))
airy_ai_slope: Unary = unary("airy_ai_slope", _part("airy", 1), lambda y, x: mul(x, airy_ai(x)))
airy_bi: Unary = unary("airy_bi", _part("airy", 2), lambda y, x: airy_bi_slope(x))
airy_bi_slope: Unary = unary("airy_bi_slope", _part("airy", 3), lambda y, x: mul(x, airy_bi(x)))


def _root(x: Node) -> Node:
    """The slope of zeta: sqrt(x), and 0 below 0."""
    return sqrt(maximum(x, number(0, x)))


airye_ai: Unary = unary(
    "airye_ai", _part("airye", 0), lambda y, x: add(airye_ai_slope(x), mul(_root(x), y))
)
airye_ai_slope: Unary = unary(
    "airye_ai_slope",
    _part("airye", 1),
    lambda y, x: add(mul(x, airye_ai(x)), mul(_root(x), y)),
)
airye_bi: Unary = unary(
    "airye_bi", _part("airye", 2), lambda y, x: sub(airye_bi_slope(x), mul(_root(x), y))
)
airye_bi_slope: Unary = unary(
    "airye_bi_slope",
    _part("airye", 3),
    lambda y, x: sub(mul(x, airye_bi(x)), mul(_root(x), y)),
)
