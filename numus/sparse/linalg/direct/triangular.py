"""Solutions of sparse triangular systems: by rows on a CPU, by levels or in sweeps on GPUs."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus import dtypes as dt
from numus.errors import LinAlgError, ShapeError
from numus.evaluation.evaluate import is_known
from numus.graph import grad_mode
from numus.sparse import parts
from numus.sparse.linalg.iterative.driver import implicitly
from numus.sparse.products import product, taken
from numus.sparse.tensor import SparseTensor
from numus.sparse.triangles import checked_method, triangle_of
from numus.tensor import Tensor


def square_system(op: str, a: Any, b: Any) -> tuple[SparseTensor, Tensor, bool]:
    """A sparse matrix and right-hand sides as columns in one dtype, and whether it was a vector."""
    if not isinstance(a, SparseTensor):
        raise TypeError(f"{op}: takes a sparse matrix, not {type(a).__name__}")
    right = nm.asarray(b, device=a.device)
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ShapeError(f"{op}: a matrix of shape {a.shape} is not square")
    if right.ndim not in (1, 2) or right.shape[0] != a.shape[0]:
        raise ShapeError(
            f"{op}: a matrix of shape {a.shape} with a right-hand side of {tuple(right.shape)}"
        )
    dtype = dt.promote(a.dtype, right.dtype)
    dtype = dtype if dtype.is_inexact else dt.default_float
    vector = right.ndim == 1
    right = right.astype(dtype, copy=False)
    return a.astype(dtype), right[:, None] if vector else right, vector


def spsolve_triangular(
    a: SparseTensor, b: Any, lower: bool = True, unit_diagonal: bool = False, *,
    method: str = "auto", sweeps: int | None = None,
) -> Tensor:  # fmt: skip
    """The solution of a triangular system.

    Differentiable by the values of the matrix and by the right-hand side, in both modes.

    Args:
        a: a square sparse matrix, of which one triangle is read.
        b: a vector, or a matrix of several right-hand sides.
        lower: which triangle.
        unit_diagonal: take the diagonal as ones, whatever is stored.
        method: "levels", substitution of one level of rows after the other (row by row on a CPU);
            "jacobi", products with the whole triangle until nothing changes, at most one per level;
            "auto" takes what costs less where the matrix is.
        sweeps: of Jacobi's method, for an approximate solution.

    >>> import numus as nm
    >>> from numus.sparse.linalg import spsolve_triangular
    >>> a = nm.sparse.from_dense(nm.asarray([[2.0, 0.0], [1.0, 4.0]]))
    >>> spsolve_triangular(a, nm.asarray([2.0, 9.0])).tolist()
    [1.0, 2.0]
    """
    op = "spsolve_triangular"
    sweeps = checked_method(op, method, sweeps)
    a, right, vector = square_system(op, a, b)
    pattern, values = parts.canonical(a.structure, a.values)
    triangle, inside, on = triangle_of(pattern, not lower)
    strict = taken(values, inside)
    diagonal = None
    if not unit_diagonal:
        diagonal = parts.taken_or_zero(values, on)
        zero = diagonal == 0
        if (on < 0).any() or (is_known(diagonal._node) and bool(nm.any(zero))):
            at = int(nm.argmax(zero)) if is_known(zero._node) else int((on < 0).argmax())
            raise LinAlgError(f"{op}: the matrix is singular: element ({at}, {at}) is zero")

    def equation(parameters: Any, b: Tensor, x: Tensor) -> Tensor:
        own, diagonal = parameters
        scaled = x if diagonal is None else diagonal[:, None] * x
        return b - scaled - product(triangle.pattern, own, x)

    def solve(parameters: Any, b: Tensor, adjoint: bool) -> Tensor:
        own, diagonal = parameters
        with grad_mode(False):
            way = triangle.solve_adjoint if adjoint else triangle.solve
            found = way(own, diagonal, b, method, sweeps)
        given = equation if not adjoint else adjoint_equation
        return implicitly(
            *(found, parameters, b, given),
            lambda p, b, back: solve(p, b, adjoint != back),
        )

    def adjoint_equation(parameters: Any, b: Tensor, x: Tensor) -> Tensor:
        own, diagonal = parameters
        scaled = x if diagonal is None else nm.conj(diagonal)[:, None] * x
        other, order = triangle.transposed
        return b - scaled - product(other.pattern, nm.conj(taken(own, order)), x)

    x = solve((strict, diagonal), right, False)
    return x[:, 0] if vector else x
