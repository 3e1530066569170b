"""Preconditioners by substitution: SSOR, ILU(0), ILU(k), ILUT and incomplete Cholesky.

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
from numus.sparse.algorithms.incomplete import eliminated, filled_pattern
from numus.sparse.algorithms.threshold import threshold_factors
from numus.sparse.linalg.direct.triangular import square_system
from numus.sparse.linalg.operators import LinearOperator
from numus.sparse.pattern import Array, Pattern, index_dtype
from numus.sparse.products import taken
from numus.sparse.tensor import SparseTensor
from numus.sparse.triangles import Triangle, checked_method, triangle_of
from numus.tensor import Tensor


class Sweeps:
    """x = (1 + U)⁻¹ S (1 + L)⁻¹ E b and its adjoint, of unit triangles, S and E diagonal; with a
    number of sweeps, the inverses are approximated by Jacobi's method."""

    def __init__(self, lower: Triangle, upper: Triangle, sweeps: int | None) -> None:
        self.lower, self.upper, self.sweeps = lower, upper, sweeps

    def _solved(self, triangle: Triangle, values: Tensor, b: Tensor) -> Tensor:
        return triangle.solve_unit(values, b, sweeps=self.sweeps)

    def apply(self, p: Any, b: Tensor) -> Tensor:
        low, high, first, second = p
        x = self._solved(self.lower, low, b[:, None] * first[:, None])
        return self._solved(self.upper, high, x * second[:, None])[:, 0]

    def adjoint(self, p: Any, b: Tensor) -> Tensor:
        low, high, first, second = (nm.conj(x) for x in p)
        (over, up), (under, down) = self.upper.transposed, self.lower.transposed
        x = self._solved(over, taken(high, up), b[:, None]) * second[:, None]
        return (self._solved(under, taken(low, down), x) * first[:, None])[:, 0]

    def operator(self, parameters: Any) -> LinearOperator:
        n = self.lower.pattern.shape[0]
        dtype = parameters[0].dtype
        return LinearOperator((n, n), self.apply, self.adjoint, parameters, dtype)


def square_matrix(op: str, a: Any) -> SparseTensor:
    found, _, _ = square_system(op, a, nm.zeros((a.shape[0],) if hasattr(a, "shape") else ()))
    return found.map(nm.detach)


def ssor_preconditioner(
    a: SparseTensor, omega: float = 1.0, *, sweeps: int | None = None
) -> LinearOperator:
    """A sweep of symmetric successive over-relaxation: there and back, in the order of the rows.

    Args:
        a: a square sparse matrix with a diagonal that has no zero; it may be traced.
        omega: between 0 and 2; 1 is symmetric Gauss–Seidel.
        sweeps: apply the triangles by this many sweeps of Jacobi's method, products without an
            order of rows; exactly where it is None.

    >>> import numus as nm
    >>> from numus.sparse.linalg import ssor_preconditioner
    >>> a = nm.sparse.diags([[4.0, 4.0], 1.0], [0, 1], (2, 2), format="csr")
    >>> (ssor_preconditioner(a) @ nm.asarray([5.0, 4.0])).tolist()
    [1.0, 1.0]
    """
    op = "ssor_preconditioner"
    sweeps = checked_method(op, "auto", sweeps)
    if not 0 < omega < 2:
        raise ValueError(f"{op}: omega={omega} is not between 0 and 2")
    a = square_matrix(op, a)
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
    return Sweeps(lower, upper, sweeps).operator((*scaled, inverse, scale * omega))


def known_values(op: str, a: SparseTensor) -> tuple[Pattern, Array]:
    """The pattern and the values, on the host, of a matrix without duplicates."""
    pattern, values = parts.canonical(a.structure, a.values)
    if not is_known(values._node):
        raise LinAlgError(f"{op}: the values of the matrix must be known: make it outside a trace")
    found = values.numpy().astype(np.complex128 if a.dtype.is_complex else np.float64)
    if not np.isfinite(found).all():
        raise LinAlgError(f"{op}: the matrix has elements that are infinite or not a number")
    return pattern, found


def _by_sweeps(
    like: SparseTensor, sweeps: int | None, starts: Array, columns: Array, made: Array,
    diagonal: Array,
) -> LinearOperator:  # fmt: skip
    """The inverse of L U, whose rows stand together, L without its diagonal of ones."""
    n = like.shape[0]
    rows = np.repeat(np.arange(n), np.diff(starts))
    dtype = index_dtype(n, columns.size)
    whole = Pattern((n, n), starts.astype(dtype), columns.astype(dtype))
    (lower, below, _), (upper, over, _) = (triangle_of(whole, way) for way in (False, True))
    pivots = made[diagonal]
    made[over.array] /= pivots[rows[over.array]]

    def tensor(x: Any) -> Tensor:
        return nm.asarray(x, dtype=like.dtype, device=like.device)

    given = (made[below.array], made[over.array], np.ones(n), 1 / pivots)
    return Sweeps(lower, upper, sweeps).operator(tuple(tensor(x) for x in given))


def _factorised(
    op: str, a: SparseTensor, level: Any, definite: bool, sweeps: Any
) -> LinearOperator:
    level, sweeps = as_int(level, "level", op), checked_method(op, "auto", sweeps)
    if level < 0:
        raise ValueError(f"{op}: a level of fill of {level} is negative")
    a = square_matrix(op, a)
    pattern, values = known_values(op, a)
    n = a.shape[0]
    end, starts, columns, diagonal = filled_pattern(
        n, pattern.pointers.array, pattern.indices.array, level
    )
    if end < 0:
        raise LinAlgError(f"{op}: element ({-1 - end}, {-1 - end}) of the diagonal is not stored")
    rows = np.repeat(np.arange(n), np.diff(starts))
    made = np.zeros(columns.size, values.dtype)
    own = pattern.rows.array * np.int64(n) + pattern.indices.array
    there = np.searchsorted(rows * n + columns, own)
    made[there] = values
    end = eliminated(n, starts, columns, diagonal, made)
    if end < n:
        raise LinAlgError(f"{op}: pivot {end} is zero; shift the diagonal, or scale the matrix")
    pivots = made[diagonal]
    if definite and (pivots.real <= 0).any():
        at = int(np.argmax(pivots.real <= 0))
        raise LinAlgError(f"{op}: pivot {at} is not positive; shift the diagonal")
    return _by_sweeps(a, sweeps, starts, columns, made, diagonal)


def ilu_preconditioner(
    a: SparseTensor, level: int = 0, *, sweeps: int | None = None
) -> LinearOperator:
    """An incomplete LU factorisation: on the pattern of the matrix, ILU(0), or with fill up to a
    level, ILU(k).

    Args:
        a: a square sparse matrix that is known, its whole diagonal stored.
        level: of fill.
        sweeps: apply the triangles by this many sweeps of Jacobi's method, products without an
            order of rows; exactly where it is None.

    >>> import numus as nm
    >>> from numus.sparse.linalg import ilu_preconditioner
    >>> a = nm.sparse.diags([[4.0, 4.0], 1.0], [0, 1], (2, 2), format="csr")
    >>> (ilu_preconditioner(a) @ nm.asarray([5.0, 4.0])).tolist()
    [1.0, 1.0]
    """
    return _factorised("ilu_preconditioner", a, level, False, sweeps)


def ilut_preconditioner(
    a: SparseTensor, drop_tolerance: float = 1e-3, fill: int = 10, *, sweeps: int | None = None
) -> LinearOperator:
    """An incomplete LU factorisation by dual threshold, ILUT (Saad 1994): the pattern of the
    factors follows from the values.

    Args:
        a: a square sparse matrix that is known.
        drop_tolerance: elements below this share of the norm of their row are dropped.
        fill: the most elements of a row of L, and of U beside its diagonal: the largest.
        sweeps: apply the triangles by this many sweeps of Jacobi's method, products without an
            order of rows; exactly where it is None.

    >>> import numus as nm
    >>> from numus.sparse.linalg import ilut_preconditioner
    >>> a = nm.sparse.diags([[4.0, 4.0], 1.0], [0, 1], (2, 2), format="csr")
    >>> (ilut_preconditioner(a) @ nm.asarray([5.0, 4.0])).tolist()
    [1.0, 1.0]
    """
    op = "ilut_preconditioner"
    fill, sweeps = as_int(fill, "fill", op), checked_method(op, "auto", sweeps)
    if fill < 0:
        raise ValueError(f"{op}: a fill of {fill} elements a row is negative")
    if not 0 <= drop_tolerance < 1:
        raise ValueError(f"{op}: drop_tolerance={drop_tolerance} is not at least 0 and below 1")
    a = square_matrix(op, a)
    pattern, values = known_values(op, a)
    n, where = a.shape[0], (pattern.pointers.array, pattern.indices.array)
    end, *factors = threshold_factors(n, *where, values, float(drop_tolerance), fill)
    if end < 0:
        raise LinAlgError(
            f"{op}: pivot {-1 - end} is zero; shift the diagonal, or put large elements there by a "
            "permutation of the rows"
        )
    return _by_sweeps(a, sweeps, *factors)


def ic_preconditioner(
    a: SparseTensor, level: int = 0, *, sweeps: int | None = None
) -> LinearOperator:
    """An incomplete Cholesky factorisation, as L D Lᴴ, of a Hermitian matrix: IC(0), or with fill.

    Args:
        a: a Hermitian sparse matrix that is known; pivots that are not positive are an error.
        level: of fill.
        sweeps: apply the triangles by this many sweeps of Jacobi's method, products without an
            order of rows; exactly where it is None.

    >>> import numus as nm
    >>> from numus.sparse.linalg import ic_preconditioner
    >>> a = nm.sparse.diags([[4.0, 4.0], 1.0, 1.0], [0, 1, -1], (2, 2), format="csr")
    >>> (ic_preconditioner(a) @ nm.asarray([5.0, 5.0])).tolist()
    [1.0, 1.0]
    """
    return _factorised("ic_preconditioner", a, level, True, sweeps)
