"""Singular values: by bidiagonal matrices, on GPUs by polar decomposition, of small matrices by
one-sided Jacobi rotations (Hestenes 1958, after a QR factorisation)."""

from __future__ import annotations

from typing import NamedTuple

from numus import dtypes as dt
from numus.dtypes import DType
from numus.functions._base import wrap
from numus.functions.autocast import autocast, widens
from numus.functions.creation.creation import arange, eye, zeros
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
    identity,
    matrices,
    real_part,
    scale_of,
    stacked,
    unconverged,
    unstacked,
)
from numus.linalg.factor import blocked, lapack, small
from numus.linalg.factor.eigh import inverse_gaps
from numus.linalg.factor.jacobi import orthogonalized
from numus.linalg.factor.pivoting import columns_at
from numus.linalg.factor.qdwh import unitary_factor
from numus.linalg.factor.qr import by_reflectors
from numus.linalg.factor.qr import factors as qr_factors
from numus.linalg.factor.tridiagonal import by_tridiagonal
from numus.linalg.products import diagonal
from numus.primitives.linalg import factor
from numus.tensor import ArrayLike, Tensor
from numus.transforms.control import cond


def _tall(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U (m, n), s and V (n, n) of stacks with m >= n."""
    _, m, n = a.shape
    scale = scale_of(a)
    a = a / scale
    q, square = qr_factors(a, n) if m > n else (None, a)
    both = concat([square, identity(n, a)], axis=-1)
    found = orthogonalized(both, n)
    rows, rotation = found[..., :n], found[..., n:]
    values = (abs(rows) ** 2).sum(axis=-1).sqrt()
    order = values.argsort(axis=-1, descending=True)
    values = values.take_along_axis(order, axis=-1)
    rows, rotation = blocked.rows_at(rows, order), blocked.rows_at(rotation, order)
    left = adjoint(rotation) if q is None else q @ adjoint(rotation)
    return left, values * scale[..., 0], _completed(rows, values)


def _completed(rows: Tensor, sizes: Tensor) -> Tensor:
    """An orthonormal basis whose first vectors are the rows; any where rows are as good as zero."""
    n = rows.shape[-1]
    tiny = sizes <= finfo(sizes.dtype).eps * n * sizes[..., :1]
    unit = where(tiny[..., None], 0.0, rows / where(tiny, 1.0, sizes)[..., None])
    factors = by_reflectors if n > small.MAX_ORDER else qr_factors
    q, r = factors(adjoint(unit), n)
    sign = diagonal(r)
    sign = where(tiny, 1.0, sign / where(tiny, 1.0, abs(sign)))
    return q * sign[..., None, :]


def _values(a: Tensor) -> Tensor:
    """Singular values of stacks with m >= n."""
    _, m, n = a.shape
    scale = scale_of(a)
    square = qr_factors(a / scale, n)[1] if m > n else a / scale
    rows = orthogonalized(square, n)
    return (abs(rows) ** 2).sum(axis=-1).sqrt().sort(axis=-1, descending=True) * scale[..., 0]


def _by_rotations(a: Tensor, vectors: bool) -> Tensor:
    """As `_direct`."""
    if not vectors:
        return _values(a)[..., None, :].astype(a.dtype)
    left, values, right = _tall(a)
    return concat([left, right, values[..., None, :].astype(a.dtype)], axis=-2)


def _by_polar(a: Tensor, vectors: bool) -> Tensor:
    """As `_direct`: singular values are the eigenvalues of the Hermitian factor H of a = U H."""
    m, n = a.shape[-2:]
    scale = scale_of(a)
    a = a / scale
    q, square = qr_factors(a, n) if m > n else (None, a)
    unitary = unitary_factor(square)
    product = adjoint(unitary) @ square
    values, right = by_tridiagonal((product + adjoint(product)) / 2)
    order = abs(values).argsort(axis=-1, descending=True)  # those near 0 may be negative
    values = values.take_along_axis(order, axis=-1)
    last = abs(values)[..., None, :].astype(a.dtype) * scale
    if not vectors:
        return last
    right = columns_at(right, order)
    sign = where(values < 0, -1.0, 1.0).astype(a.dtype)
    left = _orthonormal(unitary @ right * sign[..., None, :], abs(values))
    return concat([left if q is None else q @ left, right, last], axis=-2)


def _orthonormal(columns: Tensor, sizes: Tensor) -> Tensor:
    """Columns that are so by rounding errors, else a basis: where singular values are as good as
    zero, columns may be any."""
    n = columns.shape[-1]
    error = abs(adjoint(columns) @ columns - identity(n, columns))
    lost = ~(maximum_of(error) <= n * finfo(sizes.dtype).eps)

    def completed(columns: Tensor, sizes: Tensor) -> Tensor:
        norms = (abs(columns) ** 2).sum(axis=-2).sqrt()
        return _completed(adjoint(columns), where(norms < NEARLY_UNIT, 0.0, norms))

    return cond(lost, completed, lambda columns, sizes: columns, columns, sizes)


def _direct(a: Tensor, vectors: bool) -> Tensor:
    """U (m, n), then V (n, n), where they are wanted, then a row of singular values, of stacks with
    m >= n; NaN where a matrix is not finite or steps did not converge."""
    _, m, n = a.shape
    if not small.on_cpu(a):
        by = _by_rotations if n <= small.MAX_ORDER else _by_polar
        return _finite(by(a, vectors))
    if small.applies(a) and not a.dtype.is_complex:
        if m == n:
            return wrap(factor.svd(a._node, vectors))  # scales by itself
        q, r = qr_factors(a, n)
        found = wrap(factor.svd(r._node, vectors))
        return concat([q @ found[:, :n], found[:, n:]], axis=-2) if vectors else found
    scale = scale_of(a)
    found = wrap(factor.svd((a / scale)._node, vectors))
    last = arange(found.shape[-2], device=a.device)[:, None] == found.shape[-2] - 1
    return _finite(found, where(last, found * scale, found))


def _finite(found: Tensor, packed: Tensor | None = None) -> Tensor:
    """NaN where a singular value, in the last row of what was found, is not finite: vectors would
    be any."""
    converged = isfinite(found[:, -1:]).all(axis=-1, keepdims=True)
    return where(converged, found if packed is None else packed, float("nan"))


NEARLY_UNIT = 0.5  # the norm of a column whose direction is sure
NARROW = 1.6  # times the smaller extent, from which on a triangle is decomposed (Chan 1982)


def _of_triangle(a: Tensor) -> Tensor:
    """As `_packed`, by the triangular factor of a QR factorisation."""
    _, m, n = a.shape
    k = min(m, n)
    q, r = qr_factors(a if m >= n else adjoint(a), k)
    found = _packed(r)
    left, right, values = q @ found[:, :k], found[:, k : 2 * k], found[:, 2 * k :]
    return concat([left, right, values] if m >= n else [right, left, values], axis=-2)


def _packed(a: Tensor) -> Tensor:
    """U (m, k), then V (n, k), then a row of singular values."""
    m, n = a.shape[-2:]
    stack = stacked(a)
    if max(m, n) >= NARROW * min(m, n) > small.MAX_ORDER:
        return unstacked(_of_triangle(stack), a.shape[:-2])
    if lapack.is_chosen("svd", stack, option="S"):
        left, values, right = lapack.svd(stack)
        parts = [left, adjoint(right), values[..., None, :].astype(a.dtype)]
        packed = _finite(concat(parts, axis=-2))
    else:
        packed = _direct(stack if m >= n else adjoint(stack), vectors=True)
        if m < n:
            packed = concat([packed[:, n : n + m], packed[:, :n], packed[:, n + m :]], axis=-2)
    return unstacked(packed, a.shape[:-2])


def _tangent(packed: Tensor, operands: list[Tensor], tangents: list[Tensor]) -> Tensor:
    """Townsend (2016): the parts of Uᴴ dA V within the spaces, and what leaves them."""
    (da,) = tangents
    m, n = da.shape[-2:]
    u, v, values = packed[..., :m, :], packed[..., m : m + n, :], real_part(packed[..., m + n, :])
    inner = adjoint(u) @ da @ v
    size = values.astype(packed.dtype)
    column, row = size[..., None], size[..., None, :]
    by_gap = inverse_gaps(values, values).astype(packed.dtype)
    by_sum = values[..., None, :] + values[..., :, None]
    by_sum = where(by_sum == 0, 0.0, 1 / where(by_sum == 0, 1.0, by_sum)).astype(packed.dtype)
    weights = by_gap * by_sum
    turn_u = weights * (inner * row + column * adjoint(inner))
    turn_v = weights * (column * inner + adjoint(inner) * row)
    inverse = where(values == 0, 0.0, 1 / where(values == 0, 1.0, values)).astype(packed.dtype)
    if packed.dtype.is_complex:
        phase = identity(inner.shape[-1], packed) * (inner.imag * 0.5j) * inverse[..., None, :]
        turn_u, turn_v = turn_u + phase, turn_v - phase
    du, dv = u @ turn_u, v @ turn_v
    if m > n:
        out = da @ v
        du = du + (out - u @ (adjoint(u) @ out)) * inverse[..., None, :]
    if n > m:
        out = adjoint(da) @ u
        dv = dv + (out - v @ (adjoint(v) @ out)) * inverse[..., None, :]
    dvalues = real_part(diagonal(inner)).astype(packed.dtype)
    return concat([du, dv, dvalues[..., None, :]], axis=-2)


_RULE = Implicit(_tangent)


def thin(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U (m, k), s and V (n, k) of matrices with elements, differentiated."""
    m, n = a.shape[-2:]
    packed = differentiated(_RULE, _packed, a)
    return packed[..., :m, :], real_part(packed[..., m + n, :]), packed[..., m : m + n, :]


class SVDResult(NamedTuple):
    """What `svd` gives: x = U diag(S) Vh."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def _full(basis: Tensor) -> Tensor:
    """Orthonormal columns, with more of them up to a square matrix."""
    m, k = basis.shape[-2:]
    if m == k:
        return basis
    with grad_mode(False):
        more = qr_factors(basis, m)[0][..., k:]
    return concat([basis, more], axis=-1)


def _axes(rows: int, columns: int, like: Tensor) -> Tensor:
    one = eye(rows, columns, dtype=like.dtype, device=like.device)
    return broadcast_to(one, (*like.shape[:-2], rows, columns))


def _no_values(a: Tensor) -> Tensor:
    """The singular values of matrices without elements."""
    shape = (*a.shape[:-2], min(a.shape[-2:]))
    return zeros(shape, dtype=dt.real_of(a.dtype), device=a.device)


def _real(values: Tensor, dtype: DType) -> Tensor:
    return values if dtype.is_complex else values.astype(dtype)


@widens
def svd(x: ArrayLike, /, *, full_matrices: bool = True) -> SVDResult:
    """U, S and Vh with x = U diag(S) Vh: orthonormal columns, singular values in descending order,
    orthonormal rows.

    With `full_matrices` U (m, m) and Vh (n, n) are square; the vectors beyond the smaller extent k
    are any orthonormal ones and not differentiated. Otherwise U is (m, k) and Vh (k, n).

    >>> u, s, vh = nm.linalg.svd(nm.asarray([[0.0, 2.0], [3.0, 0.0]]))
    >>> s.tolist()
    [3.0, 2.0]
    """
    found = _decomposed("svd", x, full_matrices)
    check("svd", unconverged(found.S), UNCONVERGED, *found)
    return found


@widens
def svd_ex(x: ArrayLike, /, *, full_matrices: bool = True) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`svd` that does not raise: also info numbers, 1 where it did not converge or elements are not
    finite; factors are NaN there.

    >>> nm.linalg.svd_ex(nm.eye(2))[3].item()
    0
    """
    found = _decomposed("svd_ex", x, full_matrices)
    return (*found, unconverged(found.S))


def _decomposed(op: str, x: ArrayLike, full_matrices: bool) -> SVDResult:
    a, dtype = matrices(op, x)
    m, n = a.shape[-2:]
    if not a.size:
        k = min(m, n)
        u, v = (_axes(size, size if full_matrices else k, a) for size in (m, n))
        return SVDResult(u.astype(dtype), _real(_no_values(a), dtype), v.mT.astype(dtype))
    u, s, v = thin(a)
    if full_matrices:
        u, v = _full(u), _full(v)
    return SVDResult(u.astype(dtype), _real(s, dtype), adjoint(v).astype(dtype))


def values_of(a: Tensor) -> Tensor:
    """Singular values in descending order, differentiated."""
    m, n = a.shape[-2:]
    if not a.size:
        return _no_values(a)
    if a._node.tracked:
        return thin(a)[1]
    if lapack.is_chosen("svd", stacked(a), option="N"):
        return unstacked(lapack.svd(stacked(a), "N")[1], a.shape[:-2])
    tall = stacked(a if m >= n else adjoint(a))
    if max(m, n) >= NARROW * min(m, n) > small.MAX_ORDER and small.on_cpu(a):
        tall = qr_factors(tall, min(m, n))[1]
    with grad_mode(False), autocast(enabled=False):
        found = _direct(tall, vectors=False)
    return unstacked(real_part(found[:, 0]), a.shape[:-2])


@widens
def svdvals(x: ArrayLike, /) -> Tensor:
    """The singular values of matrices, in descending order.

    >>> nm.linalg.svdvals(nm.asarray([[0.0, 2.0], [3.0, 0.0]])).tolist()
    [3.0, 2.0]
    """
    a, dtype = matrices("svdvals", x)
    values = _real(values_of(a), dtype)
    check("svdvals", unconverged(values), UNCONVERGED, values)
    return values
