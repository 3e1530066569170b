"""The gamma distribution and its kin: chi-square, inverse gamma, F and Student's t.

Draws are differentiable by implicit reparametrisation (Figurnov, Mohamed and Mnih 2018).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numus as nm
from numus.distributions import constraints
from numus.distributions.distribution import Distribution, Key, derived, keys
from numus.special import (
    betainc,
    betaincinv,
    betaln,
    digamma,
    gammainc,
    gammaincc,
    gammaincinv,
    lgamma,
    xlogy,
)
from numus.tensor import Tensor

__all__ = ["Chi2", "FisherSnedecor", "Gamma", "InverseGamma", "StudentT"]


class _GammaDraws(Distribution):
    def _gamma(self, a: Tensor, sample_shape: Any, key: Key) -> Tensor:
        """Standard gamma draws; never 0, where logarithms and ratios end."""
        shape = self._draw_shape(sample_shape)
        x = nm.random.gamma(shape, a, dtype=self.dtype, device=self.device, key=key)
        return nm.maximum(x, float(nm.finfo(self.dtype).smallest_normal))


class Gamma(_GammaDraws):
    """The gamma distribution of a shape, `concentration`, and a `rate`.

    >>> d = nm.distributions.Gamma(2.0, 4.0)
    >>> d.mean, d.variance
    (tensor(0.5), tensor(0.125))
    >>> nm.grad(lambda a: nm.distributions.Gamma(a, 1.0).rsample(key=nm.random.key(0)))(2.0).shape
    ()
    """

    arg_constraints: ClassVar = {
        "concentration": constraints.positive,
        "rate": constraints.positive,
    }
    support = constraints.nonnegative
    has_rsample = True
    concentration: Tensor
    rate: Tensor

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, concentration=concentration, rate=rate)

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        return self._gamma(self.concentration, sample_shape, key) / self.rate

    def log_prob(self, value: Any) -> Tensor:
        x = self._value(value)
        a, b = self.concentration, self.rate
        safe = nm.where(x >= 0, x, 1.0)
        log_p = xlogy(a, b) + xlogy(a - 1, safe) - b * safe - lgamma(a)
        return nm.where(x >= 0, log_p, -nm.inf)

    def cdf(self, value: Any) -> Tensor:
        return gammainc(self.concentration, self.rate * nm.maximum(self._value(value), 0.0))

    def icdf(self, value: Any) -> Tensor:
        return gammaincinv(self.concentration, self._fraction(value)) / self.rate

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        return nm.maximum(self.concentration - 1, 0.0) / self.rate

    @property
    def variance(self) -> Tensor:
        return self.concentration / self.rate**2

    def entropy(self) -> Tensor:
        a = self.concentration
        return a - nm.log(self.rate) + lgamma(a) + (1 - a) * digamma(a)


class Chi2(Gamma):
    """The chi-square distribution: sums of `df` squared standard normal numbers.

    >>> nm.distributions.Chi2(3.0).variance
    tensor(6.)
    """

    arg_constraints: ClassVar = {"df": constraints.positive}
    df: Tensor

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, df=df)

    @derived
    def concentration(self) -> Tensor:
        """Half the degrees of freedom."""
        return 0.5 * self.df

    @derived
    def rate(self) -> Tensor:
        """One half."""
        return nm.full_like(self.df, 0.5)


class InverseGamma(_GammaDraws):
    """Reciprocals of gamma numbers.

    >>> nm.distributions.InverseGamma(3.0, 4.0).mean
    tensor(2.)
    """

    arg_constraints: ClassVar = {
        "concentration": constraints.positive,
        "rate": constraints.positive,
    }
    support = constraints.positive
    has_rsample = True
    concentration: Tensor
    rate: Tensor

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, concentration=concentration, rate=rate)

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        return self.rate / self._gamma(self.concentration, sample_shape, key)

    def log_prob(self, value: Any) -> Tensor:
        x = self._value(value)
        a, b = self.concentration, self.rate
        safe = nm.where(x > 0, x, 1.0)
        log_p = xlogy(a, b) - (a + 1) * nm.log(safe) - b / safe - lgamma(a)
        return nm.where(x > 0, log_p, -nm.inf)

    def cdf(self, value: Any) -> Tensor:
        x = self._value(value)
        inside = gammaincc(self.concentration, self.rate / nm.where(x > 0, x, 1.0))
        return nm.where(x > 0, inside, 0.0)

    def icdf(self, value: Any) -> Tensor:
        return self.rate / gammaincinv(self.concentration, 1 - self._fraction(value))

    @property
    def mean(self) -> Tensor:
        a = self.concentration
        return nm.where(a > 1, self.rate / nm.where(a > 1, a - 1, 1.0), nm.inf)

    @property
    def mode(self) -> Tensor:
        return self.rate / (self.concentration + 1)

    @property
    def variance(self) -> Tensor:
        a = nm.where(self.concentration > 2, self.concentration, 3.0)
        finite = (self.rate / (a - 1)) ** 2 / (a - 2)
        return nm.where(self.concentration > 2, finite, nm.inf)

    def entropy(self) -> Tensor:
        a = self.concentration
        return a + nm.log(self.rate) + lgamma(a) - (1 + a) * digamma(a)


class FisherSnedecor(_GammaDraws):
    """The F distribution: ratios of mean squares of df1 and df2 standard normal numbers.

    >>> nm.distributions.FisherSnedecor(3.0, 12.0).mean
    tensor(1.2)
    """

    arg_constraints: ClassVar = {"df1": constraints.positive, "df2": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True
    df1: Tensor
    df2: Tensor

    def __init__(self, df1: Any, df2: Any, validate_args: bool | None = None) -> None:
        self._set(validate_args, df1=df1, df2=df2)

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        first, second = keys(key, 2)
        top = self._gamma(0.5 * self.df1, sample_shape, first) / self.df1
        return top / (self._gamma(0.5 * self.df2, sample_shape, second) / self.df2)

    def log_prob(self, value: Any) -> Tensor:
        x = self._value(value)
        a, b = 0.5 * self.df1, 0.5 * self.df2
        ratio = self.df1 / self.df2
        safe = nm.where(x >= 0, x, 1.0)
        log_p = a * nm.log(ratio) + xlogy(a - 1, safe) - (a + b) * nm.log1p(ratio * safe)
        return nm.where(x >= 0, log_p - betaln(a, b), -nm.inf)

    def cdf(self, value: Any) -> Tensor:
        scaled = self.df1 * nm.maximum(self._value(value), 0.0)
        return betainc(0.5 * self.df1, 0.5 * self.df2, scaled / (scaled + self.df2))

    def icdf(self, value: Any) -> Tensor:
        share = betaincinv(0.5 * self.df1, 0.5 * self.df2, self._fraction(value))
        return self.df2 * share / (self.df1 * (1 - share))

    @property
    def mean(self) -> Tensor:
        b = nm.where(self.df2 > 2, self.df2, 3.0)
        return nm.where(self.df2 > 2, b / (b - 2), nm.nan)

    @property
    def mode(self) -> Tensor:
        a = nm.maximum(self.df1 - 2, 0.0) / self.df1
        return a * self.df2 / (self.df2 + 2)

    @property
    def variance(self) -> Tensor:
        a, b = self.df1, nm.where(self.df2 > 4, self.df2, 5.0)
        finite = 2 * b**2 * (a + b - 2) / (a * (b - 2) ** 2 * (b - 4))
        return nm.where(self.df2 > 4, finite, nm.nan)

    def entropy(self) -> Tensor:
        a, b = 0.5 * self.df1, 0.5 * self.df2
        slopes = (1 - a) * digamma(a) - (1 + b) * digamma(b) + (a + b) * digamma(a + b)
        return betaln(a, b) + slopes + nm.log(self.df2 / self.df1)


class StudentT(_GammaDraws):
    """Student's t with `df` degrees of freedom, scaled and shifted.

    >>> nm.distributions.StudentT(4.0).variance
    tensor(2.)
    """

    arg_constraints: ClassVar = {
        "df": constraints.positive,
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.real
    has_rsample = True
    df: Tensor
    loc: Tensor
    scale: Tensor

    def __init__(
        self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None
    ) -> None:
        self._set(validate_args, df=df, loc=loc, scale=scale)

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        first, second = keys(key, 2)
        square = self._gamma(0.5 * self.df, sample_shape, second) / (0.5 * self.df)
        z = self._normal(self._draw_shape(sample_shape), first)
        return self.loc + self.scale * z * nm.rsqrt(square)

    def log_prob(self, value: Any) -> Tensor:
        z = (self._value(value) - self.loc) / self.scale
        half = 0.5 * self.df
        # betaln(df / 2, 1 / 2) does not cancel at many degrees of freedom, as lgamma's would
        norm = 0.5 * nm.log(self.df) + betaln(half, nm.full_like(half, 0.5)) + nm.log(self.scale)
        return -(half + 0.5) * nm.log1p(z * z / self.df) - norm

    def cdf(self, value: Any) -> Tensor:
        z = (self._value(value) - self.loc) / self.scale
        square = z * z
        half = nm.full_like(self.df, 0.5)
        near = square < self.df  # the share that is smaller keeps its digits
        small = nm.where(near, square, self.df) / (square + self.df)
        inner = 0.5 * betainc(half, 0.5 * self.df, nm.where(near, small, 0.5))
        outer = 0.5 * betainc(0.5 * self.df, half, nm.where(near, 0.5, small))
        tail = nm.where(near, 0.5 - inner, outer)
        return nm.where(z < 0, tail, 1 - tail)

    def icdf(self, value: Any) -> Tensor:
        p = self._fraction(value)
        below = p < 0.5
        tail = nm.where(below, p, 1 - p)
        half = nm.full_like(self.df, 0.5)
        middle = tail > 0.25
        inner = betaincinv(half, 0.5 * self.df, nm.where(middle, 1 - 2 * tail, 0.5))
        outer = betaincinv(0.5 * self.df, half, nm.where(middle, 0.5, 2 * tail))
        ratio = nm.where(middle, inner / (1 - inner), (1 - outer) / outer)
        safe = nm.where(ratio > 0, ratio, 1.0)
        size = nm.where(ratio > 0, nm.sqrt(self.df * safe), 0.0)
        return self.loc + self.scale * nm.where(below, -size, size)

    @property
    def mean(self) -> Tensor:
        return nm.where(self.df > 1, self.loc, nm.nan)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        df = nm.where(self.df > 2, self.df, 3.0)
        wide = nm.where(self.df > 1, nm.inf, nm.nan)
        return nm.where(self.df > 2, self.scale**2 * df / (df - 2), wide)

    def entropy(self) -> Tensor:
        half = 0.5 * self.df
        slopes = (half + 0.5) * (digamma(half + 0.5) - digamma(half))
        norm = 0.5 * nm.log(self.df) + betaln(half, nm.full_like(half, 0.5))
        return nm.log(self.scale) + slopes + norm
