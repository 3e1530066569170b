"""Greedy fusion of a graph into groups.

Every value that has to be in memory starts as a group of its own; consumers are then fused into
producers wherever one kernel can compute both:
    a pointwise function over the same space, reading its producer element for element;
    a further stage over the same rows (softmax, layer norm and their gradients become one kernel);
    a sibling that reads the same input over the same space (mean and variance in one pass);
    the elementwise epilogue of a GEMM (bias, activation, residual) or of a scan;
    products of matrices of one shape with one vector (gate and up projections), on GPUs;
    the outputs of attention (its result and log-sum-exp; the cotangents of its operands).
Values used only within their group are never materialised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numus.compiler.fusion.group import FusionGroup, Partition
from numus.compiler.fusion.legality import Legality
from numus.compiler.fusion.materialize import Materialization
from numus.compiler.fusion.tuning import TUNING
from numus.compiler.graph.value import Layouts, Value, walk
from numus.target import Target


class Fuser:
    """Fuses the values of a graph. Leaves, whose `strides` are given, are in memory; `roots` must
    be stored."""

    def __init__(self, roots: Sequence[Value], strides: Layouts, target: Target) -> None:
        self.target = target
        self.roots = set(roots)
        self.strides = strides
        leaves = self.leaves = set(strides)
        needed = walk(roots, lambda v: v not in leaves)
        self.order = sorted(needed, key=lambda v: v.id)
        self.materialization = Materialization(self.order, self.roots, strides, target)
        self._cache: dict[Any, bool] = {}

    def run(self) -> list[FusionGroup]:
        """The groups in topological order."""
        partition = self._fixed_point(self.materialization.initial(), set())
        recomputed = self.materialization.recomputed(partition)
        if recomputed:
            stored = partition.in_memory - self.leaves - recomputed
            partition = self._fixed_point(stored, recomputed)
        if self.target.simt:
            from numus.compiler.fusion.column_sums import merge_column_sums  # late: for GPUs only

            merge_column_sums(partition, self.target)
        return partition.topological_order()

    def _fixed_point(self, stored: set[Value], never: set[Value]) -> Partition:
        """Fuse until nothing more is worth storing."""
        while True:
            partition = self._fuse(stored)
            shared = self.materialization.shared(partition) - never
            if not shared:
                partition.mark_stored(self.roots)
                return partition
            stored = stored | shared

    def _fuse(self, stored: set[Value]) -> Partition:
        partition = Partition(self.order, stored, self.leaves)
        choice = self.materialization
        legality = Legality(
            *(partition, self.target, choice.gemm_sums, choice.piece, self._cache, self.strides),
            choice.row_products,
            choice.picked,
        )
        for v in partition.operands:
            group = FusionGroup(v, v.id)
            _merge_row_producers(legality, group, v)
            needs = partition.ancestors_of(v)
            host = legality.find_host(group, v, needs)
            if host is None:
                partition.add(group, v, needs)
            else:
                partition.fuse(host, group, v, needs)
        return partition


def _merge_row_producers(legality: Legality, group: FusionGroup, v: Value) -> None:
    """Merge independent groups over the same rows, of which v is the next stage."""
    if group.kind != "loop" or v.size == 0:
        return
    partition = legality.partition
    rows = [g for g in partition.producers(v) if g.axes and g.space == group.space]
    rows = [g for g in rows if g.kind == "loop" and legality.allows_stages(g)]
    if len(rows) < 2:
        return
    first, *others = sorted(rows, key=lambda g: g.position)
    for other in others:
        if (
            other.axes == first.axes
            and partition.independent(first, other)
            and len(first.members) + len(other.members) <= TUNING.max_members
            and all(legality.can_fuse(g, group, v, {g}) for g in (first, other))
            and all(legality.reads_pointwise(g, group, v) for g in (first, other))
        ):
            partition.merge(first, other)
