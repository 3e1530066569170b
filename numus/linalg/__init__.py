"""Linear algebra over the last two axes; leading axes are a batch (docs/linalg.md)."""

from numus.errors import LinAlgError
from numus.functions.linear.matmul import kron, matmul, tensordot, vecdot
from numus.functions.reduction.reductions import vector_norm
from numus.functions.shape.manipulation import matrix_transpose
from numus.linalg.banded import solve_banded
from numus.linalg.builders import (
    block_diag,
    circulant,
    companion,
    hankel,
    hilbert,
    toeplitz,
    vander,
)
from numus.linalg.decompositions import cp, tensor_train, tucker
from numus.linalg.determinant import det, slogdet
from numus.linalg.factor.cholesky import cho_solve, cholesky, cholesky_ex
from numus.linalg.factor.eigh import eigh, eigh_ex, eigvalsh
from numus.linalg.factor.ldl import ldl, ldl_ex
from numus.linalg.factor.lu import (
    inv,
    inv_ex,
    lu,
    lu_factor,
    lu_factor_ex,
    lu_solve,
    solve,
    solve_ex,
)
from numus.linalg.factor.qr import qr
from numus.linalg.factor.svd import svd, svd_ex, svdvals
from numus.linalg.factor.triangular import solve_triangular
from numus.linalg.functions import expm, matrix_power
from numus.linalg.general.eig import eig, eig_ex, eigvals
from numus.linalg.general.polar import polar
from numus.linalg.general.primary import (
    cosm,
    fractional_matrix_power,
    logm,
    signm,
    sinm,
    sqrtm,
)
from numus.linalg.general.qz import qz
from numus.linalg.general.schur import hessenberg, schur, schur_ex
from numus.linalg.general.sylvester import solve_discrete_lyapunov, solve_lyapunov, solve_sylvester
from numus.linalg.least_squares import (
    cond,
    lstsq,
    matrix_rank,
    pinv,
)
from numus.linalg.lowrank import id, pca_lowrank, svd_lowrank
from numus.linalg.norms import matrix_norm, norm
from numus.linalg.products import (
    cross,
    diagonal,
    khatri_rao,
    multi_dot,
    outer,
    semiring_matmul,
    trace,
    vdot,
)
from numus.linalg.structured import solve_toeplitz, tensorinv, tensorsolve
from numus.linalg.subspaces import householder_product, null_space, orth

__all__ = [
    "LinAlgError", "block_diag", "cho_solve", "cholesky", "cholesky_ex", "circulant", "companion",
    "cond", "cosm", "cp", "cross", "det", "diagonal", "eig", "eig_ex", "eigh", "eigh_ex", "eigvals",
    "eigvalsh", "expm", "fractional_matrix_power", "hankel", "hessenberg", "hilbert",
    "householder_product", "id", "inv", "inv_ex", "khatri_rao", "kron", "ldl", "ldl_ex", "logm",
    "lstsq", "lu", "lu_factor", "lu_factor_ex", "lu_solve", "matmul", "matrix_norm", "matrix_power",
    "matrix_rank", "matrix_transpose", "multi_dot", "norm", "null_space", "orth", "outer",
    "pca_lowrank", "pinv", "polar", "qr", "qz", "schur", "schur_ex", "semiring_matmul", "signm",
    "sinm", "slogdet", "solve", "solve_banded", "solve_discrete_lyapunov", "solve_ex",
    "solve_lyapunov", "solve_sylvester", "solve_toeplitz", "solve_triangular", "sqrtm", "svd",
    "svd_ex", "svd_lowrank", "svdvals", "tensor_train", "tensordot", "tensorinv", "tensorsolve",
    "toeplitz", "trace", "tucker", "vander", "vdot", "vecdot", "vector_norm",
]  # fmt: skip
