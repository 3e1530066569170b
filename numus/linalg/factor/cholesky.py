"""Cholesky factorisation of Hermitian positive-definite matrices."""

from __future__ import annotations

from numus.dtypes import DType
from numus.evaluation.evaluate import is_known
from numus.functions.autocast import widens
from numus.functions.elementwise.comparison import isnan, where
from numus.functions.shape.concatenation import concat
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
    require_matrices,
    spoiled,
    stacked,
    unstacked,
    untracked_by_choice,
)
from numus.linalg.factor import blocked, small, triangular
from numus.linalg.products import diagonal
from numus.tensor import ArrayLike, Tensor


def _tangent(l: Tensor, operands: list[Tensor], tangents: list[Tensor]) -> Tensor:  # noqa: E741
    """dL = L Φ(L⁻¹ dA L⁻ᴴ), Φ taking the lower triangle with half of the diagonal (Murray 2016)."""
    (da,) = tangents
    da = (da + adjoint(da)) / 2
    inner = adjoint(triangular.solve(l, adjoint(triangular.solve(l, da, lower=True)), lower=True))
    return l @ (inner.tril() - inner * identity(l.shape[-1], l) / 2)


def _pull(l: Tensor, operands: list[Tensor], g: Tensor) -> tuple[Tensor]:  # noqa: E741
    return (_cotangent(l, g),)


_LEAF = 256  # orders up to which cotangents are not computed by halves
_ALIGNMENT = 64  # of halves


def _cotangent(l: Tensor, g: Tensor) -> Tensor:  # noqa: E741
    """The Hermitian cotangent of L Lᴴ, from that of L, whose upper triangle is not read.

    By halves (Murray 2016, §4): with B = K₂₁ L₁⁻ᴴ, that of K₂₂ comes first, then that of K₂₁,
    which adds to that of L₁. It takes a fifth of the operations of the formula for the whole,
    L⁻ᴴ Φ(Lᴴ g) L⁻¹, by products and solutions of half the order.
    """
    n = l.shape[-1]
    if n <= _LEAF:
        inner = adjoint(l) @ g.tril()
        inner = inner.tril() - inner * identity(n, l) / 2
        half = triangular.solve(adjoint(l), (inner + adjoint(inner)) / 2, lower=False)
        found = triangular.solve(adjoint(l), adjoint(half), lower=False)
        return (found + adjoint(found)) / 2
    h = -(-n // (2 * _ALIGNMENT)) * _ALIGNMENT
    l1, b, l2 = l[..., :h, :h], l[..., h:, :h], l[..., h:, h:]
    below = _cotangent(l2, g[..., h:, h:])
    left = adjoint(g[..., h:, :h] - 2 * (below @ b))
    left = triangular.solve(adjoint(l1), left, lower=False)  # of K₁₂, as if K₂₁ did not move
    above = _cotangent(l1, g[..., :h, :h] - left @ b)
    rows = concat([above, left / 2], axis=-1), concat([adjoint(left) / 2, below], axis=-1)
    return concat(rows, axis=-2)


_RULE = Implicit(_tangent, _pull)


_INDEFINITE = "is not positive definite: its leading minor of order {} is not"


def _factorised(a: Tensor) -> Tensor:
    def compute(a: Tensor) -> Tensor:
        return unstacked(blocked.cholesky(stacked(a)), a.shape[:-2]) if a.size else a

    return differentiated(_RULE, compute, a)


@by_choice
def _checked(a: Tensor, dtype: DType) -> tuple[Tensor, Tensor]:
    """The factors, and which of the matrices have none."""
    found = _factorised(a)
    failed = isnan(element(found.detach(), -1, -1))  # NaN follows a pivot that is not positive
    return found.astype(dtype, copy=False), failed


def _info(l: Tensor) -> Tensor:  # noqa: E741
    """The order of the first leading minor that is not positive; 0 where all are."""
    pivots = diagonal(l.detach())
    good = (pivots.real if l.dtype.is_complex else pivots) > 0
    if not l.shape[-1]:
        return good.sum(axis=-1)
    first = (~good).astype("int64").argmax(axis=-1) + 1
    return where(good.all(axis=-1), 0, first)


@widens
def cholesky_ex(x: ArrayLike, /, *, upper: bool = False) -> tuple[Tensor, Tensor]:
    """`cholesky` that does not raise: also the info numbers.

    An info number is 0, or the order of the first leading minor that is not positive; such a matrix
    has a factor of NaNs.

    >>> nm.linalg.cholesky_ex(nm.asarray([[1.0, 2.0], [2.0, 1.0]]))[1].item()
    2
    """
    a, dtype = matrices("cholesky_ex", x, square=True)
    found = _factorised(a)
    info = _info(found)
    found = spoiled(found, info).tril().astype(dtype, copy=False)
    return (adjoint(found) if upper else found), info


@widens
def cholesky(x: ArrayLike, /, *, upper: bool = False) -> Tensor:
    """The lower triangular L with L Lᴴ = x for Hermitian positive-definite matrices x.

    With `upper`, the U with Uᴴ U = x.

    The lower triangle of x is read. A matrix that is not positive definite is a `LinAlgError`; in
    `nm.jit`, where nothing can be raised, its factor is NaN (`cholesky_ex` gives numbers).

    >>> nm.linalg.cholesky(nm.asarray([[4.0, 2.0], [2.0, 10.0]])).tolist()
    [[2.0, 0.0], [1.0, 3.0]]
    """
    a, dtype = matrices("cholesky", x, square=True)
    if not a.size:
        return a.astype(dtype, copy=False)
    found, failed = _checked(a, dtype)
    if not is_known(failed._node):
        found = spoiled(found, failed).tril()
    elif not small.succeeded(failed, found):
        check("cholesky", _info(found), _INDEFINITE)
    return adjoint(found) if upper else found


@widens
def cho_solve(c_and_lower: tuple[ArrayLike, bool], b: ArrayLike, /) -> Tensor:
    """x with a x = b, from the Cholesky factor of a: `cho_solve((cholesky(a), True), b)`.

    Args:
        c_and_lower: the factor, and whether it is the lower triangular one.
        b: a vector, or matrices of right-hand sides; leading axes broadcast.

    >>> a = nm.asarray([[4.0, 2.0], [2.0, 10.0]])
    >>> nm.linalg.cho_solve((nm.linalg.cholesky(a), True), nm.asarray([8.0, 22.0])).tolist()
    [1.0, 2.0]
    """
    c, lower = c_and_lower
    return _solution(c, b, lower)


@untracked_by_choice
def _solution(c: ArrayLike, b: ArrayLike, lower: bool) -> Tensor:
    (factor, y), dtype = operands("cho_solve", c, b)
    require_matrices("cho_solve", factor, square=True)
    factor, y, vector = triangular.right_hand_sides("cho_solve", factor, y)
    factor = factor if lower else adjoint(factor)
    found = triangular.solve(adjoint(factor), triangular.solve(factor, y, lower=True), lower=False)
    return found.astype(dtype, copy=False)[..., 0] if vector else found.astype(dtype, copy=False)
