"""Kernels as bytes: their statements are read only where someone asks for them.

A program that finds its machine code on disk needs a kernel's arguments and the digest of its text,
which are a hundredth of the whole.
"""

from __future__ import annotations

import io
import pickle
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from numus.ir.expressions import Buffer
from numus.ir.printer import kernel_digest
from numus.ir.statements import Kernel
from numus.ir.visit import post_order

_FIELDS = (
    *("name", "buffers", "scalars", "notes", "small", "stores_once", "resident_blocks", "copies"),
    *("block_size", "packed_blocks", "cluster_size", "cluster_blocks", "persistent"),
    "cached_digest",
)


def _arguments(buffers: Sequence[Buffer]) -> list[Any]:
    """What statements share with the arguments: buffers, and the expressions of their sizes."""
    sizes = [b.size for b in buffers if b.size is not None]
    return [*buffers, *(e for e in post_order(sizes, set()) if e.op != "const")]


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any, number_of: Callable[[Any], int | None]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._number_of = number_of

    def persistent_id(self, obj: Any) -> int | None:
        return self._number_of(obj)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, shared: Sequence[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, pid: Any) -> Any:
        return self._shared[pid]


def pack(what: Any, number_of: Callable[[Any], int | None]) -> bytes:
    """An object as bytes; parts that have a number stay outside."""
    file = io.BytesIO()
    _Pickler(file, number_of).dump(what)
    return file.getvalue()


def unpack(data: bytes, shared: Sequence[Any]) -> Any:
    """The object, with what is outside by its numbers."""
    return _Unpickler(io.BytesIO(data), shared).load()


class StoredKernel(Kernel):
    """A kernel from bytes."""

    __slots__ = ("_packed", "_statements")
    _packed: bytes
    _statements: list[Any] | None

    @property
    def body(self) -> list[Any]:
        if self._statements is None:
            data = zlib.decompress(self._packed)
            self._statements = unpack(data, _arguments(self.buffers))
        return self._statements

    @body.setter
    def body(self, statements: list[Any] | bytes) -> None:
        self._packed = statements if isinstance(statements, bytes) else b""
        self._statements = None if isinstance(statements, bytes) else statements


def pack_kernel(kernel: Kernel) -> Any:
    """A kernel as what `pickle` takes."""
    if kernel.vendor is not None or kernel.flags is not None:
        raise pickle.PicklingError("only kernels of statements, without flags, are stored")
    kernel_digest(kernel)
    number = {id(x): i for i, x in enumerate(_arguments(kernel.buffers))}
    packed = zlib.compress(pack(kernel.body, lambda x: number.get(id(x))), 1)
    return tuple([getattr(kernel, name) for name in _FIELDS]), packed


def unpack_kernel(stored: Any) -> StoredKernel:
    fields, packed = stored
    given = dict(zip(_FIELDS, fields, strict=True))
    return StoredKernel(body=packed, **given)
