"""Device memory from a pool.

All work of a device runs in order on one stream, so a freed block can be given out again at once:
whoever gets it comes later on the stream. When the device is full, all free blocks are given back
to the driver and whatever needed memory is tried again (`driver.call`).
"""

from __future__ import annotations

from collections.abc import Callable

from numus.runtime import memory_pool
from numus.runtime.cuda import driver
from numus.runtime.memory_pool import gib


class MemoryPool(memory_pool.MemoryPool):
    """Blocks of a GPU's memory."""

    least = 256  # what the driver aligns to
    steps = 8
    slab = 1 << 21
    small = 1 << 19
    first_in_memory = True  # programs that come with the same addresses are replayed as graphs

    def __init__(self, device: str, activate: Callable[[], None]) -> None:
        super().__init__(device)
        self._activate = activate  # makes the device's context current

    def obtain(self, size: int) -> int:
        self._activate()
        try:
            return int(driver.call("cuMemAlloc", size))
        except driver.DriverMemoryError:
            free, total = driver.call("cuMemGetInfo")
        raise self.out_of_memory(size, f"{gib(int(free))} are free of {gib(int(total))} in all")

    def release(self, address: int) -> None:
        """The driver waits for what runs."""
        self._activate()
        driver.call("cuMemFree", address)
