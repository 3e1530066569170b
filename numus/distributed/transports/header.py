"""Headers of collectives: what ranks compare before they exchange a payload.

A header is a number that stands for the call (`Operation.digest`). Between few ranks, each sends it
to all others, and small payloads travel in the same message; in somewhat larger groups they are
all-gathered, in large ones the maximum and the minimum of the numbers are all-reduced. All of them
are persistent requests (MPI 4), made once and started for each collective.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from numus.distributed.transport import Operation
from numus.distributed.transports import slots_source
from numus.distributed.transports.slots_source import plan, reducer

_CODE_BYTES = 16  # of a slot; keeps the payload aligned
_GATHERED_BYTES = 1024  # of payloads that headers carry in a group of more ranks
_MAX_GATHERED = 16  # ranks of a group whose headers carry payloads
# payloads that headers carry, by the number of ranks: each goes to all others
_EXCHANGED_BYTES = {2: 1 << 16, 3: 1 << 14, 4: 1 << 14}
_TAG = 16  # the first one of headers that are exchanged
_SMALLEST_BYTES = 64  # of messages; larger ones are of sizes with 3 leading bits
_SPINS = 4000  # tests of native code, before others get their turn
_STATUS_BYTES = 256  # more than an MPI_Status of any library has

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


@functools.cache
def _functions() -> dict[str, int] | None:
    """Addresses of MPI's functions, in the library that mpi4py has loaded."""
    try:
        library = ctypes.PyDLL(MPI.__file__)
        names = {"start": library.MPI_Start, "test": library.MPI_Test}
    except (OSError, AttributeError):
        return None
    found = {k: ctypes.cast(f, ctypes.c_void_p).value or 0 for k, f in names.items()}
    return {**found, "status": ctypes.addressof(_status)}


_status = ctypes.create_string_buffer(_STATUS_BYTES)  # written, and not read


class CarryingHeader(Header):
    """The numbers and small payloads of all ranks: a slot for each."""

    def __init__(self, communicator: Any) -> None:
        self._reserve(communicator, _GATHERED_BYTES)
        sent = np.zeros(self.stride, np.uint8)
        self._use(sent)
        buffers = [sent, self.stride, MPI.BYTE], [self._memory, self.stride, MPI.BYTE]
        self.request = communicator.Allgather_init(*buffers)

    def _reserve(self, communicator: Any, carries: int) -> None:
        self.pending = None
        self.carries = carries
        self.ranks: int = communicator.size
        self.stride = carries + _CODE_BYTES
        self._memory = np.zeros((self.ranks, self.stride), np.uint8)
        self._codes = self._memory[:, :8].view(np.int64)[:, 0]
        self.slots: int = self._memory.ctypes.data

    def _use(self, sent: Any) -> None:
        """Send from this slot."""
        self._sent = sent
        self._code = memoryview(sent[:8]).cast("q")
        self._payload: int = sent.ctypes.data + _CODE_BYTES

    def start(self, code: int) -> None:
        self.start_with(code, 0, 0)

    def start_with(self, code: int, source: int, nbytes: int) -> None:
        """Compare a number, and give all ranks the payload at an address."""
        if nbytes:
            ctypes.memmove(self._payload, source, nbytes)
        self._code[0] = code
        self.request.Start()

    def agrees(self) -> bool:
        codes = self._codes.tolist()
        return bool(codes.count(codes[0]) == len(codes))


class ExchangedHeader(CarryingHeader):
    """The same between few ranks, by messages of the payload's size."""

    def __init__(self, communicator: Any, number: int) -> None:
        self._reserve(communicator, _EXCHANGED_BYTES[communicator.size])
        self._communicator, self._tag = communicator, _TAG + number
        self._use(self._memory[communicator.rank])
        others = [r for r in range(self.ranks) if r != communicator.rank]
        self._others = others
        slots = [[self._memory[r], self.stride, MPI.BYTE] for r in others]
        self._receives = [
            communicator.Recv_init(slot, r, self._tag)
            for slot, r in zip(slots, others, strict=True)
        ]
        self._sends: dict[int, list[Any]] = {}  # by bytes of the payload
        self._sending: list[Any] = []
        self.request = self  # tested and freed as one request

    def start_with(self, code: int, source: int, nbytes: int) -> None:
        if nbytes:
            ctypes.memmove(self._payload, source, nbytes)
        self._code[0] = code
        self._sending = self._sends_of(nbytes)
        for request in (*self._receives, *self._sending):
            request.Start()

    def _sends_of(self, nbytes: int) -> list[Any]:
        """The requests that send so many bytes behind the code, or a few more: of a few sizes."""
        step = max(_SMALLEST_BYTES, 1 << max(nbytes.bit_length() - 3, 0))
        nbytes += -nbytes % step
        found = self._sends.get(nbytes)
        if found is None:
            what = [self._sent, _CODE_BYTES + nbytes, MPI.BYTE]
            found = [self._communicator.Send_init(what, r, self._tag) for r in self._others]
            self._sends[nbytes] = found
        return found

    def plan(self, call: Operation, nbytes: int) -> Any:
        """What native code needs to exchange payloads of a call; None where MPI's functions are
        not to be found."""
        functions = _functions()
        if functions is None:
            return None
        found = None
        if call.kind == "all_reduce":
            found = reducer(call.dtype, call.reduction, self.stride, _CODE_BYTES)
        sends = self._sends_of(nbytes)
        return plan(
            [MPI._addressof(r) for r in (*self._receives, *sends)],
            **functions,
            spins=_SPINS,
            slot=self._sent.ctypes.data,
            nbytes=nbytes,
            requests=len(self._receives) + len(sends),
            slots=self.slots,
            ranks=self.ranks,
            count=0 if found is None else call.sizes[0] // found[2],
            reduce=0 if found is None else found[1],
        )

    def started(self, nbytes: int) -> None:
        """Native code has started the requests."""
        self._sending = self._sends_of(nbytes)

    def Test(self) -> bool:
        """Whether all messages have arrived; those that were waited for before are done."""
        for request in self._receives:
            if not request.Test():
                return False
        return all(request.Test() for request in self._sending)

    def Free(self) -> None:
        """Give the requests back."""
        for request in (*self._receives, *(r for sends in self._sends.values() for r in sends)):
            request.Free()


def finisher(call: Operation, header: Header) -> Finish | None:
    """A function that writes the result of a collective to an address, where all ranks agree, from
    the payloads that its header has carried. None where the payload travels by itself: the same on
    all ranks."""
    given = call.sizes[0]
    if not isinstance(header, CarryingHeader) or not 0 < given <= header.carries:
        return None
    stride = header.stride
    if call.kind == "all_reduce":
        found = reducer(call.dtype, call.reduction, stride, _CODE_BYTES)
        if found is None:
            return None
        native, count = found[0], given // found[2]
        # in the order of ranks: the same bits on all of them
        return lambda used, target: bool(native(used.slots, used.ranks, count, target))
    if call.kind not in ("all_gather", "broadcast"):
        return None
    ranks = [call.root] if call.kind == "broadcast" else range(call.group.size)

    def copy(used: CarryingHeader, target: int) -> bool:
        if not used.agrees():
            return False
        for i, rank in enumerate(ranks):
            at = used.slots + rank * stride + _CODE_BYTES
            ctypes.memmove(target + i * given, at, given)
        return True

    return copy


def exchange() -> slots_source.Exchange:
    """The native exchange of payloads behind their codes."""
    return slots_source.exchange(_CODE_BYTES)


def new_header(communicator: Any, number: int) -> Header:
    """One of the headers of a communicator of several ranks."""
    if communicator.size in _EXCHANGED_BYTES:
        return ExchangedHeader(communicator, number)
    few = 2 <= communicator.size <= _MAX_GATHERED
    return CarryingHeader(communicator) if few else Header(communicator)
