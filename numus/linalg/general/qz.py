"""Generalised Schur form and eigenvalues of pencils."""

from __future__ import annotations

from typing import NamedTuple

from numus.errors import ShapeError
from numus.functions._base import wrap
from numus.functions.autocast import widens
from numus.functions.creation.dtype_functions import finfo
from numus.functions.elementwise.comparison import where
from numus.functions.reduction.reductions import max as maximum_of
from numus.functions.shape.concatenation import concat
from numus.functions.shape.manipulation import broadcast_to
from numus.graph import grad_mode
from numus.linalg._base import (
    Implicit,
    adjoint,
    check,
    differentiated,
    operands,
    require_matrices,
    scale_of,
    spoiled,
    stacked,
    unstacked,
)
from numus.linalg.factor import triangular
from numus.linalg.factor.lu import solve_ex
from numus.linalg.factor.qr import factors
from numus.linalg.general.eigenvectors import eigen_tangent, triangular_vectors, unit_columns
from numus.linalg.general.host import hosted
from numus.linalg.general.schur import UNCONVERGED, complexified, finite_part
from numus.linalg.general.triangular_sylvester import triangular_sylvester
from numus.linalg.products import diagonal
from numus.primitives.linalg import spectral
from numus.shapes import broadcast as broadcast_shapes
from numus.tensor import ArrayLike, Tensor


class Pencil(NamedTuple):
    """a = Q S Zᴴ, b = Q T Zᴴ; info numbers."""

    s: Tensor
    t: Tensor
    q: Tensor
    z: Tensor
    info: Tensor


def pair(op: str, x: ArrayLike, y: ArrayLike) -> tuple[Tensor, Tensor]:
    """Complex matrices of equal shapes."""
    (a, b), _ = operands(op, x, y)
    for m in (a, b):
        require_matrices(op, m, square=True)
    if a.shape[-1] != b.shape[-1]:
        raise ShapeError(f"linalg.{op}: matrices of shapes {a.shape} and {b.shape} do not fit")
    lead = broadcast_shapes(a.shape[:-2], b.shape[:-2], f"linalg.{op}")
    a, b = (complexified(broadcast_to(m, (*lead, *m.shape[-2:]))) for m in (a, b))
    return a, b


def pencil(a: Tensor, b: Tensor) -> Pencil:
    """Not differentiated; of matrices with elements."""
    n, lead = a.shape[-1], a.shape[:-2]
    with grad_mode(False):
        a, spoil_a = finite_part(a)
        b, spoil_b = finite_part(b)
        scale_a, scale_b = scale_of(a), scale_of(b)
        q, r = factors(b / scale_b, n)
        rest = adjoint(q) @ (a / scale_a)
        packed = wrap(spectral.qz(stacked(rest)._node, stacked(r.triu())._node))
        packed = unstacked(packed, lead)
        s, t, inner, z = (packed[..., i * n : (i + 1) * n, :] for i in range(4))
        q, z = q @ inner.mT, z.mT
        info = packed[..., 4 * n, 0].real.astype("int64")
        parts = (s.triu() * scale_a, t.triu() * scale_b, q, z)
        s, t, q, z = (spoil_a(spoil_b(part)) for part in parts)
        return Pencil(s, t, q, z, info)


class QZResult(NamedTuple):
    """What `qz` gives: a = Q S Zᴴ, b = Q T Zᴴ."""

    S: Tensor
    T: Tensor
    Q: Tensor
    Z: Tensor


def _tangent(packed: Tensor, given: list[Tensor], tangents: list[Tensor]) -> Tensor:
    """Qᴴ dA Z = dS + Ω S - S Ψ and Qᴴ dB Z = dT + Ω T - T Ψ, for a regular b: Ω is that of the
    Schur form S T⁻¹ of a b⁻¹, then Ψ follows from T."""
    n = packed.shape[-1]
    s, t, q, z = (packed[..., i * n : (i + 1) * n, :] for i in range(4))
    da, db = (adjoint(q) @ d @ z for d in tangents)
    ratio, moved = (_over(m, t) for m in (s, da - _over(s, t) @ db))
    lower = triangular_sylvester(-ratio.triu(), ratio.triu(), moved, "lower")
    left = lower - adjoint(lower)
    lower = triangular.solve(t, (left @ t - db).tril(-1), lower=False).tril(-1)
    right = lower - adjoint(lower)
    ds, dt = ((d - left @ m + m @ right).triu() for d, m in ((da, s), (db, t)))
    return concat([ds, dt, q @ left, z @ right], axis=-2)


def _over(m: Tensor, t: Tensor) -> Tensor:
    """m t⁻¹ for upper triangular t."""
    return adjoint(triangular.solve(adjoint(t), adjoint(m), lower=True))


_RULE = Implicit(_tangent)


@hosted
@widens
def qz(a: ArrayLike, b: ArrayLike, /) -> QZResult:
    """S, T, Q and Z with a = Q S Zᴴ and b = Q T Zᴴ: unitary Q and Z, upper triangular S and T, all
    complex; the ratios of the diagonals of S and T are the eigenvalues of the pencil.

    b may be singular; derivatives are those for a regular one and distinct eigenvalues. Tensors of
    a GPU are copied to the host and back.

    >>> s, t, q, z = nm.linalg.qz(nm.asarray([[6.0]]), nm.asarray([[2.0]]))
    >>> abs(s / t).tolist()
    [[3.0]]
    """
    x, y = pair("qz", a, b)
    if not x.size:
        return QZResult(x, y, x, y)
    n = x.shape[-1]
    found = pencil(x, y)
    check("qz", found.info, UNCONVERGED)
    packed = differentiated(_RULE, lambda *_: concat(found[:4], axis=-2), x, y)
    return QZResult(*(spoiled(packed[..., i * n : (i + 1) * n, :], found.info) for i in range(4)))


# -- eigenvalues ----------------------------------------------------------------------------------


def _values_and_vectors(a: Tensor, b: Tensor) -> Tensor:
    """Eigenvalues in a first row, eigenvectors below, then a row of the info number."""
    found = pencil(a, b)
    with grad_mode(False):
        sizes = [maximum_of(abs(m), axis=(-2, -1), keepdims=True) for m in (found.s, found.t)]
        s, t = (m / where(size == 0, 1.0, size) for m, size in zip(found[:2], sizes, strict=True))
        alpha, beta = diagonal(found.s), diagonal(found.t)
        none = abs(beta) <= finfo(beta.dtype).eps * sizes[1][..., 0]
        values = where(none, float("inf"), alpha / where(none, 1.0, beta))
        vectors = unit_columns(found.z @ triangular_vectors(s, t, sizes[0] * 0.0 + 1.0))
        values = values[..., None, :]
        info = broadcast_to(found.info[..., None, None].astype(a.dtype), values.shape)
        return concat([values, vectors, info], axis=-2)


def _eig_tangent(packed: Tensor, given: list[Tensor], tangents: list[Tensor]) -> Tensor:
    """As for one matrix, with V⁻¹ b⁻¹ (dA V - dB V Λ)."""
    n = packed.shape[-1]
    values, vectors = packed[..., :1, :], packed[..., 1 : n + 1, :]
    da, db = tangents
    inner = solve_ex(given[1] @ vectors, da @ vectors - db @ (vectors * values))[0]
    return eigen_tangent(packed, inner)


_EIG = Implicit(_eig_tangent)


def generalised(op: str, x: ArrayLike, y: ArrayLike) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues, eigenvectors and info numbers of x v = λ y v."""
    a, b = pair(op, x, y)
    n = a.shape[-1]
    if not a.size:
        return a.sum(axis=-1), a, (a != 0).sum(axis=(-2, -1))
    packed = differentiated(_EIG, _values_and_vectors, a, b)
    info = packed[..., n + 1, 0].detach().real.astype("int64")
    return spoiled(packed[..., 0, :], info, 1), spoiled(packed[..., 1 : n + 1, :], info), info
