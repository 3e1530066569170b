"""Bases of ranges and null spaces, products of reflections."""

from __future__ import annotations

from typing import Any

import numpy as np

from numus.errors import LinAlgError, ShapeError, TracingError
from numus.evaluation.evaluate import is_known
from numus.functions.autocast import widens
from numus.functions.creation.dtype_functions import finfo
from numus.graph import grad_mode
from numus.linalg._base import (
    Implicit,
    adjoint,
    differentiated,
    identity,
    matrices,
    operands,
    require_matrices,
)
from numus.linalg.factor import triangular
from numus.linalg.factor.qr import factors
from numus.linalg.factor.svd import thin
from numus.shapes import as_int
from numus.tensor import ArrayLike, Tensor

# -- ranges and null spaces -----------------------------------------------------------------------


def _rank(op: str, s: Tensor, a: Tensor, rcond: Any, rank: Any) -> int:
    """The common rank of a batch, which the shape of the result depends on."""
    k = min(a.shape[-2:])
    if rank is not None:
        given = as_int(rank, "rank", f"linalg.{op}")
        if not 0 <= given <= k:
            raise ValueError(f"linalg.{op}: rank={given} is not between 0 and {k}")
        return given
    if not s.size:
        return 0
    if not is_known(s._node):
        raise TracingError(
            f"linalg.{op}: the shape of the result depends on values, which nm.jit and nm.vmap do "
            "not know; give the rank: rank=..."
        )
    values = s.detach().numpy().reshape(-1, k)
    limit = max(a.shape[-2:]) * float(finfo(s.dtype).eps) if rcond is None else float(rcond)
    ranks = np.unique((values > limit * values[:, :1]).sum(axis=-1))
    if len(ranks) > 1:
        raise LinAlgError(
            f"linalg.{op}: matrices of one batch have ranks {ranks.tolist()}: their bases differ "
            "in size; give the rank: rank=..."
        )
    return int(ranks[0]) if len(ranks) else 0


@widens
def orth(x: ArrayLike, /, *, rcond: Any = None, rank: int | None = None) -> Tensor:
    """Orthonormal bases of the ranges of matrices, in columns, by singular values.

    Singular values up to `rcond` times the largest one count as zero (the larger extent times the
    machine epsilon, unless it is given). In `nm.jit` and `nm.vmap` the number of columns has to be
    given: `rank`. Derivatives are those for losses of the space.

    >>> nm.linalg.orth(nm.ones((3, 2))).shape
    (3, 1)
    """
    a, dtype = matrices("orth", x)
    if not a.size:
        return a[..., :0].astype(dtype, copy=False)
    u, s, _ = thin(a)
    return u[..., : _rank("orth", s, a, rcond, rank)].astype(dtype, copy=False)


def _null_tangent(n: Tensor, given: list[Tensor], tangents: list[Tensor]) -> Tensor:
    """dN = -A⁺ dA N, which leaves the space."""
    a, _ = given
    rank = a.shape[-1] - n.shape[-1]
    u, s, v = (part[..., :rank] for part in thin(a))
    inner = (adjoint(u) @ (tangents[0] @ n)) / s[..., :, None].astype(a.dtype)
    return -(v @ inner)


_NULL = Implicit(_null_tangent)


@widens
def null_space(x: ArrayLike, /, *, rcond: Any = None, rank: int | None = None) -> Tensor:
    """Orthonormal bases of the null spaces of matrices: columns y with x y = 0.

    Singular values up to `rcond` times the largest one count as zero; `rank` is that of x, which
    has to be given in `nm.jit` and `nm.vmap`, as for `orth`.

    >>> nm.linalg.null_space(nm.ones((3, 2))).shape
    (2, 1)
    """
    a, dtype = matrices("null_space", x)
    n = a.shape[-1]
    if not a.size:
        return identity(n, a).astype(dtype, copy=False)
    _, s, v = thin(a)
    found = _rank("null_space", s, a, rcond, rank)
    with grad_mode(False):
        basis = factors(v, n)[0][..., found:]  # columns that complete those of the range
    return differentiated(_NULL, lambda *_: basis, a, basis).astype(dtype, copy=False)


# -- products of reflections ----------------------------------------------------------------------


@widens
def householder_product(a: ArrayLike, tau: ArrayLike, /) -> Tensor:
    """The first n columns of the product of reflections 1 - tau_i v_i v_iᴴ, in compact WY form.

    v_i is column i of a below the diagonal, with 1 on it and zeros above, as LAPACK's geqrf stores
    them (its orgqr, PyTorch's householder_product).

    >>> nm.linalg.householder_product(nm.zeros((2, 2)), nm.asarray([2.0, 0.0])).tolist()
    [[-1.0, 0.0], [0.0, 1.0]]
    """
    (x, factor), dtype = operands("householder_product", a, tau)
    require_matrices("householder_product", x)
    m, n = x.shape[-2:]
    k = factor.shape[-1] if factor.ndim else -1
    if m < n or not 0 <= k <= n or factor.shape[:-1] != x.shape[:-2]:
        raise ShapeError(
            "linalg.householder_product: takes matrices with no more columns than rows and at most "
            f"a factor per column, not shapes {x.shape} and {factor.shape}"
        )
    if not x.size or not k:
        return (x * 0.0 + identity(m, x)[..., :n]).astype(dtype, copy=False)
    v = x[..., :k].tril(-1) + identity(m, x)[..., :k]
    # T⁻¹ = 1 / tau + the strict upper triangle of Vᴴ V: without dividing by tau
    scaled = (adjoint(v) @ v).triu(1) * factor[..., :, None]
    middle = identity(k, x) * factor[..., :, None]
    t = triangular.solve(scaled, middle, lower=False, unit_diagonal=True)
    return (identity(m, x)[..., :n] - v @ (t @ adjoint(v)[..., :n])).astype(dtype, copy=False)
