"""A pending graph as one walk sees it: its structure, by which plans are kept, and which of its
values somebody may still ask for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from numus.compiler.graph.builder import number_class
from numus.compiler.graph.value import IDENTITIES
from numus.shapes import Shape


class GraphSignature:
    """What there is, numbered, and what it is like."""

    __slots__ = (
        *("classes", "constants", "kept", "key", "leaf_strides", "leaves", "nodes", "number"),
        *("tracked", "transfers"),
    )

    def __init__(self, roots: Sequence[Any]) -> None:
        nodes: list[Any] = []
        number: dict[Any, int] = {}
        leaves: list[Any] = []
        leaf_strides: list[Shape] = []
        constants: list[Any] = []
        classes: list[int | None] = []
        self.nodes, self.number = nodes, number
        self.leaves, self.leaf_strides = leaves, leaf_strides
        self.constants, self.classes = constants, classes
        self.transfers: list[Any] = []  # from other devices and of calls, still to be made
        parts: list[Any] = []
        uses: dict[int, int] = {}  # how often each node is an input within this graph
        stack: list[Any] = list(roots)
        while stack:
            node = stack[-1]
            if node in number:
                stack.pop()
                continue
            waiting = False
            inputs = node.inputs
            for x in inputs:
                if x in number:
                    continue
                name = x.prim.name
                view = x.view
                if view is not None:
                    parts.append((x.dtype, x.shape, view.strides))
                    leaves.append(x)
                    leaf_strides.append(view.strides)
                elif name == "constant":
                    classes.append(number_class(x.params))
                    parts.append((x.dtype, classes[-1]))
                    constants.append(x)
                elif name == "transfer" or name == "part":
                    self.transfers.append(x)
                else:
                    stack.append(x)
                    waiting = True
                    continue
                number[x] = len(nodes)
                nodes.append(x)
            if waiting:
                continue
            stack.pop()
            name = node.prim.name
            if name == "constant":
                classes.append(number_class(node.params))
                parts.append((node.dtype, classes[-1]))
                constants.append(node)
            else:
                places = [number[x] for x in inputs]
                for i in places:
                    uses[i] = uses.get(i, 0) + 1
                params = None if name in IDENTITIES else node.params
                parts.append((name, params, node.shape, node.dtype, *places))
            number[node] = len(nodes)
            nodes.append(node)
        x = None
        inputs = stack = []  # let go of every node but through `nodes` and `number`
        wanted = tuple([number[r] for r in roots])
        self.kept: tuple[int, ...] = ()
        self.tracked: tuple[int, ...] = ()  # a gradient may ask for these
        if len(nodes) - len(leaves) - len(constants) > len(wanted):
            del node
            self.kept = self._still_referred_to(uses, set(wanted))
            self.tracked = tuple([i for i, n in enumerate(nodes) if n.tracked and n.view is None])
        self.key = (tuple(parts), wanted, self.kept, self.tracked)

    def _still_referred_to(self, uses: dict[int, int], roots: set[int]) -> tuple[int, ...]:
        """Pending nodes that something outside this graph holds: they may be asked for later, so
        their values are kept. Inside, a node is held by its consumers and as `_OWN_HOLDERS` says.
        """
        count, own = sys.getrefcount, _OWN_HOLDERS
        kept = []
        nodes = self.nodes
        for i in range(len(nodes)):
            node = nodes[i]
            if (
                node.view is None
                and node.inputs
                and i not in roots
                and count(node) > uses[i] + own
                and node.device is not None  # else it is at home on other devices too
                and not costs_nothing(node)
            ):
                kept.append(i)
        return tuple(kept)


def _own_holders() -> int:
    """What `getrefcount` says of a node that only a walk holds: in `nodes`, in `number`, by the
    name in the loop and, in some versions of Python, as its argument.
    """
    node = object()
    walk = ([node], {node: 0})
    return sys.getrefcount(node) if walk else 0


_OWN_HOLDERS = _own_holders()


def costs_nothing(node: Any) -> bool:
    """Whether a pending node is a view of a constant or of counting: never worth its memory."""
    while node.prim.kind == "view":
        node = node.inputs[0]
    return node.view is None and node.prim.kind == "source"
