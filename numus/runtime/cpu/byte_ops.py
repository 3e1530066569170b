"""Multi-threaded byte gather and CRC-32, for the data loader.

Many small rows of large memory (a file's pages) are copied or checked on the worker pool, without
Python per row.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from numus.runtime.contract import Array, LaunchStep
from numus.runtime.cpu import byte_ops_source
from numus.runtime.cpu.byte_ops_source import STREAM_BYTES
from numus.runtime.cpu.compiler import Compiler
from numus.runtime.cpu.launch import CpuLaunchList
from numus.runtime.cpu.memory import Memory
from numus.runtime.llvm_macros import function_address

_NEVER = 1 << 62
_CHUNK_BYTES = 1 << 15  # of a row, copied by one block
_MEMMOVE = function_address(ctypes.memmove)


class _NativeProgram(NamedTuple):
    """A native function with a kernel's interface."""

    address: int
    formats: str
    buffers: int = 0
    scratch: tuple[int, ...] = ()


class Source(NamedTuple):
    """Rows of `size` bytes. Row i begins at base + starts[i], where `starts` is the address of
    these offsets; with starts = 0, rows are contiguous.
    """

    base: int
    starts: int
    size: int


class ByteOps:
    """The native functions, loaded into this process."""

    def __init__(
        self,
        compiler: Compiler,
        prepare: Callable[[Sequence[LaunchStep], int], CpuLaunchList],
        allocate: Callable[[int], Any],
    ) -> None:
        target = compiler.jit.target
        self._gather, checksums = compiler.native(
            byte_ops_source.source(target), byte_ops_source.SYMBOLS
        )
        self._prepare, self._allocate = prepare, allocate
        self._stream_min_bytes = target.l2_bytes if target.nontemporal_stores else _NEVER
        self._checksums = self._launch(checksums, byte_ops_source.CHECKSUMS)

    def _launch(self, address: int, scalars: tuple[str, ...]) -> CpuLaunchList:
        return self._prepare([LaunchStep(_NativeProgram(address, "q" * len(scalars)), ())], 0)

    def gatherer(
        self, sources: Sequence[Source], kinds: Array, kind: int
    ) -> Callable[[Array], list[Memory] | None]:
        """A function that gathers chosen rows of several sources, each into contiguous memory.

        It returns None if a row does not exist or is of another kind (`kinds`). The arrays must
        outlive it.
        """
        launch = self._launch(self._gather, byte_ops_source.GATHER)
        allocate, stream_min_bytes = self._allocate, self._stream_min_bytes
        records: list[int] = []
        for base, starts, size in sources:
            stride = 0 if starts else size
            records += [base, starts, stride, size, max(1, -(-size // _CHUNK_BYTES)), 0, 0]
        words_type = ctypes.c_int64 * (len(records) + 1)  # and the error flag
        free: list[Any] = []  # records that no thread uses
        width = len(byte_ops_source.SOURCE)
        outputs = range(byte_ops_source.SOURCE.index("to"), len(records), width)
        chunks = sum(records[byte_ops_source.SOURCE.index("chunks") :: width])
        sizes = [size for _, _, size in sources]
        stream_from = [stream_min_bytes if n and n % STREAM_BYTES == 0 else _NEVER for n in sizes]
        rows = list(zip(outputs, sizes, stream_from, strict=True))
        kind_args = (len(kinds), kinds.ctypes.data, kind)

        def gather(indices: Array) -> list[Memory] | None:
            count = len(indices)
            try:
                words, address = free.pop()
            except IndexError:
                words = words_type(*records, 0)
                address = ctypes.addressof(words)
            memories: list[Memory] = []
            for at, size, streams_at in rows:
                nbytes = count * size
                memory: Any = allocate(nbytes)
                words[at] = memory.address
                words[at + 1] = nbytes >= streams_at
                memories.append(memory)
            words[-1] = 0
            error = address + 8 * len(records)
            scalars = (count * chunks, indices.ctypes.data, *kind_args, address, chunks)
            launch.run((), (*scalars, _CHUNK_BYTES, _MEMMOVE, error))
            failed = words[-1]
            free.append((words, address))
            return None if failed else memories

        return gather

    def checksums(self, data: Array, starts: Array, sizes: Array) -> Array:
        """The CRC-32 of each byte range of the data."""
        sums = np.empty(len(starts), np.uint32)
        if len(starts):
            addresses = (x.ctypes.data for x in (data, starts, sizes, sums))
            self._checksums.run((), (len(starts), *addresses))
        return sums
