"""Forward mode: a walk along the tape that carries tangents, graph to graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numus.graph import Node, Nodes, Tangents
from numus.primitives.custom import call_of


def push_forward(order: Nodes, seeds: Mapping[Node, Node]) -> dict[Node, Node]:
    """The tangents of the nodes on the tape `order`, from those of some. Absent ones are zero."""
    tangents = dict(seeds)
    calls: dict[Any, Tangents] = {}
    for node in order:
        inputs = [tangents.get(x) for x in node.inputs]
        if node in seeds or all(t is None for t in inputs):
            continue
        call = call_of(node)
        if call is None:
            tangent = node.prim.jvp(node, inputs)
        else:  # the outputs of one call are differentiated together
            if call not in calls:
                rule, operands = call
                calls[call] = rule.jvp(operands, inputs[1:])
            tangent = calls[call][node.params[1]]
        if tangent is not None:
            tangents[node] = tangent
    return tangents
