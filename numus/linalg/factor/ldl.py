"""LDLᴴ factorisation of Hermitian and symmetric matrices with Bunch & Parlett's pivoting (1971)."""

from __future__ import annotations

from typing import NamedTuple

from numus.functions.autocast import widens
from numus.functions.creation.creation import arange
from numus.functions.elementwise.comparison import where
from numus.functions.indexing.gather_scatter import take_along_axis
from numus.functions.shape.concatenation import concat
from numus.functions.shape.manipulation import broadcast_to
from numus.graph import grad_mode
from numus.linalg._base import Implicit, differentiated, identity, matrices, scale_of
from numus.linalg.factor import triangular
from numus.linalg.factor.lu import inv_ex
from numus.linalg.products import diagonal
from numus.tensor import ArrayLike, Tensor
from numus.transforms.control import fori_loop

_GROWTH = (1 + 17**0.5) / 8  # balances the growth of both kinds of pivots


def _flipped(a: Tensor, hermitian: bool) -> Tensor:
    return a.mT.conj() if hermitian and a.dtype.is_complex else a.mT


def _swapped(order: Tensor, i: Tensor, j: Tensor, positions: Tensor) -> Tensor:
    """Positions with those of i and j exchanged, composed with an order."""
    at = where(positions == i, j, where(positions == j, i, positions))
    return take_along_axis(order, broadcast_to(at, order.shape), axis=-1)


def _permuted(a: Tensor, order: Tensor, columns: bool) -> Tensor:
    a = take_along_axis(a, broadcast_to(order[..., :, None], a.shape), axis=-2)
    if columns:
        a = take_along_axis(a, broadcast_to(order[..., None, :], a.shape), axis=-1)
    return a


def _outer(x: Tensor, y: Tensor, hermitian: bool) -> Tensor:
    y = y.conj() if hermitian and y.dtype.is_complex else y
    return x[..., :, None] * y[..., None, :]


def _divided(panel: list[Tensor], block: list[list[Tensor]], single: Tensor) -> list[Tensor]:
    """Two columns times the inverse of a block of order 2, or of its first element; 0 where that is
    singular."""
    (a, b), (c, d) = block
    determinant = where(single, a, a * d - b * c)
    none = determinant == 0
    by = where(none, 0.0, 1 / where(none, 1.0, determinant))
    first, second = panel
    both = [(first * d - second * c) * by, (second * a - first * b) * by]
    return [where(single, first * by, both[0]), where(single, 0.0, both[1])]


def _factorised(a: Tensor, hermitian: bool) -> Tensor:
    """L of the permuted rows, D, and the order of rows, below each other."""
    n = a.shape[-1]
    lead = a.shape[:-2]
    scale = scale_of(a)
    positions = arange(n, device=a.device)
    start = broadcast_to(positions, (*lead, n))
    one = identity(n, a)

    def step(
        k: Tensor, state: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        s, lower, d, order, second = state
        left = positions >= k
        active = left[:, None] & left
        sizes = where(active, abs(s), -1.0)
        on_diagonal = diagonal(sizes)
        best = on_diagonal.argmax(axis=-1)[..., None]
        off = where(positions[:, None] > positions, sizes, -1.0).reshape((*lead, n * n))
        worst = off.argmax(axis=-1)[..., None]
        row, column = worst // n, worst % n
        single = on_diagonal.max(axis=-1) >= _GROWTH * off.max(axis=-1)
        single = single[..., None] | (k == n - 1)
        # rows to bring to k, and to k + 1 for a block of order 2
        first = where(single, best, column)
        move = _swapped(start, k, first, positions)
        other = where(row == k, first, row)  # the first swap may have moved it
        both = _swapped(move, k + 1, other, positions)
        move = where(single, move, both)
        move = where(second[..., None], start, move)
        s, lower = _permuted(s, move, True), _permuted(lower, move, False)
        order = take_along_axis(order, move, axis=-1)
        here, after = positions == k, (positions == k + 1) & ~single
        below = positions > where(single, k, k + 1)
        columns = [(s * at[..., None, :].astype(s.dtype)).sum(axis=-1) for at in (here, after)]
        block = [
            [(c * at.astype(c.dtype)).sum(axis=-1)[..., None] for c in columns]
            for at in (here, after)
        ]
        panel = [where(below, c, 0.0) for c in columns]
        weights = _divided(panel, block, single)
        one_update, two_update = (
            _outer(w, c, hermitian) for w, c in zip(weights, panel, strict=True)
        )
        update = one_update + two_update
        first_column, second_column = (
            w[..., :, None] * at.astype(s.dtype)[..., None, :]
            for w, at in zip(weights, (here, after), strict=True)
        )
        inside = here | after
        pivot = where(inside[..., :, None] & inside[..., None, :], s, 0.0)
        idle = second[..., None, None]
        s = where(idle, s, s - update)
        lower = where(idle, lower, lower + first_column + second_column)
        d = where(idle, d, d + pivot)
        second = where(second, False, ~single[..., 0])
        return s, lower, d, order, second

    nothing = a * 0.0
    second = abs(a).sum(axis=(-2, -1)) < 0
    state = (a / scale, nothing, nothing, start, second)
    _, lower, d, order, _ = fori_loop(0, n, step, state)
    numbers = order[..., None, :].astype(a.dtype)
    return concat([lower + one, d * scale, numbers], axis=-2)


def _rule(hermitian: bool) -> Implicit:
    def tangent(packed: Tensor, given: list[Tensor], tangents: list[Tensor]) -> Tensor:
        """L⁻¹ P dA Pᵀ L⁻ᴴ is D's in its blocks, and below them L⁻¹ dL D."""
        _, order = given
        n = packed.shape[-1]
        lower, d = packed[..., :n, :], packed[..., n : 2 * n, :]
        da = (tangents[0] + _flipped(tangents[0], hermitian)) / 2
        da = _permuted(da, order, True)
        inner = triangular.solve(lower, da, lower=True, unit_diagonal=True)
        inner = triangular.solve(lower, _flipped(inner, hermitian), lower=True, unit_diagonal=True)
        inner = _flipped(inner, hermitian)
        blocks = (d.detach() != 0) | (identity(n, d.real) != 0)
        inverse = inv_ex(d)[0]
        below = where(blocks, 0.0, inner).tril(-1)
        dl = lower @ (below @ inverse)
        return concat([dl, where(blocks, inner, 0.0), packed[..., 2 * n :, :] * 0.0], axis=-2)

    return Implicit(tangent)


_RULES = {hermitian: _rule(hermitian) for hermitian in (False, True)}


class LDLResult(NamedTuple):
    """What `ldl` gives: x = L D Lᴴ, and L[P] is lower triangular."""

    L: Tensor
    D: Tensor
    P: Tensor


@widens
def ldl(x: ArrayLike, /, *, lower: bool = True, hermitian: bool = True) -> LDLResult:
    """L, D and P with x = L D Lᴴ for Hermitian matrices, definite or not: D has blocks of order 1
    and 2 on its diagonal, and the rows of L in the order P are unit lower triangular.

    Args:
        lower: read the lower triangle of x, else the upper one.
        hermitian: False for symmetric complex matrices: x = L D Lᵀ.

    >>> l, d, p = nm.linalg.ldl(nm.asarray([[4.0, 2.0], [2.0, 0.0]]))
    >>> l.tolist(), d.tolist()
    ([[1.0, 0.0], [0.5, 1.0]], [[4.0, 0.0], [0.0, -1.0]])
    """
    return _ldl("ldl", x, lower, hermitian)


class LDLExResult(NamedTuple):
    """What `ldl_ex` gives."""

    L: Tensor
    D: Tensor
    P: Tensor
    info: Tensor


@widens
def ldl_ex(x: ArrayLike, /, *, lower: bool = True, hermitian: bool = True) -> LDLExResult:
    """`ldl`, and the info numbers: 0, or that of the first row of D that is zero, with which no
    system can be solved.

    >>> nm.linalg.ldl_ex(nm.ones((2, 2))).info.item()
    2
    """
    found = _ldl("ldl_ex", x, lower, hermitian)
    if not found.D.shape[-1]:
        return LDLExResult(*found, found.P.sum(axis=-1))
    none = (found.D.detach() == 0).all(axis=-1)
    info = where(none.any(axis=-1), none.astype("int64").argmax(axis=-1) + 1, 0)
    return LDLExResult(*found, info)


def _ldl(op: str, x: ArrayLike, lower: bool, hermitian: bool) -> LDLResult:
    a, dtype = matrices(op, x, square=True)
    n = a.shape[-1]
    triangle = a if lower else _flipped(a, hermitian)
    below = triangle.tril(-1)
    middle = triangle * identity(n, a)
    if hermitian and a.dtype.is_complex:
        middle = middle.real.astype(a.dtype)
    a = below + _flipped(below, hermitian) + middle
    if not a.size:
        order = broadcast_to(arange(n, device=a.device), a.shape[:-1])
        return LDLResult(a.astype(dtype, copy=False), a.astype(dtype, copy=False), order)
    with grad_mode(False):
        packed = _factorised(a, hermitian)
        order = packed[..., 2 * n, :]
        order = (order.real if order.dtype.is_complex else order).astype("int64")
    packed = differentiated(_RULES[hermitian], lambda *_: packed, a, order)
    place = order.argsort(axis=-1)
    factor = _permuted(packed[..., :n, :].tril(), place, False)
    return LDLResult(
        factor.astype(dtype, copy=False), packed[..., n : 2 * n, :].astype(dtype, copy=False), order
    )
