"""Batches through shared memory: arrays in segments that both processes map.

A worker writes the arrays of a batch into a segment and sends the rest of the batch, with offsets
in place of the arrays. The caller's arrays are views of the segment; when the last of them is gone,
the segment is returned to the worker, which reuses it. Segments have no names: they are sent over
the pipe, and vanish with the last process that maps them, however it ends.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any, NamedTuple

import numpy as np

from numus.data.collate import map_leaves
from numus.tensor import Tensor

Array = np.ndarray[Any, Any]

_SHARED_MIN_BYTES = 1 << 12  # smaller arrays are faster pickled
_SEGMENT_MIN_BYTES = 1 << 20
_ALIGN = 64


class SharedArray:
    """An array of a batch: its offset in the segment, shape and dtype."""

    def __init__(self, start: int, array: Array) -> None:
        self.start = start
        self.nbytes, self.dtype, self.shape = array.nbytes, array.dtype, array.shape

    def of(self, memory: Array) -> Array:
        """The array, given the bytes of the segment."""
        flat = memory[self.start : self.start + self.nbytes]
        return flat.view(self.dtype).reshape(self.shape)


class Parcel(NamedTuple):
    """A batch whose large arrays are in a segment."""

    batch: Any
    segment: int | None = None
    name: Any = None  # of a new segment, from `_create`


# -- mapped memory --------------------------------------------------------------------------------

if sys.platform == "win32":  # where memory has names, but these go with their last user

    def _create(size: int) -> tuple[mmap.mmap, Any, int | None]:
        name = f"numus-{os.getpid()}-{os.urandom(8).hex()}"
        return mmap.mmap(-1, size, tagname=name), (name, size), None

    def _hand_over(pipe: Any, handle: int | None) -> None:
        """The name is enough."""

    def _receive(pipe: Any, name: Any) -> mmap.mmap:
        return mmap.mmap(-1, name[1], tagname=name[0])

else:

    def _create(size: int) -> tuple[mmap.mmap, Any, int | None]:
        """Memory that is mapped here, what the receiver has to know of it, and its handle."""
        if hasattr(os, "memfd_create"):
            handle = os.memfd_create("numus-batches", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                handle = os.dup(file.fileno())
        os.ftruncate(handle, size)
        return mmap.mmap(handle, size), size, handle

    def _hand_over(pipe: Any, handle: int | None) -> None:
        """Send a handle, which is closed here."""
        if handle is not None:
            reduction.send_handle(pipe, handle, None)
            os.close(handle)

    def _receive(pipe: Any, name: Any) -> mmap.mmap:
        """The memory, mapped here as well."""
        handle = reduction.recv_handle(pipe)
        try:
            return mmap.mmap(handle, name)
        finally:
            os.close(handle)


# -- the worker's side ----------------------------------------------------------------------------


class Sender:
    """Sends batches; knows which of its segments are free."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._segments: list[mmap.mmap] = []
        self._free: list[int] = []

    def take_back(self, numbers: list[int]) -> None:
        """The receiver has no use for these segments any more."""
        self._free += numbers

    def send(self, batch: Any) -> None:
        """Send a batch: arrays and tensors of it through a segment."""
        arrays: list[tuple[SharedArray, Array]] = []
        end = 0

        def to_segment(x: Any) -> Any:
            nonlocal end
            if isinstance(x, Tensor):
                x = np.asarray(x)
            if not isinstance(x, np.ndarray) or x.dtype.hasobject or x.nbytes < _SHARED_MIN_BYTES:
                return x
            shared = SharedArray((end + _ALIGN - 1) & -_ALIGN, x)
            end = shared.start + x.nbytes
            arrays.append((shared, x))
            return shared

        batch = map_leaves(batch, to_segment)
        if not arrays:
            self._pipe.send(Parcel(batch))
            return
        number, name, handle = self._fitting(end)
        memory = np.frombuffer(self._segments[number], np.uint8)
        for shared, array in arrays:
            np.copyto(shared.of(memory), array)
        self._pipe.send(Parcel(batch, number, name))
        _hand_over(self._pipe, handle)

    def _fitting(self, size: int) -> tuple[int, Any, int | None]:
        """The smallest free segment of at least this size, or a new one with name and handle."""
        fit = [n for n in self._free if len(self._segments[n]) >= size]
        if fit:
            best = min(fit, key=lambda n: len(self._segments[n]))
            self._free.remove(best)
            return best, None, None
        pages, name, handle = _create(max(_SEGMENT_MIN_BYTES, 1 << (size - 1).bit_length()))
        self._segments.append(pages)
        return len(self._segments) - 1, name, handle


# -- the caller's side ----------------------------------------------------------------------------


class _Loan:
    """A segment in use, as the owner of NumPy arrays: returned when the last of them is gone."""

    def __init__(self, pages: mmap.mmap, number: int, give_back: Callable[[int], None]) -> None:
        self._pages, self._number, self._give_back = pages, number, give_back
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        data = {"data": (address, False), "shape": (len(pages),), "typestr": "|u1"}
        self.__array_interface__ = {**data, "version": 3}

    def __del__(self) -> None:
        self._give_back(self._number)


class Receiver:
    """Receives batches, and collects the segments that may be filled again."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._segments: list[mmap.mmap] = []
        self._returned: deque[int] = deque()

    def returned(self) -> list[int]:
        """Segments that have become free, each told once."""
        return [self._returned.popleft() for _ in range(len(self._returned))]

    def receive(self) -> Any:
        """The next batch, its arrays as views of shared memory."""
        parcel = self._pipe.recv()
        if not isinstance(parcel, Parcel):  # a failure, or the end
            return parcel
        if parcel.segment is None:
            return parcel.batch
        if parcel.name is not None:
            self._segments.append(_receive(self._pipe, parcel.name))
        number = parcel.segment
        memory = np.asarray(_Loan(self._segments[number], number, self._returned.append))
        return map_leaves(parcel.batch, lambda x: x.of(memory) if isinstance(x, SharedArray) else x)
