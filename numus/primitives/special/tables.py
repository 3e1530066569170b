"""Machinery of the rows: references of scipy.special, and operations on nodes in short."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numus.dispatch.apply import apply
from numus.graph import Array, Node
from numus.primitives.elementwise import arithmetic as ar
from numus.shapes import broadcast as broadcast_shapes

Partial = Callable[..., Any]


def nary(
    name: str, reference: Callable[..., Array], partials: Partial | None
) -> Callable[..., Node]:
    """A primitive of any number of operands, which are broadcast."""
    prim = ar._elementwise(name, reference, partials)

    def build(*xs: Node) -> Node:
        shape = xs[0].shape
        for x in xs[1:]:
            shape = shape if x.shape == shape else broadcast_shapes(shape, x.shape, name)
        return apply(prim, xs, None, shape, xs[0].dtype)

    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"The elementwise primitive `{name}`."
    return build


def number(value: float, like: Node) -> Node:
    return ar.scalar_like(value, like)


def times(x: Node, by: float) -> Node:
    return ar.mul(x, ar.scalar_like(by, x))


def plus(x: Node, by: float) -> Node:
    return ar.add(x, ar.scalar_like(by, x))


def minus_from(value: float, x: Node) -> Node:
    return ar.sub(ar.scalar_like(value, x), x)
