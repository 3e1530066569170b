"""Device memory in blocks that are kept and reused.

All work of a device runs in order on one stream, so a freed block can be given out again at once:
whoever gets it comes later on the stream. Freed blocks go to the free list of their size class;
when the device is full, all are given back to the driver and the allocation is tried again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from numus.errors import OutOfMemoryError
from numus.runtime.cuda import driver

_SLAB = 1 << 21  # small blocks are cut from pieces of this size
_SMALL = 1 << 19  # up to this size; larger ones are allocations of their own
_LEAST = 256  # bytes: what the driver aligns to


class Memory:
    """A block of device memory; it returns to the pool when the last reference to it goes."""

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
            pool.pooled += bin_.size
            bin_.free.append(self.address)


class _Bin:
    """The free blocks of one size."""

    __slots__ = ("free", "large", "pool", "size")

    def __init__(self, pool: MemoryPool, size: int) -> None:
        self.pool = pool
        self.size = size
        self.large = size > _SMALL
        self.free: list[int] = []


def size_class(nbytes: int) -> int:
    """What a request is rounded up to: 256 bytes, above 2 KiB eighth steps of powers of two."""
    if nbytes <= 8 * _LEAST:
        return max(_LEAST, (nbytes + _LEAST - 1) & -_LEAST)
    step = 1 << ((nbytes - 1).bit_length() - 4)
    return (nbytes + step - 1) & -step


class MemoryPool:
    """Blocks of a device's memory."""

    def __init__(self, device: str, activate: Callable[[], None]) -> None:
        self.device = device
        self._activate = activate  # makes the device's context current
        self.in_use = self.pooled = self.peak = self.allocations = self.mapped = 0
        self._bins: dict[int, _Bin] = {}
        self._by_request: dict[int, _Bin] = {}
        self._slab_next = self._slab_end = 0
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
        if bin_.large:
            return self._from_driver(bin_.size)
        with self._lock:
            if self._slab_end - self._slab_next < bin_.size:
                self._slab_next = self._from_driver(_SLAB)
                self._slab_end = self._slab_next + _SLAB
            address = self._slab_next
            self._slab_next += bin_.size
        return address

    def _from_driver(self, size: int) -> int:
        self._activate()
        for attempt in (1, 2):
            try:
                return int(driver.call("cuMemAlloc", size))
            except driver.DriverError as failure:
                if failure.code != driver.OUT_OF_MEMORY:
                    raise
            if attempt == 1:
                self.empty()
        free, total = driver.call("cuMemGetInfo")

        def gib(n: int) -> str:
            return f"{n / 2**30:.2f} GiB"

        raise OutOfMemoryError(
            f"{self.device} cannot provide {gib(size)}: {gib(self.in_use)} are in use by tensors, "
            f"{gib(int(free))} are free of {gib(int(total))} in all; free tensors, or work in "
            "smaller pieces"
        )

    def empty(self) -> None:
        """Give every free large block back to the driver (which waits for what runs)."""
        self._activate()
        for bin_ in list(self._bins.values()):
            while bin_.large:
                try:
                    address = bin_.free.pop()
                except IndexError:
                    break
                self.pooled -= bin_.size
                driver.call("cuMemFree", address)

    def stats(self) -> dict[str, int]:
        return {
            "in_use": self.in_use,
            "pooled": self.pooled,
            "peak": self.peak,
            "allocations": self.allocations,
            "mapped": self.mapped,
        }
