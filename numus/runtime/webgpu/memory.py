"""Buffer pool of a WebGPU device, with power-of-two size classes.

A buffer returns to the pool as soon as the last tensor on it dies: the queue runs in order, so work
that still reads it precedes whatever writes to it next.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from functools import partial
from typing import Any
from weakref import ref

import numpy as np

from numus.errors import DeviceError, OutOfMemoryError
from numus.runtime.contract import Array
from numus.runtime.memory_pool import PoolCounters
from numus.runtime.webgpu import adapters
from numus.runtime.webgpu.context import GpuContext, lost_error

OFFSET_BITS = 40  # an address is a buffer id above these bits, and an offset in them
_MIN_BUFFER_BYTES = 256
_STAGING_BYTES = 32 << 20  # per transfer
_MIN_POOLED_LIMIT = 1 << 30  # bytes of free buffers that are kept at least
_next_id = itertools.count(1).__next__


class Memory:
    """A block of GPU memory; it returns to the pool when the last reference to it goes."""

    __slots__ = ("__del__", "__weakref__", "address", "buffer", "id", "nbytes", "pool")

    def __init__(self, pool: BufferPool, nbytes: int, buffer: Any, id_: int) -> None:
        self.pool = pool
        self.nbytes = nbytes
        self.buffer = buffer
        self.id = id_  # of the buffer: the key of bind groups
        self.address = id_ << OFFSET_BITS
        # without Python code, in which an interrupt would be lost
        self.__del__ = partial(pool.freed.append, id_)


class BufferPool(PoolCounters):
    """Buffers of one device."""

    def __init__(self, context: GpuContext) -> None:
        super().__init__()
        self.in_use = self.pooled = 0
        self.context = context
        usage = context.wgpu.BufferUsage
        self._storage = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        self._readable = usage.COPY_DST | usage.MAP_READ
        # Owned here, known by id elsewhere: a block that dies as part of a reference cycle would
        # otherwise take its buffer with it.
        self._buffers: dict[int, Any] = {}
        self._free: dict[int, list[int]] = {}  # by size
        self._lru: dict[int, None] = {}  # free buffers, least recently used first
        self._staging: dict[int, list[Any]] = {}
        self._lock = threading.RLock()
        self.freed: deque[int] = deque()  # ids, oldest first
        self._live: dict[int, ref[Memory]] = {}  # by id
        self._max_bytes: int = context.limits["max-buffer-size"]

    def allocate(self, nbytes: int) -> Memory:
        if self.context.lost:
            raise lost_error(self.context)
        size = 1 << (nbytes - 1).bit_length() if nbytes > _MIN_BUFFER_BYTES else _MIN_BUFFER_BYTES
        if size > self._max_bytes:
            size = -(-nbytes // 256) * 256
            if nbytes > self._max_bytes:
                raise OutOfMemoryError(
                    f"{nbytes} bytes on {self.context.name}: its largest buffer has "
                    f"{self._max_bytes} (max-buffer-size); use smaller tensors"
                )
        with self._lock:
            self._collect()
            free = self._free.get(size)
            if free:
                id_ = free.pop()
                self._lru.pop(id_, None)
                self.pooled -= size
                buffer = self._buffers[id_]
            else:
                buffer = self._create(size, self._storage)
                id_ = _next_id()
                self._buffers[id_] = buffer
            self.in_use += size
            self.peak = max(self.peak, self.in_use)
            self.allocations += 1
            memory = Memory(self, nbytes, buffer, id_)
            self._live[id_] = ref(memory)
        return memory

    def find(self, id_: int) -> Memory | None:
        """The block with a buffer id, while it lives."""
        found = self._live.get(id_)
        return found() if found is not None else None

    def stats(self) -> dict[str, int]:
        with self._lock:
            self._collect()
            return super().stats()

    def _collect(self) -> None:
        """Move freed buffers to the free lists."""
        while self.freed:
            self._release(self.freed.popleft())

    def _release(self, id_: int) -> None:
        self._live.pop(id_, None)
        size = self._buffers[id_].size
        self.in_use -= size
        if self.context.lost:
            del self._buffers[id_]
            return
        self._free.setdefault(size, []).append(id_)
        self._lru[id_] = None
        self.pooled += size
        # WebGPU does not tell how much memory there is: the peak is known to fit
        while self.pooled > max(_MIN_POOLED_LIMIT, self.peak):
            oldest = next(iter(self._lru), None)
            if oldest is None:
                return
            del self._lru[oldest]
            free = self._free[self._buffers[oldest].size]
            free.remove(oldest)
            old = self._buffers.pop(oldest)
            self.pooled -= old.size
            old.destroy()

    def _create(self, size: int, usage: int) -> Any:
        self.mapped += 1
        for attempt in (1, 2):
            try:
                return self.context.device.create_buffer(size=size, usage=usage)
            except self.context.wgpu.GPUError as error:
                self.context.raise_if_lost(error)
                if attempt == 2:
                    reason = str(error).strip().splitlines()[-1].strip()
                    raise OutOfMemoryError(
                        f"{size} bytes on {self.context.name}: {self.in_use} are in use, and the "
                        f"device has no more ({reason}). Free tensors there, or use smaller ones."
                    ) from error
            self.empty()
            self.context.wait()

    def empty(self) -> None:
        """Return all free buffers to the driver."""
        with self._lock:
            self._collect()
            free = [self._buffers.pop(i) for ids in self._free.values() for i in ids]
            free += [b for buffers in self._staging.values() for b in buffers]
            self._free.clear()
            self._lru.clear()
            self._staging.clear()
            for buffer in free:
                buffer.destroy()
            self.pooled = 0

    # -- between host and device ------------------------------------------------------------------

    def upload(self, memory: Memory, array: Array) -> None:
        """Copy a host array in."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        queue = self.context.queue
        for start in range(0, data.nbytes, _STAGING_BYTES):
            chunk = data[start : start + _STAGING_BYTES]
            if chunk.nbytes % 4:
                chunk = np.concatenate([chunk, np.zeros(-chunk.nbytes % 4, np.uint8)])
            queue.write_buffer(memory.buffer, start, chunk)
            if start:
                queue.submit([])  # frees the staging memory

    def download(self, memory: Memory, start: int, nbytes: int) -> Array:
        """Bytes of a block, on the host."""
        out = np.empty(nbytes, np.uint8)
        for at in range(0, nbytes, _STAGING_BYTES):
            count = min(_STAGING_BYTES, nbytes - at)
            first = (start + at) & ~3
            last = -(-(start + at + count) // 4) * 4
            skip = start + at - first
            out[at : at + count] = self._read(memory, first, last - first)[skip : skip + count]
        return out

    def _read(self, memory: Memory, start: int, nbytes: int) -> Array:
        size = max(_MIN_BUFFER_BYTES, 1 << max(0, nbytes - 1).bit_length())
        with self._lock:
            free = self._staging.get(size)
            staging = free.pop() if free else self._create(size, self._readable)
        encoder = self.context.device.create_command_encoder()
        encoder.copy_buffer_to_buffer(memory.buffer, start, staging, 0, nbytes)
        self.context.queue.submit([encoder.finish()])
        staging.map_sync("READ_NOSYNC", 0, nbytes)
        found = np.frombuffer(staging.read_mapped(0, nbytes), np.uint8)
        staging.unmap()
        with self._lock:
            self._staging.setdefault(size, []).append(staging)
        return found


class GpuSession:
    """The current context and pool of an adapter, across lost devices, which launches, pipelines
    and user kernels share."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.lock = threading.RLock()
        self._last_lost: GpuContext | None = None
        self._start()

    def _start(self) -> None:
        context = GpuContext.get(self.index)
        if context is None:
            raise DeviceError(
                f"there is no WebGPU adapter {self.index} here; {adapters.unavailable_hint()}"
            )
        self.context: GpuContext = context
        self.pool = BufferPool(context)

    def restart(self) -> None:
        """Replace a lost context by a new one."""
        self._last_lost = self.context
        self._start()

    def alive(self) -> GpuContext:
        """The current context; raises where it is lost."""
        if self.context.lost:
            raise lost_error(self.context)
        return self.context

    def memory_of(self, buffer_id: int) -> Memory:
        """The live block with a buffer id; it may be gone with a lost device."""
        found = self.pool.find(buffer_id)
        if found is None:
            if self._last_lost is not None:
                raise lost_error(self._last_lost)
            raise DeviceError(f"memory that is not, or no longer, on {self.context.name}")
        return found
