"""Linear algebra over the last two axes; leading axes are a batch (docs/linalg.md)."""

from numus.functions.linear.matmul import kron, matmul, outer, tensordot, vecdot
from numus.functions.reduction.reductions import vector_norm
from numus.functions.shape.manipulation import matrix_transpose
from numus.linalg.builders import (
    block_diag,
    circulant,
    companion,
    hankel,
    hilbert,
    toeplitz,
    vander,
)
from numus.linalg.cholesky import cho_solve, cholesky, cholesky_ex
from numus.linalg.lu import (
    det,
    inv,
    inv_ex,
    lu,
    lu_factor,
    lu_solve,
    slogdet,
    solve,
    solve_ex,
)
from numus.linalg.products import (
    cross,
    diagonal,
    khatri_rao,
    multi_dot,
    semiring_matmul,
    trace,
    vdot,
)
from numus.linalg.triangular import solve_triangular

__all__ = [
    "block_diag",
    "cho_solve",
    "cholesky",
    "cholesky_ex",
    "circulant",
    "companion",
    "cross",
    "det",
    "diagonal",
    "hankel",
    "hilbert",
    "inv",
    "inv_ex",
    "khatri_rao",
    "kron",
    "lu",
    "lu_factor",
    "lu_solve",
    "matmul",
    "matrix_transpose",
    "multi_dot",
    "outer",
    "semiring_matmul",
    "slogdet",
    "solve",
    "solve_ex",
    "solve_triangular",
    "tensordot",
    "toeplitz",
    "trace",
    "vander",
    "vdot",
    "vecdot",
    "vector_norm",
]  # fmt: skip
