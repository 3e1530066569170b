"""Incomplete gamma and beta functions, their inverses, zeta and E_n."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from numus.graph import Array, Node
from numus.primitives.elementwise import (
    add,
    digamma,
    div,
    eq,
    exp,
    lgamma,
    log,
    log1p,
    mul,
    neg,
    sub,
    where,
)
from numus.primitives.references import special
from numus.primitives.special.tables import nary, number, plus


def _unknown(x: Node) -> Node:
    """A derivative that has no formula here: NaN says so, where it is used."""
    return number(math.nan, x)


def _gamma_density(a: Node, x: Node) -> Node:
    """The derivative of P(a, x) by x."""
    return exp(sub(sub(mul(plus(a, -1), log(x)), x), lgamma(a)))


def _beta_density(a: Node, b: Node, x: Node) -> Node:
    """The derivative of I_x(a, b) by x."""
    log_beta = sub(add(lgamma(a), lgamma(b)), lgamma(add(a, b)))
    powers = add(mul(plus(a, -1), log(x)), mul(plus(b, -1), log1p(neg(x))))
    return exp(sub(powers, log_beta))


def _difference(name: str, which: int) -> Callable[..., Array]:
    """Central differences (Richardson) of a function of scipy.special: the reference of a slope."""

    def reference(*arrays: Array) -> Array:
        wide = [np.asarray(a, np.float64) for a in arrays]
        f, at = special(name), wide[which]

        def slope(h: Array) -> Array:
            high, low = list(wide), list(wide)
            high[which], low[which] = at + h, at - h
            return (f(*high) - f(*low)) / (2 * h)

        h = np.maximum(np.abs(at), 1e-3) * 4e-3
        a, b, c = slope(h), slope(h / 2), slope(h / 4)
        first, second = (4 * b - a) / 3, (4 * c - b) / 3
        out: Array = (16 * second - first) / 15
        return out

    return reference


def _slope_partials(y: Node, a: Node, x: Node) -> tuple[Node, Node]:
    return _unknown(a), mul(_gamma_density(a, x), sub(log(x), digamma(a)))


gammainc_by_a = nary("gammainc_by_a", _difference("gammainc", 0), _slope_partials)
gammainc = nary(
    "gammainc",
    special("gammainc"),
    lambda y, a, x: (gammainc_by_a(a, x) if a.tracked else None, _gamma_density(a, x)),
)
gammaincc = nary(
    "gammaincc",
    special("gammaincc"),
    lambda y, a, x: (neg(gammainc_by_a(a, x)) if a.tracked else None, neg(_gamma_density(a, x))),
)


def _gammaincinv_partials(y: Node, a: Node, p: Node) -> tuple[Node, Node]:
    density = _gamma_density(a, y)
    return neg(div(gammainc_by_a(a, y), density)), div(number(1, p), density)


gammaincinv = nary("gammaincinv", special("gammaincinv"), _gammaincinv_partials)


def _beta_slope_partials(which: int) -> Callable[..., tuple[Node, Node, Node]]:
    def partials(y: Node, a: Node, b: Node, x: Node) -> tuple[Node, Node, Node]:
        own = sub(log(x), digamma(a)) if which == 0 else sub(log1p(neg(x)), digamma(b))
        by_x = mul(_beta_density(a, b, x), add(own, digamma(add(a, b))))
        return _unknown(a), _unknown(b), by_x

    return partials


betainc_by_a = nary("betainc_by_a", _difference("betainc", 0), _beta_slope_partials(0))
betainc_by_b = nary("betainc_by_b", _difference("betainc", 1), _beta_slope_partials(1))
betainc = nary(
    "betainc",
    special("betainc"),
    lambda y, a, b, x: (
        betainc_by_a(a, b, x) if a.tracked else None,
        betainc_by_b(a, b, x) if b.tracked else None,
        _beta_density(a, b, x),
    ),
)


def _betaincinv_partials(y: Node, a: Node, b: Node, p: Node) -> tuple[Node, Node, Node]:
    density = _beta_density(a, b, y)
    by_a, by_b = betainc_by_a(a, b, y), betainc_by_b(a, b, y)
    return neg(div(by_a, density)), neg(div(by_b, density)), div(number(1, p), density)


betaincinv = nary("betaincinv", special("betaincinv"), _betaincinv_partials)

# -- zeta and E_n ---------------------------------------------------------------------------------

zeta: Callable[..., Node] = nary(
    "zeta",
    special("zeta"),
    lambda y, s, q: (_unknown(s) if s.tracked else None, neg(mul(s, zeta(plus(s, 1), q)))),
)


def _expn_slope(y: Node, n: Node, x: Node) -> tuple[None, Node]:
    """-E_(n-1); that of E_0 = exp(-x) / x is -(1 + 1/x) E_0."""
    first = eq(n, number(0, n))
    before = expn(plus(where(first, number(1, n), n), -1), x)
    zeroth = mul(plus(div(number(1, x), x), 1), div(exp(neg(x)), x))
    return None, neg(where(first, zeroth, before))


expn = nary("expn", special("expn"), _expn_slope)
betaln = nary(
    "betaln",
    special("betaln"),
    lambda y, a, b: (
        sub(digamma(a), digamma(add(a, b))),
        sub(digamma(b), digamma(add(a, b))),
    ),
)
