"""Normal vectors: of a full covariance, and of one that is a diagonal and a product of low rank."""

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
from numus.errors import ShapeError
from numus.shapes import Shape, size_of
from numus.shapes import broadcast as broadcast_shapes
from numus.tensor import Tensor

__all__ = ["LowRankMultivariateNormal", "MultivariateNormal"]

_LOG_TAU = math.log(2 * math.pi)


def diagonal(x: Tensor) -> Tensor:
    """The diagonals of matrices."""
    return nm.diagonal(x, axis1=-2, axis2=-1)


def half_log_det(factor: Tensor) -> Tensor:
    """The logarithm of the determinant of a triangular factor."""
    return nm.sum(nm.log(diagonal(factor)), axis=-1)


def columns(x: Tensor, batch: int) -> Tensor:
    """Vectors of shape sample + batch + (d,) as matrices of shape batch + (d, samples)."""
    free = x.ndim - batch - 1
    moved = nm.permute_dims(x, (*range(free, x.ndim), *range(free)))
    return nm.reshape(moved, (*x.shape[free:], size_of(x.shape[:free])))


def rows(x: Tensor, sample_shape: Shape) -> Tensor:
    """The inverse of `columns`."""
    whole = nm.reshape(x, x.shape[:-1] + sample_shape)
    batch = x.ndim - 1
    return nm.permute_dims(whole, (*range(batch, whole.ndim), *range(batch)))


def solved(factor: Tensor, x: Tensor) -> Tensor:
    """factor^-1 x for vectors x of shape sample + batch + (d,): one solve for all samples."""
    batch = factor.ndim - 2
    found = nm.linalg.solve_triangular(factor, columns(x, batch), lower=True)
    return rows(found, x.shape[: x.ndim - batch - 1])


def applied(matrix: Tensor, x: Tensor) -> Tensor:
    """matrix x for vectors x of shape sample + batch + (d,): one product for all samples."""
    batch = matrix.ndim - 2
    found = nm.matmul(matrix, columns(x, batch))
    return rows(found, x.shape[: x.ndim - batch - 1])


def factor_of_inverse(precision: Tensor) -> Tensor:
    """The Cholesky factor of the inverse of a matrix, from the factor of the matrix reversed."""
    reversed_factor = nm.linalg.cholesky(nm.flip(precision, axis=(-2, -1)))
    inverse = nm.flip(reversed_factor, axis=(-2, -1)).mT
    eye = nm.eye(precision.shape[-1], dtype=precision.dtype, device=precision.device)
    return nm.linalg.solve_triangular(inverse, nm.broadcast_to(eye, precision.shape), lower=True)


def covariance_factor(name: str, matrix: Tensor) -> Tensor:
    """The Cholesky factor of the covariance, of any of the three parametrisations."""
    if name == "scale_tril":
        return matrix
    if name == "precision_matrix":
        return factor_of_inverse(matrix)
    return nm.linalg.cholesky(matrix)


class MultivariateNormal(Distribution):
    """Normal vectors with mean `loc` and one of `covariance_matrix`, `precision_matrix` and
    `scale_tril`, the lower Cholesky factor of the covariance.

    >>> d = nm.distributions.MultivariateNormal([0.0, 1.0], [[2.0, 0.0], [0.0, 1.0]])
    >>> d.log_prob([0.0, 1.0])
    tensor(-2.1844506)
    """

    arg_constraints: ClassVar = {
        "loc": constraints.real_vector,
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    support = constraints.real_vector
    has_rsample = True
    loc: Tensor

    def __init__(
        self,
        loc: Any,
        covariance_matrix: Any = None,
        precision_matrix: Any = None,
        scale_tril: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        op = "MultivariateNormal"
        self._set_validation(validate_args)
        ((name, given),) = one_of(
            op,
            covariance_matrix=covariance_matrix,
            precision_matrix=precision_matrix,
            scale_tril=scale_tril,
        ).items()
        mean, matrix = floats(op, loc, given)
        if mean.ndim < 1 or matrix.ndim < 2 or matrix.shape[-2:] != (mean.shape[-1],) * 2:
            raise ShapeError(f"{op}: loc of shape {mean.shape} with {name} of {matrix.shape}")
        if self._validate_args:
            check_constraint(op, "loc", mean, constraints.real_vector)
            check_constraint(op, name, matrix, self.arg_constraints[name])
        batch = broadcast_shapes(mean.shape[:-1], matrix.shape[:-2], op)
        self.loc = nm.broadcast_to(mean, batch + mean.shape[-1:])
        factor = covariance_factor(name, matrix)
        held = {name: matrix, "scale_tril": factor}
        self.__dict__ |= {n: nm.broadcast_to(x, batch + x.shape[-2:]) for n, x in held.items()}

    @derived
    def scale_tril(self) -> Tensor:
        """The lower Cholesky factor of the covariance."""
        return self.__dict__["scale_tril"]

    @derived
    def covariance_matrix(self) -> Tensor:
        """The covariance."""
        return nm.matmul(self.scale_tril, self.scale_tril.mT)

    @derived
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        factor = self.scale_tril
        eye = nm.eye(factor.shape[-1], dtype=self.dtype, device=self.device)
        inverse = nm.linalg.solve_triangular(factor, nm.broadcast_to(eye, factor.shape), lower=True)
        return nm.matmul(inverse.mT, inverse)

    @property
    def event_shape(self) -> Shape:
        """One vector."""
        return self.loc.shape[-1:]

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        z = self._normal(self._draw_shape(sample_shape), key)
        return self.loc + applied(self.scale_tril, z)

    def log_prob(self, value: Any) -> Tensor:
        z = solved(self.scale_tril, self._value(value) - self.loc)
        norm = 0.5 * self.event_shape[0] * _LOG_TAU + half_log_det(self.scale_tril)
        return -0.5 * nm.sum(z * z, axis=-1) - norm

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return nm.sum(self.scale_tril**2, axis=-1)

    def entropy(self) -> Tensor:
        return 0.5 * self.event_shape[0] * (1 + _LOG_TAU) + half_log_det(self.scale_tril)


class LowRankMultivariateNormal(Distribution):
    """Normal vectors with covariance cov_factor cov_factor^T + diag(cov_diag), by the matrix
    determinant lemma and Woodbury's identity: no matrix of the full size is factored.

    >>> d = nm.distributions.LowRankMultivariateNormal([0.0, 0.0], [[1.0], [0.0]], [1.0, 1.0])
    >>> d.covariance_matrix
    tensor([[2., 0.],
            [0., 1.]])
    """

    arg_constraints: ClassVar = {
        "loc": constraints.real_vector,
        "cov_factor": constraints.independent(constraints.real, 2),
        "cov_diag": constraints.independent(constraints.positive, 1),
    }
    support = constraints.real_vector
    has_rsample = True
    loc: Tensor
    cov_factor: Tensor
    cov_diag: Tensor

    def __init__(
        self, loc: Any, cov_factor: Any, cov_diag: Any, validate_args: bool | None = None
    ) -> None:
        self._set(validate_args, loc=loc, cov_factor=cov_factor, cov_diag=cov_diag)
        n = self.loc.shape[-1]
        if self.cov_factor.shape[-2] != n or self.cov_diag.shape[-1] != n:
            raise ShapeError(
                f"LowRankMultivariateNormal: loc of shape {self.loc.shape} with cov_factor of "
                f"{self.cov_factor.shape} and cov_diag of {self.cov_diag.shape}"
            )

    @property
    def event_shape(self) -> Shape:
        """One vector."""
        return self.loc.shape[-1:]

    def _weighted(self) -> Tensor:
        """W^T D^-1."""
        return self.cov_factor.mT / self.cov_diag[..., None, :]

    def capacitance_tril(self) -> Tensor:
        """The Cholesky factor of I + W^T D^-1 W."""
        rank = self.cov_factor.shape[-1]
        eye = nm.eye(rank, dtype=self.dtype, device=self.device)
        return nm.linalg.cholesky(eye + nm.matmul(self._weighted(), self.cov_factor))

    def mahalanobis(self, x: Tensor) -> Tensor:
        """x^T covariance^-1 x for vectors of shape sample + batch + (d,)."""
        inner = solved(self.capacitance_tril(), applied(self._weighted(), x))
        return nm.sum(x * x / self.cov_diag, -1) - nm.sum(inner * inner, -1)

    def half_log_det(self) -> Tensor:
        """Half the logarithm of the determinant of the covariance."""
        return half_log_det(self.capacitance_tril()) + 0.5 * nm.sum(nm.log(self.cov_diag), -1)

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance."""
        return nm.matmul(self.cov_factor, self.cov_factor.mT) + nm.diag_embed(self.cov_diag)

    @property
    def scale_tril(self) -> Tensor:
        """The lower Cholesky factor of the covariance."""
        return nm.linalg.cholesky(self.covariance_matrix)

    @property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        weighted = self._weighted()
        root = nm.linalg.solve_triangular(self.capacitance_tril(), weighted, lower=True)
        return nm.diag_embed(1 / self.cov_diag) - nm.matmul(root.mT, root)

    def rsample(self, sample_shape: Any = (), *, key: Key = None) -> Tensor:
        first, second = keys(key, 2)
        shape = self._draw_shape(sample_shape)
        low = self._normal(shape[:-1] + self.cov_factor.shape[-1:], first)
        noise = self._normal(shape, second)
        return self.loc + applied(self.cov_factor, low) + nm.sqrt(self.cov_diag) * noise

    def log_prob(self, value: Any) -> Tensor:
        far = self.mahalanobis(self._value(value) - self.loc)
        return -0.5 * (self.event_shape[0] * _LOG_TAU + far) - self.half_log_det()

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return nm.sum(self.cov_factor**2, axis=-1) + self.cov_diag

    def entropy(self) -> Tensor:
        return 0.5 * self.event_shape[0] * (1 + _LOG_TAU) + self.half_log_det()
