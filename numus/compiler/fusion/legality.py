"""Which groups a value may join: where one kernel can serve it and what is there already."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import EPILOGUE_KINDS, FusionGroup, Grouping, index_of, squeeze
from numus.compiler.graph.contiguity import source_of
from numus.compiler.graph.value import ATTENTION, Value, walk
from numus.compiler.lower.affine import accesses, unit_weight
from numus.compiler.lower.emitter import Emitter
from numus.compiler.lower.grid_sync import room_for_rows
from numus.compiler.lower.index_rules import Index
from numus.shapes import Shape, row_major, size_of
from numus.target import Target

# Rows are merged over several stages only where they can run side by side or are short.
ENOUGH_ROWS = 16
SHORT_ROW = 1 << 16

# Rows that lie side by side have a thread each, which can keep nothing: those that are longer than
# this, so many in all that caches forget them, are merged over several stages only where every unit
# has several groups of threads for them.
SIDE_ROW, LITTLE, GROUPS_PER_UNIT = 64, 1 << 16, 4
KEPT_BYTES = 12  # that a group has for each element of a row that lies in pieces, several at a time

MANY_MEMBERS = 64  # more than this a group does not take in

# Values that a kernel of a group has at most where they share no more than a few numbers, and how
# large maps are of which that holds.
SIBLINGS, LARGE_MAP = 6, 1 << 16


class Legality:
    """What is asked before a value joins a group of those that there are so far.

    `sums` are sums of products. `known` are answers about alignment from before: the same is asked
    whenever a graph is grouped anew. `strides` are those of leaves.
    """

    def __init__(
        self,
        grouping: Grouping,
        target: Target,
        sums: Container[Value],
        known: dict[Any, bool],
        strides: dict[Value, Shape],
    ) -> None:
        self.grouping, self.target = grouping, target
        self.sums, self.known, self.strides = sums, known, strides
        # layouts that serve for asking at which places values are read
        self.anywhere = {x: (0,) * len(x.shape) for x in grouping.in_memory}

    def find_host(
        self, group: FusionGroup, v: Value, needs: set[FusionGroup]
    ) -> FusionGroup | None:
        """The group that a value joins, which alone would be this one and need those; None where it
        stays alone."""
        if v.kind in ATTENTION:
            return self._companion(v)
        if self.target.block_size and v.kind in ("view", "concat") and v.size:
            placed = self._placed(v)
            if placed is not None:
                return placed
        if group.kind != "loop" or v.size == 0 or size_of(group.space) == 0:
            return None
        producers = self.grouping.producers(v)
        candidates = sorted(producers, key=lambda g: -g.position)
        if v in self.sums:  # a product comes before a sum of others
            candidates.sort(key=lambda g: len(g.members) > 1)
        shared = [
            g
            for g in self.grouping.by_space.get(group.space, ())[-8:]
            if g not in producers and self._akin(g, group, v)
        ]
        for host in [*candidates, *reversed(shared)]:
            if (
                self.may_join(host, group, v, producers)
                and not self._delays(host, v, needs)
                and self.aligned(host, group, v)
            ):
                return host
        return None

    def may_join(
        self, host: FusionGroup, group: FusionGroup, v: Value, producers: set[FusionGroup]
    ) -> bool:
        """Whether a value, by itself a group, may be computed by the host's kernel: over the same
        space or rows, and without a group that waits for itself."""
        if (host.kind != "loop" and host.kind not in EPILOGUE_KINDS) or size_of(host.space) == 0:
            return False
        # nothing the newcomer needs may itself wait for the host
        for p in producers:
            if p is not host and host in self.grouping.needs[p]:
                return False
        if len(host.members) > MANY_MEMBERS:
            return False
        if host.kind in EPILOGUE_KINDS:
            return v.kind != "reduce" and group.space == host.space and v.op != "copy"
        if v.kind == "reduce":
            if group.space != host.space:
                return False
            if any(m.kind == "reduce" for m in host.members):
                if group.axes != host.axes:
                    return False
                return self.rows_fit(group) or not self._depends(v, host)
            # a reduction over a map that is also stored: fine where rows are the parallel unit
            return True
        if host.axes:
            if group.space == host.space:
                return self.rows_fit(host) or not self._depends(v, host)
            return group.space == host.outer
        return group.space == host.space

    def rows_fit(self, group: FusionGroup) -> bool:
        """Whether rows may have several stages."""
        rows = size_of(group.outer)
        room = room_for_rows(self.target)
        enough = self.target.num_cores if room else ENOUGH_ROWS
        large = rows * SIDE_ROW < size_of(group.space) > LITTLE
        if room and large and self._side_by_side(group):
            return rows >= enough * self.target.block_size * GROUPS_PER_UNIT
        kept = size_of(group.space) * KEPT_BYTES <= rows * self.target.shared_bytes
        if room and large and _in_pieces(group) and not kept:
            return False
        return rows >= enough or size_of(group.space) <= rows * max(SHORT_ROW, room)

    def _side_by_side(self, group: FusionGroup) -> bool:
        """Whether neighbours in memory belong to different rows."""
        total = next(m for m in group.members if m.kind == "reduce")
        key = (total, frozenset(self.grouping.read_by[total]), group.axes)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._lie_beside(group, total.inputs[0])
        return found

    def _lie_beside(self, group: FusionGroup, source: Value) -> bool:
        memory = self.grouping.in_memory
        probe = Emitter({x: self.strides.get(x) or row_major(x.shape) for x in memory})
        names = [probe.variable(f"p{i}", probe.dim(n)) for i, n in enumerate(group.space)]
        probe.value(source, index_of(source.shape, names))
        touched = accesses(probe)
        near = [unit_weight(touched, name) for name in names]
        along = max(near[i] for i in group.axes)
        return any(n > along for i, n in enumerate(near) if i not in group.axes)

    def _depends(self, v: Value, host: FusionGroup) -> bool:
        """Whether v reads a reduction of the host (directly or through other members)."""
        inside = set(host.members)
        read = walk(v.inputs, lambda x: x in inside or x not in self.grouping.in_memory)
        return any(x in inside and x.kind == "reduce" for x in read)

    def _delays(self, host: FusionGroup, v: Value, needs: set[FusionGroup]) -> bool:
        """Whether a group would have to wait for larger ones if v joined it, though others can do
        with what it has already: such as those larger ones' own next stages.
        """
        size = size_of(host.space)
        new = needs - self.grouping.needs[host] - {host}
        if all(size_of(n.space) <= size for n in new):
            return False
        readers = {r for m in host.members for r in self.grouping.readers.get(m, ())}
        readers -= {v, *host.members}
        return any(v not in self.grouping.read_by[r] for r in readers)

    def aligned(self, host: FusionGroup, group: FusionGroup, v: Value) -> bool:
        """Whether v reads the host's members only at the point (or row) it is computed for."""
        axes = host.axes, group.axes
        key = (v, frozenset(self.grouping.read_by[v]), tuple(host.members), axes)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._is_aligned(host, group, v)
        return found

    def _is_aligned(self, host: FusionGroup, group: FusionGroup, v: Value) -> bool:
        probe = Emitter(self.anywhere)
        names = [ir.var(f"p{i}") for i in range(len(host.space))]
        for name, n in zip(names, host.space, strict=True):
            probe.extents[name] = probe.dim(n)
        axes = host.axes or group.axes
        rows = [x for i, x in enumerate(names) if i not in axes]
        at_full = group.space == host.space
        elsewhere: list[Value] = []  # members that are read at another place than their own

        def watch(m: Value, expected: Index) -> None:
            def known(index: Index) -> object:
                if index != expected:
                    elsewhere.append(m)
                if not m.dtype.is_complex:
                    return ir.scalar(f"m{m.id}", m.dtype)
                return tuple(ir.scalar(f"m{m.id}{p}", dt.real_of(m.dtype)) for p in "ri")

            probe.bindings[m] = known

        def is_full(m: Value) -> bool:
            return m.kind != "reduce" and squeeze(m.shape) == host.space

        for m in host.members:
            everywhere = is_full(m) or (host.kind in EPILOGUE_KINDS and m.kind != "reduce")
            watch(m, index_of(m.shape, names if everywhere else rows))
        # what is there once a row reads no element of it
        read = self.grouping.read_by[v]
        if host.axes and not at_full and any(is_full(m) for m in host.members if m in read):
            return False
        source = v.inputs[0] if v.kind == "reduce" or v.op == "copy" else v
        index = index_of(source.shape, names if at_full else rows)
        saved = probe.layouts.pop(v, None)  # what is asked is how it is computed, not loaded
        probe.value(source, index)
        if saved is not None:
            probe.layouts[v] = saved
        return not elsewhere

    def _akin(self, host: FusionGroup, group: FusionGroup, v: Value) -> bool:
        """Whether a group reads something that another reads too. Where threads keep what they work
        on in registers, a few numbers in common do not make one kernel of many large maps."""
        common = self.grouping.reads[host] & self.grouping.read_by[v]
        if not self.target.block_size or size_of(group.space) < LARGE_MAP:
            return bool(common)
        return any(x.size > 1 for x in common) or (bool(common) and len(host.members) < SIBLINGS)

    def _companion(self, v: Value) -> FusionGroup | None:
        """The group whose kernel computes this part of attention along with its own."""
        needs = self.grouping.producers(v)
        for g in reversed(self.grouping.groups):
            first = g.members[0]
            if g.kind != v.kind or first.params.causal != v.params.causal:
                continue
            if any(g in self.grouping.needs[n] for n in needs if n is not g):
                continue
            if v.op == "attention_grad":
                fits = first.inputs == v.inputs
            else:
                fits = first.op == "attention_lse" and first in v.inputs and len(g.members) == 1
            if fits:
                return g
        return None

    def _placed(self, v: Value) -> FusionGroup | None:
        """The group of attention whose kernels store this as well as, or instead of, what it is a
        view or a concatenation of (`placing.py`)."""
        sources = [source_of(x)[0] for x in (v.inputs if v.op == "concat" else (v,))]
        homes = {self.grouping.home.get(x) for x in sources}
        if len(homes) != 1 or len(set(sources)) < len(sources):
            return None
        (found,) = homes
        return found if found is not None and found.kind in ATTENTION else None


def _in_pieces(group: FusionGroup) -> bool:
    """Whether rows are reduced over axes between which there are others."""
    return bool(group.axes) and max(group.axes) - min(group.axes) >= len(group.axes)
