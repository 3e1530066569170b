"""Determinants from an LU factorisation; of singular matrices too, their derivatives."""

from __future__ import annotations

from typing import NamedTuple

from numus.functions.autocast import widens
from numus.functions.creation.creation import arange
from numus.functions.elementwise.comparison import where
from numus.functions.reduction.cumulative import cumprod
from numus.functions.shape.concatenation import concat
from numus.functions.shape.manipulation import flip
from numus.linalg._base import (
    Implicit,
    adjoint,
    by_choice,
    differentiated,
    identity,
    matrices,
)
from numus.linalg.factor import small
from numus.linalg.factor.lu import factors, solve_with
from numus.linalg.factor.svd import thin
from numus.linalg.products import diagonal
from numus.tensor import ArrayLike, Tensor
from numus.transforms.control import cond


def _parity(swaps: Tensor) -> Tensor:
    """1 or -1: the determinant of the permutation."""
    moved = (swaps != arange(swaps.shape[-1], device=swaps.device)).astype("int64").sum(axis=-1)
    return 1 - 2 * (moved % 2)


@widens
def det(x: ArrayLike, /) -> Tensor:
    """The determinants of square matrices.

    >>> nm.linalg.det(nm.asarray([[2.0, 1.0], [0.0, 3.0]])).item()
    6.0
    """
    a, dtype = matrices("det", x, square=True)
    if small.is_direct("lu", a):
        return _small_det(a).astype(dtype, copy=False)
    return _det(a, _DET).astype(dtype, copy=False)


@by_choice
def _small_det(a: Tensor) -> Tensor:
    return small.det(a)


def _det(a: Tensor, rule: Implicit) -> Tensor:
    packed, order, swaps = factors(a)
    pivots = diagonal(packed).prod(axis=-1) * _parity(swaps).astype(packed.dtype)
    return differentiated(rule, lambda *_: pivots, a, packed, order)


def _without(x: Tensor) -> Tensor:
    """The product of all others along the last axis, of each: no division by what may be zero."""
    one = x[..., :1] * 0.0 + 1.0
    before = concat([one, cumprod(x, axis=-1)[..., :-1]], axis=-1)
    after = concat([flip(cumprod(flip(x, axis=-1), axis=-1), axis=-1)[..., 1:], one], axis=-1)
    return before * after


def _adjugate(a: Tensor) -> Tensor:
    """V adj(S) Uᴴ, times the determinant of U Vᴴ, for singular vectors as constants.

    S = Uᴴ a V is diagonal, and moves with a: -S_ij times the product of all singular values but two
    is element (i, j) of its adjugate up to second order, whatever values are equal.
    """
    u, _, v = thin(a.detach())
    inner = adjoint(u) @ a @ v
    values = diagonal(inner)
    one = identity(a.shape[-1], a)
    pairs = _without(where(one != 0, 1.0, values[..., None, :]))  # but those of row and column
    middle = one * _without(values)[..., None, :] - (1 - one) * inner * pairs
    phase = (_det(u, _REGULAR) * _det(v, _REGULAR).conj())[..., None, None]
    return phase * (v @ middle @ adjoint(u))


def _tangent(value: Tensor, operands: list[Tensor], tangents: list[Tensor]) -> Tensor:
    """d det = tr(adj(a) da) (Jacobi): with singular values where a pivot is zero."""
    a, packed, order = operands
    if not a.size:
        return value * 0.0

    def regular(a: Tensor, value: Tensor, packed: Tensor, order: Tensor) -> Tensor:
        inverse = solve_with(a, identity(a.shape[-1], a), packed, order, False)
        return value[..., None, None] * inverse

    def singular(a: Tensor, *_: Tensor) -> Tensor:
        return _adjugate(a)

    zero = (diagonal(packed) == 0).any()
    adjugate = cond(zero, singular, regular, a, value, packed, order)
    return (adjugate.mT * tangents[0]).sum(axis=(-2, -1))


_DET = Implicit(_tangent)


def _regular_tangent(value: Tensor, operands: list[Tensor], tangents: list[Tensor]) -> Tensor:
    return value * _relative(operands, tangents)


_REGULAR = Implicit(_regular_tangent)


class SlogdetResult(NamedTuple):
    """What `slogdet` gives."""

    sign: Tensor
    logabsdet: Tensor


@widens
def slogdet(x: ArrayLike, /) -> SlogdetResult:
    """The sign of the determinant (of absolute value 1, where complex) and the logarithm of its
    absolute value, which neither overflows nor underflows; 0 and -inf for singular matrices.

    >>> sign, logabsdet = nm.linalg.slogdet(1e-30 * nm.eye(20))
    >>> sign.item(), round(logabsdet.item())
    (1.0, -1382)
    """
    a, dtype = matrices("slogdet", x, square=True)
    packed, order, swaps = factors(a)
    pivots = diagonal(packed)
    sizes = abs(pivots)
    singular = (sizes == 0).any(axis=-1)
    units = pivots / where(sizes == 0, 1.0, sizes)
    sign = units.prod(axis=-1) * _parity(swaps).astype(packed.dtype)
    sign = where(singular, 0.0, sign)
    size = where(singular, -float("inf"), where(sizes == 0, 1.0, sizes).log().sum(axis=-1))
    logarithm = differentiated(_LOG_DET, lambda *_: size, a, packed, order)
    if a.dtype.is_complex:
        sign = differentiated(_SIGN, lambda *_: sign, a, packed, order)
    logarithm = logarithm if dtype.is_complex else logarithm.astype(dtype, copy=False)
    return SlogdetResult(sign.astype(dtype, copy=False), logarithm)


def _relative(operands: list[Tensor], tangents: list[Tensor]) -> Tensor:
    a, packed, order = operands
    return diagonal(solve_with(a, tangents[0], packed, order, False)).sum(axis=-1)


def _log_tangent(value: Tensor, operands: list[Tensor], tangents: list[Tensor]) -> Tensor:
    trace = _relative(operands, tangents)
    return trace.real if trace.dtype.is_complex else trace


_LOG_DET = Implicit(_log_tangent)


def _sign_tangent(value: Tensor, operands: list[Tensor], tangents: list[Tensor]) -> Tensor:
    return value * _relative(operands, tangents).imag * 1j


_SIGN = Implicit(_sign_tangent)
