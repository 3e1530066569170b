"""Solvers of linear systems with sparse matrices and operators (docs/sparse.md)."""

from numus.sparse.linalg.classical import ruge_stuben
from numus.sparse.linalg.direct import SparseLU, cholesky, splu, spsolve
from numus.sparse.linalg.driver import SolveResult
from numus.sparse.linalg.eigen import eigs, eigsh
from numus.sparse.linalg.gmres import fgmres, gmres, lgmres
from numus.sparse.linalg.incomplete import (
    ic_preconditioner,
    ilu_preconditioner,
    ilut_preconditioner,
    ssor_preconditioner,
)
from numus.sparse.linalg.krylov import bicgstab, cg, cgs, minres, qmr, tfqmr
from numus.sparse.linalg.least_squares import lsmr, lsqr
from numus.sparse.linalg.lobpcg import lobpcg
from numus.sparse.linalg.multigrid import Multigrid, smoothed_aggregation
from numus.sparse.linalg.operators import (
    LinearOperator,
    block_jacobi_preconditioner,
    jacobi_preconditioner,
)
from numus.sparse.linalg.qr import SparseQR, lstsq, qr
from numus.sparse.linalg.singular import svds
from numus.sparse.linalg.spai import spai_preconditioner
from numus.sparse.linalg.stationary import chebyshev, gauss_seidel, jacobi, sor
from numus.sparse.linalg.triangular import spsolve_triangular

__all__ = [
    "LinearOperator", "Multigrid", "SolveResult", "SparseLU", "SparseQR", "bicgstab",
    "block_jacobi_preconditioner", "cg", "cgs", "chebyshev", "cholesky", "eigs", "eigsh", "fgmres",
    "gauss_seidel", "gmres", "ic_preconditioner", "ilu_preconditioner", "ilut_preconditioner",
    "jacobi", "jacobi_preconditioner", "lgmres", "lobpcg", "lsmr", "lsqr", "lstsq", "minres", "qmr",
    "qr", "ruge_stuben", "smoothed_aggregation", "sor", "spai_preconditioner", "splu", "spsolve",
    "spsolve_triangular", "ssor_preconditioner", "svds", "tfqmr",
]  # fmt: skip
