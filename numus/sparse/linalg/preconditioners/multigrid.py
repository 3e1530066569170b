"""Algebraic multigrid: cycles, and smoothed aggregation (Vaněk, Mandel & Brezina 1996).

The hierarchy is made once, on the CPU; a cycle is products and triangular solutions, on every
device and in traces, so that it is a preconditioner of all solvers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import numus as nm
from numus.errors import LinAlgError
from numus.evaluation.evaluate import is_known
from numus.graph import grad_mode
from numus.sparse import parts
from numus.sparse.algorithms.aggregation import aggregate
from numus.sparse.linalg.direct.triangular import square_system
from numus.sparse.linalg.operators import LinearOperator
from numus.sparse.linalg.preconditioners.incomplete import ssor_preconditioner
from numus.sparse.pattern import Array, Pattern, index_dtype
from numus.sparse.structure import CSR
from numus.sparse.tensor import SparseTensor
from numus.tensor import Tensor

CYCLES = ("V", "W", "F")
_TURNS = {"V": "V", "W": "WW", "F": "FV"}  # cycles of the next level, one after the other
_DAMPING = 4.0 / 3.0  # of the smoothed prolongation, over the spectral radius
_RADIUS_STEPS = 15


class Multigrid:
    """A hierarchy of matrices, prolongations and smoothers (see `smoothed_aggregation` and
    `ruge_stuben`).

    Attributes:
        levels: the matrices, from the finest on.
        cycle: "V", "W" or "F".

    >>> import numus as nm
    >>> from numus.sparse.linalg import cg, smoothed_aggregation
    >>> line = nm.sparse.diags([2.0, -1.0, -1.0], [0, 1, -1], (50, 50), format="csr")
    >>> amg = smoothed_aggregation(line, coarsest=10)
    >>> len(amg.levels), cg(line, nm.ones(50), M=amg.preconditioner()).converged
    (3, True)
    """

    def __init__(
        self, levels: list[SparseTensor], prolongations: list[SparseTensor], cycle: str
    ) -> None:
        self.levels, self.cycle = levels, cycle
        smoothers = [ssor_preconditioner(a) for a in levels[:-1]]
        last = levels[-1]
        dense = last.numpy().astype(np.complex128 if last.dtype.is_complex else np.float64)
        self._symmetric = bool(np.allclose(dense, dense.conj().T, rtol=1e-6, atol=0.0))
        inverse = np.linalg.pinv(dense, hermitian=self._symmetric)
        coarse = nm.asarray(inverse, dtype=last.dtype, device=last.device)
        self._smooth = [(s.matvec, s.rmatvec) for s in smoothers]
        self._parameters: Any = (
            levels[:-1],
            prolongations,
            [p.H.to_csr() for p in prolongations],
            [s.parameters for s in smoothers],
            coarse,
        )

    @property
    def operator_complexity(self) -> float:
        """Entries of all matrices, against those of the finest."""
        return sum(a.nnz for a in self.levels) / max(1, self.levels[0].nnz)

    def __repr__(self) -> str:
        sizes = ", ".join(str(a.shape[0]) for a in self.levels)
        return f"Multigrid({self.cycle}-cycle, rows of levels: {sizes})"

    def _run(self, p: Any, level: int, b: Tensor, cycle: str, adjoint: bool) -> Tensor:
        """An approximate solution of a level, from zero; its adjoint takes the same way back."""
        matrices, up, down, smoothers, coarse = p
        if level == len(matrices):
            found: Tensor = (nm.conj(coarse.mT) if adjoint else coarse) @ b
            return found
        a = matrices[level].H if adjoint else matrices[level]
        sweep: Any = self._smooth[level][adjoint]

        def smoothed(x: Tensor | None) -> Tensor:
            r = b if x is None else b - a @ x
            change: Tensor = sweep(smoothers[level], r)
            return change if x is None else x + change

        x = smoothed(None)
        exact = level + 1 == len(matrices)  # the next is: once is enough
        turns = _TURNS[cycle][:: -1 if adjoint else 1]
        for turn in turns[: 1 if exact else 2]:
            r = down[level] @ (b - a @ x)
            x = x + up[level] @ self._run(p, level + 1, r, turn, adjoint)
        return smoothed(x)

    def preconditioner(self) -> LinearOperator:
        """A cycle, as an approximation of the inverse."""
        n = self.levels[0].shape[0]

        def apply(p: Any, b: Tensor) -> Tensor:
            return self._run(p, 0, b, self.cycle, False)

        def adjoint(p: Any, b: Tensor) -> Tensor:
            return self._run(p, 0, b, self.cycle, True)

        same = self._symmetric and self.cycle != "F"
        dtype = self.levels[0].dtype
        return LinearOperator((n, n), apply, apply if same else adjoint, self._parameters, dtype)


def finest_level(op: str, a: SparseTensor, cycle: str) -> SparseTensor:
    """The matrix as the first of a hierarchy, by rows; errors of what cannot be."""
    if cycle not in CYCLES:
        raise ValueError(f"{op}: cycle={cycle!r} must be one of {CYCLES}")
    a, _, _ = square_system(op, a, nm.zeros((a.shape[0],) if hasattr(a, "shape") else ()))
    a = a.map(nm.detach).to_csr().sum_duplicates()
    if not is_known(a.values._node):
        raise LinAlgError(f"{op}: the values of the matrix must be known: make it outside a trace")
    if not bool(nm.all(nm.isfinite(a.values))):
        raise LinAlgError(f"{op}: the matrix has elements that are infinite or not a number")
    return a


def _strong(a: SparseTensor, theta: float) -> tuple[Array, Array]:
    """Entries of at least theta √(a_ii a_jj), and the diagonal, by rows."""
    pattern, values = parts.canonical(a.structure, a.values)
    row = pattern.rows.array
    column, size = pattern.indices.array, np.abs(values.numpy()).astype(np.float64)
    diagonal = np.zeros(a.shape[0])
    on = row == column
    diagonal[row[on]] = size[on]
    keep = on | ((size > 0) & (size * size >= theta * theta * diagonal[row] * diagonal[column]))
    pointers = np.zeros(a.shape[0] + 1, np.int64)
    np.cumsum(np.bincount(row[keep], minlength=a.shape[0]), out=pointers[1:])
    return pointers, column[keep].astype(np.int64)


def _tentative(
    number: Array, count: int, candidate: Array, like: SparseTensor
) -> tuple[SparseTensor, Array]:
    """The candidate cut into aggregates, each of norm 1; and the norms, the coarse candidate."""
    n = number.size
    inside = number >= 0
    squares = np.abs(candidate[inside]) ** 2
    norms = np.sqrt(np.bincount(number[inside], squares, minlength=count))
    dtype = index_dtype(n, count)
    pointers = np.zeros(n + 1, dtype)
    np.cumsum(inside, out=pointers[1:])
    columns = number[inside]
    values = candidate[inside] / norms[columns]
    made = Pattern((n, count), pointers, columns.astype(dtype))
    made.__dict__["is_canonical"] = True
    tensor = nm.asarray(values, dtype=like.dtype, device=like.device)
    return SparseTensor(CSR(made), tensor), norms


def _radius(a: SparseTensor, scale: Tensor) -> float:
    """An estimate of the spectral radius of S A S, by Lanczos' method."""
    n = a.shape[0]
    first = np.random.default_rng(0).standard_normal(n)
    v = nm.asarray(first, dtype=a.dtype, device=a.device)
    v, before, beta = v / nm.linalg.norm(v), nm.zeros_like(v), 0.0
    diagonal, off = [], []
    for _ in range(min(n, _RADIUS_STEPS)):
        w = scale * (a @ (scale * v)) - beta * before
        alpha = float(nm.real(nm.sum(nm.conj(v) * w)))
        w = w - alpha * v
        beta = float(nm.linalg.norm(w))
        diagonal.append(alpha)
        off.append(beta)
        if beta <= 1e-10 * abs(alpha):
            break
        v, before = w / beta, v
    small = np.diag(diagonal) + np.diag(off[:-1], 1) + np.diag(off[:-1], -1)
    return float(np.abs(np.linalg.eigvalsh(small)).max())


def smoothed_aggregation(
    a: SparseTensor, *, theta: float = 0.0, coarsest: int = 100, max_levels: int = 20,
    cycle: str = "V", candidate: Any = None,
) -> Multigrid:  # fmt: skip
    """The multigrid hierarchy of a symmetric or Hermitian positive definite matrix.

    Smoothers are sweeps of symmetric Gauss–Seidel, one before and one after; the coarsest matrix is
    inverted.

    Args:
        a: a symmetric or Hermitian sparse matrix that is known.
        theta: entries below theta √(a_ii a_jj) are weak: aggregates do not follow them.
        coarsest: rows of a matrix that is inverted.
        max_levels: the most matrices.
        cycle: "V", "W" or "F".
        candidate: a vector that the coarse spaces hold; ones where it is None.

    >>> import numus as nm
    >>> from numus.sparse.linalg import smoothed_aggregation
    >>> line = nm.sparse.diags([2.0, -1.0, -1.0], [0, 1, -1], (90, 90), format="csr")
    >>> smoothed_aggregation(line, coarsest=10)
    Multigrid(V-cycle, rows of levels: 90, 30, 10)
    """
    op = "smoothed_aggregation"
    a = finest_level(op, a, cycle)
    vector: np.ndarray[Any, Any] = np.ones(a.shape[0])
    if candidate is not None:
        kind = np.complex128 if a.dtype.is_complex else np.float64
        vector = np.asarray(nm.asarray(candidate).numpy(), kind).reshape(a.shape[0])
    levels, prolongations = [a], []
    with grad_mode(False):
        while levels[-1].shape[0] > coarsest and len(levels) < max_levels:
            fine = levels[-1]
            number = np.empty(fine.shape[0], np.int64)
            count = aggregate(fine.shape[0], *_strong(fine, theta), number)
            if not 0 < count < fine.shape[0]:
                break
            tentative, vector = _tentative(number, count, vector, fine)
            diagonal = nm.real(fine.diagonal())
            if not bool(nm.all(diagonal > 0)):
                raise LinAlgError(f"{op}: the diagonal of level {len(levels) - 1} is not positive")
            step = _DAMPING / max(_radius(fine, nm.sqrt(1 / diagonal)), 1e-300)
            prolongation = tentative - (fine * (step / diagonal)[:, None]) @ tentative
            prolongations.append(prolongation)
            levels.append(prolongation.H.to_csr() @ (fine @ prolongation))
        return Multigrid(levels, prolongations, cycle)
