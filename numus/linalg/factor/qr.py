"""QR factorisation by blocked Householder reflections, on GPUs by block Gram-Schmidt."""

from __future__ import annotations

from typing import NamedTuple

from numus.errors import GradientError
from numus.functions._base import wrap
from numus.functions.autocast import autocast, widens
from numus.functions.creation.creation import eye, zeros
from numus.functions.elementwise.comparison import where
from numus.functions.shape.concatenation import concat
from numus.functions.shape.manipulation import broadcast_to
from numus.functions.shape.splitting import diagonal
from numus.functions.shape.tiling import pad
from numus.graph import grad_mode
from numus.linalg._base import (
    Implicit,
    adjoint,
    by_choice,
    differentiated,
    identity,
    matrices,
    scale_of,
    stacked,
    unstacked,
)
from numus.linalg.factor import blocked, gram_schmidt, lapack, small, triangular
from numus.linalg.factor.pivoting import columns_at, pivot_order
from numus.primitives.linalg import factor
from numus.tensor import ArrayLike, Tensor
from numus.transforms.control import cond

TALL = 16  # columns up to which a kernel of its own is as fast
RANGE_ROWS = 512  # of a tall matrix, and at least two squares: factorised by themselves


def factors(a: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """Q (m, columns) and R (columns, n), not differentiated."""
    m, n = a.shape[-2:]
    k = min(m, n)
    lead = a.shape[:-2]
    if not a.size:
        q = broadcast_to(eye(m, columns, dtype=a.dtype, device=a.device), (*lead, m, columns))
        return q, zeros((*lead, columns, n), dtype=a.dtype, device=a.device)
    if lapack.is_chosen("qr", stacked(a).mT, option=columns):
        q, r = lapack.qr(stacked(a), columns)
        return unstacked(q, lead), unstacked(r[:, :columns].triu(), lead)
    if columns == n <= m and (small.applies(a) or small.columns_in_registers(a)):
        packed = unstacked(wrap(factor.direct_qr(stacked(a)._node)), lead)
        return packed[..., :m, :], packed[..., m:, :]
    if columns == m < n and m > TALL and small.on_cpu(a):
        q, r = factors(a[..., :m], m)
        return q, concat([r, adjoint(q) @ a[..., m:]], axis=-1)
    if columns == n <= m and n > TALL and small.on_cpu(a):
        scale = scale_of(a)
        packed = unstacked(wrap(factor.direct_qr(stacked(a / scale)._node)), lead)
        return packed[..., :m, :], packed[..., m:, :] * scale
    scale = scale_of(a, axis=-2)  # which leaves Q as it is
    scaled = stacked(a / scale)
    if columns == k > small.MAX_ORDER and lapack.on_gpu(a):
        q, r = _by_gram_schmidt(scaled)
    else:
        q, r = by_reflectors(scaled, columns)
    q, r = unstacked(q, lead), unstacked(r, lead) * scale
    if columns > k:
        below = zeros((*lead, columns - k, n), dtype=a.dtype, device=a.device)
        r = concat([r, below], axis=-2)
    return q, r


def by_reflectors(a: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """Q and R of stacks of scaled matrices, whose columns may be dependent."""
    batch, m, _ = a.shape
    r, reflectors = blocked.qr(a)
    start = broadcast_to(eye(m, columns, dtype=a.dtype, device=a.device), (batch, m, columns))
    return blocked.apply_q(reflectors, start), r


def _by_gram_schmidt(a: Tensor) -> tuple[Tensor, Tensor]:
    """By reflectors, where columns of a matrix of the stack are as good as dependent."""
    k = min(a.shape[1:])
    q, r, lost = gram_schmidt.qr(a[..., :k])
    q, r = cond(lost, lambda a, q, r: by_reflectors(a, k), lambda a, q, r: (q, r), a[..., :k], q, r)
    return q, (concat([r, adjoint(q) @ a[..., k:]], axis=-1) if a.shape[2] > k else r)


def triangle(a: Tensor) -> Tensor:
    """R (min(m, n), n) alone, not differentiated, of matrices that are scaled, if they are a CPU's;
    of tall ones there by the triangles of ranges of rows (TSQR, Demmel et al. 2012)."""
    m, n = a.shape[-2:]
    if a.size and not small.on_cpu(a) and lapack.is_chosen("qr", stacked(a).mT):
        r = lapack.qr(stacked(a), 0)[1]
        return unstacked(r[:, : min(m, n)].triu(), a.shape[:-2])
    if m < n or n <= TALL or small.applies(a) or not small.on_cpu(a):
        return factors(a, min(m, n))[1]
    return unstacked(_triangle(stacked(a)), a.shape[:-2])


def _triangle(a: Tensor) -> Tensor:
    batch, m, n = a.shape
    count = m // max(RANGE_ROWS, 2 * n)
    if count < 2:
        return wrap(factor.direct_qr(a._node, False))
    count = 1 << (count.bit_length() - 1)
    rows = -(-m // count)
    a = pad(a, ((0, 0), (0, count * rows - m), (0, 0)))
    found = _triangle(a.reshape((batch * count, rows, n)))
    return _triangle(found.reshape((batch, count * n, n)))


def _tangent(packed: Tensor, operands: list[Tensor], tangents: list[Tensor]) -> Tensor:
    """dA R⁻¹ = dQ + Q dR R⁻¹: the part of Qᴴ dA R⁻¹ that is anti-Hermitian is Q's, the upper
    triangular rest R's (Walter & Lehmann 2010); the diagonal of R stays real."""
    m, n = operands[0].shape[-2:]
    k = min(m, n)
    (da,) = tangents
    q, r = packed[..., :m, :], adjoint(packed[..., m:, :])
    square = r[..., :k]
    moved = adjoint(triangular.solve(adjoint(square), adjoint(da[..., :k]), lower=True))
    inner = adjoint(q) @ moved
    below = inner.tril(-1)
    turn = below - adjoint(below)
    if packed.dtype.is_complex:
        turn = turn + (inner.imag * 1j) * identity(k, packed)
    dq = moved - q @ (inner - turn)
    dr = (inner - turn).triu() @ square
    if n > k:
        rest = adjoint(q) @ da[..., k:] + adjoint(dq) @ (q @ r[..., k:])
        dr = concat([dr, rest], axis=-1)
    return concat([dq, adjoint(dr)], axis=-2)


_REDUCED = Implicit(_tangent)


def _no_tangent(*_: object) -> Tensor:
    raise GradientError(
        "linalg.qr: Q of mode='complete' has no derivative for matrices with more rows than "
        "columns: its last columns are any basis; use mode='reduced'"
    )


_COMPLETE = Implicit(_no_tangent)


def _no_raw_tangent(*_: object) -> Tensor:
    raise GradientError(
        "linalg.qr: reflectors (mode='raw') have no derivative here; use mode='reduced'"
    )


_RAW = Implicit(_no_raw_tangent)


def _packed(a: Tensor) -> Tensor:
    """R over the reflectors below its diagonal, and a last row of their factors tau."""
    m, n = a.shape[-2:]
    lead = a.shape[:-2]
    if not a.size:
        return zeros((*lead, m + 1, n), dtype=a.dtype, device=a.device)
    scale = scale_of(a, axis=-2)
    r, reflectors = blocked.qr(stacked(a / scale))
    packed = pad(r * stacked(scale), ((0, 0), (0, m - r.shape[-2]), (0, 0)))
    factors, start = [], 0
    for v, inverse in reflectors:
        width = v.shape[-1]
        around = ((0, 0), (start, 0), (start, n - start - width))
        packed = packed + pad(v.tril(-1), around)
        # a reflector that is none has no unit on its diagonal
        idle = diagonal(v, axis1=-2, axis2=-1) == 0
        factors.append(where(idle, 0.0, 1 / diagonal(inverse, axis1=-2, axis2=-1)))
        start += width
    tau = pad(concat(factors, axis=-1), ((0, 0), (0, n - start)))
    return unstacked(concat([packed, tau[:, None, :]], axis=-2), lead)


@by_choice
def _plain(a: Tensor) -> tuple[Tensor, Tensor]:
    with grad_mode(False), autocast(enabled=False):
        return factors(a, min(a.shape[-2:]))


@by_choice
def _triangle_alone(a: Tensor) -> Tensor:
    with grad_mode(False), autocast(enabled=False):
        return triangle(a)


def reduced(a: Tensor) -> tuple[Tensor, Tensor]:
    """Q (m, k) and R (k, n), differentiated."""
    m = a.shape[-2]
    if not a._node.tracked:
        return _plain(a)

    def compute(a: Tensor) -> Tensor:
        q, r = factors(a, min(a.shape[-2:]))
        return concat([q, adjoint(r)], axis=-2)

    packed = differentiated(_REDUCED, compute, a)
    return packed[..., :m, :], adjoint(packed[..., m:, :])


class QRResult(NamedTuple):
    """What `qr` gives."""

    Q: Tensor
    R: Tensor


class PivotedQRResult(NamedTuple):
    """What `qr` with pivoting gives: x[..., P] = Q R."""

    Q: Tensor
    R: Tensor
    P: Tensor


@widens
def qr(
    x: ArrayLike, /, *, mode: str = "reduced", pivoting: bool = False
) -> Tensor | QRResult | PivotedQRResult | tuple[Tensor, Tensor]:
    """Q and R with x = Q R: orthonormal columns, and an upper triangular matrix.

    Args:
        mode: "reduced" gives Q (m, k) and R (k, n), k being the smaller extent; "complete" Q (m, m)
            and R (m, n); "r" R (k, n) alone; "raw" what LAPACK's geqrf leaves, as NumPy has it: H
            (n, m), in whose transpose reflectors stand below R, and their factors tau (k).
        pivoting: permute columns, so that the diagonal of R falls in absolute value, and give their
            order P, too: x[:, P] = Q R.

    >>> q, r = nm.linalg.qr(nm.asarray([[3.0, 1.0], [4.0, 2.0]]))
    >>> bool(nm.all(nm.abs(q @ r - nm.asarray([[3.0, 1.0], [4.0, 2.0]])) < 1e-5))
    True
    """
    if mode not in ("reduced", "complete", "r", "raw"):
        raise ValueError(
            f"linalg.qr: mode={mode!r} must be one of 'reduced', 'complete', 'r', 'raw'"
        )
    if mode == "raw" and pivoting:
        raise ValueError("linalg.qr: mode='raw' takes no pivoting")
    a, dtype = matrices("qr", x)
    if pivoting:
        order = pivot_order(a)
        found = qr(columns_at(a, order).astype(dtype, copy=False), mode=mode)
        return (found, order) if isinstance(found, Tensor) else PivotedQRResult(*found[:2], order)
    m, n = a.shape[-2:]
    if mode == "raw":
        packed = differentiated(_RAW, _packed, a).astype(dtype, copy=False)
        return packed[..., :m, :].mT, packed[..., m, : min(m, n)]
    if mode == "complete" and m > n:

        def compute(a: Tensor) -> Tensor:
            return concat(factors(a, m), axis=-1)

        packed = differentiated(_COMPLETE, compute, a).astype(dtype, copy=False)
        return QRResult(packed[..., :m], packed[..., m:].triu())
    if mode == "r" and lapack.on_gpu(a) and not a._node.tracked:
        return _triangle_alone(a).astype(dtype, copy=False)
    q, r = (part.astype(dtype, copy=False) for part in reduced(a))
    r = r.triu() if a._node.tracked else r  # a derivative's reads no more of it
    return r if mode == "r" else QRResult(q, r)
