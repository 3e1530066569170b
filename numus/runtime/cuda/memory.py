"""Stream-ordered memory pool of a GPU.

All work of a device runs in order on one stream, so a freed block can be reused at once. Out of
memory, free blocks are returned to the driver and the call is made again (`driver.call`).
"""

from __future__ import annotations

from collections.abc import Callable

from numus.runtime import memory_pool
from numus.runtime.cuda import driver
from numus.runtime.memory_pool import gib


class MemoryPool(memory_pool.MemoryPool):
    """Blocks of a GPU's memory."""

    min_bytes = 256  # the driver's alignment
    classes_per_octave = 8
    slab_bytes = 1 << 21
    max_slab_block_bytes = 1 << 19
    lowest_address_first = True  # recurring addresses let launch lists be replayed as graphs

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
        """Free a block; the driver waits for running work."""
        self._activate()
        driver.call("cuMemFree", address)
