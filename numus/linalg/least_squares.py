"""What singular values decide: ranks, pseudoinverses, least squares, condition numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

from numus.errors import ShapeError
from numus.functions._base import wrap
from numus.functions.autocast import widens
from numus.functions.creation.dtype_functions import finfo
from numus.functions.elementwise.comparison import where
from numus.functions.shape.manipulation import broadcast_to
from numus.graph import grad_mode
from numus.linalg._base import (
    Implicit,
    adjoint,
    differentiated,
    matrices,
    operands,
    require_matrices,
)
from numus.linalg.factor.eigh import real_part
from numus.linalg.factor.lu import inv_ex
from numus.linalg.factor.svd import thin, values_of
from numus.linalg.norms import matrix_norm
from numus.primitives.custom import graft
from numus.shapes import broadcast as broadcast_shapes
from numus.tensor import ArrayLike, Tensor


def _significant(s: Tensor, a: Tensor, rtol: Any) -> Tensor:
    """Where singular values are above rtol times the largest one."""
    if rtol is None:
        rtol = max(a.shape[-2:]) * finfo(s.dtype).eps
    limit = rtol[..., None] if isinstance(rtol, Tensor) else rtol
    return s > limit * s[..., :1]


@widens
def matrix_rank(x: ArrayLike, /, *, rtol: Any = None, tol: Any = None) -> Tensor:
    """The number of singular values above `rtol` times the largest one.

    `rtol` (a number, or a tensor with one per matrix) is the larger extent times the machine
    epsilon, unless it is given; `tol` is a bound of the values themselves.

    >>> nm.linalg.matrix_rank(nm.ones((3, 3))).item()
    1
    """
    a, _ = matrices("matrix_rank", x)
    s = values_of(a.detach())
    if not s.shape[-1]:
        return (s != 0).sum(axis=-1)
    if tol is not None:
        bound = tol[..., None] if isinstance(tol, Tensor) and tol.ndim else tol
        return (s > bound).astype("int64").sum(axis=-1)
    return _significant(s, a, rtol).astype("int64").sum(axis=-1)


def _pinv_tangent(p: Tensor, operands: list[Tensor], tangents: list[Tensor]) -> Tensor:
    """Golub & Pereyra (1973), for a rank that does not change."""
    (a, *_), (da, *_) = operands, tangents
    da_h, p_h = adjoint(da), adjoint(p)
    left = p @ p_h @ da_h
    right = da_h @ p_h @ p
    return -(p @ da @ p) + (left - left @ a @ p) + (right - p @ a @ right)


_PINV = Implicit(_pinv_tangent)


def _reciprocals(s: Tensor, a: Tensor, rtol: Any) -> tuple[Tensor, Tensor]:
    """1 / s, and 0 where s counts as zero; the number of others."""
    kept = _significant(s, a, rtol)
    inverse = where(kept, 1 / where(kept, s, 1.0), 0.0).astype(a.dtype)
    return inverse[..., None, :], kept.astype("int64").sum(axis=-1)


def pseudoinverse(a: Tensor, rtol: Any) -> Tensor:
    def compute(a: Tensor) -> Tensor:
        u, s, v = thin(a)
        return (v * _reciprocals(s, a, rtol)[0]) @ adjoint(u)

    return differentiated(_PINV, compute, a) if a.size else adjoint(a)


@widens
def pinv(x: ArrayLike, /, *, rtol: Any = None) -> Tensor:
    """The Moore–Penrose pseudoinverses of matrices.

    Singular values up to `rtol` times the largest one count as zero; it is the larger extent times
    the machine epsilon, unless it is given. The derivative is that at a constant rank.

    >>> nm.linalg.pinv(nm.asarray([[2.0, 0.0], [0.0, 0.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.0]]
    """
    a, dtype = matrices("pinv", x)
    return pseudoinverse(a, rtol).astype(dtype)


class LstsqResult(NamedTuple):
    """What `lstsq` gives."""

    x: Tensor
    residuals: Tensor
    rank: Tensor
    s: Tensor


def _least_squares(a: Tensor, b: Tensor, rcond: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The solution, singular values and ranks, from one decomposition.

    The solution is V s⁻¹ (Uᴴ b), backward stable, and differentiated as the pseudoinverse times b.
    """
    if not a.size:
        s = values_of(a)
        return adjoint(a) @ b, s, (s != 0).astype("int64").sum(axis=-1)
    u, s, v = thin(a)
    with grad_mode(False):
        inverse, rank = _reciprocals(s, a, rcond)
        value = v @ (inverse.mT * (adjoint(u) @ b))
    pinv = differentiated(_PINV, lambda _: (v * inverse) @ adjoint(u), a)
    return wrap(graft(value._node, (pinv @ b)._node)), s, rank


@widens
def lstsq(a: ArrayLike, b: ArrayLike, /, *, rcond: Any = None) -> LstsqResult:
    """The x of least norm that minimises |a x - b|, for matrices a of any shape and rank.

    b is a vector, or matrices of right-hand sides; leading axes broadcast. Also the squared sums of
    residuals of each right-hand side, the rank of a, and its singular values; those up to `rcond`
    times the largest one count as zero (the larger extent times the machine epsilon, unless it is
    given).

    >>> a, b = nm.asarray([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]), nm.asarray([1.0, 3.0, 5.0])
    >>> [round(c, 4) for c in nm.linalg.lstsq(a, b).x.tolist()]
    [1.0, 2.0]
    """
    (m, y), dtype = operands("lstsq", a, b)
    require_matrices("lstsq", m)
    vector = y.ndim == 1
    y = y[:, None] if vector else y
    if y.ndim < 2 or y.shape[-2] != m.shape[-2]:
        raise ShapeError(
            f"linalg.lstsq: {m.shape[-2]} equations of shape {m.shape} meet right-hand sides of "
            f"shape {y.shape[:-1] if vector else y.shape}"
        )
    lead = broadcast_shapes(m.shape[:-2], y.shape[:-2], "linalg.lstsq")
    m, y = (broadcast_to(x, (*lead, *x.shape[-2:])) for x in (m, y))
    x, s, rank = _least_squares(m, y, rcond)
    missed = m @ x - y
    residuals = real_part(missed * missed.conj()).sum(axis=-2)
    if vector:
        x, residuals = x[..., 0], residuals[..., 0]
    if not dtype.is_complex:
        s, residuals = s.astype(dtype), residuals.astype(dtype)
    return LstsqResult(x.astype(dtype), residuals, rank, s)


@widens
def cond(x: ArrayLike, /, p: Any = None) -> Tensor:
    """The condition number: a norm of x times that of its inverse; infinite for singular matrices.

    `p` is any `ord` of `matrix_norm` ("nuc" too); None is 2, and takes matrices of any shape.

    >>> nm.linalg.cond(nm.asarray([[4.0, 0.0], [0.0, 2.0]])).item()
    2.0
    """
    a, dtype = matrices("cond", x, square=p not in (None, 2, -2))
    if not min(a.shape[-2:]):
        raise ShapeError(f"linalg.cond: matrices without elements have none: shape {a.shape}")
    if p in (None, 2, -2):
        s = values_of(a)
        found = s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]
        found = where((s == 0).all(axis=-1), float("inf"), found)  # not 0 / 0
    else:
        inverse, info = inv_ex(a)
        found = matrix_norm(a, ord=p) * matrix_norm(inverse, ord=p)
        found = where(info != 0, float("inf"), found)
    return found if dtype.is_complex else found.astype(dtype)
