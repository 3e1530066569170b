"""Sparse QR factorisation without Q, and least squares with it: seminormal equations, corrected by
steps of iterative refinement (Björck 1987).

R is as accurate as Householder's reflections make it, so each step reduces the error by about the
condition number times the rounding unit: two are as good as a solution with Q.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import numus as nm
from numus import dtypes as dt
from numus.errors import ShapeError
from numus.graph import grad_mode
from numus.sparse.algorithms.multifrontal_qr import QRPlan, Rows, planned
from numus.sparse.linalg.direct.factors import column_order
from numus.sparse.linalg.direct.real_form import by_real_parts, real_form
from numus.sparse.linalg.iterative.driver import implicitly
from numus.sparse.linalg.preconditioners.incomplete import known_values
from numus.sparse.pattern import Array, OnDevices, Pattern, index_dtype, repeated_ranges
from numus.sparse.structure import CSR
from numus.sparse.tensor import SparseTensor
from numus.sparse.triangles import Triangle
from numus.tensor import Tensor

ORDERINGS = ("columns", "natural")
_EPS = float(np.finfo(np.float64).eps)


class SparseQR:
    """The triangular factor R of a sparse matrix, by which least squares are solved (see `qr`).

    Attributes:
        shape: of the matrix.
        rank: columns that do not depend on those before them: rows of R.
        column_order: the column of the matrix that each column of R is.

    >>> import numus as nm
    >>> from numus.sparse.linalg import qr
    >>> a = nm.sparse.from_dense(nm.asarray([[3.0, 0.0], [4.0, 0.0], [0.0, 2.0]]))
    >>> f = qr(a)
    >>> f.rank, f.solve(nm.asarray([3.0, 4.0, 4.0])).tolist()
    (2, [1.0, 2.0])
    """

    def __init__(self, a: SparseTensor, plan: QRPlan, rows: Rows, tolerance: float) -> None:
        self._a, self._plan, self._rows, self._tolerance = a, plan, rows, tolerance
        self.shape, self.rank = a.shape, rows.live.size
        if a.dtype.is_complex:
            self.rank = self._pairs().size
        self._there: dict[Any, Any] = {}
        n, live = rows.order.size, rows.live
        number = np.full(n, -1, np.int64)
        number[live] = np.arange(live.size)
        row = np.repeat(np.arange(live.size), np.diff(rows.starts))
        keep = np.flatnonzero(number[rows.columns] > row)  # right of the diagonal, not dead
        self._diagonal = rows.values[rows.starts[:-1]]
        self._unit = rows.values[keep] / self._diagonal[row[keep]]
        pointers = np.zeros(live.size + 1, np.int64)
        np.cumsum(np.bincount(row[keep], minlength=live.size), out=pointers[1:])
        kind = index_dtype(n, keep.size)
        pattern = Pattern(
            (live.size, live.size), pointers.astype(kind), number[rows.columns[keep]].astype(kind)
        )
        pattern.__dict__["is_canonical"] = True
        self._upper = Triangle(pattern, True)
        self._taken = OnDevices(rows.order[live].astype(np.int64))
        place = np.full(n, live.size, np.int64)  # dead columns take the zero behind the others
        place[rows.order[live]] = np.arange(live.size)
        self._place = OnDevices(place)

    def _pairs(self) -> Array:
        """Of the real form of a complex matrix, the rows of R that begin with a column of real
        parts, and are followed by that of its imaginary ones."""
        live = self._rows.live
        return np.flatnonzero((live[:-1] % 2 == 0) & (live[1:] == live[:-1] + 1))

    @property
    def column_order(self) -> Tensor:
        order = self._rows.order
        return nm.asarray(order[::2] // 2 if self._a.dtype.is_complex else order)

    @property
    def nnz(self) -> int:
        """Elements of R."""
        return int(self._rows.values.size) // (4 if self._a.dtype.is_complex else 1)

    @property
    def R(self) -> SparseTensor:
        """The factor, rank × columns, upper trapezoidal: RᴴR is AᴴA with its columns in their
        order."""
        starts, columns, values = self._rows.starts, self._rows.columns, self._rows.values
        if self._a.dtype.is_complex:
            # with a positive diagonal, R of the real form is the real form of R
            pairs = self._pairs()
            counts = np.diff(starts)[pairs]
            inside = repeated_ranges(starts[pairs], counts)
            sign = np.repeat(np.sign(values[starts[pairs]]), counts // 2)
            values = sign * (values[inside[::2]] - 1j * values[inside[1::2]])
            columns = columns[inside[::2]] // 2
            starts = np.append(0, np.cumsum(counts // 2))
            values[starts[:-1]] = values[starts[:-1]].real
        kind = index_dtype(self.shape[1], values.size)
        where = Pattern((self.rank, self.shape[1]), starts.astype(kind), columns.astype(kind))
        tensor = nm.asarray(values, dtype=self._a.dtype, device=self._a.device)
        return SparseTensor(CSR(where), tensor)

    def __repr__(self) -> str:
        return f"SparseQR(shape={self.shape}, rank={self.rank}, nnz={self.nnz})"

    def _normal(self, g: Tensor) -> Tensor:
        """(AᴴA)⁻¹ of columns, among the live ones; others of the result are zero."""
        return by_real_parts(self._real_normal, g, self._a.dtype)

    def _real_normal(self, g: Tensor) -> Tensor:
        key = (g.dtype, g.device)
        if key not in self._there:
            _, order = self._upper.transposed

            def tensor(x: Array) -> Tensor:
                return nm.asarray(x, dtype=g.dtype, device=g.device)

            inverse = tensor(1 / self._diagonal)[:, None]
            self._there[key] = (tensor(self._unit), tensor(self._unit[order.array]), inverse)
        unit, swapped, inverse = self._there[key]
        own = g[Tensor(self._taken.on(g.device))]
        y = self._upper.transposed[0].solve_unit(swapped, own) * inverse
        x = self._upper.solve_unit(unit, y * inverse)
        wide = nm.concatenate([x, nm.zeros((1, g.shape[1]), dtype=g.dtype, device=g.device)])
        return wide[Tensor(self._place.on(g.device))]

    def _solution(self, values: Tensor, b: Tensor, refine: int) -> Tensor:
        """Of columns, with derivatives by the values and the right-hand side."""
        structure = self._a.structure

        def equation(values: Tensor, b: Tensor, x: Tensor) -> Tensor:
            a = SparseTensor(structure, values)
            return a.H @ (b - a @ x)

        def again(values: Tensor, g: Tensor, back: bool) -> Tensor:
            def normal(values: Tensor, g: Tensor, x: Tensor) -> Tensor:
                a = SparseTensor(structure, values)
                return g - a.H @ (a @ x)

            with grad_mode(False):
                y = self._normal(g)
                for _ in range(refine):
                    y = y + self._normal(normal(values, g, y))
            return implicitly(y, values, g, normal, again)

        with grad_mode(False):
            a = SparseTensor(structure, values)
            x = self._normal(a.H @ b)
            for _ in range(refine):
                x = x + self._normal(a.H @ (b - a @ x))
        return implicitly(x, values, b, equation, again)

    def solve(self, b: Any, refine: int = 2) -> Tensor:
        """x with the least ‖A x - b‖; differentiable by b. Columns that depend on others get zero:
        a basic solution.

        Args:
            b: a vector of one element a row, or a matrix of several.
            refine: steps of iterative refinement.
        """
        a, right, vector = _system("qr.solve", self._a, b)
        x = self._solution(a.values, right, refine)
        return x[:, 0] if vector else x

    def refactorise(self, values: Any) -> SparseQR:
        """The factorisation of other values on the same structure: without ordering and symbolic
        phase.

        Args:
            values: a tensor of them, or a sparse matrix of the same structure.

        >>> import numus as nm
        >>> from numus.sparse.linalg import qr
        >>> f = qr(nm.sparse.diags([2.0, 4.0], format="csr"))
        >>> f.refactorise(nm.asarray([1.0, 8.0])).solve(nm.ones(2)).tolist()
        [1.0, 0.125]
        """
        if isinstance(values, SparseTensor):
            if values.structure != self._a.structure:
                raise ShapeError("qr.refactorise: the structure is another: factorise it by qr")
            values = values.values
        return _factorised(
            "qr.refactorise", self._a.with_values(values), self._plan, self._tolerance
        )


def _system(op: str, a: Any, b: Any) -> tuple[SparseTensor, Tensor, bool]:
    """A matrix and right-hand sides as columns in one dtype, and whether it was a vector."""
    right = nm.asarray(b, device=a.device)
    if right.ndim not in (1, 2) or right.shape[0] != a.shape[0]:
        raise ShapeError(
            f"{op}: a matrix of shape {a.shape} with a right-hand side of {tuple(right.shape)}"
        )
    dtype = dt.promote(a.dtype, right.dtype)
    right = right.astype(dtype, copy=False)
    vector = right.ndim == 1
    return a.astype(dtype), right[:, None] if vector else right, vector


def _matrix(op: str, a: Any) -> SparseTensor:
    if not isinstance(a, SparseTensor):
        raise TypeError(f"{op}: takes a sparse matrix, not {type(a).__name__}")
    if a.ndim != 2:
        raise ShapeError(f"{op}: takes a matrix, not a sparse tensor of shape {a.shape}")
    return a if a.dtype.is_inexact else a.astype(dt.default_float)


def _factorised(op: str, a: SparseTensor, plan: QRPlan | str, tolerance: float | None) -> SparseQR:
    a = a.map(nm.detach)
    pattern, values = known_values(op, a)
    narrow = pattern
    if a.dtype.is_complex:
        pattern, values = real_form(pattern, values)
    if isinstance(plan, str):
        order = column_order(narrow, plan)
        if a.dtype.is_complex:  # real and imaginary parts stay together
            order = (2 * order[:, None] + np.arange(2)).ravel()
        plan = planned(pattern.shape[0], pattern.pointers.array, pattern.indices.array, order)
    norms = np.sqrt(np.bincount(pattern.indices.array, values**2, minlength=pattern.shape[1]))
    share = 20 * sum(a.shape) * _EPS if tolerance is None else tolerance
    rows = plan.numeric(values, share * float(norms.max(initial=0.0)))
    return SparseQR(a, plan, rows, share)


def qr(a: SparseTensor, *, ordering: str = "columns", tolerance: float | None = None) -> SparseQR:
    """The QR factorisation of a sparse matrix of any shape, without Q: A E = Q R.

    It runs on the CPU in float64; solutions run where the matrix is, in traces too.

    Args:
        a: a sparse matrix; its values must be known.
        ordering: of the columns, "columns" (minimum degree on AᵀA) or "natural".
        tolerance: a column of which less is left than this share of the largest norm of a column
            depends on those before it; 20 (rows + columns) times the rounding unit where it is
            None.

    >>> import numus as nm
    >>> from numus.sparse.linalg import qr
    >>> a = nm.sparse.from_dense(nm.asarray([[3.0, 6.0], [4.0, 8.0]]))
    >>> qr(a).rank
    1
    """
    op = "qr"
    if ordering not in ORDERINGS:
        raise ValueError(f"{op}: the ordering {ordering!r} must be one of {ORDERINGS}")
    if tolerance is not None and not tolerance >= 0:
        raise ValueError(f"{op}: tolerance={tolerance} is negative or not a number")
    return _factorised(op, _matrix(op, a), ordering, tolerance)


def lstsq(
    a: SparseTensor, b: Any, *, ordering: str = "columns", tolerance: float | None = None
) -> Tensor:
    """x with the least ‖A x - b‖, by QR factorisation.

    Where columns depend on others, the solution is a basic one: zero in as many elements. Where
    none do, it is differentiable by the values of the matrix and by the right-hand side, in both
    modes, by solutions with the same factor.

    Args:
        a: a sparse matrix of any shape; its values must be known.
        b: a vector of one element a row, or a matrix of several.
        ordering: see `qr`.
        tolerance: see `qr`.

    >>> import numus as nm
    >>> from numus.sparse.linalg import lstsq
    >>> a = nm.sparse.from_dense(nm.asarray([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]))
    >>> nm.allclose(lstsq(a, nm.asarray([1.0, 3.0, 5.0])), nm.asarray([1.0, 2.0])).item()
    True
    """
    op = "lstsq"
    a = _matrix(op, a)
    found = qr(a, ordering=ordering, tolerance=tolerance)
    a, right, vector = _system(op, a, b)
    x = found._solution(a.values, right, 2)
    return x[:, 0] if vector else x
