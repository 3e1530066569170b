"""Stores to output views: results written straight through reshapes, permutations and concats.

A member of a group that is only a view of another, or a concatenation of such views, needs no
kernel: the epilogue stores each element there as it is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.strided_view import bijective_views
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Index
from numus.compiler.lower.index_rules import reshape_index
from numus.ir import Expr, Stmt, add


@dataclass(frozen=True, slots=True)
class OutputView:
    """A destination of a value: through views, innermost first, into a slice of an output."""

    output: Value
    views: Sequence[Value]
    axis: int = 0
    start: int = 0

    def index(self, e: Emitter, index: Index) -> Index:
        """An element's index in the output."""
        for view in self.views:
            if view.op == "permute":
                index = tuple(index[a] for a in view.params)
            else:
                index = reshape_index(e, index, view.inputs[0].shape, view.shape)
        if self.start:
            moved = add(index[self.axis], e.dim(self.start))
            index = (*index[: self.axis], moved, *index[self.axis + 1 :])
        return index


def output_views(group: FusionGroup, val: Value) -> list[OutputView]:
    """All destinations of a member of a group."""
    found = [OutputView(val, ())] if val in group.stored else []
    for m in group.members:
        if m in group.stored and m is not val:
            start = 0
            for part in m.inputs if m.op == "concat" else (m,):
                source, views = bijective_views(part)
                if source is val:
                    found.append(OutputView(m, views, m.params if m.op == "concat" else 0, start))
                start += part.shape[m.params] if m.op == "concat" else 0
    return found


def store(
    e: Emitter, group: FusionGroup, val: Value, index: Sequence[Expr], value: Expr
) -> list[Stmt]:
    """Store an element of a member to all of its destinations."""
    out: list[Stmt] = []
    for view in output_views(group, val):
        out += e.store(view.output, view.index(e, tuple(index)), value.cast(val.dtype))
    return out
