"""Batched CSR: many matrices of one pattern, as those of an assembly with many coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numus as nm
from numus.dtypes import DType
from numus.errors import ShapeError
from numus.runtime.devices import Device
from numus.shapes import Shape
from numus.sparse import parts
from numus.sparse.creation import csr_tensor
from numus.sparse.structure import CSR
from numus.sparse.tensor import SparseTensor
from numus.tensor import Tensor
from numus.transforms import tree


class BatchedCSR:
    """Sparse matrices that share a structure: values (batch, nnz).

    A container of its values, as `SparseTensor` is: it passes through `nm.jit` and `nm.grad`.

    >>> values = nm.asarray([[1.0, 2.0], [3.0, 4.0]])
    >>> a = nm.sparse.batched_csr_tensor([0, 1, 2], [1, 0], values, (2, 2))
    >>> a
    BatchedCSR(shape=(2, 2, 2), nnz=2, dtype=float32)
    >>> (a @ nm.asarray([1.0, 10.0])).tolist()
    [[10.0, 2.0], [30.0, 4.0]]
    """

    __slots__ = ("structure", "values")
    __array_ufunc__ = None

    def __init__(self, structure: CSR, values: Tensor) -> None:
        self.structure, self.values = structure, values

    @property
    def shape(self) -> Shape:
        return (self.values.shape[0], *self.structure.shape)

    @property
    def nnz(self) -> int:
        """Stored values of each matrix."""
        return self.structure.nnz

    @property
    def dtype(self) -> DType:
        return self.values.dtype

    @property
    def device(self) -> Device:
        return self.values.device

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"BatchedCSR(shape={self.shape}, nnz={self.nnz}, dtype={self.dtype.name})"

    def __getitem__(self, index: int) -> SparseTensor:
        """One of the matrices."""
        return SparseTensor(self.structure, self.values[index])

    def with_values(self, values: Any) -> BatchedCSR:
        """Other values on the same structure, as many matrices as they have rows."""
        found = nm.asarray(values, device=self.device)
        if found.ndim != 2 or found.shape[1] != self.nnz:
            raise ShapeError(f"with_values: {tuple(found.shape)} for {self!r}")
        return BatchedCSR(self.structure, found)

    def to_dense(self) -> Tensor:
        """(batch, rows, columns)."""
        found: Tensor = nm.vmap(lambda v: parts.to_dense(self.structure, v))(self.values)
        return found

    @property
    def mT(self) -> BatchedCSR:
        """Every matrix transposed."""
        pattern, order = self.structure.pattern.transposed
        at = nm.asarray(order.array, device=self.device).astype(nm.int64)
        return BatchedCSR(parts.csr_of(pattern), nm.take(self.values, at, axis=1))

    def __mul__(self, factor: Any) -> BatchedCSR:
        """Times a number, or one for each matrix."""
        by = nm.asarray(factor, device=self.device)
        if by.ndim > 1 or (by.ndim == 1 and by.shape[0] != self.shape[0]):
            raise ShapeError(f"multiply: {tuple(by.shape)} is no number per matrix of {self!r}")
        return BatchedCSR(self.structure, self.values * (by[:, None] if by.ndim else by))

    __rmul__ = __mul__

    def __matmul__(self, other: Any) -> Tensor:
        """Times a vector or columns that all share, or (batch, rows, columns): some for each."""
        x = nm.asarray(other, device=self.device)
        count, _, n = self.shape
        shared = x.ndim in (1, 2) and x.shape[0] == n
        if not shared and not (x.ndim == 3 and x.shape[:2] == (count, n)):
            raise ShapeError(
                f"matmul: {self!r} times a dense {tuple(x.shape)}; it takes ({n},), ({n}, columns) "
                f"or ({count}, {n}, columns)"
            )
        found: Tensor = nm.vmap(
            lambda v, x: SparseTensor(self.structure, v) @ x, in_axes=(0, None if shared else 0)
        )(self.values, x)
        return found


def batched_csr_tensor(
    pointers: Any, indices: Any, values: Any, shape: Sequence[int], *, dtype: Any = None,
    device: Any = None,
) -> BatchedCSR:  # fmt: skip
    """Sparse matrices of one pattern from compressed rows.

    Args:
        pointers: where each row starts among the indices, and their number: rows + 1 of them.
        indices: the column of each value, row by row.
        values: (batch, nnz): a number for each index, of each matrix.
        shape: (rows, columns) of a matrix.
        dtype: of the values; as they have it, where it is None.
        device: of the values.

    >>> nm.sparse.batched_csr_tensor([0, 1], [0], [[1.0], [2.0]], (1, 1)).to_dense().tolist()
    [[[1.0]], [[2.0]]]
    """
    found = nm.asarray(values, dtype=dtype, device=device)
    if found.ndim != 2:
        raise ShapeError(
            f"batched_csr_tensor: values have the shape (batch, nnz), not {tuple(found.shape)}"
        )
    one = csr_tensor(pointers, indices, nm.zeros((found.shape[1],)), shape)
    assert isinstance(one.structure, CSR)
    return BatchedCSR(one.structure, found)


tree.register(
    BatchedCSR, lambda a: ([a.values], a.structure), lambda s, leaves: BatchedCSR(s, leaves[0])
)
