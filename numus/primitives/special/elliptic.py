"""Elliptic integrals and Lambert's W."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from numus.graph import Array, Node
from numus.primitives.elementwise import (
    Unary,
    add,
    div,
    exp,
    mul,
    neg,
    rint,
    rsqrt,
    sin,
    sqrt,
    sub,
    unary,
)
from numus.primitives.references import special
from numus.primitives.special.tables import minus_from, nary, number, plus, times


def _unknown(x: Node) -> Node:
    return number(math.nan, x)


def _of(x: Node, value: float) -> Node:
    """A number as an operand beside x."""
    return add(times(x, 0), number(value, x))


elliprd: Callable[..., Node] = nary(
    "elliprd", special("elliprd"), lambda y, a, b, c: (_unknown(a), _unknown(b), _unknown(c))
)
elliprf: Callable[..., Node] = nary(
    "elliprf",
    special("elliprf"),
    lambda y, a, b, c: tuple(
        times(elliprd(*others), -1 / 6) for others in ((b, c, a), (a, c, b), (a, b, c))
    ),
)
elliprj: Callable[..., Node] = nary(
    "elliprj", special("elliprj"), lambda y, *xs: tuple(_unknown(x) for x in xs)
)


def _k_slope(m: Node) -> Node:
    """dK/dm."""
    return times(elliprd(_of(m, 0), _of(m, 1), minus_from(1, m)), 1 / 6)


def _e_slope(m: Node) -> Node:
    """dE/dm."""
    return times(elliprd(_of(m, 0), minus_from(1, m), _of(m, 1)), -1 / 6)


ellipk: Unary = unary("ellipk", special("ellipk"), lambda y, m: _k_slope(m))
ellipkm1: Unary = unary(
    "ellipkm1", special("ellipkm1"), lambda y, p: neg(_k_slope(minus_from(1, p)))
)
ellipe: Unary = unary("ellipe", special("ellipe"), lambda y, m: _e_slope(m))


def _reduced(phi: Node) -> tuple[Node, Node]:
    """Whole half turns, and the sine of the rest."""
    turns = rint(times(phi, 1 / math.pi))
    return turns, sin(sub(phi, times(turns, math.pi)))


def _f_partials(y: Node, phi: Node, m: Node) -> tuple[Node, Node]:
    turns, s = _reduced(phi)
    square = mul(s, s)
    rest = minus_from(1, mul(m, square))
    third = elliprd(minus_from(1, square), _of(rest, 1), rest)
    by_m = times(mul(mul(square, s), third), 1 / 6)
    return rsqrt(rest), add(by_m, mul(times(turns, 2), _k_slope(m)))


def _e_partials(y: Node, phi: Node, m: Node) -> tuple[Node, Node]:
    turns, s = _reduced(phi)
    square = mul(s, s)
    rest = minus_from(1, mul(m, square))
    third = elliprd(minus_from(1, square), rest, _of(rest, 1))
    by_m = times(mul(mul(square, s), third), -1 / 6)
    return sqrt(rest), add(by_m, mul(times(turns, 2), _e_slope(m)))


ellipkinc = nary("ellipkinc", special("ellipkinc"), _f_partials)
ellipeinc = nary("ellipeinc", special("ellipeinc"), _e_partials)


def _lambert(branch: int) -> Callable[..., Array]:
    def reference(x: Array) -> Array:
        w = special("lambertw")(x, branch)
        return np.where(np.abs(w.imag) > 1e-6 * np.abs(w.real), np.nan, w.real)

    return reference


def _lambert_slope(y: Node, x: Node) -> Node:
    return div(exp(neg(y)), plus(y, 1))


lambertw_0: Unary = unary("lambertw_0", _lambert(0), _lambert_slope)
lambertw_lower: Unary = unary("lambertw_lower", _lambert(-1), _lambert_slope)
