"""Linear algebra as methods of Tensor, under PyTorch's names."""

from __future__ import annotations

from numus.functions._base import method
from numus.functions.api import where
from numus.linalg import (
    cholesky,
    det,
    expm,
    inv,
    lstsq,
    lu_solve,
    matrix_power,
    pinv,
    qr,
    slogdet,
    svd,
    vdot,
)
from numus.tensor import ArrayLike, Tensor

__all__ = ["logdet"]

for _function in (cholesky, det, lstsq, lu_solve, matrix_power, qr, slogdet, svd, vdot):
    method(_function.__name__)(_function)
method("inverse")(inv)
method("pinverse")(pinv)
method("matrix_exp")(expm)


@method()
def logdet(x: ArrayLike, /) -> Tensor:
    """The logarithm of the determinant; NaN where it is negative.

    >>> nm.logdet(nm.eye(2)).item()
    0.0
    """
    sign, size = slogdet(x)
    return where(sign < 0, float("nan"), size)
