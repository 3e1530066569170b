"""Functions of complex numbers: Faddeeva's with its kin, log gamma, Lambert's W."""

from __future__ import annotations

import math

from numus.functions._base import common, to_float, wrap
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.special import complex_plane as cp
from numus.primitives.special import elliptic as el
from numus.primitives.special import faddeeva as fa
from numus.primitives.special.tables import times
from numus.shapes import as_int
from numus.special._define import apply, number
from numus.tensor import ArrayLike, Tensor

__all__ = ["lambertw", "loggamma", "owens_t", "voigt_profile", "wofz"]


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


def _real_loggamma(x: Node) -> Node:
    below = ew.lt(x, number(0, x))
    value = ew.lgamma(ew.where(below, number(1, x), x))
    return ew.where(below, number(math.nan, x), value)


def loggamma(z: ArrayLike, /) -> Tensor:
    """The logarithm of gamma: of complex numbers the branch that is real on the positive axis.

    Of real numbers it is `lgamma`, and NaN below 0. Its second derivative by complex numbers is not
    known here.

    >>> nm.special.loggamma(nm.asarray([3.0 + 0j, 1j]))
    tensor([ 0.69314766+0.j       , -0.6509237 -1.8724366j])
    """
    if not to_float(common("special.loggamma", z)[0]).dtype.is_complex:
        result: Tensor = apply("loggamma", _real_loggamma, z)
        return result
    x, y = complex_parts("loggamma", z)
    return wrap(ew.complex_(cp.loggamma_real(x, y), cp.loggamma_imag(x, y)))


def lambertw(z: ArrayLike, /, k: int = 0) -> Tensor:
    """Lambert's W: w with w exp(w) = z.

    Of real numbers and k = 0 or -1 it is real, and NaN where w is not: branch 0 is for z >= -1/e,
    branch -1 for -1/e <= z < 0. Of complex numbers, and on other branches, it is complex.

    >>> nm.special.lambertw(nm.e)
    tensor(1.)
    >>> nm.special.lambertw(nm.asarray(-1.0 + 0j))
    tensor(-0.31813145+1.3372357j)
    """
    k = as_int(k, "k", "special.lambertw")
    node = to_float(common("special.lambertw", z)[0])
    if k in (0, -1) and not node.dtype.is_complex:
        branch = el.lambertw_0 if k == 0 else el.lambertw_lower
        result: Tensor = apply("lambertw", branch, z)
        return result
    x, y = complex_parts("lambertw", z)
    branch_number = number(k, x)
    parts = (f(x, y, branch_number) for f in (cp.lambertw_real, cp.lambertw_imag))
    return wrap(ew.complex_(*parts))


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
