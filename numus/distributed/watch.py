"""Failure detection: deadlines, dead processes, and notes that a failing rank leaves to the others.

A waiting rank looks up four times a second: has a peer on this machine ended, has any rank sent a
note that it failed, is the time over? Where it is, the rank asks all others what they are doing,
and the error names those that are elsewhere or do not answer.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from numus.errors import DistributedError

_LOOK_S = 0.25  # between two looks at the peers
_ANSWER_S = 2.0  # that others have to say what they are doing
_SPINS = 2000  # tests before a waiting rank gives way to others
_YIELDING_S = 0.005  # it gives way, and then sleeps
_SLEEP_S = 1e-4
_TAG = 0  # of notes, on a communicator of their own


class Process(NamedTuple):
    """Where a rank runs."""

    host: str  # a machine, and a namespace of process numbers on it
    pid: int
    started: str  # a number is used again: the time makes it unique

    @classmethod
    def this(cls) -> Process:
        namespace = ""
        if Path("/proc/self/ns/pid").exists():
            namespace = os.readlink("/proc/self/ns/pid")
        return cls(f"{socket.gethostname()} {namespace}", os.getpid(), _state(os.getpid())[1])

    def is_alive(self) -> bool:
        """Whether a process of this machine is still there."""
        state, started = _state(self.pid)
        if state:
            return state not in "ZX" and started == self.started
        if Path("/proc/self/stat").exists():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True


def _state(pid: int) -> tuple[str, str]:
    """The state and the start time of a process; empty where they cannot be known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]


class Watch:
    """Watches the ranks of the world while this one waits for them."""

    def __init__(self, notes: Any, processes: Sequence[Process], timeout: float) -> None:
        self._notes = notes  # a communicator
        self._processes = processes
        self._rank: int = notes.rank
        self.timeout = timeout
        self.failure: DistributedError | None = None
        self._doing = "nothing with others"
        self._since = 0.0
        self._sent: list[Any] = []  # notes under way
        self._answers: dict[int, str] = {}

    def check(self) -> None:
        """Raise where the world has failed before: nothing can be said between its ranks."""
        if self.failure is not None:
            raise DistributedError(
                f"this world has failed before, and cannot be used any more: {self.failure}"
            )

    def fail(self, message: str) -> DistributedError:
        """The error, which is told to all other ranks."""
        if self.failure is None:
            self.failure = DistributedError(message)
            self._tell("failed", message)
        return self.failure

    def wait(
        self, test: Callable[[], Any], describe: Callable[[], str], ranks: Sequence[int], busy: bool
    ) -> None:
        """Wait until `test` holds, for these ranks. `busy`: the test moves bytes itself."""
        for _ in range(_SPINS):
            if test():
                return
        self._since = begin = time.monotonic()
        self._doing = describe()
        next_look = begin + _LOOK_S
        try:
            while not test():
                now = time.monotonic()
                if now >= next_look:
                    next_look = now + _LOOK_S
                    self._look(ranks)
                    if now - begin > self.timeout:
                        raise self._overdue(ranks)
                elif busy or now - begin < _YIELDING_S:
                    os.sched_yield()
                else:
                    time.sleep(_SLEEP_S)
        finally:
            self._doing = "nothing with others"

    def _look(self, ranks: Sequence[int]) -> None:
        self._read_notes()
        if self.failure is not None:
            raise self.failure
        gone = [r for r in ranks if r != self._rank and self._is_gone(r)]
        if gone:
            time.sleep(_LOOK_S)
            self._read_notes()  # one that failed may have said why
            if self.failure is not None:
                raise self.failure
            names = _ranks(gone)
            raise self.fail(
                f"{names} {'has' if len(gone) == 1 else 'have'} ended (killed, crashed, or left "
                f"without a word) while rank {self._rank} was waiting in {self._doing}"
            )

    def _is_gone(self, rank: int) -> bool:
        process = self._processes[rank]
        return process.host == self._processes[self._rank].host and not process.is_alive()

    def _overdue(self, ranks: Sequence[int]) -> DistributedError:
        """The error of a rank whose time is over: it names those that did not come."""
        doing, waited = self._doing, time.monotonic() - self._since
        others = [r for r in ranks if r != self._rank]
        self._answers.clear()
        self._tell("asks", doing)
        until = time.monotonic() + _ANSWER_S
        while time.monotonic() < until and not self._answers.keys() >= set(others):
            self._read_notes()
            time.sleep(0.01)
        absent = [r for r in others if r not in self._answers]
        elsewhere = [r for r in others if self._answers.get(r, doing) != doing]
        parts = [f"rank {self._rank} waited {waited:.1f} s in {doing}"]
        if absent:
            parts.append(f"{_ranks(absent)} did not come, and did not answer (hung, busy or dead)")
        parts += [f"rank {r} is in {self._answers[r]}" for r in elsewhere]
        if not absent and not elsewhere:
            parts.append("all ranks are there: the machines are slower than init(timeout=) allows")
        return self.fail("; ".join(parts))

    # -- notes ------------------------------------------------------------------------------------

    def _tell(self, kind: str, text: str, to: Sequence[int] | None = None) -> None:
        """Send a note to ranks, all others by default; none is waited for."""
        data = json.dumps([kind, self._rank, text[:4000]]).encode()
        self._sent = [(r, d) for r, d in self._sent if not r.Test()]
        for rank in range(self._notes.size) if to is None else to:
            if rank != self._rank and not self._is_gone(rank):
                self._sent.append((self._notes.Isend(data, rank, _TAG), data))

    def _read_notes(self) -> None:
        from mpi4py import MPI

        status = MPI.Status()
        while self._notes.Iprobe(MPI.ANY_SOURCE, _TAG, status):
            data = bytearray(status.Get_count(MPI.BYTE))
            self._notes.Recv(data, status.source, _TAG)
            kind, rank, text = json.loads(bytes(data))
            if kind == "asks":
                self._answers[rank] = text
                self._tell("answers", self._doing, [rank])
            elif kind == "answers":
                self._answers[rank] = text
            elif self.failure is None:
                self.failure = DistributedError(f"rank {rank} failed: {text}")

    def leave(self, error: BaseException) -> None:
        """Tell the others that this rank ends by an error of its own."""
        if self.failure is None:
            self.failure = DistributedError(f"{type(error).__name__}: {error}")
            self._tell("failed", str(self.failure))
        until = time.monotonic() + 0.5
        while time.monotonic() < until and not all(r.Test() for r, _ in self._sent):
            time.sleep(0.001)


def _ranks(found: Sequence[int]) -> str:
    """Ranks in messages: "rank 1", "ranks 1 and 3"."""
    if len(found) == 1:
        return f"rank {found[0]}"
    return f"ranks {', '.join(map(str, found[:-1]))} and {found[-1]}"
