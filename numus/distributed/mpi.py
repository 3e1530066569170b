"""MPI as a transport (mpi4py): nonblocking collectives on host memory, without a copy.

Before each collective, ranks compare a number that stands for what they call (`transports/`); small
payloads travel at the same time. Ranks that call different things all get an error that says who
called what.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from mpi4py import MPI

from numus.distributed.transport import (
    SMALL_BYTES,
    Buffer,
    Operation,
    Pending,
    SmallTransport,
)
from numus.distributed.transports import progress
from numus.distributed.transports.header import (
    ExchangedHeader,
    Finish,
    Header,
    exchange,
    finisher,
    new_header,
)
from numus.distributed.transports.payloads import START, memory
from numus.distributed.transports.slots_source import ARRIVED, DONE
from numus.errors import DistributedError

if TYPE_CHECKING:
    from numus.distributed.watch import Watch

_TESTS = range(2000)  # of a request, before the peers are looked at
_HEADER_TAG, _PAYLOAD_TAG = 1, 2
_CALL_TAG = 1  # on the communicator of notes: what a rank has called
_HEADER_BYTES = 256
_SEQUENCE_BITS = 20
_SEQUENCE_MASK = (1 << _SEQUENCE_BITS) - 1
_HEADERS = 16  # collectives whose headers may be under way
_MESSAGES = ("send", "recv")


class MpiTransport(SmallTransport):
    """Collectives of one group on its communicator."""

    name = "mpi"
    on_host = True

    def __init__(self, communicator: Any, notes: Any, ranks: tuple[int, ...], watch: Watch) -> None:
        self.communicator = communicator
        self.notes = notes  # of the whole world
        self.ranks = ranks
        self.watch = watch
        self.lock = threading.RLock()  # of what is under way: see progress.py
        self._count = 0
        self._under_way: list[MpiPending | _Message] = []  # nobody may wait for them
        self._queue: deque[MpiPending] = deque()  # whose headers are under way
        # receives from each rank whose headers have not come: payloads are taken in their order
        self.announced: dict[int, list[_Message]] = {}
        self._headers = [new_header(communicator, i) for i in range(_HEADERS)]

    def start(self, call: Operation, source: Buffer, target: Buffer) -> Pending:
        watch = self.watch
        if watch.failure is not None:
            watch.check()
        with self.lock:
            if self._under_way:
                self.advance()
                self._under_way = [p for p in self._under_way if not p.done()]
            found: MpiPending | _Message
            if call.kind in _MESSAGES:
                found = _Message(self, call, source, target)
            else:
                self._count = number = self._count + 1
                header = self._headers[number % _HEADERS]
                if header.pending is not None:  # the ranks are far apart
                    header.pending.wait()
                found = MpiPending.start(self, call, source, target, number, header)
                self._queue.append(found)
            self._under_way.append(found)
        progress.drive(self)
        return found

    def advance(self, *, raises: bool = True) -> bool:
        """Begin payloads whose headers have come: in the order of calls, which is the same on all
        ranks. Whether all have begun."""
        queue = self._queue
        while queue and queue[0].compare(raises):
            queue.popleft()
        return not queue

    def progress(self) -> bool:
        """Go on with what is under way, for others who compute meanwhile; whether all is done."""
        if not self.lock.acquire(blocking=False):
            return False  # somebody waits, and does the same
        try:
            if self.watch.failure is not None:
                return True
            self.advance(raises=False)
            idle = [p.is_idle() for p in self._under_way]  # each of them: that is what moves bytes
            return all(idle)
        finally:
            self.lock.release()

    @property
    def defers(self) -> bool:
        """Whether payloads that came before wait for their headers."""
        return any(p.is_deferred for p in self._queue)

    def small(self, call: Operation) -> Callable[[int, int], None]:
        """`start` and `wait` of a small collective, as a function of two addresses, without an
        object for what is under way."""
        given, taken = call.sizes
        code, finish = call.digest << _SEQUENCE_BITS, self._finish(call)
        sent = given if call.reads else 0
        watch, headers = self.watch, self._headers
        plans = None if finish is None else self._plans(call, sent)
        native = exchange()
        addresses = [] if plans is None else [ctypes.addressof(p) for p in plans]

        def run(source: int, target: int) -> None:
            if watch.failure is not None or self._under_way:
                self.start(call, Buffer(source, given), Buffer(target, taken)).wait()
                return
            self._count = count = self._count + 1
            header: Any = headers[count % _HEADERS]
            requests = None
            if plans is not None and finish is not None:
                at = addresses[count % _HEADERS]
                state = native(at, code | (count & _SEQUENCE_MASK), source, target)
                if state == DONE or (state == ARRIVED and finish(header, target)):
                    return
                header.started(sent)
            elif finish is not None:
                header.start_with(code | (count & _SEQUENCE_MASK), source, sent)
                test = header.request.Test
                for _ in _TESTS:
                    if test():
                        if finish(header, target):
                            return
                        break
            else:
                header.start(code | (count & _SEQUENCE_MASK))
                requests = self.payload(call, Buffer(source, given), Buffer(target, taken))
                if _are_done(header, requests):
                    return
            buffers = Buffer(source, given), Buffer(target, taken)
            pending = MpiPending(self, call, *buffers, count, header, requests)
            self._queue.append(pending)
            self._under_way.append(pending)
            pending.wait()

        return run

    def _plans(self, call: Operation, nbytes: int) -> list[Any] | None:
        """What native code needs to exchange a payload with each of the headers."""
        if not isinstance(self._headers[0], ExchangedHeader):
            return None
        headers = cast("list[ExchangedHeader]", self._headers)
        found = [header.plan(call, nbytes) for header in headers]
        return None if None in found else found

    def _finish(self, call: Operation) -> Finish | None:
        """How a payload that its header carries becomes the result."""
        known = call.carried
        if known is None:
            known = call.carried = (finisher(call, self._headers[0]),)
        return cast("Finish | None", known[0])

    def finished(self, pending: MpiPending | _Message) -> None:
        under_way = self._under_way
        if len(under_way) == 1:
            under_way.clear()
        else:
            self._under_way = [p for p in under_way if p is not pending]

    def close(self) -> None:
        """Give persistent requests back, before MPI ends; what is under way is left alone."""
        with self.lock:
            self._under_way, self._queue = [], deque()
            for header in self._headers:
                if header.pending is None:
                    header.request.Free()

    def payload(self, call: Operation, source: Buffer, target: Buffer) -> list[Any]:
        """Start the transfer itself; its requests."""
        if not source.nbytes and not target.nbytes:
            return []
        return START[call.kind](self.communicator, call, source, target)


class MpiPending:
    """A collective under way: first its header, then its payload."""

    __slots__ = (
        "_call", "_header", "_number", "_requests", "_source", "_target", "_transport",
    )  # fmt: skip

    def __init__(
        self,
        transport: MpiTransport,
        call: Operation,
        source: Buffer,
        target: Buffer,
        number: int,
        header: Header,
        requests: list[Any] | None,
    ) -> None:
        self._transport, self._call, self._number = transport, call, number
        self._source, self._target = source, target
        self._header: Header | None = header
        self._requests = requests
        header.pending = self

    @classmethod
    def start(
        cls,
        transport: MpiTransport,
        call: Operation,
        source: Buffer,
        target: Buffer,
        number: int,
        header: Header,
    ) -> MpiPending:
        """Begin the comparison, and the payload with it where that is small."""
        code = (call.digest << _SEQUENCE_BITS) | (number & _SEQUENCE_MASK)
        requests = None
        if transport._finish(call) is not None:
            carrying: Any = header
            carrying.start_with(code, source.address, source.nbytes if call.reads else 0)
        else:
            header.start(code)
            small = source.nbytes <= SMALL_BYTES and target.nbytes <= SMALL_BYTES
            if small and not transport.defers:
                requests = transport.payload(call, source, target)
        return cls(transport, call, source, target, number, header, requests)

    @property
    def is_deferred(self) -> bool:
        """Whether a payload of its own begins after the comparison."""
        return self._requests is None and self._transport._finish(self._call) is None

    def done(self) -> bool:
        with self._transport.lock:
            self._transport.advance()
            return self._header is None and self._is_complete()

    def is_idle(self) -> bool:
        """Whether it does not go on by itself: done, or in need of somebody who waits for it."""
        return self._header is None and self._is_complete()

    def _is_complete(self) -> bool:
        requests = self._requests
        if not requests:
            return True
        if MPI.Request.Testall(requests):
            requests.clear()
            return True
        return False

    def wait(self) -> None:
        transport = self._transport
        with transport.lock:
            if self._header is not None:
                transport.watch.wait(self._is_compared, self._describe, transport.ranks, False)
            transport.watch.wait(self._is_complete, self._describe, transport.ranks, True)
            transport.finished(self)

    def _is_compared(self) -> bool:
        self._transport.advance()
        return self._header is None

    def _describe(self) -> str:
        return f"{self._call} (call {self._number} of {self._call.group})"

    def compare(self, raises: bool) -> bool:
        """Compare the calls of all ranks once they are there, and start the payload where that has
        not been done. Whether that has happened; calls that differ are an error, or do not."""
        header = self._header
        if header is None:
            return True
        if not header.request.Test() or not (raises or header.agrees()):
            return False
        finish = self._transport._finish(self._call)
        carrying: Any = header
        if finish is not None:
            if not finish(carrying, self._target.address):
                raise self._mismatch()
            self._requests = []
        elif not header.agrees():
            raise self._mismatch()
        elif self._requests is None:
            self._requests = self._transport.payload(self._call, self._source, self._target)
        self._header = header.pending = None
        return True

    def _mismatch(self) -> DistributedError:
        """The error of ranks that have called different things: they exchange their calls."""
        transport, call = self._transport, self._call
        notes, me = transport.notes, call.group.rank
        mine = f"{call} (call {self._number})"
        data = mine.encode()[:_HEADER_BYTES].ljust(_HEADER_BYTES)
        told = [bytearray(_HEADER_BYTES) for _ in transport.ranks]
        others = [(i, r) for i, r in enumerate(transport.ranks) if i != me]
        requests = [notes.Isend(data, r, _CALL_TAG) for _, r in others]
        requests += [notes.Irecv(told[i], r, _CALL_TAG) for i, r in others]
        transport.watch.wait(
            lambda: MPI.Request.Testall(requests),
            lambda: "the comparison of calls that differ",
            transport.ranks,
            busy=False,
        )
        calls = [bytes(t).decode(errors="replace").strip() for t in told]
        calls[me] = mine
        by_call: dict[str, list[int]] = {}
        for rank, text in zip(transport.ranks, calls, strict=True):
            by_call.setdefault(text, []).append(rank)
        shown = "; ".join(f"{_some(ranks)}: {text}" for text, ranks in by_call.items())
        error = DistributedError(
            f"the ranks of {call.group} called different things, or the same in another order or "
            f"with other shapes or dtypes: {shown}"
        )
        transport.watch.failure = error  # every rank has it
        return error


def _are_done(header: Header, requests: list[Any]) -> bool:
    """Whether a header and its payload are done, and ranks agree, within some tests."""
    test = header.request.Test
    for _ in _TESTS:
        if test():
            break
    else:
        return False
    if not header.agrees() or len(requests) != 1:
        return False
    test = requests[0].Test
    return any(test() for _ in _TESTS)


def _some(ranks: list[int]) -> str:
    names = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"


class _Message:
    """A send or a receive: what the message is, and then itself."""

    def __init__(
        self, transport: MpiTransport, call: Operation, source: Buffer, target: Buffer
    ) -> None:
        self._transport, self._call = transport, call
        self._target, self._keep = target, (source, target)
        self._what = call.text_of_operand.encode()[:_HEADER_BYTES].ljust(_HEADER_BYTES)
        comm, peer = transport.communicator, call.peer
        if call.kind == "send":
            self._header = comm.Isend(self._what, peer, _HEADER_TAG)
            self._payload = comm.Isend(memory(source), peer, _PAYLOAD_TAG)
        else:
            self._told = bytearray(_HEADER_BYTES)
            self._header = comm.Irecv(self._told, peer, _HEADER_TAG)
            self._payload = None
            transport.announced.setdefault(peer, []).append(self)

    def _both(self) -> bool:
        waiting = self._transport.announced.get(self._call.peer)
        while self._payload is None and waiting:
            if not waiting[0]._take():  # an earlier one, or this
                return False
            waiting.pop(0)
        return bool(self._header.Test() and self._payload.Test())

    def _take(self) -> bool:
        """Begin to receive the payload, where the header has come."""
        if self._header.Test():
            if self._told != self._what:
                told = bytes(self._told).decode(errors="replace").strip()
                raise self._transport.watch.fail(
                    f"rank {self._transport.watch._rank} called {self._call}, but what rank "
                    f"{self._transport.ranks[self._call.peer]} sent is {told}"
                )
            comm = self._transport.communicator
            self._payload = comm.Irecv(memory(self._target), self._call.peer, _PAYLOAD_TAG)
        return self._payload is not None

    def done(self) -> bool:
        return self._both()

    def is_idle(self) -> bool:
        """Messages go on when they are waited for."""
        return True

    def wait(self) -> None:
        transport = self._transport
        ranks = (transport.ranks[self._call.peer],)
        describe = lambda: f"{self._call} of {self._call.group}"  # noqa: E731
        transport.watch.wait(self._both, describe, ranks, busy=False)
        transport.finished(self)
