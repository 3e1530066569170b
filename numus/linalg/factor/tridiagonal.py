"""Householder tridiagonalisation of Hermitian matrices in panels (LAPACK's hetrd), for GPUs: a
product with all of the matrix per column, over the whole device."""

from __future__ import annotations

from numus.functions.creation.creation import arange, zeros
from numus.functions.elementwise.arithmetic import copysign
from numus.functions.elementwise.comparison import where
from numus.functions.shape.concatenation import concat
from numus.linalg._base import adjoint, identity
from numus.linalg.factor import blocked
from numus.linalg.factor.divide_and_conquer import eigh_tridiagonal
from numus.tensor import Tensor
from numus.transforms.control import fori_loop

PANEL = 32  # columns

State = tuple[Tensor, Tensor, Tensor, Tensor]


def by_tridiagonal(a: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending eigenvalues and eigenvectors of stacks of Hermitian matrices, both triangles of
    which are read."""
    diagonal, beside, reflectors = tridiagonal(a)
    values, vectors = eigh_tridiagonal(diagonal, beside)
    vectors = vectors.astype(a.dtype)
    for start, v, inverse in reversed(reflectors):
        part = vectors[:, start:]
        part = part - v @ blocked.solve_upper(inverse, adjoint(v) @ part)
        vectors = concat([vectors[:, :start], part], axis=-2)
    return values, vectors


def tridiagonal(a: Tensor) -> tuple[Tensor, Tensor, list[tuple[int, Tensor, Tensor]]]:
    """The diagonal and what is beside it; reflectors in compact WY form, from a row on each: V, and
    the inverse of the triangular factor."""
    n = a.shape[-1]
    diagonals, besides, reflectors = [], [], []
    for start in range(0, n, PANEL):
        count = min(PANEL, n - start)
        pair, diagonal, beside, tau = _panel(a, count)
        diagonals.append(diagonal)
        besides.append(beside)
        v = adjoint(pair[:, :count, 1:]).conj() if a.dtype.is_complex else pair[:, :count, 1:].mT
        if v.shape[1]:
            reflectors.append((start + 1, *_compact(v, tau)))
        if start + count < n:
            left, right = pair[:, :, count:].mT, _swapped(pair)[:, :, count:].conj()
            a = a[:, count:, count:] - left @ right
    return concat(diagonals, axis=-1), concat(besides, axis=-1)[:, : n - 1], reflectors


def _compact(v: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """V without reflectors that are none, and the inverse of T (Puglisi 1992)."""
    idle = tau == 0
    v = where(idle[:, None, :], 0.0, v)
    diagonal = 1 / where(idle, 1.0, tau)
    return v, (adjoint(v) @ v).triu(1) + identity(tau.shape[-1], v) * diagonal[:, None, :]


def _swapped(pair: Tensor) -> Tensor:
    half = pair.shape[1] // 2
    return concat([pair[:, half:], pair[:, :half]], axis=1)


def _panel(a: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Reflectors V and the W with which A becomes A - V Wᴴ - W Vᴴ, as rows (batch, 2 count, n); the
    diagonal, what is beside it, and the factors of the reflectors."""
    batch, n, _ = a.shape
    rows, columns = arange(n, device=a.device), arange(count, device=a.device)
    both = arange(2 * count, device=a.device)[:, None]
    real = abs(a[:, :1, 0]).dtype

    def step(k: Tensor, state: State) -> State:
        pair, diagonal, beside, tau = state
        swapped = _swapped(pair)
        x = a[:, k].conj() - (swapped[:, :, k][..., None].conj() * pair).sum(axis=1)
        own, alpha = (where(rows == i, x, 0.0).sum(axis=-1) for i in (k, k + 1))
        below = (abs(where(rows > k + 1, x, 0.0)) ** 2).sum(axis=-1)
        v, beta, factor = _reflector(x, alpha, below, rows - (k + 1))
        y = (a @ v[..., None])[..., 0]
        inner = (pair.conj() * v[:, None, :]).sum(axis=-1)
        y = y - (_halves_swapped(inner)[..., None] * pair).sum(axis=1)
        w = factor[:, None] * y
        overlap = (w.conj() * v).sum(axis=-1)
        w = w - (factor * overlap / 2)[:, None] * v
        pair = where(both == k, v[:, None, :], where(both == k + count, w[:, None, :], pair))
        own = own.real if a.dtype.is_complex else own
        at = columns == k
        diagonal = where(at, own[:, None], diagonal)
        beside = where(at, beta[:, None], beside)
        return pair, diagonal, beside, where(at, factor[:, None], tau)

    nothing = zeros((batch, count), dtype=real, device=a.device)
    start = zeros((batch, 2 * count, n), dtype=a.dtype, device=a.device)
    return fori_loop(0, count, step, (start, nothing, nothing, nothing.astype(a.dtype)))


def _halves_swapped(inner: Tensor) -> Tensor:
    half = inner.shape[1] // 2
    return concat([inner[:, half:], inner[:, :half]], axis=1)


def _reflector(
    x: Tensor, alpha: Tensor, below: Tensor, place: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """v with 1 at place 0, beta and tau (LAPACK's larfg), of alpha there and what is after it."""
    head = alpha.real if x.dtype.is_complex else alpha
    side = alpha.imag if x.dtype.is_complex else alpha * 0
    trivial = (below == 0) & (side == 0)
    beta = where(trivial, head, -copysign((head * head + side * side + below).sqrt(), head))
    safe = where(trivial, 1.0, beta)
    tau = where(trivial, 0.0, (safe - alpha) / safe)
    distance = where(trivial, 1.0, alpha - beta)
    v = where(place > 0, x / distance[:, None], where(place == 0, 1.0, 0.0).astype(x.dtype))
    return where(trivial[:, None], 0.0, v), beta, tau
