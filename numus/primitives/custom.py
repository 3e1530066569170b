"""Custom derivatives: identities on their first input, which the compiler elides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from numus.dispatch.apply import apply
from numus.graph import Node, Nodes, Primitive, Tangents
from numus.primitives.broadcast import batch_all

# -- graft ----------------------------------------------------------------------------------------


_graft = Primitive(
    "graft",
    "elementwise",
    reference=lambda node, value, source: value,
    vjp=lambda node, g: (None, g),
    jvp=lambda node, tangents: tangents[1],
    batch=lambda node, *inputs: graft(*batch_all(*inputs)),
)


def graft(value: Node, source: Node) -> Node:
    """`value`, differentiated as if it were `source`, which has the same shape and dtype."""
    return apply(_graft, (value, source), None, value.shape, value.dtype)


# -- custom ---------------------------------------------------------------------------------------


class Rule(Protocol):
    """How a call with its own derivative is differentiated: all its outputs together.

    Operands are the nodes that the call was given and whatever it keeps for the way back;
    cotangents and tangents that are None are zero.
    """

    count: int  # of outputs

    def vjp(self, operands: Nodes, cotangents: Tangents) -> Tangents:
        """A cotangent for each operand, from one for each output."""

    def jvp(self, operands: Nodes, tangents: Tangents) -> Tangents:
        """A tangent for each output, from one for each operand."""

    def batched(self, size: int, flags: tuple[bool, ...]) -> Rule:
        """The rule over a new leading axis, carried by the flagged operands and by every output.

        The same arguments give the same rule, so that the outputs of a call stay together.
        """


def _custom_vjp(node: Node, g: Node) -> tuple[Node | None, ...]:
    rule, index = node.params
    cotangents = [g if i == index else None for i in range(rule.count)]
    return (None, *rule.vjp(node.inputs[1:], cotangents))


def _custom_jvp(node: Node, tangents: Tangents) -> Node | None:
    rule, index = node.params
    if all(t is None for t in tangents[1:]):
        return None
    return rule.jvp(node.inputs[1:], tangents[1:])[index]


def _custom_batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    rule, index = node.params
    (value,) = batch_all(inputs[:1], batched[:1], size)
    return custom(rule.batched(size, tuple(batched[1:])), index, value, tuple(inputs[1:]))


_custom = Primitive(
    "custom",
    "elementwise",
    reference=lambda node, value, *operands: value,
    vjp=_custom_vjp,
    jvp=_custom_jvp,
    batch=_custom_batch,
)


def custom(rule: Rule, index: int, value: Node, operands: tuple[Node, ...]) -> Node:
    """Output `index` of a call: `value` holds it, `rule` differentiates it.

    Nodes with the same rule and operands are outputs of one call; they are made one after the
    other, so that nothing which uses one of them is older than another.
    """
    return apply(_custom, (value, *operands), (rule, index), value.shape, value.dtype)


def call_of(node: Node) -> tuple[Rule, tuple[Node, ...]] | None:
    """The call whose output a custom node is; None for other nodes."""
    return (node.params[0], node.inputs[1:]) if node.prim is _custom else None


# -- implicit -------------------------------------------------------------------------------------


class ImplicitRule(Protocol):
    """The derivative of a value in terms of itself, as that of a factorisation or solution is.

    Tangents may be None. The result is the differentiated node, so what the rule computes can be
    differentiated again.
    """

    def vjp(self, result: Node, operands: Nodes, cotangent: Node) -> Tangents:
        """A cotangent for each operand."""

    def jvp(self, result: Node, operands: Nodes, tangents: Tangents) -> Node | None:
        """The tangent of the result."""


def _implicit_vjp(node: Node, g: Node) -> tuple[Node | None, ...]:
    return (None, *node.params.vjp(node, node.inputs[1:], g))


def _implicit_jvp(node: Node, tangents: Tangents) -> Node | None:
    if all(t is None for t in tangents[1:]):
        return None
    found: Node | None = node.params.jvp(node, node.inputs[1:], tangents[1:])
    return found


_implicit = Primitive(
    "implicit",
    "elementwise",
    reference=lambda node, value, *operands: value,
    vjp=_implicit_vjp,
    jvp=_implicit_jvp,
    batch=lambda node, *inputs: implicit(node.params, *batch_all(*inputs)),
)


def implicit(rule: ImplicitRule, value: Node, *operands: Node) -> Node:
    """`value`, a function of operands that `rule` differentiates; it takes further leading axes."""
    return apply(_implicit, (value, *operands), rule, value.shape, value.dtype)
