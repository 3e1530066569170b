"""Discrete distributions, as int64 unless a dtype is named."""

from __future__ import annotations

from typing import Any

from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.random import draws
from numus.primitives.special.tables import minus_from, plus
from numus.random._sampling import Number
from numus.random._streams import Stream, counted, fraction, positive
from numus.tensor import Tensor

__all__ = [
    "binomial", "geometric", "hypergeometric", "logseries", "negative_binomial", "poisson",
    "zipf",
]  # fmt: skip


def binomial(
    shape: Any = None,
    n: Number = 1,
    p: Number = 0.5,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Successes in n trials, each with probability p."""
    positive("binomial", "n", n, zero=True)
    fraction("binomial", "p", p)

    def build(s: Stream, n: Node, p: Node) -> Node:
        return s.rejection(draws.binomial, n, p)

    return counted("binomial", build, shape, (n, p), dtype, device, key)


def geometric(
    shape: Any = None,
    p: Number = 0.5,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Trials up to the first success, 1 or more."""
    fraction("geometric", "p", p, zero=False)

    def build(s: Stream, p: Node) -> Node:
        waits = ew.ceil(ew.div(s.exponential(), ew.neg(ew.log1p(ew.neg(p)))))
        return ew.maximum(waits, s.number(1))

    return counted("geometric", build, shape, (p,), dtype, device, key)


def hypergeometric(
    shape: Any = None,
    ngood: Number = 1,
    nbad: Number = 1,
    nsample: Number = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Good ones among nsample drawn of ngood and nbad, without replacement."""
    positive("hypergeometric", "ngood", ngood, zero=True)
    positive("hypergeometric", "nbad", nbad, zero=True)
    positive("hypergeometric", "nsample", nsample, zero=True)

    def build(s: Stream, ngood: Node, nbad: Node, nsample: Node) -> Node:
        return s.rejection(draws.hypergeometric, ngood, nbad, nsample)

    return counted("hypergeometric", build, shape, (ngood, nbad, nsample), dtype, device, key)


def logseries(
    shape: Any = None,
    p: Number = 0.5,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """k >= 1 with probability proportional to p**k / k (Kemp 1981)."""
    fraction("logseries", "p", p)

    def build(s: Stream, p: Node) -> Node:
        u, v = s.child(0).uniform(), s.child(1).uniform()
        q = ew.neg(ew.expm1(ew.mul(ew.log1p(ew.neg(p)), u)))
        inside = ew.lt(s.number(0), q)
        q = ew.where(inside, q, s.number(0.5))
        deep = plus(ew.floor(ew.div(ew.log(v), ew.log(q))), 1)
        value = ew.where(ew.le(v, ew.mul(q, q)), deep, s.number(2))
        return ew.where(ew.or_(ew.lt(q, v), ew.le(p, v)), s.number(1), value)

    return counted("logseries", build, shape, (p,), dtype, device, key)


def negative_binomial(
    shape: Any = None,
    n: Number = 1.0,
    p: Number = 0.5,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Failures before the n-th success; n need not be whole."""
    positive("negative_binomial", "n", n)
    fraction("negative_binomial", "p", p, zero=False)

    def build(s: Stream, n: Node, p: Node) -> Node:
        rate = ew.mul(s.child(0).gamma(n), ew.div(minus_from(1, p), p))
        return s.child(1).rejection(draws.poisson, rate)

    return counted("negative_binomial", build, shape, (n, p), dtype, device, key)


def poisson(
    shape: Any = None,
    lam: Number = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Counts of independent events with mean lam.

    >>> nm.random.poisson((2, 3), 4.0, key=nm.random.key(0)).shape
    (2, 3)
    """
    positive("poisson", "lam", lam, zero=True)

    def build(s: Stream, lam: Node) -> Node:
        return s.rejection(draws.poisson, lam)

    return counted("poisson", build, shape, (lam,), dtype, device, key)


def zipf(
    shape: Any = None,
    a: Number = 2.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """k >= 1 with probability proportional to k**-a, for a > 1; below 2**24."""
    positive("zipf", "a", a)

    def build(s: Stream, a: Node) -> Node:
        return s.rejection(draws.zipf, a)

    return counted("zipf", build, shape, (a,), dtype, device, key)
