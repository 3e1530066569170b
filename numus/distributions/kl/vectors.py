"""Divergences of distributions of vectors and matrices, and of composed ones."""

from __future__ import annotations

import numus as nm
from numus.distributions.categorical import Categorical, Classes, OneHotCategorical
from numus.distributions.composite import Independent, TransformedDistribution
from numus.distributions.kl.registry import kl_divergence, register_kl
from numus.distributions.matrices import Wishart
from numus.distributions.multivariate_normal import (
    LowRankMultivariateNormal,
    MultivariateNormal,
    half_log_det,
    solved,
)
from numus.distributions.simplex import Dirichlet
from numus.distributions.transforms.base import sum_last
from numus.errors import ShapeError
from numus.shapes import broadcast as broadcast_shapes
from numus.special import digamma, lgamma, multigammaln, rel_entr
from numus.tensor import Tensor


def _classes(p: Classes, q: Classes) -> Tensor:
    if "logits" in p.__dict__ and "logits" in q.__dict__:
        gap = p.logits - q.logits
        return nm.sum(nm.where(p.probs == 0, 0.0, p.probs * gap), axis=-1)
    return nm.sum(rel_entr(p.probs, q.probs), axis=-1)


@register_kl(Categorical, Categorical)
def categorical(p: Categorical, q: Categorical) -> Tensor:
    """The relative entropy of the classes."""
    return _classes(p, q)


@register_kl(OneHotCategorical, OneHotCategorical)
def one_hot(p: OneHotCategorical, q: OneHotCategorical) -> Tensor:
    """The relative entropy of the classes."""
    return _classes(p, q)


@register_kl(Dirichlet, Dirichlet)
def dirichlet(p: Dirichlet, q: Dirichlet) -> Tensor:
    """An exponential family's."""
    a, b = p.concentration, q.concentration
    total = nm.sum(a, -1)
    slopes = nm.sum((a - b) * (digamma(a) - digamma(total)[..., None]), -1)
    norms = lgamma(total) - lgamma(nm.sum(b, -1)) + nm.sum(lgamma(b) - lgamma(a), -1)
    return norms + slopes


def _squared_ratio(inner: Tensor, outer: Tensor) -> Tensor:
    """The sum of squares of inner^-1 outer: the trace of one covariance in terms of another."""
    batch = broadcast_shapes(inner.shape[:-2], outer.shape[:-2], "kl_divergence")
    a = nm.broadcast_to(inner, batch + inner.shape[-2:])
    b = nm.broadcast_to(outer, batch + outer.shape[-2:])
    found = nm.linalg.solve_triangular(a, b, lower=True)
    return nm.sum(found * found, axis=(-2, -1))


def _require_same(p: Tensor, q: Tensor) -> None:
    if p.shape[-1] != q.shape[-1]:
        raise ShapeError(
            f"kl_divergence: vectors of {p.shape[-1]} and of {q.shape[-1]}, which must be the same"
        )


def _gap(p: Tensor, q: Tensor) -> Tensor:
    _require_same(p, q)
    return p - q


@register_kl(MultivariateNormal, MultivariateNormal)
def multivariate_normal(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    """By Cholesky factors."""
    gap = _gap(p.loc, q.loc)
    factor = nm.broadcast_to(q.scale_tril, (*gap.shape[:-1], *q.scale_tril.shape[-2:]))
    far = nm.sum(solved(factor, gap) ** 2, axis=-1)
    trace = _squared_ratio(q.scale_tril, p.scale_tril)
    dets = half_log_det(q.scale_tril) - half_log_det(p.scale_tril)
    return dets + 0.5 * (trace + far - gap.shape[-1])


@register_kl(MultivariateNormal, LowRankMultivariateNormal)
def multivariate_normal_low_rank(p: MultivariateNormal, q: LowRankMultivariateNormal) -> Tensor:
    """By Woodbury's identity in q."""
    gap = _gap(p.loc, q.loc)
    # x^T cov_q^-1 x of the mean's shift and of the columns of p's factor
    other, columns = _expanded(q, gap), nm.moveaxis(p.scale_tril, -1, 0)
    whole = nm.broadcast_to(columns, (columns.shape[0], *gap.shape))
    trace, far = nm.sum(other.mahalanobis(whole), 0), other.mahalanobis(gap)
    return q.half_log_det() - half_log_det(p.scale_tril) + 0.5 * (trace + far - gap.shape[-1])


def _expanded(q: LowRankMultivariateNormal, gap: Tensor) -> LowRankMultivariateNormal:
    return q.expand(gap.shape[:-1])


@register_kl(LowRankMultivariateNormal, LowRankMultivariateNormal)
def low_rank(p: LowRankMultivariateNormal, q: LowRankMultivariateNormal) -> Tensor:
    """By Woodbury's identity in q, and the parts of p's covariance."""
    gap = _gap(p.loc, q.loc)
    other = _expanded(q, gap)
    far = other.mahalanobis(gap)
    roots = nm.concat([p.cov_factor, nm.diag_embed(nm.sqrt(p.cov_diag))], axis=-1)
    columns = nm.moveaxis(roots, -1, 0)
    whole = nm.broadcast_to(columns, (columns.shape[0], *gap.shape))
    trace = nm.sum(other.mahalanobis(whole), 0)
    return q.half_log_det() - p.half_log_det() + 0.5 * (trace + far - gap.shape[-1])


@register_kl(LowRankMultivariateNormal, MultivariateNormal)
def low_rank_multivariate_normal(p: LowRankMultivariateNormal, q: MultivariateNormal) -> Tensor:
    """By q's factor, and the parts of p's covariance."""
    gap = _gap(p.loc, q.loc)
    factor = nm.broadcast_to(q.scale_tril, (*gap.shape[:-1], *q.scale_tril.shape[-2:]))
    far = nm.sum(solved(factor, gap) ** 2, axis=-1)
    trace = _squared_ratio(factor, p.cov_factor)
    trace = trace + _squared_ratio(factor, nm.diag_embed(nm.sqrt(p.cov_diag)))
    dets = half_log_det(q.scale_tril) - p.half_log_det()
    return dets + 0.5 * (trace + far - gap.shape[-1])


@register_kl(Wishart, Wishart)
def wishart(p: Wishart, q: Wishart) -> Tensor:
    """An exponential family's."""
    _require_same(p.scale_tril, q.scale_tril)
    d, half = p.scale_tril.shape[-1], 0.5 * p.df
    offsets = 0.5 * nm.arange(d, dtype=p.dtype, device=p.device)
    slopes = nm.sum(digamma(half[..., None] - offsets), axis=-1)
    trace = _squared_ratio(q.scale_tril, p.scale_tril)
    dets = q.df * (half_log_det(q.scale_tril) - half_log_det(p.scale_tril))
    norms = multigammaln(0.5 * q.df, d) - multigammaln(half, d)
    return dets + norms + half * (trace - d) + 0.5 * (p.df - q.df) * slopes


@register_kl(Independent, Independent)
def independent(p: Independent, q: Independent) -> Tensor:
    """The sum over the axes that were taken."""
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise ShapeError(
            "kl_divergence: Independent distributions that take "
            f"{p.reinterpreted_batch_ndims} and {q.reinterpreted_batch_ndims} axes"
        )
    found = kl_divergence(p.base_dist, q.base_dist)
    return sum_last(found, p.reinterpreted_batch_ndims)


@register_kl(TransformedDistribution, TransformedDistribution)
def transformed(p: TransformedDistribution, q: TransformedDistribution) -> Tensor:
    """That of the bases where the maps are the same: a bijection keeps it."""
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise NotImplementedError(
            f"kl_divergence: the transforms differ, {list(p.transforms)} and {list(q.transforms)}"
        )
    return kl_divergence(p.base_dist, q.base_dist)
