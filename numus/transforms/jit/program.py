"""Programs of traced graphs: one compiled plan; segments around control flow (`segments.py`);
across devices, the graph built and evaluated anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numus.compiler.hooks import after_run, before_run
from numus.evaluation.evaluate import evaluate
from numus.graph import Node, Nodes, Storage, View, grad_mode
from numus.lru import LruTable
from numus.primitives.source import constant, placeholder, value
from numus.runtime.devices import Device, default
from numus.shapes import Shape
from numus.transforms.jit.held_inputs import HeldInputs
from numus.transforms.subgraph import Recipe, reachable

Views = Sequence[View]
Numbers = Sequence[Any]
Run = Callable[[Views, Numbers], list[View]]

_MAX_LAYOUTS = 64  # of the inputs of a program


class Program:
    """A traced graph between inputs, scalars and outputs; `in_place`: numbers of an input and of an
    output that replaces it; `captured`: inputs that are mostly the same from call to call.
    `effects` are computed as well, for what computing them does."""

    def __init__(
        self,
        outputs: Nodes,
        inputs: Nodes,
        scalars: Nodes,
        in_place: Sequence[Any] = (),
        effects: Nodes = (),
        captured: Sequence[int] = (),
    ) -> None:
        self._in_place = in_place
        self._captured = captured
        order = between((*outputs, *effects), (*inputs, *scalars))
        _run_constant_calls([*outputs, *(x for node in order for x in node.inputs)])
        self.device = _only_device(order, inputs)
        self._recipe = Recipe(order, [*inputs, *scalars], [*outputs, *effects])
        # on placeholders, so that the values it was traced with are not kept alive
        self._inputs, self._scalars = (
            [placeholder(x.shape, x.dtype, x.device, "a program") for x in nodes]
            for nodes in (inputs, scalars)
        )
        with grad_mode(False):
            made = self._recipe.replay([*self._inputs, *self._scalars])
        self._order = between(made, (*self._inputs, *self._scalars))
        self._outputs = made[: len(outputs)]
        self.itemsizes = [x.dtype.itemsize for x in inputs]
        self._runners: LruTable[tuple[Shape, ...], Run] = LruTable(_MAX_LAYOUTS)

    def runner(self, layout: tuple[Shape, ...]) -> Run:
        """Computes the outputs from inputs of these strides, and numbers."""
        found = self._runners.get(layout)
        if found is None:
            found = self._runners[layout] = self._runner(layout)
        return found

    def _runner(self, layout: tuple[Shape, ...]) -> Run:
        if self.device is None:
            return self._run_as_graph
        if any(x.prim.name == "call" for x in self._order):
            from numus.transforms.jit.segments import SegmentedRun

            traced = self._inputs, self._scalars, self._outputs
            return SegmentedRun(self.device, self._order, *traced, self._in_place)
        # Imported late: the compiler is needed only to run something.
        from numus.compiler.graph.signature import GraphSignature
        from numus.compiler.traced_plan import TracedPlan

        graph = GraphSignature.traced(self._outputs, self._inputs, layout, self._scalars)
        scalars = len(self._scalars)
        plan = TracedPlan(
            *(self.device, graph, self._outputs, self._inputs, scalars),
            *(self._in_place, self._captured),
        )
        return CompiledRun(self, plan)

    def _values(self, views: Views, numbers: Numbers) -> tuple[list[Node], list[Node]]:
        """Inputs and scalars as nodes."""
        inputs = [
            value(view, x.shape, x.dtype, x.device or self.device or default.device)
            for view, x in zip(views, self._inputs, strict=True)
        ]
        return inputs, [constant(n, x.dtype) for n, x in zip(numbers, self._scalars, strict=True)]

    def notify_hooks(self, plan: Any, views: Views, numbers: Numbers) -> None:
        inputs, scalars = self._values(views, numbers)
        leaves, constants = [*inputs, *plan.constant_leaves], [*scalars, *plan.constants]
        for hook in before_run:
            hook(self.device, plan.plan, leaves, constants)

    def _run_as_graph(self, views: Views, numbers: Numbers) -> list[View]:
        """Across devices: build the graph on the inputs and evaluate it."""
        inputs, scalars = self._values(views, numbers)
        with grad_mode(False):
            found = self._recipe.replay([*inputs, *scalars])
        evaluate(found)
        views = [y.view for y in found[: len(self._outputs)] if y.view is not None]
        return [View(view.storage.copy(), view.offset, view.strides) for view in views]


class CompiledRun:
    """A program compiled for one layout of its inputs."""

    def __init__(self, program: Program, plan: Any) -> None:
        self._program = program
        self.plan = plan
        self._itemsizes = program.itemsizes
        self._constant_views = [x.view for x in plan.constant_leaves]
        self.held = HeldInputs(plan.captured)

    def __call__(
        self, views: Views, numbers: Numbers, donated: dict[int, Any] | None = None
    ) -> list[View]:
        plan = self.plan
        if before_run:
            self._program.notify_hooks(plan, views, numbers)
        addresses = [
            view.storage.memory.address + view.offset * size
            for view, size in zip(views, self._itemsizes, strict=True)
        ]
        hoisted = self.held.match(views)
        storages = [Storage(block) for block in plan.run(addresses, numbers, donated, hoisted)]
        for done in after_run:
            done()
        found, count = [], len(views)
        for source, block, offset, strides in plan.outputs:
            if source is None:
                found.append(View(storages[block], offset, strides))
            else:  # an input, or a part of it
                known = self._constant_views[source - count] if source >= count else views[source]
                found.append(View(known.storage.copy(), known.offset + offset, strides))
        return found


def _run_constant_calls(nodes: Nodes) -> None:
    """Run loops and branches of constants, once and for all."""
    pending = reachable(nodes, lambda n: not n.abstract and n.view is None)
    evaluate([n for n in pending if any(x.prim.name == "call" for x in n.inputs)])


def _only_device(order: Nodes, inputs: Nodes) -> Device | None:
    """The only device, if it has a compiler."""
    found = {n.device for n in (*order, *inputs) if n.device is not None}
    device = found.pop() if len(found) == 1 else None if found else default.device
    if device is None or device.kind == "reference":
        return None
    return None if any(n.prim.name == "transfer" for n in order) else device


def between(outputs: Nodes, inputs: Nodes) -> list[Node]:
    """The abstract nodes that the outputs depend on, inputs first."""
    known = set(inputs)
    return reachable(outputs, lambda n: n.abstract and n not in known)
