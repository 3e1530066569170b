"""What written values came from, so that they are written anew when that has changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from numus.ir import Expr

_NONE: frozenset[Any] = frozenset()


@dataclass(slots=True)
class MemoryDependences:
    """Registers and buffers that statements change, and what was computed from them."""

    sources: dict[Expr, frozenset[Any]] = field(default_factory=dict)
    users: dict[Any, list[Expr]] = field(default_factory=dict)

    def record(self, e: Expr) -> None:
        """An expression is written, and those that it is made of were before."""
        found = _NONE
        for a in e.args:
            d = self.sources.get(a)
            if d:
                found = found | d
        if e.op == "read":
            found = found | {e.attr}
        elif e.op == "lanes_reduce":
            found = found | {e.attr[1]}
        elif e.op == "lanes_min_where":
            found = found | {*e.attr}
        elif e.op in ("load", "load4") and e.attr.access != "read":
            found = found | {e.attr}
        if found:
            self.sources[e] = found
            for thing in found:
                self.users.setdefault(thing, []).append(e)

    def invalidated_by(self, written: Iterable[Any]) -> Iterator[Expr]:
        """What was computed from these, which have new values."""
        for thing in written:
            yield from self.users.pop(thing, ())
