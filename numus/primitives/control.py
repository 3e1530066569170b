"""Loops and branches: calls with several results, whose bodies are graphs of their own.

A call is one node with a tuple of results, taken by `get_tuple_element` nodes (as in XLA). The call
defines how it is run and batched; its derivative is that of `custom` nodes on top of the elements
(see transforms/control).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from numus import graph
from numus.dispatch.apply import apply
from numus.dtypes import DType, bool_
from numus.graph import Array, Node, Nodes, Primitive, View, mode
from numus.primitives.views import permute
from numus.shapes import Shape


class Call(Protocol):
    """The parameter of a call node: it has no values of its own, so it may be used again."""

    name: str
    results: list[tuple[Shape, DType]]
    batch_axes: list[int]  # where each result has the axis that `batched` gave it

    def run(self, device: Any, operands: Nodes) -> list[View]:
        """Compute the results from realised operands."""

    def batched(self, operands: Nodes, flags: Sequence[bool], size: int) -> BoundCall:
        """The call over a new leading axis of the flagged operands, and its operands."""


BoundCall = tuple[Call, tuple[Node, ...]]


class Effect:
    """A call that others outside of this process take part in.

    It runs where it is called, in the order of calls, whether or not its results are used: not when
    somebody happens to read them. In a trace of `nm.jit` it is a step of each call of the function.
    """

    def start(self, device: Any, operands: Nodes) -> Started:
        """Begin to compute the results from realised operands."""
        raise NotImplementedError

    def run_at(self, device: Any, at: View) -> View | None:
        """The result of a short effect with one operand and one result, of memory as it lies there;
        None where it is to be started and waited for."""
        return None

    def is_on_stream(self, device: Any) -> bool:
        """Whether it is work on the stream of a device, in order with kernels: such effects may be
        recorded (`runtime.recorder`)."""
        return False


def has_effects(call: Any) -> bool:
    """Whether a call is an effect, or a loop or branch with effects in its body."""
    return isinstance(call, Effect) or bool(getattr(call, "has_effects", False))


class Started(Protocol):
    """An effect under way."""

    def views(self) -> list[View]:
        """Wait for the results."""


def _no_reference(node: Node, *arrays: Array) -> Array:
    raise AssertionError("a call is run as a whole: see get_tuple_element")


def _call_batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    call, operands = node.params.batched(inputs, batched, size)
    return apply(_call, operands, call, (), bool_)


# It has no value of its own; as a bool it is never tracked.
_call = Primitive("call", "control", _no_reference, batch=_call_batch)


def _element_batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    whole = inputs[0]
    out = get_tuple_element(whole, node.params)
    axis = whole.params.batch_axes[node.params]
    return permute(out, (axis, *(i for i in range(out.ndim) if i != axis)))


_get_tuple_element = Primitive("get_tuple_element", "control", _no_reference, batch=_element_batch)


def get_tuple_element(whole: Node, index: int) -> Node:
    """One result of a call."""
    shape, dtype = whole.params.results[index]
    node = apply(_get_tuple_element, (whole,), index, shape, dtype)
    if has_effects(whole.params):
        if not node.abstract:
            graph.realise(node)
        elif mode.effects is not None and mode.effects.index() is not None:
            mode.effects.runs(node)
        elif mode.trace is not None and node.abstract is mode.trace:
            mode.trace.effects.append(node)
    return node


def _repeated(operands: tuple[Node, ...]) -> tuple[Node, ...]:
    """The operands of an effect, with what makes it run as often as it is called: in each iteration
    of a loop, and in each call of a traced function, also where they are the same every time. An
    effect reads the first operand only."""
    if mode.effects is not None:
        index = mode.effects.index()
        if index is not None:
            return (*operands, index)
    if mode.trace is None or any(x.abstract or graph.is_captured(x) for x in operands):
        return operands
    return (mode.trace.lift(operands[0]), *operands[1:])


def call(what: Call, operands: tuple[Node, ...]) -> list[Node]:
    """The results of a call."""
    if isinstance(what, Effect):
        operands = _repeated(operands)
    whole = apply(_call, operands, what, (), bool_)
    return [get_tuple_element(whole, i) for i in range(len(what.results))]
