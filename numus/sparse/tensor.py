"""Sparse tensors: a structure, and a tensor of values that is traced and differentiated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import numus as nm
from numus import dtypes as dt
from numus.dtypes import DType
from numus.errors import DTypeError, ShapeError
from numus.evaluation.evaluate import is_known
from numus.runtime.devices import Device
from numus.shapes import Shape, normal_axis, size_of
from numus.sparse import parts
from numus.sparse.indexing import indexed
from numus.sparse.structure import FORMATS, Structure, require_matrix
from numus.tensor import Tensor
from numus.transforms import tree

Axes = int | Sequence[int] | None


class SparseTensor:
    """A tensor of which few elements are stored: a structure and their values.

    It is a container of its values, so that it passes through `nm.jit`, `nm.grad` and `nm.vmap`;
    the structure is static, and a derivative by a sparse tensor is one of the same structure.

    >>> import numus as nm
    >>> a = nm.sparse.csr_tensor([0, 2, 3], [0, 2, 1], [1.0, 2.0, 3.0], (2, 3))
    >>> a
    SparseTensor(csr, shape=(2, 3), nnz=3, dtype=float32)
    >>> (a @ nm.asarray([1.0, 1.0, 2.0])).tolist()
    [5.0, 3.0]
    >>> nm.grad(lambda a: nm.sum((a @ nm.ones(3)) ** 2))(a).values.tolist()
    [6.0, 6.0, 6.0]
    """

    __slots__ = ("structure", "values")
    __array_priority__ = 1000  # NumPy leaves `array @ sparse` to this class
    __array_ufunc__ = None

    def __init__(self, structure: Structure, values: Tensor) -> None:
        self.structure = structure
        self.values = values

    # -- what it is -------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        return self.structure.shape

    @property
    def ndim(self) -> int:
        return self.structure.ndim

    @property
    def size(self) -> int:
        """Elements, stored or not."""
        return size_of(self.shape)

    @property
    def nnz(self) -> int:
        """Stored values, zeros among them too."""
        return self.structure.nnz

    @property
    def format(self) -> str:
        return self.structure.format

    @property
    def dtype(self) -> DType:
        return self.values.dtype

    @property
    def device(self) -> Device:
        return self.values.device

    def __repr__(self) -> str:
        return (
            f"SparseTensor({self.format}, shape={self.shape}, nnz={self.nnz}, "
            f"dtype={self.dtype.name})"
        )

    def __bool__(self) -> bool:
        raise TypeError("the truth of a sparse tensor is ambiguous; use its values, or to_dense()")

    def __len__(self) -> int:
        raise TypeError("the length of a sparse tensor is ambiguous: use shape[0] or nnz")

    def with_values(self, values: Any) -> SparseTensor:
        """Other values on the same structure."""
        values = nm.asarray(values, device=self.device)
        if tuple(values.shape) != self.structure.values_shape:
            raise ShapeError(
                f"with_values: {self!r} has values of shape {self.structure.values_shape}, "
                f"not {tuple(values.shape)}"
            )
        return SparseTensor(self.structure, values)

    def map(self, function: Callable[[Tensor], Tensor]) -> SparseTensor:
        """A function of the stored values alone: exact for all that have f(0) = 0."""
        a = self.sum_duplicates() if self._twice else self
        return a.with_values(function(a.values))

    @property
    def _twice(self) -> bool:
        return not parts.is_canonical(self.structure)

    def astype(self, dtype: Any) -> SparseTensor:
        return SparseTensor(self.structure, self.values.astype(dtype))

    def to(self, device: Any) -> SparseTensor:
        """The same on another device."""
        return SparseTensor(self.structure, self.values.to(device))

    # -- formats ----------------------------------------------------------------------------------

    @property
    def _parts(self) -> parts.Parts:
        return self.structure, self.values

    def to_coo(self) -> SparseTensor:
        """As coordinates."""
        return SparseTensor(*parts.to_coo(*self._parts))

    def to_csr(self) -> SparseTensor:
        """As compressed rows."""
        self._matrix("to_csr")
        return SparseTensor(*parts.to_csr(*self._parts))

    def to_csc(self) -> SparseTensor:
        """As compressed columns."""
        self._matrix("to_csc")
        return SparseTensor(*parts.to_csc(*self._parts))

    def to_bsr(self, block: tuple[int, int]) -> SparseTensor:
        """As compressed rows of dense blocks; zeros are stored where a block has some."""
        return SparseTensor(*parts.to_bsr(*self._parts, block))

    def to_dia(self) -> SparseTensor:
        """As diagonals; zeros are stored where a diagonal has some."""
        return SparseTensor(*parts.to_dia(*self._parts))

    def asformat(self, format: str) -> SparseTensor:
        """In a format: "coo", "csr", "csc" or "dia"."""
        if format not in FORMATS or format == "bsr":
            raise ValueError(
                f"asformat: {format!r} must be one of 'coo', 'csr', 'csc', 'dia'; "
                "blocks have a size: use to_bsr"
            )
        found: SparseTensor = getattr(self, f"to_{format}")()
        return found

    def to_dense(self) -> Tensor:
        """With all elements."""
        return parts.to_dense(*self._parts)

    def numpy(self) -> Any:
        """All elements as a NumPy array."""
        return self.to_dense().numpy()

    def coalesce(self) -> SparseTensor:
        """See sum_duplicates; PyTorch's name."""
        return self.sum_duplicates()

    def sum_duplicates(self) -> SparseTensor:
        """Indices in order, each once: values of one position are added up."""
        if self.format == "coo":
            structure, values = parts.to_coo(*self._parts)
            return SparseTensor(*parts.merged(structure, values))  # type: ignore[arg-type]
        if not self._twice:
            return self
        if self.format == "csc":
            return self.T.sum_duplicates().T
        pattern, values = parts.canonical(*self._parts)
        return SparseTensor(parts.csr_of(pattern), values)

    def eliminate_zeros(self) -> SparseTensor:
        """Without stored zeros. The structure depends on the values, so they have to be known."""
        a = self.sum_duplicates()
        if not is_known(a.values._node):
            raise ValueError("eliminate_zeros: inside a trace the structure must not change")
        structure, values = parts.to_coo(*a._parts)
        keep = np.flatnonzero(values.numpy())
        return _like(*parts.selected(structure, values, keep), self)

    # -- views of axes ----------------------------------------------------------------------------

    def _matrix(self, op: str) -> tuple[int, int]:
        return require_matrix(self.shape, op)

    @property
    def T(self) -> SparseTensor:
        """The transposed matrix: rows become columns, and CSR becomes CSC with the same values."""
        self._matrix("T")
        return self.transpose()

    @property
    def mT(self) -> SparseTensor:
        return self.T

    @property
    def H(self) -> SparseTensor:
        """The conjugate transpose."""
        return self.T.conj()

    def transpose(self, axes: Sequence[int] | None = None) -> SparseTensor:
        """Axes in another order, reversed where none is given."""
        if axes is None:
            axes = range(self.ndim)[::-1]
        order = [normal_axis(a, self.ndim, "transpose") for a in axes]
        if sorted(order) != list(range(self.ndim)):
            raise ShapeError(f"transpose: {tuple(axes)} does not permute {self.ndim} axes")
        return SparseTensor(*parts.transpose(*self._parts, order))

    def reshape(self, *shape: Any) -> SparseTensor:
        """In another shape of the same size, as coordinates."""
        wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return SparseTensor(*parts.reshape(*self._parts, tuple(wanted)))

    def __getitem__(self, key: Any) -> Any:
        """Integers, slices, index arrays and masks; a tensor where no axis or one of pairs is left.

        >>> a = nm.sparse.eye(3)
        >>> a[1:, ::-1].to_dense().tolist()
        [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
        """
        structure, values = indexed(self.structure, self.values, key)
        return values if structure is None else _like(structure, values, self)

    # -- arithmetic -------------------------------------------------------------------------------

    def _other(self, op: str, other: SparseTensor) -> tuple[parts.Parts, parts.Parts]:
        if self.shape != other.shape:
            raise ShapeError(f"{op}: sparse tensors of shapes {self.shape} and {other.shape}")
        dtype = dt.promote(self.dtype, other.dtype)
        return self.astype(dtype)._parts, other.astype(dtype)._parts

    def __add__(self, other: Any) -> Any:
        if isinstance(other, SparseTensor):
            return SparseTensor(*parts.add(*self._other("add", other)))
        if not _is_dense(other):
            return NotImplemented
        if dt.scalar_kind(other) is not None and other == 0:
            return self
        return self.to_dense() + nm.asarray(other, device=self.device)

    __radd__ = __add__

    def __neg__(self) -> SparseTensor:
        return SparseTensor(self.structure, -self.values)

    def __pos__(self) -> SparseTensor:
        return self

    def __abs__(self) -> SparseTensor:
        return self.map(nm.abs)

    def __sub__(self, other: Any) -> Any:
        return (
            self + (-other)
            if _is_dense(other) or isinstance(other, SparseTensor)
            else NotImplemented
        )

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        """Elements times those of a sparse tensor, a number, or a dense tensor that broadcasts."""
        if isinstance(other, SparseTensor):
            return SparseTensor(*parts.multiply(*self._other("multiply", other)))
        return self._scaled(other, nm.multiply)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self._scaled(other, nm.divide)

    def _scaled(self, other: Any, function: Callable[[Any, Any], Tensor]) -> Any:
        if not _is_dense(other):
            return NotImplemented
        if dt.scalar_kind(other) is not None:
            return SparseTensor(self.structure, function(self.values, other))
        other = nm.asarray(other, device=self.device)
        if other.ndim == 0:
            return SparseTensor(self.structure, function(self.values, other))
        structure, values = self._parts
        if self.format in ("bsr", "dia"):
            structure, values = parts.to_csr(structure, values)
        if self.format == "csc":
            return self.T._scaled(_swapped(other), function).T
        return SparseTensor(structure, function(values, parts.at_entries(structure, other)))

    def __pow__(self, power: Any) -> Any:
        if dt.scalar_kind(power) is None or power <= 0:
            raise ValueError("power: of a sparse tensor, the exponent is a positive number")
        return self.map(lambda values: values**power)

    def conj(self) -> SparseTensor:
        return SparseTensor(self.structure, nm.conj(self.values))

    # -- products ---------------------------------------------------------------------------------

    def __matmul__(self, other: Any) -> Any:
        """A vector, columns, or another sparse matrix."""
        m, n = self._matrix("matmul")
        if isinstance(other, SparseTensor):
            other._matrix("matmul")
            dtype = dt.promote(self.dtype, other.dtype)
            a, b = self.astype(dtype), other.astype(dtype)
            return SparseTensor(*parts.matmul_sparse(a._parts, b._parts))
        if not _is_dense(other):
            return NotImplemented
        x, values = _operands(self, other)
        if x.ndim == 0 or x.shape[0 if x.ndim == 1 else -2] != n:
            raise ShapeError(f"matmul: a sparse {self.shape} times a dense {tuple(x.shape)}")
        return _columns(x, m, lambda x: parts.matmul_dense(self.structure, values, x))

    def __rmatmul__(self, other: Any) -> Any:
        m, n = self._matrix("matmul")
        if not _is_dense(other):
            return NotImplemented
        x, values = _operands(self, other)
        if x.ndim == 0 or x.shape[-1] != m:
            raise ShapeError(f"matmul: a dense {tuple(x.shape)} times a sparse {self.shape}")
        if x.ndim == 1:
            return parts.transposed_matmul_dense(self.structure, values, x[:, None])[:, 0]
        rows = x.reshape(size_of(x.shape[:-1]), m)
        out = parts.transposed_matmul_dense(self.structure, values, rows.mT).mT
        return out.reshape(*x.shape[:-1], n)

    def dot(self, other: Any) -> Any:
        """See `@`."""
        return self @ other

    # -- reductions -------------------------------------------------------------------------------

    def _axes(self, op: str, axis: Axes) -> Shape:
        if axis is None:
            return tuple(range(self.ndim))
        given = (axis,) if isinstance(axis, int) else tuple(axis)
        return tuple(sorted({normal_axis(a, self.ndim, op) for a in given}))

    def _kept(self, found: Tensor, axes: Shape, keepdims: bool) -> Tensor:
        if not keepdims:
            return found
        return found.reshape(tuple(1 if i in axes else n for i, n in enumerate(self.shape)))

    def sum(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        """The sum over all elements, or over axes; a dense tensor. Integers are added in int64."""
        axes = self._axes("sum", axis)
        if len(axes) == self.ndim:
            return self._kept(parts.entries(*self._parts).sum(), axes, keepdims)
        dtype = nm.sum(nm.zeros((0,), dtype=self.dtype)).dtype
        a = self.astype(dtype) if dtype is not self.dtype else self
        if self.ndim == 2:
            ones = nm.ones((self.shape[axes[0]],), dtype=dtype, device=self.device)
            return self._kept(a @ ones if axes == (1,) else ones @ a, axes, keepdims)
        pattern, values, shape = parts.reduced(*a._parts, axes)
        return self._kept(parts.row_sums(pattern, values).reshape(shape), axes, keepdims)

    def mean(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        """The mean over all elements, stored or not, or over axes."""
        axes = self._axes("mean", axis)
        return self.sum(axes, keepdims) / size_of(tuple(self.shape[a] for a in axes))

    def max(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        """The largest element, the zeros that are not stored included."""
        return self._extreme("max", axis, keepdims)

    def min(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        """The smallest element, the zeros that are not stored included."""
        return self._extreme("min", axis, keepdims)

    def _extreme(self, op: str, axis: Axes, keepdims: bool) -> Tensor:
        a = self.sum_duplicates()
        axes = a._axes(op, axis)
        if a.size == 0:
            raise ShapeError(f"{op}: a sparse tensor of shape {a.shape} has no elements")
        if a.dtype.is_complex:
            raise DTypeError(f"{op}: complex numbers have no order")
        whole = a.astype(dt.uint8) if a.dtype is dt.bool_ else a
        pattern, values, shape = parts.reduced(*whole._parts, axes)
        found = parts.row_extremes(op, pattern, values).astype(a.dtype, copy=False)
        return self._kept(found.reshape(shape), axes, keepdims)

    def diagonal(self, k: int = 0) -> Tensor:
        """The elements of diagonal k, above the main one where k is positive."""
        m, n = self._matrix("diagonal")
        rows = np.arange(max(0, -k), max(max(0, -k), min(m, n - k)))
        found: Tensor = self[rows, rows + k]
        return found

    def trace(self) -> Tensor:
        """The sum of the diagonal."""
        return self.diagonal().sum()


def _is_dense(x: Any) -> bool:
    return isinstance(x, (Tensor, np.ndarray, np.generic)) or dt.scalar_kind(x) is not None


def _swapped(x: Tensor) -> Tensor:
    return x.reshape(-1, 1) if x.ndim == 1 else x.mT


def _operands(a: SparseTensor, other: Any) -> tuple[Tensor, Tensor]:
    x = nm.asarray(other, device=a.device)
    dtype = dt.promote(a.dtype, x.dtype)
    if dtype is dt.bool_:
        dtype = dt.int64
    return x.astype(dtype, copy=False), a.values.astype(dtype, copy=False)


def _columns(x: Tensor, rows: int, function: Callable[[Tensor], Tensor]) -> Tensor:
    """A product with columns for operands of one, two or more axes (stacks of matrices)."""
    if x.ndim == 1:
        return function(x[:, None])[:, 0]
    if x.ndim == 2:
        return function(x)
    *lead, n, k = x.shape
    count = size_of(tuple(lead))
    wide = nm.moveaxis(x.reshape(count, n, k), 0, 1).reshape(n, count * k)
    out = function(wide).reshape(rows, count, k)
    return nm.moveaxis(out, 1, 0).reshape(*lead, rows, k)


def _like(structure: Structure, values: Tensor, like: SparseTensor) -> SparseTensor:
    if structure.ndim != 2:
        return SparseTensor(structure, values)
    return SparseTensor(*parts.format_like(structure, values, like.structure))


tree.register(
    SparseTensor, lambda a: ([a.values], a.structure), lambda s, xs: SparseTensor(s, xs[0])
)
