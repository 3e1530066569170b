"""Copies between host and device.

The device reads and writes host memory at full speed only where it is pinned. Arrays go through two
pinned pieces in turn: while one is on its way, the other is filled or emptied by the processor.
Threads that copy at a time have pieces of their own.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from numus.runtime import launch_lock
from numus.runtime.cuda import driver

_PIECE = 8 << 20
EARLY = 64  # bytes of what is read while the rest of its program runs


class Staging:
    """Pinned pieces of one device, for one copy at a time."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._pieces: list[int] = []
        self._done: list[Any] = []  # events: the last copy from or to each piece
        self._aside: Any = None  # a stream beside that of the device's work

    def _start(self) -> None:
        if not self._pieces:
            for _ in range(2):
                self._pieces.append(int(driver.call("cuMemHostAlloc", _PIECE, 0)))
                self._done.append(driver.call("cuEventCreate", 2))  # without timing

    def download_early(self, address: int, array: np.ndarray[Any, Any], made: Any) -> None:
        """Device to host as soon as the event `made` has come, whatever is still under way."""
        if self._aside is None:
            self._aside = driver.call("cuStreamCreate", 1)
            # uploads may still be waiting in the other pieces
            self._piece_aside = int(driver.call("cuMemHostAlloc", EARLY, 0))
        driver.call("cuStreamWaitEvent", self._aside, made, 0)
        piece = self._piece_aside
        driver.call("cuMemcpyDtoHAsync", piece, address, array.nbytes, self._aside)
        driver.call("cuStreamSynchronize", self._aside)
        ctypes.memmove(array.__array_interface__["data"][0], piece, array.nbytes)

    def upload(self, address: int, array: np.ndarray[Any, Any]) -> None:
        """Host to device; the array may be changed or freed on return."""
        self._start()
        source = array.__array_interface__["data"][0]
        for number, at in enumerate(range(0, array.nbytes, _PIECE)):
            piece, done = self._pieces[number % 2], self._done[number % 2]
            size = min(_PIECE, array.nbytes - at)
            driver.call("cuEventSynchronize", done)
            ctypes.memmove(piece, source + at, size)
            with launch_lock.lock:
                driver.call("cuMemcpyHtoDAsync", address + at, piece, size, self._stream)
                driver.call("cuEventRecord", done, self._stream)
        # the first piece of the next array waits for its event

    def download(self, address: int, array: np.ndarray[Any, Any]) -> None:
        """Device to host; the array is complete on return."""
        self._start()
        target = array.__array_interface__["data"][0]
        waiting: list[tuple[int, int, int]] = []  # piece, place, size
        for number, at in enumerate(range(0, array.nbytes, _PIECE)):
            which = number % 2
            if len(waiting) == 2:
                self._take(target, *waiting.pop(0))
            size = min(_PIECE, array.nbytes - at)
            piece = self._pieces[which]
            with launch_lock.lock:
                driver.call("cuMemcpyDtoHAsync", piece, address + at, size, self._stream)
                driver.call("cuEventRecord", self._done[which], self._stream)
            waiting.append((which, at, size))
        for entry in waiting:
            self._take(target, *entry)

    def _take(self, target: int, which: int, at: int, size: int) -> None:
        driver.call("cuEventSynchronize", self._done[which])
        ctypes.memmove(target + at, self._pieces[which], size)
