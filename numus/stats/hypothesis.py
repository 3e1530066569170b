"""Tests of hypotheses, each a statistic and a two-sided p-value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numus as nm
from numus.stats.association import normal_pvalue, t_pvalue
from numus.stats.descriptive import floats, lanes, rankdata
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "anderson", "chisquare", "kstest", "mannwhitneyu", "ttest_1samp", "ttest_ind", "ttest_rel",
]  # fmt: skip


class Significance(NamedTuple):
    """A statistic and its p-value."""

    statistic: Tensor
    pvalue: Tensor


def ttest_1samp(a: ArrayLike, popmean: Any, axis: int | None = 0) -> Significance:
    """Student's test that the mean is `popmean`.

    >>> test = nm.stats.ttest_1samp(nm.asarray([1.0, 2.0, 3.0]), 2.0)
    >>> test.statistic.item(), round(test.pvalue.item(), 4)
    (0.0, 1.0)
    """
    x, at = lanes(a, axis)
    n = x.shape[at]
    t = (nm.mean(x, at) - popmean) / (nm.std(x, at, correction=1) / math.sqrt(n))
    return Significance(t, t_pvalue(t, float(n - 1)))


def ttest_rel(a: ArrayLike, b: ArrayLike, axis: int | None = 0) -> Significance:
    """Student's test that the mean of paired differences is 0."""
    return ttest_1samp(floats(a) - floats(b), 0.0, axis)


def ttest_ind(
    a: ArrayLike, b: ArrayLike, axis: int | None = 0, equal_var: bool = True
) -> Significance:
    """Student's test (Welch's, unless the variances are equal) that two means are equal.

    >>> x = nm.asarray([1.0, 2.0, 3.0])
    >>> round(nm.stats.ttest_ind(x, x + 1).pvalue.item(), 4)
    0.2879
    """
    (x, at), (y, _) = lanes(a, axis), lanes(b, axis)
    n, m = x.shape[at], y.shape[at]
    u, v = nm.var(x, at, correction=1), nm.var(y, at, correction=1)
    if equal_var:
        df: Any = float(n + m - 2)
        spread = nm.sqrt(((n - 1) * u + (m - 1) * v) / df * (1 / n + 1 / m))
    else:
        df = (u / n + v / m) ** 2 / ((u / n) ** 2 / (n - 1) + (v / m) ** 2 / (m - 1))
        spread = nm.sqrt(u / n + v / m)
    t = (nm.mean(x, at) - nm.mean(y, at)) / spread
    return Significance(t, t_pvalue(t, df))


def chisquare(
    f_obs: ArrayLike, f_exp: Any = None, ddof: int = 0, axis: int | None = 0
) -> Significance:
    """Pearson's test that observed frequencies are the expected ones (equal, unless told).

    >>> round(nm.stats.chisquare(nm.asarray([16.0, 18.0, 16.0, 14.0])).pvalue.item(), 4)
    0.9189
    """
    x, at = lanes(f_obs, axis)
    wanted = nm.mean(x, at, keepdims=True) if f_exp is None else floats(f_exp)
    total = nm.sum((x - wanted) ** 2 / wanted, at)
    df = nm.full_like(total, (x.shape[at] - 1 - ddof) / 2)
    return Significance(total, nm.special.gammaincc(df, total / 2))


def _kolmogorov(t: Tensor) -> Tensor:
    """The probability that Kolmogorov's statistic is larger than t, in the limit."""
    k = nm.arange(1, 101, dtype=t.dtype, device=t.device)
    signs = nm.asarray([1.0, -1.0] * 50, dtype=t.dtype, device=t.device)
    tail = 2 * nm.sum(signs * nm.exp(-2 * (k * nm.expand_dims(t, -1)) ** 2), -1)
    # the dual series converges for small t
    odd = 2 * k - 1
    small = nm.maximum(nm.expand_dims(t, -1), 1e-3)
    head = nm.sum(nm.exp(-((odd * math.pi / small) ** 2) / 8), -1) * math.sqrt(2 * math.pi)
    return nm.clip(nm.where(t < 1, 1 - head / nm.maximum(t, 1e-3), tail), 0, 1)


def kstest(rvs: ArrayLike, cdf: Callable[[Tensor], Tensor] | ArrayLike) -> Significance:
    """The test of Kolmogorov and Smirnov that a sample has a distribution, given by its function,
    or that two samples have one; its p-value is that of large samples.

    >>> x = nm.linspace(0.05, 0.95, 10)
    >>> round(nm.stats.kstest(x, lambda t: t).statistic.item(), 4)
    0.05
    """
    x = nm.sort(nm.reshape(floats(rvs), -1))
    n = x.shape[0]
    if callable(cdf) and not isinstance(cdf, Tensor):
        f = cdf(x)
        rank = nm.arange(n, dtype=x.dtype, device=x.device)
        gap = nm.maximum(nm.max((rank + 1) / n - f), nm.max(f - rank / n))
        return Significance(gap, _kolmogorov(gap * math.sqrt(n)))
    y = nm.sort(nm.reshape(floats(cdf), -1))
    m = y.shape[0]
    both = nm.concat([x, y])
    first = nm.astype(nm.searchsorted(x, both, side="right"), x.dtype) / n
    second = nm.astype(nm.searchsorted(y, both, side="right"), x.dtype) / m
    gap = nm.max(nm.abs(first - second))
    return Significance(gap, _kolmogorov(gap * math.sqrt(n * m / (n + m))))


def mannwhitneyu(x: ArrayLike, y: ArrayLike, use_continuity: bool = True) -> Significance:
    """The test of Mann and Whitney that neither of two samples tends to larger numbers; its
    p-value is that of the normal limit.

    >>> nm.stats.mannwhitneyu(nm.asarray([1.0, 2.0]), nm.asarray([3.0, 4.0])).statistic.item()
    0.0
    """
    a, b = nm.reshape(floats(x), -1), nm.reshape(floats(y), -1)
    n, m = a.shape[0], b.shape[0]
    both = nm.concat([a, b])
    rank = rankdata(both)
    u = nm.sum(rank[:n]) - n * (n + 1) / 2
    equal = nm.sum(nm.astype(nm.expand_dims(both, 1) == both, both.dtype), 1)
    total = n + m
    ties = nm.sum(equal * equal - 1) / (total * (total - 1))  # of t**3 - t over groups
    spread = nm.sqrt(n * m / 12 * (total + 1 - ties))
    larger = nm.maximum(u, n * m - u)
    z = (larger - n * m / 2 - (0.5 if use_continuity else 0.0)) / spread
    return Significance(u, nm.minimum(normal_pvalue(nm.maximum(z, 0.0)), 1.0))


def anderson(x: ArrayLike) -> Significance:
    """The test of Anderson and Darling that a sample is normal, with its mean and deviation
    estimated; the p-value is Stephens's approximation.

    >>> nm.stats.anderson(nm.linspace(-1, 1, 20)).pvalue.item() > 0.1
    True
    """
    a = nm.sort(nm.reshape(floats(x), -1))
    n = a.shape[0]
    z = (a - nm.mean(a)) / nm.std(a, correction=1)
    weight = 2 * nm.arange(1, n + 1, dtype=a.dtype, device=a.device) - 1
    logs = nm.special.log_ndtr(z) + nm.special.log_ndtr(-nm.flip(z))
    statistic = -n - nm.sum(weight * logs) / n
    s = statistic * (1 + 0.75 / n + 2.25 / n**2)
    p = nm.where(s < 0.6, nm.exp(0.9177 - 4.279 * s - 1.38 * s**2), _high_tail(s))
    p = nm.where(s < 0.34, 1 - nm.exp(-8.318 + 42.796 * s - 59.938 * s**2), p)
    p = nm.where(s < 0.2, 1 - nm.exp(-13.436 + 101.14 * s - 223.73 * s**2), p)
    return Significance(statistic, p)


def _high_tail(s: Tensor) -> Tensor:
    return nm.exp(1.2937 - 5.709 * s + 0.0186 * s**2)
