"""Running what was traced: as one native program; across devices, by building its graph again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numus.compiler.hooks import before_run
from numus.evaluation.evaluate import evaluate
from numus.graph import Node, Storage, View, grad_mode
from numus.primitives.source import constant, placeholder, value
from numus.runtime.devices import Device, default
from numus.shapes import Shape
from numus.transforms.subgraph import Recipe

Run = Callable[[Sequence[View], Sequence[Any]], list[View]]


class Program:
    """A traced graph between inputs, scalars and outputs. `replaced`: pairs of an input and an
    output, by number, that is to take its place.
    """

    def __init__(
        self,
        outputs: Sequence[Node],
        inputs: Sequence[Node],
        scalars: Sequence[Node],
        replaced: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._replaced = replaced
        order = _between(outputs, (*inputs, *scalars))
        _settle_calls([*outputs, *(x for node in order for x in node.inputs)])
        self.place = _only_device(order, inputs)
        self._recipe = Recipe(order, [*inputs, *scalars], outputs)
        # the same graph on placeholders, so that the values it was traced with are not kept
        self._inputs, self._scalars = (
            [placeholder(x.shape, x.dtype, x.device, "a program") for x in nodes]
            for nodes in (inputs, scalars)
        )
        with grad_mode(False):
            self._outputs = self._recipe.replay([*self._inputs, *self._scalars])
        self._order = _between(self._outputs, (*self._inputs, *self._scalars))
        self.itemsizes = [x.dtype.itemsize for x in inputs]
        self._runners: dict[tuple[Shape, ...], Run] = {}

    def runner(self, layout: tuple[Shape, ...]) -> Run:
        """What computes the outputs from inputs of this layout, and numbers."""
        found = self._runners.get(layout)
        if found is None:
            found = self._runners[layout] = self._runner(layout)
        return found

    def _runner(self, layout: tuple[Shape, ...]) -> Run:
        if self.place is None:
            return self._rebuilt
        if any(x.prim.name == "call" for x in self._order):
            return self._in_segments()
        # Imported late: the compiler is needed only by those who run something.
        from numus.compiler.traced_plan import Replay

        replay = Replay(
            *(self.place, self._outputs, self._inputs, layout, self._scalars, self._replaced)
        )
        return Native(self, replay)

    def _in_segments(self) -> Run:
        """Loops and branches run by themselves, between programs for what lies between them."""
        segments = Segments(self._order, self._inputs, self._scalars, self._outputs)
        return lambda views, numbers: segments.run(self.place, views, numbers)

    def _constants(self, numbers: Sequence[Any]) -> list[Node]:
        return [constant(n, x.dtype) for n, x in zip(numbers, self._scalars, strict=True)]

    def _values(self, views: Sequence[View]) -> list[Node]:
        return [
            value(view, x.shape, x.dtype, x.device or self.place or default.device)
            for view, x in zip(views, self._inputs, strict=True)
        ]

    def show(self, replay: Any, views: Sequence[View], numbers: Sequence[Any]) -> None:
        """Let those who watch programs see this one."""
        leaves = [*self._values(views), *replay.held]
        constants = [*self._constants(numbers), *replay.constants]
        for watch in before_run:
            watch(self.place, replay.plan, leaves, constants)

    def _rebuilt(self, views: Sequence[View], numbers: Sequence[Any]) -> list[View]:
        """Across devices: the graph is built on the inputs, and evaluated as any other."""
        with grad_mode(False):
            found = self._recipe.replay([*self._values(views), *self._constants(numbers)])
        evaluate(found)
        views = [y.view for y in found if y.view is not None]
        return [View(view.storage.copy(), view.offset, view.strides) for view in views]


class Native:
    """A program for one layout of its inputs."""

    def __init__(self, program: Program, replay: Any) -> None:
        self._program = program
        self.replay = replay
        self._sizes = program.itemsizes
        self._held = [x.view for x in replay.held]

    def __call__(
        self,
        views: Sequence[View],
        numbers: Sequence[Any],
        given: dict[int, Any] | None = None,
    ) -> list[View]:
        replay = self.replay
        if before_run:
            self._program.show(replay, views, numbers)
        addresses = [
            view.storage.memory.address + view.offset * size
            for view, size in zip(views, self._sizes, strict=True)
        ]
        storages = [Storage(block) for block in replay.run(addresses, numbers, given)]
        found, count = [], len(views)
        for source, block, offset, strides in replay.outputs:
            if source is None:
                found.append(View(storages[block], offset, strides))
            else:  # an input, or a part of it
                known = self._held[source - count] if source >= count else views[source]
                found.append(View(known.storage.copy(), known.offset + offset, strides))
        return found


class Segments:
    """A graph with calls in it: programs and calls in turns."""

    def __init__(
        self,
        order: Sequence[Node],
        inputs: Sequence[Node],
        scalars: Sequence[Node],
        outputs: Sequence[Node],
    ) -> None:
        self._inputs = list(inputs)
        self._outputs = list(outputs)
        self._steps: list[tuple[Program, list[Node], list[Node], Node | None]] = []
        users: dict[Node, list[Node]] = {}
        for node in order:
            for x in node.inputs:
                users.setdefault(x, []).append(node)
        known = dict.fromkeys(inputs)
        self._parts: dict[Node, list[Node]] = {}
        for whole in [x for x in order if x.prim.name == "call"]:
            self._add(list(whole.inputs), known, scalars, users, set(outputs), whole)
            self._parts[whole] = users.get(whole, [])
            known.update(dict.fromkeys(self._parts[whole]))
        self._add(self._outputs, known, scalars, users, set(), None)
        self._spent = self._last_uses()

    def _last_uses(self) -> list[list[Node]]:
        """For each step the values that no later one reads: their memory goes back."""
        held = set(self._outputs)
        spent: list[list[Node]] = []
        for _, inputs, outputs, whole in reversed(self._steps):
            here = {*inputs, *outputs}
            if whole is not None:
                here |= {*whole.inputs, *self._parts[whole]}
            spent.append([x for x in here if x not in held])
            held |= here
        return spent[::-1]

    def _add(
        self,
        wanted: Sequence[Node],
        known: dict[Node, None],
        scalars: Sequence[Node],
        users: dict[Node, list[Node]],
        final: set[Node],
        whole: Node | None,
    ) -> None:
        """A program for what is wanted now, and for what it computes that is used later as well."""
        made = _between(wanted, (*known, *scalars))
        inside = set(made)
        later = [x for x in made if x in final or any(u not in inside for u in users.get(x, ()))]
        outputs = list(dict.fromkeys([*(x for x in wanted if x not in known), *later]))
        read = {x for node in made for x in node.inputs}
        inputs = [x for x in known if x in read]
        self._steps.append((Program(outputs, inputs, scalars), inputs, outputs, whole))
        known.update(dict.fromkeys(outputs))

    def run(self, place: Any, views: Sequence[View], numbers: Sequence[Any]) -> list[View]:
        known = dict(zip(self._inputs, views, strict=True))
        given = operands = found = None  # nothing of a step is held by the next
        for (program, inputs, outputs, whole), spent in zip(self._steps, self._spent, strict=True):
            if outputs:
                given = [known[x] for x in inputs]
                run = program.runner(tuple([view.strides for view in given]))
                known.update(zip(outputs, run(given, numbers), strict=True))
            if whole is not None:
                operands = [value(known[x], x.shape, x.dtype, place) for x in whole.inputs]
                found = whole.params.run(place, operands)
                for part in self._parts[whole]:
                    known[part] = found[part.params]
            given = operands = found = None
            for x in spent:
                known.pop(x, None)
        return [known[y] for y in self._outputs]


def _settle_calls(nodes: Sequence[Node]) -> None:
    """Run loops and branches that stand on constants alone, once and for all."""
    found = []
    seen: set[Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node in seen or node.abstract or node.view is not None:
            continue
        seen.add(node)
        if any(x.prim.name == "call" for x in node.inputs):
            found.append(node)
        stack.extend(node.inputs)
    evaluate(found)


def _only_device(order: Sequence[Node], inputs: Sequence[Node]) -> Device | None:
    """The device on which everything happens, if it has a compiler; None where there are several,
    or it has none."""
    found = {n.device for n in (*order, *inputs) if n.device is not None}
    place = found.pop() if len(found) == 1 else None if found else default.device
    if place is None or place.kind == "reference":
        return None
    return None if any(n.prim.name == "transfer" for n in order) else place


def _between(outputs: Sequence[Node], inputs: Sequence[Node]) -> list[Node]:
    """The nodes without a value that the outputs stand on, inputs first."""
    known = set(inputs)
    seen: set[Node] = set()
    stack = [n for n in outputs if n not in known]
    while stack:
        node = stack.pop()
        if node in seen or node in known or not node.abstract:
            continue
        seen.add(node)
        stack.extend(node.inputs)
    return sorted(seen, key=lambda n: n.serial)
