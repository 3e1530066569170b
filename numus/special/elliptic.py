"""Elliptic integrals and functions."""

from __future__ import annotations

from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.special import elliptic as el
from numus.primitives.special.tables import minus_from, times
from numus.special._define import apply, number
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "ellipe", "ellipeinc", "ellipj", "ellipk", "ellipkinc", "ellipkm1", "elliprc", "elliprd",
    "elliprf", "elliprj",
]  # fmt: skip


def ellipk(m: ArrayLike, /) -> Tensor:
    """The complete elliptic integral of the first kind, of the parameter m = k**2.

    >>> nm.special.ellipk(0.5)
    tensor(1.8540746)
    """
    result: Tensor = apply("ellipk", el.ellipk, m)
    return result


def ellipkm1(p: ArrayLike, /) -> Tensor:
    """ellipk(1 - p), accurate near p = 0."""
    result: Tensor = apply("ellipkm1", el.ellipkm1, p)
    return result


def ellipe(m: ArrayLike, /) -> Tensor:
    """The complete elliptic integral of the second kind."""
    result: Tensor = apply("ellipe", el.ellipe, m)
    return result


def ellipkinc(phi: ArrayLike, m: ArrayLike, /) -> Tensor:
    """The incomplete elliptic integral of the first kind."""
    result: Tensor = apply("ellipkinc", el.ellipkinc, phi, m)
    return result


def ellipeinc(phi: ArrayLike, m: ArrayLike, /) -> Tensor:
    """The incomplete elliptic integral of the second kind."""
    result: Tensor = apply("ellipeinc", el.ellipeinc, phi, m)
    return result


def elliprf(x: ArrayLike, y: ArrayLike, z: ArrayLike, /) -> Tensor:
    """Carlson's symmetric elliptic integral of the first kind."""
    result: Tensor = apply("elliprf", el.elliprf, x, y, z)
    return result


def elliprd(x: ArrayLike, y: ArrayLike, z: ArrayLike, /) -> Tensor:
    """Carlson's symmetric elliptic integral of the second kind; its derivatives are NaN."""
    result: Tensor = apply("elliprd", el.elliprd, x, y, z)
    return result


def elliprj(x: ArrayLike, y: ArrayLike, z: ArrayLike, p: ArrayLike, /) -> Tensor:
    """Carlson's elliptic integral of the third kind for p > 0; its derivatives are NaN."""
    result: Tensor = apply("elliprj", el.elliprj, x, y, z, p)
    return result


def elliprc(x: ArrayLike, y: ArrayLike, /) -> Tensor:
    """Carlson's degenerate elliptic integral R_F(x, y, y); its principal value for y < 0.

    >>> nm.special.elliprc(0.0, 1.0)
    tensor(1.5707966)
    """

    def build(x: Node, y: Node) -> Node:
        below = ew.lt(y, number(0, y))
        p = ew.where(below, ew.sub(x, y), ew.add(x, number(0, y)))
        q = ew.where(below, ew.neg(y), y)
        safe = ew.where(below, x, number(1, x))
        factor = ew.where(below, ew.sqrt(ew.div(safe, p)), number(1, x))
        return ew.mul(factor, el.elliprf(p, q, q))

    result: Tensor = apply("elliprc", build, x, y)
    return result


def ellipj(u: ArrayLike, m: ArrayLike, /) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Jacobi's elliptic functions sn, cn, dn and the amplitude, for 0 <= m <= 1.

    By the arithmetic-geometric mean (Landen's transformation).

    >>> sn, cn, dn, am = nm.special.ellipj(0.5, 0.0)
    >>> sn
    tensor(0.47942555)
    """

    def build(u: Node, m: Node) -> tuple[Node, ...]:
        one, half = number(1, m), number(0.5, m)
        tiny = number(2.0**-24 if m.dtype.itemsize == 4 else 2.0**-53, m)
        rest = ew.maximum(minus_from(1, m), tiny)  # at 1, tanh and sech to the last digit
        a, b = ew.add(ew.mul(m, number(0, m)), one), ew.sqrt(rest)
        ratios = []
        steps = 6 if m.dtype.itemsize == 4 else 7
        for _ in range(steps):
            c = ew.mul(ew.sub(a, b), half)
            a, b = ew.mul(ew.add(a, b), half), ew.sqrt(ew.mul(a, b))
            ratios.append(ew.div(c, a))
        phi = times(ew.mul(a, u), 2.0**steps)
        for ratio in reversed(ratios):
            phi = ew.mul(ew.add(phi, ew.asin(ew.mul(ratio, ew.sin(phi)))), half)
        sn, cn = ew.sin(phi), ew.cos(phi)
        dn = ew.sqrt(ew.add(ew.mul(cn, cn), ew.mul(minus_from(1, m), ew.mul(sn, sn))))
        return sn, cn, dn, phi

    result: tuple[Tensor, Tensor, Tensor, Tensor] = apply("ellipj", build, u, m)
    return result
