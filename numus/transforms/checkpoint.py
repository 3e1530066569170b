"""checkpoint: compute again on the way back instead of keeping values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from numus.graph import Node, mode, now
from numus.primitives.source import forget
from numus.primitives.structure import barrier
from numus.tensor import Tensor
from numus.transforms.rules import CallRule, connected, flatten
from numus.transforms.subgraph import Recipe
from numus.transforms.tape import is_leaf
from numus.transforms.trace import Trace, require_function

__all__ = ["checkpoint"]


def checkpoint(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function with f's values and derivatives that keeps none of f's intermediate values.

    What a derivative needs of them is computed again when it is asked for. f itself runs once: the
    second time its graph is rebuilt, so random draws are the same and effects happen once.
    Tensors that f closes over get their gradients.

    >>> import numus as nm
    >>> block = nm.checkpoint(lambda x: nm.exp(nm.sin(x)))
    >>> nm.grad(block)(0.0).item()
    1.0
    """
    require_function(f, "checkpoint")

    @functools.wraps(f)
    def run(*args: Any, **kwargs: Any) -> Any:
        since = now()
        result = f(*args, **kwargs)
        form, outputs = flatten(result)
        if not (mode.grad and any(y.tracked and y.serial > since for y in outputs)):
            return result
        _, given = flatten((args, kwargs))
        order, captured = _younger(outputs, since)
        operands = tuple(dict.fromkeys((*given, *captured)))
        rule = CheckpointRule(Recipe(order, operands, outputs), len(outputs))
        for node in order:
            node.tracked = False
            if node.view is not None:
                forget(node)
        return connected(rule, form, outputs, operands)

    return run


def _younger(outputs: Iterable[Node], since: int) -> tuple[list[Node], list[Node]]:
    """The nodes that a call has made, inputs first, and older ones whose derivative it has part in.

    Placeholders count as the latter, tracked or not: vmap has to find them among the operands.
    """
    made: set[Node] = set()
    captured: dict[Node, None] = {}
    stack = list(outputs)
    while stack:
        node = stack.pop()
        if node in made or node in captured:
            continue
        if node.serial <= since or is_leaf(node):
            if node.tracked or node.abstract:
                captured[node] = None
        elif node.inputs:
            made.add(node)
            stack.extend(node.inputs)
    in_order = sorted(made, key=lambda n: n.serial)
    return in_order, sorted(captured, key=lambda n: n.serial)


class CheckpointRule(CallRule):
    """Both derivatives are those of the call's graph, built again on its operands."""

    def __init__(self, recipe: Recipe, count: int) -> None:
        super().__init__()
        self._recipe = recipe
        self.count = count

    def _again(self, operands: Sequence[Node]) -> Trace:
        # the barrier keeps a compiler from merging this with the first computation
        fresh = [Tensor(barrier(x, "checkpoint")) for x in operands]

        def replay(*xs: Tensor) -> list[Tensor]:
            return [Tensor(y) for y in self._recipe.replay([x._node for x in xs])]

        return Trace("checkpoint", replay, fresh)

    def vjp(
        self, operands: Sequence[Node], cotangents: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        trace = self._again(operands)
        found = trace.reverse(cotangents)
        trace.close(found)
        return found

    def jvp(
        self, operands: Sequence[Node], tangents: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        trace = self._again(operands)
        found = trace.forward(tangents)
        trace.close(found)
        return found
