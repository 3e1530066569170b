"""GPU memory in buffers that are kept and reused.

Buffers come in powers of two. A buffer goes back to its bucket when the last tensor on it dies, at
once: work that still reads it was handed to the GPU before whatever will write to it next.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from numus.errors import OutOfMemoryError
from numus.runtime.webgpu.context import lost

if TYPE_CHECKING:
    from numus.runtime.webgpu.context import GpuContext

SHIFT = 40  # an address is the number of a block above this many bits, and an offset below
_SMALLEST = 256
_PIECE = 32 << 20  # bytes that are staged at a time
_POOLED = 1 << 30  # bytes of free buffers that are kept
_numbers = itertools.count(1).__next__


class Memory:
    """A block of GPU memory; it returns to the pool when the last reference to it goes."""

    __slots__ = ("__weakref__", "address", "buffer", "fence", "nbytes", "number", "pool")

    def __init__(self, pool: BufferPool, nbytes: int, buffer: Any, number: int) -> None:
        self.pool = pool
        self.nbytes = nbytes
        self.buffer = buffer
        self.number = number  # of the buffer: bind groups are known by it
        self.address = number << SHIFT
        self.fence = 0  # the last submission that touched it

    def __del__(self) -> None:
        self.pool.give_back(self.number)


class BufferPool:
    """Buffers of one device by size, with statistics."""

    def __init__(self, context: GpuContext) -> None:
        self.context = context
        usage = context.wgpu.BufferUsage
        self._storage = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        self._readable = usage.COPY_DST | usage.MAP_READ
        # Buffers are held here and known by numbers elsewhere: a block that dies as part of a cycle
        # would otherwise take its buffer with it.
        self._buffers: dict[int, Any] = {}
        self._free: dict[int, list[int]] = {}  # by size
        self._ages: dict[int, None] = {}  # of the free ones, the longest unused first
        self._staging: dict[int, list[Any]] = {}
        self._lock = threading.RLock()
        self._living: dict[int, ref[Memory]] = {}  # by number
        self._largest: int = context.limits["max-buffer-size"]
        self.in_use = self.pooled = self.peak = self.allocations = self.made = 0

    def allocate(self, nbytes: int) -> Memory:
        """Uninitialised memory."""
        if self.context.lost:
            raise lost(self.context)
        size = 1 << (nbytes - 1).bit_length() if nbytes > _SMALLEST else _SMALLEST
        if size > self._largest:
            size = -(-nbytes // 256) * 256
            if nbytes > self._largest:
                raise OutOfMemoryError(
                    f"{nbytes} bytes on {self.context.name}: its largest buffer has "
                    f"{self._largest} (max-buffer-size); use parts"
                )
        with self._lock:
            free = self._free.get(size)
            if free:
                number = free.pop()
                self._ages.pop(number, None)
                self.pooled -= size
                buffer = self._buffers[number]
            else:
                buffer = self._make(size, self._storage)
                number = _numbers()
                self._buffers[number] = buffer
            self.in_use += size
            if self.in_use > self.peak:
                self.peak = self.in_use
            self.allocations += 1
            memory = Memory(self, nbytes, buffer, number)
            self._living[number] = ref(memory)
        return memory

    def at(self, number: int) -> Memory | None:
        """The block with a number, if somebody still has it."""
        found = self._living.get(number)
        return found() if found is not None else None

    def give_back(self, number: int) -> None:
        self._living.pop(number, None)
        buffer = self._buffers[number]
        size = buffer.size
        self.in_use -= size
        if self.context.lost:
            del self._buffers[number]
            return
        self._free.setdefault(size, []).append(number)
        self._ages[number] = None
        self.pooled += size
        # the longest unused go: WebGPU does not tell how much memory there is, use does
        while self.pooled > max(_POOLED, self.peak):
            oldest = next(iter(self._ages), None)
            if oldest is None:
                return
            del self._ages[oldest]
            free = self._free[self._buffers[oldest].size]
            if oldest in free:  # else an allocation, in the midst of which this runs, has taken it
                free.remove(oldest)
                old = self._buffers.pop(oldest)
                self.pooled -= old.size
                old.destroy()

    def _make(self, size: int, usage: int) -> Any:
        self.made += 1
        create: Callable[[], Any] = lambda: self.context.device.create_buffer(  # noqa: E731
            size=size, usage=usage
        )
        error = self.context.wgpu.GPUError
        try:
            return create()
        except error as first:
            failure = self.context.check(first)
            if failure is not first:
                raise failure from first
        self.clear()
        self.context.wait()
        try:
            return create()
        except error as second:
            reason = str(second).strip().splitlines()[-1].strip()
            raise OutOfMemoryError(
                f"{size} bytes on {self.context.name}: {self.in_use} are in use, and the device "
                f"has no more ({reason}). Free tensors there, or use smaller parts."
            ) from second

    def clear(self) -> None:
        """Give all free buffers back to the driver."""
        with self._lock:
            free = [self._buffers.pop(n) for numbers in self._free.values() for n in numbers]
            free += [b for buffers in self._staging.values() for b in buffers]
            self._free.clear()
            self._ages.clear()
            self._staging.clear()
            for buffer in free:
                buffer.destroy()
            self.pooled = 0

    def stats(self) -> dict[str, int]:
        return {
            "in_use": self.in_use,
            "pooled": self.pooled,
            "peak": self.peak,
            "allocations": self.allocations,
            "made": self.made,
        }

    # -- between host and device ------------------------------------------------------------------

    def upload(self, memory: Memory, array: np.ndarray[Any, Any]) -> None:
        """Copy a contiguous host array in, piece by piece."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        queue = self.context.queue
        for start in range(0, data.nbytes, _PIECE):
            piece = data[start : start + _PIECE]
            if piece.nbytes % 4:
                piece = np.concatenate([piece, np.zeros(-piece.nbytes % 4, np.uint8)])
            queue.write_buffer(memory.buffer, start, piece)
            if start:
                self.context.submit([])  # lets go of what was staged
        memory.fence = self.context.last + 1

    def download(self, memory: Memory, start: int, nbytes: int) -> np.ndarray[Any, Any]:
        """Bytes of a block, on the host."""
        out = np.empty(nbytes, np.uint8)
        for at in range(0, nbytes, _PIECE):
            count = min(_PIECE, nbytes - at)
            first = (start + at) & ~3
            last = -(-(start + at + count) // 4) * 4
            skip = start + at - first
            out[at : at + count] = self._read(memory, first, last - first)[skip : skip + count]
        return out

    def _read(self, memory: Memory, start: int, nbytes: int) -> np.ndarray[Any, Any]:
        size = max(_SMALLEST, 1 << max(0, nbytes - 1).bit_length())
        with self._lock:
            free = self._staging.get(size)
            staging = free.pop() if free else self._make(size, self._readable)
        encoder = self.context.device.create_command_encoder()
        encoder.copy_buffer_to_buffer(memory.buffer, start, staging, 0, nbytes)
        memory.fence = self.context.submit([encoder.finish()])
        staging.map_sync("READ_NOSYNC", 0, nbytes)
        found = np.frombuffer(staging.read_mapped(0, nbytes), np.uint8)
        staging.unmap()
        with self._lock:
            self._staging.setdefault(size, []).append(staging)
        return found
