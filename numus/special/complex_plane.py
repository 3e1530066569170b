"""Functions of complex numbers: Faddeeva's, with Voigt's profile; Owen's T."""

from __future__ import annotations

import math

from numus.functions._base import common, to_float, wrap
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.special import faddeeva as fa
from numus.primitives.special.tables import times
from numus.special._define import apply, number
from numus.tensor import ArrayLike, Tensor

__all__ = ["owens_t", "voigt_profile", "wofz"]


def complex_parts(op: str, z: ArrayLike) -> tuple[Node, Node]:
    """The real and imaginary parts of an operand, which may be real."""
    node = to_float(common(f"special.{op}", z)[0])
    if node.dtype.is_complex:
        return ew.real(node), ew.imag(node)
    return node, number(0, node)


def wofz(z: ArrayLike, /) -> Tensor:
    """Faddeeva's function exp(-z**2) erfc(-i z), of complex numbers.

    >>> nm.special.wofz(nm.asarray([1j, 1.0 + 0j]))
    tensor([0.4275836 +0.j       , 0.36787942+0.6071578j])
    """
    x, y = complex_parts("wofz", z)
    return wrap(ew.complex_(fa.wofz_real(x, y), fa.wofz_imag(x, y)))


def _voigt(x: Node, sigma: Node, gamma: Node) -> Node:
    zero = number(0, x)
    narrow = ew.eq(sigma, zero)
    sigma_ = ew.where(narrow, number(1, x), sigma)
    scale = ew.div(number(math.sqrt(0.5), x), sigma_)
    value = fa.wofz_real(ew.mul(x, scale), ew.mul(gamma, scale))
    value = ew.mul(value, ew.mul(scale, number(1 / math.sqrt(math.pi), x)))
    # without a normal part: Cauchy's density, at last a point
    point = ew.eq(gamma, zero)
    gamma_ = ew.where(point, number(1, x), gamma)
    ratio = ew.div(x, gamma_)
    cauchy = ew.div(number(1 / math.pi, x), ew.mul(gamma_, _plus_one(ew.mul(ratio, ratio))))
    mass = ew.where(ew.eq(x, zero), number(math.inf, x), times(x, 0))
    return ew.where(narrow, ew.where(point, mass, cauchy), value)


def _plus_one(x: Node) -> Node:
    return ew.add(x, number(1, x))


def voigt_profile(x: ArrayLike, sigma: ArrayLike, gamma: ArrayLike, /) -> Tensor:
    """Voigt's profile: the normal density of deviation sigma, convolved with Cauchy's of gamma.

    >>> nm.special.voigt_profile(0.0, 1.0, 0.0)
    tensor(0.3989423)
    """
    result: Tensor = apply("voigt_profile", _voigt, x, sigma, gamma)
    return result


def owens_t(h: ArrayLike, a: ArrayLike, /) -> Tensor:
    """Owen's T: the probability of X > h and 0 < Y < a X of independent standard normal X and Y.

    >>> nm.special.owens_t(1.0, 2.0)
    tensor(0.07846819)
    """
    result: Tensor = apply("owens_t", fa.owens_t, h, a)
    return result
