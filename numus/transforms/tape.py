"""The tape: the part of the graph that a derivative can walk.

Nodes that are tracked keep their inputs, so the graph itself is the tape. A transformation that
differentiates with respect to its arguments gives them nodes of their own (`variable`), runs the
function, and walks back from the results no further than those: older nodes cannot depend on them.
As every call has its own variables, nesting is free of perturbation confusion.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from numus.graph import Node, mode
from numus.primitives.source import forget
from numus.primitives.views import identity

_serial = attrgetter("serial")


def variable(x: Node) -> Node:
    """A tracked node with x's value; where x is tracked itself, derivatives go on to it."""
    node = identity(x)
    node.tracked = True
    return node


def tape(roots: Iterable[Node], since: int = 0) -> list[Node]:
    """The tracked nodes younger than `since` that the roots depend on, inputs first."""
    found = {n for n in roots if n.tracked and n.serial > since}
    stack = list(found)
    while stack:
        for node in stack.pop().inputs:
            if node.tracked and node.serial > since and node not in found:
                found.add(node)
                stack.append(node)
    return sorted(found, key=_serial)


def leads_outside(order: Iterable[Node], since: int) -> bool:
    """True if any node of this tape is also differentiable by older nodes."""
    for node in order:
        if node.grad_slot is not None and is_leaf(node):
            return True
        for x in node.inputs:
            if x.tracked and x.serial <= since:
                return True
    return False


def untrack(order: Iterable[Node]) -> None:
    """Stop tracking nodes that were tracked only for the variables of a finished transformation."""
    for node in order:
        if not is_leaf(node):
            node.tracked = mode.grad and any(x.tracked for x in node.inputs)
            if node.view is not None and not node.tracked:
                forget(node)


def is_tracked_leaf(node: Node) -> bool:
    return node.tracked and is_leaf(node)


def is_leaf(node: Node) -> bool:
    """True if `backward()` ends here and stores a gradient."""
    return node.grad_slot is not None and bool(node.grad_slot.leaf)
