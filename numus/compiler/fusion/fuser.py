"""Which values are computed in which kernel.

Every value that has to be in memory starts as a group of its own; groups then merge, consumers into
producers, wherever one kernel can serve both:
    a map over the same space, reading its producer element for element;
    a further stage over the same rows (softmax, layer norm and their gradients become one kernel);
    a sibling that reads the same input over the same space (mean and variance in one pass);
    the elementwise tail of a contraction (bias, activation, residual) or of a scan;
    the parts of attention (its result and its sums; the cotangents of its operands).
What a merged group uses only within itself never reaches memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numus.compiler.fusion.group import FusionGroup, Grouping
from numus.compiler.fusion.legality import MANY_MEMBERS, Legality
from numus.compiler.fusion.materialize import Materialization
from numus.compiler.graph.value import Value, walk
from numus.shapes import Shape
from numus.target import Target


class Fuser:
    """Groups the values of a graph. Leaves, whose `strides` are given, are in memory already;
    `roots` must come to be.
    """

    def __init__(self, roots: Sequence[Value], strides: dict[Value, Shape], target: Target) -> None:
        self.target = target
        self.roots = set(roots)
        self.strides = strides
        leaves = self.leaves = set(strides)
        needed = walk(roots, lambda v: v not in leaves)
        self.order = sorted(needed, key=lambda v: v.id)
        self.storing = Materialization(self.order, self.roots, leaves, target)
        self._known: dict[Any, bool] = {}

    def run(self) -> list[FusionGroup]:
        """The groups in an order in which they can run."""
        grouping = self._settled(self.storing.at_first(), set())
        again = self.storing.quickly_made_again(grouping)
        if again:
            grouping = self._settled(grouping.in_memory - self.leaves - again, again)
        return grouping.ordered()

    def _settled(self, stored: set[Value], never: set[Value]) -> Grouping:
        """Group until nothing more is worth storing."""
        while True:
            grouping = self._grouped(stored)
            shared = self.storing.computed_again(grouping) - never
            if not shared:
                grouping.mark_stored(self.roots)
                return grouping
            stored = stored | shared

    def _grouped(self, stored: set[Value]) -> Grouping:
        grouping = Grouping(self.order, stored, self.leaves)
        joining = Legality(grouping, self.target, self.storing.sums, self._known, self.strides)
        for v in grouping.read_by:
            group = FusionGroup(v, v.id)
            _unite(joining, group, v)
            needs = grouping.needed(v)
            host = joining.find_host(group, v, needs)
            if host is None:
                grouping.begin(group, v, needs)
            else:
                grouping.join(host, group, v, needs)
        return grouping


def _unite(joining: Legality, group: FusionGroup, v: Value) -> None:
    """Make one of row programs over the same rows that know nothing of each other, where v is
    the next stage of both.
    """
    if group.kind != "loop" or v.size == 0:
        return
    grouping = joining.grouping
    rows = [g for g in grouping.producers(v) if g.axes and g.space == group.space]
    rows = [g for g in rows if g.kind == "loop" and joining.rows_fit(g)]
    if len(rows) < 2:
        return
    first, *others = sorted(rows, key=lambda g: g.position)
    for other in others:
        if (
            other.axes == first.axes
            and grouping.independent(first, other)
            and len(first.members) + len(other.members) <= MANY_MEMBERS
            and all(joining.may_join(g, group, v, {g}) for g in (first, other))
            and all(joining.aligned(g, group, v) for g in (first, other))
        ):
            grouping.absorb(first, other)
