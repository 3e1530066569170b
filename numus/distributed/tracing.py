"""A timeline of all ranks in the Trace Event Format: for Perfetto (ui.perfetto.dev) and Chrome."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import numus as nm
from numus.compiler.hooks import after_run, before_run
from numus.distributed.calls import watchers
from numus.distributed.collectives import all_reduce, gather
from numus.distributed.groups import world
from numus.files import PathLike, atomically

__all__ = ["trace"]

_COMPUTE, _SENDING = 0, 1  # rows of a rank
_SHOWN = 4  # operations in the name of a program


@contextmanager
def trace(path: PathLike) -> Iterator[None]:
    """Record when programs and collectives of each rank run, in one file: every rank is a process
    with a row for programs, and for the time in which it waits; collectives have rows of their own,
    from their beginning to the end of the waiting. All ranks enter and leave it together.

    Programs of GPUs are shown when they are launched. Recorded steps leave `nm.jit`'s short way, so
    they take somewhat longer.

    >>> import tempfile
    >>> with nm.distributed.trace(tempfile.mkdtemp() + "/step.json"):
    ...     _ = nm.distributed.all_reduce(nm.ones(3) * 2)
    """
    recorder = _Recorder()
    before_run.append(recorder.begin)
    after_run.append(recorder.end)
    watchers.append(recorder.collective)
    try:
        yield
    finally:
        before_run.remove(recorder.begin)
        after_run.remove(recorder.end)
        watchers.remove(recorder.collective)
    _write(Path(path), recorder.events)


class _Recorder:
    """The events of this rank."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._rank = world().rank
        self._running: list[tuple[str, float]] = []
        self._waiting: dict[int, float] = {}
        self._started: dict[int, tuple[int, Any]] = {}  # numbers of those under way
        self._count = 0

    def begin(self, device: Any, plan: Any, leaves: Any, constants: Any) -> None:
        from numus.compiler.explain import report

        kernels = report(device, plan, None).kernels
        fused = list(dict.fromkeys(op for k in kernels for op in k.fused))
        more = " …" if len(fused) > _SHOWN else ""
        count = f"{len(kernels)} kernel{'s' * (len(kernels) != 1)}"
        self._running.append((f"{count}: {', '.join(fused[:_SHOWN])}{more}", _now()))

    def end(self) -> None:
        if self._running:
            name, begin = self._running.pop()
            self._complete(name, "program", begin)

    def collective(self, what: Any, call: Any, begins: bool | None) -> None:
        """A collective begins (True), is waited for (None), or is over (False)."""
        if begins:
            self._count += 1
            self._started[id(what)] = self._count, what  # the object keeps its id
            self._phase("b", call, self._count)
        elif begins is None:
            self._waiting[id(what)] = _now()
        elif id(what) in self._started:
            number, _ = self._started.pop(id(what))
            self._phase("e", call, number)
            if id(what) in self._waiting:
                self._complete(f"wait for {call.kind}", "wait", self._waiting.pop(id(what)))

    def _complete(self, name: str, kind: str, begin: float) -> None:
        event = {"ph": "X", "name": name, "cat": kind, "ts": begin, "dur": _now() - begin}
        self.events.append({**event, "pid": self._rank, "tid": _COMPUTE})

    def _phase(self, phase: str, call: Any, number: int) -> None:
        event = {"ph": phase, "name": str(call), "cat": "collective", "id": str(number)}
        own = {"ts": _now(), "pid": self._rank, "tid": _SENDING}
        self.events.append({**event, **own, "args": {"bytes": max(call.sizes)}})


def _now() -> float:
    return time.time_ns() / 1000  # of the clock that the processes of a machine share


def _write(path: Path, events: list[dict[str, Any]]) -> None:
    """Gather the events of all ranks on the first, which writes the file."""
    data = np.frombuffer(json.dumps(events).encode(), np.uint8)
    length = int(all_reduce(nm.asarray([len(data)]), "max").item())
    padded = np.full(length, ord(" "), np.uint8)
    padded[: len(data)] = data
    whole = gather(nm.asarray(padded).reshape(1, -1)).numpy()
    if world().rank:
        return
    found = [event for row in whole for event in json.loads(row.tobytes())]
    names: list[dict[str, Any]] = []
    for rank in range(world().size):
        named = {"ph": "M", "pid": rank, "tid": _COMPUTE}
        names.append({**named, "name": "process_name", "args": {"name": f"rank {rank}"}})
        names.append({**named, "name": "thread_name", "args": {"name": "programs"}})
    text = json.dumps({"traceEvents": names + found, "displayTimeUnit": "ms"}).encode()
    atomically(path, lambda file: file.write(text))
