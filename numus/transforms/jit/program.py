"""Programs of traced graphs: one compiled plan; segments around calls; across devices, the graph
built and evaluated anew.

Between two calls, a segment computes no more than the next call needs, so that effects
(collectives) begin as soon as their operands are known; their results are waited for when a later
segment reads them, and what lies between is computed meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from numus.compiler import hooks
from numus.compiler.hooks import after_run, before_run
from numus.evaluation.evaluate import evaluate
from numus.graph import Node, Nodes, Storage, View, grad_mode
from numus.lru import LruTable
from numus.primitives.control import Effect, Started
from numus.primitives.source import constant, placeholder, value
from numus.runtime.contract import Recorder
from numus.runtime.devices import Device, default
from numus.shapes import Shape
from numus.transforms.jit.retained_inputs import RetainedInputs
from numus.transforms.subgraph import Recipe, reachable

Views = Sequence[View]
Numbers = Sequence[Any]
Run = Callable[[Views, Numbers], list[View]]

_MAX_LAYOUTS = 64  # of the inputs of a program
_HEAVY = ("contract", "convolve")  # kinds of primitives that are worth a program of their own


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
        self.retained = RetainedInputs(plan.captured)

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
        hoisted = self.retained.match(views)
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


@dataclass
class Step:
    """A program, and the call that follows it. Values have numbers (slots)."""

    program: Program
    inputs: list[int]
    outputs: list[int]
    call: Any = None
    operands: list[tuple[int, Shape, Any]] = field(default_factory=list)
    elements: list[tuple[int, int]] = field(default_factory=list)  # slots, and which result
    is_direct: bool = False  # an effect of one operand with one result, which is needed next
    starts: bool = False  # an effect whose result is needed later, so that it is only begun
    dead: list[int] = field(default_factory=list)  # not used after it
    layout: list[Shape] | None = None
    run: Run | None = None  # for this layout of the inputs
    donations: dict[int, int] | None = None  # of that run: inputs by the blocks of results


class SegmentedRun:
    """Computes the outputs of a graph with calls from its inputs."""

    def __init__(
        self,
        device: Any,
        order: Nodes,
        inputs: Nodes,
        scalars: Nodes,
        outputs: Nodes,
        in_place: Sequence[tuple[int, int]],
    ) -> None:
        self._device, self._scalars = device, scalars
        self._slots: dict[Node, int] = {}
        self._users: dict[Node, list[Node]] = {}
        for node in order:
            for x in node.inputs:
                self._users.setdefault(x, []).append(node)
        self._inputs = [self._slot(x) for x in inputs]
        self._outputs = [self._slot(x) for x in outputs]
        self._in_place = {(inputs[i], outputs[o]) for i, o in in_place}
        known = dict.fromkeys(inputs)
        self.steps: list[Step] = []
        late: set[Node] = set()  # results of effects that nobody has waited for yet
        done: set[Node] = set()  # calls
        calls = [x for x in order if x.prim.name == "call"]
        for whole in (*calls, None):
            wanted = list(outputs) if whole is None else list(whole.inputs)
            waits = late & self._read(wanted, known)
            if waits:
                early = _heavy_before(order, known, waits, done)
                if early:  # to be computed while others are under way
                    self._add(early, known, set(outputs), None)
                late -= waits
            self._add(wanted, known, set(outputs), whole, is_last=whole is None)
            if whole is not None:
                done.add(whole)
                elements = self._users.get(whole, ())
                known.update(dict.fromkeys(elements))
                if isinstance(whole.params, Effect):
                    late.update(elements)
        self._find_last_uses()
        self._only = self._only_effect()
        self._recorder: Recorder | None = None
        self._has_run = False
        self._pairs: list[tuple[int, int]] = []  # of the last step: an input, an output

    def _slot(self, x: Node) -> int:
        return self._slots.setdefault(x, len(self._slots))

    def _read(self, wanted: Nodes, known: dict[Node, None]) -> set[Node]:
        """What a program for the wanted values reads."""
        made = _between(wanted, (*known, *self._scalars))
        return {*wanted, *(x for node in made for x in node.inputs)}

    def _add(
        self,
        wanted: Nodes,
        known: dict[Node, None],
        final: set[Node],
        whole: Node | None,
        is_last: bool = False,
    ) -> None:
        """A program for the wanted values, and for those it computes that are used later."""
        made = dict.fromkeys(_between(wanted, (*known, *self._scalars)))
        later: list[Node] = []
        if not is_last:
            later = [x for x in made if x in final or not made.keys() >= {*self._users.get(x, ())}]
        outputs = list(dict.fromkeys([*(x for x in wanted if x not in known), *later]))
        read = {x for node in made for x in node.inputs}
        inputs = [x for x in known if x in read]
        at, to = ({x: i for i, x in enumerate(nodes)} for nodes in (inputs, outputs))
        pairs = [(at[x], to[y]) for x, y in self._in_place if x in at and y in to]
        program = Program(outputs, inputs, self._scalars, pairs if is_last else ())
        step = Step(program, [self._slot(x) for x in inputs], [self._slot(x) for x in outputs])
        if whole is not None:
            step.call = whole.params
            step.operands = [(self._slot(x), x.shape, x.dtype) for x in whole.inputs]
            step.elements = [(self._slot(x), x.params) for x in self._users.get(whole, ())]
        self.steps.append(step)
        known.update(dict.fromkeys(outputs))

    def _find_last_uses(self) -> None:
        """What is dead after each step, and which effects nothing is computed beside."""
        live = set(self._outputs)
        reads: set[int] = set(self._outputs)  # of the next program that computes something
        for step in reversed(self.steps):
            used = [x[0] for x in step.operands] + [x[0] for x in step.elements]
            here = {*step.inputs, *step.outputs, *used}
            step.dead = [x for x in here if x not in live]
            live |= here
            needed = any(x in reads for x, _ in step.elements)
            step.starts = isinstance(step.call, Effect) and not needed
            sizes = len(step.operands), len(step.elements)
            step.is_direct = isinstance(step.call, Effect) and needed and sizes == (1, 1)
            if step.outputs:
                reads = set(step.inputs)
            reads |= {x[0] for x in step.operands}

    def _only_effect(self) -> tuple[Any, int] | None:
        """The effect and the number of its operand, where there is nothing else to do."""
        first, *others = self.steps
        if not first.is_direct or any(s.outputs or s.call is not None for s in others):
            return None
        at = first.operands[0][0]
        if first.outputs or at not in self._inputs or self._outputs != [first.elements[0][0]]:
            return None
        return first.call, self._inputs.index(at)

    def donatable(self, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Which pairs of an input and an output may share memory, where the last program computes
        the output; asked for once."""
        last = self.steps[-1]
        found = [
            (number, at)
            for number, at in pairs
            if self._inputs[number] in last.inputs
            and self._outputs[at] in last.outputs
            and self._inputs[number] not in self._outputs
        ]
        self._pairs = [
            (last.inputs.index(self._inputs[number]), last.outputs.index(self._outputs[at]))
            for number, at in found
        ]
        return found

    def __call__(
        self, views: Views, numbers: Numbers, donated: dict[int, Any] | None = None
    ) -> list[View]:
        """`donated` has the memory of inputs that nothing else references, by number."""
        if self._only is not None:
            call, number = self._only
            result = call.run_at(self._device, views[number])
            if result is not None:
                return [result]
        recorder = self._recorder
        if recorder is None or before_run:
            found = self._run(views, numbers, donated)
            if not self._has_run:  # by now, effects know what carries them
                self._has_run = True
                self._recorder = self._new_recorder()
            return found
        with recorder:
            return self._run(views, numbers, donated)

    def _new_recorder(self) -> Recorder | None:
        """Records runs, where all calls are work on the device's stream."""
        calls = [step.call for step in self.steps if step.call is not None]
        if all(isinstance(c, Effect) and c.is_on_stream(self._device) for c in calls):
            found: Recorder | None = self._device.runtime.recorder()
            return found
        return None

    def _run(
        self, views: Views, numbers: Numbers, donated: dict[int, Any] | None = None
    ) -> list[View]:
        values: list[View | None] = [None] * len(self._slots)
        for slot, given in zip(self._inputs, views, strict=True):
            values[slot] = given
        under_way: dict[int, Started] = {}
        operands: list[Node] | None = None
        found: list[View] | None = None
        device = self._device
        for step in self.steps:
            if step.outputs:
                self._compute(step, values, under_way, numbers, donated)
            call = step.call
            if step.is_direct and (at := values[step.operands[0][0]]) is not None:
                result = call.run_at(device, at)
                if result is not None:
                    values[step.elements[0][0]] = result
                    call = None
            if call is not None:
                operands = [
                    value(values[x] or _arrived(x, values, under_way), shape, dtype, device)
                    for x, shape, dtype in step.operands
                ]
                if step.starts:
                    started = call.start(device, operands)
                    hooks.under_way.append(call)
                    for x, which in step.elements:
                        under_way[x] = _Result(started, which, call)
                else:
                    found = call.run(device, operands)
                    for x, which in step.elements:
                        values[x] = found[which]
                operands = found = None  # a step keeps nothing of the last one alive
            for x in step.dead:
                if x not in under_way:
                    values[x] = None
        if under_way:
            for x in list(under_way):
                _arrived(x, values, under_way)
        return [view for x in self._outputs if (view := values[x]) is not None]

    def _compute(
        self,
        step: Step,
        values: list[View | None],
        under_way: dict[int, Started],
        numbers: Numbers,
        donated: dict[int, Any] | None,
    ) -> None:
        given = [_arrived(x, values, under_way) for x in step.inputs]
        layout = [view.strides for view in given]
        if step.run is None or layout != step.layout:
            if self._recorder is not None:
                self._recorder.stop()
            step.run, step.layout = step.program.runner(tuple(layout)), layout
            step.donations = None
        run = step.run
        if donated and step is self.steps[-1] and isinstance(run, CompiledRun):
            for x in list(under_way):  # they may read what is donated
                _arrived(x, values, under_way)
            if step.donations is None:
                step.donations = run.plan.donatable(self._pairs)
            blocks = _donated_blocks(step.donations, given, values, donated)
            found = run(given, numbers, blocks)
        else:
            found = run(given, numbers)
        for x, view in zip(step.outputs, found, strict=True):
            values[x] = view


def _donated_blocks(
    allowed: dict[int, int],
    given: Views,
    values: Sequence[View | None],
    donated: dict[int, Any],
) -> dict[int, Any]:
    """Result blocks of a program in memory that only one known value has."""
    users = Counter(id(view.storage.memory) for view in values if view is not None)
    memories = {id(memory) for memory in donated.values()}
    blocks = {}
    for block, source in allowed.items():
        memory = given[source].storage.memory
        if id(memory) in memories and users[id(memory)] == 1:
            blocks[block] = memory
    return blocks


def _heavy_before(
    order: Nodes, known: dict[Node, None], waits: set[Node], done: set[Node]
) -> list[Node]:
    """Products that can be computed before these results have come."""
    blocked, found = set(waits), []
    for node in order:
        if node in known:
            continue
        if (node.prim.name == "call" and node not in done) or not blocked.isdisjoint(node.inputs):
            blocked.add(node)
        elif node.prim.kind in _HEAVY:
            found.append(node)
    return found


class _Result:
    """One result of an effect under way."""

    __slots__ = ("call", "started", "which")

    def __init__(self, started: Started, which: int, call: Any) -> None:
        self.started, self.which, self.call = started, which, call

    def views(self) -> list[View]:
        if self.call in hooks.under_way:
            hooks.under_way.remove(self.call)
        return [self.started.views()[self.which]]


def _arrived(x: int, values: list[View | None], under_way: dict[int, Started]) -> View:
    """A value that is known, or waited for."""
    found = values[x]
    if found is None:
        found = values[x] = under_way.pop(x).views()[0]
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


def _between(outputs: Nodes, inputs: Nodes) -> list[Node]:
    """The abstract nodes that the outputs depend on, inputs first."""
    known = set(inputs)
    return reachable(outputs, lambda n: n.abstract and n not in known)
