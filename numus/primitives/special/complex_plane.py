"""Functions of a complex variable by their parts, with the equations of Cauchy and Riemann."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from numus.graph import Array, Node
from numus.primitives.elementwise import add, cos, div, exp, mul, neg, sin, sub
from numus.primitives.references import special
from numus.primitives.special.tables import nary, plus

Parts = tuple[Node, Node]


def holomorphic(
    name: str,
    reference: Callable[..., Array],
    slope: Callable[..., Parts] | None,
) -> tuple[Callable[..., Node], Callable[..., Node]]:
    """The primitives of both parts; slope(u, v, x, y) gives the parts of the derivative.

    Operands after x and y are parameters. Without a slope, derivatives are refused.
    """
    fixed = {0: "z", 1: "z"} if slope is None else None

    def real_partials(u: Node, *xs: Node) -> tuple[Node | None, ...]:
        if slope is None:
            return (None,) * len(xs)
        a, b = slope(u, imaginary(*xs), *xs[:2])
        return (a, neg(b), *(None,) * (len(xs) - 2))

    def imaginary_partials(v: Node, *xs: Node) -> tuple[Node | None, ...]:
        if slope is None:
            return (None,) * len(xs)
        a, b = slope(real(*xs), v, *xs[:2])
        return (b, a, *(None,) * (len(xs) - 2))

    def complex_values(x: Array, y: Array, *more: Array) -> Array:
        z = np.asarray(x).astype(np.complex128)
        z, y = (np.array(a) for a in np.broadcast_arrays(z, y))
        z.imag = y  # x + 1j * y would lose infinities and signs of zeros
        return reference(z, *more)

    real = nary(f"{name}_real", lambda *a: complex_values(*a).real, real_partials, fixed)
    imaginary = nary(f"{name}_imag", lambda *a: complex_values(*a).imag, imaginary_partials, fixed)
    return real, imaginary


slope_real, slope_imag = holomorphic("loggamma_slope", special("digamma"), None)
loggamma_real, loggamma_imag = holomorphic(
    "loggamma", special("loggamma"), lambda u, v, x, y: (slope_real(x, y), slope_imag(x, y))
)


def _lambert_slope(u: Node, v: Node, x: Node, y: Node) -> Parts:
    """exp(-w) / (w + 1)."""
    size = exp(neg(u))
    p, q = mul(size, cos(v)), neg(mul(size, sin(v)))
    a = plus(u, 1)
    below = add(mul(a, a), mul(v, v))
    return div(add(mul(p, a), mul(q, v)), below), div(sub(mul(q, a), mul(p, v)), below)


lambertw_real, lambertw_imag = holomorphic(
    "lambertw", lambda z, k: special("lambertw")(z, np.asarray(k).astype(np.int64)), _lambert_slope
)
