"""Orthogonal polynomials by their recurrences; Legendre functions, spherical harmonics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from numus.functions._base import wrap
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.special.tables import minus_from, plus, times
from numus.shapes import as_int
from numus.special._define import apply, number, operands
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "assoc_legendre_p", "eval_chebyt", "eval_chebyu", "eval_gegenbauer", "eval_genlaguerre",
    "eval_hermite", "eval_hermitenorm", "eval_jacobi", "eval_laguerre", "eval_legendre",
    "legendre_p", "sph_harm", "sph_harm_y",
]  # fmt: skip

Step = Callable[[int, Node, Node], Node]


def _degree(op: str, n: Any, name: str = "n") -> int:
    degree = as_int(n, name, f"special.{op}")
    if degree < 0:
        raise ValueError(f"special.{op}: {name}={n} must not be negative")
    return degree


def _recurrence(n: int, x: Node, first: Node, step: Step) -> Node:
    """p_n of p_0 = 1, p_1 = first and p_(k+1) = step(k, p_k, p_(k-1))."""
    before, now = ew.add(times(x, 0), number(1, x)), first
    if n == 0:
        return before
    for k in range(1, n):
        before, now = now, step(k, now, before)
    return now


def _legendre(n: int, x: Node) -> Node:
    def step(k: int, p: Node, q: Node) -> Node:
        # p + the change, which is small near 1: (k + 1) dp = k (p - q) + (2 k + 1) (x - 1) p
        slope = ew.mul(ew.mul(plus(x, -1), p), number((2 * k + 1) / (k + 1), x))
        return ew.add(p, ew.add(times(ew.sub(p, q), k / (k + 1)), slope))

    return _recurrence(n, x, x, step)


def eval_legendre(n: int, x: ArrayLike, /) -> Tensor:
    """Legendre's polynomial P_n(x).

    >>> nm.special.eval_legendre(2, nm.asarray([0.0, 1.0]))
    tensor([-0.5,  1. ])
    """
    degree = _degree("eval_legendre", n)
    result: Tensor = apply("eval_legendre", lambda x: _legendre(degree, x), x)
    return result


legendre_p = eval_legendre


def eval_chebyt(n: int, x: ArrayLike, /) -> Tensor:
    """Chebyshev's polynomial of the first kind T_n(x)."""
    degree = _degree("eval_chebyt", n)

    def build(x: Node) -> Node:
        return _recurrence(degree, x, x, lambda k, p, q: ew.sub(times(ew.mul(x, p), 2), q))

    result: Tensor = apply("eval_chebyt", build, x)
    return result


def eval_chebyu(n: int, x: ArrayLike, /) -> Tensor:
    """Chebyshev's polynomial of the second kind U_n(x)."""
    degree = _degree("eval_chebyu", n)

    def build(x: Node) -> Node:
        return _recurrence(
            degree, x, times(x, 2), lambda k, p, q: ew.sub(times(ew.mul(x, p), 2), q)
        )

    result: Tensor = apply("eval_chebyu", build, x)
    return result


def eval_hermite(n: int, x: ArrayLike, /) -> Tensor:
    """The physicists' Hermite polynomial H_n(x)."""
    degree = _degree("eval_hermite", n)

    def build(x: Node) -> Node:
        return _recurrence(
            *(degree, x, times(x, 2)),
            lambda k, p, q: times(ew.sub(ew.mul(x, p), times(q, k)), 2),
        )

    result: Tensor = apply("eval_hermite", build, x)
    return result


def eval_hermitenorm(n: int, x: ArrayLike, /) -> Tensor:
    """The probabilists' Hermite polynomial He_n(x)."""
    degree = _degree("eval_hermitenorm", n)

    def build(x: Node) -> Node:
        return _recurrence(degree, x, x, lambda k, p, q: ew.sub(ew.mul(x, p), times(q, k)))

    result: Tensor = apply("eval_hermitenorm", build, x)
    return result


def eval_genlaguerre(n: int, alpha: ArrayLike, x: ArrayLike, /) -> Tensor:
    """The generalised Laguerre polynomial of degree n; differentiable by alpha, too."""
    degree = _degree("eval_genlaguerre", n)

    def build(alpha: Node, x: Node) -> Node:
        x, a = ew.add(x, times(alpha, 0)), ew.add(alpha, times(x, 0))

        def step(k: int, p: Node, q: Node) -> Node:
            change = ew.sub(ew.mul(plus(a, k), ew.sub(p, q)), ew.mul(x, p))
            return ew.add(p, times(change, 1 / (k + 1)))

        return _recurrence(degree, x, ew.sub(plus(a, 1), x), step)

    result: Tensor = apply("eval_genlaguerre", build, alpha, x)
    return result


def eval_laguerre(n: int, x: ArrayLike, /) -> Tensor:
    """Laguerre's polynomial of degree n."""
    return eval_genlaguerre(n, 0.0, x)


def eval_gegenbauer(n: int, alpha: ArrayLike, x: ArrayLike, /) -> Tensor:
    """Gegenbauer's (ultraspherical) polynomial of degree n."""
    degree = _degree("eval_gegenbauer", n)

    def build(alpha: Node, x: Node) -> Node:
        x, a = ew.add(x, times(alpha, 0)), ew.add(alpha, times(x, 0))

        def step(k: int, p: Node, q: Node) -> Node:
            up = ew.mul(ew.mul(x, p), times(plus(a, k), 2))
            return times(ew.sub(up, ew.mul(q, plus(times(a, 2), k - 1))), 1 / (k + 1))

        return _recurrence(degree, x, times(ew.mul(a, x), 2), step)

    result: Tensor = apply("eval_gegenbauer", build, alpha, x)
    return result


def eval_jacobi(n: int, alpha: ArrayLike, beta: ArrayLike, x: ArrayLike, /) -> Tensor:
    """Jacobi's polynomial of degree n."""
    degree = _degree("eval_jacobi", n)

    def build(alpha: Node, beta: Node, x: Node) -> Node:
        zero = times(ew.add(ew.add(alpha, beta), x), 0)
        a, b, x = (ew.add(v, zero) for v in (alpha, beta, x))
        total = ew.add(a, b)
        squares = ew.mul(ew.sub(a, b), total)

        def step(k: int, p: Node, q: Node) -> Node:
            c = plus(total, 2 * k)
            left = times(ew.mul(plus(total, k + 1), c), 2 * (k + 1))
            inner = ew.add(ew.mul(ew.mul(plus(c, 2), c), x), squares)
            down = times(ew.mul(ew.mul(plus(a, k), plus(b, k)), plus(c, 2)), 2)
            up = ew.mul(ew.mul(plus(c, 1), inner), p)
            return ew.div(ew.sub(up, ew.mul(down, q)), left)

        first = ew.add(plus(a, 1), times(ew.mul(plus(total, 2), plus(x, -1)), 0.5))
        return _recurrence(degree, x, first, step)

    result: Tensor = apply("eval_jacobi", build, alpha, beta, x)
    return result


def _associated(n: int, m: int, x: Node, scale: float) -> Node:
    """P_n^m(x) times a scale, with the phase of Condon and Shortley, for 0 <= m <= n."""
    root = ew.sqrt(ew.mul(minus_from(1, x), plus(x, 1)))
    start = scale
    for k in range(1, m + 1):
        start *= -(2 * k - 1)
    now, before = ew.add(times(x, 0), number(start, x)), times(x, 0)
    for _ in range(m):
        now = ew.mul(now, root)
    for k in range(m, n):
        up = times(ew.mul(x, now), (2 * k + 1) / (k - m + 1))
        before, now = now, ew.sub(up, times(before, (k + m) / (k - m + 1)))
    return now


def assoc_legendre_p(n: int, m: int, x: ArrayLike, /) -> Tensor:
    """The associated Legendre function P_n^m(x) for |x| <= 1, with Condon and Shortley's phase.

    >>> nm.special.assoc_legendre_p(2, 1, 0.5)
    tensor(-1.299038)
    """
    degree, order = _degree("assoc_legendre_p", n), as_int(m, "m", "special.assoc_legendre_p")
    size = abs(order)
    scale = 1.0
    if order < 0 and size <= degree:
        scale = (-1.0) ** size * math.factorial(degree - size) / math.factorial(degree + size)

    def build(x: Node) -> Node:
        return times(x, 0) if size > degree else _associated(degree, size, x, scale)

    result: Tensor = apply("assoc_legendre_p", build, x)
    return result


def sph_harm_y(n: int, m: int, theta: ArrayLike, phi: ArrayLike, /) -> Tensor:
    """The spherical harmonic of degree n and order m at polar angle theta and azimuth phi; complex.

    >>> nm.special.sph_harm_y(0, 0, 0.0, 0.0)
    tensor(0.2820948+0.j)
    """
    degree, order = _degree("sph_harm_y", n), as_int(m, "m", "special.sph_harm_y")
    polar, around = operands("sph_harm_y", theta, phi)
    size = abs(order)
    if size > degree:
        value = times(ew.add(polar, around), 0)
    else:
        ratio = math.factorial(degree - size) / math.factorial(degree + size)
        scale = math.sqrt((2 * degree + 1) / (4 * math.pi) * ratio)
        scale *= (-1.0) ** size if order < 0 else 1.0
        value = _associated(degree, size, ew.cos(polar), scale)
    angle = times(around, order)
    return wrap(ew.complex_(ew.mul(value, ew.cos(angle)), ew.mul(value, ew.sin(angle))))


def sph_harm(m: int, n: int, theta: ArrayLike, phi: ArrayLike, /) -> Tensor:
    """`sph_harm_y` with the order first, at azimuth theta and polar angle phi: SciPy's older form.

    >>> nm.special.sph_harm(0, 0, 0.0, 0.0)
    tensor(0.2820948+0.j)
    """
    return sph_harm_y(n, m, phi, theta)
