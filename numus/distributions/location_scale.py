"""Distributions with a location and a scale: Laplace, logistic, Gumbel, Cauchy, uniform."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numus as nm
from numus.distributions import constraints
from numus.distributions.distribution import Distribution, Key, require
from numus.special import log_expit, logit
from numus.tensor import Tensor

__all__ = ["Cauchy", "Gumbel", "HalfCauchy", "Laplace", "Logistic", "Uniform"]


class _LocationScale(Distribution):
    """A standard distribution, scaled and shifted."""

    arg_constraints: ClassVar = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True
    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, loc=loc, scale=scale)

    def _standardised(self, value: Any) -> Tensor:
        return (self._value(value) - self.loc) / self.scale

    def _draws(self, draw: Any, sample_shape: Any, key: Key) -> Tensor:
        shape = self._draw_shape(sample_shape)
        z = draw(shape, 0.0, 1.0, dtype=self.dtype, device=self.device, key=key)
        return self.loc + self.scale * z

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc


class Laplace(_LocationScale):
    """The Laplace distribution: exponential on both sides of `loc`.

    >>> nm.distributions.Laplace(0.0, 1.0).log_prob(0.0)
    tensor(-0.6931472)
    """

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        return self._draws(nm.random.laplace, sample_shape, key)

    def log_prob(self, value: Any) -> Tensor:
        return -nm.abs(self._standardised(value)) - nm.log(2 * self.scale)

    def cdf(self, value: Any) -> Tensor:
        z = self._standardised(value)
        tail = 0.5 * nm.exp(-nm.abs(z))
        return nm.where(z < 0, tail, 1 - tail)

    def icdf(self, value: Any) -> Tensor:
        p = self._fraction(value)
        below = p < 0.5
        tail = nm.log(2 * nm.where(below, p, 1 - p))
        return self.loc + self.scale * nm.where(below, tail, -tail)

    @property
    def variance(self) -> Tensor:
        return 2 * self.scale**2

    def entropy(self) -> Tensor:
        return 1 + nm.log(2 * self.scale)


class Logistic(_LocationScale):
    """The logistic distribution, whose cdf is the sigmoid.

    >>> nm.distributions.Logistic(0.0, 1.0).cdf(0.0)
    tensor(0.5)
    """

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        return self._draws(nm.random.logistic, sample_shape, key)

    def log_prob(self, value: Any) -> Tensor:
        z = self._standardised(value)
        return log_expit(z) + log_expit(-z) - nm.log(self.scale)

    def cdf(self, value: Any) -> Tensor:
        return nm.sigmoid(self._standardised(value))

    def icdf(self, value: Any) -> Tensor:
        return self.loc + self.scale * logit(self._fraction(value))

    @property
    def variance(self) -> Tensor:
        return self.scale**2 * (math.pi**2 / 3)

    def entropy(self) -> Tensor:
        return 2 + nm.log(self.scale)


class Gumbel(_LocationScale):
    """The Gumbel distribution: the largest of many exponential numbers.

    >>> nm.distributions.Gumbel(0.0, 1.0).mean
    tensor(0.5772157)
    """

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        return self._draws(nm.random.gumbel, sample_shape, key)

    def log_prob(self, value: Any) -> Tensor:
        z = self._standardised(value)
        return -z - nm.exp(-z) - nm.log(self.scale)

    def cdf(self, value: Any) -> Tensor:
        return nm.exp(-nm.exp(-self._standardised(value)))

    def icdf(self, value: Any) -> Tensor:
        return self.loc - self.scale * nm.log(-nm.log(self._fraction(value)))

    @property
    def mean(self) -> Tensor:
        return self.loc + self.scale * nm.euler_gamma

    @property
    def variance(self) -> Tensor:
        return self.scale**2 * (math.pi**2 / 6)

    def entropy(self) -> Tensor:
        return nm.log(self.scale) + (1 + nm.euler_gamma)


class Cauchy(_LocationScale):
    """The Cauchy distribution, which has no mean: ratios of normal numbers.

    >>> nm.distributions.Cauchy(0.0, 1.0).cdf(1.0)
    tensor(0.75)
    """

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        u = self._uniform(self._draw_shape(sample_shape), key)
        return self.loc + self.scale * nm.tan(math.pi * (u - 0.5))

    def log_prob(self, value: Any) -> Tensor:
        z = self._standardised(value)
        return -nm.log1p(z * z) - nm.log(self.scale) - math.log(math.pi)

    def cdf(self, value: Any) -> Tensor:
        return nm.atan2(nm.ones_like(self.loc), -self._standardised(value)) / math.pi

    def icdf(self, value: Any) -> Tensor:
        return self.loc + self.scale * nm.tan(math.pi * (self._fraction(value) - 0.5))

    @property
    def mean(self) -> Tensor:
        return nm.full_like(self.loc, nm.nan)

    @property
    def variance(self) -> Tensor:
        return nm.full_like(self.loc, nm.inf)

    def entropy(self) -> Tensor:
        return nm.log(4 * math.pi * self.scale)


class HalfCauchy(Distribution):
    """Absolute values of Cauchy numbers.

    >>> round(nm.distributions.HalfCauchy(2.0).icdf(0.5).item(), 4)
    2.0
    """

    arg_constraints: ClassVar = {"scale": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True
    scale: Tensor

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, scale=scale)

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        u = self._uniform(self._draw_shape(sample_shape), key)
        return self.scale * nm.tan((0.5 * math.pi) * u)

    def log_prob(self, value: Any) -> Tensor:
        x = self._value(value)
        z = x / self.scale
        log_p = math.log(2 / math.pi) - nm.log(self.scale) - nm.log1p(z * z)
        return nm.where(x >= 0, log_p, -nm.inf)

    def cdf(self, value: Any) -> Tensor:
        return nm.atan(nm.maximum(self._value(value), 0.0) / self.scale) * (2 / math.pi)

    def icdf(self, value: Any) -> Tensor:
        return self.scale * nm.tan((0.5 * math.pi) * self._fraction(value))

    @property
    def mean(self) -> Tensor:
        return nm.full_like(self.scale, nm.inf)

    @property
    def mode(self) -> Tensor:
        return nm.zeros_like(self.scale)

    @property
    def variance(self) -> Tensor:
        return nm.full_like(self.scale, nm.inf)

    def entropy(self) -> Tensor:
        return nm.log(2 * math.pi * self.scale)


class Uniform(Distribution):
    """Numbers from `low` up to `high`, all as likely.

    >>> nm.distributions.Uniform(1.0, 3.0).log_prob(2.0)
    tensor(-0.6931472)
    """

    arg_constraints: ClassVar = {"low": constraints.real, "high": constraints.real}
    has_rsample = True
    low: Tensor
    high: Tensor

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, low=low, high=high)
        if self._validate_args:
            require(self.low < self.high, "Uniform: low must be below high")

    @property
    def support(self) -> constraints.Constraint:
        """Numbers from low to high."""
        return constraints.interval(self.low.detach(), self.high.detach())

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        shape = self._draw_shape(sample_shape)
        u = nm.random.uniform(shape, dtype=self.dtype, device=self.device, key=key)
        return self.low + u * (self.high - self.low)

    def log_prob(self, value: Any) -> Tensor:
        x = self._value(value)
        inside = (x >= self.low) & (x <= self.high)
        return nm.where(inside, -nm.log(self.high - self.low), -nm.inf)

    def cdf(self, value: Any) -> Tensor:
        return nm.clip((self._value(value) - self.low) / (self.high - self.low), 0.0, 1.0)

    def icdf(self, value: Any) -> Tensor:
        return self.low + self._fraction(value) * (self.high - self.low)

    @property
    def mean(self) -> Tensor:
        return 0.5 * (self.low + self.high)

    @property
    def mode(self) -> Tensor:
        return nm.full_like(self.low, nm.nan)

    @property
    def variance(self) -> Tensor:
        return (self.high - self.low) ** 2 / 12

    def entropy(self) -> Tensor:
        return nm.log(self.high - self.low)
