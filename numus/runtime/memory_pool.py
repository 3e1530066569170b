"""Memory in blocks that are kept and reused: what the pools of all devices have in common.

A freed block goes to the free list of its size class instead of back to where it came from.
Allocating and freeing a block that the pool has takes well under a microsecond: no lock is taken on
that path, because a `__del__` may run at any point of another allocation, even in the same thread.
Lists and counters change in single steps under the interpreter lock.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import Any

from numus.errors import OutOfMemoryError

_MANY = 4096  # sizes that were asked for and are remembered


class Memory:
    """A block of memory; it returns to the pool when the last reference to it goes."""

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
                pool.release(self.address)
            else:
                pool.pooled += bin_.size
                bin_.put(self.address)


class _Bin:
    """The free blocks of one size."""

    __slots__ = ("large", "pool", "put", "size", "take")

    def __init__(self, pool: MemoryPool, size: int) -> None:
        self.pool = pool
        self.size = size
        self.large = size > pool.small
        free: list[int] = []
        self.put: Callable[[int], None] = free.append
        self.take: Callable[[], int] = free.pop
        if pool.first_in_memory:
            self.put, self.take = partial(heappush, free), partial(heappop, free)


def rounded(nbytes: int, least: int, steps: int) -> int:
    """What a request is rounded up to: whole multiples of `least`; from where these would be finer,
    parts of a power of two of which there are `steps` up to the next."""
    if nbytes <= 2 * steps * least:
        return max(least, (nbytes + least - 1) & -least)
    step = 1 << ((nbytes - 1).bit_length() - steps.bit_length())
    return (nbytes + step - 1) & -step


def gib(n: int) -> str:
    return f"{n / 2**30:.2f} GiB"


class MemoryPool(ABC):
    """Blocks of one device's memory, got by `obtain` and given back by `release`."""

    least: int  # bytes of the smallest block, and what blocks are aligned to
    steps: int  # sizes of blocks from one power of two to the next
    slab: int  # small blocks are cut from pieces of this size
    small: int  # bytes of the largest of these; larger ones are pieces of their own
    memory: type[Memory] = Memory  # what is given out
    # Which free block is given out: the last that was freed, which may still be in a cache; or the
    # first in memory, so that what does the same again gets the same places again.
    first_in_memory = False

    def __init__(self, device: str) -> None:
        self.device = device
        self.in_use = self.pooled = self.peak = self.allocations = 0
        self.mapped = 0  # allocations of which the pool had none
        self.pooled_limit = 1 << 62  # bytes that free blocks may hold
        self._bins: dict[int, _Bin] = {}
        self._by_request: dict[int, _Bin] = {}
        self._slab_next = self._slab_end = 0
        self._workspace: Memory | None = None
        self._lock = threading.Lock()

    @abstractmethod
    def obtain(self, size: int) -> int:
        """The address of fresh memory; OutOfMemoryError where there is none even when the pool has
        been emptied."""

    @abstractmethod
    def release(self, address: int) -> None:
        """Give a large block back to where it came from."""

    @classmethod
    def size_class(cls, nbytes: int) -> int:
        """What a request is rounded up to."""
        return rounded(nbytes, cls.least, cls.steps)

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def allocate(self, nbytes: int) -> Memory:
        """Uninitialised memory of at least `nbytes`."""
        bin_ = self._by_request.get(nbytes)
        if bin_ is None:
            bin_ = self._bin(nbytes)
        try:
            address = bin_.take()
            self.pooled -= bin_.size
        except IndexError:
            address = self._fresh(bin_)
        self.allocations += 1
        self.in_use = in_use = self.in_use + bin_.size
        if in_use > self.peak:
            self.peak = in_use
        return self.memory(address, nbytes, bin_)

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
        size = self.size_class(nbytes)
        with self._lock:
            bin_ = self._bins.get(size)
            if bin_ is None:
                bin_ = self._bins[size] = _Bin(self, size)
            if len(self._by_request) > _MANY:
                self._by_request.clear()
            self._by_request[nbytes] = bin_
        return bin_

    def _fresh(self, bin_: _Bin) -> int:
        """A block that the pool doesn't have."""
        self.mapped += 1
        if bin_.large:
            return self.obtain(bin_.size)
        with self._lock:
            if self._slab_end - self._slab_next < bin_.size:
                self._slab_next = self.obtain(self.slab)
                self._slab_end = self._slab_next + self.slab
            address = self._slab_next
            self._slab_next += bin_.size
        return address

    def empty(self) -> None:
        """Give every free large block back to where it came from."""
        for bin_ in list(self._bins.values()):
            while bin_.large:
                try:
                    address = bin_.take()
                except IndexError:
                    break
                self.pooled -= bin_.size
                self.release(address)

    def out_of_memory(self, size: int, state: str) -> OutOfMemoryError:
        """The error for a block that cannot be had."""
        return OutOfMemoryError(
            f"{self.device} cannot provide {gib(size)}: {gib(self.in_use)} are in use by tensors, "
            f"{state}; free tensors, or work in smaller pieces"
        )

    def stats(self) -> dict[str, int]:
        return {
            "in_use": self.in_use,
            "pooled": self.pooled,
            "peak": self.peak,
            "allocations": self.allocations,
            "mapped": self.mapped,
        }
