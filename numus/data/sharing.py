"""Batches from one process to another without copies: arrays in memory that both map.

A worker writes the arrays of a batch into a segment and sends the rest of the batch, in which their
places stand for them. The caller makes arrays of the segment where it lies; when the last of them
is gone, the segment goes back to the worker, which fills it again. Segments have no names: they are
handed over the pipe, and vanish with the last process that maps them, however it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

import numpy as np

from numus.data.collate import map_leaves
from numus.tensor import Tensor

Array = np.ndarray[Any, Any]

_SMALL = 1 << 12  # bytes of an array that is quicker sent than placed
_ALIGN = 64
_LEAST = 1 << 20  # bytes of a segment


class Placed:
    """Where an array of a batch is in its segment."""

    def __init__(self, start: int, array: Array) -> None:
        self.start = start
        self.nbytes, self.dtype, self.shape = array.nbytes, array.dtype, array.shape

    def of(self, memory: Array) -> Array:
        """The array, given the bytes of the segment."""
        flat = memory[self.start : self.start + self.nbytes]
        return flat.view(self.dtype).reshape(self.shape)


class Parcel:
    """A batch whose large arrays lie in a segment."""

    def __init__(self, batch: Any, segment: int | None = None, name: Any = None) -> None:
        self.batch = batch
        self.segment = segment
        self.name = name  # of a segment that the receiver does not know yet, as `_create` gives it


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
        arrays: list[tuple[Placed, Array]] = []
        end = 0

        def to_segment(x: Any) -> Any:
            nonlocal end
            if isinstance(x, Tensor):
                x = np.asarray(x)
            if not isinstance(x, np.ndarray) or x.dtype.hasobject or x.nbytes < _SMALL:
                return x
            placed = Placed((end + _ALIGN - 1) & -_ALIGN, x)
            end = placed.start + x.nbytes
            arrays.append((placed, x))
            return placed

        batch = map_leaves(batch, to_segment)
        if not arrays:
            self._pipe.send(Parcel(batch))
            return
        number, name, handle = self._fitting(end)
        memory = np.frombuffer(self._segments[number], np.uint8)
        for placed, array in arrays:
            np.copyto(placed.of(memory), array)
        self._pipe.send(Parcel(batch, number, name))
        _hand_over(self._pipe, handle)

    def _fitting(self, size: int) -> tuple[int, Any, int | None]:
        """A segment with room for so much, the smallest that is free; if there is none, a new one,
        with its name and handle.
        """
        fit = [n for n in self._free if len(self._segments[n]) >= size]
        if fit:
            best = min(fit, key=lambda n: len(self._segments[n]))
            self._free.remove(best)
            return best, None, None
        pages, name, handle = _create(max(_LEAST, 1 << (size - 1).bit_length()))
        self._segments.append(pages)
        return len(self._segments) - 1, name, handle


# -- the caller's side ----------------------------------------------------------------------------


class _Loan:
    """A segment while somebody uses what is in it, as memory that NumPy understands."""

    def __init__(self, segment: _Segment, give_back: Callable[[int], None]) -> None:
        self._segment = segment
        self._give_back = give_back
        self.__array_interface__ = {
            "shape": (segment.size,),
            "typestr": "|u1",
            "data": (segment.address, False),
            "version": 3,
        }

    def __del__(self) -> None:
        self._give_back(self._segment.number)


class _Segment:
    def __init__(self, pages: mmap.mmap, number: int) -> None:
        self._pages = pages
        self.number = number
        self.size = len(pages)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(pages))


class Receiver:
    """Receives batches, and collects the segments that may be filled again."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._segments: list[_Segment] = []
        self._returned: deque[int] = deque()

    def returned(self) -> list[int]:
        """Segments that have become free, each told once."""
        found = []
        with contextlib.suppress(IndexError):
            while True:
                found.append(self._returned.popleft())
        return found

    def receive(self) -> Any:
        """The next batch, its arrays where they lie."""
        parcel = self._pipe.recv()
        if not isinstance(parcel, Parcel):  # a failure, or the end
            return parcel
        if parcel.segment is None:
            return parcel.batch
        if parcel.name is not None:
            pages = _receive(self._pipe, parcel.name)
            self._segments.append(_Segment(pages, parcel.segment))
        memory = np.asarray(_Loan(self._segments[parcel.segment], self._returned.append))
        return map_leaves(parcel.batch, lambda x: x.of(memory) if isinstance(x, Placed) else x)
