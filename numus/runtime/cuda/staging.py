"""Double-buffered copies between host and device through pinned memory.

While one pinned buffer is copied by the device, the other is filled or emptied by threads of the
host, one of which is slower than the bus. Every concurrent copy has buffers of its own.
"""

from __future__ import annotations

import ctypes
import functools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from numus.runtime import launch_lock
from numus.runtime.contract import Array
from numus.runtime.cuda import driver

_BUFFER_BYTES = 8 << 20
MAX_EARLY_BYTES = 64  # of a result that is read while its program still runs
_THREADS = 4  # of a quarter of the CPUs, that fill or empty a buffer,
_THREAD_BYTES = 1 << 20  # each at least this much


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, "numus-staging")


def _copy(to: int, source: int, size: int) -> None:
    """memmove, which lets other threads run, by several of them."""
    count = min(_THREADS, (os.cpu_count() or 1) // 4, size // _THREAD_BYTES)
    if count < 2:
        ctypes.memmove(to, source, size)
        return
    part = -(-size // count)
    starts = range(0, size, part)
    list(
        _threads().map(
            lambda at: ctypes.memmove(to + at, source + at, min(part, size - at)), starts
        )
    )


class Staging:
    """Pinned buffers of one device, for one copy at a time."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._buffers: list[int] = []
        self._done: list[Any] = []  # events after the last copy of each buffer
        self._side_stream: Any = None

    def _allocate(self) -> None:
        if not self._buffers:
            for _ in range(2):
                self._buffers.append(int(driver.call("cuMemHostAlloc", _BUFFER_BYTES, 0)))
                self._done.append(driver.call("cuEventCreate", 2))  # without timing

    def download_early(self, address: int, array: Array, ready: Any) -> None:
        """Device to host after the event `ready`, while later work still runs."""
        if self._side_stream is None:
            self._side_stream = driver.call("cuStreamCreate", 1)
            # pending uploads may still read the other buffers
            self._early_buffer = int(driver.call("cuMemHostAlloc", MAX_EARLY_BYTES, 0))
        driver.call("cuStreamWaitEvent", self._side_stream, ready, 0)
        buffer = self._early_buffer
        driver.call("cuMemcpyDtoHAsync", buffer, address, array.nbytes, self._side_stream)
        driver.call("cuStreamSynchronize", self._side_stream)
        ctypes.memmove(array.__array_interface__["data"][0], buffer, array.nbytes)

    def upload(self, address: int, array: Array) -> None:
        """Host to device; the array may be changed or freed on return."""
        self._allocate()
        source = array.__array_interface__["data"][0]
        for number, at in enumerate(range(0, array.nbytes, _BUFFER_BYTES)):
            buffer, done = self._buffers[number % 2], self._done[number % 2]
            size = min(_BUFFER_BYTES, array.nbytes - at)
            driver.call("cuEventSynchronize", done)
            _copy(buffer, source + at, size)
            with launch_lock.lock:
                driver.call("cuMemcpyHtoDAsync", address + at, buffer, size, self._stream)
                driver.call("cuEventRecord", done, self._stream)

    def download(self, address: int, array: Array) -> None:
        """Device to host; the array is complete on return."""
        self._allocate()
        target = array.__array_interface__["data"][0]
        waiting: list[tuple[int, int, int]] = []  # buffer, offset, size
        for number, at in enumerate(range(0, array.nbytes, _BUFFER_BYTES)):
            which = number % 2
            if len(waiting) == 2:
                self._finish(target, *waiting.pop(0))
            size = min(_BUFFER_BYTES, array.nbytes - at)
            buffer = self._buffers[which]
            with launch_lock.lock:
                driver.call("cuMemcpyDtoHAsync", buffer, address + at, size, self._stream)
                driver.call("cuEventRecord", self._done[which], self._stream)
            waiting.append((which, at, size))
        for entry in waiting:
            self._finish(target, *entry)

    def _finish(self, target: int, which: int, at: int, size: int) -> None:
        driver.call("cuEventSynchronize", self._done[which])
        _copy(target + at, self._buffers[which], size)
