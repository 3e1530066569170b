"""From a finished trace to the specification of its function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numus.evaluation.evaluate import evaluate
from numus.graph import Node
from numus.tensor import GradSlot, Tensor, detached
from numus.transforms import tree
from numus.transforms.jit import spec as sp
from numus.transforms.jit.inputs import (
    ArgumentRef,
    ConstantRef,
    GradientRef,
    HandleRef,
    InputRef,
    TracedInput,
)
from numus.transforms.jit.program import Program
from numus.transforms.jit.scalars import Scalar
from numus.transforms.jit.tracing import Trace, TraceBailout, handles_of
from numus.transforms.jit.variables import Change, Precondition, VariableRef, Variables
from numus.transforms.subgraph import reachable
from numus.transforms.tape import is_tracked_leaf

Arguments = dict[int, tuple[Tensor, Tensor]]  # given and traced tensors, by leaf


class TraceReader:
    """Reads a trace; `read` returns the spec."""

    def __init__(self, trace: Trace, arguments: Arguments, variables: Variables) -> None:
        self._trace = trace
        self._arguments = arguments
        self._changes = variables
        self._variables = variables.refs()
        self._returned: set[int] = set()  # arguments that are results themselves
        self._inside = {id(inner): i for i, (_, inner) in arguments.items()}
        self._slots = {
            given._node.grad_slot: i
            for i, (given, _) in arguments.items()
            if given._node.grad_slot is not None
        }
        self._outputs: list[Node] = []
        self._numbers: dict[tuple[Node, int], int] = {}
        self._handles: dict[Node, Tensor] = {}  # the first handle of a result

    def read(self, numbers: list[tuple[int, type]], donated: list[int], result: Any) -> sp.Spec:
        trace, arguments = self._trace, self._arguments
        leaves, structure = tree.flatten(result)
        results = [self._result(x) for x in leaves]
        variables = [self._variable_write(change) for change in self._changes.changes]
        returned = {id(arguments[i][1]) for i in self._returned}
        donated = [i for i in donated if id(arguments[i][1]) not in returned]
        bindings = self._bindings()
        grads = self._grads()
        inputs, nodes = self._inputs()
        known = {x.refs[0].key(): i for i, x in enumerate(inputs)}
        in_place = {
            (known[target.key()], output): number
            for number, (target, output, _) in enumerate(bindings)
            if target.key() in known
        }
        scalars = [node for _, node in trace.scalars.values()]
        scalars += [word for _, *words in trace.keys for word in words]
        effects = sp.Effects(bindings, grads, donated, variables, in_place)
        return sp.Spec(
            name=str(trace),
            program=Program(
                *(self._outputs, nodes, scalars, list(in_place), self._effects()),
                captured=_unchanged(inputs, effects, self._changes.changes),
            ),
            inputs=inputs,
            numbers=numbers,
            scalars=[(number, node.dtype) for number, node in trace.scalars.values()],
            generators=[generator for generator, _, _ in trace.keys],
            results=results,
            structure=structure,
            output_types=[(y.shape, y.dtype, y.device) for y in self._outputs],
            guards=self._guards(inputs, effects),
            effects=effects,
        )

    def _effects(self) -> list[Node]:
        """Results of calls that run whether they are used or not; those of one entry of a batch or
        of one iteration were rewritten, and are no part of the program."""

        def is_rewritten(node: Node) -> bool:
            below = reachable((node,), lambda n: bool(n.abstract))
            return any(n.prim.name == "placeholder" and n.abstract is True for n in below)

        return [node for node in self._trace.effects if not is_rewritten(node)]

    # -- references -------------------------------------------------------------------------------

    def _output(self, node: Node, handle: Tensor | None = None) -> int:
        """The number of an output; a separate one for a handle that is named."""
        key = (node, id(handle))
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self._outputs)
            self._outputs.append(node)
        return found

    def _ref(self, handle: Tensor) -> InputRef | None:
        """The reference to a tensor that existed before the call; None for a new one."""
        index = self._inside.get(id(handle))
        if index is not None:
            return ArgumentRef(index)
        for slot, grad in self._trace.grads_read.items():
            if grad is handle:
                return GradientRef(self._owner(slot))
        known = self._trace.bound.get(id(handle))
        before = handle._node if known is None else known[1]
        if before.serial > self._trace.since or self._trace.is_born(handle):
            return None
        return self._captured_refs(handle)[0]

    def _captured_refs(self, handle: Tensor) -> Sequence[InputRef]:
        return self._variables.get(id(handle)) or [HandleRef(handle)]

    def _owner(self, slot: GradSlot) -> InputRef:
        """The tensor whose gradient a slot holds."""
        index = self._slots.get(slot)
        if index is not None:
            return ArgumentRef(index)
        owner = slot.owner()
        if owner is None or owner._node.grad_slot is not slot:
            for node in self._trace.captured:
                if node.grad_slot is slot:
                    for handle in handles_of(node):
                        return self._captured_refs(handle)[0]
            raise TraceBailout
        return self._captured_refs(owner)[0]

    # -- outputs and effects ----------------------------------------------------------------------

    def _result(self, x: Any) -> sp.Result:
        """How a call makes one leaf of its result."""
        if isinstance(x, Scalar):
            compute = x.compute
            return lambda leaves, numbers: compute(numbers)
        if not isinstance(x, Tensor):
            return sp.ConstantResult(x)
        ref = self._ref(x)
        if ref is not None:
            if isinstance(ref, ArgumentRef):
                self._returned.add(ref.index)
            return lambda leaves, numbers: ref.find(leaves)
        node = x._node
        # After a backward() inside, results are not differentiated again outside; others may have
        # to be, which a program cannot.
        if node.tracked and not self._trace.grads_written:
            raise TraceBailout
        if not node.abstract and node.serial > self._trace.since:
            return lambda leaves, numbers: Tensor(detached(node, sees_writes=False))
        # handles of one node are still separate tensors
        first = self._handles.setdefault(node, x)
        return self._output(node, None if first is x else x)

    def _variable_write(self, change: Change) -> sp.VariableWrite:
        leaves, structure = tree.flatten(change.after)
        results: list[sp.Result] = []
        grads = []
        for x in leaves:
            is_new = isinstance(x, Tensor) and self._ref(x) is None
            grads.append(is_new and is_tracked_leaf(x._node))
            results.append(self._output(x._node) if grads[-1] else self._result(x))
        return sp.VariableWrite(change, results, grads, structure)

    def _bindings(self) -> list[sp.Binding]:
        """Tensors bound to another node after the call."""
        trace = self._trace
        changed: list[tuple[InputRef | None, Node, Node]] = [
            (self._ref(handle), old, handle._node) for handle, old in trace.bound.values()
        ]
        for i, (given, inner) in self._arguments.items():
            if inner._node is not trace.inputs[i]:
                changed.append((ArgumentRef(i), given._node, inner._node))
        found = []
        for ref, old, new in changed:
            if new is old or ref is None:
                continue
            leaf = is_tracked_leaf(new)
            if new.tracked and not (leaf and new.grad_slot is old.grad_slot):
                raise TraceBailout
            found.append(sp.Binding(ref, self._output(new), leaf))
        return found

    def _grads(self) -> list[tuple[GradientRef, int | InputRef | None]]:
        """Gradients that differ after the call: an output, some other tensor, or none."""
        found: list[tuple[GradientRef, int | InputRef | None]] = []
        for slot, before in self._trace.grads_written.items():
            grad = slot._grad
            if grad is before and grad is not None:
                continue  # where there was none, the next call may meet one
            ref = GradientRef(self._owner(slot))
            if grad is None:
                found.append((ref, None))
                continue
            other = self._ref(grad)
            if other is None and grad._node.tracked:
                raise TraceBailout  # create_graph: the gradient is differentiated outside
            found.append((ref, self._output(grad._node) if other is None else other))
        return found

    # -- inputs and guards ------------------------------------------------------------------------

    def _inputs(self) -> tuple[list[TracedInput], list[Node]]:
        """The inputs of the program, and their nodes."""
        trace, arguments = self._trace, self._arguments
        for node in self._outputs:
            if node.serial <= trace.since:
                trace.captured[node] = None
        evaluate(trace.captured)
        slots = {}
        for slot, grad in trace.grads_read.items():
            if grad is not None:
                known = trace.bound.get(id(grad))
                slots[grad._node if known is None else known[1]] = slot
        before: dict[Node, list[Tensor]] = {}  # tensors bound to another node now
        for handle, node in trace.bound.values():
            before.setdefault(node, []).append(handle)
        found: list[TracedInput] = []
        nodes = []
        for node in trace.captured:
            refs: list[InputRef]
            if node in slots:
                refs = [GradientRef(self._owner(slots[node]))]
            else:
                handles = [*handles_of(node), *before.get(node, ())]
                refs = [r for h in handles if not trace.is_born(h) for r in self._captured_refs(h)]
            if refs:  # else nothing can ever replace its value
                found.append(TracedInput(node, refs))
                nodes.append(node)
        for spot, held in trace.lifted.values():
            found.append(TracedInput(held._node, [ConstantRef(held)]))
            nodes.append(spot)
        # of one tensor given several times, the last argument is the input
        distinct = {id(inner): i for i, (_, inner) in arguments.items()}
        for i in sorted(distinct.values()):
            found.append(TracedInput(arguments[i][0]._node, [ArgumentRef(i)]))
            nodes.append(trace.inputs[i])
        return found, nodes

    def _guards(self, inputs: Sequence[TracedInput], effects: sp.Effects) -> sp.Guards:
        trace, arguments = self._trace, self._arguments
        changed = [b.target.index for b in effects.bindings if isinstance(b.target, ArgumentRef)]
        changes_arguments = any(
            inner._node is not trace.inputs[i] for i, (_, inner) in arguments.items()
        )
        aliases = sp.alias_pattern([given for given, _ in arguments.values()])
        distinct = aliases == tuple(range(len(aliases)))
        matters = changes_arguments or (effects.donated and len(aliases) > 1)
        shared = self._changes.shared
        return sp.Guards(
            grads=[
                (GradientRef(self._owner(slot)), grad is None)
                for slot, grad in trace.grads_read.items()
            ],
            several_refs=[x for x in inputs if len(x.refs) > 1],
            preconditions=[Precondition(change) for change in self._changes.changes],
            flags=self._changes.flags,
            shared=[
                (variable.reader, ref.reader)
                for x in inputs
                for ref in x.refs
                if isinstance(ref, HandleRef)
                for variable in shared.get(id(ref.find(())), ())
                if variable.reader is not None
            ],
            arguments=sorted(arguments),
            aliases=None if distinct and not matters else aliases,
            changed=sp.CapturedTensors(b.target for b in effects.bindings),
            changed_arguments=changed,
            captured=sp.CapturedTensors(r for x in inputs for r in x.refs),
        )


def _unchanged(
    inputs: Sequence[TracedInput], effects: sp.Effects, assigned: Sequence[Change]
) -> list[int]:
    """The captured tensors that a call neither changes nor replaces, by number."""
    changed = {target.key() for target, _, _ in effects.bindings}
    variables = {("variable", id(x.namespace.container), x.key) for x in assigned}

    def changes(ref: InputRef) -> bool:
        key = ref.key()
        return (
            isinstance(ref, (ArgumentRef, GradientRef))
            or key in changed
            or (isinstance(ref, VariableRef) and key[:3] in variables)
        )

    return [i for i, x in enumerate(inputs) if not any(map(changes, x.refs))]
