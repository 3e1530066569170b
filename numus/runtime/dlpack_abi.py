"""DLPack's ABI: structures, dtype codes, and Python capsules."""

from __future__ import annotations

import ctypes
from typing import Any

from numus import dtypes as dt
from numus.dtypes import DType

UNVERSIONED, VERSIONED = b"dltensor", b"dltensor_versioned"  # names of unconsumed capsules
READ_ONLY = 1
HOST_DEVICES = (1, 3, 11)  # host memory: pageable, or pinned for CUDA or ROCm

UINT = 1
_KINDS = {"int": 0, "uint": UINT, "float": 2, "complex": 5, "bool": 6}
# floats that not every library knows
EXTENSION_FLOATS = {dt.bfloat16: 4, dt.float8_e4m3fn: 10, dt.float8_e5m2: 12}


def code(dtype: DType) -> int:
    """DLPack's type code of a dtype."""
    return EXTENSION_FLOATS.get(dtype, _KINDS[dtype.kind])


BY_CODE = {(code(d), d.bits if d.kind != "bool" else 8): d for d in dt.ALL}


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    """DLManagedTensor"""

    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", Deleter))


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned"""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


def _api(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(ctypes.pythonapi, name)
    function.restype, function.argtypes = result, arguments
    return function


_get_pointer = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_is_valid = _api("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
rename = _api("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
new = _api("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def unpack(capsule: Any) -> tuple[bytes, Any]:
    """The name of an unconsumed capsule, and its managed tensor."""
    name, kind = (VERSIONED, Versioned) if _is_valid(capsule, VERSIONED) else (UNVERSIONED, Managed)
    return name, kind.from_address(_get_pointer(capsule, name))
