"""Polar decomposition by dynamically weighted Halley iterations (QDWH; Nakatsukasa, Bai & Gygi
2010), and singular values by it and a Hermitian eigenproblem (Nakatsukasa & Higham 2013): products
and Cholesky factorisations, for GPUs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from numus.functions.creation.conversion import asarray
from numus.functions.creation.creation import arange
from numus.functions.creation.dtype_functions import finfo
from numus.functions.elementwise.arithmetic import minimum
from numus.functions.elementwise.comparison import where
from numus.functions.reduction.reductions import max as maximum_of
from numus.functions.shape.concatenation import concat
from numus.linalg._base import adjoint, identity
from numus.linalg.factor import blocked
from numus.tensor import Tensor
from numus.transforms.control import scan

MAX_WEIGHT = 100.0  # above, the matrix of the normal equations is ill-conditioned


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
    for ill, group in itertools.groupby(_weights(eps, 4 * eps), lambda w: w[2] > MAX_WEIGHT):
        table = [(b / c, a_ - b / c, c, math.sqrt(c)) for a_, b, c in group]
        weights = asarray(table, dtype=size.dtype, device=a.device).astype(a.dtype)
        x, _ = scan(_by_orthonormal_columns if ill else _by_cholesky, x, weights)
    return x


def _by_cholesky(x: Tensor, weights: Tensor) -> tuple[Tensor, None]:
    """(b / c) x + (a - b / c) x (1 + c xᴴ x)⁻¹."""
    share, rest, c, _ = weights
    one = identity(x.shape[-1], x)
    inverse = blocked.cholesky_below(one + c * (adjoint(x) @ x), one)
    return share * x + rest * ((x @ inverse) @ adjoint(inverse)), None


def _by_orthonormal_columns(x: Tensor, weights: Tensor) -> tuple[Tensor, None]:
    """As `_by_cholesky`, by an orthonormal basis of the columns of √c x above 1: shifted Cholesky
    QR, then two without a shift (Fukaya et al. 2020)."""
    share, rest, c, root = weights
    m, n = x.shape[-2:]
    one = identity(n, x)
    shift = 4 * n * float(finfo(abs(x).dtype).eps) * c

    def orthogonalised(columns: Tensor, number: Tensor) -> tuple[Tensor, None]:
        gram = adjoint(columns) @ columns + where(number == 0, shift, 0.0) * one
        return blocked.cholesky_below(gram, columns), None

    start = concat([root * x, one], axis=-2)
    columns, _ = scan(orthogonalised, start, arange(3, device=x.device))
    return share * x + rest / root * (columns[:, :m] @ adjoint(columns[:, m:])), None
