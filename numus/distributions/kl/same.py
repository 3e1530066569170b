"""Divergences of two distributions of numbers of one family."""

from __future__ import annotations

import numus as nm
from numus.distributions.bernoulli import Bernoulli, ContinuousBernoulli, Geometric
from numus.distributions.counts import Binomial, Poisson
from numus.distributions.gamma import Gamma, InverseGamma
from numus.distributions.kl.registry import register_kl
from numus.distributions.location_scale import Cauchy, Gumbel, Laplace, Uniform
from numus.distributions.normal import HalfNormal, LogNormal, Normal
from numus.distributions.simplex import Beta
from numus.distributions.tails import Exponential, Pareto, Weibull
from numus.distributions.von_mises import VonMises, one_less_ratio
from numus.special import betaln, digamma, i0e, lgamma, rel_entr, softplus
from numus.tensor import Tensor


@register_kl(Bernoulli, Bernoulli)
def bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    """By log odds where both are held so, else by probabilities, which may be 0."""
    if "logits" in p.__dict__ and "logits" in q.__dict__:
        a, b = p.logits, q.logits
        return p.probs * (softplus(-b) - softplus(-a)) + (1 - p.probs) * (softplus(b) - softplus(a))
    return rel_entr(p.probs, q.probs) + rel_entr(1 - p.probs, 1 - q.probs)


@register_kl(Binomial, Binomial)
def binomial(p: Binomial, q: Binomial) -> Tensor:
    """That of as many coins; infinite where p counts further than q."""
    coins = rel_entr(p.probs, q.probs) + rel_entr(1 - p.probs, 1 - q.probs)
    known = p.total_count == q.total_count
    rest = nm.where(p.total_count > q.total_count, nm.inf, nm.nan)
    return nm.where(known, p.total_count * coins, rest)


@register_kl(Geometric, Geometric)
def geometric(p: Geometric, q: Geometric) -> Tensor:
    """-entropy less the mean of log q."""
    return -p.entropy() - nm.log1p(-q.probs) / p.probs - q.logits


@register_kl(Poisson, Poisson)
def poisson(p: Poisson, q: Poisson) -> Tensor:
    """Kullback and Leibler's term of the rates."""
    return rel_entr(p.rate, q.rate) - (p.rate - q.rate)


@register_kl(ContinuousBernoulli, ContinuousBernoulli)
def continuous_bernoulli(p: ContinuousBernoulli, q: ContinuousBernoulli) -> Tensor:
    """Linear in the mean."""
    return p.mean * (p.logits - q.logits) - p._log_norm() + q._log_norm()


@register_kl(Normal, Normal)
def normal(p: Normal, q: Normal) -> Tensor:
    """By the ratio of scales and the distance of means."""
    ratio = (p.scale / q.scale) ** 2
    far = ((p.loc - q.loc) / q.scale) ** 2
    return 0.5 * (ratio + far - 1 - nm.log(ratio))


@register_kl(LogNormal, LogNormal)
def log_normal(p: LogNormal, q: LogNormal) -> Tensor:
    """That of the normal numbers: a bijection keeps it."""
    ratio = (p.scale / q.scale) ** 2
    far = ((p.loc - q.loc) / q.scale) ** 2
    return 0.5 * (ratio + far - 1 - nm.log(ratio))


@register_kl(HalfNormal, HalfNormal)
def half_normal(p: HalfNormal, q: HalfNormal) -> Tensor:
    """That of the normal numbers."""
    ratio = (p.scale / q.scale) ** 2
    return 0.5 * (ratio - 1 - nm.log(ratio))


@register_kl(Laplace, Laplace)
def laplace(p: Laplace, q: Laplace) -> Tensor:
    """Meyer 2021."""
    ratio, far = p.scale / q.scale, nm.abs(p.loc - q.loc)
    return -nm.log(ratio) + far / q.scale + ratio * nm.exp(-far / p.scale) - 1


@register_kl(Cauchy, Cauchy)
def cauchy(p: Cauchy, q: Cauchy) -> Tensor:
    """Chyzak and Nielsen 2019."""
    total = (p.scale + q.scale) ** 2 + (p.loc - q.loc) ** 2
    return nm.log(total) - nm.log(4 * p.scale * q.scale)


@register_kl(Gumbel, Gumbel)
def gumbel(p: Gumbel, q: Gumbel) -> Tensor:
    """By the moment generating function of the Gumbel distribution."""
    ratio, far = p.scale / q.scale, (q.loc - p.loc) / q.scale
    moved = nm.exp(far + lgamma(1 + ratio)) - (1 + nm.euler_gamma)
    return -nm.log(ratio) - far + ratio * nm.euler_gamma + moved


@register_kl(Uniform, Uniform)
def uniform(p: Uniform, q: Uniform) -> Tensor:
    """Infinite where p is not inside q."""
    inside = (q.low <= p.low) & (q.high >= p.high)
    return nm.where(inside, nm.log((q.high - q.low) / (p.high - p.low)), nm.inf)


@register_kl(Exponential, Exponential)
def exponential(p: Exponential, q: Exponential) -> Tensor:
    """By the ratio of rates."""
    ratio = q.rate / p.rate
    return ratio - 1 - nm.log(ratio)


@register_kl(Pareto, Pareto)
def pareto(p: Pareto, q: Pareto) -> Tensor:
    """Infinite where p begins before q."""
    ratio = q.alpha / p.alpha
    found = q.alpha * nm.log(p.scale / q.scale) - nm.log(ratio) + ratio - 1
    return nm.where(p.scale < q.scale, nm.inf, found)


@register_kl(Weibull, Weibull)
def weibull(p: Weibull, q: Weibull) -> Tensor:
    """Bauckhage 2013."""
    a, b = p.concentration, q.concentration
    log_ratio = nm.log(p.scale / q.scale)
    norms = nm.log(a) - nm.log(b) + nm.log(q.scale) * b - nm.log(p.scale) * a
    slope = (a - b) * (nm.log(p.scale) - nm.euler_gamma / a)
    return norms + slope + nm.exp(b * log_ratio + lgamma(b / a + 1)) - 1


@register_kl(Gamma, Gamma)
def gamma(p: Gamma, q: Gamma) -> Tensor:
    """An exponential family's."""
    a, b = p.concentration, q.concentration
    rates = b * nm.log(p.rate / q.rate) + a * (q.rate / p.rate - 1)
    return rates + lgamma(b) - lgamma(a) + (a - b) * digamma(a)


@register_kl(InverseGamma, InverseGamma)
def inverse_gamma(p: InverseGamma, q: InverseGamma) -> Tensor:
    """That of the reciprocals, which are gamma numbers."""
    a, b = p.concentration, q.concentration
    rates = b * nm.log(p.rate / q.rate) + a * (q.rate / p.rate - 1)
    return rates + lgamma(b) - lgamma(a) + (a - b) * digamma(a)


@register_kl(Beta, Beta)
def beta(p: Beta, q: Beta) -> Tensor:
    """An exponential family's."""
    (a, b), (c, d) = p._pair, q._pair
    slopes = (a - c) * digamma(a) + (b - d) * digamma(b) + (c + d - a - b) * digamma(a + b)
    return betaln(c, d) - betaln(a, b) + slopes


@register_kl(VonMises, VonMises)
def von_mises(p: VonMises, q: VonMises) -> Tensor:
    """By the mean of the cosine, I1(k) / I0(k)."""
    a, b = p.concentration, q.concentration
    ratio = 1 - one_less_ratio(a)
    rise = 2 * nm.sin(0.5 * (p.loc - q.loc)) ** 2  # 1 - cos
    norms = nm.log(i0e(b) / i0e(a)) + (b - a)
    return norms + (a - b) * ratio + b * ratio * rise
