"""Headers of collectives: what ranks compare before they exchange a payload.

A header is a number that stands for the call (`Operation.digest`). In groups of few ranks it is
all-gathered, and small payloads travel in the same message: one MPI call for both. In larger groups
the maximum and the minimum of the numbers are all-reduced. Either is a persistent request (MPI 4),
made once and started for each collective.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from numus.distributed.transport import Operation
from numus.distributed.transports.slots_source import reducer

_CODE_BYTES = 16  # of a slot; keeps the payload aligned
_SLOT_BYTES = 1024 + _CODE_BYTES
_MAX_GATHERED = 16  # ranks of a group whose headers carry payloads

Finish = Callable[["CarryingHeader", int], bool]


class Header:
    """The numbers of all ranks: their maximum, and that of their negatives."""

    carries = 0  # bytes of a payload, at most

    def __init__(self, communicator: Any) -> None:
        self.pending: Any = None  # the collective that it is used for
        self._sent, self._received = np.zeros(2, np.int64), np.zeros(2, np.int64)
        buffers = [self._sent, 2, MPI.INT64_T], [self._received, 2, MPI.INT64_T]
        self.request = communicator.Allreduce_init(*buffers, MPI.MAX)

    def start(self, code: int) -> None:
        """Compare a number."""
        sent = self._sent
        sent[0] = code
        sent[1] = -code
        self.request.Start()

    def agrees(self) -> bool:
        """Whether all ranks have the same number; once the request is done."""
        low, high = self._received.tolist()
        return bool(low == -high)


class CarryingHeader(Header):
    """The numbers and small payloads of all ranks: a slot for each."""

    carries = _SLOT_BYTES - _CODE_BYTES

    def __init__(self, communicator: Any) -> None:
        self.pending = None
        self.ranks: int = communicator.size
        slots = np.zeros((self.ranks, _SLOT_BYTES), np.uint8)
        self._sent, self._received = np.zeros(_SLOT_BYTES, np.uint8), slots
        self._code = self._sent[:8].view(np.int64)
        self._codes = slots[:, :8].view(np.int64)[:, 0]
        self._payload: int = self._sent.ctypes.data + _CODE_BYTES
        self.slots: int = slots.ctypes.data
        buffers = [self._sent, _SLOT_BYTES, MPI.BYTE], [slots, _SLOT_BYTES, MPI.BYTE]
        self.request = communicator.Allgather_init(*buffers)

    def start(self, code: int) -> None:
        self._code[0] = code
        self.request.Start()

    def start_with(self, code: int, source: int, nbytes: int) -> None:
        """Compare a number, and give all ranks the payload at an address."""
        ctypes.memmove(self._payload, source, nbytes)
        self._code[0] = code
        self.request.Start()

    def agrees(self) -> bool:
        codes = self._codes.tolist()
        return bool(codes.count(codes[0]) == len(codes))


def finisher(call: Operation, header: Header) -> Finish | None:
    """A function that writes the result of a collective to an address, where all ranks agree, from
    the payloads that its header has carried. None where the payload travels by itself: the same on
    all ranks."""
    given = call.sizes[0]
    if not 0 < given <= header.carries:
        return None
    if call.kind == "all_reduce":
        found = reducer(call.dtype, call.reduction, _SLOT_BYTES, _CODE_BYTES)
        if found is None:
            return None
        native, count = found[0], given // found[1]
        # in the order of ranks: the same bits on all of them
        return lambda used, target: bool(native(used.slots, used.ranks, count, target))
    if call.kind not in ("all_gather", "broadcast"):
        return None
    ranks = [call.root] if call.kind == "broadcast" else range(call.group.size)

    def copy(used: CarryingHeader, target: int) -> bool:
        if not used.agrees():
            return False
        for i, rank in enumerate(ranks):
            at = used.slots + rank * _SLOT_BYTES + _CODE_BYTES
            ctypes.memmove(target + i * given, at, given)
        return True

    return copy


def new_header(communicator: Any) -> Header:
    """A header for a communicator of several ranks."""
    few = 2 <= communicator.size <= _MAX_GATHERED
    return CarryingHeader(communicator) if few else Header(communicator)
