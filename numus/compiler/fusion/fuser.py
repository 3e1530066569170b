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

from numus.compiler.fusion.group import Group, Grouping
from numus.compiler.fusion.legality import MANY_MEMBERS, Joining
from numus.compiler.fusion.materialize import Storing
from numus.compiler.graph.builder import Val, walk
from numus.runtime.contract import Facts
from numus.shapes import Shape


class Fuser:
    """Groups the values of a graph. Leaves, whose `strides` are given, are in memory already;
    `roots` must come to be.
    """

    def __init__(self, roots: Sequence[Val], strides: dict[Val, Shape], facts: Facts) -> None:
        self.facts = facts
        self.roots = set(roots)
        self.strides = strides
        leaves = self.leaves = set(strides)
        needed = walk(roots, lambda v: v not in leaves)
        self.order = sorted(needed, key=lambda v: v.id)
        self.storing = Storing(self.order, self.roots, leaves, facts)
        self._known: dict[Any, bool] = {}

    def run(self) -> list[Group]:
        """The groups in an order in which they can run."""
        grouping = self._settled(self.storing.at_first(), set())
        again = self.storing.quickly_made_again(grouping)
        if again:
            grouping = self._settled(grouping.in_memory - self.leaves - again, again)
        return grouping.ordered()

    def _settled(self, stored: set[Val], never: set[Val]) -> Grouping:
        """Group until nothing more is worth storing."""
        while True:
            grouping = self._grouped(stored)
            shared = self.storing.computed_again(grouping) - never
            if not shared:
                grouping.mark_stored(self.roots)
                return grouping
            stored = stored | shared

    def _grouped(self, stored: set[Val]) -> Grouping:
        grouping = Grouping(self.order, stored, self.leaves)
        joining = Joining(grouping, self.facts, self.storing.sums, self._known, self.strides)
        for v in grouping.read_by:
            group = Group(v, v.id)
            _unite(joining, group, v)
            needs = grouping.needed(v)
            target = joining.target(group, v, needs)
            if target is None:
                grouping.begin(group, v, needs)
            else:
                grouping.join(target, group, v, needs)
        return grouping


def _unite(joining: Joining, group: Group, v: Val) -> None:
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
