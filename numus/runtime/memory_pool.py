"""Caching allocator with size classes, shared by the pools of all devices.

A freed block goes to the free list of its size class. Allocating from a free list takes well under
a microsecond and no lock: blocks may be freed at any point of another allocation, even in the same
thread. Lists and counters change atomically under the interpreter lock.

The destructor of a block is a list's `append`, and runs no Python code: an interrupt (Ctrl-C)
inside would be lost. So nothing counts blocks as they are freed: a block that is freed and taken
again stays counted as in use, and the counts are settled where they would set a new peak.
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
_MAX_STEP_BYTES = 64 << 20  # between size classes: temporaries of a training step are one block


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
    """The blocks of one size."""

    __slots__ = ("destructors", "free", "idle", "large", "put", "size", "take")

    def __init__(self, pool: MemoryPool, size: int) -> None:
        self.size = size
        self.large = size > pool.max_slab_block_bytes
        self.free: list[int] = []
        self.put: Callable[[int], None] = self.free.append
        self.take: Callable[[], int] = self.free.pop
        if pool.lowest_address_first:
            self.put, self.take = partial(heappush, self.free), partial(heappop, self.free)
        self.idle = 0  # of the free blocks, those that are not counted as in use
        self.destructors: dict[int, Callable[[], Any]] = {}  # of all blocks, by address


def round_up(nbytes: int, min_bytes: int, classes_per_octave: int) -> int:
    """The size class of a request: multiples of `min_bytes`, then a fixed number from each power
    of two to the next, and more where they would be far from each other."""
    if nbytes <= 2 * classes_per_octave * min_bytes:
        return max(min_bytes, (nbytes + min_bytes - 1) & -min_bytes)
    step = 1 << ((nbytes - 1).bit_length() - classes_per_octave.bit_length())
    step = min(step, _MAX_STEP_BYTES)
    return (nbytes + step - 1) & -step


def gib(n: int) -> str:
    return f"{n / 2**30:.2f} GiB"


class PoolCounters:
    """Bytes and blocks of a memory pool."""

    def __init__(self) -> None:
        self.peak = self.allocations = 0
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
        super().__init__()
        self.device = device
        self.max_pooled_bytes = 1 << 62
        self._mapped_bytes = 0
        self._max_in_use = 0  # an upper bound: see `_mark_idle_blocks`
        self._classes: dict[int, _SizeClass] = {}
        self._by_request: dict[int, _SizeClass] = {}
        self._freed: deque[tuple[_SizeClass, int]] = deque()  # large blocks, oldest first
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
            address = class_.take()
        except IndexError:
            address = self._map(class_)
            self._use(class_.size)
        else:
            if len(class_.free) < class_.idle:
                class_.idle -= 1
                self._use(class_.size)
        self.allocations += 1
        return self.memory(address, nbytes, class_.destructors[address])

    def _use(self, size: int) -> None:
        """Count a block as in use."""
        self._max_in_use += size
        if self._max_in_use > self.peak:
            self._mark_idle_blocks()
            self.peak = max(self.peak, self._max_in_use)

    def _mark_idle_blocks(self) -> None:
        """Count free blocks as such. Until the next time, the blocks in use take at most what they
        do now, and what is taken in addition."""
        for class_ in list(self._classes.values()):
            class_.idle = len(class_.free)
        self._max_in_use = self._mapped_bytes - self._free_bytes()

    def _collect(self) -> None:
        """Move large blocks that were freed to their free lists, or unmap them."""
        while self._freed:
            try:
                class_, address = self._freed.popleft()
            except IndexError:  # another thread was here
                return
            limit = self.max_pooled_bytes - class_.size
            if self._mapped_bytes > limit and self._free_bytes() > limit:
                self._unmap(class_, address)
            else:
                class_.put(address)

    def _unmap(self, class_: _SizeClass, address: int) -> None:
        del class_.destructors[address]
        self._mapped_bytes -= class_.size
        self.release(address)

    @property
    def pooled(self) -> int:
        self._collect()
        return self._free_bytes()

    @property
    def in_use(self) -> int:
        return self._mapped_bytes - self.pooled

    def _free_bytes(self) -> int:
        return sum([class_.size * len(class_.free) for class_ in list(self._classes.values())])

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
            address = self.obtain(class_.size)
            class_.destructors[address] = partial(self._freed.append, (class_, address))
        else:
            address = self._cut(class_.size)
            class_.destructors[address] = partial(class_.put, address)
        self._mapped_bytes += class_.size
        return address

    def _cut(self, size: int) -> int:
        """A part of a slab."""
        while True:
            with self._lock:  # integer arithmetic only: other code may need the lock itself
                address = self._slab_next
                if address + size <= self._slab_end:
                    self._slab_next = address + size
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
                    address = class_.take()
                except IndexError:
                    break
                self._unmap(class_, address)
        self._mark_idle_blocks()

    def out_of_memory(self, size: int, state: str) -> OutOfMemoryError:
        return OutOfMemoryError(
            f"{self.device} cannot provide {gib(size)}: {gib(self.in_use)} are in use by tensors, "
            f"{state}; free tensors, or use smaller ones"
        )
