"""The safetensors format: tensors by name in a file, read where they lie.

A file is the length of a header (u64), the header as JSON (for each tensor its dtype, shape and
place), and the bytes of all tensors. We read and write it here, and not through the `safetensors`
package, because that has no NumPy face for bfloat16 and the 8-bit floats, and copies what it reads.
"""

from __future__ import annotations

import itertools
import json
import math
import mmap
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

import numus as nm
from numus import dtypes as dt
from numus.errors import RecordError
from numus.shapes import can_exist
from numus.tensor import Tensor

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be removed
    fcntl = None  # type: ignore[assignment]

PathLike = str | os.PathLike[str]

_NAMES = {
    **{dt.bool_: "BOOL", dt.uint8: "U8", dt.uint16: "U16", dt.uint32: "U32", dt.uint64: "U64"},
    **{dt.int8: "I8", dt.int16: "I16", dt.int32: "I32", dt.int64: "I64"},
    **{dt.float8_e4m3fn: "F8_E4M3", dt.float8_e5m2: "F8_E5M2", dt.float16: "F16"},
    **{dt.bfloat16: "BF16", dt.float32: "F32", dt.float64: "F64"},
    **{dt.complex64: "C64", dt.complex128: "C128"},
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_LENGTH = struct.Struct("<Q")
_ALIGN = 64  # where the tensors begin: they can be used in place


# -- writing --------------------------------------------------------------------------------------


def _host(x: Any) -> np.ndarray[Any, Any]:
    return np.asarray(x.detach() if isinstance(x, Tensor) else x, order="C")


def write(
    path: PathLike, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a file, whole or not at all: what was there before stays until the new one is done."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, x in tensors.items():
        shape = tuple(x.shape)
        dtype = dt.as_dtype(x.dtype)
        size = math.prod(shape) * dtype.itemsize
        entry = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [at, at + size]}
        entries[name] = entry
        at += size
    head = json.dumps(entries, separators=(",", ":")).encode()
    head += b" " * (-(len(head) + _LENGTH.size) % _ALIGN)

    def contents(file: BinaryIO) -> None:
        file.write(_LENGTH.pack(len(head)) + head)
        for x in tensors.values():
            array = _host(x)
            file.write(array.view(np.uint8).data if array.size and array.ndim else array.tobytes())

    atomically(path, contents)


# -- reading --------------------------------------------------------------------------------------


class SafetensorsFile(Mapping[str, Tensor]):
    """The tensors of a file by name. Nothing is read until a tensor is asked for.

    On the CPU a tensor shares the file's pages.
    """

    def __init__(self, path: PathLike, device: Any = None) -> None:
        self.path = Path(path)
        self.device = device
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < _LENGTH.size:
                raise RecordError(f"{path} is not a safetensors file: it has {size} bytes")
            self._pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        (length,) = _LENGTH.unpack_from(self._pages)
        self._start = _LENGTH.size + length
        if self._start > size:
            raise RecordError(
                f"{path} is cut off or not a safetensors file: its header would end at "
                f"{self._start}, it has {size} bytes"
            )
        try:
            head = json.loads(self._pages[_LENGTH.size : self._start])
            self.metadata: dict[str, str] = head.pop("__metadata__", {})
            if not isinstance(self.metadata, dict):
                raise ValueError(f"__metadata__ is {self.metadata!r}")
            self._entries = {name: self._entry(name, e, size) for name, e in head.items()}
        except RecordError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RecordError(f"{path}: the header cannot be read: {error}") from None
        self._check_overlaps()

    def _entry(self, name: str, entry: Any, size: int) -> tuple[dt.DType, tuple[int, ...], int]:
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None:
            raise RecordError(f"{self.path}: {name} is of {entry['dtype']}, which numus lacks")
        shape = tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        whole = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
        if not whole or not can_exist(shape, dtype.itemsize):
            raise ValueError(f"{name} has the shape {shape} and lies from {begin} to {end}")
        if end - begin != math.prod(shape) * dtype.itemsize:
            raise RecordError(
                f"{self.path}: {name} of {dtype.name}{list(shape)} has {end - begin} bytes"
            )
        if self._start + end > size:
            raise RecordError(
                f"{self.path} is cut off: {name} ends at {self._start + end}, the file at {size}"
            )
        return dtype, shape, self._start + begin

    def _check_overlaps(self) -> None:
        """Refuse tensors that share bytes: one of them cannot be what was written."""
        spans = sorted(
            (at, math.prod(shape) * dtype.itemsize, name)
            for name, (dtype, shape, at) in self._entries.items()
        )
        for (at, size, name), (following, _, other) in itertools.pairwise(spans):
            if at + size > following:
                raise RecordError(f"{self.path}: {name} and {other} overlap")

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """A tensor's elements where they lie in the file."""
        dtype, shape, at = self._entries[name]
        return np.frombuffer(self._pages, dtype.np, math.prod(shape), at).reshape(shape)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._entries:
            raise KeyError(f"{self.path} has no tensor {name!r}")
        array = self.array(name)
        if array.flags.aligned:
            try:
                tensor = nm.asarray(array, copy=False)
            except ValueError:  # the default device has memory of its own
                tensor = nm.asarray(array)
        else:
            tensor = nm.asarray(np.array(array))
        return tensor if self.device is None else tensor.to(self.device)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading it."""
        return self._entries[name][1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


# -- atomic writes --------------------------------------------------------------------------------

_SUFFIX = ".part"


def atomically(path: str | os.PathLike[str], contents: Callable[[BinaryIO], Any]) -> None:
    """Atomic write: to a temporary file in the same folder, fsync, rename.

    Temporary files of killed writers are removed.
    """
    path = Path(path)
    _remove_abandoned(path)
    handle, temporary = _new_part(path)
    try:
        with os.fdopen(handle, "wb") as file:
            contents(file)
            file.flush()
            os.fsync(file.fileno())
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)  # mkstemp's are for the owner alone
            if fcntl is not None:
                os.replace(temporary, path)  # while it is locked
        if fcntl is None:
            os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _prefix(path: Path) -> str:
    return f".{path.name}."


def _new_part(path: Path) -> tuple[int, str]:
    """A new temporary file, locked while open: one that can be locked is abandoned."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=_prefix(path), suffix=_SUFFIX)
        if _locked(handle, wait=True) and _is_at(handle, name):
            return handle, name
        os.close(handle)  # another writer took it for abandoned before it was locked


def _locked(handle: int, wait: bool) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: nobody's files are taken for abandoned
        return wait
    return True


def _is_at(handle: int, name: str) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(name))
    except FileNotFoundError:
        return False


def _remove_abandoned(path: Path) -> None:
    """Remove the parts of this file whose writers are no more."""
    with os.scandir(path.parent) as entries:
        found = [e.path for e in entries if e.name.startswith(_prefix(path))]
    for name in found:
        if not name.endswith(_SUFFIX):
            continue
        with suppress(OSError):  # gone meanwhile, or not ours to remove
            handle = os.open(name, os.O_RDWR)
            try:
                if _locked(handle, wait=False) and fcntl is not None:
                    os.unlink(name)
            finally:
                os.close(handle)
            if fcntl is None:
                os.unlink(name)
