"""A function traced for one structure of arguments: inputs, recipe, outputs and effects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from numus.errors import TracingError
from numus.evaluation.evaluate import evaluate
from numus.graph import Node
from numus.primitives.source import placeholder
from numus.tensor import GradSlot, Tensor, detached
from numus.transforms import tree
from numus.transforms.jit.executable import Ready
from numus.transforms.jit.inputs import (
    Argument,
    Gradient,
    Handle,
    Place,
    Source,
    is_leaf_node,
)
from numus.transforms.jit.program import Program
from numus.transforms.jit.scalars import Scalar
from numus.transforms.jit.tracing import Inline, Trace, handles_of
from numus.transforms.jit.variables import ABSENT, Change, Precondition, Variable, Variables

# A leaf of the result: an output of the program, or a function of (leaves, numbers) of the call.
Result = int | Callable[[Sequence[Any], Sequence[Any]], Any]


class Rebound:
    """A variable that each call gives another value, and how the value is made."""

    def __init__(
        self, change: Change, results: list[Result], leaves: list[bool], structure: tree.Structure
    ) -> None:
        self._holder = change.holder
        self._key = change.key
        self._is_gone = change.after is ABSENT
        self.results = results
        self._leaves = leaves  # which tensors require gradients
        self._structure = structure

    def value(self, leaves: Sequence[Any], numbers: Sequence[Any], made: dict[int, Tensor]) -> Any:
        """The value after a call."""
        found = [made[x] if isinstance(x, int) else x(leaves, numbers) for x in self.results]
        found = [
            Tensor(detached(x._node, sees_writes=False)).requires_grad_() if leaf else x
            for x, leaf in zip(found, self._leaves, strict=True)
        ]
        return tree.unflatten(self._structure, found)

    def write(self, value: Any) -> None:
        if not self._is_gone:
            self._holder.put(self._key, value)
        elif self._holder.get(self._key) is not ABSENT:
            self._holder.drop(self._key)


class Traced:
    """What a trace leaves behind. Calling it follows the recipe with the values of now."""

    def __init__(
        self,
        trace: Trace,
        arguments: dict[int, tuple[Tensor, Tensor]],
        numbers: Sequence[tuple[int, type]],
        donated: Sequence[int],
        variables: Variables,
        result: Any,
    ) -> None:
        self._trace = trace
        self._variables = variables.places()
        self._shared = variables.shared
        self._name = str(trace)
        self._returned: set[int] = set()  # arguments that are results themselves, by place
        self.numbers = list(numbers)  # which arguments are Python's, and their types
        self._inside = {id(inner): i for i, (_, inner) in arguments.items()}
        self._slots = {
            given._node.grad_slot: i
            for i, (given, _) in arguments.items()
            if given._node.grad_slot is not None
        }
        self._outputs: list[Node] = []  # values that the program gives
        self._places: dict[tuple[Node, int], int] = {}
        self._handles: dict[Node, Tensor] = {}  # the first that a result was read from
        self.results, self.structure = self._read_results(result)
        self.rebound = [self._read_change(change) for change in variables.changes]
        kept = {id(arguments[i][1]) for i in self._returned}
        # which arguments give up their memory
        self.donated = [i for i in donated if id(arguments[i][1]) not in kept]
        self.bindings = self._read_bindings(arguments)
        self.grads = self._read_grads()
        self._read_inputs(arguments)
        self._read_guards(arguments, variables)
        self.types = [(y.shape, y.dtype, y.device) for y in self._outputs]
        shown = [*self.results, *(new for _, new in self.grads)]
        shown += [x for rebound in self.rebound for x in rebound.results]
        self.shown = sorted({x for x in shown if isinstance(x, int)})
        self._ready: dict[Any, Ready] = {}
        del self._trace, self._outputs, self._places, self._inside, self._slots, self._variables
        del self._returned, self._handles, self._shared

    # -- reading a finished trace -----------------------------------------------------------------

    def _output(self, node: Node, handle: Tensor | None = None) -> int:
        """The number of an output of the recipe, of its own for a handle that is named."""
        key = (node, id(handle))
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = len(self._outputs)
            self._outputs.append(node)
        return found

    def _place_of(self, handle: Tensor) -> Place | None:
        """Where to find a tensor that was there before the call; None for one that was not."""
        index = self._inside.get(id(handle))
        if index is not None:
            return Argument(index)
        for slot, grad in self._trace.grads_read.items():
            if grad is handle:
                return Gradient(self._owner(slot))
        known = self._trace.bound.get(id(handle))
        before = handle._node if known is None else known[1]
        if before.serial > self._trace.since or self._trace.is_born(handle):
            return None
        return self._reach(handle)[0]

    def _reach(self, handle: Tensor) -> Sequence[Place]:
        """Where to find a tensor that is no argument: in variables, or itself."""
        return self._variables.get(id(handle)) or [Handle(handle)]

    def _owner(self, slot: GradSlot) -> Place:
        """Where to find the tensor whose gradient a slot holds."""
        index = self._slots.get(slot)
        if index is not None:
            return Argument(index)
        owner = slot.owner()
        if owner is None or owner._node.grad_slot is not slot:
            for node in self._trace.captured:
                if node.grad_slot is slot:
                    for handle in handles_of(node):
                        return self._reach(handle)[0]
            raise Inline
        return self._reach(owner)[0]

    def _read_results(self, result: Any) -> tuple[list[Result], tree.Structure]:
        leaves, structure = tree.flatten(result)
        return [self._read_result(x) for x in leaves], structure

    def _read_result(self, x: Any) -> Result:
        """How a call makes one leaf of its result."""
        if isinstance(x, Scalar):
            compute = x.compute
            return lambda leaves, numbers: compute(numbers)
        if not isinstance(x, Tensor):
            return lambda leaves, numbers: x
        place = self._place_of(x)
        if place is not None:
            if isinstance(place, Argument):
                self._returned.add(place.index)
            return lambda leaves, numbers: place.find(leaves)
        node = self._untracked(x._node)
        if not node.abstract and node.serial > self._trace.since:
            return lambda leaves, numbers: Tensor(detached(node, sees_writes=False))
        # tensors that stand for the same are still tensors of their own
        first = self._handles.setdefault(node, x)
        return self._output(node, None if first is x else x)

    def _read_change(self, change: Change) -> Rebound:
        """How a call makes what a variable holds after it."""
        leaves, structure = tree.flatten(change.after)
        results: list[Result] = []
        grads = []
        for x in leaves:
            fresh = isinstance(x, Tensor) and self._place_of(x) is None
            grads.append(fresh and is_leaf_node(x._node))
            results.append(self._output(x._node) if grads[-1] else self._read_result(x))
        return Rebound(change, results, grads, structure)

    def _untracked(self, node: Node) -> Node:
        """A result. What backward() has been through inside is not differentiated again outside;
        other results may have to be, which a program cannot.
        """
        if node.tracked and not self._trace.grads_written:
            raise Inline
        return node

    def _read_bindings(
        self, arguments: dict[int, tuple[Tensor, Tensor]]
    ) -> list[tuple[Place, int, bool]]:
        """Tensors that stand for something else after the call: where, what, whether a leaf."""
        changed: list[tuple[Place | None, Node, Node]] = [
            (self._place_of(handle), old, handle._node)
            for handle, old in self._trace.bound.values()
        ]
        self._changes_arguments = False
        for i, (given, inner) in arguments.items():
            if inner._node is not self._trace.inputs[i]:
                changed.append((Argument(i), given._node, inner._node))
                self._changes_arguments = True
        found = []
        for place, old, new in changed:
            if new is old or place is None:
                continue
            leaf = is_leaf_node(new)
            if new.tracked and not (leaf and new.grad_slot is old.grad_slot):
                raise Inline
            found.append((place, self._output(new), leaf))
        return found

    def _read_grads(self) -> list[tuple[Gradient, int | Place | None]]:
        """Gradients that are others after the call: an output, some other tensor, or none."""
        found: list[tuple[Gradient, int | Place | None]] = []
        for slot, before in self._trace.grads_written.items():
            grad = slot._grad
            if grad is before and grad is not None:
                continue  # where there was none, the next call may meet one
            place = Gradient(self._owner(slot))
            if grad is None:
                found.append((place, None))
                continue
            other = self._place_of(grad)
            if other is None and grad._node.tracked:
                raise Inline  # create_graph: the gradient is differentiated outside
            found.append((place, self._output(grad._node) if other is None else other))
        return found

    def _read_inputs(self, arguments: dict[int, tuple[Tensor, Tensor]]) -> None:
        """The sources of the program, and the program."""
        trace = self._trace
        for node in self._outputs:
            if node.serial <= trace.since:
                trace.captured[node] = None
        evaluate(trace.captured)
        slots = {}
        for slot, grad in trace.grads_read.items():
            if grad is not None:
                known = trace.bound.get(id(grad))
                slots[grad._node if known is None else known[1]] = slot
        before: dict[Node, list[Tensor]] = {}  # tensors that stand for something else now
        for handle, node in trace.bound.values():
            before.setdefault(node, []).append(handle)
        self.sources: list[Source] = []
        inputs = []
        for node in trace.captured:
            places: list[Place]
            if node in slots:
                places = [Gradient(self._owner(slots[node]))]
            else:
                handles = [*handles_of(node), *before.get(node, ())]
                places = [p for h in handles if not trace.is_born(h) for p in self._reach(h)]
            if places:  # else nothing can ever put another value in its place
                self.sources.append(Source(node, places))
                inputs.append(node)
        # of one tensor that is several arguments, the last stands for all
        distinct = {id(inner): i for i, (_, inner) in arguments.items()}
        for i in sorted(distinct.values()):
            self.sources.append(Source(arguments[i][0]._node, [Argument(i)]))
            inputs.append(trace.inputs[i])
        self.scalars = [(number, node.dtype) for number, node in trace.scalars.values()]
        self.generators = [generator for generator, _, _ in trace.keys]
        numbers = [node for _, node in trace.scalars.values()]
        numbers += [word for _, *words in trace.keys for word in words]
        sources = {s.places[0].key(): i for i, s in enumerate(self.sources)}
        # inputs that outputs take the place of, with the binding that says so
        self.replaced = {
            (sources[place.key()], at): number
            for number, (place, at, _) in enumerate(self.bindings)
            if place.key() in sources
        }
        self.program = Program(self._outputs, inputs, numbers, list(self.replaced))

    def _read_guards(
        self, arguments: dict[int, tuple[Tensor, Tensor]], variables: Variables
    ) -> None:
        """What has to hold at a call, beside what its inputs are like."""
        self._was_none = [
            (Gradient(self._owner(slot)), grad is None)
            for slot, grad in self._trace.grads_read.items()
        ]
        self._several = [s for s in self.sources if len(s.places) > 1]
        self._tensors = sorted(arguments)
        pattern = _pattern([given for given, _ in arguments.values()])
        plain = pattern == tuple(range(len(pattern)))
        plain = plain and not (self._changes_arguments or (self.donated and len(pattern) > 1))
        self._aliases = None if plain else pattern
        self._changed = _Reached(place for place, _, _ in self.bindings)
        self._preconditions = [Precondition(change) for change in variables.changes]
        self.flags = variables.flags
        self._held = [  # variables that hold tensors known by handle, and these
            (variable.reference, place.reference)
            for source in self.sources
            for place in source.places
            if isinstance(place, Handle)
            for variable in self._shared.get(id(place.find(())), ())
            if variable.reference is not None
        ]
        self._changed_arguments = [p for p, _, _ in self.bindings if isinstance(p, Argument)]
        self._reached = _Reached(p for s in self.sources for p in s.places)
        self.related = bool(
            self._was_none
            or self._several
            or self._aliases
            or self._preconditions
            or self._held
            or (self._changed and self._tensors)
        )
        self.guarded = self.related or bool(self.flags)

    # -- calls ------------------------------------------------------------------------------------

    def is_for(self, leaves: Sequence[Any]) -> bool:
        """Whether the tensors of a call relate to each other as when the function was traced."""
        for place, was_none in self._was_none:
            slot = place.slot(leaves)
            if slot is None or (slot._grad is None) != was_none:
                return False
        for source in self._several:
            if source.find(leaves) is None:
                return False
        if not all(condition.holds() for condition in self._preconditions):
            return False
        for read, flag in self.flags:
            if read() is not flag:
                return False
        for read, known in self._held:
            if read() is not known():
                return False
        if self._aliases is not None:
            if _pattern([leaves[i] for i in self._tensors]) != self._aliases:
                return False
            changed = [leaves[argument.index] for argument in self._changed_arguments]
            if self._reached.has(changed, leaves):
                raise Inline  # it is changed, and reached by itself as well
        if self._changed and self._changed.has([leaves[i] for i in self._tensors], leaves):
            raise Inline
        return True

    def spent(self, node: Node) -> Node:
        """What a tensor stands for that has given its memory away."""
        out = placeholder(node.shape, node.dtype, node.device, self._name)
        out.abstract = Spent(self._name)
        return out

    def is_gone(self) -> bool:
        """Whether a tensor that it was traced with is no more, so that it can never be used."""
        return any(
            isinstance(p, Handle) and p.find(()) is None for s in self.sources for p in s.places
        )

    def ready(self, leaves: Sequence[Any]) -> Ready | None:
        """What runs this call and those like it; None where it was traced for others."""
        nodes = []
        for source in self.sources:
            node = source.find(leaves)
            if node is None:
                return None
            nodes.append(node)
        if not self.is_for(leaves):
            return None
        evaluate(nodes)
        layout = tuple([node.view.strides for node in nodes if node.view is not None])
        found = self._ready.get(layout)
        if found is None:
            found = self._ready[layout] = Ready(self, nodes, len(leaves))
        return found


class Spent:
    """In the place of a trace: the tensor has been donated."""

    word = "donated"

    def __init__(self, name: str) -> None:
        self._name = name

    def check_open(self) -> None:
        raise TracingError(
            f"this tensor was donated to {self._name}, which has put its results in its memory; "
            "leave the argument out of `donate`, or use the result"
        )


def _pattern(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Which of some tensors are one."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(x), i) for i, x in enumerate(tensors))


class _Reached:
    """Tensors that a function reaches by itself."""

    def __init__(self, places: Iterable[Place]) -> None:
        places = list(places)
        # by their ids, which others may get after them
        self._handles = {id(p.find(())): p for p in places if isinstance(p, Handle)}
        variables = [p for p in places if isinstance(p, Variable)]
        self._readers = [p.reference for p in variables if p.reference is not None]
        self._within = [p for p in variables if p.reference is None]  # parts of containers

    def __bool__(self) -> bool:
        return bool(self._handles or self._readers or self._within)

    def has(self, tensors: Sequence[Tensor], leaves: Sequence[Any]) -> bool:
        """Whether one of some tensors is among them."""
        wanted = {id(x): x for x in tensors}
        for key in wanted.keys() & self._handles.keys():
            if self._handles[key].find(leaves) is wanted[key]:
                return True
        return any(id(read()) in wanted for read in self._readers) or any(
            id(p.find(leaves)) in wanted for p in self._within
        )
