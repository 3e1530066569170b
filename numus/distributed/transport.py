"""What a transport does: it carries the bytes of one collective between the ranks of a group.

MPI carries host memory (`mpi.py`), NCCL that of NVIDIA's GPUs (`nccl.py`). A group of one needs
neither.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from numus.distributed.calls import Collective


class Buffer(NamedTuple):
    """Memory that a transport reads or writes; `owner` keeps it alive."""

    address: int
    nbytes: int
    owner: Any = None


class Pending(Protocol):
    """A collective under way. Its buffers belong to the transport until it is done."""

    def done(self) -> bool:
        """Whether the result is there; never waits."""

    def wait(self) -> None:
        """Wait for the result; an error where a rank fails, or does not come in time."""


class Transport(Protocol):
    """Carries collectives of one kind of memory."""

    name: str
    on_host: bool  # it takes host memory: that of other devices is copied

    def start(self, call: Collective, source: Buffer, target: Buffer) -> Pending:
        """Begin a collective. All ranks of its group begin theirs in the same order."""


def copy_bytes(source: Buffer, target: Buffer) -> None:
    """Copy host memory."""
    if target.nbytes:
        ctypes.memmove(target.address, source.address, target.nbytes)


def clear_bytes(target: Buffer) -> None:
    """Set host memory to zero."""
    if target.nbytes:
        ctypes.memset(target.address, 0, target.nbytes)
