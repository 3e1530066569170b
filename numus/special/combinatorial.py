"""Beta and incomplete gamma and beta functions, polygamma, zeta, and what counts arrangements."""

from __future__ import annotations

import math

from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.special import incomplete as inc
from numus.primitives.special import one_operand as so
from numus.primitives.special.tables import plus, times
from numus.shapes import as_int
from numus.special._define import apply, number
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "beta", "betainc", "betaincinv", "betaln", "binom", "comb", "expn", "factorial", "gammainc",
    "gammaincc", "gammaincinv", "lbeta", "multigammaln", "perm", "poch", "polygamma", "zeta",
]  # fmt: skip


def betaln(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """log |B(a, b)|, without cancellation where a parameter is large."""
    result: Tensor = apply("betaln", inc.betaln, a, b)
    return result


lbeta = betaln


def _largest_gamma(x: Node) -> float:
    """Arguments of gamma that stay far from overflow."""
    return 24.0 if x.dtype.itemsize == 4 else 150.0


def _beta(a: Node, b: Node) -> Node:
    total = ew.add(a, b)
    bound = number(_largest_gamma(a), a)
    small = ew.and_(
        ew.lt(ew.abs_(total), bound), ew.and_(ew.lt(ew.abs_(a), bound), ew.lt(ew.abs_(b), bound))
    )
    one = number(1, a)
    p, q = ew.where(small, a, one), ew.where(small, b, one)
    direct = ew.mul(ew.mul(so.gamma(p), so.rgamma(ew.add(p, q))), so.gamma(q))
    p, q = ew.where(small, one, a), ew.where(small, one, b)
    return ew.where(small, direct, ew.exp(inc.betaln(p, q)))


def beta(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """The beta function gamma(a) gamma(b) / gamma(a + b).

    >>> nm.special.beta(2.0, 3.0)
    tensor(0.08333334)
    """
    result: Tensor = apply("beta", _beta, a, b)
    return result


def gammainc(a: ArrayLike, x: ArrayLike, /) -> Tensor:
    """The regularised lower incomplete gamma function; differentiable by a and x.

    >>> nm.special.gammainc(2.0, nm.asarray([0.0, 1.0]))
    tensor([0.        , 0.26424113])
    """
    result: Tensor = apply("gammainc", inc.gammainc, a, x)
    return result


def gammaincc(a: ArrayLike, x: ArrayLike, /) -> Tensor:
    """The regularised upper incomplete gamma function, accurate where it is small."""
    result: Tensor = apply("gammaincc", inc.gammaincc, a, x)
    return result


def gammaincinv(a: ArrayLike, p: ArrayLike, /) -> Tensor:
    """x with gammainc(a, x) = p."""
    result: Tensor = apply("gammaincinv", inc.gammaincinv, a, p)
    return result


def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike, /) -> Tensor:
    """The regularised incomplete beta function; differentiable by all its arguments.

    >>> nm.special.betainc(2.0, 3.0, nm.asarray([0.0, 0.5, 1.0]))
    tensor([0.    , 0.6875, 1.    ])
    """
    result: Tensor = apply("betainc", inc.betainc, a, b, x)
    return result


def betaincinv(a: ArrayLike, b: ArrayLike, p: ArrayLike, /) -> Tensor:
    """x with betainc(a, b, x) = p."""
    result: Tensor = apply("betaincinv", inc.betaincinv, a, b, p)
    return result


def zeta(s: ArrayLike, q: ArrayLike = 1.0, /) -> Tensor:
    """Hurwitz' zeta function: the sum of (q + k)**-s for s > 1, q > 0; Riemann's for q = 1.

    Its derivative by q is known; that by s is NaN.

    >>> nm.special.zeta(2.0)
    tensor(1.6449342)
    """
    result: Tensor = apply("zeta", inc.zeta, s, q)
    return result


def expn(n: ArrayLike, x: ArrayLike, /) -> Tensor:
    """The exponential integral E_n(x) for whole n >= 0 and x >= 0."""
    result: Tensor = apply("expn", inc.expn, n, x)
    return result


def polygamma(n: int, x: ArrayLike, /) -> Tensor:
    """The n-th derivative of digamma; from the third on, of positive numbers.

    >>> nm.special.polygamma(2, 1.0)
    tensor(-2.4041138)
    """
    n = as_int(n, "n", "special.polygamma")
    if n < 0:
        raise ValueError(f"special.polygamma: n={n} must be 0 or more")

    def build(x: Node) -> Node:
        if n < 2:
            return ew.digamma(x) if n == 0 else ew.trigamma(x)
        value = inc.zeta(number(n + 1, x), x)
        return times(value, (-1.0) ** (n + 1) * math.gamma(n + 1))

    result: Tensor = apply("polygamma", build, x)
    return result


def multigammaln(a: ArrayLike, d: int, /) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension d, for a > (d - 1) / 2."""
    d = as_int(d, "d", "special.multigammaln")
    if d < 1:
        raise ValueError(f"special.multigammaln: d={d} must be 1 or more")

    def build(a: Node) -> Node:
        total = number(d * (d - 1) / 4 * math.log(math.pi), a)
        for j in range(d):
            total = ew.add(total, ew.lgamma(plus(a, -j / 2)))
        return total

    result: Tensor = apply("multigammaln", build, a)
    return result


def _poch(a: Node, m: Node) -> Node:
    total, bound = ew.add(a, m), number(_largest_gamma(a), a)
    small = ew.and_(ew.lt(ew.abs_(total), bound), ew.lt(ew.abs_(a), bound))
    one = number(1, a)
    direct = ew.mul(so.gamma(ew.where(small, total, one)), so.rgamma(ew.where(small, a, one)))
    # gamma(a + m) / gamma(a) = gamma(m) / B(a, m)
    p, q = ew.where(small, one, a), ew.where(small, one, m)
    far = ew.exp(ew.sub(ew.lgamma(q), inc.betaln(p, q)))
    return ew.where(small, direct, far)


def poch(a: ArrayLike, m: ArrayLike, /) -> Tensor:
    """Pochhammer's symbol gamma(a + m) / gamma(a): the rising factorial.

    >>> nm.special.poch(3.0, 2.0)
    tensor(12.)
    """
    result: Tensor = apply("poch", _poch, a, m)
    return result


def _whole(value: Node, *counts: Node) -> Node:
    """A count of whole numbers of things is whole, as far as floats tell."""
    exact = ew.lt(ew.abs_(value), number(2.0**21 if value.dtype.itemsize == 4 else 2.0**49, value))
    for x in counts:
        exact = ew.and_(exact, ew.eq(x, ew.floor(x)))
    return ew.where(exact, ew.rint(value), value)


def factorial(n: ArrayLike, /) -> Tensor:
    """n!, as gamma(n + 1); 0 below 0.

    >>> nm.special.factorial(nm.arange(5))
    tensor([ 1.,  1.,  2.,  6., 24.])
    """

    def build(n: Node) -> Node:
        below = ew.lt(n, number(0, n))
        value = so.gamma(plus(ew.where(below, number(0, n), n), 1))
        return ew.where(below, number(0, n), _whole(value, n))

    result: Tensor = apply("factorial", build, n)
    return result


def _binom(n: Node, k: Node) -> Node:
    rest = ew.sub(n, k)
    return ew.div(number(1, n), ew.mul(plus(n, 1), _beta(plus(rest, 1), plus(k, 1))))


def binom(n: ArrayLike, k: ArrayLike, /) -> Tensor:
    """The binomial coefficient of real n and k, differentiable."""
    result: Tensor = apply("binom", _binom, n, k)
    return result


def comb(n: ArrayLike, k: ArrayLike, /) -> Tensor:
    """The number of ways to choose k things of n; 0 where there is none.

    >>> nm.special.comb(5, nm.arange(7))
    tensor([ 1.,  5., 10., 10.,  5.,  1.,  0.])
    """

    def build(n: Node, k: Node) -> Node:
        none = ew.or_(ew.lt(n, k), ew.or_(ew.lt(k, number(0, k)), ew.lt(n, number(0, n))))
        n_, k_ = (ew.where(none, number(0, x), x) for x in (n, k))
        return ew.where(none, number(0, n), _whole(_binom(n_, k_), n_, k_))

    result: Tensor = apply("comb", build, n, k)
    return result


def perm(n: ArrayLike, k: ArrayLike, /) -> Tensor:
    """The number of ways to arrange k things of n: n! / (n - k)!.

    >>> nm.special.perm(5, 2)
    tensor(20.)
    """

    def build(n: Node, k: Node) -> Node:
        none = ew.or_(ew.lt(n, k), ew.or_(ew.lt(k, number(0, k)), ew.lt(n, number(0, n))))
        n_, k_ = (ew.where(none, number(0, x), x) for x in (n, k))
        value = _poch(plus(ew.sub(n_, k_), 1), k_)
        empty = ew.eq(k_, number(0, k_))
        return ew.where(none, number(0, n), ew.where(empty, number(1, n), _whole(value, n_, k_)))

    result: Tensor = apply("perm", build, n, k)
    return result
