"""Sparse tensors from their parts, which are checked, and from dense ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import numus as nm
from numus.errors import DTypeError, IndexRangeError, ShapeError
from numus.evaluation.evaluate import is_known
from numus.shapes import Shape, as_int
from numus.sparse import parts
from numus.sparse.pattern import Array, OnDevices, Pattern, index_dtype
from numus.sparse.products import taken
from numus.sparse.structure import BSR, COO, CSC, CSR, DIA, Structure, linear_index
from numus.sparse.tensor import SparseTensor
from numus.tensor import Tensor


def _integers(x: Any, op: str, what: str) -> Array:
    """Index data on the host; of NumPy arrays no copy is made."""
    if isinstance(x, Tensor):
        if not is_known(x._node):
            raise ShapeError(f"{op}: the {what} of a sparse tensor are static, and must be known")
        x = x.numpy()
    array = np.asarray(x)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise DTypeError(f"{op}: {what} are integers, not {array.dtype}")
    return array


def _shape(shape: Any, op: str, ndim: int | None = 2) -> Shape:
    found = tuple(as_int(n, "shape", op) for n in shape)
    if min(found, default=0) < 0 or (ndim is not None and len(found) != ndim):
        raise ShapeError(f"{op}: {found} is no shape of {ndim or 'any number of'} axes")
    return found


def _in_range(index: Array, extent: int, op: str, what: str) -> None:
    # negative indices are large without their sign: one walk over the array
    plain = index.view(np.dtype(f"u{index.itemsize}")) if index.dtype.isnative else index
    if index.size and (plain.max() >= extent or (plain is index and index.min() < 0)):
        bad = index[(index < 0) | (index >= extent)].flat[0]
        raise IndexRangeError(f"{op}: {what} {bad} is out of range for an axis of {extent}")


def _values(values: Any, shape: Shape, op: str, dtype: Any, device: Any) -> Tensor:
    found = nm.asarray(values, dtype=dtype, device=device)
    if tuple(found.shape) != shape:
        raise ShapeError(
            f"{op}: values of shape {tuple(found.shape)}, but the indices ask for {shape}"
        )
    return found


def _pattern(pointers: Any, indices: Any, shape: tuple[int, int], op: str) -> Pattern:
    """Checked compressed rows."""
    starts, columns = _integers(pointers, op, "pointers"), _integers(indices, op, "indices")
    if starts.ndim != 1 or columns.ndim != 1 or starts.size != shape[0] + 1:
        raise ShapeError(
            f"{op}: {shape[0] + 1} pointers and one axis of indices are needed; they have shapes "
            f"{starts.shape} and {columns.shape}"
        )
    descends = bool((starts[1:] < starts[:-1]).any())
    if starts[0] != 0 or starts[-1] != columns.size or descends:
        raise ShapeError(
            f"{op}: pointers ascend from 0 to the number of indices, {columns.size}; these go from "
            f"{starts[0]} to {starts[-1]}" + (", and back" if descends else "")
        )
    _in_range(columns, shape[1], op, "index")
    dtype = index_dtype(*shape, columns.size)
    return Pattern(shape, starts.astype(dtype, copy=False), columns.astype(dtype, copy=False))


def coo_tensor(
    indices: Any, values: Any, shape: Sequence[int] | None = None, *, dtype: Any = None,
    device: Any = None,
) -> SparseTensor:  # fmt: skip
    """A sparse tensor of any number of axes from coordinates; those that are repeated add up.

    Args:
        indices: (axes, values): the index along each axis of each value.
        values: a number for each.
        shape: without it, the smallest that holds all indices.
        dtype: of the values; as they have it, where it is None.
        device: of the values.

    >>> nm.sparse.coo_tensor([[0, 1], [2, 0]], [3.0, 4.0], (2, 3)).to_dense().tolist()
    [[0.0, 0.0, 3.0], [4.0, 0.0, 0.0]]
    """
    op = "coo_tensor"
    array = _integers(indices, op, "indices")
    if array.ndim != 2 or array.shape[0] == 0:
        raise ShapeError(f"{op}: indices have the shape (axes, values), not {array.shape}")
    if shape is None:
        shape = [int(n) + 1 for n in array.max(1)] if array.size else [0] * array.shape[0]
    extents = _shape(shape, op, array.shape[0])
    for axis, extent in enumerate(extents):
        _in_range(array[axis], extent, op, f"along axis {axis}, index")
    found = _values(values, (array.shape[1],), op, dtype, device)
    made = COO(extents, array.astype(index_dtype(*extents, array.shape[1]), copy=False))
    return SparseTensor(made, found)


def csr_tensor(
    pointers: Any, indices: Any, values: Any, shape: Sequence[int], *, dtype: Any = None,
    device: Any = None,
) -> SparseTensor:  # fmt: skip
    """A sparse matrix from compressed rows.

    Args:
        pointers: where each row starts among the indices, and their number: rows + 1 of them.
        indices: the column of each value, row by row.
        values: a number for each index.
        shape: (rows, columns).
        dtype: of the values; as they have it, where it is None.
        device: of the values.

    >>> nm.sparse.csr_tensor([0, 1, 2], [2, 0], [3.0, 4.0], (2, 3)).to_dense().tolist()
    [[0.0, 0.0, 3.0], [4.0, 0.0, 0.0]]
    """
    m, n = _shape(shape, "csr_tensor")
    pattern = _pattern(pointers, indices, (m, n), "csr_tensor")
    return SparseTensor(CSR(pattern), _values(values, (pattern.nnz,), "csr_tensor", dtype, device))


def csc_tensor(
    pointers: Any, indices: Any, values: Any, shape: Sequence[int], *, dtype: Any = None,
    device: Any = None,
) -> SparseTensor:  # fmt: skip
    """A sparse matrix from compressed columns.

    Args:
        pointers: where each column starts among the indices, and their number.
        indices: the row of each value, column by column.
        values: a number for each index.
        shape: (rows, columns).
        dtype: of the values; as they have it, where it is None.
        device: of the values.

    >>> nm.sparse.csc_tensor([0, 1, 1, 2], [1, 0], [4.0, 3.0], (2, 3)).to_dense().tolist()
    [[0.0, 0.0, 3.0], [4.0, 0.0, 0.0]]
    """
    m, n = _shape(shape, "csc_tensor")
    pattern = _pattern(pointers, indices, (n, m), "csc_tensor")
    return SparseTensor(CSC(pattern), _values(values, (pattern.nnz,), "csc_tensor", dtype, device))


def bsr_tensor(
    pointers: Any, indices: Any, values: Any, shape: Sequence[int], *, dtype: Any = None,
    device: Any = None,
) -> SparseTensor:  # fmt: skip
    """A sparse matrix from compressed rows of dense blocks.

    Args:
        pointers: where each row of blocks starts among the indices, and their number.
        indices: the column, counted in blocks, of each block.
        values: (blocks, rows, columns), the last two being the size of a block.
        shape: (rows, columns), multiples of that size.
        dtype: of the values; as they have it, where it is None.
        device: of the values.

    >>> nm.sparse.bsr_tensor([0, 1], [1], [[[1.0, 2.0]]], (1, 4)).to_dense().tolist()
    [[0.0, 0.0, 1.0, 2.0]]
    """
    op = "bsr_tensor"
    m, n = _shape(shape, op)
    found = nm.asarray(values, dtype=dtype, device=device)
    height, width = tuple(found.shape[1:]) if found.ndim == 3 else (0, 0)
    if height < 1 or width < 1 or m % height or n % width:
        raise ShapeError(
            f"{op}: values of shape {tuple(found.shape)} are no (blocks, rows, columns) that "
            f"tile a matrix of shape {(m, n)}"
        )
    pattern = _pattern(pointers, indices, (m // height, n // width), op)
    if pattern.nnz != found.shape[0]:
        raise ShapeError(f"{op}: {found.shape[0]} blocks for {pattern.nnz} indices")
    return SparseTensor(BSR((m, n), (height, width), pattern), found)


def dia_tensor(
    offsets: Any, values: Any, shape: Sequence[int], *, dtype: Any = None, device: Any = None
) -> SparseTensor:
    """A sparse matrix from diagonals, in SciPy's layout.

    Args:
        offsets: of each diagonal, above the main one where it is positive.
        values: (diagonals, columns): values[k, j] is the element of column j on diagonal k.
        shape: (rows, columns).
        dtype: of the values; as they have it, where it is None.
        device: of the values.

    >>> nm.sparse.dia_tensor([0, 1], [[1.0, 2.0], [0.0, 3.0]], (2, 2)).to_dense().tolist()
    [[1.0, 3.0], [0.0, 2.0]]
    """
    op = "dia_tensor"
    m, n = _shape(shape, op)
    array = _integers(offsets, op, "offsets")
    found = nm.asarray(values, dtype=dtype, device=device)
    if array.ndim != 1 or found.ndim != 2 or found.shape[0] != array.size:
        raise ShapeError(
            f"{op}: offsets of shape {array.shape} and values of shape {tuple(found.shape)} are no "
            "(diagonals,) and (diagonals, columns)"
        )
    if np.unique(array).size != array.size:
        raise ShapeError(f"{op}: a diagonal is given twice")
    made = DIA((m, n), array.astype(np.int64), int(found.shape[1]))
    return SparseTensor(made, found)


def from_dense(x: Any, format: str = "csr", *, structure: Structure | None = None) -> SparseTensor:
    """The elements of a dense tensor that are not zero.

    Args:
        x: a tensor whose values are known, unless a structure is given.
        format: "coo", "csr", "csc" or "dia"; tensors that are no matrices are "coo".
        structure: take the elements at its positions, whatever they are: this can be traced.

    >>> nm.sparse.from_dense(nm.asarray([[0.0, 3.0], [0.0, 0.0]]))
    SparseTensor(csr, shape=(2, 2), nnz=1, dtype=float32)
    """
    op = "from_dense"
    dense = nm.asarray(x)
    if structure is not None:
        if tuple(dense.shape) != structure.shape:
            raise ShapeError(f"{op}: {tuple(dense.shape)} for a structure of {structure.shape}")
        if structure.format in ("bsr", "dia"):
            structure = parts.csr_of(structure.rows[0])
        number = linear_index(_stored_coordinates(structure), structure.shape)
        order = OnDevices(number.astype(index_dtype(dense.size)))
        return SparseTensor(structure, taken(dense.reshape(-1), order))
    if not is_known(dense._node):
        raise ValueError(f"{op}: inside a trace, give the structure: it depends on the values")
    if dense.ndim == 0:
        raise ShapeError(f"{op}: a number has no axes")
    where = np.stack(np.nonzero(dense.numpy()))
    made = COO(tuple(dense.shape), where.astype(index_dtype(*dense.shape)))
    found = from_dense(dense, structure=made)
    return found if dense.ndim != 2 else found.asformat(format)


def _stored_coordinates(structure: Structure) -> tuple[Array, ...]:
    """The coordinates of values in the order in which they are stored."""
    if isinstance(structure, CSC):
        return structure.transposed.coordinates[::-1]
    return structure.coordinates
