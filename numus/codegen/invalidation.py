"""What written values came from, so that they are written anew when that has changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from numus.ir import Expr

_NONE: frozenset[Any] = frozenset()


@dataclass(slots=True)
class Origins:
    """Registers and buffers that statements change, and what was computed from them."""

    of: dict[Expr, frozenset[Any]] = field(default_factory=dict)
    users: dict[Any, list[Expr]] = field(default_factory=dict)

    def note(self, e: Expr) -> None:
        """An expression is written, and those that it is made of were before."""
        found = _NONE
        for a in e.args:
            d = self.of.get(a)
            if d:
                found = found | d
        if e.op == "read":
            found = found | {e.attr}
        elif e.op == "lanes_reduce":
            found = found | {e.attr[1]}
        elif e.op == "lanes_least":
            found = found | {*e.attr}
        elif e.op in ("load", "load4") and e.attr.access != "read":
            found = found | {e.attr}
        if found:
            self.of[e] = found
            for thing in found:
                self.users.setdefault(thing, []).append(e)

    def stale(self, things: Iterable[Any]) -> Iterator[Expr]:
        """What was computed from these, which have new values."""
        for thing in things:
            yield from self.users.pop(thing, ())
