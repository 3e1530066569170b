"""Kernels as bytes: their statements are read only where someone asks for them.

A program that finds its machine code on disk needs a kernel's arguments and the digest of its text,
which are a hundredth of the whole.
"""

from __future__ import annotations

import io
import pickle
import zlib
from collections.abc import Sequence
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
    """Statements, apart from what they share with the arguments."""

    def __init__(self, file: Any, buffers: Sequence[Buffer]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._number = {id(x): i for i, x in enumerate(_arguments(buffers))}

    def persistent_id(self, obj: Any) -> int | None:
        return self._number.get(id(obj))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, buffers: Sequence[Buffer]) -> None:
        super().__init__(file)
        self._arguments = _arguments(buffers)

    def persistent_load(self, pid: Any) -> Any:
        return self._arguments[pid]


class StoredKernel(Kernel):
    """A kernel from bytes."""

    __slots__ = ("_packed", "_statements")
    _packed: bytes
    _statements: list[Any] | None

    @property
    def body(self) -> list[Any]:
        if self._statements is None:
            data = io.BytesIO(zlib.decompress(self._packed))
            statements: list[Any] = _Unpickler(data, self.buffers).load()
            self._statements = statements
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
    file = io.BytesIO()
    _Pickler(file, kernel.buffers).dump(kernel.body)
    packed = zlib.compress(file.getvalue(), 1)
    return tuple([getattr(kernel, name) for name in _FIELDS]), packed


def unpack_kernel(stored: Any) -> StoredKernel:
    fields, packed = stored
    given = dict(zip(_FIELDS, fields, strict=True))
    return StoredKernel(body=packed, **given)
