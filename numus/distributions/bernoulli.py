"""Coins: Bernoulli, geometric and continuous Bernoulli, by probability or by log odds."""

from __future__ import annotations

from typing import Any, ClassVar

import numus as nm
from numus.distributions import constraints
from numus.distributions.distribution import Distribution, Key, derived, one_of
from numus.special import entr, logit, softplus, xlog1py, xlogy
from numus.tensor import Tensor

__all__ = ["Bernoulli", "ContinuousBernoulli", "Geometric"]


class Odds(Distribution):
    """A probability, held as it was given: `probs`, or `logits`, the logarithm of the odds."""

    arg_constraints: ClassVar = {"probs": constraints.unit_interval, "logits": constraints.real}

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self._set(validate_args, **one_of(type(self).__name__, probs=probs, logits=logits))

    @derived
    def probs(self) -> Tensor:
        """The probability of 1."""
        return nm.sigmoid(self.logits)

    @derived
    def logits(self) -> Tensor:
        """log(probs / (1 - probs)), finite at 0 and 1."""
        probs = self.probs
        eps = float(nm.finfo(probs.dtype).eps)
        return logit(nm.clip(probs, eps, 1 - eps))

    def _log_both(self, ones: Tensor, zeros: Tensor) -> Tensor:
        """ones log(p) + zeros log(1 - p), exact for whichever parameter is held."""
        if "logits" in self.__dict__:
            return ones * self.logits - (ones + zeros) * softplus(self.logits)
        return xlogy(ones, self.probs) + xlog1py(zeros, -self.probs)


class Bernoulli(Odds):
    """1 with probability `probs`, else 0.

    >>> d = nm.distributions.Bernoulli(nm.asarray([0.0, 0.25]))
    >>> d.log_prob(0.0)
    tensor([ 0.        , -0.28768206])
    >>> d.enumerate_support(expand=False)
    tensor([[0.],
            [1.]])
    """

    support = constraints.boolean
    has_enumerate_support = True

    def sample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        shape, p = self._draw_shape(sample_shape), self.probs.detach()
        return nm.astype(nm.random.bernoulli(p, shape, device=self.device, key=key), self.dtype)

    def log_prob(self, value: Any) -> Tensor:
        x = self._value(value)
        return self._log_both(x, 1 - x)

    def cdf(self, value: Any) -> Tensor:
        x = self._value(value)
        return nm.where(x < 0, 0.0, nm.where(x < 1, 1 - self.probs, 1.0))

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        p = self.probs
        return nm.where(p == 0.5, nm.nan, nm.astype(p > 0.5, p.dtype))

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def entropy(self) -> Tensor:
        if "logits" in self.__dict__:
            return softplus(self.logits) - self.logits * self.probs
        return entr(self.probs) + entr(1 - self.probs)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return self._enumerated(nm.arange(2, dtype=self.dtype, device=self.device), expand)


class Geometric(Odds):
    """Failures before the first success of probability `probs`: 0, 1, 2, ...

    >>> nm.distributions.Geometric(0.25).mean
    tensor(3.)
    """

    arg_constraints: ClassVar = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.nonnegative_integer

    def sample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        with nm.no_grad():
            times = self._exponential(self._draw_shape(sample_shape), key)
            return nm.floor(times / -nm.log1p(-self.probs))

    def log_prob(self, value: Any) -> Tensor:
        x = self._value(value)
        return self._log_both(nm.ones_like(self.probs), x)

    def cdf(self, value: Any) -> Tensor:
        x = self._value(value)
        return -nm.expm1(xlog1py(nm.maximum(nm.floor(x) + 1, 0.0), -self.probs))

    @property
    def mean(self) -> Tensor:
        return 1 / self.probs - 1

    @property
    def mode(self) -> Tensor:
        return nm.zeros_like(self.probs)

    @property
    def variance(self) -> Tensor:
        return (1 / self.probs - 1) / self.probs

    def entropy(self) -> Tensor:
        return (entr(self.probs) + entr(1 - self.probs)) / self.probs


class ContinuousBernoulli(Odds):
    """Fractions with density proportional to exp(logits x) (Loaiza-Ganem and Cunningham 2019).

    >>> nm.distributions.ContinuousBernoulli(0.5).log_prob(0.3)
    tensor(0.)
    """

    support = constraints.unit_interval
    has_rsample = True

    def _log_norm(self) -> Tensor:
        """log((exp(l) - 1) / l)."""
        x = self.logits
        near = nm.abs(x) < 1e-3
        size = nm.where(near, 1.0, nm.abs(x))
        far = nm.maximum(x, 0.0) + nm.log(-nm.expm1(-size) / size)
        return nm.where(near, x * (0.5 + x / 24), far)

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        return self._quantile(self._uniform(self._draw_shape(sample_shape), key))

    def _quantile(self, u: Tensor) -> Tensor:
        x = self.logits
        near = nm.abs(x) < 1e-3
        # mirrored, so that exp(-size) does not overflow
        up = x > 0
        size, v = nm.where(near, 1.0, nm.abs(x)), nm.where(up, 1 - u, u)
        found = -nm.log1p(v * nm.expm1(-size)) / size
        return nm.where(near, u + 0.5 * x * u * (1 - u), nm.where(up, 1 - found, found))

    def log_prob(self, value: Any) -> Tensor:
        return self.logits * self._value(value) - self._log_norm()

    def cdf(self, value: Any) -> Tensor:
        v, x = nm.clip(self._value(value), 0.0, 1.0), self.logits
        near = nm.abs(x) < 1e-3
        up = x > 0
        size, w = nm.where(near, 1.0, nm.abs(x)), nm.where(up, 1 - v, v)
        share = nm.expm1(-size * w) / nm.expm1(-size)
        return nm.where(near, v - 0.5 * x * v * (1 - v), nm.where(up, 1 - share, share))

    def icdf(self, value: Any) -> Tensor:
        return self._quantile(self._fraction(value))

    @property
    def mean(self) -> Tensor:
        x = self.logits
        near = nm.abs(x) < 0.3
        s = x * x
        series = 0.5 + x * (1 / 12 - s * (1 / 720 - s * (1 / 30240 - s / 1209600)))
        safe = nm.where(near, 1.0, x)
        return nm.where(near, series, -1 / nm.expm1(-safe) - 1 / safe)

    @property
    def variance(self) -> Tensor:
        x = self.logits
        near = nm.abs(x) < 0.3
        s = x * x
        series = 1 / 12 - s * (1 / 240 - s * (1 / 6048 - s * (1 / 172800 - s / 5322240)))
        safe = nm.where(near, 1.0, x)
        half = nm.minimum(nm.abs(safe), 80.0) / 2
        return nm.where(near, series, 1 / safe**2 - 0.25 / nm.sinh(half) ** 2)

    def entropy(self) -> Tensor:
        return self._log_norm() - self.logits * self.mean
