"""Least-recently-used tables of bounded size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruTable(Generic[K, V]):
    """A dictionary that drops the entries not used for longest. Threads may share it."""

    __slots__ = ("_entries", "_latest", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._latest: V | None = None  # at the end already: keys may take long to hash
        self._entries: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        found = self._entries.get(key)
        if found is not None and found is not self._latest:
            try:
                self._entries.move_to_end(key)
                self._latest = found
            except KeyError:  # another thread has dropped it
                pass
        return found

    def __setitem__(self, key: K, value: V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        self._latest = value
        while len(self._entries) > self.limit:
            self._entries.popitem(last=False)

    def setdefault(self, key: K, make: Callable[[], V]) -> V:
        """The entry of a key, made where there is none."""
        found = self.get(key)
        if found is None:
            self[key] = found = make()
        return found

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def values(self) -> list[V]:
        """The entries, latest last."""
        return list(self._entries.values())

    def recent(self, count: int) -> list[K]:
        """The keys used last, latest first."""
        keys = reversed(self._entries)
        return [key for _, key in zip(range(count), keys, strict=False)]

    def clear(self) -> None:
        self._entries.clear()
        self._latest = None
