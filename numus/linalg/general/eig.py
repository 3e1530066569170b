"""Eigenvalues and eigenvectors of general matrices, from their Schur form."""

from __future__ import annotations

from typing import NamedTuple

from numus import dtypes as dt
from numus.functions.autocast import widens
from numus.functions.creation.creation import zeros
from numus.functions.elementwise.comparison import where
from numus.functions.reduction.reductions import max as maximum_of
from numus.functions.shape.concatenation import concat
from numus.functions.shape.manipulation import broadcast_to
from numus.graph import grad_mode
from numus.linalg._base import (
    Implicit,
    check,
    differentiated,
    identity,
    matrices,
    scale_of,
    spoiled,
    stacked,
    unstacked,
)
from numus.linalg.factor import lapack
from numus.linalg.factor.lu import solve_ex
from numus.linalg.general.eigenvectors import (
    eigen_tangent,
    quasi_triangular_vectors,
    triangular_vectors,
    unit_columns,
)
from numus.linalg.general.host import hosted
from numus.linalg.general.qz import generalised
from numus.linalg.general.schur import UNCONVERGED, complexified, finite_part, packed_schur
from numus.linalg.products import diagonal
from numus.tensor import ArrayLike, Tensor


def values_of_blocks(t: Tensor) -> Tensor:
    """The eigenvalues of quasi-triangular real matrices with standardised blocks: conjugate pairs
    of exactly equal real parts."""
    real = diagonal(t)
    below, above = diagonal(t, offset=-1), diagonal(t, offset=1)
    size = abs(below).sqrt() * abs(above).sqrt()
    size = where((below != 0) & (below * above < 0), size, 0.0)
    none = zeros((*size.shape[:-1], 1), dtype=size.dtype, device=size.device)
    imaginary = concat([size, none], axis=-1) - concat([none, size], axis=-1)
    return real + 1j * imaginary


def _eig(a: Tensor) -> Tensor:
    """Eigenvalues in a first row, eigenvectors below, then a row of the info number."""
    n = a.shape[-1]
    with grad_mode(False):
        a, spoil = finite_part(a)
        scale = scale_of(a)
        stack = stacked(a / scale)
        if lapack.is_chosen("eig", stack.mT, option=1):
            found = unstacked(_by_library(stack), a.shape[:-2])
            own, vectors, info = found[..., :1, :], found[..., 1:-1, :], found[..., -1:, :]
            return concat([spoil(own * scale), spoil(vectors), info], axis=-2)
        packed = packed_schur(a / scale)
        t, z = packed[..., :n, :], packed[..., n : 2 * n, :].mT
        info = complexified(packed[..., 2 * n :, :])
        if a.dtype.is_complex:
            t = t.triu()
            values = diagonal(t)
            size = maximum_of(abs(t), axis=(-2, -1), keepdims=True)
            vectors = unit_columns(z @ triangular_vectors(t, identity(n, t), size))
        else:
            values = values_of_blocks(t)
            vectors = quasi_triangular_vectors(t, z)
        return concat([spoil(values[..., None, :] * scale), spoil(vectors), info], axis=-2)


def _by_library(stack: Tensor) -> Tensor:
    values, vectors, info = lapack.eig(stack)
    values = values[:, None, :]
    last = broadcast_to(info.astype(values.dtype)[:, None, None], values.shape)
    return concat([values, vectors, last], axis=-2)


def _tangent(packed: Tensor, operands: list[Tensor], tangents: list[Tensor]) -> Tensor:
    """dΛ = diag(V⁻¹ dA V), dV = V (F ∘ V⁻¹ dA V) whose columns keep their length."""
    n = packed.shape[-1]
    vectors = packed[..., 1 : n + 1, :]
    inner = solve_ex(vectors, complexified(tangents[0]) @ vectors)[0]
    return eigen_tangent(packed, inner)


_RULE = Implicit(_tangent)


class EigResult(NamedTuple):
    """What `eig` gives."""

    eigenvalues: Tensor
    eigenvectors: Tensor


def _checked(op: str, x: ArrayLike, b: ArrayLike | None = None) -> tuple[EigResult, Tensor]:
    if b is not None:
        values, vectors, info = generalised(op, x, b)
        return EigResult(values, vectors), info
    a, dtype = matrices(op, x, square=True)
    n = a.shape[-1]
    out = dt.complex_of(dtype)
    if not a.size:
        none = complexified(a).astype(out)
        return EigResult(none.sum(axis=-1), none), (a != 0).sum(axis=(-2, -1))
    packed = differentiated(_RULE, _eig, a)
    info = packed[..., n + 1, 0].detach().real.astype("int64")
    values = spoiled(packed[..., 0, :], info, 1).astype(out)
    return EigResult(values, spoiled(packed[..., 1 : n + 1, :], info).astype(out)), info


@hosted
@widens
def eig(x: ArrayLike, b: ArrayLike | None = None, /) -> EigResult:
    """The eigenvalues of square matrices and their eigenvectors, in columns of length 1; complex.

    With b, those of the generalised problem x v = λ b v, infinite where b is singular (by `qz`).

    They are in no order. Tensors of a GPU are copied to the host and back. Derivatives are those
    for losses that do not depend on the phases of eigenvectors, at distinct eigenvalues.

    >>> values, vectors = nm.linalg.eig(nm.asarray([[0.0, 1.0], [-1.0, 0.0]]))
    >>> sorted(values.imag.tolist())
    [-1.0, 1.0]
    """
    found, info = _checked("eig", x, b)
    check("eig", info, UNCONVERGED)
    return found


@hosted
@widens
def eig_ex(x: ArrayLike, /) -> tuple[Tensor, Tensor, Tensor]:
    """`eig` that does not raise: also info numbers, 0 or the rows that did not converge.

    >>> nm.linalg.eig_ex(nm.eye(2))[2].item()
    0
    """
    found, info = _checked("eig_ex", x)
    return (*found, info)


@hosted
@widens
def eigvals(x: ArrayLike, b: ArrayLike | None = None, /) -> Tensor:
    """The eigenvalues of square matrices, complex, in no order; with b, of x v = λ b v.

    >>> sorted(nm.linalg.eigvals(nm.asarray([[0.0, 1.0], [-1.0, 0.0]])).imag.tolist())
    [-1.0, 1.0]
    """
    found, info = _checked("eigvals", x, b)
    check("eigvals", info, UNCONVERGED)
    return found.eigenvalues
