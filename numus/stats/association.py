"""Association of two samples: correlation coefficients with p-values, regression, distances of
distributions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numus as nm
from numus.errors import ShapeError
from numus.stats.descriptive import floats, rankdata
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "energy_distance", "kendalltau", "linregress", "pearsonr", "spearmanr", "wasserstein_distance",
]  # fmt: skip


class Correlation(NamedTuple):
    """A coefficient and its two-sided p-value."""

    statistic: Tensor
    pvalue: Tensor


def t_pvalue(t: Tensor, df: Any) -> Tensor:
    """The two-sided p-value of Student's t."""
    df = nm.asarray(df, dtype=t.dtype, device=t.device)
    return nm.special.betainc(df / 2, nm.full_like(df, 0.5), df / (df + t * t))


def normal_pvalue(z: Tensor) -> Tensor:
    """The two-sided p-value of a standard normal statistic."""
    return nm.erfc(nm.abs(z) / 2**0.5)


def _pair(op: str, x: ArrayLike, y: ArrayLike) -> tuple[Tensor, Tensor]:
    a, b = floats(x), floats(y)
    if a.shape != b.shape or a.ndim != 1:
        raise ShapeError(f"{op}: needs two vectors of one length, not {a.shape} and {b.shape}")
    return a, b


def _from_r(r: Tensor, n: int) -> Correlation:
    df = n - 2
    t = r * nm.sqrt(df / nm.maximum((1 - r) * (1 + r), nm.finfo(r.dtype).tiny))
    return Correlation(r, t_pvalue(t, float(df)))


def pearsonr(x: ArrayLike, y: ArrayLike) -> Correlation:
    """Pearson's correlation coefficient and its p-value.

    >>> r = nm.stats.pearsonr(nm.arange(4.0), nm.asarray([1.0, 3.0, 2.0, 5.0]))
    >>> round(r.statistic.item(), 4), round(r.pvalue.item(), 4)
    (0.8315, 0.1685)
    """
    a, b = _pair("pearsonr", x, y)
    a, b = a - nm.mean(a), b - nm.mean(b)
    # each scaled to length 1 first: the product of two lengths may overflow
    r = nm.vecdot(a / nm.vector_norm(a), b / nm.vector_norm(b))
    return _from_r(nm.clip(r, -1, 1), a.shape[0])


def spearmanr(x: ArrayLike, y: ArrayLike) -> Correlation:
    """Spearman's rank correlation coefficient and its p-value.

    >>> round(nm.stats.spearmanr(nm.arange(4.0), nm.arange(4.0) ** 3).statistic.item(), 4)
    1.0
    """
    a, b = _pair("spearmanr", x, y)
    return pearsonr(rankdata(a), rankdata(b))


def kendalltau(x: ArrayLike, y: ArrayLike) -> Correlation:
    """Kendall's tau-b, which counts pairs in the same and in opposite order, and its p-value in
    the normal limit. Memory grows with the square of the length.

    >>> round(nm.stats.kendalltau(nm.arange(4), nm.asarray([0, 2, 1, 3])).statistic.item(), 4)
    0.6667
    """
    a, b = _pair("kendalltau", x, y)
    n = a.shape[0]
    sign_a = nm.sign(nm.expand_dims(a, 1) - a)
    sign_b = nm.sign(nm.expand_dims(b, 1) - b)
    score = nm.sum(sign_a * sign_b) / 2
    pairs = n * (n - 1) / 2
    ties = [(n * n - nm.sum(nm.abs(s))) / 2 - n / 2 for s in (sign_a, sign_b)]
    tau = score / nm.sqrt(pairs - ties[0]) / nm.sqrt(pairs - ties[1])
    counts = [nm.sum(nm.astype(s == 0, a.dtype), 1) for s in (sign_a, sign_b)]
    # sums over groups of t equal elements, each of which is counted t times
    v0 = n * (n - 1) * (2 * n + 5)
    v1 = [nm.sum((t - 1) * (2 * t + 5)) for t in counts]
    v2 = [nm.sum(t - 1) for t in counts]
    v3 = [nm.sum((t - 1) * (t - 2)) for t in counts]
    variance = (v0 - v1[0] - v1[1]) / 18 + v2[0] * v2[1] / (2 * n * (n - 1))
    variance = variance + v3[0] * v3[1] / (9 * n * (n - 1) * max(n - 2, 1))
    return Correlation(tau, normal_pvalue(score / nm.sqrt(variance)))


class Regression(NamedTuple):
    """The result of `linregress`."""

    slope: Tensor
    intercept: Tensor
    rvalue: Tensor
    pvalue: Tensor
    stderr: Tensor
    intercept_stderr: Tensor


def linregress(x: ArrayLike, y: ArrayLike) -> Regression:
    """The line of least squares through points, its correlation, p-value and standard errors.

    >>> line = nm.stats.linregress(nm.arange(3.0), nm.asarray([1.0, 3.0, 5.0]))
    >>> line.slope.item(), line.intercept.item()
    (2.0, 1.0)
    """
    a, b = _pair("linregress", x, y)
    n = a.shape[0]
    mean_a, mean_b = nm.mean(a), nm.mean(b)
    spread = nm.mean((a - mean_a) ** 2)
    slope = nm.mean((a - mean_a) * (b - mean_b)) / spread
    intercept = mean_b - slope * mean_a
    r, p = pearsonr(a, b)
    residual = nm.mean((b - slope * a - intercept) ** 2)
    error = nm.sqrt(residual / spread / (n - 2))
    return Regression(slope, intercept, r, p, error, error * nm.sqrt(nm.mean(a * a)))


def _distribution_gap(u: Any, v: Any, power: int, u_weights: Any, v_weights: Any) -> Tensor:
    """The integral of a power of the distance of two empirical distribution functions."""
    a, b = nm.reshape(floats(u), -1), nm.reshape(floats(v), -1)
    both = nm.sort(nm.concat([a, b]))
    steps = nm.diff(both)

    def cumulative(x: Tensor, weights: Any) -> Tensor:
        order = nm.argsort(x)
        if weights is None:
            below = nm.searchsorted(x[order], both[:-1], side="right")
            return nm.astype(below, x.dtype) / x.shape[0]
        total = nm.cumsum(nm.astype(nm.asarray(weights), x.dtype)[order])
        total = nm.concat([total[:1] * 0, total])
        return total[nm.searchsorted(x[order], both[:-1], side="right")] / total[-1]

    gap = nm.abs(cumulative(a, u_weights) - cumulative(b, v_weights))
    return nm.sum((gap if power == 1 else gap * gap) * steps)


def wasserstein_distance(
    u_values: ArrayLike, v_values: ArrayLike, u_weights: Any = None, v_weights: Any = None
) -> Tensor:
    """The first Wasserstein distance of two samples of numbers.

    >>> nm.stats.wasserstein_distance(nm.asarray([0.0, 1.0]), nm.asarray([5.0, 6.0])).item()
    5.0
    """
    return _distribution_gap(u_values, v_values, 1, u_weights, v_weights)


def energy_distance(
    u_values: ArrayLike, v_values: ArrayLike, u_weights: Any = None, v_weights: Any = None
) -> Tensor:
    """The energy distance of two samples of numbers."""
    return nm.sqrt(2 * _distribution_gap(u_values, v_values, 2, u_weights, v_weights))
