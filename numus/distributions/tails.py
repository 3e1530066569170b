"""Distributions made of exponential numbers: Weibull, Pareto and Kumaraswamy."""

from __future__ import annotations

from typing import Any, ClassVar

import numus as nm
from numus.distributions import constraints
from numus.distributions.distribution import Distribution, Key
from numus.special import betaln, digamma, lgamma, xlogy
from numus.tensor import Tensor

__all__ = ["Exponential", "GeneralizedPareto", "Kumaraswamy", "Pareto", "Weibull"]


class Exponential(Distribution):
    """Waiting times at a `rate`.

    >>> nm.distributions.Exponential(2.0).mean
    tensor(0.5)
    """

    arg_constraints: ClassVar = {"rate": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True
    rate: Tensor

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, rate=rate)

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        return self._exponential(self._draw_shape(sample_shape), key) / self.rate

    def log_prob(self, value: Any) -> Tensor:
        x = self._value(value)
        return nm.where(x >= 0, nm.log(self.rate) - self.rate * x, -nm.inf)

    def cdf(self, value: Any) -> Tensor:
        return -nm.expm1(-self.rate * nm.maximum(self._value(value), 0.0))

    def icdf(self, value: Any) -> Tensor:
        return -nm.log1p(-self._fraction(value)) / self.rate

    @property
    def mean(self) -> Tensor:
        return 1 / self.rate

    @property
    def mode(self) -> Tensor:
        return nm.zeros_like(self.rate)

    @property
    def variance(self) -> Tensor:
        return self.rate**-2

    def entropy(self) -> Tensor:
        return 1 - nm.log(self.rate)


class Weibull(Distribution):
    """The Weibull distribution: powers of exponential numbers.

    >>> round(nm.distributions.Weibull(1.0, 2.0).mean.item(), 4)
    0.8862
    """

    arg_constraints: ClassVar = {
        "scale": constraints.positive,
        "concentration": constraints.positive,
    }
    support = constraints.nonnegative
    has_rsample = True
    scale: Tensor
    concentration: Tensor

    def __init__(self, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, scale=scale, concentration=concentration)

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        times = self._exponential(self._draw_shape(sample_shape), key)
        return self.scale * times ** (1 / self.concentration)

    def log_prob(self, value: Any) -> Tensor:
        x = self._value(value)
        k, z = self.concentration, nm.where(x >= 0, x, 1.0) / self.scale
        return nm.where(x >= 0, nm.log(k / self.scale) + xlogy(k - 1, z) - z**k, -nm.inf)

    def cdf(self, value: Any) -> Tensor:
        z = nm.maximum(self._value(value), 0.0) / self.scale
        return -nm.expm1(-(z**self.concentration))

    def icdf(self, value: Any) -> Tensor:
        return self.scale * (-nm.log1p(-self._fraction(value))) ** (1 / self.concentration)

    @property
    def mean(self) -> Tensor:
        return self.scale * nm.exp(lgamma(1 + 1 / self.concentration))

    @property
    def mode(self) -> Tensor:
        k = self.concentration
        safe = nm.where(k > 1, k, 2.0)
        return nm.where(k > 1, self.scale * (1 - 1 / safe) ** (1 / safe), 0.0)

    @property
    def variance(self) -> Tensor:
        first, second = (lgamma(1 + n / self.concentration) for n in (1, 2))
        # exp(second) - exp(2 first), without cancellation where it is narrow
        return self.scale**2 * nm.exp(2 * first) * nm.expm1(second - 2 * first)

    def entropy(self) -> Tensor:
        k = self.concentration
        return nm.euler_gamma * (1 - 1 / k) + nm.log(self.scale / k) + 1


class Pareto(Distribution):
    """Pareto's distribution of numbers from `scale` up, with tail index `alpha`.

    >>> nm.distributions.Pareto(1.0, 3.0).mean
    tensor(1.5)
    """

    arg_constraints: ClassVar = {"scale": constraints.positive, "alpha": constraints.positive}
    has_rsample = True
    scale: Tensor
    alpha: Tensor

    def __init__(self, scale: Any, alpha: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, scale=scale, alpha=alpha)

    @property
    def support(self) -> constraints.Constraint:
        """Numbers from `scale` up."""
        return constraints.greater_than_eq(self.scale.detach())

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        times = self._exponential(self._draw_shape(sample_shape), key)
        return self.scale * nm.exp(times / self.alpha)

    def log_prob(self, value: Any) -> Tensor:
        x = self._value(value)
        log_x = nm.log(nm.maximum(x, self.scale.detach()))
        log_p = nm.log(self.alpha) + self.alpha * (nm.log(self.scale) - log_x) - log_x
        return nm.where(x >= self.scale, log_p, -nm.inf)

    def cdf(self, value: Any) -> Tensor:
        x = nm.maximum(self._value(value), self.scale)
        return -nm.expm1(self.alpha * nm.log(self.scale / x))

    def icdf(self, value: Any) -> Tensor:
        return self.scale * nm.exp(-nm.log1p(-self._fraction(value)) / self.alpha)

    @property
    def mean(self) -> Tensor:
        a = self.alpha
        return nm.where(a > 1, self.scale * a / nm.where(a > 1, a - 1, 1.0), nm.inf)

    @property
    def mode(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        a = nm.where(self.alpha > 2, self.alpha, 3.0)
        finite = self.scale**2 * a / ((a - 1) ** 2 * (a - 2))
        return nm.where(self.alpha > 2, finite, nm.inf)

    def entropy(self) -> Tensor:
        return nm.log(self.scale / self.alpha) + (1 + 1 / self.alpha)


class GeneralizedPareto(Distribution):
    """The generalised Pareto distribution: exceedances over `loc`, bounded where `concentration`
    is negative and exponential where it is 0.

    >>> nm.distributions.GeneralizedPareto(0.0, 1.0, 0.0).mean
    tensor(1.)
    """

    arg_constraints: ClassVar = {
        "loc": constraints.real,
        "scale": constraints.positive,
        "concentration": constraints.real,
    }
    has_rsample = True
    loc: Tensor
    scale: Tensor
    concentration: Tensor

    def __init__(
        self, loc: Any, scale: Any, concentration: Any, validate_args: bool | None = None
    ) -> None:
        self._set(validate_args, loc=loc, scale=scale, concentration=concentration)

    @property
    def support(self) -> constraints.Constraint:
        """Numbers from `loc` up, to a bound where `concentration` is negative."""
        c = self.concentration.detach()
        bounded = c < 0
        end = self.loc.detach() - self.scale.detach() / nm.where(bounded, c, -1.0)
        return constraints.interval(self.loc.detach(), nm.where(bounded, end, nm.inf))

    def _power(self, t: Tensor) -> Tensor:
        """(exp(c t) - 1) / c, which is t where c is near 0."""
        c = self.concentration
        zero = nm.abs(c) < 1e-6
        safe = nm.where(zero, 1.0, c)
        return nm.where(zero, t + 0.5 * c * t * t, nm.expm1(safe * t) / safe)

    def _time(self, value: Any) -> tuple[Tensor, Tensor]:
        """(x, the exponential number t with x = loc + scale (exp(c t) - 1) / c)."""
        x, c = self._value(value), self.concentration
        z = nm.maximum((x - self.loc) / self.scale, 0.0)
        zero = nm.abs(c) < 1e-6
        safe = nm.where(zero, 1.0, c)
        return x, nm.where(zero, z - 0.5 * c * z * z, nm.log1p(nm.maximum(safe * z, -1.0)) / safe)

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        times = self._exponential(self._draw_shape(sample_shape), key)
        return self.loc + self.scale * self._power(times)

    def log_prob(self, value: Any) -> Tensor:
        x, t = self._time(value)
        log_p = -nm.log(self.scale) - (1 + self.concentration) * t
        return nm.where(self.support.check(x.detach()), log_p, -nm.inf)

    def cdf(self, value: Any) -> Tensor:
        return -nm.expm1(-self._time(value)[1])

    def icdf(self, value: Any) -> Tensor:
        return self.loc + self.scale * self._power(-nm.log1p(-self._fraction(value)))

    @property
    def mean(self) -> Tensor:
        c = self.concentration
        return nm.where(c < 1, self.loc + self.scale / nm.where(c < 1, 1 - c, 1.0), nm.inf)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        c = nm.where(self.concentration < 0.5, self.concentration, 0.0)
        finite = self.scale**2 / ((1 - c) ** 2 * (1 - 2 * c))
        return nm.where(self.concentration < 0.5, finite, nm.inf)

    def entropy(self) -> Tensor:
        return nm.log(self.scale) + self.concentration + 1


class Kumaraswamy(Distribution):
    """Kumaraswamy's distribution of fractions, much like the beta distribution.

    >>> nm.distributions.Kumaraswamy(1.0, 1.0).mean
    tensor(0.5)
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

    def _quantile(self, t: Tensor) -> Tensor:
        """Of probability 1 - exp(-t)."""
        return (-nm.expm1(-t / self.concentration0)) ** (1 / self.concentration1)

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        return self._quantile(self._exponential(self._draw_shape(sample_shape), key))

    def log_prob(self, value: Any) -> Tensor:
        x = self._value(value)
        a, b = self.concentration1, self.concentration0
        inside = (x >= 0) & (x <= 1)
        x = nm.where(inside, x, 0.5)
        log_p = nm.log(a * b) + xlogy(a - 1, x) + xlogy(b - 1, -nm.expm1(a * nm.log(x)))
        return nm.where(inside, log_p, -nm.inf)

    def cdf(self, value: Any) -> Tensor:
        x = nm.clip(self._value(value), 0.0, 1.0)
        inner = nm.log1p(-(x**self.concentration1))
        return -nm.expm1(self.concentration0 * inner)

    def icdf(self, value: Any) -> Tensor:
        return self._quantile(-nm.log1p(-self._fraction(value)))

    def _moment(self, n: int) -> Tensor:
        b = self.concentration0
        return b * nm.exp(betaln(1 + n / self.concentration1, b))

    @property
    def mean(self) -> Tensor:
        return self._moment(1)

    @property
    def mode(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        known = (a >= 1) & (b >= 1) & (a * b > 1)
        top, bottom = nm.where(known, a - 1, 1.0), nm.where(known, a * b - 1, 1.0)
        return nm.where(known, (top / bottom) ** (1 / a), nm.nan)

    @property
    def variance(self) -> Tensor:
        return self._moment(2) - self._moment(1) ** 2

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        harmonic = digamma(b + 1) + nm.euler_gamma
        return (1 - 1 / b) + (1 - 1 / a) * harmonic - nm.log(a * b)
