"""`jax.numpy.linalg`."""

from __future__ import annotations

from typing import Any

from numus import linalg
from numus.jax._adapt import forwarder, to_tensor

_NAMES = """
    cholesky cond cross det diagonal eig eigh eigvals eigvalsh inv lstsq matmul matrix_norm
    matrix_power matrix_rank matrix_transpose multi_dot norm outer pinv qr slogdet solve svdvals
    tensordot tensorinv tensorsolve trace vecdot vector_norm
"""

__getattr__, __dir__ = forwarder(
    __name__, _NAMES.split(), lambda name: getattr(linalg, name), {"pinv": {"rcond": "rtol"}}
)


def svd(
    a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> Any:
    """Singular values, with or without their vectors."""
    x = to_tensor(a)
    return linalg.svd(x, full_matrices=full_matrices) if compute_uv else linalg.svdvals(x)
