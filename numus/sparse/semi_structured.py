"""2:4 structured sparsity (Mishra et al. 2021): two of every four adjacent elements are stored.

A matrix is its values, half as many, and metadata: two positions of two bits for each group of
four, two groups per byte. Tensor cores that know this format multiply it as it is; elsewhere
products unpack on the way into the kernel: the dense matrix is an expression that its operand is
read through, and is never in memory.
"""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.errors import DTypeError, ShapeError
from numus.graph import grad_mode
from numus.primitives.custom import graft
from numus.primitives.sparse import semi_structured_matmul
from numus.primitives.views import reshape
from numus.runtime.devices import default
from numus.shapes import Shape
from numus.tensor import Tensor
from numus.transforms import tree

GROUP = 4
_COLUMNS = 8  # columns come in bytes of metadata


def _groups(x: Any, op: str) -> Tensor:
    """(rows, groups, 4)."""
    found = nm.asarray(x)
    if found.ndim != 2 or found.shape[1] % _COLUMNS:
        raise ShapeError(
            f"{op}: takes a matrix whose number of columns is a multiple of {_COLUMNS}, not one "
            f"of shape {tuple(found.shape)}; pad it with zeros"
        )
    if not found.dtype.is_floating:
        raise DTypeError(f"{op}: takes floats, not {found.dtype.name}")
    return found.reshape(found.shape[0], found.shape[1] // GROUP, GROUP)


def _kept(groups: Tensor) -> Tensor:
    """Which two of each four are largest in magnitude, the first of equal ones."""
    size = nm.abs(nm.detach(groups))
    own, other = size[..., :, None], size[..., None, :]
    at = nm.arange(GROUP, device=groups.device)
    before = at[None, :] < at[:, None]
    larger = (other > own) | ((other == own) & before)
    return larger.astype(nm.int32).sum(-1) < 2


def prune_2_4(x: Any) -> Tensor:
    """A matrix with zeros in place of the two smallest of every four elements of a row.

    >>> nm.sparse.prune_2_4(nm.asarray([[1.0, -3.0, 0.5, 2.0, 4.0, 3.0, 2.0, 1.0]])).tolist()
    [[0.0, -3.0, 0.0, 2.0, 4.0, 3.0, 0.0, 0.0]]
    """
    groups = _groups(x, "prune_2_4")
    zero = nm.zeros((), dtype=groups.dtype, device=groups.device)
    return nm.where(_kept(groups), groups, zero).reshape(groups.shape[0], -1)


class SemiStructured:
    """A matrix with 2:4 structured sparsity: values (rows, columns / 2) and metadata in bytes
    (rows, columns / 8). A container of both; the values are what is differentiated.

    >>> a = nm.sparse.to_semi_structured(nm.asarray([[1.0, 0, 2, 0, 0, 3, 0, 4]]))
    >>> a
    SemiStructured(shape=(1, 8), dtype=float32)
    >>> a.values.tolist(), (a @ nm.ones(8)).tolist()
    ([[1.0, 2.0, 3.0, 4.0]], [10.0])
    """

    __slots__ = ("metadata", "values")
    __array_ufunc__ = None  # NumPy leaves `array @ matrix` to this class

    def __init__(self, values: Tensor, metadata: Tensor) -> None:
        self.values, self.metadata = values, metadata

    @property
    def shape(self) -> Shape:
        return (self.values.shape[0], 2 * self.values.shape[1])

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    def __repr__(self) -> str:
        return f"SemiStructured(shape={self.shape}, dtype={self.dtype.name})"

    def with_values(self, values: Any) -> SemiStructured:
        """Other values at the same positions."""
        found = nm.asarray(values)
        if tuple(found.shape) != tuple(self.values.shape):
            raise ShapeError(f"with_values: {tuple(found.shape)} for {self!r}")
        return SemiStructured(found, self.metadata)

    def to_dense(self) -> Tensor:
        """The matrix with its zeros."""
        rows, half = self.values.shape
        nibble = _nibbles(self.metadata, half // 2)
        at = nm.arange(GROUP, dtype=nm.int32, device=self.values.device)
        pairs = self.values.reshape(rows, half // 2, 2)
        zero = nm.zeros((), dtype=self.dtype, device=self.values.device)
        first = nm.where(at == (nibble & 3), pairs[..., :1], zero)
        second = nm.where(at == nm.right_shift(nibble, 2), pairs[..., 1:], zero)
        return (first + second).reshape(self.shape)

    def __matmul__(self, other: Any) -> Tensor:
        """Times a vector or columns: by sparse tensor cores where the device has them and there
        are many columns, else unpacked as the kernel reads it."""
        right = nm.asarray(other)
        dense = self.to_dense() @ right
        return dense if not self.has_sparse_cores(right) else self._on_sparse_cores(right, dense)

    def has_sparse_cores(self, x: Tensor) -> bool:
        """Whether sparse tensor cores multiply it with these columns."""
        target = (x._node.device or self.values._node.device or default.device).runtime.target
        rows, k = self.shape
        if not target.wgmma or x.ndim != 2 or x.dtype is not self.dtype or x.shape[0] != k:
            return False
        from numus.kernels.matmul.gpu import sparse_wgmma  # not before a GPU is used

        return sparse_wgmma.supports(target, self.dtype, rows, x.shape[1], k)

    def _on_sparse_cores(self, x: Tensor, dense: Tensor) -> Tensor:
        """The product, differentiated as that of the unpacked matrix."""
        nodes = (self.values._node, self.metadata._node, x._node)
        with grad_mode(False):
            found = semi_structured_matmul(*(reshape(y, (1, *y.shape)) for y in nodes))
            found = reshape(found, found.shape[1:])
        return Tensor(graft(found, dense._node) if dense._node.tracked else found)

    def __rmatmul__(self, other: Any) -> Tensor:
        return nm.asarray(other) @ self.to_dense()


def _nibbles(metadata: Tensor, groups: int) -> Tensor:
    """The two positions of each group, as (rows, groups, 1)."""
    wide = metadata.astype(nm.int32)[:, :, None]
    shifts = 4 * nm.arange(2, dtype=nm.int32, device=metadata.device)
    return (nm.right_shift(wide, shifts) & 15).reshape(metadata.shape[0], groups, 1)


def to_semi_structured(x: Any) -> SemiStructured:
    """Compress a matrix: the two largest of every four elements of a row, which are all where it
    was pruned before (`prune_2_4`).

    >>> nm.sparse.to_semi_structured(nm.asarray([[1.0, 0, 2, 0, 0, 3, 0, 4]])).metadata.tolist()
    [[216]]
    """
    groups = _groups(x, "to_semi_structured")
    kept = _kept(groups).astype(nm.int32)
    first = nm.argmax(kept, axis=-1)
    second = GROUP - 1 - nm.argmax(nm.flip(kept, axis=-1), axis=-1)
    where = nm.stack([first, second], axis=-1)
    values = nm.take_along_axis(groups, where, axis=-1)
    rows, count = groups.shape[0], groups.shape[1]
    nibble = (first + 4 * second).astype(nm.int32).reshape(rows, count // 2, 2)
    metadata = (nibble[..., 0] + 16 * nibble[..., 1]).astype(nm.uint8)
    return SemiStructured(values.reshape(rows, 2 * count), metadata)


tree.register(
    SemiStructured,
    lambda a: ([a.values, a.metadata], None),
    lambda _, leaves: SemiStructured(leaves[0], leaves[1]),
)
