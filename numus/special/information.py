"""Entropies, logistic functions and power transforms, compositions of primitives."""

from __future__ import annotations

import math

from numus.functions.elementwise.activations import sigmoid as expit
from numus.functions.elementwise.activations import softplus
from numus.functions.layers.normalization import logsumexp
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.special.tables import plus, times
from numus.special._define import apply, number
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "boxcox", "boxcox1p", "entr", "expit", "inv_boxcox", "inv_boxcox1p", "kl_div", "log_expit",
    "logit", "logsumexp", "rel_entr", "softplus", "xlog1py", "xlogy",
]  # fmt: skip


def _is(x: Node, value: float) -> Node:
    return ew.eq(x, number(value, x))


def _xlogy(x: Node, y: Node) -> Node:
    # log is infinite or NaN there, and x as good as nothing
    nothing = ew.and_(_is(x, 0), ew.or_(ew.le(y, number(0, y)), _is(y, math.inf)))
    return ew.mul(x, ew.log(ew.where(nothing, number(1, y), y)))


def xlogy(x: ArrayLike, y: ArrayLike, /) -> Tensor:
    """x log(y), and 0 where x is 0.

    >>> nm.special.xlogy(nm.asarray([0.0, 2.0]), nm.asarray([0.0, 1.0]))
    tensor([0., 0.])
    """
    result: Tensor = apply("xlogy", _xlogy, x, y)
    return result


def xlog1py(x: ArrayLike, y: ArrayLike, /) -> Tensor:
    """x log1p(y), and 0 where x is 0."""

    def build(x: Node, y: Node) -> Node:
        nothing = ew.and_(_is(x, 0), ew.or_(ew.le(y, number(-1, y)), _is(y, math.inf)))
        return ew.mul(x, ew.log1p(ew.where(nothing, number(0, y), y)))

    result: Tensor = apply("xlog1py", build, x, y)
    return result


def entr(x: ArrayLike, /) -> Tensor:
    """-x log(x): 0 at 0, minus infinity below.

    >>> nm.special.entr(nm.asarray([0.0, 0.5]))
    tensor([0.       , 0.3465736])
    """

    def build(x: Node) -> Node:
        below = ew.lt(x, number(0, x))
        safe = ew.where(below, number(1, x), x)
        return ew.where(below, number(-math.inf, x), ew.sub(number(0, x), _xlogy(safe, safe)))

    result: Tensor = apply("entr", build, x)
    return result


def _rel_entr(x: Node, y: Node) -> Node:
    zero, one = number(0, x), number(1, x)
    inside = ew.and_(ew.lt(zero, x), ew.lt(zero, y))
    empty = ew.and_(_is(x, 0), ew.le(zero, y))
    p, q = ew.where(inside, x, one), ew.where(inside, y, one)
    value = ew.mul(p, ew.log(ew.div(p, q)))
    outside = ew.where(ew.or_(ew.ne(x, x), ew.ne(y, y)), number(math.nan, x), number(math.inf, x))
    return ew.where(inside, value, ew.where(empty, zero, outside))


def rel_entr(x: ArrayLike, y: ArrayLike, /) -> Tensor:
    """x log(x / y): the terms of the relative entropy; infinite where y is 0 and x is not."""
    result: Tensor = apply("rel_entr", _rel_entr, x, y)
    return result


def kl_div(x: ArrayLike, y: ArrayLike, /) -> Tensor:
    """x log(x / y) - x + y: the terms of Kullback and Leibler's divergence, never negative."""

    def build(x: Node, y: Node) -> Node:
        value = _rel_entr(x, y)
        finite = ew.lt(value, number(math.inf, value))
        return ew.where(finite, ew.add(ew.sub(value, x), y), value)

    result: Tensor = apply("kl_div", build, x, y)
    return result


def logit(x: ArrayLike, /, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), the inverse of expit; with eps, x is clamped to [eps, 1 - eps] first.

    >>> nm.special.logit(nm.asarray([0.25, 0.5]))
    tensor([-1.0986123,  0.       ])
    """

    def build(x: Node) -> Node:
        if eps is not None:
            x = ew.minimum(ew.maximum(x, number(eps, x)), number(1 - eps, x))
        near = ew.and_(ew.lt(number(0.3, x), x), ew.lt(x, number(0.65, x)))
        half, other = ew.where(near, x, number(0.5, x)), ew.where(near, number(0.2, x), x)
        about = times(ew.atanh(plus(times(half, 2), -1)), 2)  # 2 x - 1 is exact
        return ew.where(near, about, ew.sub(ew.log(other), ew.log1p(ew.neg(other))))

    result: Tensor = apply("logit", build, x)
    return result


def log_expit(x: ArrayLike, /) -> Tensor:
    """log expit(x), without overflow on the way."""

    def build(x: Node) -> Node:
        below = ew.lt(x, number(0, x))
        # both branches are the same function, so that every derivative is right at 0
        rest = ew.log1p(ew.exp(ew.where(below, x, ew.neg(x))))
        return ew.sub(ew.where(below, x, number(0, x)), rest)

    result: Tensor = apply("log_expit", build, x)
    return result


def _power(log_x: Node, lmbda: Node) -> Node:
    """(exp(lmbda log x) - 1) / lmbda; log x at 0."""
    zero = _is(lmbda, 0)
    safe = ew.where(zero, number(1, lmbda), lmbda)
    return ew.where(zero, log_x, ew.div(ew.expm1(ew.mul(safe, log_x)), safe))


def _inverse_power(y: Node, lmbda: Node) -> Node:
    """The logarithm of x with boxcox(x, lmbda) = y."""
    zero = _is(lmbda, 0)
    safe = ew.where(zero, number(1, lmbda), lmbda)
    return ew.where(zero, y, ew.div(ew.log1p(ew.mul(safe, ew.where(zero, number(0, y), y))), safe))


def boxcox(x: ArrayLike, lmbda: ArrayLike, /) -> Tensor:
    """Box and Cox's transform (x**lmbda - 1) / lmbda; log(x) where lmbda is 0.

    >>> nm.special.boxcox(4.0, nm.asarray([0.5, 1.0]))
    tensor([2., 3.])
    """
    result: Tensor = apply("boxcox", lambda x, k: _power(ew.log(x), k), x, lmbda)
    return result


def boxcox1p(x: ArrayLike, lmbda: ArrayLike, /) -> Tensor:
    """boxcox of 1 + x."""
    result: Tensor = apply("boxcox1p", lambda x, k: _power(ew.log1p(x), k), x, lmbda)
    return result


def inv_boxcox(y: ArrayLike, lmbda: ArrayLike, /) -> Tensor:
    """x with boxcox(x, lmbda) = y."""
    result: Tensor = apply("inv_boxcox", lambda y, k: ew.exp(_inverse_power(y, k)), y, lmbda)
    return result


def inv_boxcox1p(y: ArrayLike, lmbda: ArrayLike, /) -> Tensor:
    """x with boxcox1p(x, lmbda) = y."""
    result: Tensor = apply("inv_boxcox1p", lambda y, k: ew.expm1(_inverse_power(y, k)), y, lmbda)
    return result
