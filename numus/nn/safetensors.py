"""The safetensors format: tensors by name in a file, read into memory or mapped.

A file is the length of a header (u64), the header as JSON (for each tensor its dtype, shape and
place), and the bytes of all tensors, without gaps. We read and write it here, and not through the
`safetensors` package, because that has no NumPy face for bfloat16 and the 8-bit floats. Files that
the package refuses are refused.
"""

from __future__ import annotations

import json
import math
import mmap as pages
import os
import struct
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

import numus as nm
from numus import dtypes as dt
from numus.errors import RecordError
from numus.files import PathLike, atomically, open_regular
from numus.shapes import can_exist
from numus.tensor import Tensor

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
_MAX_HEADER_BYTES = 100_000_000  # as in the package
_READ_BYTES = 1 << 30  # some systems read no more than 2 GiB at once


# -- writing --------------------------------------------------------------------------------------


def _host(x: Any) -> np.ndarray[Any, Any]:
    return np.asarray(x.detach() if isinstance(x, Tensor) else x, order="C")


def write(
    path: PathLike, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a file, whole or not at all: what was there before stays until the new one is done."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for key, text in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise TypeError(f"{path}: metadata maps names to strings, not {key!r} to {text!r}")
    at = 0
    for name, x in tensors.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise ValueError(f"{path}: {name!r} cannot be the name of a tensor")
        shape = tuple(x.shape)
        dtype = dt.as_dtype(x.dtype)
        size = math.prod(shape) * dtype.itemsize
        entry = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [at, at + size]}
        entries[name] = entry
        at += size
    head = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    head += b" " * (-(len(head) + _LENGTH.size) % _ALIGN)
    if len(head) > _MAX_HEADER_BYTES:
        raise ValueError(
            f"{path}: names and metadata take {len(head)} bytes, the format allows "
            f"{_MAX_HEADER_BYTES}"
        )

    def contents(file: BinaryIO) -> None:
        file.write(_LENGTH.pack(len(head)) + head)
        for x in tensors.values():
            array = _host(x)
            file.write(array.view(np.uint8).data if array.size and array.ndim else array.tobytes())

    atomically(path, contents)


# -- reading --------------------------------------------------------------------------------------


class SafetensorsFile(Mapping[str, Tensor]):
    """The tensors of a file by name. Nothing is read until a tensor is asked for.

    Args:
        mmap: tensors on the CPU share the file's pages, instead of being read into memory.
    """

    def __init__(self, path: PathLike, device: Any = None, *, mmap: bool = False) -> None:
        self.path = Path(path)
        self.device = device
        try:
            self._file = open_regular(self.path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise RecordError(f"{path} cannot be read: {error.strerror or error}") from None
        weakref.finalize(self, self._file.close)
        size = os.fstat(self._file.fileno()).st_size
        head, self._start = _header(self._file, size, self.path)
        try:
            metadata = head.pop("__metadata__", None)
            metadata = {} if metadata is None else metadata
            if not isinstance(metadata, dict) or any(type(v) is not str for v in metadata.values()):
                raise ValueError("__metadata__ must map names to strings")
            self.metadata: dict[str, str] = metadata
            self._entries = {name: self._entry(name, e, size) for name, e in head.items()}
        except RecordError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"{path}: the header cannot be read: {error}") from None
        self._check_coverage(size)
        self._pages: pages.mmap | None = None
        if mmap:
            self._pages = pages.mmap(self._file.fileno(), 0, access=pages.ACCESS_COPY)

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
        return dtype, shape, self._start + begin

    def _check_coverage(self, size: int) -> None:
        """Refuse bytes that belong to two tensors or to none: they are not what was written."""
        spans = sorted(
            (at, math.prod(shape) * dtype.itemsize, name)
            for name, (dtype, shape, at) in self._entries.items()
        )
        covered, last = self._start, "the header"
        for at, length, name in spans:
            if at != covered:
                what = "overlap" if at < covered else f"have {at - covered} bytes between them"
                raise RecordError(f"{self.path}: {last} and {name} {what}")
            covered, last = at + length, name
        if covered > size:
            raise RecordError(
                f"{self.path} is cut off: {last} ends at {covered}, the file at {size}"
            )
        if covered < size:
            raise RecordError(
                f"{self.path} has {size - covered} bytes after its last tensor: it is damaged"
            )

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """A tensor's elements: read from the file, or where they lie in its pages."""
        dtype, shape, at = self._entries[name]
        count = math.prod(shape)
        if self._pages is not None:
            return np.frombuffer(self._pages, dtype.np, count, at).reshape(shape)
        found = np.empty(shape, dtype.np)
        if count:
            _read_into(self._file, at, found.reshape(-1).view(np.uint8).data, self.path)
        return found

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


def _header(file: BinaryIO, size: int, path: Path) -> tuple[dict[str, Any], int]:
    """The header's entries, and where it ends."""
    if size < _LENGTH.size:
        raise RecordError(f"{path} is not a safetensors file: it has {size} bytes")
    (length,) = _LENGTH.unpack(_read(file, 0, _LENGTH.size, path))
    end = _LENGTH.size + length
    if end > size:
        raise RecordError(
            f"{path} is cut off or not a safetensors file: its header would end at {end}, it has "
            f"{size} bytes"
        )
    if length > _MAX_HEADER_BYTES:
        raise RecordError(
            f"{path}: a header of {length} bytes is too large; the format allows "
            f"{_MAX_HEADER_BYTES}"
        )
    try:
        text = _read(file, _LENGTH.size, length, path).decode()
        head = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_refused, parse_int=_integer
        )
        if not isinstance(head, dict):
            raise ValueError(f"it is a {type(head).__name__}, not a table of tensors")
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: the header cannot be read: {error}") from None
    return head, end


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    counts = Counter(name for name, _ in pairs)
    for name, count in counts.items():
        name.encode()  # a surrogate by itself is no text
        if count > 1:
            raise ValueError(f"{name!r} appears {count} times")
    return dict(pairs)


def _refused(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _integer(text: str) -> int | float:
    """An integer; -0, which JSON readers take for a float, is one here as well."""
    return -0.0 if text == "-0" else int(text)


def _read(file: BinaryIO, at: int, size: int, path: Path) -> bytes:
    found = bytearray(size)
    _read_into(file, at, memoryview(found), path)
    return bytes(found)


def _read_into(file: BinaryIO, at: int, memory: memoryview, path: Path) -> None:
    """Fill memory from a position of a file, which another process may be cutting off."""
    done = 0
    while done < len(memory):
        file.seek(at + done)
        count = file.readinto(memory[done : done + _READ_BYTES])  # type: ignore[attr-defined]
        if not count:
            raise RecordError(f"{path} was cut off while it was read, at {at + done} bytes")
        done += count
