"""Examples as bytes, without pickle: the contents of a record of an .rrec file.

A record is raw bytes, or a tree of dicts, lists, tuples, numbers, strings, None and arrays. The
structure of a tree is a line of JSON; the arrays follow, each at a multiple of 8 bytes, so that
they can be views of a mapped file.
"""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.errors import RecordError
from numus.shapes import can_exist
from numus.tensor import Tensor

Array = np.ndarray[Any, Any]

_ALIGN = 8
_HEAD = struct.Struct("<B3xI")  # the kind, and the length of the JSON
HEAD_SIZE = _HEAD.size
_MAX_DEPTH = 100


def encode(example: Any) -> bytes:
    """The bytes of an example."""
    if isinstance(example, (bytes, bytearray, memoryview)):
        return _HEAD.pack(0, 0) + bytes(example)
    arrays: list[bytes] = []
    size = 0

    def append(data: bytes) -> int:
        """Add aligned bytes; returns their offset."""
        nonlocal size
        arrays.append(data + b"\0" * (-len(data) % _ALIGN))
        size += len(arrays[-1])
        return size - len(arrays[-1])

    def describe(x: Any) -> Any:
        if isinstance(x, (Tensor, np.ndarray, np.generic)):
            array = np.asarray(x)
            name = dt.as_dtype(array.dtype).name  # raises where numus has no such dtype
            start = append(np.ascontiguousarray(array).tobytes())
            return {"a": [name, list(array.shape), start]}
        if isinstance(x, (bytes, bytearray)):
            return {"b": [len(x), append(bytes(x))]}
        if isinstance(x, Mapping):
            if any(not isinstance(k, str) for k in x):
                raise TypeError(f"a record's dicts have strings for keys, not {list(x)}")
            return {"d": {k: describe(v) for k, v in x.items()}}
        if isinstance(x, (tuple, list)):
            return {"t" if isinstance(x, tuple) else "l": [describe(v) for v in x]}
        if x is None or isinstance(x, (bool, int, float, str)):
            return {"v": x}
        raise TypeError(
            f"a record holds tensors, arrays, numbers, strings, bytes, None and dicts, lists and "
            f"tuples of them, not a {type(x).__name__}"
        )

    text = json.dumps(describe(example), separators=(",", ":")).encode()
    text += b" " * (-(len(text) + _HEAD.size) % _ALIGN)
    return b"".join([_HEAD.pack(1, len(text)), text, *arrays])


class Layout:
    """The head of a record: its structure, and the offsets of arrays and bytes."""

    def __init__(self, text: bytes) -> None:
        """Read a line of JSON, which may be anything."""
        self.arrays: list[tuple[dt.DType, tuple[int, ...], int, int]] = []  # ..., offset, bytes
        self.values: list[Any] = []  # numbers and strings of the JSON
        self.has_bytes = False
        try:
            self.form = self._read(json.loads(text), 0)  # the structure without its values
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise RecordError(f"a record's structure cannot be read: {error}") from None
        # most records are a dict of arrays and values: their names, and which are values
        self._flat: list[tuple[str, bool]] | None = None
        if self.form[0] == "d" and all(inner[0] in "abv" for _, inner in self.form[1]):
            self._flat = [(k, inner[0] == "v") for k, inner in self.form[1]]

    def _read(self, tree: Any, depth: int) -> Any:
        ((form, x),) = tree.items()
        if depth > _MAX_DEPTH:
            raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
        if form == "a":
            name, shape, at = x
            dtype = dt.as_dtype(name)
            sizes = tuple(shape)
            whole = all(type(n) is int and n >= 0 for n in (*sizes, at))
            if not whole or at % _ALIGN or not can_exist(sizes, dtype.itemsize):
                raise ValueError(f"an array of shape {shape} at {at}")
            self.arrays.append((dtype, sizes, at, math.prod(sizes) * dtype.itemsize))
            return "a", dtype, sizes, at
        if form == "b":
            size, at = x
            if type(size) is not int or type(at) is not int or size < 0 or at < 0:
                raise ValueError(f"{size} bytes at {at}")
            self.has_bytes = True
            return "b", size, at
        if form == "d":
            return "d", tuple((k, self._read(v, depth + 1)) for k, v in x.items())
        if form == "v":
            if not (x is None or isinstance(x, (bool, int, float, str))):
                raise ValueError(f"{type(x).__name__} is no value")
            self.values.append(x)
            return ("v", type(x))
        if form not in ("t", "l") or not isinstance(x, list):
            raise ValueError(f"there is no form {form!r}")
        return form, tuple(self._read(v, depth + 1) for v in x)

    def build(self, arrays: Iterator[Any], values: Iterator[Any]) -> Any:
        """The tree with these arrays (and bytes) and values in it."""
        if self._flat is not None:
            return {k: next(values if is_value else arrays) for k, is_value in self._flat}
        return _build(self.form, arrays, values)


def _build(form: Any, arrays: Iterator[Any], values: Iterator[Any]) -> Any:
    kind = form[0]
    if kind in "ab":
        return next(arrays)
    if kind == "v":
        return next(values)
    if kind == "d":
        return {k: _build(v, arrays, values) for k, v in form[1]}
    found = [_build(v, arrays, values) for v in form[1]]
    return tuple(found) if kind == "t" else found


def _parts(form: Any, data: memoryview) -> Iterator[Any]:
    """Arrays and bytes as views of the data after the head, in the order of the tree."""
    kind = form[0]
    if kind == "a":
        _, dtype, shape, at = form
        size = math.prod(shape) * dtype.itemsize
        if at + size > len(data):
            raise RecordError(f"an array of {dtype.name}{list(shape)} does not fit its record")
        array = np.frombuffer(data[at : at + size], dtype.np).reshape(shape)
        array.flags.writeable = False
        yield array
    elif kind == "b":
        _, size, at = form
        if at + size > len(data):
            raise RecordError(f"{size} bytes do not fit their record")
        yield bytes(data[at : at + size])
    elif kind in "dtl":
        for entry in form[1]:
            yield from _parts(entry[1] if kind == "d" else entry, data)


@functools.lru_cache(maxsize=4096)
def layout(text: bytes) -> Layout:
    """The layout of a head; a file's records mostly share a few."""
    return Layout(text)


def head(data: memoryview) -> tuple[int, int]:
    """The kind of a record, and the offset of the contents after its head."""
    if len(data) < _HEAD.size:
        raise RecordError(f"a record of {len(data)} bytes has no head")
    kind, length = _HEAD.unpack_from(data)
    if kind > 1 or _HEAD.size + length > len(data) or length % _ALIGN:
        raise RecordError(f"a record's head is not one: kind {kind}, {length} bytes")
    return kind, _HEAD.size + length


def heads(data: memoryview, starts: Array, sizes: Array) -> tuple[Array, Array, Array]:
    """Of records at these bytes: their kinds, the lengths of their JSON, and which are valid."""
    fits = sizes >= HEAD_SIZE
    words = np.frombuffer(data, "<u8", len(data) // 8)[np.where(fits, starts, 0) >> 3]
    kinds, lengths = (words & 0xFF).astype(np.int64), (words >> 32).astype(np.int64)
    valid = fits & (kinds <= 1) & (HEAD_SIZE + lengths <= sizes) & (lengths % _ALIGN == 0)
    return kinds, lengths, valid


def decode(data: memoryview) -> Any:
    """The example; its arrays are views of the bytes."""
    kind, start = head(data)
    if kind == 0:
        return bytes(data[_HEAD.size :])
    found = layout(bytes(data[_HEAD.size : start]))
    return found.build(_parts(found.form, data[start:]), iter(found.values))
