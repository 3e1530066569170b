"""Normal distributions of numbers: whole, folded, truncated, and their exponentials."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numus as nm
from numus.distributions import constraints
from numus.distributions.distribution import Distribution, Key, require
from numus.special import log_ndtr, ndtr, ndtri
from numus.tensor import Tensor

__all__ = ["HalfNormal", "LogNormal", "Normal", "TruncatedNormal"]

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


def _log_density(z: Tensor) -> Tensor:
    return -0.5 * z * z - _HALF_LOG_TAU


class Normal(Distribution):
    """The normal distribution with mean `loc` and standard deviation `scale`.

    >>> d = nm.distributions.Normal(nm.asarray([0.0, 1.0]), 2.0)
    >>> d.log_prob(1.0)
    tensor([-1.7370857, -1.6120857])
    >>> d.sample((3,), key=nm.random.key(0)).shape
    (3, 2)
    """

    arg_constraints: ClassVar = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True
    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, loc=loc, scale=scale)

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        return self.loc + self.scale * self._normal(self._draw_shape(sample_shape), key)

    def log_prob(self, value: Any) -> Tensor:
        z = (self._value(value) - self.loc) / self.scale
        return _log_density(z) - nm.log(self.scale)

    def cdf(self, value: Any) -> Tensor:
        return ndtr((self._value(value) - self.loc) / self.scale)

    def icdf(self, value: Any) -> Tensor:
        return self.loc + self.scale * ndtri(self._fraction(value))

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def stddev(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        return self.scale * self.scale

    def entropy(self) -> Tensor:
        return 0.5 + _HALF_LOG_TAU + nm.log(self.scale)


class LogNormal(Distribution):
    """exp of normal numbers with mean `loc` and standard deviation `scale`.

    >>> nm.distributions.LogNormal(0.0, 0.5).mean
    tensor(1.1331484)
    """

    arg_constraints: ClassVar = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.positive
    has_rsample = True
    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, loc=loc, scale=scale)

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        return nm.exp(self.loc + self.scale * self._normal(self._draw_shape(sample_shape), key))

    def log_prob(self, value: Any) -> Tensor:
        log_x = nm.log(self._value(value))
        return _log_density((log_x - self.loc) / self.scale) - nm.log(self.scale) - log_x

    def cdf(self, value: Any) -> Tensor:
        return ndtr((nm.log(self._value(value)) - self.loc) / self.scale)

    def icdf(self, value: Any) -> Tensor:
        return nm.exp(self.loc + self.scale * ndtri(self._fraction(value)))

    @property
    def mean(self) -> Tensor:
        return nm.exp(self.loc + 0.5 * self.scale**2)

    @property
    def mode(self) -> Tensor:
        return nm.exp(self.loc - self.scale**2)

    @property
    def variance(self) -> Tensor:
        square = self.scale**2
        return nm.expm1(square) * nm.exp(2 * self.loc + square)

    def entropy(self) -> Tensor:
        return 0.5 + _HALF_LOG_TAU + nm.log(self.scale) + self.loc


class HalfNormal(Distribution):
    """Absolute values of normal numbers with mean 0 and standard deviation `scale`.

    >>> nm.distributions.HalfNormal(1.0).mean
    tensor(0.7978846)
    """

    arg_constraints: ClassVar = {"scale": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True
    scale: Tensor

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, scale=scale)

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        return self.scale * nm.abs(self._normal(self._draw_shape(sample_shape), key))

    def log_prob(self, value: Any) -> Tensor:
        x = self._value(value)
        log_p = _log_density(x / self.scale) - nm.log(self.scale) + math.log(2)
        return nm.where(x >= 0, log_p, -nm.inf)

    def cdf(self, value: Any) -> Tensor:
        return nm.erf(nm.maximum(self._value(value), 0.0) / (self.scale * math.sqrt(2)))

    def icdf(self, value: Any) -> Tensor:
        return self.scale * math.sqrt(2) * nm.erfinv(self._fraction(value))

    @property
    def mean(self) -> Tensor:
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def mode(self) -> Tensor:
        return nm.zeros_like(self.scale)

    @property
    def variance(self) -> Tensor:
        return self.scale**2 * (1 - 2 / math.pi)

    def entropy(self) -> Tensor:
        return 0.5 + _HALF_LOG_TAU - math.log(2) + nm.log(self.scale)


class TruncatedNormal(Distribution):
    """Normal numbers on the condition that they lie from `low` to `high`; either may be infinite.

    The interval is mirrored into the lower tail, where probabilities keep their digits.

    >>> d = nm.distributions.TruncatedNormal(0.0, 1.0, 8.0, nm.inf)
    >>> round(d.mean.item(), 4)
    8.1214
    """

    arg_constraints: ClassVar = {
        "loc": constraints.real,
        "scale": constraints.positive,
        "low": constraints.real,
        "high": constraints.real,
    }
    has_rsample = True
    loc: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor

    def __init__(
        self, loc: Any, scale: Any, low: Any, high: Any, validate_args: bool | None = None
    ) -> None:
        self._set(validate_args, loc=loc, scale=scale, low=low, high=high)
        if self._validate_args:
            require(self.low < self.high, "TruncatedNormal: low must be below high")

    @property
    def support(self) -> constraints.Constraint:
        """Numbers from low to high."""
        return constraints.interval(self.low.detach(), self.high.detach())

    def _mirrored(self) -> tuple[Tensor, Tensor, Tensor]:
        """(sign, a, b): the standardised bounds, mirrored so that a has the smaller tail."""
        a, b = (self.low - self.loc) / self.scale, (self.high - self.loc) / self.scale
        upper = a > -b
        return nm.where(upper, -1.0, 1.0), nm.where(upper, -b, a), nm.where(upper, -a, b)

    def _log_mass(self) -> Tensor:
        """The logarithm of the normal probability of the interval."""
        _, a, b = self._mirrored()
        top, bottom = log_ndtr(b), log_ndtr(nm.where(a == -nm.inf, 0.0, a))
        rest = nm.where(a == -nm.inf, 0.0, nm.exp(bottom - top))
        return top + nm.log1p(-rest)

    def _quantile(self, u: Tensor) -> Tensor:
        sign, a, b = self._mirrored()
        p = nm.where(sign > 0, u, 1 - u)
        low, high = ndtr(a), ndtr(b)
        area = low + p * (high - low)
        # far out, where probabilities of the dtype end: log Phi(z) = log p by Newton's method
        log_area = log_ndtr(b) + nm.log(p + (1 - p) * nm.exp(_finite(log_ndtr(a)) - log_ndtr(b)))
        deep = log_area < -15
        target = nm.where(deep, log_area, -20.0)
        far = (-nm.sqrt(-2 * target - 2 * _HALF_LOG_TAU)).detach()
        for _ in range(5):  # the last step alone is differentiated, which is all it takes
            far = far.detach()
            value = log_ndtr(far)
            far = far - (value - target) * nm.exp(value - _log_density(far))
        z = nm.where(deep, far, ndtri(nm.where(deep, 0.5, area)))
        x = self.loc + self.scale * sign * z
        return nm.minimum(nm.maximum(x, self.low), self.high)

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        return self._quantile(self._uniform(self._draw_shape(sample_shape), key))

    def log_prob(self, value: Any) -> Tensor:
        x = self._value(value)
        log_p = _log_density((x - self.loc) / self.scale) - nm.log(self.scale) - self._log_mass()
        return nm.where((x >= self.low) & (x <= self.high), log_p, -nm.inf)

    def cdf(self, value: Any) -> Tensor:
        sign, a, b = self._mirrored()
        z = sign * (self._value(value) - self.loc) / self.scale
        z = nm.minimum(nm.maximum(z, a), b)
        log_top = log_ndtr(b)
        top, bottom = (nm.exp(_finite(log_ndtr(x)) - log_top) for x in (z, a))
        share = (top - bottom) / (1 - bottom)
        return nm.where(sign > 0, share, 1 - share)

    def icdf(self, value: Any) -> Tensor:
        return self._quantile(self._fraction(value))

    def _ratios(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """(sign, a, b, phi(a) / mass, phi(b) / mass) in mirrored coordinates."""
        sign, a, b = self._mirrored()
        log_mass = self._log_mass()
        p, q = (nm.exp(_log_density(x) - log_mass) for x in (a, b))
        return sign, a, b, p, q

    @property
    def mean(self) -> Tensor:
        sign, _, _, p, q = self._ratios()
        return self.loc + self.scale * sign * (p - q)

    @property
    def mode(self) -> Tensor:
        return nm.minimum(nm.maximum(self.loc, self.low), self.high)

    @property
    def variance(self) -> Tensor:
        _, a, b, p, q = self._ratios()
        return self.scale**2 * (1 + _finite(a) * p - _finite(b) * q - (p - q) ** 2)

    def entropy(self) -> Tensor:
        _, a, b, p, q = self._ratios()
        edges = 0.5 * (_finite(a) * p - _finite(b) * q)
        return 0.5 + _HALF_LOG_TAU + nm.log(self.scale) + self._log_mass() + edges


def _finite(x: Tensor) -> Tensor:
    """Infinite bounds as large numbers, whose products with a density of 0 are 0."""
    largest = 1e30 if x.dtype.itemsize < 8 else 1e300
    return nm.minimum(nm.maximum(x, -largest), largest)
