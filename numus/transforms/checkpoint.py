"""checkpoint: rematerialisation of a function's intermediate values in its derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from numus.graph import Node, Nodes, Tangents, mode, now
from numus.primitives.source import forget
from numus.primitives.structure import barrier
from numus.tensor import Tensor
from numus.transforms.rules import CallRule, connected, flatten
from numus.transforms.subgraph import Recipe
from numus.transforms.tape import is_leaf
from numus.transforms.trace import Trace, require_function

__all__ = ["checkpoint"]

P = ParamSpec("P")
R = TypeVar("R")


def checkpoint(f: Callable[P, R]) -> Callable[P, R]:
    """A function with f's values and derivatives that keeps none of f's intermediate values.

    Derivatives compute those they need again. f itself runs once: the second time its graph is
    rebuilt, so random draws are the same and effects happen once.
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
        spec, outputs = flatten(result)
        if not (mode.grad and any(y.tracked and y.serial > since for y in outputs)):
            return result
        _, given = flatten((args, kwargs))
        order, captured = nodes_since(outputs, since)
        operands = tuple(dict.fromkeys((*given, *captured)))
        rule = CheckpointRule(len(outputs), Recipe(order, operands, outputs))
        for node in order:
            node.tracked = False
            if node.view is not None:
                forget(node)
        return connected(rule, spec, outputs, operands)

    return run


def nodes_since(outputs: Iterable[Node], since: int) -> tuple[list[Node], list[Node]]:
    """The nodes that a call has made, inputs first, and the older tracked ones that it uses.

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
    in_order, older = (sorted(nodes, key=lambda n: n.serial) for nodes in (made, captured))
    return in_order, older


@dataclass(eq=False)
class CheckpointRule(CallRule):
    """Both derivatives are those of the call's graph, built again on its operands."""

    recipe: Recipe

    def _retraced(self, operands: Nodes) -> Trace:
        # the barrier keeps a compiler from merging this with the first computation
        fresh = [Tensor(barrier(x, "checkpoint")) for x in operands]

        def replay(*xs: Tensor) -> list[Tensor]:
            return [Tensor(y) for y in self.recipe.replay([x._node for x in xs])]

        return Trace("checkpoint", replay, fresh)

    def vjp(self, operands: Nodes, cotangents: Tangents) -> Tangents:
        return self._retraced(operands).vjp(cotangents)

    def jvp(self, operands: Nodes, tangents: Tangents) -> Tangents:
        trace = self._retraced(operands)
        found = trace.forward(tangents)
        trace.close(found)
        return found
