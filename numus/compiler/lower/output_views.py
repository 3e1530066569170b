"""Results of schedules stored where the next one wants them: as views, as parts of a whole.

A member of a group that is nothing but another member seen through reshapes and permutations, or a
concatenation of such, needs no kernel of its own: each element is stored there as it is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.contiguity import source_of
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter
from numus.compiler.lower.index_rules import Index, regroup
from numus.ir import Expr, Stmt, add


@dataclass(frozen=True, slots=True)
class Place:
    """Where elements of a value go: through views, innermost first, into a part of a whole."""

    whole: Value
    views: Sequence[Value]
    axis: int = 0
    start: int = 0

    def index(self, e: Emitter, index: Index) -> Index:
        """An element's index in the whole."""
        for view in self.views:
            if view.op == "permute":
                index = tuple(index[a] for a in view.params)
            else:
                index = regroup(e, index, view.inputs[0].shape, view.shape)
        if self.start:
            moved = add(index[self.axis], e.dim(self.start))
            index = (*index[: self.axis], moved, *index[self.axis + 1 :])
        return index


def places(group: FusionGroup, val: Value) -> list[Place]:
    """Everywhere a member of a group is stored."""
    found = [Place(val, ())] if val in group.stored else []
    for m in group.members:
        if m in group.stored and m is not val:
            start = 0
            for part in m.inputs if m.op == "concat" else (m,):
                source, views = source_of(part)
                if source is val:
                    found.append(Place(m, views, m.params if m.op == "concat" else 0, start))
                start += part.shape[m.params] if m.op == "concat" else 0
    return found


def store(
    e: Emitter, group: FusionGroup, val: Value, index: Sequence[Expr], value: Expr
) -> list[Stmt]:
    """Store an element of a member wherever it is wanted."""
    out: list[Stmt] = []
    for place in places(group, val):
        out += e.store(place.whole, place.index(e, tuple(index)), value.cast(val.dtype))
    return out
