"""A function traced for one structure of arguments: inputs, recipe, outputs and effects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numus.dtypes import uint32
from numus.evaluation import evaluate
from numus.graph import Node, grad_mode
from numus.primitives.source import constant
from numus.tensor import GradSlot, Tensor, detached
from numus.transforms import tree
from numus.transforms.jit.places import (
    Argument,
    Captured,
    Gradient,
    Handle,
    Place,
    is_leaf_node,
)
from numus.transforms.jit.scalars import Scalar
from numus.transforms.jit.tracing import Inline, Trace, handles_of
from numus.transforms.recipe import Recipe


class Traced:
    """What a trace leaves behind. Calling it follows the recipe with the values of now."""

    def __init__(
        self,
        trace: Trace,
        arguments: dict[int, tuple[Tensor, Tensor]],
        numbers: Sequence[int],
        result: Any,
    ) -> None:
        self._trace = trace
        self._numbers = numbers
        self._inside = {id(inner): i for i, (_, inner) in arguments.items()}
        self._outside = {id(given): i for i, (given, _) in arguments.items()}
        self._slots = {
            given._node.grad_slot: i
            for i, (given, _) in arguments.items()
            if given._node.grad_slot is not None
        }
        self._outputs: list[Node] = []  # values that the recipe gives
        self._places: dict[Node, int] = {}
        self._results, self.structure = self._read_results(result)
        self._bindings = self._read_bindings(arguments)
        self._grads = self._read_grads()
        self._read_inputs(arguments)
        self._aliases = self._alias_guard(arguments)
        self._clean()

    # -- reading a finished trace -----------------------------------------------------------------

    def _output(self, node: Node) -> int:
        """The number of an output of the recipe."""
        found = self._places.get(node)
        if found is None:
            found = self._places[node] = len(self._outputs)
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
        return Handle(handle)

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
                        return Handle(handle)
            raise Inline
        return Handle(owner)

    def _read_results(self, result: Any) -> tuple[list[Callable[..., Any]], tree.Structure]:
        leaves, structure = tree.flatten(result)
        return [self._read_result(x) for x in leaves], structure

    def _read_result(self, x: Any) -> Callable[..., Any]:
        """How a call makes one leaf of its result, from (leaves, numbers, made tensors)."""
        if isinstance(x, Scalar):
            compute = x.compute
            return lambda leaves, numbers, made: compute(numbers)
        if not isinstance(x, Tensor):
            return lambda leaves, numbers, made: x
        place = self._place_of(x)
        if place is not None:
            return lambda leaves, numbers, made: place.find(leaves)
        node = self._untracked(x._node)
        if not node.abstract and node.serial > self._trace.since:
            return lambda leaves, numbers, made: Tensor(detached(node, sees_writes=False))
        at = self._output(node)
        return lambda leaves, numbers, made: made[at]

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
            if grad is before:
                continue
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
        trace = self._trace
        by_grad = {grad._node: slot for slot, grad in trace.grads_read.items() if grad is not None}
        for slot, grad in trace.grads_read.items():
            if grad is not None and id(grad) in trace.bound:
                by_grad[trace.bound[id(grad)][1]] = slot
        for node in self._outputs:
            if node.serial <= trace.since:
                trace.captured[node] = None
        self._captured: list[Captured] = []
        for node in trace.captured:
            places: list[Place]
            if node in by_grad:
                places = [Gradient(self._owner(by_grad[node]))]
            else:
                before = {id(h): (h, n) for h, n in trace.bound.values()}
                handles = [h for h in handles_of(node) if id(h) not in before]
                handles += [h for h, n in before.values() if n is node]
                places = [Handle(h) for h in handles if not trace.is_born(h)]
            self._captured.append(Captured(node, places))
        self._grads_read = [
            (Gradient(self._owner(slot)), grad is None) for slot, grad in trace.grads_read.items()
        ]
        self._scalars = [(number, node.dtype) for number, node in trace.scalars.values()]
        self._generators = [generator for generator, _, _ in trace.keys]
        self._arguments = sorted(arguments)
        self._distinct = sorted({id(inner): i for i, (_, inner) in arguments.items()}.values())
        inputs = [
            *trace.captured,
            *(trace.inputs[i] for i in self._distinct),
            *(node for _, node in trace.scalars.values()),
            *(word for _, *words in trace.keys for word in words),
        ]
        self._recipe = Recipe(_between(self._outputs, inputs), inputs, self._outputs)

    def _alias_guard(self, arguments: dict[int, tuple[Tensor, Tensor]]) -> tuple[int, ...] | None:
        """Which arguments are one tensor, where that matters; see `same_arguments`."""
        seen = self._pattern([given for given, _ in arguments.values()])
        distinct = seen == tuple(range(len(seen)))
        return None if distinct and not self._changes_arguments else seen

    @staticmethod
    def _pattern(tensors: Sequence[Tensor]) -> tuple[int, ...]:
        first: dict[int, int] = {}
        return tuple(first.setdefault(id(x), i) for i, x in enumerate(tensors))

    def _clean(self) -> None:
        """Let go of the trace and its nodes."""
        changed = [place for place, _, _ in self._bindings]
        self._changed_handles = [p for p in changed if isinstance(p, Handle)]
        self._held = [c for c in self._captured if c.constant is None]
        del self._trace, self._outputs, self._places, self._inside, self._outside, self._slots

    # -- calls ------------------------------------------------------------------------------------

    def inputs(self, leaves: Sequence[Any]) -> list[Node] | None:
        """The captured nodes as they are now; None where this trace is not for them."""
        for place, was_none in self._grads_read:
            slot = place.slot(leaves)
            if slot is None or (slot._grad is None) != was_none:
                return None
        found = []
        for captured in self._captured:
            node = captured.find(leaves)
            if node is None:
                return None
            found.append(node)
        if self._aliases is not None:
            tensors = [leaves[i] for i in self._arguments]
            if self._pattern(tensors) != self._aliases:
                return None
        return found

    def overlap(self, leaves: Sequence[Any]) -> bool:
        """Whether a tensor that a call changes is reached by it in two ways."""
        if not self._bindings:
            return False
        given = {id(leaves[i]) for i in self._arguments}
        if any(id(p.find(leaves)) in given for p in self._changed_handles):
            return True
        if not self._changes_arguments:
            return False
        own = {id(leaves[p.index]) for p, _, _ in self._bindings if isinstance(p, Argument)}
        return any(id(p.find(leaves)) in own for c in self._held for p in c.places)

    def __call__(self, leaves: Sequence[Any], captured: list[Node]) -> Any:
        numbers = [leaves[i] for i in self._numbers]
        values = [number.compute(numbers) for number, _ in self._scalars]
        for value, (number, _) in zip(values, self._scalars, strict=True):
            if type(value) is not type(number.sample):
                raise Inline
        nodes = [*captured, *(leaves[i]._node for i in self._distinct)]
        nodes += [constant(v, dtype) for v, (_, dtype) in zip(values, self._scalars, strict=True)]
        taken = 0
        try:
            for generator in self._generators:
                first, second = generator.next()
                taken += 1
                nodes += [constant(first, uint32), constant(second, uint32)]
            with grad_mode(False):
                found = self._recipe.replay(nodes)
            evaluate(found)
        except BaseException:
            if taken:
                self._generators[0].give_back(taken)
            raise
        return self._finish(leaves, numbers, found)

    def _finish(self, leaves: Sequence[Any], numbers: Sequence[Any], found: list[Node]) -> Any:
        """Write back what the call changes, and put its result together."""
        made = [Tensor(detached(y, sees_writes=False)) for y in found]
        targets = [(place.find(leaves), at, leaf) for place, at, leaf in self._bindings]
        grads = [
            (place.slot(leaves), new.find(leaves) if isinstance(new, Place) else new)
            for place, new in self._grads
        ]
        for tensor, at, leaf in targets:
            if tensor is None:
                continue  # it was only there while the function was traced
            node = detached(found[at], sees_writes=False)
            if leaf:
                node.tracked = True
                node.grad_slot = tensor._node.grad_slot
            tensor._bind(node)
        for slot, grad in grads:
            if slot is not None:
                slot.grad = made[grad] if isinstance(grad, int) else grad
        return tree.unflatten(
            self.structure, [result(leaves, numbers, made) for result in self._results]
        )


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
