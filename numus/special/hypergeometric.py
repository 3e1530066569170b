"""Hypergeometric functions of real numbers."""

from __future__ import annotations

from numus.primitives.special import hypergeometric as hy
from numus.special._define import apply
from numus.tensor import ArrayLike, Tensor

__all__ = ["hyp0f1", "hyp1f1", "hyp2f1", "hyperu"]


def hyp0f1(v: ArrayLike, x: ArrayLike, /) -> Tensor:
    """The confluent hypergeometric limit function 0F1(; v; x); differentiable by x.

    >>> nm.special.hyp0f1(1.0, 0.25)
    tensor(1.266066)
    """
    result: Tensor = apply("hyp0f1", hy.hyp0f1, v, x, fixed=("v",))
    return result


def hyp1f1(a: ArrayLike, b: ArrayLike, x: ArrayLike, /) -> Tensor:
    """Kummer's confluent hypergeometric function 1F1(a; b; x); differentiable by x.

    >>> nm.special.hyp1f1(1.0, 1.0, nm.asarray([-1.0, 1.0]))
    tensor([0.36787945, 2.718282  ])
    """
    result: Tensor = apply("hyp1f1", hy.hyp1f1, a, b, x, fixed=("a", "b"))
    return result


def hyp2f1(a: ArrayLike, b: ArrayLike, c: ArrayLike, x: ArrayLike, /) -> Tensor:
    """Gauss' hypergeometric function 2F1(a, b; c; x); differentiable by x.

    Of x > 1 it is real for polynomials alone (a or b a whole number that is not positive), and NaN
    for others.

    >>> nm.special.hyp2f1(1.0, 1.0, 2.0, nm.asarray([-1.0, 0.5]))
    tensor([0.6931472, 1.3862944])
    """
    result: Tensor = apply("hyp2f1", hy.hyp2f1, a, b, c, x, fixed=("a", "b", "c"))
    return result


def hyperu(a: ArrayLike, b: ArrayLike, x: ArrayLike, /) -> Tensor:
    """Tricomi's confluent hypergeometric function U(a, b, x) for x > 0; differentiable by x.

    >>> nm.special.hyperu(1.0, 2.0, 4.0)
    tensor(0.25)
    """
    result: Tensor = apply("hyperu", hy.hyperu, a, b, x, fixed=("a", "b"))
    return result
