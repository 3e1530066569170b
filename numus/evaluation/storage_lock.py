"""Reader-writer locks of storages accessed from the host.

One lock orders everything: it is held during evaluations, so that a writer never starts while
kernels run, and an evaluation waits for writers of other threads. Reentrant per thread.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from numus.graph import Storage
from numus.runtime.launch_lock import lock as lock

_changed = threading.Condition(lock)
writers: dict[Storage, int] = {}  # the writing thread


class _Fork:
    """Forks that led to this process, and the thread that survived the last one."""

    count = 0
    thread = 0


_fork = _Fork()


def _after_fork() -> None:
    _fork.count += 1
    _fork.thread = threading.get_ident()
    for storage in [s for s, thread in writers.items() if thread != _fork.thread]:
        del writers[storage]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class HostAccess:
    """The readers of a storage on the host."""

    __slots__ = ("exported", "forks", "readers")

    def __init__(self) -> None:
        self.forks = _fork.count
        self.readers: dict[int, int] = {}  # threads, and their nesting
        self.exported: list[weakref.ref[Any]] = []  # arrays on the memory that readers got


def host_access(storage: Storage) -> HostAccess:
    """The storage's readers, made when first needed."""
    found = storage.host_access
    if found is None:
        found = storage.host_access = HostAccess()
    elif found.forks != _fork.count:  # the parent's other threads do not exist here
        for thread in found.readers.keys() - {_fork.thread}:
            del found.readers[thread]
        found.forks = _fork.count
    return found


def wait_for_writers(storages: Iterable[Storage]) -> None:
    """Wait until no other thread writes to these."""
    me = threading.get_ident()
    wanted = list(storages)
    with lock:
        while any(writers.get(s, me) != me for s in wanted):
            _changed.wait()


@contextlib.contextmanager
def reading(find: Callable[[], Storage]) -> Iterator[Storage]:
    """A read lock. `find` is called again after waiting: a writer may have moved the tensor."""
    me = threading.get_ident()
    with lock:
        while writers.get(find(), me) != me:
            _changed.wait()
        storage = find()
        readers = host_access(storage).readers
        readers[me] = readers.get(me, 0) + 1
    try:
        yield storage
    finally:
        with lock:
            readers[me] -= 1
            if not readers[me]:
                del readers[me]
            _changed.notify_all()


@contextlib.contextmanager
def writing(find: Callable[[], Storage], prepare: Callable[[], Storage]) -> Iterator[Storage]:
    """A write lock. `prepare` returns the storage to write to, once there are no readers."""
    me = threading.get_ident()
    with lock:
        while True:
            storage = find()
            readers = host_access(storage).readers
            if me in readers or writers.get(storage) == me:
                raise RuntimeError(
                    "this thread already reads or writes this memory; leave the other "
                    "`with x.data()` or `with x.data_write()` first"
                )
            if not readers and storage not in writers:
                break
            _changed.wait()
        del storage  # `prepare` counts its references
        target = prepare()
        writers[target] = me
    try:
        yield target
    finally:
        with lock:
            del writers[target]
            _changed.notify_all()
