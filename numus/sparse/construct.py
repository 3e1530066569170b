"""Sparse matrices that are built: identities, diagonals, random ones, and others put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import numus as nm
from numus import dtypes as dt
from numus.errors import ShapeError
from numus.shapes import as_int
from numus.sparse import parts
from numus.sparse.pattern import Array, index_dtype
from numus.sparse.structure import COO, DIA, require_countable, require_matrix
from numus.sparse.tensor import SparseTensor
from numus.tensor import Tensor


def eye(
    m: int, n: int | None = None, k: int = 0, *, dtype: Any = None, device: Any = None,
    format: str = "csr",
) -> SparseTensor:  # fmt: skip
    """Ones on diagonal k.

    >>> nm.sparse.eye(2, 3, 1).to_dense().tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    m = as_int(m, "m", "eye")
    n = m if n is None else as_int(n, "n", "eye")
    if min(m, n) < 0:
        raise ShapeError(f"eye: the shape {(m, n)} must not be negative")
    ones = nm.ones((1, n), dtype=dtype, device=device)
    found = SparseTensor(DIA((m, n), np.array([k], np.int64), n), ones)
    return found if format == "dia" else found.asformat(format)


def diags(
    diagonals: Any, offsets: Any = 0, shape: Sequence[int] | None = None, *, dtype: Any = None,
    format: str = "dia",
) -> SparseTensor:  # fmt: skip
    """A matrix from its diagonals.

    Args:
        diagonals: a sequence of vectors, or of numbers that fill a diagonal; one of them where the
            offset is a number.
        offsets: of each diagonal, above the main one where it is positive.
        shape: without it, square, and as large as the diagonals ask for.
        dtype: of the values; the one they share, where it is None.
        format: of the result.

    >>> nm.sparse.diags([[1.0, 2.0], 5.0], [0, 1], (2, 2)).to_dense().tolist()
    [[1.0, 5.0], [0.0, 2.0]]
    """
    op = "diags"
    if np.ndim(offsets) == 0:
        diagonals, offsets = [diagonals], [offsets]
    places = [as_int(k, "offsets", op) for k in offsets]
    vectors = [nm.asarray(d, dtype=dtype) for d in diagonals]
    if len(places) != len(vectors) or not places:
        raise ShapeError(f"{op}: {len(vectors)} diagonals for {len(places)} offsets")
    if len(set(places)) != len(places):
        raise ShapeError(f"{op}: a diagonal is given twice")
    if shape is None:
        side = max(v.size + abs(k) for v, k in zip(vectors, places, strict=True))
        shape = (side, side)
    m, n = require_matrix(tuple(as_int(x, "shape", op) for x in shape), op)
    joined = vectors[0].dtype
    for v in vectors[1:]:
        joined = dt.promote(joined, v.dtype)
    rows = []
    for v, k in zip(vectors, places, strict=True):
        start, length = max(0, k), max(0, min(m + k, n) - max(0, k))
        v = v.astype(joined, copy=False).reshape(-1)
        if v.shape[0] != length and v.shape[0] != 1:
            raise ShapeError(
                f"{op}: diagonal {k} of a matrix of shape {(m, n)} has {length} elements, not "
                f"{v.shape[0]}"
            )
        rows.append(nm.pad(nm.broadcast_to(v, (length,)), ((start, n - start - length),)))
    made = DIA((m, n), np.array(places, np.int64), n)
    found = SparseTensor(made, nm.stack(rows))
    return found if format == "dia" else found.asformat(format)


def random(
    m: int, n: int, density: float = 0.01, *, format: str = "csr", dtype: Any = None,
    device: Any = None,
) -> SparseTensor:  # fmt: skip
    """Uniform values in [0, 1) at random positions, drawn from `nm.random`.

    Args:
        m: rows.
        n: columns.
        density: the share of elements that are stored.
        format: of the result.
        dtype: of the values.
        device: of the values.

    >>> nm.sparse.random(100, 50, 0.1).nnz
    500
    """
    if not 0 <= density <= 1:
        raise ValueError(f"random: a density of {density} is not between 0 and 1")
    m, n = as_int(m, "m", "random"), as_int(n, "n", "random")
    count = round(density * m * n)
    chosen = np.unique(_drawn(m * n, count))
    while chosen.size < count:  # few are drawn twice
        chosen = np.unique(np.concatenate([chosen, _drawn(m * n, count - chosen.size)]))
    place = np.stack(np.divmod(chosen, max(n, 1))).astype(index_dtype(m, n))
    values = nm.random.uniform((count,), dtype=dtype, device=device)
    found = SparseTensor(COO((m, n), place), values)
    return found.asformat(format)


def _drawn(end: int, count: int) -> Array:
    if count == 0:
        return np.zeros(0, np.int64)
    if 2 * count > end:
        found: Array = np.asarray(nm.random.permutation(end).numpy()[:count])
        return found
    return np.asarray(nm.random.integers(0, end, (count,)).numpy())


# -- assembly -------------------------------------------------------------------------------------


def kron(a: SparseTensor, b: SparseTensor, format: str = "csr") -> SparseTensor:
    """The Kronecker product.

    >>> nm.sparse.kron(nm.sparse.eye(2), nm.sparse.eye(3)).shape
    (6, 6)
    """
    (ma, na), (mb, nb) = require_matrix(a.shape, "kron"), require_matrix(b.shape, "kron")
    va, vb = parts.entries(a.structure, a.values), parts.entries(b.structure, b.values)
    (ra, ca), (rb, cb) = a.structure.coordinates, b.structure.coordinates
    shape = (ma * mb, na * nb)
    require_countable(shape, "kron")
    dtype = index_dtype(*shape)
    row = (ra.astype(np.int64)[:, None] * mb + rb).ravel()
    column = (ca.astype(np.int64)[:, None] * nb + cb).ravel()
    made = COO(shape, np.stack([row, column]).astype(dtype))
    return SparseTensor(made, (va[:, None] * vb).reshape(-1)).asformat(format)


def block(blocks: Sequence[Sequence[SparseTensor | None]], format: str = "csr") -> SparseTensor:
    """A matrix of matrices; None is a block of zeros.

    >>> a = nm.sparse.eye(2)
    >>> nm.sparse.block([[a, None], [None, 2 * a]]).diagonal().tolist()
    [1.0, 1.0, 2.0, 2.0]
    """
    op = "block"
    width = len(blocks[0]) if len(blocks) else 0
    if width == 0 or any(len(row) != width for row in blocks):
        raise ShapeError(f"{op}: rows of blocks must be of one length, which is not zero")
    heights, widths = [-1] * len(blocks), [-1] * width
    for i, row in enumerate(blocks):
        for j, a in enumerate(row):
            if a is None:
                continue
            m, n = require_matrix(a.shape, op)
            if heights[i] not in (-1, m) or widths[j] not in (-1, n):
                raise ShapeError(
                    f"{op}: block ({i}, {j}) of shape {(m, n)} does not fit the others"
                )
            heights[i], widths[j] = m, n
    if -1 in heights or -1 in widths:
        raise ShapeError(f"{op}: a row or column of blocks has None alone, and so no size")
    require_countable((sum(heights), sum(widths)), op)
    tops, lefts = np.cumsum([0, *heights]), np.cumsum([0, *widths])
    dtype = index_dtype(int(tops[-1]), int(lefts[-1]))
    places, values = [], []
    for i, row in enumerate(blocks):
        for j, a in enumerate(row):
            if a is not None:
                r, c = a.structure.coordinates
                places.append(np.stack([r + tops[i], c + lefts[j]]).astype(dtype))
                values.append(parts.entries(a.structure, a.values))
    made = COO((int(tops[-1]), int(lefts[-1])), np.concatenate(places, 1))
    joined = values[0].dtype
    for v in values[1:]:
        joined = dt.promote(joined, v.dtype)
    every = nm.concatenate([v.astype(joined, copy=False) for v in values])
    return SparseTensor(made, every).asformat(format)


def hstack(blocks: Sequence[SparseTensor], format: str = "csr") -> SparseTensor:
    """Matrices side by side.

    >>> nm.sparse.hstack([nm.sparse.eye(2), nm.sparse.eye(2)]).shape
    (2, 4)
    """
    return block([list(blocks)], format)


def vstack(blocks: Sequence[SparseTensor], format: str = "csr") -> SparseTensor:
    """Matrices one above the other.

    >>> nm.sparse.vstack([nm.sparse.eye(2), nm.sparse.eye(2)]).shape
    (4, 2)
    """
    return block([[a] for a in blocks], format)


def block_diag(blocks: Sequence[SparseTensor], format: str = "csr") -> SparseTensor:
    """Matrices along the diagonal.

    >>> nm.sparse.block_diag([nm.sparse.eye(2), nm.sparse.eye(1, 3)]).shape
    (3, 5)
    """
    count = len(blocks)
    return block(
        [[a if i == j else None for j in range(count)] for i, a in enumerate(blocks)], format
    )


# -- parts of a matrix ----------------------------------------------------------------------------


def _where(a: SparseTensor, keep: Array) -> SparseTensor:
    structure, values = parts.selected(a.structure, a.values, np.flatnonzero(keep))
    return SparseTensor(*parts.format_like(structure, values, a.structure))


def tril(a: SparseTensor, k: int = 0) -> SparseTensor:
    """The elements on and below diagonal k.

    >>> nm.sparse.tril(nm.sparse.from_dense(nm.ones((2, 2)))).to_dense().tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    require_matrix(a.shape, "tril")
    row, column = a.structure.coordinates
    return _where(a, column.astype(np.int64) - row <= k)


def triu(a: SparseTensor, k: int = 0) -> SparseTensor:
    """The elements on and above diagonal k.

    >>> nm.sparse.triu(nm.sparse.from_dense(nm.ones((2, 2)))).to_dense().tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    require_matrix(a.shape, "triu")
    row, column = a.structure.coordinates
    return _where(a, column.astype(np.int64) - row >= k)


def permute(a: SparseTensor, rows: Any = None, columns: Any = None) -> SparseTensor:
    """Rows and columns in another order: element (i, j) is that of (rows[i], columns[j]).

    >>> a = nm.sparse.diags([1.0, 2.0])
    >>> nm.sparse.permute(a, rows=[1, 0]).to_dense().tolist()
    [[0.0, 2.0], [1.0, 0.0]]
    """
    m, n = require_matrix(a.shape, "permute")
    made = [c.astype(np.int64) for c in a.structure.coordinates]
    for axis, (order, extent) in enumerate(((rows, m), (columns, n))):
        if order is None:
            continue
        given = np.asarray(order.numpy() if isinstance(order, Tensor) else order)
        if given.shape != (extent,) or not np.array_equal(np.sort(given), np.arange(extent)):
            raise ShapeError(f"permute: {'columns' if axis else 'rows'} do not permute {extent}")
        inverse = np.empty(extent, np.int64)
        inverse[given] = np.arange(extent)
        made[axis] = inverse[made[axis]]
    place = np.stack(made).astype(index_dtype(m, n))
    values = parts.entries(a.structure, a.values)
    return SparseTensor(*parts.format_like(COO((m, n), place), values, a.structure))


# -- products on structures -----------------------------------------------------------------------


def sddmm(structure: Any, a: Any, b: Any) -> SparseTensor:
    """The product of two dense matrices at the positions of a structure (sampled dense-dense).

    Args:
        structure: or a sparse tensor that has it.
        a: (m, k).
        b: (k, n).

    >>> a = nm.ones((2, 3))
    >>> nm.sparse.sddmm(nm.sparse.eye(2).structure, a, a.T).values.tolist()
    [3.0, 3.0]
    """
    where = structure.structure if isinstance(structure, SparseTensor) else structure
    m, n = require_matrix(where.shape, "sddmm")
    x, y = nm.asarray(a), nm.asarray(b)
    fits = x.ndim == y.ndim == 2 and x.shape[1] == y.shape[0]
    if not fits or (x.shape[0], y.shape[1]) != (m, n):
        raise ShapeError(
            f"sddmm: {tuple(x.shape)} times {tuple(y.shape)} at positions of a matrix {(m, n)}"
        )
    dtype = dt.promote(x.dtype, y.dtype)
    return SparseTensor(
        *parts.sampled_product(where, x.astype(dtype, copy=False), y.astype(dtype, copy=False))
    )


def masked_matmul(a: SparseTensor, b: SparseTensor, mask: Any) -> SparseTensor:
    """The product of two sparse matrices at the positions of a mask, and nowhere else.

    Args:
        a: (m, k).
        b: (k, n).
        mask: a structure or sparse tensor of shape (m, n), whose values do not matter.

    >>> a = nm.sparse.from_dense(nm.ones((2, 2)))
    >>> nm.sparse.masked_matmul(a, a, nm.sparse.eye(2)).to_dense().tolist()
    [[2.0, 0.0], [0.0, 2.0]]
    """
    where = mask.structure if isinstance(mask, SparseTensor) else mask
    (m, k), (k2, n) = (
        require_matrix(a.shape, "masked_matmul"),
        require_matrix(b.shape, "masked_matmul"),
    )
    if k != k2 or where.shape != (m, n):
        raise ShapeError(f"masked_matmul: {a.shape} times {b.shape} at positions of {where.shape}")
    dtype = dt.promote(a.dtype, b.dtype)
    x, y = a.astype(dtype), b.astype(dtype)
    return SparseTensor(
        *parts.masked_product(where, (x.structure, x.values), (y.structure, y.values))
    )


__all__ = [
    "block", "block_diag", "diags", "eye", "hstack", "kron", "masked_matmul", "permute", "random",
    "sddmm", "tril", "triu", "vstack",
]  # fmt: skip
