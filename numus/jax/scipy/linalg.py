"""`jax.scipy.linalg`: names of `nm.linalg`."""

from __future__ import annotations

from typing import Any

from numus import linalg
from numus.jax._adapt import forwarder, to_tensor
from numus.tensor import Tensor

_NAMES = """
    block_diag cho_solve det eigh expm funm hessenberg hilbert inv lu lu_factor lu_solve polar
    qr schur solve sqrtm svd toeplitz
"""

__getattr__, __dir__ = forwarder(__name__, _NAMES.split(), lambda name: getattr(linalg, name), {})


def cholesky(a: Any, lower: bool = False, **hints: Any) -> Tensor:
    """The Cholesky factor, the upper one by default."""
    return linalg.cholesky(to_tensor(a), upper=not lower)


def cho_factor(a: Any, lower: bool = False, **hints: Any) -> tuple[Tensor, bool]:
    """What `cho_solve` takes."""
    return cholesky(a, lower), lower


def solve_triangular(
    a: Any, b: Any, trans: Any = 0, lower: bool = False, unit_diagonal: bool = False, **hints: Any
) -> Tensor:
    """The solution of a triangular system."""
    return linalg.solve_triangular(
        to_tensor(a), to_tensor(b), trans=trans, lower=lower, unit_diagonal=unit_diagonal
    )
