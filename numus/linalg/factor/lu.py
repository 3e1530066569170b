"""LU factorisation with partial pivoting, and what it solves: systems and inverses."""

from __future__ import annotations

from numus.dtypes import DType
from numus.functions._base import wrap
from numus.functions.autocast import widens
from numus.functions.creation.creation import arange
from numus.functions.elementwise.comparison import isnan, where
from numus.functions.shape.concatenation import concat
from numus.functions.shape.manipulation import broadcast_to
from numus.graph import grad_mode
from numus.linalg._base import (
    Implicit,
    adjoint,
    by_choice,
    check,
    differentiated,
    element,
    identity,
    matrices,
    operands,
    spoiled,
    stacked,
    unstacked,
    untracked_by_choice,
)
from numus.linalg.factor import blocked, lapack, small, triangular
from numus.linalg.products import diagonal
from numus.primitives.linalg import factor
from numus.tensor import ArrayLike, Tensor
from numus.transforms.control import fori_loop

Factors = tuple[Tensor, Tensor, Tensor]  # L and U in one matrix, the order of rows, the swaps


def factors(a: Tensor) -> Factors:
    """Not differentiated."""
    m, n = a.shape[-2:]
    with grad_mode(False):
        if not a.size:
            order = broadcast_to(arange(m, device=a.device), (*a.shape[:-2], m))
            return a.detach(), order, order[..., : min(m, n)]
        packed, order, swaps = (unstacked(x, a.shape[:-2]) for x in blocked.lu(stacked(a)))
    return packed, order, swaps


def _rows_at(x: Tensor, order: Tensor) -> Tensor:
    if not x.size:
        return x
    return unstacked(
        blocked.rows_at(stacked(x), order.reshape((-1, order.shape[-1]))), x.shape[:-2]
    )


def _inverse_order(order: Tensor) -> Tensor:
    return order.argsort(axis=-1)


# -- the factorisation ----------------------------------------------------------------------------


def _split(packed: Tensor) -> tuple[Tensor, Tensor]:
    """L (m, k) and U (k, n)."""
    m, n = packed.shape[-2:]
    k = min(m, n)
    lower = packed[..., :k].tril(-1) + identity(m, packed)[..., :k]
    return lower, packed[..., :k, :].triu()


def _lu_tangent(packed: Tensor, operands: list[Tensor], tangents: list[Tensor]) -> Tensor:
    """d(LU) = P dA: the lower and upper parts of L⁻¹ P dA U⁻¹ belong to L and U (de Hoog 2011)."""
    _, order = operands
    m, n = packed.shape[-2:]
    k = min(m, n)
    moved = _rows_at(tangents[0], order)
    square, whole = packed[..., :k, :k], moved[..., :k, :k]
    left = triangular.solve(square, whole, lower=True, unit_diagonal=True)
    inner = adjoint(triangular.solve(adjoint(square), adjoint(left), lower=True))
    lower, upper = square.tril(-1) + identity(k, packed), square.triu()
    dl, du = lower @ inner.tril(-1), inner.triu() @ upper
    found = dl + du
    if n > k:  # U₂ = L⁻¹ P A₂
        right = moved[..., k:] - dl @ packed[..., k:]
        right = triangular.solve(square, right, lower=True, unit_diagonal=True)
        return concat([found, right], axis=-1)
    if m > k:  # L₂ = P A₂ U⁻¹
        below = moved[..., k:, :] - packed[..., k:, :] @ du
        below = adjoint(triangular.solve(adjoint(square), adjoint(below), lower=True))
        return concat([found, below], axis=-2)
    return found


_LU = Implicit(_lu_tangent)


def _lu(a: Tensor) -> Factors:
    packed, order, swaps = factors(a)
    return differentiated(_LU, lambda a, order: packed, a, order), order, swaps


@widens
def lu_factor(a: ArrayLike, /) -> tuple[Tensor, Tensor]:
    """L and U in one matrix (the unit diagonal of L left out), and the pivots: row i was swapped
    with row `pivots[i]`, one after the other, as LAPACK and SciPy count.

    >>> packed, pivots = nm.linalg.lu_factor(nm.asarray([[1.0, 2.0], [2.0, 8.0]]))
    >>> packed.tolist(), pivots.tolist()
    ([[2.0, 8.0], [0.5, -2.0]], [1, 1])
    """
    x, dtype = matrices("lu_factor", a)
    packed, _, swaps = _lu(x)
    return packed.astype(dtype, copy=False), swaps


@widens
def lu_factor_ex(a: ArrayLike, /) -> tuple[Tensor, Tensor, Tensor]:
    """`lu_factor`, and the info numbers: 0, or that of the first pivot that is zero.

    >>> nm.linalg.lu_factor_ex(nm.ones((2, 2)))[2].item()
    2
    """
    x, dtype = matrices("lu_factor_ex", a)
    packed, _, swaps = _lu(x)
    return packed.astype(dtype, copy=False), swaps, _info(packed)


@widens
def lu(a: ArrayLike, /, *, permute_l: bool = False, p_indices: bool = False) -> tuple[Tensor, ...]:
    """P, L and U with a = P L U: a permutation, unit lower triangular (m, k) and upper triangular
    (k, n) matrices, k being the smaller extent.

    Args:
        permute_l: give (P L, U) instead.
        p_indices: give P as the indices p with a = L[p] U.

    >>> p, l, u = nm.linalg.lu(nm.asarray([[1.0, 2.0], [2.0, 8.0]]))
    >>> l.tolist(), u.tolist()
    ([[1.0, 0.0], [0.5, 1.0]], [[2.0, 8.0], [0.0, -2.0]])
    """
    x, dtype = matrices("lu", a)
    packed, order, _ = _lu(x)
    lower, upper = (part.astype(dtype, copy=False) for part in _split(packed))
    place = _inverse_order(order)
    if permute_l:
        return _rows_at(lower, place), upper
    if p_indices:
        return place, lower, upper
    permutation = (place[..., None] == arange(x.shape[-2], device=x.device)).astype(
        dtype, copy=False
    )
    return permutation, lower, upper


def _order_of(swaps: Tensor, rows: int) -> Tensor:
    """The order of rows after swapping row i with row swaps[i], one after the other."""
    if swaps.size and small.on_cpu(swaps):
        stack = swaps.astype("int64", copy=False).reshape((-1, swaps.shape[-1]))
        return wrap(factor.row_order(stack._node, rows)).reshape((*swaps.shape[:-1], rows))
    positions = arange(rows, device=swaps.device)
    start = broadcast_to(positions, (*swaps.shape[:-1], rows))

    def swap(k: Tensor, order: Tensor) -> Tensor:
        other = swaps.take_along_axis(
            broadcast_to(k.reshape((1,) * swaps.ndim), (*swaps.shape[:-1], 1)), axis=-1
        )
        first = order.take_along_axis(
            broadcast_to(k.reshape((1,) * swaps.ndim), (*swaps.shape[:-1], 1)), axis=-1
        )
        second = order.take_along_axis(other, axis=-1)
        order = where(positions == other, first, order)
        return where(positions == k, second, order)

    return fori_loop(0, swaps.shape[-1], swap, start)


@widens
def lu_solve(lu_and_piv: tuple[ArrayLike, Tensor], b: ArrayLike, /, *, trans: int = 0) -> Tensor:
    """x with a x = b, from what `lu_factor(a)` gave; leading axes broadcast.

    `trans` 1 solves with the transpose of a, 2 with its conjugate transpose.

    >>> factors = nm.linalg.lu_factor(nm.asarray([[1.0, 2.0], [2.0, 8.0]]))
    >>> nm.linalg.lu_solve(factors, nm.asarray([5.0, 18.0])).tolist()
    [1.0, 2.0]
    """
    if trans not in (0, 1, 2):
        raise ValueError(f"linalg.lu_solve: trans must be 0, 1 or 2, not {trans!r}")
    packed, swaps = lu_and_piv
    return _solution_of_factors(packed, swaps, b, trans)


@untracked_by_choice
def _solution_of_factors(packed: ArrayLike, swaps: Tensor, b: ArrayLike, trans: int) -> Tensor:
    (factors, y), dtype = operands("lu_solve", packed, b)
    factors, y, vector = triangular.right_hand_sides("lu_solve", factors, y)
    order = _order_of(swaps, factors.shape[-1])
    order = broadcast_to(order, factors.shape[:-1])
    if trans == 1 and factors.dtype.is_complex:
        found = _solved(factors, order, y.conj(), adjoint_=True).conj()
    else:
        found = _solved(factors, order, y, adjoint_=trans != 0)
    found = found.astype(dtype, copy=False)
    return found[..., 0] if vector else found


def _solved(packed: Tensor, order: Tensor, b: Tensor, adjoint_: bool = False) -> Tensor:
    """The solution from factors; of the adjoint system on demand."""
    if adjoint_:
        x = triangular.solve(adjoint(packed), b, lower=True)
        x = triangular.solve(adjoint(packed), x, lower=False, unit_diagonal=True)
        return _rows_at(x, _inverse_order(order))
    x = triangular.solve(packed, _rows_at(b, order), lower=True, unit_diagonal=True)
    return triangular.solve(packed, x, lower=False)


# -- systems --------------------------------------------------------------------------------------


def solve_with(a: Tensor, b: Tensor, packed: Tensor, order: Tensor, adjoint_: bool) -> Tensor:
    """a⁻¹ b or a⁻ᴴ b from the factors of a, differentiated by a and b."""

    def compute(a: Tensor, b: Tensor, packed: Tensor, order: Tensor) -> Tensor:
        return _solved(packed, order, b, adjoint_)

    return differentiated(_SOLVE[adjoint_], compute, a, b, packed, order)


def _solve_rule(adjoint_: bool) -> Implicit:
    """d(a⁻¹ b) = a⁻¹ (db - da x): by the same factors, both ways."""

    def tangent(x: Tensor, operands: list[Tensor], tangents: list[Tensor]) -> Tensor:
        (a, _, packed, order), (da, db, *_) = operands, tangents
        moved = (adjoint(da) if adjoint_ else da) @ x
        return solve_with(a, db - moved, packed, order, adjoint_)

    def pull(x: Tensor, operands: list[Tensor], g: Tensor) -> tuple[Tensor | None, ...]:
        a, _, packed, order = operands
        gb = solve_with(a, g, packed, order, not adjoint_)
        ga = -(x @ adjoint(gb)) if adjoint_ else -(gb @ adjoint(x))
        return ga, gb, None, None

    return Implicit(tangent, pull)


_SOLVE = {adjoint_: _solve_rule(adjoint_) for adjoint_ in (False, True)}


def _info(packed: Tensor) -> Tensor:
    """The number of the first pivot that is zero, from 1 on; 0 where none is."""
    pivots = diagonal(packed.detach())
    zero = pivots == 0
    if not packed.shape[-1]:
        return zero.sum(axis=-1)
    return where(zero.any(axis=-1), zero.astype("int64").argmax(axis=-1) + 1, 0)


_SINGULAR = "is singular: its pivot {} is zero"


@widens
def solve_ex(x1: ArrayLike, x2: ArrayLike, /) -> tuple[Tensor, Tensor]:
    """`solve` that does not raise: also info numbers, 0 or that of the first pivot that is zero.

    >>> nm.linalg.solve_ex(nm.zeros((2, 2)), nm.ones(2))[1].item()
    1
    """
    return _solution("solve_ex", x1, x2)


def _solution(op: str, x1: ArrayLike, x2: ArrayLike) -> tuple[Tensor, Tensor]:
    (a, b), dtype = operands(op, x1, x2)
    a, b, vector = triangular.right_hand_sides(op, a, b)
    found, info = _by_library(a, b) or _by_factors(a, b)
    found = spoiled(found, info).astype(dtype, copy=False)
    return (found[..., 0] if vector else found), info


def _by_factors(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    packed, order, _ = factors(a)
    return solve_with(a, b, packed, order, False), _info(packed)


def _by_library(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor] | None:
    """By one routine, where a library is chosen and no derivative asks for the factors."""
    if not b.size or a._node.tracked or b._node.tracked:
        return None
    left, right = stacked(a), stacked(b)
    if not lapack.is_chosen("system", left, right.mT):
        return None
    found, info = lapack.system(left, right)
    return unstacked(found, b.shape[:-2]), unstacked(info, b.shape[:-2])


@widens
def solve(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """x with x1 x = x2, for square matrices x1; x2 is a vector, or matrices of right-hand sides.

    Leading axes broadcast. A singular matrix is a `LinAlgError`; in `nm.jit`, where nothing can be
    raised, its solution is NaN (`solve_ex` gives numbers).

    >>> a = nm.asarray([[3.0, 1.0], [1.0, 2.0]])
    >>> nm.linalg.solve(a, nm.asarray([5.0, 5.0])).tolist()
    [1.0, 2.0]
    """
    return solution("solve", x1, x2)


def solution(op: str, x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """The solutions, and errors that name the function that asks for them."""
    (a, b), dtype = operands(op, x1, x2)
    a, b, vector = triangular.right_hand_sides(op, a, b)
    if b.size and small.solves_directly(a, b):
        found, failed = _direct_solution(a, b, dtype, vector)
        if small.succeeded(failed, found):
            return found
    found, info = _solution(op, x1, x2)
    check(op, info, _SINGULAR, found)
    return found


def quotient(a: Tensor, b: Tensor) -> Tensor:
    """a⁻¹ b for equal leading axes; NaN where a matrix is singular."""
    return small.solve(a, b) if small.solves_directly(a, b) else _solution("solve", a, b)[0]


@by_choice
def _direct_solution(a: Tensor, b: Tensor, dtype: DType, vector: bool) -> tuple[Tensor, Tensor]:
    """The solution, and which matrices are singular."""
    found = small.solve(a, b)
    result = found.astype(dtype, copy=False)
    return (result[..., 0] if vector else result), isnan(element(found, 0, 0))


@by_choice
def _direct_inverse(a: Tensor, dtype: DType) -> tuple[Tensor, Tensor]:
    found = small.inv(a)
    return found.astype(dtype, copy=False), isnan(element(found, 0, 0))


@widens
def inv_ex(x: ArrayLike, /) -> tuple[Tensor, Tensor]:
    """`inv` that does not raise: also the info numbers, 0 or that of the first pivot that is zero.

    >>> nm.linalg.inv_ex(nm.ones((2, 2)))[1].item()
    2
    """
    return _inverse("inv_ex", x)


def _inverse(op: str, x: ArrayLike) -> tuple[Tensor, Tensor]:
    a, dtype = matrices(op, x, square=True)
    found, info = _solution(op, a, identity(a.shape[-1], a))
    return found.astype(dtype, copy=False), info


@widens
def inv(x: ArrayLike, /) -> Tensor:
    """The inverses of square matrices. A singular one is a `LinAlgError`, in `nm.jit` NaN.

    >>> nm.linalg.inv(nm.asarray([[2.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    return inverted("inv", x)


def inverted(op: str, x: ArrayLike) -> Tensor:
    """The inverses, and errors that name the function that asks for them."""
    a, dtype = matrices(op, x, square=True)
    if a.size and small.solves_directly(a):
        found, failed = _direct_inverse(a, dtype)
        if small.succeeded(failed, found):
            return found
    found, info = _inverse(op, x)
    check(op, info, _SINGULAR, found)
    return found
