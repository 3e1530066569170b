"""Solvers of linear systems with sparse matrices and operators (docs/sparse.md)."""

from numus.sparse.linalg.direct.lu import SparseLU, cholesky, splu, spsolve
from numus.sparse.linalg.direct.qr import SparseQR, lstsq, qr
from numus.sparse.linalg.direct.triangular import spsolve_triangular
from numus.sparse.linalg.eigen.krylov_schur import eigs, eigsh
from numus.sparse.linalg.eigen.lobpcg import lobpcg
from numus.sparse.linalg.eigen.singular import svds
from numus.sparse.linalg.iterative.driver import SolveResult
from numus.sparse.linalg.iterative.gmres import fgmres, gmres, lgmres
from numus.sparse.linalg.iterative.krylov import bicgstab, cg, cgs, minres, qmr, tfqmr
from numus.sparse.linalg.iterative.least_squares import lsmr, lsqr
from numus.sparse.linalg.iterative.stationary import chebyshev, gauss_seidel, jacobi, sor
from numus.sparse.linalg.operators import (
    LinearOperator,
    block_jacobi_preconditioner,
    jacobi_preconditioner,
)
from numus.sparse.linalg.preconditioners.classical import ruge_stuben
from numus.sparse.linalg.preconditioners.incomplete import (
    ic_preconditioner,
    ilu_preconditioner,
    ilut_preconditioner,
    ssor_preconditioner,
)
from numus.sparse.linalg.preconditioners.multigrid import Multigrid, smoothed_aggregation
from numus.sparse.linalg.preconditioners.spai import spai_preconditioner

__all__ = [
    "LinearOperator", "Multigrid", "SolveResult", "SparseLU", "SparseQR", "bicgstab",
    "block_jacobi_preconditioner", "cg", "cgs", "chebyshev", "cholesky", "eigs", "eigsh", "fgmres",
    "gauss_seidel", "gmres", "ic_preconditioner", "ilu_preconditioner", "ilut_preconditioner",
    "jacobi", "jacobi_preconditioner", "lgmres", "lobpcg", "lsmr", "lsqr", "lstsq", "minres", "qmr",
    "qr", "ruge_stuben", "smoothed_aggregation", "sor", "spai_preconditioner", "splu", "spsolve",
    "spsolve_triangular", "ssor_preconditioner", "svds", "tfqmr",
]  # fmt: skip
