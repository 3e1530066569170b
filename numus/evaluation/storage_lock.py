"""Who may touch a tensor's memory from the host, and when.

Any number of readers, or one writer, per storage. One lock orders everything: it is held while
anything is evaluated, so a writer never starts below running kernels; and an evaluation that reads
what another thread is writing waits until that is done. A thread does not wait for itself.
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
writers: dict[Storage, int] = {}  # which thread is writing to what


class Guard:
    """What a storage remembers of its access from the host."""

    __slots__ = ("lent", "readers")

    def __init__(self) -> None:
        self.readers: dict[int, int] = {}  # threads, and how often each has it open
        self.lent: list[weakref.ref[Any]] = []  # arrays on the memory that were given to readers


def guard_of(storage: Storage) -> Guard:
    """The storage's guard, made when it is first needed."""
    if storage.guard is None:
        storage.guard = Guard()
    return storage.guard


def being_written() -> bool:
    """Whether any storage is: what keeps the others' path short."""
    return bool(writers)


def await_writers(storages: Iterable[Storage]) -> None:
    """Wait until no other thread writes to these."""
    me = threading.get_ident()
    wanted = list(storages)
    with lock:
        while any(writers.get(s, me) != me for s in wanted):
            _changed.wait()


@contextlib.contextmanager
def reading(find: Callable[[], Storage]) -> Iterator[Storage]:
    """Share the storage with other readers. `find` is asked again after waiting: a writer may
    have put the tensor elsewhere."""
    me = threading.get_ident()
    with lock:
        while writers.get(find(), me) != me:
            _changed.wait()
        storage = find()
        readers = guard_of(storage).readers
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
    """Keep all others from the storage. `prepare` gives the one to write to, once nobody reads."""
    me = threading.get_ident()
    with lock:
        while True:
            storage = find()
            readers = guard_of(storage).readers
            if me in readers or writers.get(storage) == me:
                raise RuntimeError(
                    "this thread already reads or writes this memory: leave the other "
                    "`with x.data()` or `with x.data_write()` first"
                )
            if not readers and storage not in writers:
                break
            _changed.wait()
        del storage  # `prepare` counts who holds it
        target = prepare()
        writers[target] = me
    try:
        yield target
    finally:
        with lock:
            del writers[target]
            _changed.notify_all()
