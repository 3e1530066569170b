"""GGUF files: metadata and tensors, whose blocks stay as they are.

The format is GGUF version 3 (2 is read too), little-endian. Nothing in a file is trusted: counts,
lengths and offsets are checked against its size before anything is allocated.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

import numus as nm
from numus.errors import RecordError
from numus.files import PathLike, atomically
from numus.quant.formats import as_format
from numus.quant.gguf_blocks import Blocks
from numus.quant.qtensor import QTensor
from numus.tensor import Tensor

__all__ = ["load_gguf", "save_gguf"]

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_ALIGNMENT = 32
_MAX_NAME = 1 << 16
_MAX_DIMS = 8
_MAX_ELEMENTS = 1 << 48  # of the extents that are not 0: what NumPy addresses, with room

# Numbers of types in metadata and of tensors, as the format has them.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_PLAIN = {
    **{0: nm.float32, 1: nm.float16, 24: nm.int8, 25: nm.int16, 26: nm.int32, 27: nm.int64},
    **{28: nm.float64, 30: nm.bfloat16},
}
_BLOCKS = {
    **{2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 10: "q2_k", 11: "q3_k"},
    **{12: "q4_k", 13: "q5_k", 14: "q6_k", 20: "iq4_nl"},
}
_PLAIN_NUMBERS = {dtype: number for number, dtype in _PLAIN.items()}
_BLOCK_NUMBERS = {name: number for number, name in _BLOCKS.items()}


class _Reader:
    """Fields of a file, each checked against what is left of it."""

    def __init__(self, path: PathLike, data: memoryview) -> None:
        self.path, self.data, self.at = path, data, 0

    def fail(self, why: str) -> RecordError:
        return RecordError(f"{self.path}: not a GGUF file, or damaged: {why}")

    def take(self, count: int) -> memoryview:
        if count > len(self.data) - self.at:
            raise self.fail(f"{count} bytes at byte {self.at} are past the end")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self, limit: int | None = None) -> str:
        length = self.number("Q")
        if limit is not None and length > limit:
            raise self.fail(f"a name of {length} bytes")
        try:
            return bytes(self.take(length)).decode()
        except UnicodeDecodeError:
            raise self.fail(f"text before byte {self.at} is not UTF-8") from None

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _BOOL:
            return bool(self.number("B"))
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY or depth:
            raise self.fail(f"metadata of type {kind}")
        inner, count = self.number("I"), self.number("Q")
        if inner in _NUMBERS:
            raw = self.take(count * struct.calcsize("<" + _NUMBERS[inner]))
            return np.frombuffer(raw, "<" + _NUMBERS[inner]).tolist()
        if count > len(self.data) - self.at:  # an entry has at least a byte
            raise self.fail(f"an array of {count} entries")
        return [self.value(inner, depth + 1) for _ in range(count)]


def load_gguf(path: PathLike) -> tuple[dict[str, Tensor | QTensor], dict[str, Any]]:
    """Tensors by name, those in blocks as `QTensor`, and the metadata.

    >>> import tempfile
    >>> import numus as nm
    >>> path = tempfile.mkdtemp() + "/tiny.gguf"
    >>> nm.quant.save_gguf(path, {"w": nm.quant.quantize(nm.ones((2, 32)), "q8_0")}, {"n": 3})
    >>> nm.quant.load_gguf(path)
    ({'w': QTensor(shape=(2, 32), format=q8_0, dtype=float32, 68 bytes)}, {'n': 3})
    """
    r = _Reader(path, memoryview(Path(path).read_bytes()))
    if bytes(r.take(4)) != _MAGIC:
        raise r.fail("it does not begin with GGUF")
    version = r.number("I")
    if version not in _VERSIONS:
        raise r.fail(f"version {version}; versions {_VERSIONS} are read")
    tensor_count, key_count = r.number("Q"), r.number("Q")
    metadata: dict[str, Any] = {}
    for _ in range(_bounded(r, key_count)):
        key = r.string(_MAX_NAME)
        if key in metadata:
            raise r.fail(f"the key {key!r} is there twice")
        metadata[key] = r.value(r.number("I"))
    infos = [_info(r) for _ in range(_bounded(r, tensor_count))]
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise r.fail(f"alignment {alignment!r}")
    start = -(-r.at // alignment) * alignment
    tensors: dict[str, Tensor | QTensor] = {}
    for name, shape, kind, offset in infos:
        if name in tensors:
            raise r.fail(f"the tensor {name!r} is there twice")
        if offset % alignment:
            raise r.fail(f"{name!r} is not aligned")
        r.at = start + offset
        tensors[name] = _tensor(r, name, shape, kind)
    return tensors, metadata


def _bounded(r: _Reader, count: int) -> int:
    if count > len(r.data) - r.at:  # an entry has more than a byte
        raise r.fail(f"{count} entries in {len(r.data)} bytes")
    return count


def _info(r: _Reader) -> tuple[str, tuple[int, ...], int, int]:
    name, dims = r.string(_MAX_NAME), r.number("I")
    if dims > _MAX_DIMS:
        raise r.fail(f"{name!r} has {dims} axes")
    shape = tuple(r.number("Q") for _ in range(dims))[::-1]  # the fastest axis comes first there
    if math.prod(n for n in shape if n) > _MAX_ELEMENTS:
        raise r.fail(f"{name!r} is of shape {shape}")
    return name, shape, r.number("I"), r.number("Q")


def _tensor(r: _Reader, name: str, shape: tuple[int, ...], kind: int) -> Tensor | QTensor:
    size = math.prod(shape)
    if kind in _PLAIN:
        dtype = _PLAIN[kind]
        raw = r.take(size * dtype.itemsize)
        return nm.asarray(np.frombuffer(raw, dtype.np).reshape(shape).copy())
    if kind not in _BLOCKS:
        raise r.fail(f"{name!r} is of type {kind}, which is not known here")
    format = as_format(_BLOCKS[kind])
    assert isinstance(format, Blocks)
    if not shape or shape[-1] % format.block:
        raise r.fail(f"{name!r} of shape {shape} has no whole blocks of {format.block}")
    count = size // format.block * format.sizes[format.kind]
    raw = r.take(count)
    blocks = np.frombuffer(raw, np.uint8).reshape(format.layout(shape)["blocks"][0])
    return QTensor(format, shape, (nm.asarray(blocks.copy()),), nm.float32)


# -- writing --------------------------------------------------------------------------------------


def save_gguf(
    path: PathLike,
    tensors: Mapping[str, Tensor | QTensor],
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write tensors and metadata as a GGUF file; the old file stays until the new one is whole."""
    head = bytearray(_MAGIC + struct.pack("<IQQ", 3, len(tensors), len(metadata or {})))
    for key, value in (metadata or {}).items():
        kind, raw = _encoded(key, value)
        head += _text(key) + struct.pack("<I", kind) + raw
    offset, arrays = 0, []
    for name, tensor in tensors.items():
        kind, array = _stored(name, tensor)
        shape = tensor.shape[::-1]
        head += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        arrays.append(array)
        offset += -(-len(array) // _ALIGNMENT) * _ALIGNMENT

    def write(file: BinaryIO) -> None:
        for block in (bytes(head), *arrays):
            file.write(block)
            file.write(b"\0" * (-len(block) % _ALIGNMENT))

    atomically(path, write)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _encoded(key: str, value: Any) -> tuple[int, bytes]:
    """The number of a type, and the bytes of a value."""
    if isinstance(value, bool):
        return _BOOL, struct.pack("<B", value)
    if isinstance(value, int):
        code = "q" if value < 0 else "I" if value < 1 << 32 else "Q"
        return {"q": 11, "I": 4, "Q": 10}[code], struct.pack("<" + code, value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return _STRING, _text(value)
    if isinstance(value, list | tuple):
        if value and all(type(v) is int and -(1 << 31) <= v < 1 << 31 for v in value):
            return _ARRAY, struct.pack(f"<IQ{len(value)}i", 5, len(value), *value)  # as llama.cpp
        entries = [_encoded(key, v) for v in value]
        kinds = {kind for kind, _ in entries} or {4}
        if len(kinds) > 1 or _ARRAY in kinds:
            raise TypeError(f"save_gguf: entries of {key!r} must be of one plain type")
        body = b"".join(raw for _, raw in entries)
        return _ARRAY, struct.pack("<IQ", kinds.pop(), len(entries)) + body
    raise TypeError(
        f"save_gguf: {key!r} must be a number, text or a list, not {type(value).__name__}"
    )


def _bytes(tensor: Tensor) -> bytes:
    raw: bytes = tensor.numpy().tobytes()
    return raw


def _stored(name: str, tensor: Tensor | QTensor) -> tuple[int, bytes]:
    if isinstance(tensor, QTensor):
        kind = tensor.format.name
        whole = isinstance(tensor.format, Blocks) and tensor.shape[-1] % tensor.format.block == 0
        if kind not in _BLOCK_NUMBERS or tensor.axis != -1 or not whole:
            raise TypeError(f"save_gguf: {name!r} is {tensor!r}; GGUF has whole blocks of its own")
        return _BLOCK_NUMBERS[kind], _bytes(tensor.parts[0])
    if tensor.dtype not in _PLAIN_NUMBERS:
        raise TypeError(f"save_gguf: {name!r} is {tensor.dtype.name}, which GGUF does not have")
    return _PLAIN_NUMBERS[tensor.dtype], _bytes(tensor)
