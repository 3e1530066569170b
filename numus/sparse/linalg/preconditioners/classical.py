"""Classical algebraic multigrid (Ruge & Stüben 1987): coarse spaces are some of the points."""

from __future__ import annotations

import numpy as np

import numus as nm
from numus.errors import LinAlgError
from numus.graph import grad_mode
from numus.shapes import as_int
from numus.sparse import parts
from numus.sparse.algorithms.coarsening import FINE, splitting, strong_couplings
from numus.sparse.algorithms.interpolation import INTERPOLATIONS, interpolation_weights
from numus.sparse.linalg.preconditioners.multigrid import Multigrid, finest_level
from numus.sparse.pattern import Array, Pattern, index_dtype
from numus.sparse.structure import CSR
from numus.sparse.tensor import SparseTensor
from numus.sparse.triangles import triangle_of


def _prolongation(
    a: SparseTensor, theta: float, second_pass: bool, interpolation: str, where: str
) -> SparseTensor | None:
    """None where no point is coarse, or all are."""
    pattern, given = parts.canonical(a.structure, a.values)
    n, dtype = a.shape[0], np.complex128 if a.dtype.is_complex else np.float64
    values = given.numpy().astype(dtype)
    pointers = pattern.pointers.array.astype(np.int64)
    indices = pattern.indices.array.astype(np.int32, copy=False)
    _, _, on = triangle_of(pattern, False)
    pivots: Array = np.where(on < 0, values.dtype.type(0), values[on])
    if (pivots == 0).any():
        raise LinAlgError(f"{where} has a zero at row {int(np.argmax(pivots == 0))}")
    strong = strong_couplings(pointers, indices, values, theta)
    swapped, order = pattern.transposed
    kind = splitting(pointers, indices, strong, swapped, order.array, second_pass)
    count = int((kind != FINE).sum())
    if not 0 < count < n:
        return None
    starts, columns, weights = interpolation_weights(
        *(pointers, indices, values, pivots, strong, kind, interpolation)
    )
    kinds = index_dtype(n, columns.size)
    made = Pattern((n, count), starts.astype(kinds), columns.astype(kinds, copy=False))
    made.__dict__["is_canonical"] = True
    return SparseTensor(CSR(made), nm.asarray(weights, dtype=a.dtype, device=a.device))


def ruge_stuben(
    a: SparseTensor, *, theta: float = 0.25, second_pass: bool = False,
    interpolation: str = "classical", coarsest: int = 10, max_levels: int = 30, cycle: str = "V",
) -> Multigrid:  # fmt: skip
    """The classical multigrid hierarchy of a matrix whose couplings are mostly of one sign.

    Rows are split into coarse points and fine ones, which are interpolated from the coarse points
    that they strongly depend on. Smoothers are sweeps of symmetric Gauss–Seidel, one before and one
    after; the coarsest matrix is inverted.

    Args:
        a: a square sparse matrix that is known, real or complex, Hermitian or not.
        theta: couplings below theta times the largest of their row are weak.
        second_pass: make more points coarse, until fine points that strongly depend on each other
            share a coarse one.
        interpolation: "classical" (strong fine neighbours by the coarse points shared with them),
            "direct" (coarse neighbours alone), or "standard" (strong fine neighbours eliminated, so
            that coarse points behind them count too).
        coarsest: rows of a matrix that is inverted.
        max_levels: the most matrices.
        cycle: "V", "W" or "F".

    >>> import numus as nm
    >>> from numus.sparse.linalg import cg, ruge_stuben
    >>> line = nm.sparse.diags([2.0, -1.0, -1.0], [0, 1, -1], (80, 80), format="csr")
    >>> amg = ruge_stuben(line)
    >>> amg
    Multigrid(V-cycle, rows of levels: 80, 40, 20, 10)
    >>> cg(line, nm.ones(80), M=amg.preconditioner()).converged
    True
    """
    op = "ruge_stuben"
    if interpolation not in INTERPOLATIONS:
        raise ValueError(f"{op}: interpolation={interpolation!r} must be one of {INTERPOLATIONS}")
    if not 0 <= theta <= 1:
        raise ValueError(f"{op}: theta={theta} is not between 0 and 1")
    coarsest, max_levels = (
        as_int(x, name, op) for x, name in ((coarsest, "coarsest"), (max_levels, "max_levels"))
    )
    levels, prolongations = [finest_level(op, a, cycle)], []
    with grad_mode(False):
        while levels[-1].shape[0] > coarsest and len(levels) < max_levels:
            fine = levels[-1]
            where = f"{op}: the diagonal of level {len(levels) - 1}"
            up = _prolongation(fine, theta, second_pass, interpolation, where)
            if up is None:
                break
            prolongations.append(up)
            levels.append(up.H.to_csr() @ (fine @ up))
        return Multigrid(levels, prolongations, cycle)
