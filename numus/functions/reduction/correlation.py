"""Covariance and correlation of variables: centred products."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions import api as nm
from numus.functions._base import as_number, method, operand
from numus.tensor import ArrayLike, Tensor

__all__ = ["corrcoef", "cov"]

_BLOCK = 512  # rows of a block of a Gram matrix: a product of it runs at full speed


def _variables(op: str, x: ArrayLike, y: Any, rowvar: bool) -> Tensor:
    """The observations of each variable, as rows of inexact numbers."""
    found = []
    for given in (x,) if y is None else (x, y):
        part = operand(op, given)
        if part.ndim > 2:
            raise ShapeError(f"{op}: takes a vector or a matrix, not an array of {part.shape}")
        part = nm.reshape(part, (1, -1)) if part.ndim < 2 else part
        found.append(part if rowvar or operand(op, given).ndim < 2 else nm.matrix_transpose(part))
    out = found[0] if y is None else nm.concat(found, 0)
    return out if out.dtype.is_inexact else nm.astype(out, dt.default_float)


@method()
def cov(
    x: ArrayLike,
    y: Any = None,
    /,
    *,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    correction: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
) -> Tensor:
    """The covariance matrix of variables, each a row of observations.

    Args:
        y: more variables.
        rowvar: False if the variables are columns.
        ddof: what is subtracted from the number of observations, 1 unless `bias`. PyTorch's name
            for it is `correction`.
        fweights: how often each observation was made.
        aweights: how much each observation counts.

    >>> nm.cov(nm.asarray([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]])).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    op = "cov"
    given = _variables(op, x, y, rowvar)
    rows = nm.astype(given, dt.compute_dtype(given.dtype))
    free = correction if ddof is None else ddof
    free = as_number((0 if bias else 1) if free is None else free, "ddof", op)
    weight: Tensor | None = None
    for kind in (fweights, aweights):
        if kind is None:
            continue
        w = nm.astype(operand(op, kind), dt.real_of(rows.dtype))
        if w.shape != rows.shape[1:]:
            raise ShapeError(
                f"{op}: weights of shape {w.shape} for {rows.shape[1]} observations; give a "
                "vector with one for each"
            )
        weight = w if weight is None else weight * w
    if weight is None:
        centred = rows - nm.mean(rows, 1, keepdims=True)
        norm: Any = float(max(rows.shape[1] - free, 0))
    else:
        total = nm.sum(weight)
        centred = rows - nm.sum(rows * weight, 1, keepdims=True) / total
        scaled = centred * weight
        lost = total * 0 + free
        if aweights is not None and free:
            lost = free * nm.sum(weight * nm.astype(operand(op, aweights), weight.dtype)) / total
        norm = nm.maximum(total - lost, 0.0)
    if weight is None:
        y = _gram(centred) / norm
    else:
        y = nm.matmul(scaled, nm.matrix_transpose(nm.conj(centred))) / norm
    y = nm.astype(y, given.dtype)
    return nm.reshape(y, ()) if y.shape == (1, 1) else y


@method()
def corrcoef(x: ArrayLike, y: Any = None, /, *, rowvar: bool = True) -> Tensor:
    """The matrix of Pearson's correlation coefficients of variables, each a row of observations.

    >>> nm.corrcoef(nm.asarray([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]])).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    given = _variables("corrcoef", x, y, rowvar)
    rows = nm.astype(given, dt.compute_dtype(given.dtype))
    rows = rows - nm.mean(rows, 1, keepdims=True)
    size = nm.sqrt(nm.sum(nm.real(rows * nm.conj(rows)), 1))
    # divided one after the other: the product of two deviations may underflow
    c = _gram(rows) / nm.expand_dims(size, 1) / nm.expand_dims(size, 0)
    c = nm.astype(c, given.dtype)
    c = c if c.dtype.is_complex else nm.clip(c, -1, 1)
    return nm.reshape(c, ()) if c.shape == (1, 1) else c


def _gram(rows: Tensor) -> Tensor:
    """The products of all pairs of rows, the second conjugated; mirrored where it pays."""

    def adjoint(x: Tensor) -> Tensor:
        return nm.conj(nm.matrix_transpose(x))

    n = rows.shape[0]
    if n < 3 * _BLOCK:
        return nm.matmul(rows, adjoint(rows))
    cuts = [*range(0, n - _BLOCK // 2, _BLOCK), n]
    spans = [slice(a, b) for a, b in pairwise(cuts)]
    below = [nm.matmul(rows[span], adjoint(rows[: span.stop])) for span in spans]
    return nm.concat(
        [
            nm.concat([below[i], *(adjoint(product[:, span]) for product in below[i + 1 :])], 1)
            for i, span in enumerate(spans)
        ],
        0,
    )
