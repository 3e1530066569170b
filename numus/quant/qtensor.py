"""Quantised tensors: packed codes, scales and zero points in the shape of their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numus as nm
from numus.dtypes import DType
from numus.errors import ShapeError
from numus.evaluation.evaluate import is_known
from numus.quant.formats import Format, Parts, as_format, check_parts
from numus.runtime.devices import Device
from numus.shapes import Shape, as_int, size_of
from numus.tensor import Tensor
from numus.transforms import tree

METADATA = "numus.quant"  # prefix of what is saved in a safetensors file


class QTensor:
    """A tensor whose values are stored in a format of few bits.

    Products read it as it is: `x @ q` unpacks in registers. It is a container of its parts, so
    that it passes through `nm.jit` and `nm.tree`; gradients reach what it is multiplied with.

    >>> import numus as nm
    >>> q = nm.quant.quantize(nm.ones((4, 64)), "int4-g32")
    >>> q
    QTensor(shape=(4, 64), format=int4-g32, dtype=float32, 144 bytes)
    >>> (nm.ones((1, 64)) @ q.T).shape
    (1, 4)
    """

    multiply: ClassVar[Callable[[Any, QTensor], Tensor]]  # set by `products`, which stands on this

    __slots__ = ("axis", "dtype", "format", "parts", "stored_shape")

    def __init__(
        self, format: Format, stored_shape: Shape, parts: Parts, dtype: DType, axis: int = -1
    ) -> None:
        self.format = format
        self.stored_shape = stored_shape  # with the axis of the groups last
        self.parts = parts
        self.dtype = dtype  # of dequantized values
        self.axis = axis  # along which groups run, negative

    # -- what it is -------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        shape = list(self.stored_shape[:-1])
        shape.insert(len(shape) + 1 + self.axis, self.stored_shape[-1])
        return tuple(shape)

    @property
    def ndim(self) -> int:
        return len(self.stored_shape)

    @property
    def size(self) -> int:
        return size_of(self.stored_shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(p.nbytes for p in self.parts)

    @property
    def bits(self) -> float:
        """Bits per element, scales included."""
        return 8 * self.nbytes / max(1, self.size)

    @property
    def device(self) -> Device:
        return self.parts[0].device

    def __repr__(self) -> str:
        return (
            f"QTensor(shape={self.shape}, format={self.format.name}, dtype={self.dtype.name}, "
            f"{self.nbytes} bytes)"
        )

    # -- what it stands for -----------------------------------------------------------------------

    def dequantize(self, dtype: DType | None = None) -> Tensor:
        """The values, in `dtype` or the dtype that was quantised."""
        if not self.size:
            return nm.zeros(self.shape, dtype=dtype or self.dtype, device=self.device)
        values = self.format.dequantize(self.parts, self.stored_shape)
        values = nm.moveaxis(values, -1, self.axis) if self.axis != -1 else values
        return values.astype(dtype or self.dtype, copy=False)

    def numpy(self) -> Any:
        """The values as a NumPy array."""
        return self.dequantize().numpy()

    def to(self, device: Any) -> QTensor:
        """The same on another device."""
        return self._with(tuple(p.to(device) for p in self.parts))

    def _with(self, parts: Parts) -> QTensor:
        return QTensor(self.format, self.stored_shape, parts, self.dtype, self.axis)

    # -- products ---------------------------------------------------------------------------------

    @property
    def T(self) -> QTensor:
        """The transposed matrix; its parts are the same."""
        if self.ndim != 2:
            raise ShapeError(f"T: a quantised tensor of shape {self.shape} is no matrix")
        return QTensor(self.format, self.stored_shape, self.parts, self.dtype, -3 - self.axis)

    def __rmatmul__(self, x: Any) -> Tensor:
        return QTensor.multiply(x, self)

    def __matmul__(self, x: Any) -> Tensor:
        x = nm.asarray(x, device=self.device)
        if self.ndim != 2 or x.ndim not in (1, 2):
            return nm.matmul(self.dequantize(x.dtype), x)
        return QTensor.multiply(x.T if x.ndim == 2 else x, self.T).T

    # -- views along groups -----------------------------------------------------------------------

    def __getitem__(self, index: Any) -> QTensor:
        """Some rows, or whole groups: slices, and integers of the axes in front."""
        index = index if isinstance(index, tuple) else (index,)
        if any(not isinstance(i, int | slice) for i in index) or len(index) > self.ndim:
            raise TypeError(f"{self!r} takes integers and slices, one for each axis; dequantize it")
        index = (*index, *[slice(None)] * (self.ndim - len(index)))
        if self.axis != -1:
            raise ShapeError(f"{self!r} is transposed; index it before that")
        *lead, last = index
        layout = self.format.layout(self.stored_shape)
        rows = self.stored_shape[:-1]
        if any(shape[:-1] != rows for shape, _ in layout.values()):
            raise TypeError(f"{self.format.name} has no views: its parts do not follow the axes")
        group = self.format.group_size
        start, stop, step = last.indices(self.shape[-1]) if isinstance(last, slice) else (0, 0, 0)
        whole = step == 1 and start % group == 0 and (stop % group == 0 or stop == self.shape[-1])
        if not whole:
            raise ShapeError(f"{self!r}: the last axis can be cut between groups of {group} only")
        if (start, stop) == (0, self.shape[-1]):  # of rows that share a scale, too
            parts = [part[(*lead, slice(None))] for part in self.parts]
            return QTensor(self.format, (*parts[0].shape[:-1], stop), tuple(parts), self.dtype)
        groups = -(-self.shape[-1] // group)
        if any(part.shape[-1] % groups for part in self.parts):
            raise ShapeError(f"{self!r}: the last axis cannot be cut: its values share a scale")
        first, end = start // group, -(-max(start, stop) // group)
        parts = []
        for part in self.parts:
            unit = part.shape[-1] // groups
            parts.append(part[(*lead, slice(first * unit, end * unit))])
        shape = (*parts[0].shape[:-1], max(0, stop - start))
        return QTensor(self.format, shape, tuple(parts), self.dtype)

    # -- files ------------------------------------------------------------------------------------

    def state(self, name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Tensors and metadata to save under a name; `from_state` reads them."""
        layout = self.format.layout(self.stored_shape)
        tensors = {f"{name}.{part}": t for part, t in zip(layout, self.parts, strict=True)}
        shape = "x".join(str(n) for n in self.stored_shape)
        described = f"{self.format.name} {shape} {self.axis} {self.dtype.name}"
        return tensors, {f"{METADATA}.{name}": described}

    @staticmethod
    def from_state(
        name: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
    ) -> QTensor:
        """What `state` described."""
        try:
            kind, sizes, axis, dtype = metadata[f"{METADATA}.{name}"].split(" ")
            shape = tuple(int(n) for n in sizes.split("x"))
            found = as_format(kind)
            parts = tuple(tensors[f"{name}.{part}"] for part in found.layout(shape))
        except KeyError as error:
            raise ValueError(
                f"{name}: {error.args[0]!r} is missing for a quantised tensor"
            ) from None
        check_parts(found, shape, parts)
        return QTensor(found, shape, parts, getattr(nm, dtype), int(axis))


def _check(x: Tensor) -> None:
    """Raise where a value is NaN or infinite, if the values are known."""
    if x.size and is_known(x._node):
        bad = int(nm.count_nonzero(~nm.isfinite(x)).item())
        if bad:
            raise ValueError(
                f"quantize: {bad} of {x.size} values are NaN or infinite, which no format can "
                "scale; nm.nan_to_num replaces them"
            )


HALF = 65504.0  # the largest float16, in which many formats keep scales


def _check_scales(x: Tensor, q: QTensor) -> None:
    """Raise where scales are beyond what the format stores, if the values are known."""
    if not x.size or not is_known(x._node) or (largest := nm.max(nm.abs(x)).item()) <= HALF:
        return
    if not nm.all(nm.isfinite(q.dequantize(nm.float32))).item():
        raise ValueError(
            f"quantize: values of up to {largest:.3g} are beyond the scales of {q.format.name}; "
            "divide them by a number first"
        )


def quantize(x: Any, format: str | Format = "int4-g128", *, axis: int = -1) -> QTensor:
    """Values rounded to a format of few bits.

    Args:
        x: floats of at least one axis.
        format: "int8-row", "int4-g128", "uint4-g64", "nf4-g64", "q8-b128", "fp8-e4m3-b128",
            "mxfp4", "q4_k" …, or a `Format`.
        axis: along which groups run: that over which products will sum.
    """
    x = nm.asarray(x)
    found = as_format(format)
    if x.ndim == 0:
        raise ShapeError("quantize: a scalar has no axis for groups")
    if x.dtype.kind != "float":
        raise TypeError(f"quantize takes floats, not {x.dtype.name}")
    place = as_int(axis, "axis", "quantize")
    if not -x.ndim <= place < x.ndim:
        raise ShapeError(f"quantize: axis={axis} is not one of shape {x.shape}")
    place = place - x.ndim if place >= 0 else place
    x = x.detach()
    _check(x)
    moved = nm.moveaxis(x, place, -1) if place != -1 else x
    layout = found.layout(moved.shape)
    if x.size:
        parts = found.quantize(moved.astype(nm.float32, copy=False))
    else:
        parts = tuple(nm.zeros(s, dtype=d, device=x.device) for s, d in layout.values())
    out = QTensor(found, moved.shape, parts, x.dtype, place)
    _check_scales(x, out)
    return out


def dequantize(q: QTensor, dtype: DType | None = None) -> Tensor:
    """The values that a quantised tensor stands for."""
    return q.dequantize(dtype)


tree.register(
    QTensor,
    lambda q: (q.parts, (q.format, q.stored_shape, q.dtype, q.axis)),
    lambda rest, parts: QTensor(rest[0], rest[1], tuple(parts), rest[2], rest[3]),
)
