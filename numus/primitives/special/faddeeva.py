"""Faddeeva's function by its parts, Owen's T."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from numus.graph import Array, Node
from numus.primitives.elementwise import add, div, erf, exp, mul, neg, sub
from numus.primitives.references import special
from numus.primitives.special.tables import nary, plus, times


def _part(imaginary: bool) -> Callable[..., Array]:
    def reference(x: Array, y: Array) -> Array:
        w = special("wofz")(x + 1j * np.asarray(y))
        return np.asarray(w.imag if imaginary else w.real)

    return reference


def _slope(u: Node, v: Node, x: Node, y: Node) -> tuple[Node, Node]:
    """The parts of w' = -2 z w + 2 i / sqrt(pi)."""
    real = times(sub(mul(y, v), mul(x, u)), 2)
    imaginary = plus(times(add(mul(x, v), mul(y, u)), -2), 2 / math.sqrt(math.pi))
    return real, imaginary


def _real_partials(u: Node, x: Node, y: Node) -> tuple[Node, Node]:
    real, imaginary = _slope(u, wofz_imag(x, y), x, y)
    return real, neg(imaginary)


def _imag_partials(v: Node, x: Node, y: Node) -> tuple[Node, Node]:
    real, imaginary = _slope(wofz_real(x, y), v, x, y)
    return imaginary, real


wofz_real = nary("wofz_real", _part(False), _real_partials)
wofz_imag = nary("wofz_imag", _part(True), _imag_partials)


def _owen_partials(y: Node, h: Node, a: Node) -> tuple[Node, Node]:
    peak = exp(times(mul(h, h), -0.5))
    by_h = times(mul(peak, erf(times(mul(h, a), math.sqrt(0.5)))), -0.5 / math.sqrt(2 * math.pi))
    square = mul(a, a)
    rest = exp(times(mul(mul(h, h), square), -0.5))
    by_a = times(div(mul(peak, rest), plus(square, 1)), 0.5 / math.pi)
    return by_h, by_a


owens_t = nary("owens_t", special("owens_t"), _owen_partials)
