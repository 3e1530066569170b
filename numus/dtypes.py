"""Dtypes and the rules by which they combine.

Promotion follows the array API standard where it speaks (same kind: the wider one; mixed kinds
within the real and complex floats) and PyTorch and JAX where it is silent: an integer or bool array
takes the dtype of the float or complex one it meets. Python's and NumPy's scalars are weak: they
take the dtype of the array they meet, as long as their kind fits it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numus.errors import DTypeError

__all__ = [
    "DType", "bfloat16", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float16",
    "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
]  # fmt: skip

NumPyDType = np.dtype[Any]

# kind -> rank; a higher rank absorbs a lower one
_KIND_RANK = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}


make_tensor: Callable[..., Any] = None  # type: ignore[assignment]  # nm.asarray puts itself here


class DType:
    """One element type. Instances are singletons, compared by identity."""

    __slots__ = ("_np", "bits", "exponent", "itemsize", "kind", "mantissa", "name")

    def __init__(
        self, name: str, kind: str, itemsize: int, mantissa: int = 0, exponent: int = 0
    ) -> None:
        self.name = name
        self.kind = kind  # bool, uint, int, float, complex
        self.itemsize = itemsize
        self.bits = itemsize * 8
        self.mantissa = mantissa  # stored fraction bits of a float
        self.exponent = exponent  # exponent bits of a float
        self._np: NumPyDType | None = None

    def __call__(self, value: Any = 0) -> Any:
        """A tensor of this dtype, as NumPy's and JAX's scalar types make one: `nm.float32(0.1)`."""
        return make_tensor(value, dtype=self)

    @property
    def np(self) -> NumPyDType:
        """The NumPy dtype of the same bits (from ml_dtypes for bfloat16 and the 8-bit floats)."""
        if self._np is None:
            if self.name in _ML_DTYPES:
                import ml_dtypes

                self._np = np.dtype(getattr(ml_dtypes, self.name))
            else:
                self._np = np.dtype(self.name)
        return self._np

    @property
    def dtype(self) -> NumPyDType:
        """Lets `numpy.dtype(nm.float32)` work."""
        return self.np

    @property
    def is_floating(self) -> bool:
        return self.kind == "float"

    @property
    def is_complex(self) -> bool:
        return self.kind == "complex"

    @property
    def is_inexact(self) -> bool:
        return self.kind in ("float", "complex")

    @property
    def is_integer(self) -> bool:
        return self.kind in ("uint", "int")

    @property
    def is_low_precision(self) -> bool:
        """A float that is stored narrow and computed in float32."""
        return self.kind == "float" and self.itemsize < 4

    def __repr__(self) -> str:
        return f"numus.{self.name}"

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (as_dtype, (self.name,))


_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")

bool_ = DType("bool", "bool", 1)
uint8 = DType("uint8", "uint", 1)
uint16 = DType("uint16", "uint", 2)
uint32 = DType("uint32", "uint", 4)
uint64 = DType("uint64", "uint", 8)
int8 = DType("int8", "int", 1)
int16 = DType("int16", "int", 2)
int32 = DType("int32", "int", 4)
int64 = DType("int64", "int", 8)
float16 = DType("float16", "float", 2, 10, 5)
bfloat16 = DType("bfloat16", "float", 2, 7, 8)
float32 = DType("float32", "float", 4, 23, 8)
float64 = DType("float64", "float", 8, 52, 11)
float8_e4m3fn = DType("float8_e4m3fn", "float", 1, 3, 4)
float8_e5m2 = DType("float8_e5m2", "float", 1, 2, 5)
complex64 = DType("complex64", "complex", 8, 23, 8)
complex128 = DType("complex128", "complex", 16, 52, 11)

ALL: tuple[DType, ...] = (
    *(bool_, uint8, uint16, uint32, uint64, int8, int16, int32, int64),
    *(float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, float64, complex64, complex128),
)
BY_NAME: dict[str, DType] = {d.name: d for d in ALL}
_ALIASES: dict[Any, DType] = {
    **BY_NAME,
    **{"bool_": bool_, "f16": float16, "bf16": bfloat16, "f32": float32, "f64": float64},
    **{"u8": uint8, "u16": uint16, "u32": uint32, "u64": uint64},
    **{"i8": int8, "i16": int16, "i32": int32, "i64": int64},
    **{"c64": complex64, "c128": complex128, "half": float16, "float": float32, "double": float64},
    **{"float8_e4m3": float8_e4m3fn, "fp8e4m3": float8_e4m3fn, "fp8e5m2": float8_e5m2},
    **{bool: bool_, int: int64, float: float32, complex: complex64},
}

default_float = float32
default_complex = complex64
default_int = int64

_UNSIGNED = (uint8, uint16, uint32, uint64)
_SIGNED = (int8, int16, int32, int64)


def as_dtype(given: Any) -> DType:
    """A DType from a DType, a name ("float32", "bf16"), a Python type or a NumPy dtype."""
    if isinstance(given, DType):
        return given
    if isinstance(given, np.dtype):
        found = _OF_NUMPY.get(given)
        if found is None:
            if given.name not in BY_NAME:
                raise _unknown(given)
            found = _OF_NUMPY.setdefault(given, BY_NAME[given.name])
        return found
    try:
        found = _ALIASES.get(given)
    except TypeError:
        found = None
    if found is not None:
        return found
    try:
        known = np.dtype(given)
    except TypeError:
        if str(given) not in BY_NAME:
            raise _unknown(given) from None
        return BY_NAME[str(given)]
    return as_dtype(known)


_OF_NUMPY: dict[Any, DType] = {}  # a cache: names of NumPy's dtypes are slow


def _unknown(given: Any) -> DTypeError:
    return DTypeError(
        f"{given!r} is not a dtype that numus has; it has {', '.join(d.name for d in ALL)}"
    )


def kind_rank(dtype: DType) -> int:
    """bool, then integers, floats, complex numbers: promotion never goes down."""
    return _KIND_RANK[dtype.kind]


def real_of(dtype: DType) -> DType:
    """The dtype of the real part."""
    if dtype.kind != "complex":
        return dtype
    return float32 if dtype is complex64 else float64


def index_dtype(count: int) -> DType:
    """The dtype of indices of this many elements."""
    return int32 if count < 1 << 31 else int64


def complex_of(dtype: DType) -> DType:
    """The complex dtype whose parts hold `dtype`."""
    if dtype.kind == "complex":
        return dtype
    return complex128 if dtype is float64 else complex64


def compute_dtype(dtype: DType) -> DType:
    """The dtype in which arithmetic on `dtype` is done: narrow floats go through float32."""
    return float32 if dtype.is_low_precision else dtype


@functools.cache
def promote(a: DType, b: DType) -> DType:
    """The dtype of an operation on two arrays, or a DTypeError where none holds both."""
    if a is b:
        return a
    if _KIND_RANK[a.kind] > _KIND_RANK[b.kind]:
        a, b = b, a
    if a.kind == "bool" or (a.is_integer and b.is_inexact):
        return b
    if b.kind == "complex":
        return complex128 if a in (float64, complex128) or b is complex128 else complex64
    if b.kind == "float" and a.itemsize == b.itemsize:
        return float32 if a.itemsize == 2 else float16  # bfloat16 with float16, two 8-bit floats
    if a.kind == b.kind:
        return a if a.itemsize > b.itemsize else b
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    if signed.itemsize > unsigned.itemsize:
        return signed
    if unsigned is uint64:
        return float64  # as NumPy: no integer holds both
    return _SIGNED[_UNSIGNED.index(unsigned) + 1]


_SCALAR_KIND: dict[type, str] = {bool: "bool", int: "int", float: "float", complex: "complex"}
_NUMPY_KIND = {"b": "bool", "i": "int", "u": "int", "f": "float", "c": "complex"}
_SCALAR_DTYPE = {kind: _ALIASES[t] for t, kind in _SCALAR_KIND.items()}


class Weak:
    """A Python scalar that is not known yet: nm.jit's arguments are such while it traces."""

    __slots__ = ("weak_kind",)
    weak_kind: str

    def node(self, dtype: DType) -> Any:
        """The graph node that will hold its value in a dtype."""
        raise NotImplementedError


def scalar_kind(value: Any) -> str | None:
    """The kind of a Python or NumPy scalar, None if it is neither."""
    kind = _SCALAR_KIND.get(type(value))
    if kind is not None:
        return kind
    if isinstance(value, np.generic):
        return _NUMPY_KIND.get(value.dtype.kind)
    if isinstance(value, Weak):
        return value.weak_kind
    # a subclass: an enumeration's member, say
    return next((k for t, k in _SCALAR_KIND.items() if isinstance(value, t)), None)


@functools.cache
def promote_scalar(dtype: DType, kind: str) -> DType:
    """The dtype of an operation on an array and a (weak) Python scalar of this kind."""
    if kind == "bool" or dtype.kind == "complex":
        return dtype
    if kind == "int":
        return default_int if dtype is bool_ else dtype
    if kind == "float":
        return dtype if dtype.kind == "float" else default_float
    if dtype.kind == "float":
        return complex_of(dtype)
    return default_complex


def scalar_dtype(value: Any) -> DType:
    """The default dtype of a Python scalar that stands alone."""
    kind = scalar_kind(value)
    if kind is None:
        raise DTypeError(f"{value!r} of type {type(value).__name__} is not a scalar")
    return _SCALAR_DTYPE[kind]


def can_cast(source: DType, target: DType) -> bool:
    """Whether every value of `source` is kept by promotion rules when cast to `target`."""
    try:
        return promote(source, target) is target
    except DTypeError:
        return False


def int_range(dtype: DType) -> tuple[int, int]:
    """The smallest and largest integer that a bool or integer dtype holds."""
    if dtype.kind == "bool":
        return 0, 1
    if dtype.kind == "uint":
        return 0, (1 << dtype.bits) - 1
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
