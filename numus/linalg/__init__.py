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
from numus.linalg.products import (
    cross,
    diagonal,
    khatri_rao,
    multi_dot,
    semiring_matmul,
    trace,
    vdot,
)

__all__ = [
    "block_diag", "circulant", "companion", "cross", "diagonal", "hankel", "hilbert", "khatri_rao",
    "kron", "matmul", "matrix_transpose", "multi_dot", "outer", "semiring_matmul", "tensordot",
    "toeplitz", "trace", "vander", "vdot", "vecdot", "vector_norm",
]  # fmt: skip
