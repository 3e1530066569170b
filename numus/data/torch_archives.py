"""Files of PyTorch's: a zip of raw storages and a pickle that says how tensors lie in them.

The pickle is read by an unpickler that knows a handful of names and refuses all others, so no code
of a file is run: tensors, numbers, strings, and containers of them come out.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from typing import Any

import numpy as np

import numus as nm
from numus.errors import RecordError

_STORAGES = {
    "FloatStorage": nm.float32,
    "DoubleStorage": nm.float64,
    "HalfStorage": nm.float16,
    "BFloat16Storage": nm.bfloat16,
    "LongStorage": nm.int64,
    "IntStorage": nm.int32,
    "ShortStorage": nm.int16,
    "CharStorage": nm.int8,
    "ByteStorage": nm.uint8,
    "BoolStorage": nm.dtypes.bool_,
    "ComplexFloatStorage": nm.complex64,
    "ComplexDoubleStorage": nm.complex128,
}


def _rebuild_tensor(
    storage: Any, offset: int, size: Any, stride: Any, requires_grad: bool = False, *_: Any
) -> Any:
    flat = storage[offset:]
    if len(size) != len(stride) or any(n < 0 for n in (*size, *stride)):
        raise pickle.UnpicklingError(f"a tensor of shape {size} and strides {stride}")
    last = sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if all(size) else -1
    if last >= flat.size:
        raise pickle.UnpicklingError(f"a tensor of shape {size} is larger than its storage")
    steps = [step * flat.itemsize for step in stride]
    found = nm.asarray(np.lib.stride_tricks.as_strided(flat, size, steps), copy=True)
    found.requires_grad = bool(requires_grad) and found.dtype.is_inexact
    return found


def _rebuild_parameter(data: Any, requires_grad: bool, *_: Any) -> Any:
    return nm.nn.Parameter(data, requires_grad)


_KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch", "Size"): tuple,
    **{("torch", name): dtype for name, dtype in _STORAGES.items()},
    **{("torch", d.name): d for d in _STORAGES.values()},
}


class _Unpickler(pickle.Unpickler):
    """Knows the names of tensors and refuses the others."""

    def __init__(self, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(archive.open(f"{folder}data.pkl"))
        self.archive, self.folder = archive, folder
        self.storages: dict[str, Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(
                f"it holds a {module}.{name}, which is code and is not run; save a state_dict() "
                "of tensors"
            )
        return _KNOWN[module, name]

    def persistent_load(self, pid: Any) -> Any:
        _, dtype, key, _, count = pid
        if key not in self.storages:
            raw = self.archive.read(f"{self.folder}data/{key}")
            self.storages[key] = np.frombuffer(raw, dtype.np, int(count))
        return self.storages[key]


def is_archive(path: Any) -> bool:
    """True if a file is one of PyTorch's."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("data.pkl") for name in archive.namelist())


def read(path: Any) -> Any:
    """What a file of PyTorch's holds."""
    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if n.endswith("data.pkl"))
        try:
            return _Unpickler(archive, name.removesuffix("data.pkl")).load()
        except Exception as error:  # a damaged pickle raises errors of many kinds
            raise RecordError(f"load: {path} cannot be read: {error}") from error
