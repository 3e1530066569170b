"""Continuous distributions: transforms of uniform, normal and gamma draws.

Parameters may be tensors; gradients flow to them (through gamma draws by implicit
reparametrisation).
"""

from __future__ import annotations

import math
from typing import Any

from numus.functions._base import as_number
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.random import draws
from numus.primitives.special.tables import minus_from, plus, times
from numus.random._sampling import Number
from numus.random._streams import Stream, drawn, positive
from numus.tensor import Tensor

__all__ = [
    "beta", "chisquare", "f", "gamma", "laplace", "logistic", "lognormal", "noncentral_chisquare",
    "noncentral_f", "pareto", "power", "rayleigh", "standard_t", "triangular", "vonmises", "wald",
    "weibull",
]  # fmt: skip


def _affine(z: Node, loc: Node, scale: Node) -> Node:
    return ew.add(loc, ew.mul(z, scale))


def _chisquare(s: Stream, df: Node) -> Node:
    return times(s.gamma(times(df, 0.5)), 2)


def _noncentral(s: Stream, df: Node, nonc: Node) -> Node:
    """A Poisson mixture of central ones."""
    extra = s.child(0).rejection(draws.poisson, times(nonc, 0.5))
    return _chisquare(s.child(1), ew.add(df, times(extra, 2)))


def _half(u: Node) -> Node:
    """Whether a uniform is in the lower half, and it doubled, in (0, 1]."""
    return ew.le(u, ew.scalar_like(0.5, u))


def beta(
    shape: Any = None,
    a: Number = 1.0,
    b: Number = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Fractions with density proportional to x**(a - 1) (1 - x)**(b - 1)."""
    positive("beta", "a", a)
    positive("beta", "b", b)

    def build(s: Stream, a: Node, b: Node) -> Node:
        # in logarithms: gamma draws of small parameters underflow
        x, y = (s.child(i).rejection(draws.log_gamma, p) for i, p in enumerate((a, b)))
        return ew.sigmoid(ew.sub(x, y))

    return drawn("beta", build, shape, (a, b), dtype, device, key)


def chisquare(
    shape: Any = None,
    df: Number = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Sums of df squared standard normal numbers."""
    positive("chisquare", "df", df)

    def build(s: Stream, df: Node) -> Node:
        return _chisquare(s, df)

    return drawn("chisquare", build, shape, (df,), dtype, device, key)


def f(
    shape: Any = None,
    dfnum: Number = 1.0,
    dfden: Number = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Ratios of two mean squares, of dfnum and dfden standard normal numbers."""
    positive("f", "dfnum", dfnum)
    positive("f", "dfden", dfden)

    def build(s: Stream, dfnum: Node, dfden: Node) -> Node:
        top = ew.div(_chisquare(s.child(0), dfnum), dfnum)
        return ew.div(top, ew.div(_chisquare(s.child(1), dfden), dfden))

    return drawn("f", build, shape, (dfnum, dfden), dtype, device, key)


def gamma(
    shape: Any = None,
    a: Number = 1.0,
    scale: Number = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Gamma numbers with shape parameter a and mean a * scale.

    >>> nm.random.gamma((2, 3), 2.5, key=nm.random.key(0)).shape
    (2, 3)
    """
    positive("gamma", "a", a)
    positive("gamma", "scale", scale, zero=True)

    def build(s: Stream, a: Node, scale: Node) -> Node:
        return ew.mul(s.gamma(a), scale)

    return drawn("gamma", build, shape, (a, scale), dtype, device, key)


def laplace(
    shape: Any = None,
    loc: Number = 0.0,
    scale: Number = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Laplace numbers: exponential ones on both sides of loc."""
    positive("laplace", "scale", scale, zero=True)

    def build(s: Stream, loc: Node, scale: Node) -> Node:
        u = s.uniform()
        below = _half(u)
        tail = ew.log(ew.where(below, times(u, 2), minus_from(2, times(u, 2))))
        safe = ew.maximum(tail, s.number(-100.0))  # of the uniform 1
        return _affine(ew.where(below, safe, ew.neg(safe)), loc, scale)

    return drawn("laplace", build, shape, (loc, scale), dtype, device, key)


def logistic(
    shape: Any = None,
    loc: Number = 0.0,
    scale: Number = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Logistic numbers."""
    positive("logistic", "scale", scale, zero=True)

    def build(s: Stream, loc: Node, scale: Node) -> Node:
        u = s.uniform()
        safe = ew.minimum(u, s.number(1 - 2.0 ** -(s.dtype.mantissa + 1)))
        return _affine(ew.sub(ew.log(safe), ew.log1p(ew.neg(safe))), loc, scale)

    return drawn("logistic", build, shape, (loc, scale), dtype, device, key)


def lognormal(
    shape: Any = None,
    mean: Number = 0.0,
    sigma: Number = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Numbers whose logarithms are normal."""
    positive("lognormal", "sigma", sigma, zero=True)

    def build(s: Stream, mean: Node, sigma: Node) -> Node:
        return ew.exp(_affine(s.normal(), mean, sigma))

    return drawn("lognormal", build, shape, (mean, sigma), dtype, device, key)


def noncentral_chisquare(
    shape: Any = None,
    df: Number = 1.0,
    nonc: Number = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Sums of df squared normal numbers whose squared means add up to nonc."""
    positive("noncentral_chisquare", "df", df)
    positive("noncentral_chisquare", "nonc", nonc, zero=True)

    def build(s: Stream, df: Node, nonc: Node) -> Node:
        return _noncentral(s, df, nonc)

    return drawn("noncentral_chisquare", build, shape, (df, nonc), dtype, device, key)


def noncentral_f(
    shape: Any = None,
    dfnum: Number = 1.0,
    dfden: Number = 1.0,
    nonc: Number = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Ratios of mean squares, of which the upper is noncentral."""
    positive("noncentral_f", "dfnum", dfnum)
    positive("noncentral_f", "dfden", dfden)
    positive("noncentral_f", "nonc", nonc, zero=True)

    def build(s: Stream, dfnum: Node, dfden: Node, nonc: Node) -> Node:
        top = ew.div(_noncentral(s.child(2), dfnum, nonc), dfnum)
        return ew.div(top, ew.div(_chisquare(s.child(3), dfden), dfden))

    return drawn("noncentral_f", build, shape, (dfnum, dfden, nonc), dtype, device, key)


def pareto(
    shape: Any = None,
    a: Number = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Pareto II (Lomax) numbers; Pareto's own are these plus 1."""
    positive("pareto", "a", a)

    def build(s: Stream, a: Node) -> Node:
        return ew.expm1(ew.div(s.exponential(), a))

    return drawn("pareto", build, shape, (a,), dtype, device, key)


def power(
    shape: Any = None,
    a: Number = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Fractions with density a x**(a - 1)."""
    positive("power", "a", a)

    def build(s: Stream, a: Node) -> Node:
        return ew.exp(ew.neg(ew.div(s.exponential(), a)))

    return drawn("power", build, shape, (a,), dtype, device, key)


def rayleigh(
    shape: Any = None,
    scale: Number = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Lengths of pairs of normal numbers."""
    positive("rayleigh", "scale", scale, zero=True)

    def build(s: Stream, scale: Node) -> Node:
        return ew.mul(ew.sqrt(times(s.exponential(), 2)), scale)

    return drawn("rayleigh", build, shape, (scale,), dtype, device, key)


def standard_t(
    shape: Any = None,
    df: Number = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Student's t with df degrees of freedom."""
    positive("standard_t", "df", df)

    def build(s: Stream, df: Node) -> Node:
        spread = ew.sqrt(ew.div(_chisquare(s.child(1), df), df))
        return ew.div(s.child(0).normal(), spread)

    return drawn("standard_t", build, shape, (df,), dtype, device, key)


def triangular(
    shape: Any = None,
    left: Number = 0.0,
    mode: Number = 0.5,
    right: Number = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Numbers of a triangular density from left to right with its top at mode."""

    def build(s: Stream, left: Node, mode: Node, right: Node) -> Node:
        u = s.uniform()
        width = ew.sub(right, left)
        top = ew.div(ew.sub(mode, left), width)
        below = ew.le(u, top)
        # roots of 1 where the other branch is taken: that of 0 has no derivative
        low = ew.sqrt(ew.where(below, ew.mul(u, top), s.number(1)))
        rest = ew.mul(minus_from(1, u), minus_from(1, top))
        high = ew.sqrt(ew.where(below, s.number(1), rest))
        return _affine(ew.where(below, low, minus_from(1, high)), left, width)

    return drawn("triangular", build, shape, (left, mode, right), dtype, device, key)


def vonmises(
    shape: Any = None,
    mu: Number = 0.0,
    kappa: Number = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Angles in [-pi, pi] about mu with concentration kappa."""
    positive("vonmises", "kappa", kappa, zero=True)
    if isinstance(kappa, Tensor) and kappa.requires_grad:
        as_number(kappa, "kappa", "vonmises")  # raises

    def build(s: Stream, mu: Node, kappa: Node) -> Node:
        angle = ew.add(s.rejection(draws.vonmises, kappa), mu)
        turns = ew.rint(times(angle, 1 / (2 * math.pi)))
        return ew.sub(angle, times(turns, 2 * math.pi))

    return drawn("vonmises", build, shape, (mu, kappa), dtype, device, key)


def wald(
    shape: Any = None,
    mean: Number = 1.0,
    scale: Number = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Inverse Gaussian numbers (Michael, Schucany and Haas 1976)."""
    positive("wald", "mean", mean)
    positive("wald", "scale", scale)

    def build(s: Stream, mean: Node, scale: Node) -> Node:
        z = s.child(0).normal()
        y = ew.div(ew.mul(mean, ew.mul(z, z)), times(scale, 2))
        # mean (1 + y - sqrt(y (2 + y))), which cancels, as its reciprocal
        root = ew.sqrt(ew.mul(y, plus(y, 2)))
        small = ew.div(mean, ew.add(plus(y, 1), root))
        first = ew.le(s.child(1).uniform(), ew.div(mean, ew.add(mean, small)))
        return ew.where(first, small, ew.div(ew.mul(mean, mean), small))

    return drawn("wald", build, shape, (mean, scale), dtype, device, key)


def weibull(
    shape: Any = None,
    a: Number = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Powers 1 / a of exponential numbers."""
    positive("weibull", "a", a)

    def build(s: Stream, a: Node) -> Node:
        return ew.exp(ew.div(ew.log(s.exponential()), a))

    return drawn("weibull", build, shape, (a,), dtype, device, key)
