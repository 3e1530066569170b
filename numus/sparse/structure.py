"""Structures of sparse tensors: a format, a shape and index arrays, without values.

A structure is made on the host, never changes, and is static under `nm.jit`; tensors that an
operation gives the same structure share it, with all that was derived from it.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from numus.errors import ShapeError
from numus.shapes import Shape
from numus.sparse.pattern import (
    Array,
    OnDevices,
    Pattern,
    from_coordinates,
    frozen,
    index_dtype,
    repeated_ranges,
)

FORMATS = ("coo", "csr", "csc", "bsr", "dia")


class Structure(ABC):
    """Where the values of a sparse tensor are. Compares by content, as traced programs ask.

    Attributes:
        format: "coo", "csr", "csc", "bsr" or "dia".
        shape: of the tensor.
        values_shape: of the values: one axis, but for "bsr" (blocks, rows, columns) and "dia"
            (diagonals, columns).
    """

    format: str

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nnz(self) -> int:
        """Stored values, zeros among them too."""
        return math.prod(self.values_shape)

    @property
    @abstractmethod
    def values_shape(self) -> Shape: ...

    @property
    @abstractmethod
    def rows(self) -> tuple[Pattern, OnDevices | None]:
        """A matrix by rows, and which of the flat values each entry is; None: all, as they are."""

    @property
    @abstractmethod
    def transposed(self) -> Structure:
        """The structure of the transposed matrix for the same values, where its format has one."""

    @abstractmethod
    def arrays(self) -> tuple[Array, ...]:
        """The index arrays that define it."""

    @functools.cached_property
    def coordinates(self) -> tuple[Array, ...]:
        """An index array per axis, for each entry of `rows` in order."""
        pattern, _ = self.rows
        return pattern.rows.array, pattern.indices.array

    def _extra(self) -> Any:
        return None

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or not isinstance(other, Structure):
            return False
        same = (self.shape, self.values_shape, self._extra())
        if same != (other.shape, other.values_shape, other._extra()):
            return False
        return all(map(np.array_equal, self.arrays(), other.arrays()))

    def __hash__(self) -> int:
        return hash((self.format, self.shape, self.values_shape))

    def __repr__(self) -> str:
        return f"Structure({self.format}, shape={self.shape}, nnz={self.nnz})"


class COO(Structure):
    """Coordinates: an index per axis for each value, in any order, of any number of axes."""

    format = "coo"

    def __init__(self, shape: Shape, indices: Array) -> None:
        super().__init__(shape)
        self.indices = frozen(indices)  # (axes, values)

    @property
    def values_shape(self) -> Shape:
        return (self.indices.shape[1],)

    def arrays(self) -> tuple[Array, ...]:
        return (self.indices,)

    @functools.cached_property
    def coordinates(self) -> tuple[Array, ...]:
        return tuple(self.indices)

    @functools.cached_property
    def rows(self) -> tuple[Pattern, OnDevices | None]:
        require_matrix(self.shape, "rows")
        first, second = self.indices
        pattern, order = from_coordinates(first, second, (self.shape[0], self.shape[1]))
        return pattern, OnDevices(order)

    @functools.cached_property
    def transposed(self) -> Structure:
        return COO(self.shape[::-1], self.indices[::-1])

    @functools.cached_property
    def linear(self) -> Array:
        """The row-major number of each entry."""
        return linear_index(self.coordinates, self.shape)


class _Compressed(Structure):
    """A pattern of rows or columns."""

    def __init__(self, shape: Shape, pattern: Pattern) -> None:
        super().__init__(shape)
        self.pattern = pattern

    @property
    def values_shape(self) -> Shape:
        return (self.pattern.nnz,)

    def arrays(self) -> tuple[Array, ...]:
        return self.pattern.pointers.array, self.pattern.indices.array


class CSR(_Compressed):
    """Compressed rows."""

    format = "csr"

    def __init__(self, pattern: Pattern) -> None:
        super().__init__(pattern.shape, pattern)

    @property
    def rows(self) -> tuple[Pattern, OnDevices | None]:
        return self.pattern, None

    @functools.cached_property
    def transposed(self) -> Structure:
        return CSC(self.pattern)


class CSC(_Compressed):
    """Compressed columns: the pattern is that of the transpose."""

    format = "csc"

    def __init__(self, pattern: Pattern) -> None:
        super().__init__(pattern.shape[::-1], pattern)

    @property
    def rows(self) -> tuple[Pattern, OnDevices | None]:
        return self.pattern.transposed

    @functools.cached_property
    def transposed(self) -> Structure:
        return CSR(self.pattern)


class BSR(_Compressed):
    """Compressed rows of dense blocks of one size."""

    format = "bsr"

    def __init__(self, shape: Shape, block: tuple[int, int], pattern: Pattern) -> None:
        super().__init__(shape, pattern)
        self.block = block

    @property
    def values_shape(self) -> Shape:
        return (self.pattern.nnz, *self.block)

    def _extra(self) -> Any:
        return self.block

    @functools.cached_property
    def rows(self) -> tuple[Pattern, OnDevices | None]:
        height, width = self.block
        blocks = self.pattern
        counts = np.repeat(blocks.counts.astype(np.int64), height)  # of blocks, for each row
        starts = np.repeat(blocks.pointers.array[:-1].astype(np.int64), height)
        number = repeated_ranges(starts, counts)  # the block of each run of columns
        inside = np.repeat(np.tile(np.arange(height), blocks.shape[0]), counts)
        step = np.arange(width)
        flat = ((number * height + inside)[:, None] * width + step).ravel()
        columns = (blocks.indices.array[number].astype(np.int64)[:, None] * width + step).ravel()
        dtype = index_dtype(*self.shape, flat.size)
        pointers = np.zeros(self.shape[0] + 1, dtype)
        np.cumsum(counts * width, out=pointers[1:])
        shape = (self.shape[0], self.shape[1])
        return Pattern(shape, pointers, columns.astype(dtype)), OnDevices(flat.astype(dtype))

    @functools.cached_property
    def transposed(self) -> Structure:
        raise ShapeError("the blocks of a transposed matrix are others: see SparseTensor.T")


class DIA(Structure):
    """Diagonals, in SciPy's layout: values[k, j] is the element of column j on diagonal
    offsets[k]; what is outside of the matrix is not read."""

    format = "dia"

    def __init__(self, shape: Shape, offsets: Array, width: int) -> None:
        super().__init__(shape)
        self.offsets = frozen(offsets)
        self.width = width

    @property
    def values_shape(self) -> Shape:
        return (self.offsets.shape[0], self.width)

    def arrays(self) -> tuple[Array, ...]:
        return (self.offsets,)

    @functools.cached_property
    def rows(self) -> tuple[Pattern, OnDevices | None]:
        m, n = self.shape
        columns = np.arange(min(self.width, n))
        by_diagonal = columns[None, :] - self.offsets.astype(np.int64)[:, None]
        inside = (by_diagonal >= 0) & (by_diagonal < m)
        diagonal, column = np.nonzero(inside)
        row = by_diagonal[diagonal, column]
        by_column = np.lexsort((column, row))
        dtype = index_dtype(m, n, self.nnz)
        flat = (diagonal * self.width + column)[by_column].astype(dtype)
        pattern, _ = from_coordinates(row[by_column], column[by_column], (m, n))
        return pattern, OnDevices(flat)

    @functools.cached_property
    def transposed(self) -> Structure:
        raise ShapeError("the diagonals of a transposed matrix start elsewhere: see SparseTensor.T")


# -- helpers --------------------------------------------------------------------------------------


def require_matrix(shape: Shape, op: str) -> tuple[int, int]:
    if len(shape) != 2:
        raise ShapeError(
            f"{op}: takes a sparse matrix, but the shape is {shape}; reshape it to two axes"
        )
    return shape[0], shape[1]


def require_countable(shape: Sequence[int], op: str) -> None:
    """An axis whose indices an int64 can number."""
    if max(shape, default=0) >= 2**63:
        raise ShapeError(f"{op}: an axis of {max(shape)} is longer than an int64 can number")


def linear_index(coordinates: tuple[Array, ...], shape: Shape) -> Array:
    """Row-major numbers of index tuples."""
    if math.prod(shape) >= 2**63:
        raise ShapeError(f"sparse: a shape of {shape} has more elements than an int64 can number")
    total = np.zeros(coordinates[0].shape if coordinates else (), np.int64)
    for index, extent in zip(coordinates, shape, strict=True):
        total = total * extent + index
    return total
