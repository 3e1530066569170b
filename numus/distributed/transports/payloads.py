"""The payload of each collective by MPI: nonblocking calls on host memory, without a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from numus.distributed.transport import Buffer, Operation, clear_bytes, copy_bytes
from numus.errors import DTypeError

_PERMUTE_TAG = 3

_TYPES = {
    **{"int8": MPI.INT8_T, "int16": MPI.INT16_T, "int32": MPI.INT32_T, "int64": MPI.INT64_T},
    **{"uint8": MPI.UINT8_T, "uint16": MPI.UINT16_T},
    **{"uint32": MPI.UINT32_T, "uint64": MPI.UINT64_T},
    **{"float32": MPI.FLOAT, "float64": MPI.DOUBLE, "bool": MPI.C_BOOL},
    **{"complex64": MPI.C_FLOAT_COMPLEX, "complex128": MPI.C_DOUBLE_COMPLEX},
}
_OPERATIONS = {"sum": MPI.SUM, "prod": MPI.PROD, "max": MPI.MAX, "min": MPI.MIN}
_OF_BOOLS = {"max": MPI.LOR, "min": MPI.LAND}


def memory(buffer: Buffer) -> Any:
    """A buffer as mpi4py takes it."""
    return MPI.buffer.fromaddress(buffer.address, buffer.nbytes)


def _numbers(call: Operation, buffer: Buffer) -> list[Any]:
    """A buffer of numbers that MPI computes with."""
    name = call.dtype.name
    if name not in _TYPES:
        raise DTypeError(
            f"{call.kind}: MPI does not reduce {name}; cast it to one of {', '.join(_TYPES)}"
        )
    return [memory(buffer), buffer.nbytes // call.dtype.itemsize, _TYPES[name]]


def _operation(call: Operation) -> Any:
    return (_OF_BOOLS if call.dtype.name == "bool" else _OPERATIONS)[call.reduction]


def _all_reduce(comm: Any, call: Operation, source: Buffer, target: Buffer) -> list[Any]:
    known = call.prepared
    if known is None:
        known = call.prepared = (*_numbers(call, source)[1:], _operation(call))
    count, kind, operation = known
    given, taken = [memory(source), count, kind], [memory(target), count, kind]
    return [comm.Iallreduce(given, taken, operation)]


def _reduce(comm: Any, call: Operation, source: Buffer, target: Buffer) -> list[Any]:
    mine = call.root == call.group.rank
    if not mine:
        clear_bytes(target)
    into = _numbers(call, target) if mine else None
    return [comm.Ireduce(_numbers(call, source), into, _operation(call), call.root)]


def _broadcast(comm: Any, call: Operation, source: Buffer, target: Buffer) -> list[Any]:
    if call.root == call.group.rank:
        copy_bytes(source, target)
    return [comm.Ibcast(memory(target), call.root)]


def _all_gather(comm: Any, call: Operation, source: Buffer, target: Buffer) -> list[Any]:
    return [comm.Iallgather(memory(source), memory(target))]


def _reduce_scatter(comm: Any, call: Operation, source: Buffer, target: Buffer) -> list[Any]:
    into = _numbers(call, target)
    whole = [memory(source), *into[1:]]  # mpi4py counts the numbers of one part
    return [comm.Ireduce_scatter_block(whole, into, _operation(call))]


def _all_to_all(comm: Any, call: Operation, source: Buffer, target: Buffer) -> list[Any]:
    return [comm.Ialltoall(memory(source), memory(target))]


def _gather(comm: Any, call: Operation, source: Buffer, target: Buffer) -> list[Any]:
    into = memory(target) if call.root == call.group.rank else None
    return [comm.Igather(memory(source), into, call.root)]


def _scatter(comm: Any, call: Operation, source: Buffer, target: Buffer) -> list[Any]:
    whole = memory(source) if call.root == call.group.rank else None
    return [comm.Iscatter(whole, memory(target), call.root)]


def _permute(comm: Any, call: Operation, source: Buffer, target: Buffer) -> list[Any]:
    me = call.group.rank
    to = [b for a, b in call.pairs if a == me]
    sources = [a for a, b in call.pairs if b == me]
    if not sources:
        clear_bytes(target)
    elif sources[0] == me:
        copy_bytes(source, target)
    requests = [comm.Irecv(memory(target), a, _PERMUTE_TAG) for a in sources if a != me]
    return requests + [comm.Isend(memory(source), b, _PERMUTE_TAG) for b in to if b != me]


def _barrier(comm: Any, call: Operation, source: Buffer, target: Buffer) -> list[Any]:
    return []  # the header is one


START: dict[str, Callable[[Any, Operation, Buffer, Buffer], list[Any]]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
    "permute": _permute,
    "barrier": _barrier,
}
