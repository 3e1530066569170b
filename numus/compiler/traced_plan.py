"""A traced graph, compiled once to be run many times on other inputs.

Where an evaluation walks its graph to find out what it is, a replay knows: it is given one address
for each input and one number for each scalar, and starts the launches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from numus.compiler.graph.builder import number_class
from numus.compiler.plan import Plan, scalar_part
from numus.kernels.vendor.registry import rules
from numus.runtime import contract
from numus.shapes import Shape


class Output(NamedTuple):
    """Where a result lies: in an input's memory, or in one of the blocks that a run returns."""

    input: int | None
    block: int
    offset: int  # in elements
    strides: Shape


class TracedGraph:
    """A graph between inputs and outputs, numbered, as a `Plan` takes it."""

    def __init__(
        self,
        outputs: Sequence[Any],
        inputs: Sequence[Any],
        strides: Sequence[Shape],
        scalars: Sequence[Any],
    ) -> None:
        self.nodes: list[Any] = []
        self.number: dict[Any, int] = {}
        self.leaves = list(inputs)
        self.leaf_strides = list(strides)
        self.constants = list(scalars)
        self.classes: list[int | None] = [None] * len(scalars)
        self.kept: tuple[int, ...] = ()
        self.tracked: tuple[int, ...] = ()
        for node in (*inputs, *scalars):
            self._add(node)
        stack = list(outputs)
        while stack:
            node = stack[-1]
            if node in self.number:
                stack.pop()
                continue
            if node.view is None:
                waiting = [x for x in node.inputs if x not in self.number]
                if waiting:
                    stack += waiting
                    continue
            stack.pop()
            if node.view is not None:
                self.leaves.append(node)
                self.leaf_strides.append(node.view.strides)
            elif node.prim.name == "constant":
                self.constants.append(node)
                self.classes.append(number_class(node.params))
            self._add(node)

    def _add(self, node: Any) -> None:
        self.number[node] = len(self.nodes)
        self.nodes.append(node)

    def key(self, outputs: Sequence[Any]) -> Any:
        """What is the same for graphs of the same structure."""
        leaves, constants = set(self.leaves), {n: i for i, n in enumerate(self.constants)}
        parts: list[Any] = []
        for node in self.nodes:
            if node in leaves:
                parts.append((node.shape, node.dtype))
            elif node in constants:
                parts.append((node.dtype, self.classes[constants[node]], node.params))
            else:
                inputs = [self.number[x] for x in node.inputs]
                parts.append((node.prim.name, node.params, node.shape, node.dtype, *inputs))
        return (tuple(parts), tuple(self.leaf_strides), tuple(self.number[y] for y in outputs))


_MAX_REPLAYS = 512
_replays: OrderedDict[Any, Replay] = OrderedDict()


def cached(
    place: Any, outputs: Sequence[Any], inputs: Sequence[Any], strides: Sequence[Shape]
) -> Replay:
    """A replay without scalars, kept by structure: of bodies, which are traced again and again."""
    graph = TracedGraph(outputs, inputs, strides, ())
    if len(graph.leaves) > len(inputs):  # constants in memory are not told apart by structure
        return Replay(place, outputs, inputs, strides, ())
    key = (place.name, rules(), graph.key(outputs))
    found = _replays.get(key)
    if found is None:
        found = _replays[key] = Replay(place, outputs, inputs, strides, ())
        if len(_replays) > _MAX_REPLAYS:
            _replays.popitem(last=False)
    return found


class Replay:
    """What a traced graph became for one device and one layout of its inputs."""

    def __init__(
        self,
        place: Any,
        outputs: Sequence[Any],
        inputs: Sequence[Any],
        strides: Sequence[Shape],
        scalars: Sequence[Any],
        replaced: Sequence[tuple[int, int]] = (),
    ) -> None:
        graph = TracedGraph(outputs, inputs, strides, scalars)
        self.place = place
        pairs = [(inputs[source], outputs[at]) for source, at in replaced]
        self.plan = plan = Plan(place, graph, outputs, pairs)
        self.held = graph.leaves[len(inputs) :]  # constants of the function, in memory
        self.constants = graph.constants[len(scalars) :]
        self._fixed = [
            n.view.storage.memory.address + n.view.offset * n.dtype.itemsize for n in self.held
        ]
        self._sizes = plan.result_bytes
        self._strides = list(strides)
        self._arena = plan.arena
        self._allocate = plan.runtime.allocate
        self.outputs = [self._output(slot, layout, len(inputs)) for slot, layout in plan.outputs]
        self._values = values = list(plan.values)
        self._first = len(inputs) + len(self.held)
        changing = []
        self._parts = []
        for at, which, part in plan.scalar_patches:
            if which < len(scalars):
                changing.append(at)
                self._parts.append((which, part))
            else:
                values[at] = scalar_part(graph.constants[which].params, part)
        self._run: contract.LaunchFixed | None = None
        if plan.prepared is not None:
            self._run = contract.fixed(plan.prepared, values, changing)

    def _output(self, slot: int, layout: tuple[int, Shape], inputs: int) -> Output:
        count = inputs + len(self.held)
        return Output(slot if slot < count else None, slot - count, *layout)

    def block(self, at: int) -> int:
        """The slot of an output's block among those that `repeat` is given."""
        return self._first + self.outputs[at].block

    def repeat(
        self,
        addresses: list[int],
        blocks: Sequence[int],
        count: int,
        steps: Sequence[tuple[int, int]],
        swaps: Sequence[tuple[int, int]],
        flag: Any = None,
    ) -> int:
        """Run again and again, up to `count` times, on inputs and results at these addresses.

        After each run some slots' addresses move by so many bytes, and some pairs of slots change
        places. `flag` is the memory of a bool among the results: the first run that clears it is
        the last. Gives the number of runs.
        """
        addresses += self._fixed
        addresses += blocks
        temporary = self._allocate(self._arena) if self._arena else None
        if temporary is not None:
            addresses.append(temporary.address)
        if self.plan.prepared is None:  # nothing to compute: results of size 0
            return count
        return contract.repeat(
            *(self.plan.runtime, self.plan.prepared, self._values, addresses),
            *(count, steps, swaps, flag),
        )

    def table(self) -> Any:
        """The beginnings of a native call, in which the addresses of the inputs are missing and
        those of the blocks (which follow at `first_block`); None where there can be none.
        """
        begin = getattr(self.plan.prepared, "table", None)
        if begin is None or self._parts:
            return None
        inputs = len(self._strides)
        fixed = [(inputs + i, address) for i, address in enumerate(self._fixed)]
        return begin(self._values, fixed, self._arena or None)

    @property
    def first_block(self) -> int:
        """The slot of the first block of results."""
        return self._first

    @property
    def block_sizes(self) -> list[int]:
        return self._sizes

    def taken_over(self, wishes: Sequence[tuple[int, int]]) -> dict[int, int]:
        """Of pairs of an input and an output, those that may share memory: the input by the block.

        Inputs are contiguous, and no block takes two.
        """
        found: dict[int, int] = {}
        for source, output in wishes:
            where, block, offset, strides = self.outputs[output]
            if (
                where is None
                and offset == 0
                and strides == self._strides[source]
                and block not in found
                and source not in found.values()
                and self.plan.may_donate(source, output)
            ):
                found[block] = source
        return found

    def run(
        self, addresses: list[int], numbers: Sequence[Any], given: dict[int, Any] | None = None
    ) -> list[Any]:
        """Launch on inputs at these addresses; gives the blocks that hold the results. Some of
        these may be `given`.
        """
        if self._fixed:
            addresses += self._fixed
        allocate = self._allocate
        blocks = []
        for i, nbytes in enumerate(self._sizes):
            block = allocate(nbytes) if given is None or i not in given else given[i]
            blocks.append(block)
            addresses.append(block.address)
        if self._run is None:
            return blocks
        if self._arena:
            temporary = allocate(self._arena)
            addresses.append(temporary.address)
        self._run(addresses, [scalar_part(numbers[i], part) for i, part in self._parts])
        return blocks
