"""Programs: the pending graph as launches and a memory plan, kept by structure.

The first evaluation of a structure is compiled: simplified, fused, lowered. The second costs a walk
over the graph, a look-up and the launches.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from numus import ir
from numus.compiler.fusion.fuser import Fuser
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph import approx_math, cost_model
from numus.compiler.graph.builder import GraphBuilder
from numus.compiler.graph.signature import GraphSignature
from numus.compiler.graph.value import Value
from numus.compiler.hooks import on_clear_plans, watchers
from numus.compiler.lower.dedup import Lowering
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.schedule import memory_plan, rematerialize
from numus.compiler.schedule import order as kernel_order
from numus.compiler.schedule.in_place import Places, takeovers
from numus.kernels.vendor.registry import rules
from numus.runtime import contract
from numus.shapes import Shape, reshape_strides, row_major

Layout = tuple[int, Shape]  # offset and strides in elements

_MAX_PLANS = 2048


class Plan:
    """What to launch for one structure, and where its values live.

    Memory is numbered: first the leaves, then results (one each), then the arena, in which values
    that nobody keeps follow each other. `replaced`: pairs of a leaf and a root that is best written
    in its place.
    """

    def __init__(
        self,
        place: Any,
        pending: Any,
        roots: Sequence[Any],
        replaced: Sequence[tuple[Any, Any]] = (),
    ) -> None:
        self.runtime: contract.Runtime[Any] = place.runtime
        target = self.runtime.target
        # that need scratch memory of the program's; groups of threads have their own
        self._workers = 0 if target.block_size else target.num_cores
        ir.new_build()
        local = GraphBuilder()
        vals: list[Value] = []
        leaf_vals: list[Value] = []
        leaves, constants = set(pending.leaves), {n: i for i, n in enumerate(pending.constants)}
        for node in pending.nodes:
            if node in leaves:
                val = local.make("leaf", "leaf", (), (len(leaf_vals),), node.shape, node.dtype)
                leaf_vals.append(val)
            elif node in constants:
                params = (pending.classes[constants[node]], constants[node])
                val = local.make("constant", "source", (), params, (), node.dtype)
            else:
                inputs = tuple(vals[pending.number[x]] for x in node.inputs)
                val = local.make(
                    node.prim.name, node.prim.kind, inputs, node.params, node.shape, node.dtype
                )
            vals.append(val)
        self.leaf_strides = dict(zip(leaf_vals, pending.leaf_strides, strict=True))
        wanted = [vals[pending.number[r]] for r in roots] + [vals[i] for i in pending.kept]
        bases = [_base(v, self.leaf_strides) for v in wanted]
        base = {v: b for v, (b, _) in zip(wanted, bases, strict=True)}
        self._replaced = {
            base[vals[pending.number[new]]]: vals[pending.number[old]] for old, new in replaced
        }
        approx_math.mark(local.values, wanted, self.runtime.target)
        self._fuse([b for b, _ in bases if b not in self.leaf_strides], leaf_vals)
        # What has to be in memory anyway is kept for the gradients that may ask for it.
        done = {*pending.kept, *(pending.number[r] for r in roots)}
        self.spared = tuple(
            i for i in pending.tracked if i not in done and vals[i] in self.in_memory
        )
        bases += [(vals[i], (0, row_major(vals[i].shape))) for i in self.spared]
        self._place(leaf_vals, {b for b, _ in bases})
        self.outputs: list[tuple[int, Layout]] = [(self.slot[b], layout) for b, layout in bases]
        self._prepare()

    def _fuse(self, roots: list[Value], leaves: list[Value]) -> None:
        """Groups of the values, and the programs of their kernels."""
        fuser = Fuser(roots, self.leaf_strides, self.runtime.target)
        self.groups: list[FusionGroup] = fuser.run()
        layouts: dict[Value, Shape] = dict(self.leaf_strides)
        for group in self.groups:
            for v in group.stored:
                layouts[v] = row_major(v.shape)
        self.in_memory = {v for group in self.groups for v in group.stored}
        groups = [group for group in self.groups if any(v.size for v in group.stored)]
        self._schedule(groups, layouts, {*roots, *leaves}, {*self.in_memory, *leaves})
        self.programs = contract.compile_all(self.runtime, [step.kernel for step in self.steps])
        for step, program in zip(self.steps, self.programs, strict=True):
            step.kernel = program.kernel  # plans of one structure hold one kernel

    def _schedule(
        self,
        groups: list[FusionGroup],
        layouts: dict[Value, Shape],
        held: set[Value],
        own: set[Value],
    ) -> None:
        """The kernels of the groups, in the order and the waves in which they run. What is `held`
        is there before or after; `own` is in memory at some time."""
        lower = Lowering(layouts, self.runtime)
        jobs = [lower(group) for group in groups]

        def temporary(v: Value) -> int:
            return 0 if v in held else v.size * v.dtype.itemsize

        order = kernel_order.order(jobs, temporary, self._replaced)
        steps = [(step, groups[i]) for i in order for step in jobs[i]]
        if self._workers:
            least = self.runtime.target.l2_bytes  # what fits there is not worth any time

            def scratch(step: LoweredKernel) -> int:
                return step.scratch_bytes(self._workers)

            total = sum(cost_model.flops(cost_model.inside(group.members, own)) for group in groups)
            steps = rematerialize.frugal(steps, temporary, scratch, lower, least)
            steps = rematerialize.recomputed(
                steps, temporary, scratch, lower, layouts, total, least
            )
        takes = [takeovers(step, group.stored, held) for step, group in steps]
        found = kernel_order.waves(
            *([step for step, _ in steps], temporary, takes, self._replaced, self._workers)
        )
        self.steps: list[LoweredKernel] = [steps[i][0] for wave in found for i in wave]
        self.group_of_step: list[FusionGroup] = [steps[i][1] for wave in found for i in wave]
        self.takeovers = [takes[i] for wave in found for i in wave]
        self.waves = [len(wave) for wave in found]  # steps that may run at the same time, in order

    def _prepare(self) -> None:
        """Lay out the launches, so that a run only fills in addresses and constants."""
        self.values: list[Any] = []
        self.holes: list[tuple[int, int, str]] = []  # (place in values, constant, part)
        self.calls: list[contract.ProgramStep] = []
        self.blocks = [*self.result_bytes, *([self.arena] if self.arena else [])]
        self.slots = len(self.leaf_strides) + len(self.blocks)
        wave = [(w, n > 0) for w, count in enumerate(self.waves) for n in range(count)]
        for step, program, (w, joins) in zip(self.steps, self.programs, wave, strict=True):
            self.values.append(step.grid)
            for s in step.scalars:
                if s.__class__ is tuple:
                    self.holes.append((len(self.values), *s))
                    s = 0
                self.values.append(s)
            places: list[tuple[int, int] | None]
            places = [(self.slot[v], self.offset.get(v, 0)) for v in step.buffers]
            places += [None] * len(step.scratch)
            pitch = 0
            if step.scratch and self.scratch:
                start, pitch = self.scratch[w]
                for i, nbytes in enumerate(step.scratch, len(step.buffers)):
                    places[i] = (self.slots - 1, start)
                    start += memory_plan.aligned(nbytes)
            sizes = [v.size * v.dtype.itemsize for v in step.buffers]
            self.calls.append(
                contract.ProgramStep(program, places, sizes, step.scratch, joins, pitch)
            )
        self.prepared = self.runtime.prepare(self.calls, self.slots) if self.calls else None

    def single_launches(self) -> list[Callable[..., None]]:
        """Each kernel by itself, for timing."""
        alone = [dataclasses.replace(call, joins=False) for call in self.calls]
        return [self.runtime.prepare([call], self.slots).run for call in alone]

    def _place(self, leaves: list[Value], results: set[Value]) -> None:
        """Give every value in memory a place; temporaries share theirs when their lives allow."""
        self.slot: dict[Value, int] = {v: i for i, v in enumerate(leaves)}
        self.result_bytes: list[int] = []
        for group in self.groups:
            for v in group.members:
                if v in group.stored and v in results and v not in self.slot:
                    self.slot[v] = len(leaves) + len(self.result_bytes)
                    self.result_bytes.append(v.size * v.dtype.itemsize)
        at = iter(zip(self.steps, self.takeovers, strict=True))
        waves = [[next(at) for _ in range(count)] for count in self.waves]
        found = memory_plan.place(waves, self.slot.keys(), self._workers)
        self.arena, self.offset, self.scratch, self.scratch_bytes = found
        self.slot.update(dict.fromkeys(found.offset, len(leaves) + len(self.result_bytes)))

    def may_take_over(self, leaf: int, output: int) -> bool:
        """Whether an output may be written to the memory of a leaf: all that reads the leaf has run
        by then, or is the kernel that writes, element by element.
        """
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
                if i != writer or not Places(step.kernel).may_overwrite(at, dest):
                    return False
        return True

    def arguments(
        self, leaves: Sequence[Any], constants: Sequence[Any]
    ) -> tuple[list[Any], list[int], list[Any]]:
        """Memory for every slot, its addresses, and the values of a launch."""
        memories = []
        addresses = []
        for n in leaves:
            view = n.view
            memory = view.storage.memory
            memories.append(memory)
            addresses.append(memory.address + view.offset * n.dtype.itemsize)
        allocate = self.runtime.allocate
        for nbytes in self.blocks:
            memory = allocate(nbytes)
            memories.append(memory)
            addresses.append(memory.address)
        values = self.values
        if self.holes:
            values = values.copy()
            for at, constant, part in self.holes:
                values[at] = number_part(constants[constant].params, part)
        return memories, addresses, values

    def run(self, leaves: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        """Launch, and give the memory of each output."""
        memories, addresses, values = self.arguments(leaves, constants)
        if self.prepared is not None:
            self.prepared.run(addresses, values)
        return [memories[slot] for slot, _ in self.outputs]


def number_part(number: Any, part: str) -> Any:
    """What a kernel's scalar takes of a constant: all of it, or one part of a complex number."""
    if part == "whole":
        return int(number) if number.__class__ is bool else number
    number = complex(number)
    return number.real if part == "real" else number.imag


def _base(v: Value, leaf_strides: dict[Value, Shape]) -> tuple[Value, Layout]:
    """The value to store for a wanted one, and how the wanted one lies in it.

    Reshapes and permutations of something that is computed anyway need no kernel of their own.
    """
    chain: list[Value] = []
    x = v
    while x.op in ("reshape", "permute"):
        chain.append(x)
        x = x.inputs[0]
    while True:
        if x in leaf_strides and not chain:
            return x, (0, leaf_strides[x])
        if x not in leaf_strides:
            strides: Shape | None = row_major(x.shape)
            shape = x.shape
            for view in reversed(chain):
                assert strides is not None
                if view.op == "permute":
                    strides = tuple(strides[a] for a in view.params)
                else:
                    strides = reshape_strides(shape, strides, view.shape)
                    if strides is None:
                        break
                shape = view.shape
            if strides is not None:
                return x, (0, strides)
        x = chain.pop()


_plans: OrderedDict[Any, Plan] = OrderedDict()


def plan_of(place: Any, pending: GraphSignature, roots: Sequence[Any]) -> Plan:
    """The plan for a pending graph on a device."""
    key = (place.name, rules(), pending.key)
    plan = _plans.get(key)
    if plan is None:
        plan = _plans[key] = Plan(place, pending, roots)
        if len(_plans) > _MAX_PLANS:
            _plans.popitem(last=False)
    return plan


def realise(
    place: Any, roots: Sequence[Any], settle: Callable[[Any], None]
) -> list[tuple[Any, Any, Any, Layout]]:
    """Compute the roots, and what else is kept: the node, the leaf it is a view of (or None), its
    memory and its layout. `settle` makes a transfer from another device.
    """
    pending = GraphSignature(roots)
    if pending.transfers:
        transfers = pending.transfers
        del pending  # it holds nodes, of which those that others hold are kept
        for node in transfers:
            settle(node)
        # what a transfer stands on may have been part of this graph, or one of its roots
        return realise(place, [r for r in roots if r.view is None], settle)
    plan = plan_of(place, pending, roots)
    leaves = pending.leaves
    if watchers:
        for watch in watchers:
            watch(place, plan, leaves, pending.constants)
    memories = plan.run(leaves, pending.constants)
    nodes = roots
    if pending.kept or plan.spared:
        nodes = [*roots, *[pending.nodes[i] for i in (*pending.kept, *plan.spared)]]
    count = len(leaves)
    return [
        (node, leaves[slot] if slot < count else None, memory, layout)
        for node, memory, (slot, layout) in zip(nodes, memories, plan.outputs, strict=True)
    ]


def clear_plans() -> None:
    """Forget every plan (kernels stay compiled)."""
    _plans.clear()
    for drop in on_clear_plans:
        drop()
