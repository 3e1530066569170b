"""Execution plans: kernels, launch order and memory of a graph, cached by its structure.

The first evaluation of a structure compiles it; the next costs a traversal of the graph, a look-up
and the launches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from numus import ir
from numus.compiler.fused_graph import FusedGraph
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.cost_model import computed_values, flops, nbytes
from numus.compiler.graph.signature import GraphSignature
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.hooks import before_run, on_clear_plans
from numus.compiler.lower.dedup import LoweringCache
from numus.compiler.lower.emitter import Kernels
from numus.compiler.plan_template import fuse
from numus.compiler.schedule import memory_plan
from numus.compiler.schedule import order as kernel_order
from numus.compiler.schedule.in_place import BufferAccesses, in_place_pairs
from numus.compiler.schedule.rematerialize import (
    Liveness,
    Steps,
    pack_one_operand,
    rematerialize,
)
from numus.kernels.vendor.registry import kernel_choice_key
from numus.lru import LruTable
from numus.runtime import contract
from numus.shapes import Shape, row_major

Layout = tuple[int, Shape]  # offset and strides in elements

_MAX_PLANS = 512


class Plan:
    """Launches and memory of one graph structure.

    Memory slots are numbered: first the leaves, then the results (one each), then the arena of
    temporaries.
    """

    def __init__(self, device: Any, fused: FusedGraph) -> None:
        self.runtime: contract.Runtime[Any] = device.runtime
        target = self.runtime.target
        # workers that need scratch memory of the arena; GPU blocks have their own
        self._workers = 0 if target.block_size else target.num_cores
        ir.new_build()
        self.leaf_strides, self.groups, self._donated = (
            fused.leaf_strides,
            fused.groups,
            fused.donated,
        )
        self.saved_for_backward = fused.saved_for_backward
        self._compile(fused)
        self._assign_memory(fused.leaves, {view.base for view in fused.views})
        self.outputs: list[tuple[int, Layout]] = [
            (self.slot[view.base], (view.offset, view.strides)) for view in fused.views
        ]
        self._prepare()

    def _compile(self, fused: FusedGraph) -> None:
        """Lower, schedule, and compile the kernels."""
        in_memory, leaves = fused.in_memory, fused.leaves
        layouts = {**self.leaf_strides, **{v: row_major(v.shape) for v in in_memory}}
        groups = [group for group in self.groups if any(v.size for v in group.stored)]
        lower = LoweringCache(layouts, self.runtime, fused.equal_groups)
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
        jobs = [lower(group) for group in groups]

        def temporary(v: Value) -> int:
            return 0 if v in external else nbytes(v)

        order = kernel_order.order(jobs, temporary, self._donated)
        steps = [(step, groups[i]) for i in order for step in jobs[i]]
        ignored_peak = self.runtime.target.l2_bytes
        if self._workers and self._may_exceed(ignored_peak, steps, temporary):
            analyse = partial(Liveness, temporary, self._workers)
            total = sum(flops(computed_values(group.members, in_memory)) for group in groups)
            steps = pack_one_operand(steps, analyse, lower, ignored_peak)
            steps = rematerialize(steps, analyse, lower, ignored_peak, layouts, total)
        in_place = [in_place_pairs(step, group.stored, external) for step, group in steps]
        found = kernel_order.waves(
            *([step for step, _ in steps], temporary, in_place, self._donated, self._workers)
        )
        self.steps: Kernels = [steps[i][0] for wave in found for i in wave]
        self.group_of_step: list[FusionGroup] = [steps[i][1] for wave in found for i in wave]
        self.in_place = [in_place[i] for wave in found for i in wave]
        self.waves = [len(wave) for wave in found]  # numbers of steps that may run concurrently

    def _may_exceed(self, peak: int, steps: Steps, temporary: Callable[[Value], int]) -> bool:
        """All temporaries together, and the most scratch memory, are more bytes than this."""
        buffers = {v for step, _ in steps for v in step.buffers}
        scratch = max([step.scratch_bytes(self._workers) for step, _ in steps], default=0)
        return sum(map(temporary, buffers)) + scratch > peak

    def _prepare(self) -> None:
        """Prepare the launches, so that a run only fills in addresses and constants."""
        self.values: list[Any] = []
        # scalars that a run fills in: (position in values, constant, part)
        self.scalar_patches: list[tuple[int, int, str]] = []
        self.launches: list[contract.LaunchStep] = []
        self.allocations = [*self.result_bytes, *([self.arena] if self.arena else [])]
        self.slot_count = len(self.leaf_strides) + len(self.allocations)
        wave = [(w, n > 0) for w, count in enumerate(self.waves) for n in range(count)]
        for step, program, (w, concurrent) in zip(self.steps, self.programs, wave, strict=True):
            self.values.append(step.grid)
            for s in step.scalars:
                if s.__class__ is tuple:
                    self.scalar_patches.append((len(self.values), *s))
                    s = 0
                self.values.append(s)
            buffers: list[tuple[int, int] | None]
            buffers = [(self.slot[v], self.offset.get(v, 0)) for v in step.buffers]
            buffers += [None] * len(step.scratch)
            pitch = 0
            if step.scratch and self.scratch:
                start, pitch = self.scratch[w]
                for i, size in enumerate(step.scratch, len(step.buffers)):
                    buffers[i] = (self.slot_count - 1, start)
                    start += memory_plan.aligned(size)
            sizes = [nbytes(v) for v in step.buffers]
            self.launches.append(
                contract.LaunchStep(program, buffers, sizes, step.scratch, concurrent, pitch)
            )
        self.prepared = (
            self.runtime.prepare(self.launches, self.slot_count) if self.launches else None
        )

    def single_launches(self) -> list[Callable[..., None]]:
        """Each kernel by itself, for timing."""
        alone = [dataclasses.replace(launch, concurrent=False) for launch in self.launches]
        return [self.runtime.prepare([launch], self.slot_count).run for launch in alone]

    def _assign_memory(self, leaves: list[Value], results: set[Value]) -> None:
        self.slot: dict[Value, int] = {v: i for i, v in enumerate(leaves)}
        self.result_bytes: list[int] = []
        for group in self.groups:
            for v in group.members:
                if v in group.stored and v in results and v not in self.slot:
                    self.slot[v] = len(leaves) + len(self.result_bytes)
                    self.result_bytes.append(nbytes(v))
        at = iter(zip(self.steps, self.in_place, strict=True))
        waves = [[next(at) for _ in range(count)] for count in self.waves]
        found = memory_plan.plan_memory(waves, self.slot.keys(), self._workers)
        self.arena, self.offset, self.scratch, self.scratch_bytes = found
        self.slot.update(dict.fromkeys(found.offset, len(leaves) + len(self.result_bytes)))

    def may_donate(self, leaf: int, output: int) -> bool:
        """An output may be written over a leaf: all readers of the leaf run before, or are the
        kernel that writes, element by element."""
        slot, _ = self.outputs[output]
        if (
            slot < len(self.leaf_strides)
            or self.runtime.target.block_size
            or any(other == leaf for other, _ in self.outputs)
        ):
            return False
        wave = [i for i, count in enumerate(self.waves) for _ in range(count)]
        writes = [
            (i, at)
            for i, step in enumerate(self.steps)
            for at, v in enumerate(step.buffers)
            if self.slot[v] == slot and step.kernel.buffers[at].access == "write"
        ]
        if len(writes) != 1:
            return False
        ((writer, dest),) = writes
        for i, step in enumerate(self.steps):
            for at, v in enumerate(step.buffers):
                if self.slot[v] != leaf or wave[i] < wave[writer]:
                    continue
                if i != writer or not BufferAccesses(step.kernel).may_overwrite(at, dest):
                    return False
        return True

    def arguments(
        self, leaves: Sequence[Any], constants: Sequence[Any]
    ) -> tuple[list[Any], list[int], list[Any]]:
        """Memory of every slot, its addresses, and the scalars of a run."""
        memories = []
        addresses = []
        for n in leaves:
            view = n.view
            memory = view.storage.memory
            memories.append(memory)
            addresses.append(memory.address + view.offset * n.dtype.itemsize)
        allocate = self.runtime.allocate
        for size in self.allocations:
            memory = allocate(size)
            memories.append(memory)
            addresses.append(memory.address)
        values = self.values
        if self.scalar_patches:
            values = values.copy()
            for at, constant, part in self.scalar_patches:
                values[at] = scalar_part(constants[constant].params, part)
        return memories, addresses, values

    def run(self, leaves: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        """Launch; returns the memory of each output."""
        memories, addresses, values = self.arguments(leaves, constants)
        if self.prepared is not None:
            self.prepared.run(addresses, values)
        return [memories[slot] for slot, _ in self.outputs]


def scalar_part(number: Any, part: str) -> Any:
    """A constant as a kernel's scalar: whole, or the real or imaginary part."""
    if part == "whole":
        return int(number) if number.__class__ is bool else number
    number = complex(number)
    return number.real if part == "real" else number.imag


_plans: LruTable[Any, Plan] = LruTable(_MAX_PLANS)


def plan_of(device: Any, graph: GraphSignature, roots: Sequence[Any]) -> Plan:
    key = (device.name, kernel_choice_key(), graph.key)
    plan = _plans.get(key)
    if plan is None:
        plan = _plans[key] = Plan(device, fuse(device, graph, roots))
    return plan


def realize(
    device: Any, roots: Sequence[Any], run_standalone: Callable[[Any], None]
) -> list[tuple[Any, Any, Any, Layout]]:
    """Compute the roots and the other live-out nodes: each with the leaf it is a view of (or None),
    its memory and its layout. `run_standalone` evaluates a transfer, or a call's result."""
    graph = GraphSignature(roots)
    if graph.standalone:
        standalone = graph.standalone
        del graph  # it references nodes, and referenced nodes are live-out
        for node in standalone:
            run_standalone(node)
        # the source of a transfer may have been part of this graph, or one of its roots
        return realize(device, [r for r in roots if r.view is None], run_standalone)
    plan = plan_of(device, graph, roots)
    leaves = graph.leaves
    for hook in before_run:
        hook(device, plan, leaves, graph.constants)
    memories = plan.run(leaves, graph.constants)
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
