"""Divergences of distributions of numbers of two families."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numus as nm
from numus.distributions.bernoulli import Bernoulli, ContinuousBernoulli
from numus.distributions.counts import Binomial, Poisson
from numus.distributions.gamma import Gamma
from numus.distributions.kl.registry import register_kl
from numus.distributions.location_scale import Gumbel, Laplace, Uniform
from numus.distributions.normal import Normal
from numus.distributions.simplex import Beta
from numus.distributions.tails import Exponential, Pareto
from numus.shapes import broadcast as broadcast_shapes
from numus.special import betaln, digamma, entr, lgamma, ndtr, xlogy
from numus.tensor import Tensor

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


def _infinite(p: Any, q: Any) -> Tensor:
    """Of distributions that draw what the other never does."""
    shape = broadcast_shapes(p.batch_shape, q.batch_shape, "kl_divergence")
    return nm.full(shape, nm.inf, dtype=p.dtype, device=p.device)


_UNIT, _POSITIVE = (Beta, ContinuousBernoulli), (Exponential, Gamma)
for _pair in (
    *product((Beta, ContinuousBernoulli), (Pareto,)),
    *product((Exponential, Gamma, Gumbel, Laplace, Normal), (*_UNIT, Pareto, Uniform)),
    *product((Gumbel, Laplace, Normal), _POSITIVE),
    *product((Pareto,), (*_UNIT, Uniform)),
    *product((Poisson,), (Bernoulli, Binomial)),
):
    register_kl(*_pair)(_infinite)


def _normal_cross(variance: Tensor, mean: Tensor, q: Normal) -> Tensor:
    """The mean of -log q of numbers with these moments."""
    far = (variance + (mean - q.loc) ** 2) / q.scale**2
    return 0.5 * far + nm.log(q.scale) + _HALF_LOG_TAU


def _to_normal(p: Any, q: Normal) -> Tensor:
    """-entropy less the mean of a quadratic."""
    return _normal_cross(p.variance, p.mean, q) - p.entropy()


def _to_exponential(p: Any, q: Exponential) -> Tensor:
    """-entropy less the mean of a linear function."""
    return q.rate * p.mean - nm.log(q.rate) - p.entropy()


for _kind in (Beta, ContinuousBernoulli, Exponential, Gamma, Gumbel, Laplace, Uniform):
    register_kl(_kind, Normal)(_to_normal)
for _kind in (Beta, ContinuousBernoulli, Gamma):
    register_kl(_kind, Exponential)(_to_exponential)


def _gamma_norm(q: Gamma) -> Tensor:
    """The logarithm of the constant that its density is divided by."""
    return lgamma(q.concentration) - q.concentration * nm.log(q.rate)


@register_kl(Bernoulli, Poisson)
def bernoulli_poisson(p: Bernoulli, q: Poisson) -> Tensor:
    """0 and 1 are counts, and their factorials 1."""
    plain = -(entr(p.probs) + entr(1 - p.probs))
    return plain - (p.probs * nm.log(q.rate) - q.rate)


@register_kl(Beta, ContinuousBernoulli)
def beta_continuous_bernoulli(p: Beta, q: ContinuousBernoulli) -> Tensor:
    """The density of q is linear in its logarithm."""
    return -p.entropy() - p.mean * q.logits + q._log_norm()


@register_kl(Beta, Gamma)
def beta_gamma(p: Beta, q: Gamma) -> Tensor:
    """By the mean logarithm of a beta number."""
    a, b = p._pair
    logs = digamma(a) - digamma(a + b)
    return -p.entropy() + _gamma_norm(q) - (q.concentration - 1) * logs + q.rate * p.mean


@register_kl(Beta, Uniform)
def beta_uniform(p: Beta, q: Uniform) -> Tensor:
    """Infinite where q does not hold all fractions."""
    inside = (q.low <= 0) & (q.high >= 1)
    return nm.where(inside, nm.log(q.high - q.low) - p.entropy(), nm.inf)


@register_kl(ContinuousBernoulli, Uniform)
def continuous_bernoulli_uniform(p: ContinuousBernoulli, q: Uniform) -> Tensor:
    """Infinite where q does not hold all fractions."""
    inside = (q.low <= 0) & (q.high >= 1)
    return nm.where(inside, nm.log(q.high - q.low) - p.entropy(), nm.inf)


@register_kl(Exponential, Gamma)
def exponential_gamma(p: Exponential, q: Gamma) -> Tensor:
    """A gamma number of shape 1 against another."""
    ratio, a = q.rate / p.rate, q.concentration
    return -a * nm.log(ratio) + ratio + lgamma(a) + a * nm.euler_gamma - (1 + nm.euler_gamma)


@register_kl(Exponential, Gumbel)
def exponential_gumbel(p: Exponential, q: Gumbel) -> Tensor:
    """By the moment generating function of p."""
    product_ = p.rate * q.scale
    shift = q.loc / q.scale
    return nm.log(product_) - 1 + nm.exp(shift) * product_ / (product_ + 1) - shift + 1 / product_


@register_kl(Gamma, Gumbel)
def gamma_gumbel(p: Gamma, q: Gumbel) -> Tensor:
    """By the moment generating function of p."""
    product_ = p.rate * q.scale
    shift = q.loc / q.scale
    logs = (p.concentration - 1) * digamma(p.concentration) - lgamma(p.concentration)
    moment = nm.exp(shift - p.concentration * nm.log1p(1 / product_))
    return logs - p.concentration + nm.log(product_) + p.concentration / product_ - shift + moment


@register_kl(Normal, Gumbel)
def normal_gumbel(p: Normal, q: Gumbel) -> Tensor:
    """By the moment generating function of p."""
    far, ratio = (p.loc - q.loc) / q.scale, (p.scale / q.scale) ** 2
    moment = nm.exp(-far + 0.5 * ratio)
    return far + moment + nm.log(q.scale / p.scale) - (0.5 + _HALF_LOG_TAU)


@register_kl(Normal, Laplace)
def normal_laplace(p: Normal, q: Laplace) -> Tensor:
    """By the mean distance of a normal number from a point."""
    far = (p.loc - q.loc) / p.scale
    distance = p.scale * (2 * nm.exp(-0.5 * far * far - _HALF_LOG_TAU) + far * (2 * ndtr(far) - 1))
    return distance / q.scale + nm.log(2 * q.scale / p.scale) - (0.5 + _HALF_LOG_TAU)


@register_kl(Pareto, Exponential)
def pareto_exponential(p: Pareto, q: Exponential) -> Tensor:
    """Infinite where p has no mean."""
    return q.rate * p.mean - nm.log(q.rate) - p.entropy()


@register_kl(Pareto, Gamma)
def pareto_gamma(p: Pareto, q: Gamma) -> Tensor:
    """Infinite where p has no mean."""
    logs = nm.log(p.scale) + 1 / p.alpha
    return -p.entropy() + _gamma_norm(q) - (q.concentration - 1) * logs + q.rate * p.mean


@register_kl(Pareto, Normal)
def pareto_normal(p: Pareto, q: Normal) -> Tensor:
    """Infinite where p has no variance."""
    known = p.alpha > 2
    mean, variance = nm.where(known, p.mean, 0.0), nm.where(known, p.variance, 0.0)
    return nm.where(known, _normal_cross(variance, mean, q) - p.entropy(), nm.inf)


def _mean_log(low: Tensor, high: Tensor) -> Tensor:
    """The mean of log x for x uniform between two bounds that are not negative."""
    return (xlogy(high, high) - xlogy(low, low)) / (high - low) - 1


@register_kl(Uniform, Beta)
def uniform_beta(p: Uniform, q: Beta) -> Tensor:
    """Infinite where p is not inside [0, 1]."""
    inside = (p.low >= 0) & (p.high <= 1)
    low, high = nm.where(inside, p.low, 0.0), nm.where(inside, p.high, 1.0)
    a, b = q._pair
    logs = (a - 1) * _mean_log(low, high) + (b - 1) * _mean_log(1 - high, 1 - low)
    return nm.where(inside, -p.entropy() - logs + betaln(a, b), nm.inf)


@register_kl(Uniform, ContinuousBernoulli)
def uniform_continuous_bernoulli(p: Uniform, q: ContinuousBernoulli) -> Tensor:
    """Infinite where p is not inside [0, 1]."""
    inside = (p.low >= 0) & (p.high <= 1)
    return nm.where(inside, -p.entropy() - p.mean * q.logits + q._log_norm(), nm.inf)


@register_kl(Uniform, Exponential)
def uniform_exponential(p: Uniform, q: Exponential) -> Tensor:
    """Infinite where p draws negative numbers."""
    return nm.where(p.low < 0, nm.inf, _to_exponential(p, q))


@register_kl(Uniform, Gamma)
def uniform_gamma(p: Uniform, q: Gamma) -> Tensor:
    """Infinite where p draws negative numbers."""
    inside = p.low >= 0
    low = nm.where(inside, p.low, 0.0)
    high = nm.where(inside, p.high, 1.0)
    logs = (q.concentration - 1) * _mean_log(low, high)
    return nm.where(inside, -p.entropy() + _gamma_norm(q) - logs + q.rate * p.mean, nm.inf)


@register_kl(Uniform, Gumbel)
def uniform_gumbel(p: Uniform, q: Gumbel) -> Tensor:
    """By the integral of an exponential."""
    low, high = (p.low - q.loc) / q.scale, (p.high - q.loc) / q.scale
    moment = (nm.exp(-low) - nm.exp(-high)) / (high - low)
    return nm.log(q.scale) - p.entropy() + 0.5 * (low + high) + moment


@register_kl(Uniform, Pareto)
def uniform_pareto(p: Uniform, q: Pareto) -> Tensor:
    """Infinite where p begins before q."""
    inside = p.low >= q.scale
    low = nm.where(inside, p.low, 1.0)
    high = nm.where(inside, p.high, 2.0)
    logs = (q.alpha + 1) * _mean_log(low, high)
    norm = nm.log(q.alpha) + q.alpha * nm.log(q.scale)
    return nm.where(inside, -p.entropy() + logs - norm, nm.inf)
