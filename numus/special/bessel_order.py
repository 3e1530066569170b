"""Bessel functions of any real order, and spherical ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

from numus.functions.elementwise.output import Binary
from numus.graph import Node
from numus.primitives.special import bessel_order as bo
from numus.special._define import apply, number
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "airy", "airye", "iv", "ive", "jn", "jv", "jve", "kn", "kv", "kve", "spherical_in",
    "spherical_jn", "spherical_kn", "spherical_yn", "struve", "yn", "yv", "yve",
]  # fmt: skip


class Spherical(Protocol):
    def __call__(self, n: ArrayLike, z: ArrayLike, /, derivative: bool = False) -> Tensor: ...


def _function(name: str, build: Callable[[Node, Node], Node], about: str) -> Binary:
    def function(v: ArrayLike, x: ArrayLike, /, *, out: Tensor | None = None) -> Tensor:
        result: Tensor = apply(name, build, v, x, out=out, fixed=("v",))
        return result

    function.__name__ = function.__qualname__ = name
    function.__doc__ = about
    return function


iv = _function("iv", bo.iv, "The modified Bessel function of the first kind of real order v.")
ive = _function("ive", bo.ive, "exp(-|x|) iv(v, x).")
kv = kn = _function(
    "kv",
    bo.kv,
    """The modified Bessel function of the second kind of real order v.

    >>> nm.special.kv(2.5, nm.asarray([0.5, 2.0]))
    tensor([20.425903  ,  0.38979763])
    """,
)
kve = _function("kve", bo.kve, "exp(x) kv(v, x).")
jv = jn = jve = _function(
    "jv",
    bo.jv,
    """The Bessel function of the first kind of real order v.

    Differentiable by x; its derivative by v is not known and raises an error. Of negative x it is
    real for whole orders, and NaN for others.

    >>> nm.special.jv(0.5, nm.asarray([0.0, 1.0, 100.0]))
    tensor([ 0.        ,  0.6713967 , -0.04040213])
    """,
)
yv = yn = yve = _function("yv", bo.yv, "The Bessel function of the second kind of real order v.")
struve = _function(
    "struve",
    bo.struve,
    """Struve's function of real order v; of negative x it is real for whole orders.

    >>> nm.special.struve(0.0, nm.asarray([0.0, 1.0]))
    tensor([0.       , 0.5686566])
    """,
)


def airy(x: ArrayLike, /) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Airy's functions and their derivatives: Ai, Ai', Bi, Bi'.

    >>> ai, slope, bi, bi_slope = nm.special.airy(nm.asarray(1.0))
    >>> ai, bi
    (tensor(0.13529241), tensor(1.2074237))
    """
    parts = (bo.airy_ai, bo.airy_ai_slope, bo.airy_bi, bo.airy_bi_slope)
    result: tuple[Tensor, Tensor, Tensor, Tensor] = apply(
        "airy", lambda n: tuple(f(n) for f in parts), x
    )
    return result


def airye(x: ArrayLike, /) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """exp(zeta) Ai, exp(zeta) Ai', exp(-zeta) Bi, exp(-zeta) Bi', zeta = 2/3 x**(3/2).

    Of negative x, the first two are complex, here NaN, and the others are those of `airy`.
    """
    parts = (bo.airye_ai, bo.airye_ai_slope, bo.airye_bi, bo.airye_bi_slope)
    result: tuple[Tensor, Tensor, Tensor, Tensor] = apply(
        "airye", lambda n: tuple(f(n) for f in parts), x
    )
    return result


def _spherical(name: str, build: Callable[[Node, Node], Node], about: str) -> Spherical:
    def function(n: ArrayLike, z: ArrayLike, /, derivative: bool = False) -> Tensor:
        def chosen(n: Node, z: Node) -> Node:
            value = build(n, z)
            if not derivative:
                return value
            found: Any = value.prim.jvp(value, (None, number(1, z)))
            return cast(Node, found)

        result: Tensor = apply(name, chosen, n, z, fixed=("n",))
        return result

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""{about}

    Args:
        n: whole orders, 0 or more.
        derivative: whether to give the derivative by z instead.
    """
    return function


spherical_jn = _spherical(
    "spherical_jn", bo.spherical_jn, "The spherical Bessel function of the first kind."
)
spherical_yn = _spherical(
    "spherical_yn", bo.spherical_yn, "The spherical Bessel function of the second kind."
)
spherical_in = _spherical(
    "spherical_in", bo.spherical_in, "The modified spherical Bessel function of the first kind."
)
spherical_kn = _spherical(
    "spherical_kn", bo.spherical_kn, "The modified spherical Bessel function of the second kind."
)
