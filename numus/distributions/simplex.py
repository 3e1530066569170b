"""Shares of a whole: the beta and Dirichlet distributions, drawn as ratios of gamma numbers."""

from __future__ import annotations

from typing import Any, ClassVar

import numus as nm
from numus.distributions import constraints
from numus.distributions.distribution import Distribution, Key
from numus.shapes import Shape
from numus.special import betainc, betaincinv, betaln, digamma, lgamma, xlog1py, xlogy
from numus.tensor import Tensor

__all__ = ["Beta", "Dirichlet"]


def _mode(a: Tensor) -> Tensor:
    """The shares of what is above 1; where nothing is, all of it goes to the largest."""
    above = nm.maximum(a - 1, 0.0)
    shares = above / nm.sum(above, -1, keepdims=True)
    corner = nm.arange(a.shape[-1], device=a.device) == nm.argmax(a, axis=-1, keepdims=True)
    return nm.where(nm.all(a < 1, axis=-1, keepdims=True), nm.astype(corner, a.dtype), shares)


class Beta(Distribution):
    """The beta distribution of fractions.

    >>> d = nm.distributions.Beta(2.0, 6.0)
    >>> d.mean
    tensor(0.25)
    >>> d.cdf(0.25)
    tensor(0.5550537)
    """

    arg_constraints: ClassVar = {
        "concentration1": constraints.positive,
        "concentration0": constraints.positive,
    }
    support = constraints.unit_interval
    has_rsample = True
    concentration1: Tensor
    concentration0: Tensor

    def __init__(
        self, concentration1: Any, concentration0: Any, validate_args: bool | None = None
    ) -> None:
        self._set(validate_args, concentration1=concentration1, concentration0=concentration0)

    @property
    def _pair(self) -> tuple[Tensor, Tensor]:
        return self.concentration1, self.concentration0

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        shape = self._draw_shape(sample_shape)
        return nm.random.beta(shape, *self._pair, dtype=self.dtype, device=self.device, key=key)

    def log_prob(self, value: Any) -> Tensor:
        x = self._value(value)
        a, b = self._pair
        inside = (x >= 0) & (x <= 1)
        x = nm.where(inside, x, 0.5)
        log_p = xlogy(a - 1, x) + xlog1py(b - 1, -x) - betaln(a, b)
        return nm.where(inside, log_p, -nm.inf)

    def cdf(self, value: Any) -> Tensor:
        return betainc(*self._pair, nm.clip(self._value(value), 0.0, 1.0))

    def icdf(self, value: Any) -> Tensor:
        return betaincinv(*self._pair, self._fraction(value))

    @property
    def mean(self) -> Tensor:
        a, b = self._pair
        return a / (a + b)

    @property
    def mode(self) -> Tensor:
        return _mode(nm.stack(self._pair, axis=-1))[..., 0]

    @property
    def variance(self) -> Tensor:
        a, b = self._pair
        total = a + b
        return a * b / (total**2 * (total + 1))

    def entropy(self) -> Tensor:
        a, b = self._pair
        total = a + b
        slopes = (a - 1) * digamma(a) + (b - 1) * digamma(b) - (total - 2) * digamma(total)
        return betaln(a, b) - slopes


class Dirichlet(Distribution):
    """Vectors of fractions that add up to 1.

    >>> nm.distributions.Dirichlet([1.0, 2.0, 1.0]).mean
    tensor([0.25, 0.5 , 0.25])
    """

    arg_constraints: ClassVar = {"concentration": constraints.independent(constraints.positive, 1)}
    support = constraints.simplex
    has_rsample = True
    concentration: Tensor

    def __init__(self, concentration: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, concentration=concentration)

    @property
    def event_shape(self) -> Shape:
        """One vector."""
        return self.concentration.shape[-1:]

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        leading = self._draw_shape(sample_shape)
        leading = leading[: len(leading) - self.concentration.ndim]
        return nm.random.dirichlet(leading, self.concentration, device=self.device, key=key)

    def log_prob(self, value: Any) -> Tensor:
        x, a = self._value(value), self.concentration
        return nm.sum(xlogy(a - 1, x), -1) - self._log_norm()

    def _log_norm(self) -> Tensor:
        a = self.concentration
        return nm.sum(lgamma(a), -1) - lgamma(nm.sum(a, -1))

    @property
    def mean(self) -> Tensor:
        return self.concentration / nm.sum(self.concentration, -1, keepdims=True)

    @property
    def mode(self) -> Tensor:
        return _mode(self.concentration)

    @property
    def variance(self) -> Tensor:
        total = nm.sum(self.concentration, -1, keepdims=True)
        mean = self.concentration / total
        return mean * (1 - mean) / (total + 1)

    def entropy(self) -> Tensor:
        a = self.concentration
        total = nm.sum(a, -1)
        slopes = nm.sum((a - 1) * digamma(a), -1)
        return self._log_norm() + (total - a.shape[-1]) * digamma(total) - slopes
