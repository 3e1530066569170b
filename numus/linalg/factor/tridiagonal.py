"""Householder tridiagonalisation of Hermitian matrices in panels (LAPACK's hetrd), for GPUs: a
product with all of the matrix per column, over the whole device.

Panels are iterations of one loop, whose code is compiled once: the matrix keeps its extents, and
rows that are done are transformed with the others, from one side.
"""

from __future__ import annotations

from typing import NamedTuple

from numus.functions.creation.creation import arange, zeros
from numus.functions.creation.dtype_functions import finfo
from numus.functions.elementwise.arithmetic import copysign, maximum, minimum
from numus.functions.elementwise.comparison import where
from numus.functions.shape.concatenation import concat, stack
from numus.functions.shape.manipulation import broadcast_to, permute_dims
from numus.functions.shape.tiling import pad
from numus.linalg._base import adjoint, identity, real_part
from numus.linalg.factor import blocked
from numus.linalg.factor.divide_and_conquer import eigh_tridiagonal
from numus.tensor import Tensor
from numus.transforms.control import scan

PANEL = 32  # columns
WHOLE = 3072  # largest order of matrices that are not left for smaller ones half-way

Panel = tuple[Tensor, Tensor, Tensor]


class Reflectors(NamedTuple):
    """Q = Π (1 - V T Vᴴ) of panels, in compact WY form: V, and V T, as (panels, batch, n, count).
    They leave rows of a larger matrix before the `first` as they are."""

    first: int
    v: Tensor
    vt: Tensor


def by_tridiagonal(a: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending eigenvalues and eigenvectors of stacks of Hermitian matrices, both triangles of
    which are read."""
    diagonal, subdiagonal, reflectors = tridiagonal(a)
    values, vectors = eigh_tridiagonal(diagonal, subdiagonal)
    vectors = vectors.astype(a.dtype)
    for first, v, vt in reversed(reflectors):
        part, _ = scan(_reflected, vectors[:, first:], (v, vt), reverse=True)
        vectors = concat([vectors[:, :first], part], axis=-2) if first else part
    return values, vectors


def _reflected(x: Tensor, panel: tuple[Tensor, Tensor]) -> tuple[Tensor, None]:
    v, vt = panel
    return x - vt @ (adjoint(v) @ x), None


def tridiagonal(a: Tensor) -> tuple[Tensor, Tensor, list[Reflectors]]:
    """The diagonal and the subdiagonal, and the reflectors."""
    n = a.shape[-1]
    diagonals, subdiagonals, reflectors = [], [], []
    first = 0
    while first < n:
        count = n - first if n - first <= WHOLE else (n - first) // (2 * PANEL) * PANEL
        rest, diagonal, subdiagonal, found = _reduced(a, count)
        diagonals.append(diagonal)
        subdiagonals.append(subdiagonal)
        reflectors.append(found._replace(first=first))
        a = rest[:, count:, count:]
        first += count
    return concat(diagonals, axis=-1), concat(subdiagonals, axis=-1)[:, : n - 1], reflectors


def _reduced(a: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor, Reflectors]:
    """The matrix after its first `columns`; the diagonal of those and the subdiagonal; and their
    reflectors."""
    batch, n, _ = a.shape
    panels = -(-columns // PANEL)
    more = max(max(panels, 2) * PANEL - n, 0)
    a = pad(a, ((0, 0), (0, more), (0, more)))
    starts = PANEL * arange(panels, device=a.device)

    def step(a: Tensor, start: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        both, numbers = _panel(a, start)
        # in memory of their own: that of the loop recurs, for which its kernels are one CUDA graph
        kept = stack([x.astype(a.dtype) for x in numbers])
        return a - both @ adjoint(_swapped(both)), (both[..., :PANEL], kept)

    rest, (v, numbers) = scan(step, a, starts)
    v = v[:, :, :n]  # (panels, batch, n, count)
    diagonal, subdiagonal, tau = permute_dims(numbers, (1, 3, 0, 2))
    diagonal, subdiagonal = real_part(diagonal), real_part(subdiagonal)
    tau = permute_dims(tau, (1, 0, 2))[..., None, :]
    one = identity(PANEL, a)[0]
    inverse = (adjoint(v) @ v).triu(1) + one / where(tau == 0, 1.0, tau)  # Puglisi 1992
    inverse = inverse.reshape((panels * batch, PANEL, PANEL))
    t = blocked.solve_upper(inverse, broadcast_to(one, inverse.shape))
    vt = v @ t.reshape((panels, batch, PANEL, PANEL))
    found = (x.reshape((batch, panels * PANEL))[:, :columns] for x in (diagonal, subdiagonal))
    return rest, *found, Reflectors(0, v, vt)


def _swapped(x: Tensor) -> Tensor:
    """The halves of the last axis: of V and W, W and V."""
    count = x.shape[-1]
    return x.take((arange(count, device=x.device) + count // 2) % count, axis=-1)


class _State(NamedTuple):
    """Of a panel between two columns. W is R - V C: an element of the diagonal C takes a reduction,
    which runs beside the product that makes a column of R, instead of after it."""

    both: Tensor  # V and R as rows, (batch, 2 count, n)
    c: Tensor  # (batch, 2 count): and zeros
    v: Tensor  # the last reflector
    x: Tensor  # the next column, but for what the last element of C adds to it
    size: Tensor  # that element times 2 / |tau|²
    tau: Tensor


def _panel(a: Tensor, start: Tensor) -> tuple[Tensor, Panel]:
    """Reflectors V and the W with which A becomes A - V Wᴴ - W Vᴴ, side by side, of the columns
    from `start` on; and for each column (count, batch) the diagonal, the subdiagonal, and tau."""
    batch, n, _ = a.shape
    rows, places = arange(n, device=a.device), arange(2 * PANEL, device=a.device)

    def last_of_c(state: _State) -> Tensor:
        return abs(state.tau) ** 2 / 2 * real_part(state.size)

    def with_last(c: Tensor, element: Tensor, at: Tensor | int) -> Tensor:
        return where(places == at - 1, element[:, None].astype(a.dtype), c)

    def step(state: _State, k: Tensor) -> tuple[_State, Panel]:
        both, at = state.both, k % PANEL
        # a sum, so that the kernel of the column's other sums finds it
        element = where(rows == k, last_of_c(state)[:, None], 0.0).sum(axis=-1)
        c = with_last(state.c, element, at)
        x = state.x + (2 * last_of_c(state) * state.v[:, k].conj())[:, None] * state.v
        own, alpha = (where(rows == i, x, 0.0).sum(axis=-1) for i in (k, k + 1))
        below = (abs(where(rows > k + 1, x, 0.0)) ** 2).sum(axis=-1)
        v, beta, tau = _reflector(x, alpha, below, rows - (k + 1))

        def exchanged(x: Tensor) -> Tensor:
            """Products with V and R as factors of R and V, less what is of C."""
            return _swapped(x) - 2 * c * x

        product, inner = ((of @ v[..., None])[..., 0] for of in (a, both.conj()))
        # `exchanged(inner)` times conj(inner): of that itself, a kernel before both would be made
        less = _swapped(inner) * inner.conj() - 2 * c * abs(inner) ** 2
        size = (product * v.conj() - pad(less, ((0, 0), (0, n - 2 * PANEL)))).sum(axis=-1)
        factors = exchanged(inner)[..., None]

        def column(of: Tensor, part: Tensor) -> Tensor:
            return tau[:, None] * (part - (of * factors).sum(axis=1))

        r = column(both, product)
        following = minimum(k + 1, n - 1)
        same = maximum(following, rows - n)  # that row, for each: no kernel of its own
        r_there, v_there = column(both[..., same], product[:, same]), v[:, following]
        known = exchanged(both[..., following]).conj()[..., None]
        x = a[:, following].conj() - (both * known).sum(axis=1)
        x = x - v * r_there.conj() - r * v_there.conj()[:, None]
        place = places[:, None]
        both = where(place == at, v[:, None], where(place == at + PANEL, r[:, None], both))
        return _State(both, c, v, x, size, tau), (real_part(own), beta, tau)

    nothing = zeros((batch, 2 * PANEL, n), dtype=a.dtype, device=a.device)
    none = nothing[:, 0, 0]
    x = a[:, start].conj()
    first = _State(nothing, nothing[..., 0], nothing[:, 0], x, none, none)
    last, numbers = scan(step, first, start + arange(PANEL, device=a.device))
    c = with_last(last.c, last_of_c(last), PANEL)[:, :PANEL, None]
    v = last.both[:, :PANEL]
    both = concat([v, last.both[:, PANEL:] - v * c], axis=1)
    return permute_dims(both, (0, 2, 1)), numbers


def _reflector(
    x: Tensor, alpha: Tensor, below: Tensor, place: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """v with 1 at place 0, beta and tau (LAPACK's larfg), of alpha there and what is after it, in
    matrices of about 1."""
    head = alpha.real if x.dtype.is_complex else alpha
    side = alpha.imag if x.dtype.is_complex else alpha * 0
    info = finfo(head.dtype)
    rest = side * side + below
    trivial = rest < info.smallest_normal / info.eps  # digits are lost to underflow
    beta = where(trivial, head, -copysign((head * head + rest).sqrt(), head))
    safe = where(trivial, 1.0, beta)
    tau = where(trivial, 0.0, (safe - alpha) / safe)
    distance = where(trivial, 1.0, alpha - beta)
    v = where(place > 0, x / distance[:, None], where(place == 0, 1.0, 0.0).astype(x.dtype))
    return where(trivial[:, None], 0.0, v), beta, tau
