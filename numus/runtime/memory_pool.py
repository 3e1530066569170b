"""Caching allocator with size classes, shared by the pools of all devices.

A freed block goes to the free list of its size class. Allocating from a free list takes well under
a microsecond and no lock: blocks may be freed at any point of another allocation, even in the same
thread. Lists and counters change atomically under the interpreter lock.

The destructor of a block appends to a list, and runs no Python code: an interrupt (Ctrl-C) inside
would be lost. The next allocation moves freed blocks to their free lists.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import Any

import numpy as np

from numus.errors import OutOfMemoryError
from numus.runtime.locks import Rank, new_lock

_MAX_CACHED_REQUESTS = 4096  # request sizes with a known size class


class Memory:
    """A block of memory; it returns to the pool when the last reference to it goes."""

    __slots__ = ("__del__", "__weakref__", "address", "nbytes", "owner")

    def __init__(
        self, address: int, nbytes: int, free: Callable[[], Any] = int, owner: Any = None
    ) -> None:
        self.__del__ = free  # a builtin, or a partial one; `int` does nothing
        self.address = address
        self.nbytes = nbytes
        self.owner = owner  # keeps another library's memory alive


def is_borrowed(memory: Any) -> bool:
    """Another library's memory, which may change, and must not be reused."""
    return getattr(memory, "owner", None) is not None


def is_read_only(memory: Any) -> bool:
    """Borrowed memory that its owner does not let others write to."""
    owner = getattr(memory, "owner", None)
    if isinstance(owner, np.ndarray):
        return not owner.flags.writeable
    return getattr(owner, "read_only", False)


class _SizeClass:
    """The free blocks of one size."""

    __slots__ = ("large", "put", "size", "take")

    def __init__(self, pool: MemoryPool, size: int) -> None:
        self.size = size
        self.large = size > pool.max_slab_block_bytes
        free: list[_Block] = []
        self.put: Callable[[_Block], None] = free.append
        self.take: Callable[[], _Block] = free.pop
        if pool.lowest_address_first:
            self.put, self.take = partial(heappush, free), partial(heappop, free)


_Block = tuple[int, _SizeClass]  # an address, and its size


def round_up(nbytes: int, min_bytes: int, classes_per_octave: int) -> int:
    """The size class of a request: multiples of `min_bytes`, then a fixed number from each power
    of two to the next."""
    if nbytes <= 2 * classes_per_octave * min_bytes:
        return max(min_bytes, (nbytes + min_bytes - 1) & -min_bytes)
    step = 1 << ((nbytes - 1).bit_length() - classes_per_octave.bit_length())
    return (nbytes + step - 1) & -step


def gib(n: int) -> str:
    return f"{n / 2**30:.2f} GiB"


class PoolCounters:
    """Bytes and blocks of a memory pool."""

    def __init__(self) -> None:
        self.in_use = self.pooled = self.peak = self.allocations = 0
        self.mapped = 0  # allocations that found no free block

    def stats(self) -> dict[str, int]:
        names = ("in_use", "pooled", "peak", "allocations", "mapped")
        return {name: getattr(self, name) for name in names}


class MemoryPool(PoolCounters, ABC):
    """Blocks of one device's memory, mapped by `obtain` and unmapped by `release`."""

    min_bytes: int  # of a block, and the alignment of all
    classes_per_octave: int  # size classes from one power of two to the next
    slab_bytes: int  # small blocks are cut from slabs of this size
    max_slab_block_bytes: int  # larger blocks are mapped on their own
    memory: type[Memory] = Memory
    # Reuse the lowest free address, so that repeated work gets the same addresses again, rather
    # than the block freed last, which may still be in a cache.
    lowest_address_first = False

    def __init__(self, device: str) -> None:
        self._freed: deque[_Block] = deque()  # oldest first
        self._free = self._freed.append
        self._in_use = self._pooled = 0
        super().__init__()
        self.device = device
        self.max_pooled_bytes = 1 << 62
        self._classes: dict[int, _SizeClass] = {}
        self._by_request: dict[int, _SizeClass] = {}
        self._slab_next = self._slab_end = 0
        self._workspace: Memory | None = None
        self._lock = new_lock(Rank.MEMORY)

    @abstractmethod
    def obtain(self, size: int) -> int:
        """The address of new memory; OutOfMemoryError where there is none even when the pool has
        been emptied."""

    @abstractmethod
    def release(self, address: int) -> None:
        """Unmap a large block."""

    @classmethod
    def size_class(cls, nbytes: int) -> int:
        """The bytes that a request takes."""
        return round_up(nbytes, cls.min_bytes, cls.classes_per_octave)

    def allocate(self, nbytes: int) -> Memory:
        """Uninitialised memory of at least `nbytes`."""
        class_ = self._by_request.get(nbytes)
        if class_ is None:
            nbytes = operator.index(nbytes)
            class_ = self._class_of(nbytes)
        if self._freed:
            self._collect()
        try:
            block = class_.take()
            self._pooled -= class_.size
        except IndexError:
            block = (self._map(class_), class_)
        self.allocations += 1
        self._in_use = in_use = self._in_use + class_.size
        if in_use > self.peak:
            self.peak = in_use
        return self.memory(block[0], nbytes, partial(self._free, block))

    def _collect(self) -> None:
        """Move freed blocks to their free lists."""
        freed = self._freed
        while freed:
            try:
                block = freed.popleft()
            except IndexError:  # another thread was here
                return
            class_ = block[1]
            size = class_.size
            self._in_use -= size
            if class_.large and self._pooled + size > self.max_pooled_bytes:
                self.release(block[0])
            else:
                self._pooled += size
                class_.put(block)

    @property
    def in_use(self) -> int:
        self._collect()
        return self._in_use

    @in_use.setter
    def in_use(self, nbytes: int) -> None:
        self._in_use = nbytes

    @property
    def pooled(self) -> int:
        self._collect()
        return self._pooled

    @pooled.setter
    def pooled(self, nbytes: int) -> None:
        self._pooled = nbytes

    def workspace(self, nbytes: int) -> Memory:
        """At least `nbytes` bytes, shared by all callers: for temporaries of launches that
        run one after another. It grows in powers of two."""
        found = self._workspace
        if found is None or found.nbytes < nbytes:
            found = self._workspace = self.allocate(1 << max(nbytes - 1, 0).bit_length())
        return found

    def _class_of(self, nbytes: int) -> _SizeClass:
        if nbytes < 0:
            raise ValueError(f"cannot allocate {nbytes} bytes")
        size = self.size_class(nbytes)
        class_ = self._classes.get(size)
        if class_ is None:
            class_ = self._classes.setdefault(size, _SizeClass(self, size))
        if len(self._by_request) > _MAX_CACHED_REQUESTS:
            self._by_request.clear()
        self._by_request[nbytes] = class_
        return class_

    def _map(self, class_: _SizeClass) -> int:
        """A new block."""
        self.mapped += 1
        if class_.large:
            return self.obtain(class_.size)
        while True:
            with self._lock:  # integer arithmetic only: other code may need the lock itself
                address = self._slab_next
                if address + class_.size <= self._slab_end:
                    self._slab_next = address + class_.size
                    return address
            slab = self.obtain(self.slab_bytes)
            with self._lock:
                self._slab_next, self._slab_end = slab, slab + self.slab_bytes

    def empty(self) -> None:
        """Unmap all free large blocks."""
        self._collect()
        for class_ in list(self._classes.values()):
            while class_.large:
                try:
                    address, _ = class_.take()
                except IndexError:
                    break
                self._pooled -= class_.size
                self.release(address)

    def out_of_memory(self, size: int, state: str) -> OutOfMemoryError:
        return OutOfMemoryError(
            f"{self.device} cannot provide {gib(size)}: {gib(self.in_use)} are in use by tensors, "
            f"{state}; free tensors, or use smaller ones"
        )
