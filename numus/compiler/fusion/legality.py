"""Fusion legality: groups whose kernel can also compute a value, by probing the emitter."""

from __future__ import annotations

import functools
from collections.abc import Container, Mapping
from typing import Any

from numus import ir
from numus.compiler.fusion.group import EPILOGUE_KINDS, FusionGroup, Partition, index_of, squeeze
from numus.compiler.fusion.tuning import TUNING
from numus.compiler.graph.cost_model import EXPENSIVE_OPS
from numus.compiler.graph.strided_view import bijective_views
from numus.compiler.graph.value import ATTENTION, Layouts, Value, walk
from numus.compiler.lower.affine import accesses, unit_stride_count
from numus.compiler.lower.emitter import Index, IndexProbe, unknown
from numus.compiler.lower.grid_sync import max_cooperative_row
from numus.shapes import Shape, row_major, size_of
from numus.target import Target

MAX_SIBLINGS_TRIED = 8  # groups of one space that read a common input


class Legality:
    """Fusion checks against the groups of a partition so far.

    `gemm_sums` are sums of GEMMs, `row_products` products with one vector; `piece` numbers the
    pieces of long expressions, which share no kernel; `picked` elements have kernels to themselves;
    `strides` are those of leaves. `cache` keeps the answers of probes, which are asked again
    whenever a graph is partitioned anew.
    """

    def __init__(
        self,
        partition: Partition,
        target: Target,
        gemm_sums: Container[Value],
        piece: Mapping[Value, int],
        cache: dict[Any, bool],
        strides: Layouts,
        row_products: Container[Value] = (),
        picked: Container[Value] = (),
    ) -> None:
        self.partition, self.target = partition, target
        self.gemm_sums, self.piece, self.cache, self.strides = gemm_sums, piece, cache, strides
        self.row_products, self.picked = row_products, picked
        # dummy layouts: probes ask at which indices values are read, not where in memory
        self.probe_layouts = {x: (0,) * len(x.shape) for x in partition.in_memory}

    def find_host(
        self, group: FusionGroup, v: Value, needs: set[FusionGroup]
    ) -> FusionGroup | None:
        """The group to fuse a value into; alone it would be `group` and depend on `needs`."""
        if v.kind in ATTENTION:
            return self._attention_sibling(v)
        if v in self.row_products:
            return self._product_sibling(group, v, needs)
        if self.target.block_size and v.kind in ("view", "concat") and v.size:
            producer = self._attention_output_view(v)
            if producer is not None:
                return producer
        if group.kind != "loop" or v.size == 0 or size_of(group.space) == 0:
            return None
        producers = self.partition.producers(v)
        candidates = sorted(producers, key=lambda g: -g.position)
        if v in self.gemm_sums:  # a GEMM comes before a sum of others
            candidates.sort(key=lambda g: len(g.members) > 1)
        siblings = [
            g
            for g in self.partition.by_space.get(group.space, ())[-MAX_SIBLINGS_TRIED:]
            if g not in producers and self._shares_inputs(g, group, v)
        ]
        for host in [*candidates, *reversed(siblings)]:
            if (
                self.can_fuse(host, group, v, producers)
                and not self._delays_consumers(host, v, needs)
                and self.reads_pointwise(host, group, v)
            ):
                return host
        return None

    def can_fuse(
        self, host: FusionGroup, group: FusionGroup, v: Value, producers: set[FusionGroup]
    ) -> bool:
        """The host's kernel can compute a value: over the same space or rows, without a cycle."""
        if (host.kind != "loop" and host.kind not in EPILOGUE_KINDS) or size_of(host.space) == 0:
            return False
        for p in producers:
            if p is not host and host in self.partition.ancestors[p]:
                return False
        if self._is_full(host, v) or self._is_other_piece(host, v):
            return False
        if v in self.picked or any(m in self.picked for m in host.members):
            return False
        if host.kind in EPILOGUE_KINDS:
            return v.kind != "reduce" and group.space == host.space and v.op != "copy"
        if v.kind == "reduce":
            if group.space != host.space:
                return False
            if any(m.kind == "reduce" for m in host.members):
                if group.axes != host.axes:
                    return False
                return self.allows_stages(group) or not self._depends(v, host)
            # a reduction over a pointwise value that is also stored: rows run in parallel
            return True
        if host.axes:
            if group.space == host.space:
                return self.allows_stages(host) or not self._depends(v, host)
            return group.space == host.outer
        return group.space == host.space

    def _is_full(self, host: FusionGroup, v: Value) -> bool:
        """The host's code would be too long with a value."""
        if len(host.members) > TUNING.max_members:
            return True
        expensive = sum([m.op in EXPENSIVE_OPS for m in host.members])
        return expensive >= TUNING.max_expensive_members and v.op in EXPENSIVE_OPS

    def _is_other_piece(self, host: FusionGroup, v: Value) -> bool:
        """The host computes another piece of the long expression that a value belongs to."""
        own = self.piece.get(v)
        if own is None:
            return False
        pieces = {self.piece.get(m) for m in host.members} - {None}
        return bool(pieces) and own not in pieces

    def allows_stages(self, group: FusionGroup) -> bool:
        """Rows may have several stages: they are enough to run in parallel, or fit on chip."""
        rows, size = size_of(group.outer), size_of(group.space)
        cooperative = max_cooperative_row(self.target)
        enough = self.target.num_cores if cooperative else TUNING.multistage_min_rows
        large = rows * TUNING.column_min_row < size > TUNING.column_min_elements
        if cooperative and large and self._is_column_reduction(group):
            return rows >= enough * self.target.block_size * TUNING.column_blocks_per_sm
        tall = not self.target.block_size and size > rows * TUNING.multistage_max_column
        if tall and self._is_column_reduction(group):
            return False
        in_shared = size * TUNING.strided_row_bytes <= rows * self.target.shared_bytes
        if cooperative and large and _has_axis_gaps(group) and not in_shared:
            return False
        return rows >= enough or size <= rows * max(TUNING.multistage_max_row, cooperative)

    def _is_column_reduction(self, group: FusionGroup) -> bool:
        """Adjacent elements in memory belong to different rows."""
        total = next(m for m in group.members if m.kind == "reduce")
        key = (total, frozenset(self.partition.operands[total]), group.axes)
        if key not in self.cache:
            self.cache[key] = self._probe_column_reduction(group, total.inputs[0])
        return self.cache[key]

    def _probe_column_reduction(self, group: FusionGroup, source: Value) -> bool:
        probe = IndexProbe(self._strided)
        names = [probe.variable(f"p{i}", probe.dim(n)) for i, n in enumerate(group.space)]
        probe.value(source, index_of(source.shape, names))
        found = accesses(probe)
        unit_strides = [unit_stride_count(found, name) for name in names]
        along_rows = max(unit_strides[i] for i in group.axes)
        return any(n > along_rows for i, n in enumerate(unit_strides) if i not in group.axes)

    @functools.cached_property
    def _strided(self) -> dict[Value, Shape]:
        """Layouts of all values in memory."""
        memory = self.partition.in_memory
        return {x: self.strides.get(x) or row_major(x.shape) for x in memory}

    def _depends(self, v: Value, host: FusionGroup) -> bool:
        """v reads a reduction of the host, directly or through other members."""
        members = set(host.members)
        read = walk(v.inputs, lambda x: x in members or x not in self.partition.in_memory)
        return any(x in members and x.kind == "reduce" for x in read)

    def _delays_consumers(self, host: FusionGroup, v: Value, needs: set[FusionGroup]) -> bool:
        """With v, the host would wait for larger groups, though some of its consumers do without
        v: such as those larger groups' own next stages."""
        size = size_of(host.space)
        new = needs - self.partition.ancestors[host] - {host}
        if all(size_of(n.space) <= size for n in new):
            return False
        users = {r for m in host.members for r in self.partition.users.get(m, ())}
        users -= {v, *host.members}
        return any(v not in self.partition.operands[r] for r in users)

    def reads_pointwise(self, host: FusionGroup, group: FusionGroup, v: Value) -> bool:
        """v reads the host's members only at the point (or row) it is computed for."""
        axes = host.axes, group.axes
        key = (v, frozenset(self.partition.operands[v]), tuple(host.members), axes)
        if key not in self.cache:
            self.cache[key] = self._probe_pointwise(host, group, v)
        return self.cache[key]

    def _probe_pointwise(self, host: FusionGroup, group: FusionGroup, v: Value) -> bool:
        probe = IndexProbe(self.probe_layouts)
        names = [ir.var(f"p{i}") for i in range(len(host.space))]
        for name, n in zip(names, host.space, strict=True):
            probe.extents[name] = probe.dim(n)
        axes = host.axes or group.axes
        rows = [x for i, x in enumerate(names) if i not in axes]
        at_full = group.space == host.space
        misread: list[Value] = []  # members read at another index than their own

        def watch(m: Value, expected: Index) -> None:
            def read(index: Index) -> object:
                if index != expected:
                    misread.append(m)
                return unknown(f"m{m.id}", m.dtype)

            probe.bindings[m] = read

        def is_full(m: Value) -> bool:
            return m.kind != "reduce" and squeeze(m.shape) == host.space

        for m in host.members:
            everywhere = is_full(m) or (host.kind in EPILOGUE_KINDS and m.kind != "reduce")
            watch(m, index_of(m.shape, names if everywhere else rows))
        # a value of each row reads no element of it
        read = self.partition.operands[v]
        if host.axes and not at_full and any(is_full(m) for m in host.members if m in read):
            return False
        source = v.inputs[0] if v.kind == "reduce" or v.op == "copy" else v
        index = index_of(source.shape, names if at_full else rows)
        saved = probe.layouts.pop(v, None)  # probed as computed, not as loaded
        probe.value(source, index)
        if saved is not None:
            probe.layouts[v] = saved
        return not misread

    def _shares_inputs(self, host: FusionGroup, group: FusionGroup, v: Value) -> bool:
        """A group and a value read a common input. On GPUs, a few scalars in common do not make one
        kernel of many large pointwise results, which would need more registers."""
        common = self.partition.reads[host] & self.partition.operands[v]
        if not self.target.block_size or size_of(group.space) < TUNING.large_pointwise_elements:
            return bool(common)
        has_room = len(host.members) < TUNING.max_scalar_siblings
        return any(x.size > 1 for x in common) or (bool(common) and has_room)

    def _product_sibling(
        self, group: FusionGroup, v: Value, needs: set[FusionGroup]
    ) -> FusionGroup | None:
        """The group of products with the same vector, of matrices of the same shape."""
        from numus.compiler.lower.matmul.row_products import are_siblings  # late: for GPUs only

        memory = self.partition.operands
        for g in reversed(self.partition.by_space.get(group.space, ())):
            computed = memory.get(g.members[0], set()) - self.strides.keys()
            if (
                g not in needs
                and all(m in self.row_products for m in g.members)
                and memory[v] - self.strides.keys() == computed
                and are_siblings([*g.members, v])
            ):
                return g
        return None

    def _attention_sibling(self, v: Value) -> FusionGroup | None:
        """The group whose kernel also computes this output of attention."""
        needs = self.partition.producers(v)
        for g in reversed(self.partition.groups):
            first = g.members[0]
            if g.kind != v.kind or first.params.causal != v.params.causal:
                continue
            if any(g in self.partition.ancestors[n] for n in needs if n is not g):
                continue
            if v.op == "attention_grad":
                fits = first.inputs == v.inputs
            else:
                fits = first.op == "attention_lse" and first in v.inputs and len(g.members) == 1
            if fits:
                return g
        return None

    def _attention_output_view(self, v: Value) -> FusionGroup | None:
        """The attention group whose epilogue stores this view or concatenation of its outputs
        (`lower/output_views.py`)."""
        sources = [bijective_views(x)[0] for x in (v.inputs if v.op == "concat" else (v,))]
        producers = {self.partition.group_of.get(x) for x in sources}
        if len(producers) != 1 or len(set(sources)) < len(sources):
            return None
        (found,) = producers
        return found if found is not None and found.kind in ATTENTION else None


def _has_axis_gaps(group: FusionGroup) -> bool:
    """Rows are reduced over axes that are not adjacent."""
    return bool(group.axes) and max(group.axes) - min(group.axes) >= len(group.axes)
