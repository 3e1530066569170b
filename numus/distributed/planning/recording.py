"""Groups of ranks that are not there: collectives give memory of the right size, and are counted.

They stand where `nm.distributed.Group` stands, so what is written for ranks (data-parallel models,
layers with collectives) is traced as one rank would run it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numus.distributed.groups import Group
from numus.distributed.transport import Buffer, Operation, Pending
from numus.runtime.cpu.memory import MemoryPool
from numus.runtime.devices import Device, default, device


@dataclass(frozen=True)
class Sent:
    """A collective that a rank took part in: `nbytes` are those of the whole tensor."""

    kind: str
    axis: str
    nbytes: int


class _Done:
    def done(self) -> bool:
        return True

    def wait(self) -> None:
        pass


class RecordingTransport:
    """Counts what would be sent."""

    name = "planned"
    on_host = False

    def __init__(self, axis: str) -> None:
        self._axis = axis
        self.sent: list[Sent] = []

    def start(self, call: Operation, source: Buffer, target: Buffer) -> Pending:
        self.sent.append(Sent(call.kind, self._axis, max(call.sizes)))
        return _Done()


class PlannedGroup(Group):
    """Ranks along one axis of a mesh, of which this process stands for the first.

    >>> from numus.distributed.planning.recording import PlannedGroup
    >>> PlannedGroup("tensor", 8).size
    8
    """

    def __init__(self, axis: str, size: int) -> None:
        super().__init__(tuple(range(size)), 0, None, f"{axis} of {size}")
        self.recorded = RecordingTransport(axis)

    def transport(self, device: Device) -> Any:
        return None if self.size == 1 else self.recorded


@contextlib.contextmanager
def on_null_device() -> Iterator[Any]:
    """New tensors take no memory, and are counted as pools count them; gives the runtime."""
    before, default.device = default.device, device("null")
    runtime: Any = default.device.runtime
    exact, runtime.size_class = runtime.size_class, MemoryPool.size_class
    try:
        yield runtime
    finally:
        default.device, runtime.size_class = before, exact
