"""Gaussian kernel density estimation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numus as nm
from numus.errors import ShapeError
from numus.stats.descriptive import floats
from numus.tensor import ArrayLike, Tensor

__all__ = ["gaussian_kde"]

_MAX_ELEMENTS = 1 << 24  # of the matrix of kernels that is summed at a time


class gaussian_kde:  # noqa: N801
    """The density that a sample comes from: a sum of normal densities around its points.

    Args:
        dataset: points, as columns, or a vector of numbers.
        bw_method: "scott", "silverman", a factor, or a function of this object.
        weights: what each point counts for.

    >>> kde = nm.stats.gaussian_kde(nm.asarray([-1.0, 0.0, 1.0]))
    >>> round(kde(nm.asarray([0.0]))[0].item(), 4)
    0.3182
    """

    def __init__(self, dataset: ArrayLike, bw_method: Any = None, weights: Any = None) -> None:
        given = floats(dataset)
        self.dataset = nm.reshape(given, (1, -1)) if given.ndim < 2 else given
        self.d, self.n = self.dataset.shape
        if self.n < 2:
            raise ShapeError("gaussian_kde: the sample must have more than one point")
        w = nm.ones((self.n,), dtype=given.dtype, device=given.device)
        w = w if weights is None else nm.astype(nm.asarray(weights), given.dtype)
        self.weights = w / nm.sum(w)
        self.neff = 1 / nm.sum(self.weights**2)
        self.set_bandwidth(bw_method)

    def set_bandwidth(self, bw_method: Any = None) -> None:
        """Choose the factor by which the sample's covariance is scaled."""
        rules: dict[Any, Callable[[], Any]] = {
            "scott": lambda: self.neff ** (-1 / (self.d + 4)),
            "silverman": lambda: (self.neff * (self.d + 2) / 4) ** (-1 / (self.d + 4)),
        }
        if callable(bw_method):
            self.factor = bw_method(self)
        elif bw_method is None or bw_method in rules:
            self.factor = rules[bw_method or "scott"]()
        else:
            self.factor = bw_method
        spread = nm.reshape(nm.cov(self.dataset, aweights=self.weights), (self.d, self.d))
        self.covariance = spread * self.factor**2
        self._root = nm.linalg.cholesky(self.covariance)
        self._points = nm.linalg.solve_triangular(self._root, self.dataset, lower=True)
        logs = nm.sum(nm.log(nm.diagonal(self._root)))
        self._log_norm = logs + self.d * math.log(2 * math.pi) / 2

    def _exponents(self, points: Tensor) -> Tensor:
        """The exponents of all kernels (columns) at points (rows)."""
        a = nm.matrix_transpose(nm.linalg.solve_triangular(self._root, points, lower=True))
        b = nm.matrix_transpose(self._points)
        if self.d == 1:
            return -((a - nm.reshape(b, -1)) ** 2) / 2
        return -nm.sum((nm.expand_dims(a, 1) - b) ** 2, -1) / 2

    def _parts(self, points: ArrayLike) -> list[Tensor]:
        given = floats(points)
        given = nm.reshape(given, (1, -1)) if given.ndim < 2 else given
        if given.shape[0] != self.d:
            raise ShapeError(f"gaussian_kde: points have {given.shape[0]} axes, not {self.d}")
        count = max(1, _MAX_ELEMENTS // self.n)
        return [given[:, i : i + count] for i in range(0, given.shape[1], count)]

    def evaluate(self, points: ArrayLike) -> Tensor:
        """The density at points, the columns of a matrix, or a vector of numbers."""
        scale = nm.exp(-self._log_norm)
        found = [
            nm.sum(nm.exp(self._exponents(part)) * self.weights, 1) for part in self._parts(points)
        ]
        return nm.concat(found) * scale

    __call__ = pdf = evaluate

    def logpdf(self, points: ArrayLike) -> Tensor:
        """The logarithm of the density."""
        logs = nm.log(self.weights)
        found = [nm.logsumexp(self._exponents(p) + logs, 1) for p in self._parts(points)]
        return nm.concat(found) - self._log_norm

    def resample(self, size: int, *, key: Any = None) -> Tensor:
        """Points drawn from the density, as columns."""
        keys = (None, None) if key is None else tuple(nm.random.split(key))
        centres = nm.random.choice(self.n, (size,), p=self.weights, key=keys[0])
        noise = nm.random.normal((self.d, size), dtype=self.dataset.dtype, key=keys[1])
        return self.dataset[:, centres] + nm.matmul(self._root, noise)
