"""Rules that several primitives share.

`numus.graph.Primitive` is the protocol that every operation fills in.
"""

from __future__ import annotations

from collections.abc import Sequence

from numus.graph import Batch, Node, Primitive, Reference


def zero_vjp(node: Node, g: Node) -> tuple[None, ...]:
    """The vjp of operations whose derivative is zero almost everywhere."""
    return (None,) * len(node.inputs)


def zero_jvp(node: Node, tangents: Sequence[Node | None]) -> None:
    """The jvp of operations whose derivative is zero almost everywhere."""
    return None


def nondifferentiable(name: str, kind: str, reference: Reference, batch: Batch) -> Primitive:
    """A primitive whose derivative is zero almost everywhere."""
    return Primitive(name, kind, reference=reference, vjp=zero_vjp, jvp=zero_jvp, batch=batch)
