"""Triangular systems, differentiated implicitly."""

from __future__ import annotations

import functools
from typing import Any

from numus.functions.autocast import widens
from numus.functions.creation.creation import arange
from numus.functions.elementwise.comparison import where
from numus.functions.reduction.reductions import min as minimum_of
from numus.functions.shape.manipulation import broadcast_to
from numus.linalg._base import (
    Implicit,
    LinAlgShapeError,
    adjoint,
    differentiated,
    operands,
    require_matrices,
    stacked,
    unstacked,
    untracked_by_choice,
)
from numus.linalg.factor import blocked, lapack
from numus.linalg.products import diagonal
from numus.shapes import as_int
from numus.shapes import broadcast as broadcast_shapes
from numus.tensor import ArrayLike, Tensor


def right_hand_sides(op: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Matrices and right-hand sides with equal leading axes; True where b was a vector."""
    require_matrices(op, a, square=True)
    vector = b.ndim == 1
    if vector:
        b = b[:, None]
    if b.ndim < 2 or b.shape[-2] != a.shape[-1]:
        raise LinAlgShapeError(
            f"linalg.{op}: shapes {a.shape} and {b.shape[:-1] if vector else b.shape} do not fit: "
            f"{a.shape[-1]} unknowns meet right-hand sides of {b.shape[-2] if b.ndim > 1 else 0}"
        )
    lead = broadcast_shapes(a.shape[:-2], b.shape[:-2], f"linalg.{op}")
    a, b = (x if x.shape[:-2] == lead else broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b))
    return a, b, vector


def solve(a: Tensor, b: Tensor, lower: bool, unit_diagonal: bool = False) -> Tensor:
    """x with a triangle of a times x = b, for equal leading axes."""

    def compute(a: Tensor, b: Tensor) -> Tensor:
        if b.size == 0:
            return b
        solver = blocked.solve_lower if lower else blocked.solve_upper
        found = solver(stacked(a), stacked(b), unit_diagonal)
        if lapack.on_gpu(a) and not unit_diagonal:
            found = _divided_by_zeros(found, stacked(a), lower)
        return unstacked(found, b.shape[:-2])

    return differentiated(_rule(lower, unit_diagonal), compute, a, b)


def _divided_by_zeros(x: Tensor, a: Tensor, lower: bool) -> Tensor:
    """Of a solution with other numbers for zeros on the diagonal: the row of the first zero that
    substitution meets is divided by it, and what follows is not determined."""
    n = a.shape[-1]
    i = arange(n, device=a.device)
    steps = i if lower else n - 1 - i
    first = minimum_of(where(diagonal(a) == 0, steps, n), axis=-1)[:, None, None]
    steps = steps[:, None]
    return where(steps < first, x, where(steps == first, x / 0.0, float("nan")))


@functools.cache
def _rule(lower: bool, unit_diagonal: bool) -> Implicit:
    def triangle(x: Tensor) -> Tensor:
        return x.tril(-int(unit_diagonal)) if lower else x.triu(int(unit_diagonal))

    def tangent(x: Tensor, operands: list[Tensor], tangents: list[Tensor]) -> Tensor:
        (a, _), (da, db) = operands, tangents
        return solve(a, db - triangle(da) @ x, lower, unit_diagonal)

    def pull(x: Tensor, operands: list[Tensor], g: Tensor) -> tuple[Tensor, Tensor]:
        gb = solve(adjoint(operands[0]), g, not lower, unit_diagonal)
        return -triangle(gb @ adjoint(x)), gb

    return Implicit(tangent, pull)


@widens
def solve_triangular(
    a: ArrayLike,
    b: ArrayLike,
    /,
    *,
    lower: bool = False,
    trans: int | str = 0,
    unit_diagonal: bool = False,
) -> Tensor:
    """x with a x = b for triangular matrices a, of which the other triangle is not read.

    b is a vector, or matrices of right-hand sides; leading axes broadcast. A zero on the diagonal
    gives infinities, as a division does.

    Args:
        lower: the lower triangle is the matrix; else the upper one.
        trans: 0 or "N" for a x = b, 1 or "T" for the transpose of a, 2 or "C" for its conjugate.
        unit_diagonal: the diagonal is taken as ones and not read.

    >>> a = nm.asarray([[2.0, 0.0], [1.0, 4.0]])
    >>> nm.linalg.solve_triangular(a, nm.asarray([2.0, 9.0]), lower=True).tolist()
    [1.0, 2.0]
    """
    kinds: dict[Any, int] = {0: 0, 1: 1, 2: 2, "N": 0, "T": 1, "C": 2}
    if not isinstance(trans, str):
        trans = as_int(trans, "trans", "linalg.solve_triangular")
    if trans not in kinds:
        raise ValueError(
            f"linalg.solve_triangular: trans={trans!r} must be one of 0, 1, 2, N, T, C"
        )
    return _solution(a, b, lower, kinds[trans], unit_diagonal)


@untracked_by_choice
def _solution(a: ArrayLike, b: ArrayLike, lower: bool, kind: int, unit_diagonal: bool) -> Tensor:
    (x, y), dtype = operands("solve_triangular", a, b)
    x, y, vector = right_hand_sides("solve_triangular", x, y)
    if kind:
        x, lower = (x.mT if kind == 1 else adjoint(x)), not lower
    found = solve(x, y, lower, unit_diagonal).astype(dtype, copy=False)
    return found[..., 0] if vector else found
