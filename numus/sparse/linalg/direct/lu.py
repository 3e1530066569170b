"""Direct solvers: sparse LU and Cholesky factorisations, and solutions with them.

The factorisation runs on the CPU in float64, from a matrix that is known; solutions are
substitutions that run where the matrix is, in traces too. A complex matrix is factorised as a real
one of twice the size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import numus as nm
from numus.errors import LinAlgError, ShapeError
from numus.evaluation.evaluate import is_known
from numus.graph import Nodes, grad_mode
from numus.primitives.sparse import supernodal_solve
from numus.runtime.devices import Device
from numus.sparse import parts
from numus.sparse.linalg.direct.factors import (
    ORDERINGS,
    Factors,
    Matrix,
    cholesky_factors,
    factorised,
    repeated,
)
from numus.sparse.linalg.direct.real_form import by_real_parts, real_form
from numus.sparse.linalg.direct.triangular import square_system
from numus.sparse.linalg.iterative.driver import implicitly
from numus.sparse.pattern import Array, OnDevices, index_dtype
from numus.sparse.tensor import SparseTensor
from numus.sparse.triangles import Triangle
from numus.tensor import Tensor


def _host(op: str, a: SparseTensor) -> Matrix:
    pattern, values = parts.canonical(a.structure, nm.detach(a.values))
    if not is_known(values._node):
        raise LinAlgError(
            f"{op}: the values of the matrix must be known: factorise outside of the trace, and "
            "solve inside of it"
        )
    array = values.numpy()
    if not a.dtype.is_complex:
        return Matrix(pattern, array.astype(np.float64))
    return Matrix(*real_form(pattern, array))


_MAX_SUPERNODAL_COLUMNS = 3  # lanes run along more of them


class _Substitutions:
    """The factors on a device, in a dtype."""

    def __init__(self, f: Factors, dtype: Any, dev: Device) -> None:
        def tensor(x: Array) -> Tensor:
            return nm.asarray(x.astype(dtype.np), device=dev)

        def rows(triangle: Triangle, values: Array) -> tuple[Triangle, Tensor]:
            return triangle, tensor(values)

        def columns(triangle: Triangle, values: Array) -> tuple[Triangle, Tensor]:
            other, order = triangle.transposed
            return other, tensor(values[order.array])

        by_columns = f.upper_by_columns
        make = {
            "lower": lambda: columns(*f.lower),
            "lower adjoint": lambda: rows(*f.lower),
            "upper": lambda: (columns if by_columns else rows)(*f.upper),
            "upper adjoint": lambda: (rows if by_columns else columns)(*f.upper),
        }
        self._factor = functools.cache(lambda name: make[name]())  # those that are asked for
        self._dense: Callable[[str], tuple[Nodes, bool]] | None = None
        if f.supernodes is not None and not dev.runtime.target.simt:
            nodes = f.supernodes

            def factor(name: str) -> tuple[Nodes, bool]:
                lower = name.startswith("lower")
                rows = nodes.lower_rows if lower else nodes.upper_rows
                kind = index_dtype(rows.size, f.diagonal.size)
                shared = (nodes.first, nodes.starts, rows)
                where = [nm.asarray(x.astype(kind), device=dev)._node for x in shared]
                entries = nm.asarray(nodes.entries, device=dev)._node
                values = tensor((f.lower if lower else f.upper)[1])._node
                return (*where, entries, values), name in ("upper", "lower adjoint")

            self._dense = functools.cache(factor)
        self.row_order, self.column_order = (
            OnDevices(x.astype(np.int64)) for x in (f.row_order, f.column_order)
        )
        self.row_place, self.column_place = (
            OnDevices(np.argsort(x, kind="stable")) for x in (f.row_order, f.column_order)
        )
        self.before = tensor(f.row_scale[f.row_order])[:, None]
        self.after = tensor(f.column_scale[f.column_order])[:, None]
        self.inverse = tensor(1 / f.diagonal)[:, None]

    def solve(self, b: Tensor, adjoint: bool) -> Tensor:
        def moved(x: Tensor, order: OnDevices) -> Tensor:
            return x[Tensor(order.on(x.device))]

        def within(name: str, x: Tensor) -> Tensor:
            if self._dense is not None and x.shape[1] <= _MAX_SUPERNODAL_COLUMNS:
                factor, transposed = self._dense(name)
                return Tensor(supernodal_solve(factor, x._node, transposed))
            triangle, values = self._factor(name)
            return triangle.solve_unit(values, x)

        if adjoint:
            x = within("upper adjoint", moved(b, self.column_order) * self.after)
            x = within("lower adjoint", x * self.inverse) * self.before
            return moved(x, self.row_place)
        x = within("lower", moved(b, self.row_order) * self.before)
        x = within("upper", x * self.inverse) * self.after
        return moved(x, self.column_place)


class SparseLU:
    """The factorisation of a sparse matrix, by which systems are solved (see `splu`).

    Attributes:
        shape: of the matrix.
        nnz: elements of the factors.
        pivots: the diagonal of U, in the order of elimination.

    >>> import numus as nm
    >>> from numus.sparse.linalg import splu
    >>> lu = splu(nm.sparse.diags([2.0, 4.0], format="csr"))
    >>> lu.solve(nm.ones(2)).tolist()
    [0.5, 0.25]
    """

    def __init__(self, a: SparseTensor, factors: Factors, op: str, options: dict[str, Any]) -> None:
        self._a = a.map(nm.detach)
        self._factors, self._op, self._options = factors, op, options
        self._there: dict[Any, _Substitutions] = {}
        self.shape = a.shape

    @property
    def nnz(self) -> int:
        return self._factors.nnz

    @property
    def pivots(self) -> Tensor:
        return nm.asarray(self._factors.diagonal)

    def __repr__(self) -> str:
        return f"SparseLU(shape={self.shape}, nnz={self.nnz}, dtype={self._a.dtype.name})"

    def _substitute(self, b: Tensor, adjoint: bool) -> Tensor:
        """Columns in the dtype of the right-hand side, real or complex."""
        return by_real_parts(lambda b: self._real(b, adjoint), b, self._a.dtype)

    def _real(self, b: Tensor, adjoint: bool) -> Tensor:
        key = (b.dtype, b.device)
        if key not in self._there:
            self._there[key] = _Substitutions(self._factors, *key)
        return self._there[key].solve(b, adjoint)

    def _refined(self, b: Tensor, adjoint: bool, refine: int | None) -> Tensor:
        if refine is None:
            refine = 0 if self._factors.is_stable else 1
        with grad_mode(False):
            a = self._a.H if adjoint else self._a
            x = self._substitute(b, adjoint)
            for _ in range(refine):
                x = x + self._substitute(b - a @ x, adjoint)
            return x

    def _solution(
        self, values: Tensor, b: Tensor, adjoint: bool = False, refine: int | None = None
    ) -> Tensor:
        """Of columns, with derivatives by the values and the right-hand side."""

        def equation(values: Tensor, b: Tensor, x: Tensor) -> Tensor:
            a = SparseTensor(self._a.structure, values)
            return b - (a.H if adjoint else a) @ x

        def again(values: Tensor, b: Tensor, back: bool) -> Tensor:
            return self._solution(values, b, adjoint != back, refine)

        return implicitly(self._refined(b, adjoint, refine), values, b, equation, again)

    def solve(self, b: Any, adjoint: bool = False, refine: int | None = None) -> Tensor:
        """The solution of A x = b, or of Aᴴ x = b; differentiable by b.

        Args:
            b: a vector, or a matrix of several right-hand sides.
            adjoint: solve with the conjugate transpose.
            refine: steps of iterative refinement; where it is None, one if elements grew in the
                factorisation.
        """
        _, right, vector = square_system(f"{self._op}.solve", self._a, b)
        x = self._solution(self._a.values.astype(right.dtype), right, adjoint, refine)
        return x[:, 0] if vector else x

    def refactorise(self, values: Any) -> SparseLU:
        """The factorisation of other values on the same structure: without ordering and symbolic
        phase.

        Args:
            values: a tensor of them, or a sparse matrix of the same structure.

        >>> import numus as nm
        >>> from numus.sparse.linalg import splu
        >>> lu = splu(nm.sparse.diags([2.0, 4.0], format="csr"))
        >>> lu.refactorise(nm.asarray([1.0, 8.0])).solve(nm.ones(2)).tolist()
        [1.0, 0.125]
        """
        op = f"{self._op}.refactorise"
        if isinstance(values, SparseTensor):
            if values.structure != self._a.structure:
                raise ShapeError(f"{op}: the structure is another: factorise it by {self._op}")
            values = values.values
        a = self._a.with_values(values)
        symmetric = self._options["symmetric"]
        found = repeated(
            *(self._factors, _host(op, a), self._options["equilibrate"], symmetric, op)
        )
        return SparseLU(a, found, self._op, self._options)

    def condition(self) -> float:
        """An estimate from below of the condition number in the 1-norm, rarely far from it (Hager
        1984, Higham 1988): a few solutions.

        >>> import numus as nm
        >>> from numus.sparse.linalg import splu
        >>> splu(nm.sparse.diags([2.0, 4.0], format="csr")).condition()
        2.0
        """
        n = self.shape[0]
        if n == 0:
            return 0.0
        size = float(nm.max(abs(self._a).sum(0)))
        return size * _inverse_norm(n, lambda x, back: self._refined(x, back, 0), self._a)


def _inverse_norm(n: int, solve: Callable[[Tensor, bool], Tensor], like: SparseTensor) -> float:
    """An estimate of the 1-norm of the inverse."""

    def tensor(x: Array) -> Tensor:
        return nm.asarray(x[:, None], dtype=like.dtype, device=like.device)

    x, best = np.full(n, 1.0 / n), 0.0
    for _ in range(5):
        y = solve(tensor(x), False).numpy()[:, 0]
        total = float(np.abs(y).sum())
        if not total > best:
            break
        best = total
        sign = np.where(y == 0, 1.0, y / np.where(y == 0, 1.0, np.abs(y)))
        z = solve(tensor(sign), True).numpy()[:, 0]
        at = int(np.argmax(np.abs(z)))
        if np.abs(z[at]) <= np.real(np.vdot(z, x)):
            break
        x = np.zeros(n)
        x[at] = 1.0
    other = np.where(np.arange(n) % 2, -1.0, 1.0) * (1 + np.arange(n) / max(n - 1, 1))
    y = solve(tensor(other), False).numpy()[:, 0]
    return max(best, 2 * float(np.abs(y).sum()) / (3 * n))


def _square(op: str, a: Any) -> SparseTensor:
    found, _, _ = square_system(op, a, nm.zeros((a.shape[0],) if hasattr(a, "shape") else ()))
    return found


def splu(
    a: SparseTensor, *, ordering: str = "auto", pivot_threshold: float = 1.0,
    equilibrate: bool = True,
) -> SparseLU:  # fmt: skip
    """The LU factorisation of a sparse matrix.

    Matrices of a nearly symmetric pattern are ordered by minimum degree and factorised by fronts,
    with pivots from the diagonal blocks; others, and those where such pivots are too small, column
    by column with partial pivoting.

    Args:
        a: a square sparse matrix; its values must be known.
        ordering: "amd" (minimum degree on A + Aᵀ), "dissection" (nested dissection of it),
            "columns" (minimum degree on AᵀA), "natural", or "auto".
        pivot_threshold: in columns, the share of the largest element that suffices for the diagonal
            one to be the pivot.
        equilibrate: scale rows and columns by powers of two first.

    >>> import numus as nm
    >>> from numus.sparse.linalg import splu
    >>> a = nm.sparse.from_dense(nm.asarray([[0.0, 2.0], [4.0, 1.0]]))
    >>> splu(a).solve(nm.asarray([2.0, 9.0])).tolist()
    [2.0, 1.0]
    """
    op = "splu"
    if ordering not in ORDERINGS:
        raise ValueError(f"{op}: the ordering {ordering!r} must be one of {ORDERINGS}")
    if not 0 < pivot_threshold <= 1:
        raise ValueError(f"{op}: pivot_threshold={pivot_threshold} is not above 0 and at most 1")
    a = _square(op, a)
    found = factorised(_host(op, a), ordering, pivot_threshold, equilibrate, op)
    return SparseLU(a, found, op, {"symmetric": False, "equilibrate": equilibrate})


def cholesky(a: SparseTensor, *, ordering: str = "amd") -> SparseLU:
    """The Cholesky factorisation of a Hermitian positive definite sparse matrix, as A = Uᴴ D U; its
    upper triangle is read. Half the work of `splu`.

    Args:
        a: a square sparse matrix; its values must be known.
        ordering: "amd" (minimum degree), "dissection" (nested) or "natural".

    >>> import numus as nm
    >>> from numus.sparse.linalg import cholesky
    >>> a = nm.sparse.from_dense(nm.asarray([[4.0, 2.0], [2.0, 5.0]]))
    >>> cholesky(a).solve(nm.asarray([8.0, 12.0])).tolist()
    [1.0, 2.0]
    """
    op = "cholesky"
    if ordering not in ("amd", "dissection", "natural"):
        raise ValueError(f"{op}: the ordering {ordering!r} must be one of amd, dissection, natural")
    a = _square(op, a)
    options = {"symmetric": True, "equilibrate": True}
    return SparseLU(a, cholesky_factors(_host(op, a), ordering, op), op, options)


def spsolve(a: SparseTensor, b: Any, *, ordering: str = "auto") -> Tensor:
    """The solution of a sparse system by LU factorisation.

    Differentiable by the values of the matrix and by the right-hand side, in both modes, by
    solutions of the same and of the adjoint system with the same factors.

    Args:
        a: a square sparse matrix; its values must be known.
        b: a vector, or a matrix of several right-hand sides.
        ordering: see `splu`.

    >>> import numus as nm
    >>> from numus.sparse.linalg import spsolve
    >>> a = nm.sparse.diags([[4.0, 4.0], 1.0], [0, 1], (2, 2), format="csr")
    >>> spsolve(a, nm.asarray([5.0, 4.0])).tolist()
    [1.0, 1.0]
    """
    op = "spsolve"
    a, right, vector = square_system(op, a, b)
    found = factorised(_host(op, a), ordering, 1.0, True, op)
    lu = SparseLU(a, found, op, {"symmetric": False, "equilibrate": True})
    x = lu._solution(a.values, right)
    return x[:, 0] if vector else x
