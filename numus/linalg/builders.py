"""Matrices of a known structure: block diagonal, Toeplitz, Hankel, Vandermonde and their kin."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions._base import common, node_of, pair, to_float, wrap
from numus.functions.creation.creation import arange, ones_like, zeros_like
from numus.functions.reduction.cumulative import cumulative_prod
from numus.functions.shape.concatenation import concat
from numus.functions.shape.manipulation import broadcast_to, flip
from numus.functions.shape.tiling import pad
from numus.shapes import Shape
from numus.shapes import broadcast as broadcast_shapes
from numus.tensor import ArrayLike, Tensor


def block_diag(*arrays: ArrayLike) -> Tensor:
    """A matrix with these matrices along its diagonal, and zeros beside them.

    Vectors are rows; leading axes broadcast.

    >>> nm.linalg.block_diag(nm.ones((2, 1)), nm.asarray([2.0, 3.0])).tolist()
    [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 2.0, 3.0]]
    """
    if not arrays:
        raise ValueError("linalg.block_diag: takes one array or more")
    blocks = [wrap(n) for n in common("block_diag", *arrays)]
    blocks = [b.reshape((1,) * (2 - b.ndim) + b.shape) if b.ndim < 2 else b for b in blocks]
    lead: Shape = ()
    for b in blocks:
        lead = broadcast_shapes(lead, b.shape[:-2], "linalg.block_diag")
    columns, left, rows = sum(b.shape[-1] for b in blocks), 0, []
    for b in blocks:
        right = columns - left - b.shape[-1]
        b = broadcast_to(b, (*lead, *b.shape[-2:]))
        rows.append(pad(b, [(0, 0)] * (b.ndim - 1) + [(left, right)]))
        left += b.shape[-1]
    return concat(rows, axis=-2)


def _vectors(op: str, *xs: Tensor) -> None:
    for x in xs:
        if x.ndim == 0:
            raise ShapeError(f"linalg.{op}: takes vectors or stacks of them, not a number")


def _line(op: str, first: Tensor, rest: Tensor) -> Tensor:
    """The elements of a matrix that is constant along diagonals, in one vector."""
    lead = broadcast_shapes(first.shape[:-1], rest.shape[:-1], f"linalg.{op}")
    return concat([broadcast_to(x, (*lead, x.shape[-1])) for x in (first, rest)], axis=-1)


def _picked(line: Tensor, index: np.ndarray) -> Tensor:
    flat = line.take(index.reshape(-1), axis=-1)
    return flat.reshape((*line.shape[:-1], *index.shape))


def toeplitz(c: ArrayLike, r: ArrayLike | None = None) -> Tensor:
    """The Toeplitz matrix with first column `c` and first row `r` (of which element 0 is not read);
    without `r`, the Hermitian one. Leading axes are a batch.

    >>> nm.linalg.toeplitz(nm.asarray([1, 2, 3]), nm.asarray([1, 4])).tolist()
    [[1, 4], [2, 1], [3, 2]]
    """
    column, row = (wrap(n) for n in pair("toeplitz", c, c if r is None else r))
    _vectors("toeplitz", column, row)
    if r is None and row.dtype.is_complex:
        row = row.conj()
    m, n = column.shape[-1], row.shape[-1]
    line = _line("toeplitz", flip(column, axis=-1), row[..., 1:])
    return _picked(line, np.arange(m)[::-1, None] + np.arange(n))


def hankel(c: ArrayLike, r: ArrayLike | None = None) -> Tensor:
    """The Hankel matrix with first column `c` and last row `r` (of which element 0 is not read);
    without `r`, zeros below the anti-diagonal. Leading axes are a batch.

    >>> nm.linalg.hankel(nm.asarray([1, 2, 3]), nm.asarray([3, 4])).tolist()
    [[1, 2], [2, 3], [3, 4]]
    """
    column, row = (wrap(n) for n in pair("hankel", c, c if r is None else r))
    _vectors("hankel", column, row)
    row = zeros_like(row) if r is None else row
    m, n = column.shape[-1], row.shape[-1]
    line = _line("hankel", column, row[..., 1:])
    return _picked(line, np.arange(m)[:, None] + np.arange(n))


def circulant(c: ArrayLike) -> Tensor:
    """The circulant matrix with first column `c`; leading axes are a batch.

    >>> nm.linalg.circulant(nm.asarray([1, 2, 3])).tolist()
    [[1, 3, 2], [2, 1, 3], [3, 2, 1]]
    """
    column = wrap(node_of(c, "circulant"))
    _vectors("circulant", column)
    n = column.shape[-1]
    return _picked(column, (np.arange(n)[:, None] - np.arange(n)) % max(n, 1))


def vander(x: ArrayLike, N: int | None = None, increasing: bool = False) -> Tensor:
    """The Vandermonde matrix: powers of the elements of a vector in rows, the highest first.

    Args:
        N: the number of columns; that of elements where it is None.
        increasing: the lowest power first.

    >>> nm.linalg.vander(nm.asarray([1, 2, 3]), 3, increasing=True).tolist()
    [[1, 1, 1], [1, 2, 4], [1, 3, 9]]
    """
    given = wrap(node_of(x, "vander"))
    if not given.dtype.is_inexact:
        given = given.astype(dt.promote(given.dtype, dt.int64))
    _vectors("vander", given)
    count = given.shape[-1] if N is None else operator.index(N)
    if count < 0:
        raise ValueError(f"linalg.vander: N must not be negative, not {count}")
    column = given[..., None]
    factors = [ones_like(column), broadcast_to(column, (*given.shape, max(count - 1, 0)))]
    powers = cumulative_prod(concat(factors, axis=-1), axis=-1)[..., :count]
    return powers if increasing else flip(powers, axis=-1)


def companion(a: ArrayLike) -> Tensor:
    """The companion matrix of a polynomial with these coefficients, the highest power first.

    Its eigenvalues are the roots. Leading axes are a batch.

    >>> nm.linalg.companion(nm.asarray([1.0, -10.0, 31.0, -30.0])).tolist()
    [[10.0, -31.0, 30.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    p = wrap(to_float(node_of(a, "companion")))
    _vectors("companion", p)
    if p.shape[-1] < 2:
        raise ShapeError(f"linalg.companion: takes two coefficients or more, not shape {p.shape}")
    n = p.shape[-1] - 1
    top = -p[..., 1:] / p[..., :1]
    rows = np.eye(n - 1, n, dtype=np.int8)
    below = broadcast_to(
        wrap(node_of(rows, "companion", top._node.device)), (*p.shape[:-1], n - 1, n)
    )
    return concat([top[..., None, :], below.astype(p.dtype)], axis=-2)


def hilbert(n: int, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """The Hilbert matrix of order n: 1 / (i + j + 1), famously ill-conditioned.

    >>> nm.linalg.hilbert(2).tolist()
    [[1.0, 0.5], [0.5, 0.3333333432674408]]
    """
    count = operator.index(n)
    if count < 0:
        raise ValueError(f"linalg.hilbert: n must not be negative, not {count}")
    wanted = dt.default_float if dtype is None else dt.as_dtype(dtype)
    if not wanted.is_inexact:
        raise TypeError(f"linalg.hilbert: takes a float or complex dtype, not {wanted.name}")
    i = arange(count, dtype=dt.compute_dtype(dt.real_of(wanted)), device=device)
    return (1 / (i[:, None] + i[None, :] + 1)).astype(wanted)
