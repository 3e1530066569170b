"""Execution plans: kernels, launch order and memory of a graph, cached by its structure.

The first evaluation of a structure compiles it; the next costs a traversal of the graph, a look-up
and the launches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

from numus import ir
from numus.compiler.fused_graph import FusedGraph
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.cost_model import computed_values, flops, nbytes
from numus.compiler.graph.signature import GraphSignature
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.hoisting import Hoisted
from numus.compiler.hooks import after_run, before_run, on_clear_plans
from numus.compiler.launch_plan import LaunchArguments, LaunchPlan, Layout, ScheduledPlan
from numus.compiler.lower.dedup import LoweringCache
from numus.compiler.plan_template import structure_of
from numus.compiler.schedule import memory_plan
from numus.compiler.schedule import order as kernel_order
from numus.compiler.schedule.in_place import BufferAccesses, in_place_pairs
from numus.compiler.schedule.order import reads, writes
from numus.compiler.schedule.rematerialize import (
    Liveness,
    Steps,
    arithmetic,
    pack_one_operand,
    rematerialize,
    traffic,
)
from numus.compiler.schedule.tuning import TUNING
from numus.kernels.vendor.registry import kernel_choice_key
from numus.lru import LruTable

_MAX_PLANS = 512


class Plan(ScheduledPlan):
    """The plan of a fused graph: its groups lowered, ordered, and given memory."""

    group_of_step: list[FusionGroup]
    in_place: list[list[tuple[Value, Value]]]

    def __init__(self, device: Any, fused: FusedGraph) -> None:
        self.runtime = device.runtime
        target = self.runtime.target
        # workers that need scratch memory of the arena; GPU blocks have their own
        self.workers = 0 if target.block_size else target.num_cores
        ir.new_build()
        self.leaf_strides, self.groups, self._donated = (
            fused.leaf_strides,
            fused.groups,
            fused.donated,
        )
        self.leaf_count = len(fused.leaves)
        self.saved_for_backward = fused.saved_for_backward
        self._compile(fused)
        self._assign_memory(fused.leaves, {view.base for view in fused.views})
        self.outputs = [(self.slot[view.base], (view.offset, view.strides)) for view in fused.views]
        self._prepare(self._launch_arguments())

    def _compile(self, fused: FusedGraph) -> None:
        """Lower, schedule, and compile the kernels."""
        in_memory, leaves = fused.in_memory, fused.leaves
        layouts = fused.memory_layouts()
        groups = [group for group in self.groups if any(v.size for v in group.stored)]
        lower = LoweringCache(layouts, self.runtime, fused.equal_groups)
        self._captured, self._changing = fused.captured, fused.changing
        self._schedule(groups, layouts, lower, {*fused.roots, *leaves}, {*in_memory, *leaves})
        self.programs = self.runtime.compile_all([step.kernel for step in self.steps])
        for step, program in zip(self.steps, self.programs, strict=True):
            step.kernel = program.kernel  # plans of one structure share kernels

    def _schedule(
        self,
        groups: list[FusionGroup],
        layouts: Layouts,
        lower: LoweringCache,
        external: set[Value],
        in_memory: set[Value],
    ) -> None:
        """Lower the groups; order their kernels in waves. `external` values are not temporaries."""
        self.jobs = jobs = [lower(group) for group in groups]

        def temporary(v: Value) -> int:
            return 0 if v in external else nbytes(v)

        order = kernel_order.order(jobs, temporary, self._donated)
        steps = [(step, groups[i]) for i in order for step in jobs[i]]
        hoisted = Hoisted(steps, self._captured, external, self._changing)
        external |= hoisted.offset.keys()
        once = [step for i, step in enumerate(steps) if i in hoisted.steps]
        steps = [step for i, step in enumerate(steps) if i not in hoisted.steps]
        self.hoisted, self.hoisted_bytes = hoisted.offset, hoisted.nbytes
        self.hoisted_steps = len(once)
        steps = self._lower_peak(steps, temporary, lower, layouts, in_memory, external)
        self.steps, self.group_of_step, self.in_place, self.waves = [], [], [], []
        fusion: Any = None
        if self.runtime.target.dependent_launch:
            from numus.compiler.schedule.horizontal import HorizontalFusion  # late: for GPUs only

            fusion = HorizontalFusion(self.runtime.target)
        # equal layers share kernels
        accesses_of = functools.cache(BufferAccesses)
        for part in (once, steps):
            in_place = [
                in_place_pairs(step, group.stored, external, accesses_of)
                if self._overwrites
                else []
                for step, group in part
            ]
            found = kernel_order.waves(
                *([step for step, _ in part], temporary, in_place, self._donated, self.workers)
            )
            for wave in found:
                launches = [[n] for n in range(len(wave))]
                if fusion is not None:
                    launches = fusion.partition([part[i][0] for i in wave])
                for numbers in launches:
                    together = [wave[n] for n in numbers]
                    step, group = part[together[0]]
                    if len(together) > 1:
                        step = fusion.join([part[i][0] for i in together])
                        group = FusionGroup.union([part[i][1] for i in together])
                    self.steps.append(step)
                    self.group_of_step.append(group)
                    self.in_place.append([pair for i in together for pair in in_place[i]])
                self.waves.append(len(launches))  # steps that may run concurrently

    def _lower_peak(
        self,
        steps: Steps,
        temporary: Callable[[Value], int],
        lower: LoweringCache,
        layouts: Layouts,
        in_memory: set[Value],
        external: set[Value],
    ) -> Steps:
        """The steps, with less packed ahead and with recomputed values, where many bytes live."""
        target = self.runtime.target
        ignored = target.l2_bytes
        if target.simt:
            ignored = int(target.memory_bytes) // TUNING.remat_memory_fraction
        if (target.simt and not ignored) or not self._may_exceed(ignored, steps, temporary):
            return steps
        analyse = partial(Liveness, temporary, self.workers)
        if target.simt:
            if self._overwrites:
                accesses_of = functools.cache(BufferAccesses)
                analyse = partial(
                    analyse,
                    in_place=lambda step, group: in_place_pairs(
                        step, group.stored, external, accesses_of
                    ),
                )
            moved = sum(nbytes(v) for step, _ in steps for v in reads(step) | writes(step))
            budget = moved // TUNING.remat_traffic_fraction
            return rematerialize(steps, analyse, lower, ignored, layouts, budget, traffic)
        groups = [group for group in self.groups if any(v.size for v in group.stored)]
        total = sum(flops(computed_values(group.members, in_memory)) for group in groups)
        steps = pack_one_operand(steps, analyse, lower, ignored)
        budget = total // TUNING.remat_flops_fraction
        return rematerialize(steps, analyse, lower, ignored, layouts, budget, arithmetic)

    def _may_exceed(self, peak: int, steps: Steps, temporary: Callable[[Value], int]) -> bool:
        """All temporaries together, and the most scratch memory, are more bytes than this."""
        buffers = {v for step, _ in steps for v in step.buffers}
        scratch = max([step.scratch_bytes(self.workers) for step, _ in steps], default=0)
        return sum(map(temporary, buffers)) + scratch > peak

    def _launch_arguments(self) -> Iterator[LaunchArguments]:
        wave = [(w, n > 0) for w, count in enumerate(self.waves) for n in range(count)]
        for step, program, (w, concurrent) in zip(self.steps, self.programs, wave, strict=True):
            yield LaunchArguments(
                program,
                step.grid,
                step.scalars,
                [(self.slot[v], self.offset.get(v, 0)) for v in step.buffers],
                [nbytes(v) for v in step.buffers],
                step.scratch,
                concurrent,
                self.scratch[w] if self.scratch else None,
            )

    def _assign_memory(self, leaves: list[Value], results: set[Value]) -> None:
        self.slot = {v: i for i, v in enumerate(leaves)}
        self.result_bytes = []
        for group in self.groups:
            for v in group.members:
                if v in group.stored and v in results and v not in self.slot:
                    self.slot[v] = len(leaves) + len(self.result_bytes)
                    self.result_bytes.append(nbytes(v))
        spaces = len(leaves) + len(self.result_bytes)
        self.slot.update(dict.fromkeys(self.hoisted, spaces))
        at = iter(zip(self.steps, self.in_place, strict=True))
        waves = [[next(at) for _ in range(count)] for count in self.waves]
        found = memory_plan.plan_memory(waves, self.slot.keys(), self.workers)
        self.arena, self.offset, self.scratch, self.scratch_bytes = found
        self.slot.update(dict.fromkeys(found.offset, spaces + bool(self.hoisted)))
        self.offset.update(self.hoisted)

    @property
    def _overwrites(self) -> bool:
        """Kernels may write over what they read; GPUs without dependent launches load their inputs
        as if these never changed."""
        target = self.runtime.target
        return not target.simt or target.dependent_launch

    def may_donate(
        self,
        leaf: int,
        output: int,
        accesses_of: Callable[[ir.Kernel], BufferAccesses] = BufferAccesses,
    ) -> bool:
        """An output may be written over a leaf: all readers of the leaf run before, or are the
        kernel that writes, element by element."""
        slot, _ = self.outputs[output]
        target = self.runtime.target
        if (
            slot < self.leaf_count
            or (target.simt and not (target.elides_copies or self._overwrites))
            or any(other == leaf for other, _ in self.outputs)
        ):
            return False
        wave = self._wave_of_step
        writes = [
            (i, at)
            for i, at in self._uses_of_slot.get(slot, ())
            if self.steps[i].kernel.buffers[at].access == "write"
        ]
        copiers = {
            i
            for i, _ in writes
            if (step := self.steps[i]).kernel.copies and self.slot[step.buffers[0]] == leaf
        }  # which do nothing in place
        if copiers and len(writes) > 1:
            writes = [(i, at) for i, at in writes if i not in copiers]
        if len(writes) != 1 or not (copiers or self._overwrites):
            return False
        ((writer, dest),) = writes
        for i, at in self._uses_of_slot.get(leaf, ()):
            if i in copiers or wave[i] < wave[writer]:
                continue
            if i != writer or not accesses_of(self.steps[i].kernel).may_overwrite(at, dest):
                return False
        return True

    @functools.cached_property
    def _wave_of_step(self) -> list[int]:
        return [i for i, count in enumerate(self.waves) for _ in range(count)]

    @functools.cached_property
    def _uses_of_slot(self) -> dict[int, list[tuple[int, int]]]:
        """The steps that use each slot, and the number of the buffer."""
        found: dict[int, list[tuple[int, int]]] = {}
        for i, step in enumerate(self.steps):
            for at, v in enumerate(step.buffers):
                found.setdefault(self.slot[v], []).append((i, at))
        return found


_plans: LruTable[Any, LaunchPlan] = LruTable(_MAX_PLANS)


def plan_of(device: Any, graph: GraphSignature, roots: Sequence[Any]) -> LaunchPlan:
    key = (device.name, kernel_choice_key(), graph.key)
    plan = _plans.get(key)
    if plan is None or (before_run and plan.__class__ is not Plan):  # hooks ask for its kernels
        plan = _plans[key] = _new_plan(device, graph, roots)
    return plan


def _new_plan(device: Any, graph: GraphSignature, roots: Sequence[Any]) -> LaunchPlan:
    """A plan, by a template of its structure where there is one."""
    runtime = device.runtime
    if runtime.target.simt:
        return Plan(device, FusedGraph(graph, roots, runtime.target))
    structure = structure_of(device, graph)
    match = structure.match(graph.numbers) or structure.record(graph, roots, runtime.target)
    if match is None:
        return Plan(device, FusedGraph(graph, roots, runtime.target))
    resized = None if before_run else match.resized_plan(runtime)
    if resized is not None:
        return resized
    plan = Plan(device, match.fused)
    match.keep_schedule(plan, runtime)
    return plan


def realize(
    device: Any,
    roots: Sequence[Any],
    run_standalone: Callable[[Any], None],
    known: GraphSignature | Literal[False] = False,
) -> list[tuple[Any, Any, Any, Layout]]:
    """Compute the roots and the other live-out nodes: each with the leaf it is a view of (or None),
    its memory and its layout. `run_standalone` evaluates a transfer, or a call's result; `known` is
    the roots' signature, of use unless somebody has evaluated nodes since it was computed."""
    if known and not known.is_pending:
        known.clear()  # it references nodes, and referenced nodes are live-out
        known = False
    graph = known or GraphSignature(roots)
    if graph.standalone:
        standalone = graph.standalone
        del graph
        for node in standalone:
            run_standalone(node)
        # the source of a transfer may have been part of this graph, or one of its roots
        return realize(device, [r for r in roots if r.view is None], run_standalone)
    plan = plan_of(device, graph, roots)
    leaves = graph.leaves
    for hook in before_run:
        hook(device, plan, leaves, graph.constants)
    memories = plan.run(leaves, graph.constants)
    for done in after_run:
        done()
    nodes = roots
    if graph.live_out or plan.saved_for_backward:
        nodes = [*roots, *[graph.nodes[i] for i in (*graph.live_out, *plan.saved_for_backward)]]
    count = len(leaves)
    return [
        (node, leaves[slot] if slot < count else None, memory, layout)
        for node, memory, (slot, layout) in zip(nodes, memories, plan.outputs, strict=True)
    ]


def clear_plans() -> None:
    """Drop all cached plans (kernels stay compiled)."""
    _plans.clear()
    for drop in on_clear_plans:
        drop()
