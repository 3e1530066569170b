"""Scoped bindings, and memory dependences: which emitted values a write invalidates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from numus.ir import Expr

UndoLog = list[tuple[dict[Any, Any], Any, Any]]  # (table, key, previous value) of a scope
_NONE: frozenset[Any] = frozenset()


def bind(log: UndoLog, table: dict[Any, Any], key: Any, value: Any) -> None:
    log.append((table, key, table.get(key)))
    table[key] = value


def undo(log: UndoLog) -> None:
    """Restore the tables bound in a scope."""
    for table, key, previous in reversed(log):
        if previous is None:
            table.pop(key, None)
        else:
            table[key] = previous


@dataclass(slots=True)
class MemoryDependences:
    """Mutable registers and buffers, and the emitted expressions that depend on them."""

    sources: dict[Expr, frozenset[Any]] = field(default_factory=dict)
    users: dict[Any, list[Expr]] = field(default_factory=dict)

    def record(self, e: Expr) -> None:
        """Add an expression whose operands are recorded."""
        found = _NONE.union(*(self.sources[a] for a in e.args if a in self.sources))
        if e.op == "read" or (e.op in ("load", "load_vector") and e.attr.access != "read"):
            found |= {e.attr}
        elif e.op == "lanes_reduce":
            found |= {e.attr[1]}
        elif e.op == "lanes_min_where":
            found |= {*e.attr}
        if found:
            self.sources[e] = found
            for memory in found:
                self.users.setdefault(memory, []).append(e)

    def invalidated_by(self, written: Iterable[Any]) -> Iterator[Expr]:
        """Expressions that depend on what has been written."""
        for memory in written:
            yield from self.users.pop(memory, ())
