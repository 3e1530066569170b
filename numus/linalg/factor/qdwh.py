"""Polar decomposition by dynamically weighted Halley iterations (QDWH; Nakatsukasa, Bai & Gygi
2010), and singular values by it and a Hermitian eigenproblem (Nakatsukasa & Higham 2013): products
and Cholesky factorisations, for GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from numus.functions.creation.dtype_functions import finfo
from numus.functions.elementwise.arithmetic import minimum
from numus.functions.elementwise.comparison import where
from numus.functions.reduction.reductions import max as maximum_of
from numus.functions.shape.concatenation import concat
from numus.linalg._base import adjoint, identity
from numus.linalg.factor import blocked
from numus.tensor import Tensor

MAX_CHOLESKY_WEIGHT = 100.0  # above, the matrix of the normal equations is ill-conditioned


def _weights(least: float, eps: float) -> Iterator[tuple[float, float, float]]:
    """a, b, c of each iteration x (a + b x²) / (1 + c x²), by a lower bound of singular values."""
    while abs(1 - least) > eps:
        square = least * least
        root = math.sqrt(1 + (4 * (1 - square) / square**2) ** (1 / 3))
        a = root + math.sqrt(8 - 4 * (root**2 - 1) + 8 * (2 - square) / (square * root)) / 2
        b = (a - 1) ** 2 / 4
        c = a + b - 1
        yield a, b, c
        least = min(least * (a + b * square) / (1 + c * square), 1.0)


def unitary_factor(a: Tensor) -> Tensor:
    """U (batch, m, n) with a = U H, m >= n; where a singular value is as good as zero, that of U is
    below 1."""
    size = abs(a)
    frobenius = (size * size).sum(axis=(-2, -1), keepdims=True).sqrt()
    rows = maximum_of(size.sum(axis=-1, keepdims=True), axis=-2, keepdims=True)
    columns = maximum_of(size.sum(axis=-2, keepdims=True), axis=-1, keepdims=True)
    bound = minimum(frobenius, rows.sqrt() * columns.sqrt())
    x = a / where(bound == 0, 1.0, bound)
    eps = float(finfo(size.dtype).eps)
    for a_, b, c in _weights(eps, 4 * eps):
        halley = _by_cholesky if c <= MAX_CHOLESKY_WEIGHT else _by_orthonormal_rows
        x = (b / c) * x + (a_ - b / c) * halley(x, c)
    return x


def _by_cholesky(x: Tensor, c: float) -> Tensor:
    """x (1 + c xᴴ x)⁻¹."""
    lower = blocked.cholesky(identity(x.shape[-1], x) + c * (adjoint(x) @ x))
    found = blocked.solve_lower(lower, adjoint(x))
    return adjoint(blocked.solve_upper(adjoint(lower), found))


def _by_orthonormal_rows(x: Tensor, c: float) -> Tensor:
    """As `_by_cholesky`, by an orthonormal basis of the rows of (√c xᴴ, 1): shifted Cholesky QR,
    then two without a shift (Fukaya et al. 2020)."""
    m, n = x.shape[-2:]
    one = identity(n, x)
    rows = concat([math.sqrt(c) * adjoint(x), one], axis=-1)
    shift = 4 * n * float(finfo(abs(x).dtype).eps) * c
    for more in (shift, 0.0, 0.0):
        gram = rows @ adjoint(rows)
        rows = blocked.solve_lower(blocked.cholesky(gram + more * one if more else gram), rows)
    return adjoint(rows[..., :m]) @ rows[..., m:] / math.sqrt(c)
