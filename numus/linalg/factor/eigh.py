"""Eigenvalues of Hermitian matrices: by tridiagonal matrices, or one-sided Jacobi rotations."""

from __future__ import annotations

from typing import NamedTuple

from numus.errors import ShapeError
from numus.functions._base import wrap
from numus.functions.autocast import widens
from numus.functions.creation.dtype_functions import finfo
from numus.functions.elementwise.arithmetic import minimum
from numus.functions.elementwise.comparison import where
from numus.functions.reduction.reductions import max as maximum_of
from numus.functions.shape.concatenation import concat
from numus.functions.shape.manipulation import broadcast_to
from numus.linalg._base import (
    Implicit,
    adjoint,
    check,
    differentiated,
    identity,
    matrices,
    operands,
    require_matrices,
    scale_of,
    stacked,
    unstacked,
)
from numus.linalg.factor import blocked, lapack, small, triangular
from numus.linalg.factor.cholesky import cholesky_ex
from numus.linalg.products import diagonal
from numus.primitives.linalg import factor
from numus.shapes import broadcast as broadcast_shapes
from numus.tensor import ArrayLike, Tensor


def real_part(x: Tensor) -> Tensor:
    return x.real if x.dtype.is_complex else x


def inverse_gaps(x: Tensor, y: Tensor) -> Tensor:
    """1 / (y_j - x_i), and 0 where they are as good as equal: derivatives stay finite there."""
    gaps = y[..., None, :] - x[..., :, None]
    size = maximum_of(abs(y), axis=-1)[..., None, None] if y.shape[-1] else 1.0
    close = abs(gaps) <= 4 * finfo(gaps.dtype).eps * size
    return where(close, 0.0, 1 / where(close, 1.0, gaps))


JACOBI_ORDER = 20  # up to which rotations of all pairs are as fast: many matrices share vectors


def _eigh(a: Tensor) -> Tensor:
    """Eigenvalues in a first row, eigenvectors below, of stacks of Hermitian matrices."""
    scale = scale_of(a)
    a = a / scale
    device = a._node.device
    serial = device is not None and not device.runtime.target.simt
    if serial and not a.dtype.is_complex and a.shape[-1] > JACOBI_ORDER:
        found = wrap(factor.eigh(a._node))
        values, rows = found[:, 0], found[:, 1:]
    else:
        values, rows = _by_rotations(a)
    order = values.argsort(axis=-1)
    values = values.take_along_axis(order, axis=-1) * scale[..., 0]
    vectors = blocked.rows_at(rows, order).mT
    return concat([values[..., None, :].astype(a.dtype), vectors], axis=-2)


def _by_rotations(a: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, and eigenvectors in rows.

    Rows of the shifted matrix, which is well-conditioned and positive definite, become orthogonal:
    they are its eigenvectors then, each times its eigenvalue.
    """
    n = a.shape[-1]
    frobenius = ((abs(a) ** 2).sum(axis=(-2, -1), keepdims=True)).sqrt()
    rows = maximum_of(abs(a).sum(axis=-1, keepdims=True), axis=-2, keepdims=True)
    shift = 1.5 * minimum(frobenius, rows)
    shift = where(shift == 0, 1.0, shift)
    shifted = a + shift * identity(n, a)
    found = wrap(factor.orthogonalize(shifted._node, n))
    vectors = adjoint(found / (abs(found) ** 2).sum(axis=-1, keepdims=True).sqrt())
    return real_part((vectors.conj() * (a @ vectors)).sum(axis=-2)), vectors.mT


def _tangent(packed: Tensor, operands: list[Tensor], tangents: list[Tensor]) -> Tensor:
    """dΛ = diag(Vᴴ dA V), dV = V (F ∘ Vᴴ dA V), F_ij = 1 / (λ_j - λ_i)."""
    da = (tangents[0] + adjoint(tangents[0])) / 2
    values, vectors = real_part(packed[..., 0, :]), packed[..., 1:, :]
    inner = adjoint(vectors) @ da @ vectors
    dvalues = real_part(diagonal(inner)).astype(packed.dtype)
    dvectors = vectors @ (inner * inverse_gaps(values, values).astype(packed.dtype))
    return concat([dvalues[..., None, :], dvectors], axis=-2)


_RULE = Implicit(_tangent)


def decomposed(a: Tensor, upper: bool = False) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors, differentiated; one triangle of `a` is read."""
    n = a.shape[-1]

    def compute(a: Tensor) -> Tensor:
        if not a.size:
            return concat([a[..., :1, :], a], axis=-2)
        stack = stacked(adjoint(a) if upper else a)
        if lapack.is_chosen("eigh", stack, option=1):
            values, vectors = lapack.eigh(stack)
            packed = concat([values[..., None, :].astype(a.dtype), vectors], axis=-2)
            return unstacked(packed, a.shape[:-2])
        if small.applies(stack) and not a.dtype.is_complex:
            return unstacked(wrap(factor.small_eigh(stack._node)), a.shape[:-2])
        lower = adjoint(a.triu()) if upper else a.tril()
        below = lower.tril(-1)
        middle = lower * identity(n, a)
        whole = below + adjoint(below) + (middle + middle.conj()) / 2
        return unstacked(_eigh(stacked(whole)), a.shape[:-2])

    if not n:
        return real_part(a).sum(axis=-2), a
    packed = differentiated(_RULE, compute, a)
    return real_part(packed[..., 0, :]), packed[..., 1:, :]


class EighResult(NamedTuple):
    """What `eigh` gives."""

    eigenvalues: Tensor
    eigenvectors: Tensor


def _checked(op: str, x: ArrayLike, uplo: str, b: ArrayLike | None) -> EighResult:
    uplo = uplo.upper() if isinstance(uplo, str) else uplo
    if uplo not in ("L", "U"):
        raise ValueError(f"linalg.{op}: UPLO={uplo!r} is neither 'L' nor 'U'")
    if b is not None:
        return _generalised(op, x, b, uplo)
    a, dtype = matrices(op, x, square=True)
    values, vectors = decomposed(a, upper=uplo == "U")
    if not dtype.is_complex:
        values = values.astype(dtype)
    return EighResult(values, vectors.astype(dtype))


def _generalised(op: str, x: ArrayLike, b: ArrayLike, uplo: str) -> EighResult:
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
    values, vectors = decomposed(inner)
    vectors = triangular.solve(adjoint(lower), vectors, lower=False)
    if not dtype.is_complex:
        values = values.astype(dtype)
    return EighResult(values, vectors.astype(dtype))


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
    if isinstance(b, str):  # NumPy's second argument
        return _checked("eigh", x, b, None)
    return _checked("eigh", x, UPLO, b)


@widens
def eigvalsh(x: ArrayLike, b: ArrayLike | str | None = None, /, UPLO: str = "L") -> Tensor:
    """The eigenvalues of Hermitian matrices, ascending; with b, of the problem x v = λ b v.

    >>> nm.linalg.eigvalsh(nm.asarray([[4.0, 0.0], [0.0, 3.0]])).tolist()
    [3.0, 4.0]
    """
    if isinstance(b, str):
        return _checked("eigvalsh", x, b, None)[0]
    return _checked("eigvalsh", x, UPLO, b)[0]
