"""Memory dependences of emitted values: which ones a write invalidates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from numus.ir import Expr

_NONE: frozenset[Any] = frozenset()


@dataclass(slots=True)
class MemoryDependences:
    """Mutable registers and buffers, and the emitted expressions that depend on them."""

    sources: dict[Expr, frozenset[Any]] = field(default_factory=dict)
    users: dict[Any, list[Expr]] = field(default_factory=dict)

    def record(self, e: Expr) -> None:
        """Add an expression whose operands are recorded."""
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
            for memory in found:
                self.users.setdefault(memory, []).append(e)

    def invalidated_by(self, written: Iterable[Any]) -> Iterator[Expr]:
        """Expressions that depend on what has been written."""
        for memory in written:
            yield from self.users.pop(memory, ())
