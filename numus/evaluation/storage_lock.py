"""Reader-writer locks of storages accessed from the host.

One lock orders everything: it is held during evaluations, so that a writer never starts while
kernels run, and an evaluation waits for writers of other threads. Reentrant per thread.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from numus.graph import Storage
from numus.runtime.launch_lock import lock as lock

_changed = threading.Condition(lock)
writers: dict[Storage, int] = {}  # the writing thread


class HostAccess:
    """The readers of a storage on the host."""

    __slots__ = ("exported", "readers")

    def __init__(self) -> None:
        self.readers: dict[int, int] = {}  # threads, and their nesting
        self.exported: list[weakref.ref[Any]] = []  # arrays on the memory that readers got


def host_access(storage: Storage) -> HostAccess:
    """The storage's readers, made when first needed."""
    if storage.host_access is None:
        storage.host_access = HostAccess()
    return storage.host_access


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
