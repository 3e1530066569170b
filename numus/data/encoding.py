"""Examples as bytes, without pickle: what a record of an .rrec file holds.

A record is raw bytes, or a tree of dicts, lists, tuples, numbers, strings, None and arrays. Of a
tree, a line of JSON says the structure; the arrays follow, each at a multiple of 8 bytes, so that
they can be read where they lie.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.tensor import Tensor

_ALIGN = 8
_HEAD = struct.Struct("<B3xI")  # the kind, and the length of the JSON


def encode(example: Any) -> bytes:
    """The bytes of an example."""
    if isinstance(example, (bytes, bytearray, memoryview)):
        return _HEAD.pack(0, 0) + bytes(example)
    arrays: list[bytes] = []
    size = 0

    def describe(x: Any) -> Any:
        nonlocal size
        if isinstance(x, (Tensor, np.ndarray, np.generic)):
            array = np.asarray(x)
            name = dt.as_dtype(array.dtype).name  # refuses what numus has no dtype for
            data = np.ascontiguousarray(array).tobytes()
            start = size
            arrays.append(data + b"\0" * (-len(data) % _ALIGN))
            size += len(arrays[-1])
            return {"a": [name, list(array.shape), start]}
        if isinstance(x, (bytes, bytearray)):
            start = size
            arrays.append(bytes(x) + b"\0" * (-len(x) % _ALIGN))
            size += len(arrays[-1])
            return {"b": [len(x), start]}
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


def decode(data: memoryview) -> Any:
    """The example; its arrays are views of the bytes."""
    kind, length = _HEAD.unpack_from(data)
    if kind == 0:
        return bytes(data[_HEAD.size :])
    start = _HEAD.size + length

    def build(d: dict[str, Any]) -> Any:
        ((form, x),) = d.items()
        if form == "a":
            name, shape, at = x
            dtype = dt.as_dtype(name)
            count = int(np.prod(shape, dtype=np.int64))
            array = np.frombuffer(data, dtype.np, count, start + at).reshape(shape)
            array.flags.writeable = False
            return array
        if form == "b":
            size, at = x
            return bytes(data[start + at : start + at + size])
        if form == "d":
            return {k: build(v) for k, v in x.items()}
        if form == "v":
            return x
        parts = [build(v) for v in x]
        return tuple(parts) if form == "t" else parts

    return build(json.loads(bytes(data[_HEAD.size : start])))
