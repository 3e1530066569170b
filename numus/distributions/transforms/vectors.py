"""Maps onto simplices, triangular factors and correlations; maps of parts along an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numus as nm
from numus.distributions import constraints
from numus.distributions.constraints import Constraint
from numus.distributions.transforms.base import Transform
from numus.errors import ShapeError
from numus.shapes import Shape
from numus.special import log_expit, softplus
from numus.tensor import Tensor

__all__ = [
    "CatTransform", "CorrCholeskyTransform", "LowerCholeskyTransform", "PositiveDefiniteTransform",
    "SoftmaxTransform", "StackTransform", "StickBreakingTransform",
]  # fmt: skip


def _diagonal(x: Tensor) -> Tensor:
    return nm.diagonal(x, axis1=-2, axis2=-1)


class SoftmaxTransform(Transform):
    """y = softmax(x), which is no bijection: its inverse gives log(y)."""

    bijective = False
    domain = constraints.real_vector
    codomain = constraints.simplex

    def __call__(self, x: Tensor) -> Tensor:
        return nm.softmax(x, axis=-1)

    def _inverse(self, y: Tensor) -> Tensor:
        return nm.log(y)


class StickBreakingTransform(Transform):
    """n numbers to n + 1 shares of a whole: each breaks its part off what is left."""

    domain = constraints.real_vector
    codomain = constraints.simplex

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The logarithms of what is broken off and of what stays, of each rest."""
        left = nm.arange(x.shape[-1], 0, -1, dtype=x.dtype, device=x.device)
        shifted = x - nm.log(left)
        return log_expit(shifted), log_expit(-shifted)

    def __call__(self, x: Tensor) -> Tensor:
        broken, stays = self._parts(x)
        rest = nm.cumsum(stays, axis=-1)
        zero = nm.zeros_like(x[..., :1])
        before = nm.concat([zero, rest], axis=-1)
        return nm.exp(before + nm.concat([broken, zero], axis=-1))

    def _inverse(self, y: Tensor) -> Tensor:
        shares = y[..., :-1]
        left = nm.arange(shares.shape[-1], 0, -1, dtype=y.dtype, device=y.device)
        # what is left after each part: the sum of the later shares
        rest = nm.flip(nm.cumsum(nm.flip(y, axis=-1), axis=-1), axis=-1)[..., 1:]
        tiny = float(nm.finfo(y.dtype).smallest_normal)
        return nm.log(shares) - nm.log(nm.maximum(rest, tiny)) + nm.log(left)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        broken, stays = self._parts(x)
        rest = nm.cumsum(stays, axis=-1) - stays
        return nm.sum(broken + stays + rest, axis=-1)

    def forward_shape(self, shape: Shape) -> Shape:
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: Shape) -> Shape:
        return (*shape[:-1], shape[-1] - 1)


class LowerCholeskyTransform(Transform):
    """Matrices to lower triangular ones with a positive diagonal, by exp of the diagonal."""

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.lower_cholesky

    def __call__(self, x: Tensor) -> Tensor:
        return nm.tril(x, -1) + nm.diag_embed(nm.exp(_diagonal(x)))

    def _inverse(self, y: Tensor) -> Tensor:
        return nm.tril(y, -1) + nm.diag_embed(nm.log(_diagonal(y)))


class PositiveDefiniteTransform(Transform):
    """Matrices to positive definite ones, by their Cholesky factor."""

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.positive_definite

    def __call__(self, x: Tensor) -> Tensor:
        factor = LowerCholeskyTransform()(x)
        return nm.matmul(factor, factor.mT)

    def _inverse(self, y: Tensor) -> Tensor:
        return LowerCholeskyTransform().inv(nm.linalg.cholesky(y))


def _square_dim(count: int) -> int:
    """d with d (d - 1) / 2 = count."""
    d = round((1 + math.sqrt(1 + 8 * count)) / 2)
    if d * (d - 1) // 2 != count:
        raise ShapeError(
            f"CorrCholeskyTransform: a vector of {count} is not the strict lower triangle of a "
            "matrix; it must have d (d - 1) / 2 entries"
        )
    return d


class CorrCholeskyTransform(Transform):
    """Vectors of d (d - 1) / 2 numbers to Cholesky factors of correlation matrices: tanh of each is
    a partial correlation (Lewandowski, Kurowicka and Joe 2009)."""

    domain = constraints.real_vector
    codomain = constraints.corr_cholesky

    def _matrix(self, x: Tensor) -> Tensor:
        """The strict lower triangle, row by row, from vectors."""
        d = _square_dim(x.shape[-1])
        rows = []
        for i in range(d):
            start = i * (i - 1) // 2
            zeros = nm.zeros((*x.shape[:-1], d - i), dtype=x.dtype, device=x.device)
            rows.append(nm.concat([x[..., start : start + i], zeros], axis=-1))
        return nm.stack(rows, axis=-2)

    def __call__(self, x: Tensor) -> Tensor:
        partial = self._matrix(nm.tanh(x))
        logs = 0.5 * self._matrix(self._log_rest(x))  # log sqrt(1 - z**2)
        before = nm.exp(nm.cumsum(logs, axis=-1) - logs)
        eye = nm.eye(partial.shape[-1], dtype=x.dtype, device=x.device)
        return (nm.tril(partial, -1) + eye) * nm.tril(before)

    @staticmethod
    def _log_rest(x: Tensor) -> Tensor:
        """log(1 - tanh(x)**2)."""
        return 2 * (math.log(2) - x - softplus(-2 * x))

    def _inverse(self, y: Tensor) -> Tensor:
        d = y.shape[-1]
        # what is left of a row's length before each entry: the squares from there on
        squares = y * y
        left = nm.flip(nm.cumsum(nm.flip(squares, axis=-1), axis=-1), axis=-1)
        below = nm.tril(y, -1)
        safe = nm.where(below == 0, 1.0, left)
        z = below * nm.rsqrt(safe)
        rows = [z[..., i, :i] for i in range(1, d)]
        return nm.atanh(nm.concat(rows, axis=-1))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        logs = self._matrix(self._log_rest(x))
        before = nm.tril(nm.cumsum(logs, axis=-1) - logs, -1)
        return 0.5 * nm.sum(before, axis=(-2, -1)) + nm.sum(self._log_rest(x), axis=-1)

    def forward_shape(self, shape: Shape) -> Shape:
        d = _square_dim(shape[-1])
        return (*shape[:-1], d, d)

    def inverse_shape(self, shape: Shape) -> Shape:
        d = shape[-1]
        return (*shape[:-2], d * (d - 1) // 2)


class CatTransform(Transform):
    """Maps of parts of the given lengths (by default 1) along an axis."""

    def __init__(
        self, tseq: Sequence[Transform], dim: int = 0, lengths: Sequence[int] | None = None
    ) -> None:
        self.transforms = list(tseq)
        self.dim, self.lengths = dim, list(lengths or [1] * len(self.transforms))
        self.bijective = all(t.bijective for t in self.transforms)

    @property
    def domain(self) -> Constraint:
        """Those of the parts."""
        return constraints.cat([t.domain for t in self.transforms], self.dim, self.lengths)

    @property
    def codomain(self) -> Constraint:
        """Those of the parts."""
        return constraints.cat([t.codomain for t in self.transforms], self.dim, self.lengths)

    def _cut(self, x: Tensor) -> list[Tensor]:
        if x.shape[self.dim] != sum(self.lengths):
            raise ShapeError(
                f"CatTransform: axis {self.dim} of shape {x.shape} has not the length of the "
                f"parts, {sum(self.lengths)}"
            )
        starts = [sum(self.lengths[:i]) for i in range(len(self.lengths))]
        return [nm.narrow(x, self.dim, s, n) for s, n in zip(starts, self.lengths, strict=True)]

    def __call__(self, x: Tensor) -> Tensor:
        parts = [t(p) for t, p in zip(self.transforms, self._cut(x), strict=True)]
        return nm.concat(parts, axis=self.dim)

    def _inverse(self, y: Tensor) -> Tensor:
        parts = [t.inv(p) for t, p in zip(self.transforms, self._cut(y), strict=True)]
        return nm.concat(parts, axis=self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        found = [
            t.log_abs_det_jacobian(a, b)
            for t, a, b in zip(self.transforms, self._cut(x), self._cut(y), strict=True)
        ]
        if any(t.domain.event_dim for t in self.transforms):
            return sum(found[1:], found[0])
        return nm.concat(found, axis=self.dim)

    def _settings(self) -> tuple[Any, ...]:
        return self.transforms, self.dim, self.lengths


class StackTransform(Transform):
    """A map for each entry along an axis."""

    def __init__(self, tseq: Sequence[Transform], dim: int = 0) -> None:
        self.transforms, self.dim = list(tseq), dim
        self.bijective = all(t.bijective for t in self.transforms)

    @property
    def domain(self) -> Constraint:
        """Those of the entries."""
        return constraints.stack([t.domain for t in self.transforms], self.dim)

    @property
    def codomain(self) -> Constraint:
        """Those of the entries."""
        return constraints.stack([t.codomain for t in self.transforms], self.dim)

    def __call__(self, x: Tensor) -> Tensor:
        entries = nm.unstack(x, axis=self.dim)
        mapped = [t(p) for t, p in zip(self.transforms, entries, strict=True)]
        return nm.stack(mapped, axis=self.dim)

    def _inverse(self, y: Tensor) -> Tensor:
        entries = nm.unstack(y, axis=self.dim)
        mapped = [t.inv(p) for t, p in zip(self.transforms, entries, strict=True)]
        return nm.stack(mapped, axis=self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        pairs = zip(nm.unstack(x, axis=self.dim), nm.unstack(y, axis=self.dim), strict=True)
        found = [
            t.log_abs_det_jacobian(a, b) for t, (a, b) in zip(self.transforms, pairs, strict=True)
        ]
        return nm.stack(found, axis=self.dim)

    def _settings(self) -> tuple[Any, ...]:
        return self.transforms, self.dim
