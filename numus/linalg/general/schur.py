"""Schur and Hessenberg forms: Householder reduction, then shifted QR iteration.

Both run on CPUs; matrices of a GPU are copied to the host and their factors back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from numus import dtypes as dt
from numus.functions._base import wrap
from numus.functions.autocast import widens
from numus.functions.creation.creation import arange
from numus.functions.elementwise.comparison import isfinite, where
from numus.functions.shape.concatenation import concat
from numus.functions.shape.manipulation import broadcast_to, moveaxis
from numus.graph import grad_mode
from numus.linalg._base import (
    Implicit,
    adjoint,
    check,
    differentiated,
    matrices,
    scale_of,
    spoiled,
    stacked,
    unstacked,
)
from numus.linalg.factor import lapack
from numus.linalg.general.host import hosted
from numus.linalg.general.triangular_sylvester import triangular_sylvester
from numus.linalg.products import diagonal
from numus.primitives.linalg import spectral
from numus.tensor import ArrayLike, Tensor
from numus.transforms.control import scan

UNCONVERGED = "did not converge: {} rows are left after 30 iterations per row"


def complexified(a: Tensor) -> Tensor:
    return a if a.dtype.is_complex else a.astype(dt.complex_of(a.dtype))


def finite_part(a: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Matrices with zeros in place of those that are not finite, on which iterations would not end;
    and a function that makes the results of these NaN."""
    finite = isfinite(a).all(axis=(-2, -1), keepdims=True)
    return where(finite, a, 0.0), lambda x: where(finite, x, float("nan"))


def packed_schur(a: Tensor) -> Tensor:
    """T, then Zᵀ, then a row that begins with the info number, of matrices with elements; not
    differentiated."""
    n = a.shape[-1]
    with grad_mode(False):
        a, spoil = finite_part(a)
        scale = scale_of(a)
        stack = stacked(a / scale)
        if lapack.is_chosen("schur", stack.mT):
            found = _by_library(stack)
        else:
            found = wrap(spectral.schur(spectral.hessenberg(stack._node)))
        found = unstacked(found, a.shape[:-2])
        parts = [found[..., :n, :] * scale, found[..., n : 2 * n, :]]
        return concat([*map(spoil, parts), found[..., 2 * n :, :]], axis=-2)


def _by_library(stack: Tensor) -> Tensor:
    t, z, _, info = lapack.schur(stack)
    last = broadcast_to(info.astype(stack.dtype)[:, None, None], (*info.shape, 1, t.shape[-1]))
    return concat([t, z.mT, last], axis=-2)


def _tangent(packed: Tensor, operands: list[Tensor], tangents: list[Tensor]) -> Tensor:
    """Zᴴ dA Z = dT + Ω T - T Ω: its strict lower triangle is that of Ω, anti-Hermitian."""
    n = packed.shape[-1]
    t, z = packed[..., :n, :], packed[..., n : 2 * n, :].mT
    inner = adjoint(z) @ tangents[0] @ z
    lower = triangular_sylvester(-t, t, inner, "lower")
    turn = lower - adjoint(lower)
    dt_ = (inner - turn @ t + t @ turn).triu()
    return concat([dt_, (z @ turn).mT, packed[..., 2 * n :, :] * 0.0], axis=-2)


_SCHUR = Implicit(_tangent)


def decomposed(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """T, Z and info numbers, differentiated."""
    n = a.shape[-1]
    packed = differentiated(_SCHUR, packed_schur, a)
    info = packed[..., 2 * n, 0].detach()
    info = (info.real if info.dtype.is_complex else info).astype("int64")
    t = packed[..., :n, :]
    return t.triu() if a.dtype.is_complex else t.triu(-1), packed[..., n : 2 * n, :].mT, info


class SchurResult(NamedTuple):
    """What `schur` gives: x = Z T Zᴴ."""

    T: Tensor
    Z: Tensor


def _schur(op: str, x: ArrayLike, output: str) -> tuple[SchurResult, Tensor]:
    if output not in ("real", "complex"):
        raise ValueError(f"linalg.{op}: output={output!r} is neither 'real' nor 'complex'")
    a, dtype = matrices(op, x, square=True)
    if output == "complex" and not dtype.is_complex:
        a = complexified(a)
        dtype = a.dtype
    if not a.size:
        return SchurResult(a.astype(dtype), a.astype(dtype)), (a != 0).sum(axis=(-2, -1))
    t, z, info = decomposed(a)
    return SchurResult(*(spoiled(part, info).astype(dtype) for part in (t, z))), info


@hosted
@widens
def schur(x: ArrayLike, /, *, output: str = "real") -> SchurResult:
    """T and Z with x = Z T Zᴴ: unitary Z, and T upper triangular.

    With `output="real"` a real matrix has real T and Z: each pair of complex eigenvalues is a block
    of order 2 on the diagonal of T, with equal diagonal elements. "complex" gives triangular T.
    Derivatives are those of triangular T with distinct eigenvalues.

    >>> t, z = nm.linalg.schur(nm.asarray([[1.0, 2.0], [0.0, 3.0]]))
    >>> t.tolist()
    [[1.0, 2.0], [0.0, 3.0]]
    """
    found, info = _schur("schur", x, output)
    check("schur", info, UNCONVERGED)
    return found


@hosted
@widens
def schur_ex(x: ArrayLike, /, *, output: str = "real") -> tuple[Tensor, Tensor, Tensor]:
    """`schur` that does not raise: T, Z and info numbers, 0 or the rows that did not converge.

    >>> nm.linalg.schur_ex(nm.eye(2))[2].item()
    0
    """
    found, info = _schur("schur_ex", x, output)
    return (*found, info)


# -- Hessenberg form ------------------------------------------------------------------------------


class HessenbergResult(NamedTuple):
    """What `hessenberg` gives: x = Q H Qᴴ."""

    H: Tensor
    Q: Tensor


def _hessenberg(a: Tensor) -> Tensor:
    n = a.shape[-1]
    scale = scale_of(a)
    form = wrap(spectral.hessenberg(stacked(a / scale)._node))
    found = unstacked(form, a.shape[:-2])
    return concat([found[..., :n, :] * scale, found[..., n : 2 * n, :]], axis=-2)


def _hessenberg_tangent(packed: Tensor, operands: list[Tensor], tangents: list[Tensor]) -> Tensor:
    """Qᴴ dA Q = dH + Ω H - H Ω, whose part below the subdiagonal gives Ω, a column after the other:
    the first one is zero. The subdiagonal stays real."""
    n = packed.shape[-1]
    h, q = packed[..., :n, :], packed[..., n:, :].mT
    inner = adjoint(q) @ tangents[0] @ q
    rows = arange(n, device=h.device)
    below = h[..., 1:, :-1]
    subdiagonal = diagonal(below)
    zero = subdiagonal == 0
    factors = where(zero, 0.0, 1 / where(zero, 1.0, subdiagonal))

    def step(turn: Tensor, at: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        j, column, own, factor = at
        known = where(rows <= j, own, 0.0)
        here = (turn * (rows == j).astype(turn.dtype)).sum(axis=-1)
        rest = column - (turn @ known[..., None])[..., 0] + (h @ here[..., None])[..., 0]
        rest = rest * factor[..., None]
        new = where(rows > j + 1, rest, 0.0)
        if h.dtype.is_complex:
            new = new + where(rows == j + 1, rest.imag * 1j, 0.0)
        across = where(rows == j + 1, 0.0, new)
        mask = (rows == j + 1).astype(turn.dtype)
        turn = turn + new[..., :, None] * mask - mask[:, None] * across.conj()[..., None, :]
        return turn, j

    steps = (
        rows[: n - 1],
        moveaxis(inner, -1, 0)[: n - 1],
        moveaxis(h, -1, 0)[: n - 1],
        moveaxis(factors, -1, 0),
    )
    turn = inner * 0.0
    if n > 1:
        turn, _ = scan(step, turn, steps)
    dh = (inner - turn @ h + h @ turn).triu(-1)
    return concat([dh, (q @ turn).mT], axis=-2)


_HESSENBERG = Implicit(_hessenberg_tangent)


@hosted
@widens
def hessenberg(x: ArrayLike, /) -> HessenbergResult:
    """H and Q with x = Q H Qᴴ: unitary Q, and H that is zero below its subdiagonal.

    >>> h, q = nm.linalg.hessenberg(nm.asarray([[1.0, 2.0], [3.0, 4.0]]))
    >>> h.tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    a, dtype = matrices("hessenberg", x, square=True)
    n = a.shape[-1]
    if not a.size:
        return HessenbergResult(a.astype(dtype), a.astype(dtype))
    packed = differentiated(_HESSENBERG, _hessenberg, a).astype(dtype)
    return HessenbergResult(packed[..., :n, :].triu(-1), packed[..., n:, :].mT)
