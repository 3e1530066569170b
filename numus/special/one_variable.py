"""Special functions of one real variable: error, gamma, exponential integrals, Bessel 0 and 1."""

from __future__ import annotations

from collections.abc import Callable

from numus.functions.elementwise.output import Unary
from numus.functions.elementwise.transcendental import digamma, erf, erfc, erfinv, lgamma, ndtr
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.special import one_operand as so
from numus.special._define import apply
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "chi", "ci", "dawsn", "digamma", "erf", "erfc", "erfcinv", "erfcx", "erfi", "erfinv", "exp1",
    "expi", "fresnel", "gamma", "gammaln", "i0", "i0e", "i1", "i1e", "j0", "j1", "k0", "k0e", "k1",
    "k1e", "lgamma", "log_ndtr", "ndtr", "ndtri", "psi", "rgamma", "shi", "shichi", "si", "sici",
    "spence", "trigamma", "y0", "y1",
]  # fmt: skip

gammaln, psi = lgamma, digamma


def _function(name: str, build: Callable[[Node], Node], about: str) -> Unary:
    def function(x: ArrayLike, /, *, out: Tensor | None = None) -> Tensor:
        result: Tensor = apply(name, build, x, out=out)
        return result

    function.__name__ = function.__qualname__ = name
    function.__doc__ = about
    return function


erfcx = _function(
    "erfcx",
    so.erfcx,
    """exp(x**2) erfc(x), which stays in range where erfc does not.

    >>> nm.special.erfcx(nm.asarray([0.0, 100.0]))
    tensor([1.        , 0.00564161])
    """,
)
erfi = _function("erfi", so.erfi, "The imaginary error function -i erf(i x).")
dawsn = _function("dawsn", so.dawsn, "Dawson's integral: exp(-x**2) int_0^x exp(t**2) dt.")
erfcinv = _function("erfcinv", so.erfcinv, "The inverse of erfc, on (0, 2).")
ndtri = _function(
    "ndtri",
    so.ndtri,
    """The quantiles of the standard normal distribution: the inverse of ndtr.

    >>> nm.special.ndtri(nm.asarray([0.5, 0.975]))
    tensor([0.       , 1.9599645])
    """,
)
log_ndtr = _function("log_ndtr", so.log_ndtr, "log ndtr(x), also far down the lower tail.")
gamma = _function(
    "gamma",
    so.gamma,
    """The gamma function.

    >>> nm.special.gamma(nm.asarray([0.5, 5.0]))
    tensor([ 1.7724539, 24.       ])
    """,
)
rgamma = _function("rgamma", so.rgamma, "1 / gamma(x): 0 at the poles of gamma.")
trigamma = _function("trigamma", ew.trigamma, "The second derivative of lgamma.")
exp1 = _function("exp1", so.exp1, "The exponential integral E_1; below 0 its real part, -Ei(-x).")
expi = _function("expi", so.expi, "The exponential integral Ei (principal value).")
si = _function("si", so.si, "The sine integral.")
ci = _function("ci", so.ci, "The cosine integral of positive numbers.")
shi = _function("shi", so.shi, "The hyperbolic sine integral.")
chi = _function("chi", so.chi, "The hyperbolic cosine integral of positive numbers.")
spence = _function("spence", so.spence, "Spence's function: the dilogarithm Li_2(1 - x).")
j0 = _function(
    "j0",
    so.j0,
    """The Bessel function of the first kind of order 0.

    >>> nm.special.j0(nm.asarray([0.0, 1.0]))
    tensor([1.       , 0.7651977])
    """,
)
j1 = _function("j1", so.j1, "The Bessel function of the first kind of order 1.")
y0 = _function("y0", so.y0, "The Bessel function of the second kind of order 0.")
y1 = _function("y1", so.y1, "The Bessel function of the second kind of order 1.")
i0 = _function("i0", so.i0, "The modified Bessel function of the first kind of order 0.")
i1 = _function("i1", so.i1, "The modified Bessel function of the first kind of order 1.")
i0e = _function("i0e", so.i0e, "exp(-|x|) i0(x).")
i1e = _function("i1e", so.i1e, "exp(-|x|) i1(x).")
k0 = _function("k0", so.k0, "The modified Bessel function of the second kind of order 0.")
k1 = _function("k1", so.k1, "The modified Bessel function of the second kind of order 1.")
k0e = _function("k0e", so.k0e, "exp(x) k0(x).")
k1e = _function("k1e", so.k1e, "exp(x) k1(x).")


def sici(x: ArrayLike, /) -> tuple[Tensor, Tensor]:
    """The sine and cosine integrals."""
    return si(x), ci(x)


def shichi(x: ArrayLike, /) -> tuple[Tensor, Tensor]:
    """The hyperbolic sine and cosine integrals."""
    return shi(x), chi(x)


def fresnel(x: ArrayLike, /) -> tuple[Tensor, Tensor]:
    """Fresnel's integrals S and C, of sin and cos of pi t**2 / 2.

    >>> s, c = nm.special.fresnel(nm.asarray(1.0))
    >>> s, c
    (tensor(0.43825915), tensor(0.7798934))
    """
    result: tuple[Tensor, Tensor] = apply(
        "fresnel", lambda n: (so.fresnel_s(n), so.fresnel_c(n)), x
    )
    return result
