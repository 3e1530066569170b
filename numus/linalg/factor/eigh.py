"""Eigenvalues of Hermitian matrices: by tridiagonal matrices, of small ones on GPUs by one-sided
Jacobi rotations."""

from __future__ import annotations

from typing import NamedTuple

from numus.dtypes import DType
from numus.errors import ShapeError
from numus.functions._base import wrap
from numus.functions.autocast import autocast, widens
from numus.functions.creation.creation import arange
from numus.functions.creation.dtype_functions import finfo
from numus.functions.elementwise.comparison import isfinite, where
from numus.functions.reduction.reductions import max as maximum_of
from numus.functions.shape.concatenation import concat
from numus.functions.shape.manipulation import broadcast_to
from numus.graph import grad_mode
from numus.linalg._base import (
    UNCONVERGED,
    Implicit,
    adjoint,
    check,
    differentiated,
    matrices,
    operands,
    real_part,
    require_matrices,
    scale_of,
    stacked,
    unconverged,
    unstacked,
)
from numus.linalg.factor import lapack, small, triangular
from numus.linalg.factor.cholesky import cholesky_ex
from numus.linalg.factor.jacobi import symmetric_by_rotations
from numus.linalg.factor.tridiagonal import by_tridiagonal
from numus.linalg.products import diagonal
from numus.primitives.linalg import factor
from numus.shapes import broadcast as broadcast_shapes
from numus.tensor import ArrayLike, Tensor


def inverse_gaps(x: Tensor, y: Tensor) -> Tensor:
    """1 / (y_j - x_i), and 0 where they are as good as equal: derivatives stay finite there."""
    gaps = y[..., None, :] - x[..., :, None]
    size = maximum_of(abs(y), axis=-1)[..., None, None] if y.shape[-1] else 1.0
    close = abs(gaps) <= 4 * finfo(gaps.dtype).eps * size
    return where(close, 0.0, 1 / where(close, 1.0, gaps))


def _packed(a: Tensor, vectors: bool) -> Tensor:
    """Ascending eigenvalues in a first row, eigenvectors in columns below where they are wanted, of
    stacks of Hermitian matrices whose lower triangles are read; NaN where a matrix is not finite
    or steps did not converge."""
    if small.applies(a) and not a.dtype.is_complex:
        return wrap(factor.eigh(a._node, vectors))  # scales by itself
    scale = scale_of(a.tril())  # the other triangle may hold anything
    a = a / scale
    if small.on_cpu(a):
        found = wrap(factor.eigh(a._node, vectors))
    else:
        found = _reduced(a, vectors)
    converged = isfinite(found[:, :1]).all(axis=-1, keepdims=True)
    first = arange(found.shape[-2], device=a.device)[:, None] == 0
    return where(converged, where(first, found * scale, found), float("nan"))


def _reduced(a: Tensor, vectors: bool) -> Tensor:
    """As `_packed`: by rotations where a block of a GPU has room, else by a tridiagonal matrix."""
    below = a.tril(-1)
    middle = a.tril() - below
    a = below + adjoint(below) + (middle + middle.conj()) / 2
    if a.shape[-1] <= small.MAX_ORDER:
        values, columns = symmetric_by_rotations(a)
    else:
        values, columns = by_tridiagonal(a)
    first = values[..., None, :].astype(a.dtype)
    return concat([first, columns], axis=-2) if vectors else first


def _tangent(packed: Tensor, operands: list[Tensor], tangents: list[Tensor]) -> Tensor:
    """dΛ = diag(Vᴴ dA V), dV = V (F ∘ Vᴴ dA V), F_ij = 1 / (λ_j - λ_i)."""
    da = (tangents[0] + adjoint(tangents[0])) / 2
    values, vectors = real_part(packed[..., 0, :]), packed[..., 1:, :]
    inner = adjoint(vectors) @ da @ vectors
    dvalues = real_part(diagonal(inner)).astype(packed.dtype)
    dvectors = vectors @ (inner * inverse_gaps(values, values).astype(packed.dtype))
    return concat([dvalues[..., None, :], dvectors], axis=-2)


_RULE = Implicit(_tangent)


def _computed(a: Tensor, upper: bool, vectors: bool) -> Tensor:
    """As `_packed`, by a library where one is chosen."""
    stack = stacked(adjoint(a) if upper else a)
    if lapack.is_chosen("eigh", stack, option=int(vectors)):
        values, columns = lapack.eigh(stack, vectors)
        found = values[..., None, :].astype(a.dtype)
        found = concat([found, columns], axis=-2) if vectors else found
    else:
        found = _packed(stack, vectors)
    return unstacked(found, a.shape[:-2])


def decomposed(a: Tensor, upper: bool = False) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors, differentiated; one triangle of `a` is read."""
    if not a.size:
        return real_part(a).sum(axis=-2), a
    packed = differentiated(_RULE, lambda a: _computed(a, upper, True), a)
    return real_part(packed[..., 0, :]), packed[..., 1:, :]


def values_of(a: Tensor, upper: bool = False) -> Tensor:
    """Eigenvalues, differentiated: vectors are computed where a derivative asks for them."""
    if a._node.tracked or not a.size:
        return decomposed(a, upper)[0]
    with grad_mode(False), autocast(enabled=False):
        return real_part(_computed(a, upper, False)[..., 0, :])


class EighResult(NamedTuple):
    """What `eigh` gives."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class _Problem(NamedTuple):
    """A Hermitian matrix, whose upper or lower triangle is read; the Cholesky factor by which a
    generalised problem was reduced to it; the dtype of results."""

    a: Tensor
    upper: bool
    factor: Tensor | None
    dtype: DType


def _problem(op: str, x: ArrayLike, uplo: str, b: ArrayLike | str | None) -> _Problem:
    if isinstance(b, str):  # NumPy's second argument
        return _problem(op, x, b, None)
    uplo = uplo.upper() if isinstance(uplo, str) else uplo
    if uplo not in ("L", "U"):
        raise ValueError(f"linalg.{op}: UPLO={uplo!r} is neither 'L' nor 'U'")
    if b is not None:
        return _generalised(op, x, b, uplo)
    a, dtype = matrices(op, x, square=True)
    return _Problem(a, uplo == "U", None, dtype)


def _generalised(op: str, x: ArrayLike, b: ArrayLike, uplo: str) -> _Problem:
    """By the Cholesky factor of b = L Lᴴ: L⁻¹ a L⁻ᴴ has the same eigenvalues."""
    (a, m), dtype = operands(op, x, b)
    for matrix in (a, m):
        require_matrices(op, matrix, square=True)
    if a.shape[-1] != m.shape[-1]:
        raise ShapeError(f"linalg.{op}: matrices of shapes {a.shape} and {m.shape} do not fit")
    lead = broadcast_shapes(a.shape[:-2], m.shape[:-2], f"linalg.{op}")
    a, m = (broadcast_to(matrix, (*lead, *matrix.shape[-2:])) for matrix in (a, m))
    if uplo == "U":
        a, m = adjoint(a), adjoint(m)
    below = a.tril(-1)
    a = below + adjoint(below) + a.tril() - below  # of one triangle
    lower, info = cholesky_ex(m)
    check(op, info, "of b is not positive definite: its leading minor of order {} is not")
    inner = triangular.solve(lower, a, lower=True)
    inner = triangular.solve(lower, adjoint(inner), lower=True)
    return _Problem(inner, False, lower, dtype)


def _real(values: Tensor, dtype: DType) -> Tensor:
    return values if dtype.is_complex else values.astype(dtype)


@widens
def eigh(x: ArrayLike, b: ArrayLike | str | None = None, /, UPLO: str = "L") -> EighResult:
    """The eigenvalues of Hermitian matrices, ascending, and their eigenvectors in columns.

    With a positive-definite b, those of the generalised problem x v = λ b v; vectors then are
    orthonormal in its scalar product: vᴴ b v = 1.

    The lower triangle is read, or with UPLO="U" the upper one. Derivatives of eigenvectors are
    finite where eigenvalues are equal: their mixing within a common space is left out, which is
    right for losses of eigenvalues and of whole spaces, and not for f(x) = V f(λ) Vᴴ in general.

    >>> values, vectors = nm.linalg.eigh(nm.asarray([[2.0, 1.0], [1.0, 2.0]]))
    >>> [round(v, 5) for v in values.tolist()]
    [1.0, 3.0]
    """
    found = _solved("eigh", x, b, UPLO)
    check("eigh", unconverged(found.eigenvalues), UNCONVERGED, *found)
    return found


@widens
def eigh_ex(
    x: ArrayLike, b: ArrayLike | str | None = None, /, UPLO: str = "L"
) -> tuple[Tensor, Tensor, Tensor]:
    """`eigh` that does not raise: also info numbers, 1 where it did not converge or elements are
    not finite; values and vectors are NaN there.

    >>> nm.linalg.eigh_ex(nm.eye(2))[2].item()
    0
    """
    found = _solved("eigh_ex", x, b, UPLO)
    return (*found, unconverged(found.eigenvalues))


def _solved(op: str, x: ArrayLike, b: ArrayLike | str | None, uplo: str) -> EighResult:
    a, upper, lower, dtype = _problem(op, x, uplo, b)
    values, vectors = decomposed(a, upper)
    if lower is not None:
        vectors = triangular.solve(adjoint(lower), vectors, lower=False)
    return EighResult(_real(values, dtype), vectors.astype(dtype))


@widens
def eigvalsh(x: ArrayLike, b: ArrayLike | str | None = None, /, UPLO: str = "L") -> Tensor:
    """The eigenvalues of Hermitian matrices, ascending; with b, of the problem x v = λ b v.

    >>> nm.linalg.eigvalsh(nm.asarray([[4.0, 0.0], [0.0, 3.0]])).tolist()
    [3.0, 4.0]
    """
    a, upper, _, dtype = _problem("eigvalsh", x, UPLO, b)
    values = _real(values_of(a, upper), dtype)
    check("eigvalsh", unconverged(values), UNCONVERGED, values)
    return values
