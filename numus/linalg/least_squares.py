"""What singular values decide: ranks, pseudoinverses, least squares, condition numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

from numus.evaluation.evaluate import evaluate, is_known
from numus.functions._base import wrap
from numus.functions.autocast import autocast, widens
from numus.functions.creation.creation import full
from numus.functions.creation.dtype_functions import finfo
from numus.functions.elementwise.comparison import where
from numus.functions.shape.concatenation import concat
from numus.functions.shape.manipulation import broadcast_to
from numus.graph import grad_mode
from numus.linalg._base import (
    UNCONVERGED,
    Implicit,
    LinAlgShapeError,
    adjoint,
    by_choice,
    check,
    differentiated,
    identity,
    matrices,
    operands,
    real_part,
    require_matrices,
    scale_of,
    unconverged,
)
from numus.linalg.factor import triangular
from numus.linalg.factor.lu import inv_ex
from numus.linalg.factor.qr import TALL, triangle
from numus.linalg.factor.qr import factors as qr_factors
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
    epsilon, unless it is given; `tol` is a bound of the values themselves. A matrix with elements
    that are not finite is a `LinAlgError`.

    >>> nm.linalg.matrix_rank(nm.ones((3, 3))).item()
    1
    """
    if tol is not None and rtol is not None:
        raise ValueError("linalg.matrix_rank: rtol and tol are given; give one of them")
    a, _ = matrices("matrix_rank", x)
    s = values_of(a.detach())
    check("matrix_rank", unconverged(s), UNCONVERGED)
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
    return pseudoinverse(a, rtol).astype(dtype, copy=False)


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
    if min(a.shape[-2:]) > TALL and not (a._node.tracked or b._node.tracked):
        return _by_triangle(a, b, rcond)
    u, s, v = thin(a)
    with grad_mode(False):
        inverse, rank = _reciprocals(s, a, rcond)
        value = v @ (inverse.mT * (adjoint(u) @ b))
    pinv = differentiated(_PINV, lambda _: (v * inverse) @ adjoint(u), a)
    return wrap(graft(value._node, (pinv @ b)._node)), s, rank


def _by_triangle(a: Tensor, b: Tensor, rcond: Any) -> tuple[Tensor, Tensor, Tensor]:
    """As `_least_squares`, by the triangle R of a, or of its adjoint where it is wide: by singular
    values of R where it may be of low rank."""
    m, n = a.shape[-2:]
    wide = m < n
    with grad_mode(False), autocast(enabled=False):
        r, inner, condition, *q = (_wide_triangle if wide else _tall_triangle)(a, b)
        limit = max(m, n) * finfo(condition.dtype).eps if rcond is None else rcond
        if _is_bounded(condition, limit, r, inner, *q):
            x = triangular.solve(r, inner, lower=wide)
            s = values_of(r)
            rank = full(s.shape[:-1], s.shape[-1], dtype="int64", device=a.device)
        else:
            u, s, v = thin(r)
            inverse, rank = _reciprocals(s, a, rcond)
            x = v @ (inverse.mT * (adjoint(u) @ inner))
        return (q[0] @ x if wide else x), s, rank


@by_choice
def _tall_triangle(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """R, Qᴴ b and a bound of the condition number. R of a with b beside it has all: no Q is
    formed."""
    n = a.shape[-1]
    sizes = scale_of(a), scale_of(b)
    both = triangle(concat([a / sizes[0], b / sizes[1]], axis=-1))[..., :n, :]
    r, inner = both[..., :n] * sizes[0], both[..., n:] * sizes[1]
    return r, inner, _condition(r, lower=False)


@by_choice
def _wide_triangle(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Rᴴ, b, a bound of the condition number, and Q, for a = Rᴴ Qᴴ."""
    q, r = qr_factors(adjoint(a), a.shape[-2])
    r = adjoint(r)
    return r, b * 1.0, _condition(r, lower=True), q


def _condition(r: Tensor, lower: bool) -> Tensor:
    """In the Frobenius norm, of triangular matrices."""
    inverse = triangular.solve(r, identity(r.shape[-1], r), lower=lower)
    return matrix_norm(r) * matrix_norm(inverse)


def _is_bounded(condition: Tensor, limit: Any, *parts: Tensor) -> bool:
    """Whether condition numbers are known to be so small that no singular value counts as zero."""
    if not is_known(condition._node):
        return False
    evaluate([x._node for x in (condition, *parts)])  # parts once for all that is made of them
    return bool(((condition * limit < 1) & (condition < float("inf"))).all())


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
        raise LinAlgShapeError(
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
        s, residuals = s.astype(dtype, copy=False), residuals.astype(dtype, copy=False)
    return LstsqResult(x.astype(dtype, copy=False), residuals, rank, s)


@widens
def cond(x: ArrayLike, /, p: Any = None) -> Tensor:
    """The condition number: a norm of x times that of its inverse; infinite for singular matrices.

    `p` is any `ord` of `matrix_norm` ("nuc" too); None is 2, and takes matrices of any shape.

    >>> nm.linalg.cond(nm.asarray([[4.0, 0.0], [0.0, 2.0]])).item()
    2.0
    """
    a, dtype = matrices("cond", x, square=p not in (None, 2, -2))
    if not min(a.shape[-2:]):
        raise LinAlgShapeError(f"linalg.cond: matrices without elements have none: shape {a.shape}")
    if p in (None, 2, -2):
        s = values_of(a)
        found = s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]
        found = where((s == 0).all(axis=-1), float("inf"), found)  # not 0 / 0
    else:
        inverse, info = inv_ex(a)
        found = matrix_norm(a, ord=p) * matrix_norm(inverse, ord=p)
        found = where(info != 0, float("inf"), found)
    return found if dtype.is_complex else found.astype(dtype, copy=False)
