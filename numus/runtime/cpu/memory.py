"""Host memory in blocks that are kept and reused.

Touching a page for the first time costs far more than writing to it again, so a freed block goes
to a free list of its size class instead of back to the system, and large blocks ask for huge pages.
Allocating and freeing a block that the pool has takes well under a microsecond: no lock is taken on
that path, because a `__del__` may run at any point of another allocation, even in the same thread.
Lists and counters change in single steps under the interpreter lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np

from numus.errors import OutOfMemoryError

_SLAB = 1 << 20  # small blocks are cut from pieces of this size
_SMALL = 1 << 17  # up to this size; larger ones get a mapping of their own
_HUGE = 1 << 21
_POOLED_FRACTION = 4  # free blocks may hold one part in this many of the machine's memory


class Memory:
    """A block of host memory; it returns to the pool when the last reference to it goes."""

    __slots__ = ("__weakref__", "_bin", "address", "nbytes", "owner")

    def __init__(self, address: int, nbytes: int, bin_: _Bin | None, owner: Any = None) -> None:
        self.address = address
        self.nbytes = nbytes
        self._bin = bin_
        self.owner = owner  # what keeps foreign memory alive

    def __del__(self) -> None:
        bin_ = self._bin
        if bin_ is not None:
            pool = bin_.pool
            pool.in_use -= bin_.size
            if bin_.large and pool.pooled + bin_.size > pool.pooled_limit:
                pool.release(self.address, bin_.size)
            else:
                pool.pooled += bin_.size
                bin_.free.append(self.address)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 3,
        }

    def view(self, dtype: Any = np.uint8, count: int | None = None) -> np.ndarray[Any, Any]:
        """The block as a flat NumPy array that shares it and keeps it alive."""
        kind = np.dtype(dtype)
        if count is None:
            count = self.nbytes // kind.itemsize
        if count == 0:
            return np.empty(0, kind)
        return np.asarray(self)[: count * kind.itemsize].view(kind)


def wrap(array: np.ndarray[Any, Any]) -> Memory:
    """A NumPy array's own memory, shared; the array lives as long as the result."""
    if not (array.flags.c_contiguous and array.flags.aligned):
        raise ValueError("only a contiguous, aligned array can be wrapped without a copy")
    address = array.__array_interface__["data"][0]
    return Memory(address, array.nbytes, None, array)


class _Bin:
    """The free blocks of one size."""

    __slots__ = ("free", "large", "pool", "size")

    def __init__(self, pool: MemoryPool, size: int) -> None:
        self.pool = pool
        self.size = size
        self.large = size > _SMALL
        self.free: list[int] = []


def size_class(nbytes: int) -> int:
    """What a request is rounded up to: 64 bytes, above 512 quarter steps of powers of two."""
    if nbytes <= 512:
        return max(64, (nbytes + 63) & ~63)
    step = 1 << ((nbytes - 1).bit_length() - 3)
    return (nbytes + step - 1) & -step


class MemoryPool:
    """Blocks of memory, 64-byte aligned."""

    def __init__(self) -> None:
        self.in_use = 0
        self.pooled = 0
        self.peak = 0
        self.allocations = 0
        self.mapped = 0  # allocations that had to ask the system
        self.limit = _machine_memory()
        self.pooled_limit = self.limit // _POOLED_FRACTION
        self._bins: dict[int, _Bin] = {}
        self._by_request: dict[int, _Bin] = {}
        self._maps: dict[int, mmap.mmap] = {}
        self._slabs: list[mmap.mmap] = []
        self._slab_next = self._slab_end = 0
        self._workspace: Memory | None = None
        self._lock = threading.Lock()

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def allocate(self, nbytes: int) -> Memory:
        """Uninitialised memory of at least `nbytes`."""
        bin_ = self._by_request.get(nbytes)
        if bin_ is None:
            bin_ = self._bin(nbytes)
        try:
            address = bin_.free.pop()
            self.pooled -= bin_.size
        except IndexError:
            address = self._fresh(bin_)
        self.allocations += 1
        self.in_use = in_use = self.in_use + bin_.size
        if in_use > self.peak:
            self.peak = in_use
        return Memory(address, nbytes, bin_)

    def workspace(self, nbytes: int) -> Memory:
        """At least so much memory, the same for all who ask: for temporaries of those who take
        turns. It grows in powers of two, so that in all it is at most twice what the largest needs.
        """
        found = self._workspace
        if found is None or found.nbytes < nbytes:
            found = self._workspace = self.allocate(1 << max(nbytes - 1, 0).bit_length())
        return found

    def _bin(self, nbytes: int) -> _Bin:
        if nbytes < 0:
            raise ValueError(f"cannot allocate {nbytes} bytes")
        size = size_class(nbytes)
        with self._lock:
            bin_ = self._bins.get(size)
            if bin_ is None:
                bin_ = self._bins[size] = _Bin(self, size)
            if len(self._by_request) > 4096:
                self._by_request.clear()
            self._by_request[nbytes] = bin_
        return bin_

    def _fresh(self, bin_: _Bin) -> int:
        """A block that the pool doesn't have."""
        self.mapped += 1
        if not bin_.large:
            with self._lock:
                if self._slab_end - self._slab_next < bin_.size:
                    self._slab_next, slab = self._map(_SLAB)
                    self._slab_end = self._slab_next + _SLAB
                    self._slabs.append(slab)
                address = self._slab_next
                self._slab_next += bin_.size
            return address
        address, block = self._map(bin_.size)
        self._maps[address] = block
        return address

    def _map(self, size: int) -> tuple[int, mmap.mmap]:
        if self.in_use + self.pooled + size > self.limit:
            # the system might promise more than there is, and end the process when it is touched
            self.empty()
            if self.in_use + size > self.limit:
                raise self._out_of_memory(size)
        try:
            return _map(size)
        except (OSError, OverflowError, ValueError):
            self.empty()
        try:
            return _map(size)
        except (OSError, OverflowError, ValueError):
            raise self._out_of_memory(size) from None

    def _out_of_memory(self, size: int) -> OutOfMemoryError:
        def gib(n: int) -> str:
            return f"{n / 2**30:.2f} GiB"

        return OutOfMemoryError(
            f"the cpu cannot provide {gib(size)}: {gib(self.in_use)} are in use by tensors, of "
            f"{gib(self.limit)} in all; free tensors, or work in smaller pieces"
        )

    def release(self, address: int, size: int) -> None:
        """Give a large block back to the system."""
        self._maps.pop(address).close()

    def empty(self) -> None:
        """Give every free large block back to the system."""
        for bin_ in list(self._bins.values()):
            while bin_.large:
                try:
                    address = bin_.free.pop()
                except IndexError:
                    break
                self.pooled -= bin_.size
                self.release(address, bin_.size)

    def stats(self) -> dict[str, int]:
        return {
            "in_use": self.in_use,
            "pooled": self.pooled,
            "peak": self.peak,
            "allocations": self.allocations,
            "mapped": self.mapped,
        }


def _map(size: int) -> tuple[int, mmap.mmap]:
    """Fresh pages, and where they start: at a huge page's border when they are many."""
    huge = size >= 2 * _HUGE
    length = size + _HUGE if huge else size
    if hasattr(mmap, "MAP_PRIVATE"):
        block = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    else:  # Windows
        block = mmap.mmap(-1, length)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    if huge:
        start = (address + _HUGE - 1) & -_HUGE
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                block.madvise(mmap.MADV_HUGEPAGE)
        address = start
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
