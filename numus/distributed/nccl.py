"""NCCL as a transport: collectives of tensors on NVIDIA's GPUs, on the stream of their device.

The library comes with the wheels `nvidia-nccl-cu12` and `-cu13`, with PyTorch, or with the system,
and is called through ctypes (its C API, nccl.h). A collective is one more piece of work on the
device's stream: what was launched before it comes first, what is launched after it waits. Before
it, ranks compare their calls through MPI, as everywhere.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numus.distributed.transport import Buffer, Operation, Pending
from numus.errors import DistributedError, DTypeError
from numus.runtime.devices import Device
from numus.runtime.locks import once

_ID_BYTES = 128  # NCCL_UNIQUE_ID_BYTES
_BYTE = 1  # ncclUint8

# ncclDataType_t; bools are bytes of 0 and 1
_TYPES = {
    **{"int8": 0, "uint8": 1, "bool": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5},
    **{"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9},
}
_PAIRS = {"complex64": "float32", "complex128": "float64"}  # sums of complex numbers
_OPERATIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3}  # ncclRedOp_t


class _UniqueId(ctypes.Structure):
    """ncclUniqueId: passed by value."""

    _fields_ = (("internal", ctypes.c_char * _ID_BYTES),)


@once
def _library() -> Any:
    """The loaded library with the types of its functions; None where there is none."""
    from numus.runtime.cuda.cublaslt import load

    found = load("nccl", "ncclCommInitRank")
    if found is None:
        return None
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    found.ncclGetErrorString.restype = ctypes.c_char_p
    tail = [pointer, pointer]  # communicator, stream
    for name, types in {
        "ncclGetUniqueId": [ctypes.POINTER(_UniqueId)],
        "ncclCommInitRank": [ctypes.POINTER(pointer), number, _UniqueId, number],
        "ncclCommDestroy": [pointer],
        "ncclGroupStart": [],
        "ncclGroupEnd": [],
        "ncclAllReduce": [pointer, pointer, size, number, number, *tail],
        "ncclReduce": [pointer, pointer, size, number, number, number, *tail],
        "ncclBroadcast": [pointer, pointer, size, number, number, *tail],
        "ncclAllGather": [pointer, pointer, size, number, *tail],
        "ncclReduceScatter": [pointer, pointer, size, number, number, *tail],
        "ncclSend": [pointer, size, number, number, *tail],
        "ncclRecv": [pointer, size, number, number, *tail],
    }.items():
        getattr(found, name).argtypes = types
    return found


def is_available() -> bool:
    """Whether the library is there."""
    return _library() is not None


def ranks_that_share(device: Device, group: Any, communicator: Any) -> list[int]:
    """Ranks of the group that have a GPU together with others: NCCL takes one rank for each."""
    from numus.runtime.cuda import driver

    runtime: Any = device.runtime
    mine = bytes(driver.call("cuDeviceGetUuid", runtime.device).bytes)
    gpus = communicator.allgather(mine)
    return [rank for rank, gpu in zip(group.ranks, gpus, strict=True) if gpus.count(gpu) > 1]


def _call(name: str, *args: Any) -> None:
    library = _library()
    status = getattr(library, name)(*args)
    if status != 0:
        text = library.ncclGetErrorString(status).decode(errors="replace")
        raise DistributedError(f"{name}: {text} (NCCL status {status})")


@contextmanager
def _grouped() -> Iterator[None]:
    """Sends and receives that run together."""
    _call("ncclGroupStart")
    try:
        yield
    finally:
        _call("ncclGroupEnd")


class _OnStream:
    """Work that the device's stream orders: nothing to wait for on the host."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        pass


_ON_STREAM = _OnStream()


class NcclTransport:
    """Operations of one group on one device."""

    name = "nccl"
    on_host = False

    def __init__(
        self,
        group: Any,
        device: Device,
        communicator: Any,
        watch: Any,
        agree: Callable[[str, Any], None],
    ) -> None:
        self._group, self._watch, self._agree = group, watch, agree
        runtime: Any = device.runtime
        self._runtime = runtime
        runtime.activate()
        unique = _UniqueId()
        if group.rank == 0:
            _call("ncclGetUniqueId", ctypes.byref(unique))
        if group.size > 1:
            memory = bytearray(bytes(unique))
            communicator.Bcast(memory, 0)
            unique = _UniqueId.from_buffer_copy(memory)
        self._comm = ctypes.c_void_p()
        _call("ncclCommInitRank", ctypes.byref(self._comm), group.size, unique, group.rank)

    def start(self, call: Operation, source: Buffer, target: Buffer) -> Pending:
        if self._watch is not None:
            self._watch.check()
        if call.group.size > 1 and call.peer < 0:
            self._agree(call.text, call.group)
        if source.nbytes or target.nbytes:
            # work that is kept must not keep memory, which the stream's order makes safe to reuse
            where = call, source._replace(owner=None), target._replace(owner=None)
            recording = self._runtime.recording
            if recording is None:
                self._run(*where)
            else:
                key = (id(self), id(call), source.address, target.address)
                recording.add(key, functools.partial(self._run, *where))
        return _ON_STREAM

    def _run(self, call: Operation, source: Buffer, target: Buffer) -> None:
        self._runtime.activate()
        self._runtime.early_results = {}
        _START[call.kind](self, call, source, target)
        self._runtime.written.forget()

    @property
    def tail(self) -> tuple[Any, int]:
        """The last arguments of all functions."""
        return self._comm, self._runtime.stream_id

    def clear(self, target: Buffer) -> None:
        """Set memory to zero."""
        from numus.runtime.cuda import driver

        if target.nbytes:
            stream = self._runtime.stream
            driver.call("cuMemsetD8Async", target.address, 0, target.nbytes, stream)

    def exchange(
        self, sends: list[tuple[int, int, int]], receives: list[tuple[int, int, int]]
    ) -> None:
        """Sends and receives at once: (address, bytes, rank) each."""
        with _grouped():
            for address, nbytes, rank in sends:
                _call("ncclSend", address, nbytes, _BYTE, rank, *self.tail)
            for address, nbytes, rank in receives:
                _call("ncclRecv", address, nbytes, _BYTE, rank, *self.tail)


def _numbers(call: Operation, nbytes: int) -> tuple[int, int, int]:
    """Count, type and operation of a reduction."""
    name = call.dtype.name
    if call.reduction == "sum":
        name = _PAIRS.get(name, name)
    if name not in _TYPES:
        raise DTypeError(
            f"{call.kind}: NCCL has no {call.reduction} of {name}; cast it, or choose "
            "init(backend='mpi')"
        )
    size = 8 if name in ("float64", "int64", "uint64") else call.dtype.itemsize
    size = 4 if call.dtype.name == "complex64" else size
    return nbytes // size, _TYPES[name], _OPERATIONS[call.reduction]


def _all_reduce(t: NcclTransport, call: Operation, source: Buffer, target: Buffer) -> None:
    numbers = _numbers(call, source.nbytes)
    _call("ncclAllReduce", source.address, target.address, *numbers, *t.tail)


def _reduce(t: NcclTransport, call: Operation, source: Buffer, target: Buffer) -> None:
    numbers = _numbers(call, source.nbytes)
    _call("ncclReduce", source.address, target.address, *numbers, call.root, *t.tail)
    if not call.is_root:
        t.clear(target)


def _broadcast(t: NcclTransport, call: Operation, source: Buffer, target: Buffer) -> None:
    where = source.address, target.address, target.nbytes
    _call("ncclBroadcast", *where, _BYTE, call.root, *t.tail)


def _all_gather(t: NcclTransport, call: Operation, source: Buffer, target: Buffer) -> None:
    _call("ncclAllGather", source.address, target.address, source.nbytes, _BYTE, *t.tail)


def _reduce_scatter(t: NcclTransport, call: Operation, source: Buffer, target: Buffer) -> None:
    numbers = _numbers(call, target.nbytes)
    _call("ncclReduceScatter", source.address, target.address, *numbers, *t.tail)


def _parts(buffer: Buffer, count: int) -> list[tuple[int, int, int]]:
    """The part of each rank in a buffer."""
    nbytes = buffer.nbytes // count
    return [(buffer.address + i * nbytes, nbytes, i) for i in range(count)]


def _all_to_all(t: NcclTransport, call: Operation, source: Buffer, target: Buffer) -> None:
    n = call.group.size
    t.exchange(_parts(source, n), _parts(target, n))


def _gather(t: NcclTransport, call: Operation, source: Buffer, target: Buffer) -> None:
    receives = _parts(target, call.group.size) if call.is_root else []
    t.exchange([(source.address, source.nbytes, call.root)], receives)


def _scatter(t: NcclTransport, call: Operation, source: Buffer, target: Buffer) -> None:
    sends = _parts(source, call.group.size) if call.is_root else []
    t.exchange(sends, [(target.address, target.nbytes, call.root)])


def _permute(t: NcclTransport, call: Operation, source: Buffer, target: Buffer) -> None:
    me = call.group.rank
    sends = [(source.address, source.nbytes, b) for a, b in call.pairs if a == me]
    receives = [(target.address, target.nbytes, a) for a, b in call.pairs if b == me]
    if not receives:
        t.clear(target)
    t.exchange(sends, receives)


def _send(t: NcclTransport, call: Operation, source: Buffer, target: Buffer) -> None:
    t.exchange([(source.address, source.nbytes, call.peer)], [])


def _recv(t: NcclTransport, call: Operation, source: Buffer, target: Buffer) -> None:
    t.exchange([], [(target.address, target.nbytes, call.peer)])


_START: dict[str, Callable[[NcclTransport, Operation, Buffer, Buffer], None]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
    "permute": _permute,
    "send": _send,
    "recv": _recv,
}
