"""What a transport does: it carries the bytes of one collective between the ranks of a group.

MPI carries host memory (`mpi.py`), NCCL that of NVIDIA's GPUs (`nccl.py`). A group of one needs
neither.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class Buffer(NamedTuple):
    """Memory that a transport reads or writes; `owner` keeps it alive."""

    address: int
    nbytes: int
    owner: Any = None


class Operation(Protocol):
    """What a transport knows of a collective (`calls.Collective`)."""

    kind: str
    group: Any
    dtype: Any
    reduction: str
    root: int
    peer: int
    pairs: tuple[tuple[int, int], ...]
    prepared: Any  # what a transport keeps for the next time
    carried: Any  # the same, of payloads that travel with a header

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of the operand and of the result."""

    @property
    def text(self) -> str:
        """What is called: the same text on all ranks that call the same."""

    @property
    def text_of_operand(self) -> str:
        """The dtype and shape."""

    @property
    def digest(self) -> int:
        """32 bits that stand for the text."""

    @property
    def is_root(self) -> bool:
        """Whether this rank gives or gets everything."""

    @property
    def reads(self) -> bool:
        """Whether the operand of this rank counts."""


@dataclass
class Agreement:
    """A barrier of ranks that call something by the same name."""

    text: str
    group: Any
    kind: str = "barrier"
    dtype: Any = None
    reduction: str = ""
    root: int = -1
    peer: int = -1
    pairs: tuple[tuple[int, int], ...] = ()
    prepared: Any = None
    carried: Any = None
    text_of_operand: str = ""
    sizes: tuple[int, int] = (0, 0)
    is_root: bool = False
    reads: bool = True

    @property
    def digest(self) -> int:
        """32 bits that stand for the text."""
        return zlib.crc32(self.text.encode())

    def __str__(self) -> str:
        return self.text


class Pending(Protocol):
    """A collective under way. Its buffers belong to the transport until it is done."""

    def done(self) -> bool:
        """Whether the result is there; never waits."""

    def wait(self) -> None:
        """Wait for the result; an error where a rank fails, or does not come in time."""


SMALL_BYTES = 1 << 18  # payloads up to this travel with the header that ranks compare


class SmallTransport:
    """A transport with a shorter way for small payloads."""

    def small(self, call: Operation) -> Callable[[int, int], None]:
        """`start` and `wait` of a collective, as a function of the addresses of what is given and
        of the result, which the caller keeps alive."""
        raise NotImplementedError


class Transport(Protocol):
    """Carries collectives of one kind of memory."""

    name: str
    on_host: bool  # it takes host memory: that of other devices is copied

    def start(self, call: Operation, source: Buffer, target: Buffer) -> Pending:
        """Begin a collective. All ranks of its group begin theirs in the same order."""


def copy_bytes(source: Buffer, target: Buffer) -> None:
    """Copy host memory."""
    if target.nbytes:
        ctypes.memmove(target.address, source.address, target.nbytes)


def clear_bytes(target: Buffer) -> None:
    """Set host memory to zero."""
    if target.nbytes:
        ctypes.memset(target.address, 0, target.nbytes)
