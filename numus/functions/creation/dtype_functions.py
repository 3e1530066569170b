"""Dtypes as the array API asks about them, and conversions between them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.dtypes import DType, as_dtype
from numus.errors import DTypeError
from numus.functions._base import method, moved, node_of, owned, wrap
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.runtime.devices import Device
from numus.runtime.devices import device as as_device
from numus.tensor import Tensor

__all__ = [
    "astype", "can_cast", "finfo", "iinfo", "isdtype", "promote_types", "result_type",
]  # fmt: skip


@method()
def astype(
    x: Tensor, dtype: Any, /, *, copy: bool = True, device: Device | str | None = None
) -> Tensor:
    """x in another dtype.

    Floats become integers towards zero, clamped to the integers' range; NaN becomes 0.

    Args:
        copy: whether to make a new tensor even where nothing changes.

    >>> nm.astype(nm.asarray([1.7, -1.7]), nm.int32)
    tensor([ 1, -1], dtype=int32)
    """
    node = node_of(x, "astype")
    wanted = as_dtype(dtype)
    dev = node.device if device is None else as_device(device)
    if not copy and node.dtype is wanted and node.device is dev and isinstance(x, Tensor):
        return x
    if dev is not None:
        dev.require(wanted, "astype")
    out = convert(node, wanted, "astype")
    out = out if dev is None else moved(out, dev)
    return wrap(owned(out, node))


def convert(node: Node, dtype: DType, op: str) -> Node:
    """A node in another dtype; complex numbers do not lose their imaginary part unasked."""
    if node.dtype.is_complex and dtype.kind not in ("complex", "bool"):
        raise DTypeError(
            f"{op}: {node.dtype.name} to {dtype.name} would drop the imaginary part; "
            "take nm.real(x), nm.imag(x) or nm.abs(x) first"
        )
    return ew.cast(node, dtype)


def _converter(dtype: DType, name: str) -> None:
    def method_(self: Tensor) -> Tensor:
        return astype(self, dtype)

    method_.__name__ = name
    method_.__doc__ = f"The tensor in {dtype.name}."
    setattr(Tensor, name, method_)


_CONVERTERS = {
    **{"bool": dt.bool_, "int": dt.int32, "long": dt.int64, "half": dt.float16},
    **{"bfloat16": dt.bfloat16, "float": dt.float32, "double": dt.float64},
}
for _name, _dtype in _CONVERTERS.items():
    _converter(_dtype, _name)


@method()
def to_dtype(self: Tensor, dtype: Any, /) -> Tensor:
    """The tensor in another dtype."""
    return astype(self, dtype)


@dataclass(frozen=True)
class FloatInfo:
    """The limits of a floating-point dtype."""

    bits: int
    eps: float  # the step from 1 to the next number
    max: float
    min: float
    smallest_normal: float
    smallest_subnormal: float
    dtype: DType

    @property
    def tiny(self) -> float:
        """NumPy's name for the smallest normal number."""
        return self.smallest_normal


@dataclass(frozen=True)
class IntegerInfo:
    """The limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


def _dtype_of(given: Any) -> DType:
    """The dtype of an array, or a dtype itself."""
    is_array = isinstance(given, (Tensor, np.ndarray, np.generic))
    return as_dtype(given.dtype if is_array else given)


def finfo(type: Any, /) -> FloatInfo:
    """The limits of a floating-point dtype (of its parts, for a complex one)."""
    dtype = dt.real_of(_dtype_of(type))
    if dtype.kind != "float":
        raise DTypeError(f"finfo: {dtype.name} is not a floating-point dtype; see nm.iinfo")
    eps = 2.0**-dtype.mantissa
    bias = (1 << (dtype.exponent - 1)) - 1
    # float8_e4m3fn has no infinities: all but the last value of its top exponent are numbers
    top = 448.0 if dtype is dt.float8_e4m3fn else (2 - eps) * 2.0**bias
    normal = 2.0 ** (1 - bias)
    return FloatInfo(dtype.bits, eps, top, -top, normal, normal * eps, dtype)


def ends(dtype: DType) -> tuple[float, float]:
    """The least and largest values of a floating-point dtype, infinities included."""
    if dtype is dt.float8_e4m3fn:  # it has no infinities
        return finfo(dtype).min, finfo(dtype).max
    return -math.inf, math.inf


def iinfo(type: Any, /) -> IntegerInfo:
    """The limits of an integer dtype."""
    dtype = _dtype_of(type)
    if not dtype.is_integer:
        raise DTypeError(f"iinfo: {dtype.name} is not an integer dtype; see nm.finfo")
    low, high = dt.int_range(dtype)
    return IntegerInfo(dtype.bits, high, low, dtype)


_KINDS: dict[str, tuple[str, ...]] = {
    **{"bool": ("bool",), "signed integer": ("int",), "unsigned integer": ("uint",)},
    **{"real floating": ("float",), "complex floating": ("complex",), "integral": ("int", "uint")},
    "numeric": ("int", "uint", "float", "complex"),
}


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind: another dtype, a name from the array API, or a tuple of those.

    >>> nm.isdtype(nm.float32, "real floating")
    True
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str) and kind in _KINDS:
        return as_dtype(dtype).kind in _KINDS[kind]
    if isinstance(kind, str) and kind not in dt.BY_NAME:
        raise ValueError(f"isdtype: there is no kind {kind!r}; kinds: {', '.join(_KINDS)}")
    return as_dtype(dtype) is as_dtype(kind)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether promotion may turn one dtype (or a tensor's) into another.

    >>> nm.can_cast(nm.int8, nm.int32), nm.can_cast(nm.float32, nm.int32)
    (True, False)
    """
    return dt.can_cast(_dtype_of(from_), as_dtype(to))


def promote_types(type1: Any, type2: Any, /) -> DType:
    """The dtype of an operation on two."""
    return dt.promote(as_dtype(type1), as_dtype(type2))


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The dtype of an operation on all of these: tensors, dtypes and (weak) Python scalars.

    >>> nm.result_type(nm.float32, nm.int16, 1.0)
    numus.float32
    """
    kinds = (k for k in map(dt.scalar_kind, arrays_and_dtypes) if k is not None)
    given = [_dtype_of(x) for x in arrays_and_dtypes if dt.scalar_kind(x) is None]
    if not given:
        raise ValueError("result_type: at least one argument must be an array or a dtype")
    return functools.reduce(dt.promote_scalar, kinds, functools.reduce(dt.promote, given))
