"""Caching allocator of host memory.

First touches of pages are expensive, so pages are cached, and large blocks use huge pages.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from numus.runtime import memory_pool as pools
from numus.runtime.contract import Array
from numus.runtime.memory_pool import gib

_HUGE_PAGE_BYTES = 1 << 21
_CACHED_FRACTION = 4  # free blocks hold at most 1/4 of the machine's memory


class Memory(pools.Memory):
    """A block of host memory."""

    __slots__ = ()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.address, self.owner is not None and pools.is_read_only(self)),
            "version": 3,
        }

    def view(self, dtype: Any = np.uint8, count: int | None = None) -> Array:
        """A flat NumPy view, which keeps the block alive."""
        kind = np.dtype(dtype)
        if count is None:
            count = self.nbytes // kind.itemsize
        if count == 0:
            return np.empty(0, kind)
        return np.asarray(self)[: count * kind.itemsize].view(kind)


def wrap(array: Array) -> Memory:
    """The memory of a NumPy array, which it keeps alive."""
    if not (array.flags.c_contiguous and array.flags.aligned):
        raise ValueError("only a contiguous, aligned array can be wrapped without a copy")
    address = array.__array_interface__["data"][0]
    return Memory(address, array.nbytes, owner=array)


class MemoryPool(pools.MemoryPool):
    """Blocks of the machine's memory."""

    min_bytes = 64
    classes_per_octave = 4
    slab_bytes = 1 << 20
    max_slab_block_bytes = 1 << 17
    memory = Memory

    def __init__(self) -> None:
        super().__init__("the cpu")
        self.limit = _machine_memory()
        self.max_pooled_bytes = self.limit // _CACHED_FRACTION
        self._maps: dict[int, mmap.mmap] = {}

    def obtain(self, size: int) -> int:
        if self.in_use + self.pooled + size > self.limit:
            # the system overcommits, and kills the process when pages are touched
            self.empty()
            if self.in_use + size > self.limit:
                raise self._full(size)
        for attempt in (1, 2):
            try:
                address, block = _map(size)
                self._maps[address] = block
                return address
            except (OSError, OverflowError, ValueError):
                if attempt == 1:
                    self.empty()
        raise self._full(size)

    def _full(self, size: int) -> Exception:
        return self.out_of_memory(size, f"of {gib(self.limit)} in all")

    def release(self, address: int) -> None:
        self._maps.pop(address).close()


def _map(size: int) -> tuple[int, mmap.mmap]:
    """New pages and their address, aligned to a huge page where they are many."""
    huge = size >= 2 * _HUGE_PAGE_BYTES
    length = size + _HUGE_PAGE_BYTES if huge else size
    if hasattr(mmap, "MAP_PRIVATE"):
        block = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    else:  # Windows
        block = mmap.mmap(-1, length)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    if huge:
        address = (address + _HUGE_PAGE_BYTES - 1) & -_HUGE_PAGE_BYTES
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                block.madvise(mmap.MADV_HUGEPAGE)
    return address, block


def _machine_memory() -> int:
    """Bytes of memory this process may use: the machine's, or its control group's."""
    total = 1 << 40
    with contextlib.suppress(AttributeError, OSError, ValueError):  # Windows refuses by itself
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if group != "max":
            total = min(total, int(group))
    return total
