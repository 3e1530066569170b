"""Plans of traced graphs: compiled once, run many times on other inputs.

Where an evaluation computes its graph's signature to find a plan, a traced plan is given an address
per input and a number per scalar, and launches.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from numus.compiler.fused_graph import FusedGraph
from numus.compiler.graph.signature import GraphSignature
from numus.compiler.hoisting import hoistable
from numus.compiler.launch_plan import scalar_part
from numus.compiler.lower import autotune
from numus.compiler.plan import Plan
from numus.compiler.schedule.in_place import BufferAccesses
from numus.compiler.stored_fusion import fused_or_stored
from numus.garbage import collection_paused
from numus.kernels.vendor.registry import kernel_choice_key
from numus.lru import LruTable
from numus.runtime import contract
from numus.shapes import Shape, size_of

if TYPE_CHECKING:
    from numus.runtime.pycall.builder import BytecodeBuilder


class Output(NamedTuple):
    """Where a result lies: in an input's memory, or in one of the result blocks of a run."""

    input: int | None
    block: int
    offset: int  # in elements
    strides: Shape


_MAX_PLANS = 512
_plans: LruTable[Any, TracedPlan] = LruTable(_MAX_PLANS)


def cached_plan(
    device: Any,
    outputs: Sequence[Any],
    inputs: Sequence[Any],
    strides: Sequence[Shape],
    in_place: Sequence[tuple[int, int]] = (),
    captured: Sequence[int] = (),
) -> TracedPlan:
    """A plan without scalars, cached by structure: for loop bodies, which are traced repeatedly."""
    graph = GraphSignature.traced(outputs, inputs, strides, ())
    if len(graph.leaves) > len(inputs):  # the structure does not identify constants in memory
        return TracedPlan(device, graph, outputs, inputs, 0, in_place, captured)
    choices = tuple(in_place), tuple(captured)
    key = (device.name, kernel_choice_key(), graph.key, graph.constant_bits, choices)
    found = _plans.get(key)
    if found is None:
        found = TracedPlan(device, graph, outputs, inputs, 0, in_place, captured)
        _plans[key] = found
    return found


class TracedPlan:
    """The plan of a traced graph for one device and one layout of its inputs.

    Args:
        scalars: the first constants of the graph, given for each run.
        in_place: pairs of an input and an output, by number, best written to its memory.
        captured: inputs, by number, that are mostly the same from run to run.
    """

    def __init__(
        self,
        device: Any,
        graph: GraphSignature,
        outputs: Sequence[Any],
        inputs: Sequence[Any],
        scalars: int = 0,
        in_place: Sequence[tuple[int, int]] = (),
        captured: Sequence[int] = (),
    ) -> None:
        pairs = [(inputs[source], outputs[at]) for source, at in in_place]
        target = device.runtime.target
        if target.simt:  # GEMMs of GPUs read weights in place
            captured = ()
        sizes = [(i, size_of(inputs[i].shape) * inputs[i].dtype.itemsize) for i in captured]
        known = hoistable(sizes)
        with collection_paused(), autotune.repeated():
            fused = fused_or_stored(
                graph,
                [(graph.number[old], graph.number[new]) for old, new in pairs],
                target,
                lambda: FusedGraph(graph, outputs, target, pairs, captured=known, changing=scalars),
            )
            self.plan = plan = Plan(device, fused)
        # the inputs that hoisted values are computed from, if there are any
        self.captured = known if plan.hoisted_bytes else []
        self._hoisted: contract.Memory | None = None
        self.constant_leaves = graph.leaves[len(inputs) :]  # captured constants, in memory
        self.constants = graph.constants[scalars:]
        self._constant_addresses = [
            n.view.storage.memory.address + n.view.offset * n.dtype.itemsize
            for n in self.constant_leaves
        ]
        self.block_sizes = plan.result_bytes
        self._strides = graph.leaf_strides[: len(inputs)]
        self._arena = plan.arena
        self._allocate = plan.runtime.allocate
        self.first_block = first = len(graph.leaves)  # the slot of the first result block
        self.outputs = [
            Output(slot if slot < first else None, slot - first, *layout)
            for slot, layout in plan.outputs
        ]
        self._values = values = list(plan.values)
        changing = []
        self._scalar_parts = []
        for at, which, part in plan.scalar_patches:
            if which < scalars:
                changing.append(at)
                self._scalar_parts.append((which, part))
            else:
                values[at] = scalar_part(graph.constants[which].params, part)
        self._launch: contract.BoundLaunch | None = None
        self._launch_rest: contract.BoundLaunch | None = None  # without the hoisted kernels
        self._rest_values = values[plan.hoisted_values :]
        if plan.prepared is not None:
            self._launch = plan.prepared.bind_values(values, changing)
        if plan.rest is not None:
            own = [at - plan.hoisted_values for at in changing]
            self._launch_rest = plan.rest.bind_values(self._rest_values, own)

    def block(self, at: int) -> int:
        """The slot of an output's block among those that `repeat` is given."""
        return self.first_block + self.outputs[at].block

    def repeat(
        self,
        addresses: list[int],
        blocks: Sequence[int],
        count: int,
        steps: Sequence[tuple[int, int]],
        swaps: Sequence[tuple[int, int]],
        flag: Any = None,
        ahead: bool = False,
    ) -> int:
        """Run up to `count` times on inputs and result blocks at these addresses.

        Hoisted kernels run once, before the others, into memory of this call. After each run some
        slots' addresses advance by some bytes (`steps`), and some pairs are swapped. `flag` is the
        memory of a bool among the results: the first run that clears it is the last; a further one
        may begin `ahead` of that. Returns the number of runs.
        """
        addresses += self._constant_addresses
        addresses += blocks
        hoisted = self._allocate(self.plan.hoisted_bytes) if self.captured else None
        temporary = self._allocate(self._arena) if self._arena else None
        addresses += [memory.address for memory in (hoisted, temporary) if memory is not None]
        launches, values = self.plan.prepared, self._values
        if launches is None:  # nothing to compute: results of size 0
            return count
        if self.plan.rest is not None and count > 0:
            once = self.plan.prepare_hoisted()
            once.run(addresses, values[: self.plan.hoisted_values])
            launches, values = self.plan.rest, self._rest_values
        about = (count, steps, swaps, flag, self.plan.runtime, ahead)
        done: int = launches.repeat(values, addresses, *about)
        return done

    def _hoisted_memory(self) -> contract.Memory:
        """Memory of the hoisted values, which lives as long as the plan."""
        if self._hoisted is None:
            self._hoisted = self._allocate(self.plan.hoisted_bytes)
        return self._hoisted

    def call_builder(self, hoisted: bool = False) -> BytecodeBuilder | None:
        """A fast call around the launches, without addresses; None where unsupported. `hoisted`:
        without the kernels that have run already."""
        plan = self.plan
        launches = plan.rest if hoisted else plan.prepared
        if launches is None or self._scalar_parts:
            return None
        fixed = list(enumerate(self._constant_addresses, len(self._strides)))
        if self.captured:
            slot = self.first_block + len(self.block_sizes)
            fixed.append((slot, self._hoisted_memory().address))
        values = self._rest_values if hoisted else self._values
        code: BytecodeBuilder | None = launches.call_builder(values, fixed, self._arena or None)
        return code

    def donatable(self, pairs: Sequence[tuple[int, int]]) -> dict[int, int]:
        """Which pairs of a contiguous input and an output may share memory: the input by the
        output's block, each at most once."""
        found: dict[int, int] = {}
        accesses_of = functools.cache(BufferAccesses)  # equal layers share kernels
        for source, output in pairs:
            where, block, offset, strides = self.outputs[output]
            if (
                where is None
                and offset == 0
                and strides == self._strides[source]
                and block not in found
                and source not in found.values()
                and self.plan.may_donate(source, output, accesses_of)
            ):
                found[block] = source
        return found

    def run(
        self,
        addresses: list[int],
        numbers: Sequence[Any],
        donated: dict[int, Any] | None = None,
        hoisted: bool = False,
    ) -> list[Any]:
        """Launch on inputs at these addresses; returns the result blocks, some `donated`.
        `hoisted`: without the kernels whose results an earlier run has left."""
        if self._constant_addresses:
            addresses += self._constant_addresses
        allocate = self._allocate
        blocks = []
        for i, nbytes in enumerate(self.block_sizes):
            block = allocate(nbytes) if donated is None or i not in donated else donated[i]
            blocks.append(block)
            addresses.append(block.address)
        launch = self._launch_rest if hoisted else self._launch
        if launch is None:
            return blocks
        if self.captured:
            addresses.append(self._hoisted_memory().address)
        if self._arena:
            temporary = allocate(self._arena)
            addresses.append(temporary.address)
        launch(addresses, [scalar_part(numbers[i], part) for i, part in self._scalar_parts])
        return blocks
