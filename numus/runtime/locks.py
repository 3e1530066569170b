"""Locks of process-wide state: created objects exist once, and a fork waits for all locks.

A thread that holds a lock may take those of later ranks only. A fork takes them all, so that its
child, which has no other thread, finds none of them held and nothing half changed.
"""

from __future__ import annotations

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
_PACKAGES = ("numus.", "llvmlite")
_held: list[Any] = []  # during a fork


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
    """Wait for modules that other threads are importing: Python has locks for these, too."""
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None) if name.startswith(_PACKAGES) else None
        if getattr(spec, "_initializing", False):
            importlib.import_module(name)


def _after_fork() -> None:
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
