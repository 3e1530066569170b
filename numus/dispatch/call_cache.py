"""Caches of specialised calls: polymorphic inline caches (Hölzle et al. 1991) over a bounded table.

Used for eager evaluations, graph templates and VJPs. Apart from evaluation, which looks here before
it imports the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numus.compiler.hooks import on_clear_plans

GUARD_FAILED: Any = object()  # result of a fast call whose guards failed
_MAX_INLINE_CALLS = 4  # tried before the structure is looked up
# Runs of a structure before it is specialised, a power of two: a call costs 300 us on a 2-core
# Cascade Lake and saves 40 us of a run, and models of a dozen layers come to a length as often.
MAX_RUNS_BEFORE = 16


class InlineCache:
    """Fast calls of one call site, most recently used first. Each guards its own structure."""

    __slots__ = ("calls", "misses")

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.misses = 0  # since the last hit

    def clear(self) -> None:
        self.calls = []  # a new list: others may iterate over it
        self.misses = 0

    def call(self, args: Any) -> Any:
        """The result of the first call whose guards hold; `GUARD_FAILED` where none do."""
        for call in self.calls:
            found = call(*args)
            if found is not GUARD_FAILED:
                if self.misses or call is not self.calls[0]:
                    self.promote(call)
                return found
        return GUARD_FAILED

    def promote(self, call: Any) -> None:
        """Try this call first from now on."""
        self.misses = 0
        if not self.calls or self.calls[0] is not call:  # a new list: others may iterate over it
            self.calls = [call, *[c for c in self.calls if c is not call]][:_MAX_INLINE_CALLS]


class CallCache:
    """Specialised calls by structural key, and inline caches by call site; cleared when full."""

    def __init__(self, max_structures: int, max_sites: int = 1) -> None:
        self.max_structures = max_structures
        self.max_sites = max_sites
        self.structures: dict[Any, Any] = {}  # a call, or how often the structure has come
        self.sites: dict[Any, InlineCache] = {}
        self._sizes: dict[Any, int] = {}  # calls made for each skeleton

    def clear(self) -> None:
        self.structures.clear()
        self.sites.clear()
        self._sizes.clear()

    def site(self, key: Any) -> InlineCache:
        found = self.sites.get(key)
        if found is None:
            if len(self.sites) >= self.max_sites:
                self.sites.clear()
            found = self.sites[key] = InlineCache()
        return found

    def get(self, key: Any) -> Any:
        """The specialised call of a structure; None where there is none yet."""
        found = self.structures.get(key)
        return None if found.__class__ is int else found

    def runs(self, key: Any) -> int:
        """How often a structure without a call has come."""
        found = self.structures.get(key)
        return found if found.__class__ is int else 0

    def is_due(self, key: Any, skeleton: Callable[[], Any] | None = None) -> bool:
        """Count a structure without a call; True if it is to be specialised now: the second time,
        and ever more rarely where that fails.

        A call costs as much as a few runs without it. Where a `skeleton`, a structure without its
        sizes, has come in other sizes, as sequences that grow do, a call is made after twice as
        many runs for each of them, up to `MAX_RUNS_BEFORE`."""
        if key not in self.structures and len(self.structures) >= self.max_structures:
            self.clear()
        count = self.structures.get(key, 0)
        self.structures[key] = count = count + 1 if count.__class__ is int else 1
        if count < 2 or count & (count - 1):
            return False
        if skeleton is None:
            return True
        found = skeleton()
        made = self._sizes.get(found, 0)
        if count < min(2 << made, MAX_RUNS_BEFORE):
            return False
        if len(self._sizes) >= self.max_structures:
            self._sizes.clear()
        self._sizes[found] = made + 1
        return True


# Eager evaluations; each structure keeps some memory for results.
eager_calls = CallCache(max_structures=512, max_sites=4096)
on_clear_plans.append(eager_calls.clear)
