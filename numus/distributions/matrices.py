"""Random matrices: Wishart's, and Cholesky factors of correlations (LKJ)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numus as nm
from numus.distributions import constraints
from numus.distributions.distribution import (
    Distribution,
    Key,
    check_constraint,
    derived,
    floats,
    keys,
    one_of,
)
from numus.distributions.multivariate_normal import covariance_factor, diagonal, half_log_det
from numus.errors import ShapeError
from numus.shapes import Shape, as_int
from numus.shapes import broadcast as broadcast_shapes
from numus.special import digamma, lgamma, multigammaln
from numus.tensor import Tensor

__all__ = ["LKJCholesky", "Wishart"]


class Wishart(Distribution):
    """Positive definite matrices: sums of `df` outer products of normal vectors with one of
    `covariance_matrix`, `precision_matrix` and `scale_tril`, drawn by Bartlett's decomposition.

    >>> d = nm.distributions.Wishart(3.0, [[1.0, 0.0], [0.0, 2.0]])
    >>> d.mean
    tensor([[3., 0.],
            [0., 6.]])
    """

    arg_constraints: ClassVar = {
        "df": constraints.positive,
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    support = constraints.positive_definite
    has_rsample = True
    df: Tensor

    def __init__(
        self,
        df: Any,
        covariance_matrix: Any = None,
        precision_matrix: Any = None,
        scale_tril: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        op = "Wishart"
        self._set_validation(validate_args)
        ((name, given),) = one_of(
            op,
            covariance_matrix=covariance_matrix,
            precision_matrix=precision_matrix,
            scale_tril=scale_tril,
        ).items()
        freedom, matrix = floats(op, df, given)
        if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
            raise ShapeError(f"{op}: {name} must be square, not of shape {matrix.shape}")
        if self._validate_args:
            bound = constraints.greater_than(matrix.shape[-1] - 1)
            check_constraint(op, "df", freedom, bound)
            check_constraint(op, name, matrix, self.arg_constraints[name])
        batch = broadcast_shapes(freedom.shape, matrix.shape[:-2], op)
        self.df = nm.broadcast_to(freedom, batch)
        held = {name: matrix, "scale_tril": covariance_factor(name, matrix)}
        self.__dict__ |= {n: nm.broadcast_to(x, batch + x.shape[-2:]) for n, x in held.items()}

    @derived
    def scale_tril(self) -> Tensor:
        """The lower Cholesky factor of the covariance."""
        return self.__dict__["scale_tril"]

    @derived
    def covariance_matrix(self) -> Tensor:
        """The covariance of the normal vectors."""
        return nm.matmul(self.scale_tril, self.scale_tril.mT)

    @derived
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance of the normal vectors."""
        return nm.linalg.inv(self.covariance_matrix)

    @property
    def event_shape(self) -> Shape:
        """One matrix."""
        return self.scale_tril.shape[-2:]

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        first, second = keys(key, 2)
        shape, d = self._draw_shape(sample_shape), self.event_shape[0]
        freedom = self.df[..., None] - nm.arange(d, dtype=self.dtype, device=self.device)
        squares = nm.random.gamma(
            shape[:-1], 0.5 * freedom, dtype=self.dtype, device=self.device, key=first
        )
        below = nm.tril(self._normal(shape, second), -1)
        root = nm.matmul(self.scale_tril, below + nm.diag_embed(nm.sqrt(2 * squares)))
        return nm.matmul(root, root.mT)

    def log_prob(self, value: Any) -> Tensor:
        x, factor, d = self._value(value), self.scale_tril, self.event_shape[0]
        whole = broadcast_shapes(x.shape, factor.shape, "Wishart.log_prob")
        root = nm.broadcast_to(nm.linalg.cholesky(x), whole)
        # trace(covariance^-1 x) is the sum of squares of factor^-1 root
        ratio = nm.linalg.solve_triangular(nm.broadcast_to(factor, whole), root, lower=True)
        trace = nm.sum(ratio * ratio, axis=(-2, -1))
        norm = self.df * (0.5 * d * math.log(2) + half_log_det(factor))
        rest = (self.df - d - 1) * half_log_det(root) - 0.5 * trace
        return rest - norm - multigammaln(0.5 * self.df, d)

    @property
    def mean(self) -> Tensor:
        return self.df[..., None, None] * self.covariance_matrix

    @property
    def mode(self) -> Tensor:
        factor = self.df - self.event_shape[0] - 1
        factor = nm.where(factor > 0, factor, nm.nan)
        return factor[..., None, None] * self.covariance_matrix

    @property
    def variance(self) -> Tensor:
        cov = self.covariance_matrix
        diag = diagonal(cov)
        return self.df[..., None, None] * (cov**2 + diag[..., :, None] * diag[..., None, :])

    def entropy(self) -> Tensor:
        d, half = self.event_shape[0], 0.5 * self.df
        offsets = 0.5 * nm.arange(d, dtype=self.dtype, device=self.device)
        slopes = nm.sum(digamma(half[..., None] - offsets), axis=-1)
        scale = (d + 1) * (half_log_det(self.scale_tril) + 0.5 * d * math.log(2))
        rest = multigammaln(half, d) - (half - 0.5 * (d + 1)) * slopes
        return scale + rest + half * d


class LKJCholesky(Distribution):
    """Cholesky factors of correlation matrices, whose density is proportional to
    det**(concentration - 1) (Lewandowski, Kurowicka and Joe 2009), drawn by the onion method.

    >>> d = nm.distributions.LKJCholesky(3, 1.0)
    >>> d.sample((5,), key=nm.random.key(0)).shape
    (5, 3, 3)
    """

    arg_constraints: ClassVar = {"concentration": constraints.positive}
    support = constraints.corr_cholesky
    has_rsample = True
    dim: int
    concentration: Tensor

    def __init__(
        self, dim: int, concentration: Any = 1.0, validate_args: bool | None = None
    ) -> None:
        self.dim = as_int(dim, "dim", "LKJCholesky")
        if self.dim < 2:
            raise ValueError(f"LKJCholesky: dim={dim} must be 2 or more")
        self._set(validate_args, concentration=concentration)

    @property
    def event_shape(self) -> Shape:
        """One matrix."""
        return (self.dim, self.dim)

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        first, second = keys(key, 2)
        shape, d = self._draw_shape(sample_shape), self.dim
        row = nm.arange(d, dtype=self.dtype, device=self.device)
        before = nm.maximum(row - 1, 0.0)
        a = nm.broadcast_to(before + 0.5, (*self.batch_shape, d))
        b = (self.concentration + 0.5 * (d - 2))[..., None] - 0.5 * before
        y = nm.random.beta(shape[:-1], a, b, dtype=self.dtype, device=self.device, key=first)
        y = nm.where(row == 0, 0.0, y)
        noise = nm.tril(self._normal(shape, second), -1)
        length = nm.sqrt(nm.sum(noise * noise, axis=-1) + nm.where(row == 0, 1.0, 0.0))
        # the root of 0 has no derivative; the first row is fixed
        radius = nm.where(row == 0, 0.0, nm.sqrt(nm.where(row == 0, 1.0, y)))
        below = noise * (radius / length)[..., None]
        tiny = float(nm.finfo(self.dtype).smallest_normal)
        return below + nm.diag_embed(nm.sqrt(nm.maximum(1 - y, tiny)))

    def log_prob(self, value: Any) -> Tensor:
        d, eta = self.dim, self.concentration
        diag = diagonal(self._value(value))[..., 1:]
        row = nm.arange(2, d + 1, dtype=self.dtype, device=self.device)
        order = 2 * (eta - 1)[..., None] + d - row
        alpha = eta + 0.5 * (d - 1)
        norm = 0.5 * (d - 1) * math.log(math.pi) + multigammaln(alpha - 0.5, d - 1)
        return nm.sum(order * nm.log(diag), axis=-1) - norm + (d - 1) * lgamma(alpha)
