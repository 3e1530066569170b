"""Counts: binomial, negative binomial, beta-binomial and Poisson."""

from __future__ import annotations

from typing import Any, ClassVar

import numus as nm
from numus.distributions import constraints
from numus.distributions.bernoulli import Odds
from numus.distributions.distribution import Distribution, Key, keys, one_of
from numus.errors import TracingError
from numus.special import betainc, betaln, gammaincc, lgamma, xlogy
from numus.tensor import Tensor

__all__ = ["BetaBinomial", "Binomial", "NegativeBinomial", "Poisson"]


def _log_choices(n: Tensor, k: Tensor) -> Tensor:
    """log of n over k, without the cancellation of three lgammas."""
    return -nm.log1p(n) - betaln(n - k + 1, k + 1)


class _Trials(Distribution):
    """A number of trials: counts from 0 to `total_count`."""

    has_enumerate_support = True
    total_count: Tensor

    @property
    def support(self) -> constraints.Constraint:
        """Whole numbers from 0 to total_count."""
        return constraints.integer_interval(0, self.total_count.detach())

    def _counts(self, what: str, homogeneous: bool) -> Tensor:
        """The numbers from 0 to the largest count, of one for the whole batch if `homogeneous`."""
        try:
            most, least = (int(f(self.total_count.detach())) for f in (nm.max, nm.min))
        except TracingError as error:
            raise TracingError(
                f"{type(self).__name__}.{what}: the number of values is total_count + 1, which is "
                "not known inside a trace; call it outside"
            ) from error
        if homogeneous and most != least:
            raise ValueError(
                f"{type(self).__name__}.{what}: total_count must be one number for the whole "
                f"batch, but it is from {least} to {most}"
            )
        return nm.arange(most + 1, dtype=self.dtype, device=self.device)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        return self._enumerated(self._counts("enumerate_support", True), expand)

    def entropy(self) -> Tensor:
        counts = self._enumerated(self._counts("entropy", False), False)
        logs = self.log_prob(nm.minimum(counts, self.total_count.detach()))
        logs = nm.maximum(logs, float(nm.finfo(self.dtype).min))
        terms = nm.where(counts <= self.total_count, nm.exp(logs) * logs, 0.0)
        return -nm.sum(terms, axis=0)


class Binomial(_Trials, Odds):
    """Successes in `total_count` trials of probability `probs`.

    >>> d = nm.distributions.Binomial(4, 0.5)
    >>> nm.exp(d.log_prob(d.enumerate_support()))
    tensor([0.0625, 0.25  , 0.375 , 0.25  , 0.0625])
    """

    arg_constraints: ClassVar = {
        "total_count": constraints.nonnegative_integer,
        "probs": constraints.unit_interval,
        "logits": constraints.real,
    }

    def __init__(
        self,
        total_count: Any = 1,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        given = one_of("Binomial", probs=probs, logits=logits)
        self._set(validate_args, total_count=total_count, **given)

    def sample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        shape, n, p = self._draw_shape(sample_shape), self.total_count, self.probs.detach()
        return nm.random.binomial(
            shape, n.detach(), p, dtype=self.dtype, device=self.device, key=key
        )

    def log_prob(self, value: Any) -> Tensor:
        k, n = self._value(value), self.total_count
        return _log_choices(n, k) + self._log_both(k, n - k)

    def cdf(self, value: Any) -> Tensor:
        n = self.total_count
        k = nm.floor(self._value(value))
        inside = (k >= 0) & (k < n)
        a, b = nm.where(inside, n - k, 1.0), nm.where(inside, k + 1, 1.0)
        return nm.where(inside, betainc(a, b, 1 - self.probs), nm.where(k < 0, 0.0, 1.0))

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.probs

    @property
    def mode(self) -> Tensor:
        return nm.minimum(nm.floor((self.total_count + 1) * self.probs), self.total_count)

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)


class BetaBinomial(_Trials):
    """Successes in `total_count` trials whose probability is a beta number.

    >>> nm.exp(nm.distributions.BetaBinomial(2, 1.0, 1.0).log_prob(1.0))
    tensor(0.33333334)
    """

    arg_constraints: ClassVar = {
        "total_count": constraints.nonnegative_integer,
        "concentration1": constraints.positive,
        "concentration0": constraints.positive,
    }
    concentration1: Tensor
    concentration0: Tensor

    def __init__(
        self,
        total_count: Any,
        concentration1: Any,
        concentration0: Any,
        validate_args: bool | None = None,
    ) -> None:
        self._set(
            validate_args,
            total_count=total_count,
            concentration1=concentration1,
            concentration0=concentration0,
        )

    def sample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        first, second = keys(key, 2)
        shape, options = self._draw_shape(sample_shape), {"dtype": self.dtype}
        with nm.no_grad():
            a, b = self.concentration1, self.concentration0
            p = nm.random.beta(shape, a, b, **options, device=self.device, key=first)
            return nm.random.binomial(
                shape, self.total_count, p, **options, device=self.device, key=second
            )

    def log_prob(self, value: Any) -> Tensor:
        k, n = self._value(value), self.total_count
        a, b = self.concentration1, self.concentration0
        return _log_choices(n, k) + betaln(k + a, n - k + b) - betaln(a, b)

    @property
    def mean(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return self.total_count * a / (a + b)

    @property
    def variance(self) -> Tensor:
        a, b, n = self.concentration1, self.concentration0, self.total_count
        total = a + b
        return n * a * b * (total + n) / (total**2 * (total + 1))


class NegativeBinomial(Odds):
    """Successes of probability `probs` before `total_count` failures, which need not be whole.

    >>> nm.distributions.NegativeBinomial(3.0, 0.5).mean
    tensor(3.)
    """

    arg_constraints: ClassVar = {
        "total_count": constraints.nonnegative,
        "probs": constraints.half_open_interval(0.0, 1.0),
        "logits": constraints.real,
    }
    support = constraints.nonnegative_integer
    total_count: Tensor

    def __init__(
        self,
        total_count: Any,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        given = one_of("NegativeBinomial", probs=probs, logits=logits)
        self._set(validate_args, total_count=total_count, **given)

    def sample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        shape, n, q = self._draw_shape(sample_shape), self.total_count, 1 - self.probs.detach()
        return nm.random.negative_binomial(
            shape, n.detach(), q, dtype=self.dtype, device=self.device, key=key
        )

    def log_prob(self, value: Any) -> Tensor:
        k, r = self._value(value), self.total_count
        some = (r > 0) & (k > 0)
        safe_r, safe_k = nm.where(some, r, 1.0), nm.where(some, k, 1.0)
        ways = -betaln(safe_r, safe_k + 1) - nm.log(safe_r + safe_k)
        # without failures to wait for, and with none at all, there is one way or none
        few = nm.where(k == 0, 0.0, nm.where(r > 0, 0.0, -nm.inf))
        return nm.where(some, ways, few) + self._log_both(k, r)

    def cdf(self, value: Any) -> Tensor:
        k = nm.floor(self._value(value))
        inside = betainc(self.total_count, nm.maximum(k, 0.0) + 1, 1 - self.probs)
        return nm.where(k < 0, 0.0, inside)

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.probs / (1 - self.probs)

    @property
    def mode(self) -> Tensor:
        less = nm.maximum(self.total_count - 1, 0.0)
        return nm.floor(less * self.probs / (1 - self.probs))

    @property
    def variance(self) -> Tensor:
        return self.mean / (1 - self.probs)


class Poisson(Distribution):
    """Counts of independent events with mean `rate`.

    >>> nm.distributions.Poisson(3.0).log_prob(2.0)
    tensor(-1.4959226)
    """

    arg_constraints: ClassVar = {"rate": constraints.nonnegative}
    support = constraints.nonnegative_integer
    rate: Tensor

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, rate=rate)

    def sample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        shape, rate = self._draw_shape(sample_shape), self.rate.detach()
        return nm.random.poisson(shape, rate, dtype=self.dtype, device=self.device, key=key)

    def log_prob(self, value: Any) -> Tensor:
        k = self._value(value)
        return xlogy(k, self.rate) - self.rate - lgamma(k + 1)

    def cdf(self, value: Any) -> Tensor:
        k = nm.floor(self._value(value))
        return nm.where(k < 0, 0.0, gammaincc(nm.maximum(k, 0.0) + 1, self.rate))

    @property
    def mean(self) -> Tensor:
        return self.rate

    @property
    def mode(self) -> Tensor:
        return nm.floor(self.rate)

    @property
    def variance(self) -> Tensor:
        return self.rate
