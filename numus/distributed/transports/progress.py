"""Progress of collectives while this rank computes.

MPI moves bytes while one of its functions is called, and kernels call none. A thread looks after
what is under way: it sleeps between two looks, and does not where bytes have moved. A rank that
waits by itself needs no help.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Any, Protocol

_SLEEP_S = 2e-4  # between two looks
_MOVING_S = 5e-6  # a look that took longer has moved bytes


class Driven(Protocol):
    """A transport with collectives under way."""

    def progress(self) -> bool:
        """Go on with them; whether all is done. Never waits, never raises for other ranks."""


class _Driver:
    """The thread, and what it looks after."""

    def __init__(self) -> None:
        self._wake = threading.Event()
        self._driven: weakref.WeakSet[Any] = weakref.WeakSet()
        threading.Thread(target=self._run, name="numus-progress", daemon=True).start()

    def add(self, transport: Driven) -> None:
        self._driven.add(transport)
        if not self._wake.is_set():
            self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while waiting := list(self._driven):
                begin = time.perf_counter()
                for transport in waiting:
                    if transport.progress():
                        self._driven.discard(transport)
                del waiting
                if time.perf_counter() - begin < _MOVING_S:
                    time.sleep(_SLEEP_S)


class _State:
    driver: _Driver | None = None


def drive(transport: Driven) -> None:
    """Look after a transport until nothing of it is under way."""
    driver = _State.driver
    if driver is None:
        driver = _State.driver = _Driver()
    driver.add(transport)


def _after_fork() -> None:
    _State.driver = None  # threads do not survive a fork


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
