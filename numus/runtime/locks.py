"""Locks of process-wide state: created objects exist once, and a fork waits for all locks.

A thread that holds a lock may take those of later ranks only. A fork takes them all, so that its
child, which has no other thread, finds none of them held and nothing half changed.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import importlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")


class Rank(enum.IntEnum):
    LAUNCH = 0  # evaluations
    CREATION = 1  # runtimes, libraries, pools
    COMPILER = 2
    WORKERS = 3
    MEMORY = 4


_locks: list[WeakSet[Any]] = [WeakSet() for _ in Rank]
_PACKAGES = ("numus.", "llvmlite", "concurrent.", "numpy.")
_MAX_WAITS = 1000  # for imports
_NEVER_SECONDS = 1000.0
_held: list[Any] = []  # during a fork
_switch_interval: list[float] = []  # before it


def new_lock(rank: Rank) -> Any:
    """A reentrant lock that no child process inherits in a locked state."""
    lock = threading.RLock()
    _locks[rank].add(lock)
    return lock


def _before_fork() -> None:
    for same_rank in _locks:
        for lock in list(same_rank):
            lock.acquire()
            _held.append(lock)
    _finish_imports()


def _finish_imports() -> None:
    """Wait until no other thread imports: Python has a lock for each module, and one that a child
    inherits is never released. Threads that wait for the interpreter begin no import meanwhile."""
    _switch_interval.append(sys.getswitchinterval())
    sys.setswitchinterval(_NEVER_SECONDS)
    for _ in range(_MAX_WAITS):
        names = _importing()
        if not names:
            return
        for name in names:
            with contextlib.suppress(Exception):  # it is raised in the thread that imports
                importlib.import_module(name)


def _importing() -> list[str]:
    """Modules whose locks other threads hold, known before the modules are."""
    own, found = threading.get_ident(), []
    locks = getattr(importlib, "_bootstrap")._module_locks  # noqa: B009
    for name, known in list(locks.items()):
        lock = known() if name.startswith(_PACKAGES) else None
        if getattr(lock, "owner", None) not in (None, own):
            found.append(name)
    return found


def _after_fork() -> None:
    while _switch_interval:
        sys.setswitchinterval(_switch_interval.pop())
    while _held:
        _held.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )


# -- objects that exist once ----------------------------------------------------------------------

creation = new_lock(Rank.CREATION)


def once(make: Callable[..., T]) -> Callable[..., T]:
    """`functools.cache` that never calls a function twice for the same arguments, from however many
    threads: for handles, contexts and libraries."""
    made: dict[Any, T] = {}

    @functools.wraps(make)
    def get(*args: Any) -> T:
        try:
            return made[args]
        except KeyError:
            with creation:
                if args not in made:
                    made[args] = make(*args)
                return made[args]

    get.cache_clear = made.clear  # type: ignore[attr-defined]
    return get


class once_property(Generic[T]):  # noqa: N801
    """`functools.cached_property` under a lock."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        with creation:
            attributes: dict[str, T] = instance.__dict__  # found there first from now on
            if self._name not in attributes:
                attributes[self._name] = self._make(instance)
            return attributes[self._name]
