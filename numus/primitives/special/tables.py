"""Machinery of the rows: references of scipy.special, and operations on nodes in short."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numus.dispatch.apply import apply
from numus.errors import GradientError
from numus.graph import Array, Node, Primitive, Tangents
from numus.primitives.elementwise import arithmetic as ar
from numus.shapes import broadcast as broadcast_shapes

Partial = Callable[..., Any]


def nary(
    name: str,
    reference: Callable[..., Array],
    partials: Partial | None,
    fixed: Mapping[int, str] | None = None,
) -> Callable[..., Node]:
    """A primitive of any number of operands, which are broadcast.

    `fixed` names the operands without a known derivative: to ask for one is an error.
    """
    prim = ar._elementwise(name, reference, partials)
    if fixed:
        _refuse(prim, name, fixed)

    def build(*xs: Node) -> Node:
        shape = xs[0].shape
        for x in xs[1:]:
            shape = shape if x.shape == shape else broadcast_shapes(shape, x.shape, name)
        return apply(prim, xs, None, shape, xs[0].dtype)

    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"The elementwise primitive `{name}`."
    return build


def unknown_derivative(op: str, operand: str) -> str:
    """What an error says where a derivative has no formula here."""
    return (
        f"{op}: its derivative by {operand} is not known; {operand}.detach() takes it as "
        "a constant, and the function can be differentiated by its argument"
    )


def _refuse(prim: Primitive, name: str, fixed: Mapping[int, str]) -> None:
    vjp, jvp = prim.vjp, prim.jvp

    def check(asked: Sequence[bool]) -> None:
        for i, operand in fixed.items():
            if asked[i]:
                raise GradientError(unknown_derivative(name, operand))

    def checked_vjp(node: Node, g: Node) -> Sequence[Node | None]:
        check([x.tracked for x in node.inputs])
        return vjp(node, g)

    def checked_jvp(node: Node, tangents: Tangents) -> Node | None:
        check([t is not None for t in tangents])
        return jvp(node, tangents)

    prim.vjp, prim.jvp = checked_vjp, checked_jvp


def number(value: float, like: Node) -> Node:
    return ar.scalar_like(value, like)


def times(x: Node, by: float) -> Node:
    return ar.mul(x, ar.scalar_like(by, x))


def plus(x: Node, by: float) -> Node:
    return ar.add(x, ar.scalar_like(by, x))


def minus_from(value: float, x: Node) -> Node:
    return ar.sub(ar.scalar_like(value, x), x)
