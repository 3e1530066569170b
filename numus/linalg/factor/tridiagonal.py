"""Householder tridiagonalisation of Hermitian matrices in panels (LAPACK's hetrd), for GPUs: a
product with all of the matrix per column, over the whole device.

Panels are iterations of one loop, whose code is compiled once: the matrix keeps its extents, and
rows that are done are transformed with the others, from one side.
"""

from __future__ import annotations

from typing import NamedTuple

from numus.functions.creation.creation import arange, zeros
from numus.functions.elementwise.arithmetic import copysign
from numus.functions.elementwise.comparison import where
from numus.functions.shape.concatenation import concat
from numus.functions.shape.manipulation import broadcast_to, permute_dims
from numus.functions.shape.tiling import pad
from numus.linalg._base import adjoint, identity
from numus.linalg.factor import blocked
from numus.linalg.factor.divide_and_conquer import eigh_tridiagonal
from numus.tensor import Tensor
from numus.transforms.control import scan

PANEL = 32  # columns
WHOLE = 3072  # largest order of matrices that are not left for smaller ones half-way


class Reflectors(NamedTuple):
    """Q = Π (1 - V T Vᴴ) of panels, in compact WY form: V, and V T, as (panels, batch, n, count).
    They leave rows of a larger matrix before the `first` as they are."""

    first: int
    v: Tensor
    vt: Tensor


def by_tridiagonal(a: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending eigenvalues and eigenvectors of stacks of Hermitian matrices, both triangles of
    which are read."""
    diagonal, beside, reflectors = tridiagonal(a)
    values, vectors = eigh_tridiagonal(diagonal, beside)
    vectors = vectors.astype(a.dtype)
    for first, v, vt in reversed(reflectors):
        part, _ = scan(_reflected, vectors[:, first:], (v, vt), reverse=True)
        vectors = concat([vectors[:, :first], part], axis=-2) if first else part
    return values, vectors


def _reflected(x: Tensor, panel: tuple[Tensor, Tensor]) -> tuple[Tensor, None]:
    v, vt = panel
    return x - vt @ (adjoint(v) @ x), None


def tridiagonal(a: Tensor) -> tuple[Tensor, Tensor, list[Reflectors]]:
    """The diagonal and what is beside it, and the reflectors."""
    n = a.shape[-1]
    parts, reflectors = [], []
    first = 0
    while first < n:
        count = n - first if n - first <= WHOLE else (n - first) // (2 * PANEL) * PANEL
        rest, numbers, found = _reduced(a, count)
        parts.append(numbers)
        reflectors.append(found._replace(first=first))
        a = rest[:, count:, count:]
        first += count
    found = concat(parts, axis=-1)
    diagonal, beside = (x.real if a.dtype.is_complex else x for x in (found[0], found[1]))
    return diagonal, beside[:, : n - 1], reflectors


def _reduced(a: Tensor, columns: int) -> tuple[Tensor, Tensor, Reflectors]:
    """The matrix after so many columns; what they became (the diagonal, what is beside it, tau), as
    (3, batch, columns); and their reflectors."""
    batch, n, _ = a.shape
    panels = -(-columns // PANEL)
    more = max(panels * PANEL - n, 0)
    a = pad(a, ((0, 0), (0, more), (0, more)))
    steps = arange(panels * PANEL, device=a.device).reshape((panels, PANEL))

    def step(a: Tensor, columns: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        pair, numbers = _panel(a, columns)
        left, right = pair.mT, _swapped(pair).conj()
        return a - left @ right, (pair[:, :PANEL], numbers)

    rest, (v, numbers) = scan(step, a, steps)
    v = v[..., :n].mT  # (panels, batch, n, count)
    numbers = permute_dims(numbers, (3, 2, 0, 1)).reshape((3, batch, panels * PANEL))
    tau = permute_dims(numbers[2].reshape((batch, panels, PANEL)), (1, 0, 2))
    diagonal = 1 / where(tau == 0, 1.0, tau)
    one = identity(PANEL, a)[0]
    inverse = (adjoint(v) @ v).triu(1) + one * diagonal[..., None, :]  # Puglisi 1992
    inverse = inverse.reshape((panels * batch, PANEL, PANEL))
    t = blocked.solve_upper(inverse, broadcast_to(one, inverse.shape))
    vt = v @ t.reshape((panels, batch, PANEL, PANEL))
    return rest, numbers[..., :columns], Reflectors(0, v, vt)


def _swapped(pair: Tensor) -> Tensor:
    half = pair.shape[1] // 2
    return concat([pair[:, half:], pair[:, :half]], axis=1)


def _panel(a: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Reflectors V and the W with which A becomes A - V Wᴴ - W Vᴴ, as rows (batch, 2 count, n);
    and for each column (count, batch, 3) the diagonal, what is beside it, and tau."""
    batch, n, _ = a.shape
    count = columns.shape[0]
    rows = arange(n, device=a.device)
    both = arange(2 * count, device=a.device)[:, None]

    def step(pair: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        swapped = _swapped(pair)
        x = a[:, k].conj() - (swapped[:, :, k][..., None].conj() * pair).sum(axis=1)
        own, alpha = (where(rows == i, x, 0.0).sum(axis=-1) for i in (k, k + 1))
        below = (abs(where(rows > k + 1, x, 0.0)) ** 2).sum(axis=-1)
        v, beta, tau = _reflector(x, alpha, below, rows - (k + 1))
        y = (a @ v[..., None])[..., 0]
        inner = (pair.conj() * v[:, None, :]).sum(axis=-1)
        y = y - (_halves_swapped(inner)[..., None] * pair).sum(axis=1)
        w = tau[:, None] * y
        overlap = (w.conj() * v).sum(axis=-1)
        w = w - (tau * overlap / 2)[:, None] * v
        at = k % count
        pair = where(both == at, v[:, None, :], where(both == at + count, w[:, None, :], pair))
        return pair, concat([x[:, None] for x in (own, beta.astype(a.dtype), tau)], axis=-1)

    start = zeros((batch, 2 * count, n), dtype=a.dtype, device=a.device)
    return scan(step, start, columns)


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
