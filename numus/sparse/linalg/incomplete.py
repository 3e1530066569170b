"""Preconditioners by substitution: SSOR, ILU(0), ILU(k) and incomplete Cholesky.

Factors are made on the host; what is applied are triangular solutions, on every device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import numus as nm
from numus.errors import LinAlgError
from numus.evaluation.evaluate import is_known
from numus.shapes import as_int
from numus.sparse import parts
from numus.sparse.algorithms.incomplete import eliminate_rows, filled_pattern
from numus.sparse.linalg.operators import LinearOperator
from numus.sparse.linalg.triangular import square_system
from numus.sparse.pattern import Pattern, index_dtype
from numus.sparse.products import taken
from numus.sparse.tensor import SparseTensor
from numus.sparse.triangles import Triangle, triangle_of
from numus.tensor import Tensor


class Sweeps:
    """x = (1 + U)⁻¹ S (1 + L)⁻¹ E b and its adjoint, of unit triangles, S and E diagonal."""

    def __init__(self, lower: Triangle, upper: Triangle) -> None:
        self.lower, self.upper = lower, upper

    def apply(self, p: Any, b: Tensor) -> Tensor:
        low, high, first, second = p
        x = self.lower.solve_unit(low, b[:, None] * first[:, None])
        return self.upper.solve_unit(high, x * second[:, None])[:, 0]

    def adjoint(self, p: Any, b: Tensor) -> Tensor:
        low, high, first, second = (nm.conj(x) for x in p)
        (over, up), (under, down) = self.upper.transposed, self.lower.transposed
        x = over.solve_unit(taken(high, up), b[:, None]) * second[:, None]
        return (under.solve_unit(taken(low, down), x) * first[:, None])[:, 0]

    def operator(self, parameters: Any) -> LinearOperator:
        n = self.lower.pattern.shape[0]
        dtype = parameters[0].dtype
        return LinearOperator((n, n), self.apply, self.adjoint, parameters, dtype)


def _square(op: str, a: Any) -> SparseTensor:
    found, _, _ = square_system(op, a, nm.zeros((a.shape[0],) if hasattr(a, "shape") else ()))
    return found.map(nm.detach)


def ssor_preconditioner(a: SparseTensor, omega: float = 1.0) -> LinearOperator:
    """A sweep of symmetric successive over-relaxation: there and back, in the order of the rows.

    Args:
        a: a square sparse matrix with a diagonal that has no zero; it may be traced.
        omega: between 0 and 2; 1 is symmetric Gauss–Seidel.

    >>> import numus as nm
    >>> from numus.sparse.linalg import ssor_preconditioner
    >>> a = nm.sparse.diags([[4.0, 4.0], 1.0], [0, 1], (2, 2), format="csr")
    >>> (ssor_preconditioner(a) @ nm.asarray([5.0, 4.0])).tolist()
    [1.0, 1.0]
    """
    op = "ssor_preconditioner"
    if not 0 < omega < 2:
        raise ValueError(f"{op}: omega={omega} is not between 0 and 2")
    a = _square(op, a)
    pattern, values = parts.canonical(a.structure, a.values)
    (lower, below, on), (upper, over, _) = (triangle_of(pattern, way) for way in (False, True))
    diagonal = parts.taken_or_zero(values, on)
    if (on < 0).any() or (is_known(diagonal._node) and bool(nm.any(diagonal == 0))):
        raise LinAlgError(f"{op}: the diagonal has a zero")
    # ω (2 - ω) (D + ω U)⁻¹ D (D + ω L)⁻¹
    inverse = omega / diagonal
    scaled = [
        taken(values, entries) * taken(inverse, triangle.pattern.rows)
        for triangle, entries in ((lower, below), (upper, over))
    ]
    scale = nm.full_like(inverse, (2 - omega) / omega)
    return Sweeps(lower, upper).operator((*scaled, inverse, scale * omega))


def _factorised(op: str, a: SparseTensor, level: int, definite: bool) -> LinearOperator:
    if a.dtype.is_complex:
        raise LinAlgError(f"{op}: takes a real matrix, not one of {a.dtype.name}")
    pattern, values = parts.canonical(a.structure, a.values)
    if not is_known(values._node):
        raise LinAlgError(f"{op}: the values of the matrix must be known: make it outside a trace")
    n = a.shape[0]
    end, starts, columns, diagonal = filled_pattern(
        n, pattern.pointers.array, pattern.indices.array, level
    )
    if end < 0:
        raise LinAlgError(f"{op}: element ({-1 - end}, {-1 - end}) of the diagonal is not stored")
    rows = np.repeat(np.arange(n), np.diff(starts))
    made = np.zeros(columns.size)
    own = pattern.rows.array * np.int64(n) + pattern.indices.array
    there = np.searchsorted(rows * n + columns, own)
    made[there] = values.numpy()
    if not np.isfinite(made).all():
        raise LinAlgError(f"{op}: the matrix has elements that are infinite or not a number")
    end = eliminate_rows(n, starts, columns, diagonal, made, np.empty(n, np.int64))
    if end < n:
        raise LinAlgError(f"{op}: pivot {end} is zero; shift the diagonal, or scale the matrix")
    pivots = made[diagonal]
    if definite and (pivots <= 0).any():
        at = int(np.argmax(pivots <= 0))
        raise LinAlgError(f"{op}: pivot {at} is not positive; shift the diagonal")
    dtype = index_dtype(n, columns.size)
    whole = Pattern((n, n), starts.astype(dtype), columns.astype(dtype))
    (lower, below, _), (upper, over, _) = (triangle_of(whole, way) for way in (False, True))
    made[over.array] /= pivots[rows[over.array]]

    def tensor(x: Any) -> Tensor:
        return nm.asarray(x, dtype=a.dtype, device=a.device)

    given = (made[below.array], made[over.array], np.ones(n), 1 / pivots)
    return Sweeps(lower, upper).operator(tuple(tensor(x) for x in given))


def ilu_preconditioner(a: SparseTensor, level: int = 0) -> LinearOperator:
    """An incomplete LU factorisation: on the pattern of the matrix, ILU(0), or with fill up to a
    level, ILU(k).

    Args:
        a: a real square sparse matrix that is known, its whole diagonal stored.
        level: of fill.

    >>> import numus as nm
    >>> from numus.sparse.linalg import ilu_preconditioner
    >>> a = nm.sparse.diags([[4.0, 4.0], 1.0], [0, 1], (2, 2), format="csr")
    >>> (ilu_preconditioner(a) @ nm.asarray([5.0, 4.0])).tolist()
    [1.0, 1.0]
    """
    op = "ilu_preconditioner"
    level = as_int(level, "level", op)
    if level < 0:
        raise ValueError(f"{op}: a level of fill of {level} is negative")
    return _factorised(op, _square(op, a), level, False)


def ic_preconditioner(a: SparseTensor, level: int = 0) -> LinearOperator:
    """An incomplete Cholesky factorisation, as L D Lᵀ, of a symmetric matrix: IC(0), or with fill.

    Args:
        a: a real symmetric sparse matrix that is known; pivots that are not positive are an error.
        level: of fill.

    >>> import numus as nm
    >>> from numus.sparse.linalg import ic_preconditioner
    >>> a = nm.sparse.diags([[4.0, 4.0], 1.0, 1.0], [0, 1, -1], (2, 2), format="csr")
    >>> (ic_preconditioner(a) @ nm.asarray([5.0, 5.0])).tolist()
    [1.0, 1.0]
    """
    op = "ic_preconditioner"
    level = as_int(level, "level", op)
    if level < 0:
        raise ValueError(f"{op}: a level of fill of {level} is negative")
    return _factorised(op, _square(op, a), level, True)
