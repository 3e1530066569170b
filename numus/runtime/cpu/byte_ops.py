"""Stretches of memory, shared between the worker threads: rows gathered, checksums taken.

What reads many small parts of large memory (a file's pages) is written here once, without Python
for each part.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from numus.runtime.contract import ProgramStep
from numus.runtime.cpu import byte_ops_source
from numus.runtime.cpu.byte_ops_source import LINE
from numus.runtime.cpu.launch import Prepared
from numus.runtime.cpu.memory import Memory

if TYPE_CHECKING:
    from numus.runtime.cpu.runtime import CpuRuntime

Array = np.ndarray[Any, Any]

_NEVER = 1 << 62
_PIECE = 1 << 15  # bytes of a row that a block copies
_MOVE = ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0


class _Native(NamedTuple):
    """A native function as launches see programs."""

    address: int
    formats: str
    buffers: int = 0
    scratch: tuple[int, ...] = ()


class Source(NamedTuple):
    """Rows of some bytes each; row i begins at base + starts[i], where `starts` is the address of
    these numbers, or else they lie one behind the other.
    """

    base: int
    starts: int
    size: int


class Stretches:
    """The native functions, loaded into this process."""

    def __init__(self, runtime: CpuRuntime) -> None:
        target = runtime.compiler.jit.target
        self._gather, checksums = runtime.compiler.native(
            byte_ops_source.source(target), byte_ops_source.SYMBOLS
        )
        self._runtime = runtime
        self._streams_from = target.cache_l2 if target.streams else _NEVER
        self._checksums = self._launch(checksums, byte_ops_source.CHECKSUMS)

    def _launch(self, address: int, scalars: tuple[str, ...]) -> Prepared:
        return self._runtime.prepare([ProgramStep(_Native(address, "q" * len(scalars)), ())], 0)

    def gatherer(
        self, sources: Sequence[Source], kinds: Array, kind: int
    ) -> Callable[[Array], list[Memory] | None]:
        """What copies chosen rows of several sources, each to memory of its own, where they lie one
        behind the other; None if a row does not exist, or `kinds` says another kind. The arrays
        have to outlive it.
        """
        launch = self._launch(self._gather, byte_ops_source.GATHER)
        allocate, streams_from = self._runtime.allocate, self._streams_from
        table: list[int] = []
        for base, starts, size in sources:
            step = 0 if starts else size
            table += [base, starts, step, size, max(1, -(-size // _PIECE)), 0, 0]
        kind_of_table = ctypes.c_int64 * (len(table) + 1)  # and the mark
        free: list[Any] = []  # tables that no thread uses
        width = len(byte_ops_source.SOURCE)
        targets = range(byte_ops_source.SOURCE.index("to"), len(table), width)
        pieces = sum(table[byte_ops_source.SOURCE.index("parts") :: width])
        sizes = [size for _, _, size in sources]
        past_caches = [streams_from if size and size % LINE == 0 else _NEVER for size in sizes]
        rows = list(zip(targets, sizes, past_caches, strict=True))
        kinds_are = (len(kinds), kinds.ctypes.data, kind)

        def gather(places: Array) -> list[Memory] | None:
            count = len(places)
            try:
                words, address = free.pop()
            except IndexError:
                words = kind_of_table(*table, 0)
                address = ctypes.addressof(words)
            memories: list[Memory] = []
            for at, size, past_cache in rows:
                nbytes = count * size
                memory: Any = allocate(nbytes)
                words[at] = memory.address
                words[at + 1] = nbytes >= past_cache
                memories.append(memory)
            words[-1] = 0
            last = address + 8 * len(table)
            about = (count * pieces, places.ctypes.data, *kinds_are, address, pieces, _PIECE)
            launch.run((), (*about, _MOVE, last))
            marked = words[-1]
            free.append((words, address))
            return None if marked else memories

        return gather

    def checksums(self, data: Array, starts: Array, sizes: Array) -> Array:
        """The CRC-32 of each stretch of bytes, which all lie within the data."""
        sums = np.empty(len(starts), np.uint32)
        if len(starts):
            addresses = (x.ctypes.data for x in (data, starts, sizes, sums))
            self._checksums.run((), (len(starts), *addresses))
        return sums
