"""Recipes: subgraphs without values, replayed on other operands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from numus.dispatch.apply import apply
from numus.dtypes import DType
from numus.graph import Node, Nodes, Primitive, mode
from numus.primitives.custom import graft
from numus.runtime.devices import Device
from numus.shapes import Shape


class _Step(NamedTuple):
    prim: Primitive
    operands: tuple[int | Node, ...]  # a position among the operands and earlier steps, or a node
    params: Any
    shape: Shape
    dtype: DType
    device: Device | None
    tracked: bool


class Recipe:
    """How some nodes were made from others, to be made again from different ones.

    `order` lists the nodes to make, inputs first; `inputs` are those that `replay` replaces.
    Other nodes that they depend on are used themselves.
    """

    def __init__(self, order: Iterable[Node], inputs: Nodes, outputs: Nodes) -> None:
        position: dict[Node, int] = {}
        for node in inputs:
            position[node] = len(position)
        self._steps = []
        self._shapes = [x.shape for x in inputs]  # by position
        for node in order:
            operands = tuple(position.get(x, x) for x in node.inputs)
            what = (node.prim, operands, node.params, node.shape, node.dtype)
            self._steps.append(_Step(*what, node.device, node.tracked))
            position[node] = len(position)
            self._shapes.append(node.shape)
        self._outputs = [position.get(x, x) for x in outputs]

    def matmuls(self, min_depth: int) -> list[int]:
        """Steps that are matmuls of at least this inner dimension."""
        found = []
        for number, step in enumerate(self._steps):
            if step.prim.name == "contract":
                x = step.operands[0]
                if (self._shapes[x] if isinstance(x, int) else x.shape)[-1] >= min_depth:
                    found.append(number)
        return found

    def replay(
        self, operands: Nodes, known: Mapping[int, Node] | None = None, wanted: Sequence[int] = ()
    ) -> list[Node]:
        """The outputs that follow from other inputs of the same shapes and dtypes; after them, the
        results of the `wanted` steps.

        Steps that were recorded under `no_grad` are not tracked this time either. Steps whose
        results are `known` are not computed again, only differentiated.
        """
        made = list(operands)
        ambient = mode.grad
        try:
            for number, step in enumerate(self._steps):
                mode.grad = ambient and step.tracked
                inputs = tuple(made[x] if isinstance(x, int) else x for x in step.operands)
                node = apply(step.prim, inputs, step.params, step.shape, step.dtype)
                if step.device is not None:
                    node.device = step.device
                if known and number in known:
                    node = graft(known[number], node)
                made.append(node)
        finally:
            mode.grad = ambient
        outputs = [made[x] if isinstance(x, int) else x for x in self._outputs]
        return outputs + [made[len(operands) + number] for number in wanted]


def reachable(outputs: Iterable[Node], follow: Callable[[Node], bool]) -> list[Node]:
    """The nodes that outputs depend on through nodes that `follow` accepts, inputs first."""
    found = {n for n in outputs if follow(n)}
    stack = list(found)
    while stack:
        for node in stack.pop().inputs:
            if node not in found and follow(node):
                found.add(node)
                stack.append(node)
    return sorted(found, key=lambda n: n.serial)


def dependents(outputs: Iterable[Node], placeholders: Collection[Node]) -> list[Node]:
    """The nodes between these placeholders and the outputs, inputs first."""
    if not placeholders:
        return []
    since = min(p.serial for p in placeholders)
    found: set[Node] = set(placeholders)
    order = []
    # what only placeholders depend on is none of them
    ends = frozenset(placeholders)
    follow = lambda n: n.abstract and n.serial > since and n not in ends  # noqa: E731
    for node in reachable(outputs, follow):
        if any(x in found for x in node.inputs):
            found.add(node)
            order.append(node)
    return order
