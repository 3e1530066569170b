"""Resampling: the bootstrap and permutation tests, all resamples at once by `vmap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numus as nm
from numus.stats.descriptive import floats
from numus.tensor import Tensor

__all__ = ["bootstrap", "permutation_test"]


class Interval(NamedTuple):
    """The ends of a confidence interval."""

    low: Tensor
    high: Tensor


class BootstrapResult(NamedTuple):
    """The result of `bootstrap`."""

    confidence_interval: Interval
    bootstrap_distribution: Tensor
    standard_error: Tensor


class PermutationResult(NamedTuple):
    """The result of `permutation_test`."""

    statistic: Tensor
    pvalue: Tensor
    null_distribution: Tensor


def bootstrap(
    data: Sequence[Any],
    statistic: Callable[..., Tensor],
    *,
    n_resamples: int = 9999,
    confidence_level: float = 0.95,
    method: str = "percentile",
    key: Any = None,
) -> BootstrapResult:
    """The distribution of a statistic under resampling with replacement, and its interval.

    Args:
        data: samples, vectors, each resampled by itself.
        statistic: a function of vectors as long as the samples, made of numus's functions.
        method: "percentile", or "basic", which reflects it at the statistic.

    >>> found = nm.stats.bootstrap((nm.arange(20.0),), nm.mean, n_resamples=200)
    >>> bool(found.confidence_interval.low < 9.5) and bool(found.confidence_interval.high > 9.5)
    True
    """
    if method not in ("percentile", "basic"):
        raise ValueError(f'bootstrap: method must be "percentile" or "basic", not {method!r}')
    samples = [nm.reshape(floats(x), -1) for x in data]
    keys = [None] * len(samples) if key is None else nm.random.split(key, len(samples))
    drawn = [
        x[nm.random.integers(0, x.shape[0], (n_resamples, x.shape[0]), device=x.device, key=k)]
        for x, k in zip(samples, keys, strict=True)
    ]
    found = nm.vmap(statistic)(*drawn)
    tail = (1 - confidence_level) / 2
    low, high = nm.quantile(found, [tail, 1 - tail], axis=0)
    if method == "basic":
        observed = statistic(*samples)
        low, high = 2 * observed - high, 2 * observed - low
    return BootstrapResult(Interval(low, high), found, nm.std(found, 0, correction=1))


def permutation_test(
    data: Sequence[Any],
    statistic: Callable[..., Tensor],
    *,
    n_resamples: int = 9999,
    alternative: str = "two-sided",
    key: Any = None,
) -> PermutationResult:
    """The test that samples come from one distribution: how often their elements, dealt out at
    random, give a statistic as extreme as theirs.

    Args:
        alternative: "two-sided", "less" or "greater".

    >>> x = nm.arange(8.0)
    >>> def gap(a, b):
    ...     return a.mean() - b.mean()
    >>> test = nm.stats.permutation_test((x, x + 9), gap, n_resamples=99)
    >>> round(test.pvalue.item(), 2)
    0.02
    """
    if alternative not in ("two-sided", "less", "greater"):
        raise ValueError(f"permutation_test: there is no alternative {alternative!r}")
    samples = [nm.reshape(floats(x), -1) for x in data]
    sizes = [x.shape[0] for x in samples]
    both = nm.concat(samples)
    noise = nm.random.uniform((n_resamples, sum(sizes)), device=both.device, key=key)
    dealt = both[nm.argsort(noise, axis=1)]
    found = nm.vmap(statistic)(*nm.split_with_sizes(dealt, sizes, 1))
    observed = statistic(*samples)
    slack = nm.abs(observed) * 1e-6  # sums in another order differ in their last digits

    def share(hits: Tensor) -> Tensor:
        return (nm.sum(nm.astype(hits, both.dtype)) + 1) / (n_resamples + 1)

    less, greater = share(found <= observed + slack), share(found >= observed - slack)
    pvalue = {"less": less, "greater": greater}.get(alternative)
    if pvalue is None:
        pvalue = nm.minimum(2 * nm.minimum(less, greater), 1.0)
    return PermutationResult(observed, pvalue, found)
