"""Rules that several primitives share.

`numus.graph.Primitive` is the protocol that every operation fills in.
"""

from __future__ import annotations

from collections.abc import Callable

from numus.graph import Batch, Jvp, Node, Primitive, Reference, Tangents


def zero_vjp(node: Node, g: Node) -> tuple[None, ...]:
    """The vjp of operations whose derivative is zero almost everywhere."""
    return (None,) * len(node.inputs)


def zero_jvp(node: Node, tangents: Tangents) -> None:
    """The jvp of operations whose derivative is zero almost everywhere."""
    return None


def nondifferentiable(name: str, kind: str, reference: Reference, batch: Batch) -> Primitive:
    """A primitive whose derivative is zero almost everywhere."""
    return Primitive(name, kind, reference, zero_vjp, zero_jvp, batch)


def unary_jvp(rule: Callable[[Node, Node], Node | None]) -> Jvp:
    """The jvp of a primitive that is differentiated by its first input, as rule(node, tangent)."""
    return lambda node, tangents: None if tangents[0] is None else rule(node, tangents[0])
