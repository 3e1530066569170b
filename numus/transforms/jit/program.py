"""Programs of traced graphs: one compiled plan; segments around control flow; across devices, the
graph built and evaluated anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from numus.compiler.hooks import before_run
from numus.evaluation.evaluate import evaluate
from numus.graph import Node, Nodes, Storage, View, grad_mode
from numus.lru import LruTable
from numus.primitives.control import Effect, Started
from numus.primitives.source import constant, placeholder, value
from numus.runtime.devices import Device, default
from numus.shapes import Shape
from numus.transforms.subgraph import Recipe, reachable

Views = Sequence[View]
Numbers = Sequence[Any]
Run = Callable[[Views, Numbers], list[View]]

_MAX_LAYOUTS = 64  # of the inputs of a program


class Program:
    """A traced graph between inputs, scalars and outputs; `in_place`: numbers of an input and of an
    output that replaces it. `effects` are computed as well, for what computing them does."""

    def __init__(
        self,
        outputs: Nodes,
        inputs: Nodes,
        scalars: Nodes,
        in_place: Sequence[Any] = (),
        effects: Nodes = (),
    ) -> None:
        self._in_place = in_place
        order = _between((*outputs, *effects), (*inputs, *scalars))
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
        self._order = _between(made, (*self._inputs, *self._scalars))
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
            segments = Segments(self._order, self._inputs, self._scalars, self._outputs)
            return lambda views, numbers: segments.run(self.device, views, numbers)
        # Imported late: the compiler is needed only to run something.
        from numus.compiler.graph.signature import GraphSignature
        from numus.compiler.traced_plan import TracedPlan

        graph = GraphSignature.traced(self._outputs, self._inputs, layout, self._scalars)
        scalars = len(self._scalars)
        plan = TracedPlan(self.device, graph, self._outputs, self._inputs, scalars, self._in_place)
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
        storages = [Storage(block) for block in plan.run(addresses, numbers, donated)]
        found, count = [], len(views)
        for source, block, offset, strides in plan.outputs:
            if source is None:
                found.append(View(storages[block], offset, strides))
            else:  # an input, or a part of it
                known = self._constant_views[source - count] if source >= count else views[source]
                found.append(View(known.storage.copy(), known.offset + offset, strides))
        return found


class Segments:
    """A graph with control flow: programs and calls alternately."""

    def __init__(self, order: Nodes, inputs: Nodes, scalars: Nodes, outputs: Nodes) -> None:
        self._inputs, self._scalars, self._outputs = list(inputs), scalars, list(outputs)
        self._steps: list[tuple[Program, list[Node], list[Node], Node | None]] = []
        self._users: dict[Node, list[Node]] = {}
        for node in order:
            for x in node.inputs:
                self._users.setdefault(x, []).append(node)
        known = dict.fromkeys(inputs)
        self._elements: dict[Node, list[Node]] = {}
        for whole in [x for x in order if x.prim.name == "call"]:
            self._add(list(whole.inputs), known, set(outputs), whole)
            self._elements[whole] = self._users.get(whole, [])
            known.update(dict.fromkeys(self._elements[whole]))
        self._add(self._outputs, known, set(), None)
        self._dead_after = self._last_uses()

    def _last_uses(self) -> list[list[Node]]:
        """For each step the values that are dead after it."""
        live = set(self._outputs)
        dead: list[list[Node]] = []
        for _, inputs, outputs, whole in reversed(self._steps):
            here = {*inputs, *outputs}
            if whole is not None:
                here |= {*whole.inputs, *self._elements[whole]}
            dead.append([x for x in here if x not in live])
            live |= here
        return dead[::-1]

    def _add(
        self, wanted: Nodes, known: dict[Node, None], final: set[Node], whole: Node | None
    ) -> None:
        """A program for the wanted values, and for those it computes that are used later."""
        made = dict.fromkeys(_between(wanted, (*known, *self._scalars)))
        later = [x for x in made if x in final or not made.keys() >= {*self._users.get(x, ())}]
        outputs = list(dict.fromkeys([*(x for x in wanted if x not in known), *later]))
        read = {x for node in made for x in node.inputs}
        inputs = [x for x in known if x in read]
        self._steps.append((Program(outputs, inputs, self._scalars), inputs, outputs, whole))
        known.update(dict.fromkeys(outputs))

    def run(self, device: Any, views: Views, numbers: Numbers) -> list[View]:
        known = _Values(zip(self._inputs, views, strict=True))
        given = operands = found = None  # a step keeps nothing of the last one alive
        for (program, inputs, outputs, whole), dead in zip(
            self._steps, self._dead_after, strict=True
        ):
            if outputs:
                given = [known[x] for x in inputs]
                run = program.runner(tuple([view.strides for view in given]))
                known.update(zip(outputs, run(given, numbers), strict=True))
            if whole is not None:
                operands = [value(known[x], x.shape, x.dtype, device) for x in whole.inputs]
                if isinstance(whole.params, Effect):
                    known.defer(whole.params.start(device, operands), self._elements[whole])
                else:
                    found = whole.params.run(device, operands)
                    for element in self._elements[whole]:
                        known[element] = found[element.params]
            given = operands = found = None
            for x in dead:
                known.drop(x)
        known.finish()
        return [known[y] for y in self._outputs]


class _Values(dict[Node, View]):
    """The values of a program that are known; those of effects are waited for when they are read,
    so that what lies between is computed meanwhile."""

    def __init__(self, values: Iterable[tuple[Node, View]]) -> None:
        super().__init__(values)
        self._under_way: dict[Node, Started] = {}

    def defer(self, started: Started, elements: Nodes) -> None:
        self._under_way.update(dict.fromkeys(elements, started))

    def __missing__(self, x: Node) -> View:
        self._arrive(self._under_way[x])
        return self[x]

    def _arrive(self, started: Started) -> None:
        found = started.views()
        for x in [x for x, other in self._under_way.items() if other is started]:
            del self._under_way[x]
            self[x] = found[x.params]

    def drop(self, x: Node) -> None:
        """Forget a value that is not used any more; one that is under way, when it has arrived."""
        if x not in self._under_way:
            self.pop(x, None)

    def finish(self) -> None:
        """Wait for all effects."""
        for started in list(dict.fromkeys(self._under_way.values())):
            self._arrive(started)


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


def _between(outputs: Nodes, inputs: Nodes) -> list[Node]:
    """The abstract nodes that the outputs depend on, inputs first."""
    known = set(inputs)
    return reachable(outputs, lambda n: n.abstract and n not in known)
