"""Functions that remember which graph they make.

A composition such as `softmax` runs a dozen lines of Python for each of its operations, and what
they build depends on nothing but the operands' dtypes and shapes, on the other arguments and on
what is set around the call. So from the third call of a kind on, its nodes are made natively, as
they were made the second time, where Python has native calls (`runtime/cpu/calls.py`). They are the
same nodes: transformations, gradients and evaluation see no difference. A native function looks for
itself whether a call is of its kind: the last few of them are asked first, and what they do not
know is looked up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeVar

from numus.compiler.singles import Family
from numus.dtypes import DType
from numus.graph import Node, View, mode, now, observers
from numus.graph_steps import MISS, write_modes, write_node, write_reach, write_view
from numus.primitives.base import Primitive
from numus.tensor import Tensor, write_handle

Function = TypeVar("Function", bound=Callable[..., Any])

_MANY = 256  # kinds of calls that are remembered of each function
_TRIED = 4  # native functions that are asked before a call is looked up
# What may be given besides tensors: others might change, or be kept alive for nothing.
_PLAIN_KINDS = frozenset({int, bool, str, type(None), DType})
_NEW: Any = object()  # of calls that are the first of their kind
_PLAIN: Any = object()  # of calls whose graph cannot be made natively


class _Made(NamedTuple):
    """What makes the graph of a kind of calls, and the arguments it knows; MISS for operands."""

    build: Callable[..., Any]
    given: Sequence[Any]


def recorded(function: Function) -> Function:
    """Let a function of tensors remember the graphs it makes.

    It has to give one tensor, look at no values, and depend on its arguments and `graph.mode` only.
    """
    known: dict[Any, Any] = {}
    family = Family()

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values(), *kwargs) if kwargs else args
        for build in family.calls:
            found = build(*given)
            if found is not MISS:
                if build is not family.calls[0]:
                    family.known(build, _TRIED)
                return found
        kind = None if observers else _kind(given)
        if kind is None:
            return function(*args, **kwargs)
        operands, key = kind
        made = known.get(key, _NEW)
        if made.__class__ is _Made:
            xs = iter(operands)
            found = made.build(*[next(xs) if x is MISS else x for x in made.given])
            if found is MISS:
                return function(*args, **kwargs)
            family.known(made.build, _TRIED)
            return found
        since = now()
        out = function(*args, **kwargs)
        if made is _NEW:
            if len(known) >= _MANY:
                known.clear()
            known[key] = None
        elif made is None:
            known[key] = _record(given, out, since) or _PLAIN
        return out

    return run  # type: ignore[return-value]


def _kind(given: Sequence[Any]) -> tuple[list[Tensor], tuple[Any, ...]] | None:
    """The operands among arguments, and what makes the graph that a function makes of them; None
    where that is more than can be told."""
    operands: list[Tensor] = []
    nodes: list[Node] = []
    kinds: list[Any] = [mode.grad, mode.low]
    for x in given:
        if x.__class__ is Tensor or isinstance(x, Tensor):
            node = x._node
            place, view = node.device, node.view
            if node.abstract or place is None:
                return None
            if node in nodes:  # the same once more
                kinds.append(nodes.index(node))
            operands.append(x)
            nodes.append(node)
            strides = None if view is None else view.strides
            kinds += (node.shape, node.dtype, strides, node.tracked, place.name)
        elif x.__class__ is float:  # -0.0 is another than 0.0
            kinds.append(repr(x))
        elif x.__class__ in _PLAIN_KINDS:  # of numbers that are equal, types may be others
            kinds += (x, x.__class__)
        elif x.__class__ is tuple and set(map(type, x)) <= {int}:
            kinds.append(x)
        else:
            return None
    return operands, tuple(kinds)


def _record(given: Sequence[Any], out: Any, since: int) -> _Made | None:
    """What makes a result like this one from arguments like these; None where that depends on
    more than their shapes, strides and dtypes, or cannot be done natively."""
    inputs = [x._node for x in given if isinstance(x, Tensor)]
    found = _between(inputs, out, since)
    calls = getattr(inputs[0].device.runtime, "native_calls", None) if found else None
    native = None if calls is None else calls()
    if not found or native is None:
        return None
    table = native.table()
    table.empty(observers)
    write_modes(table, {"grad": mode.grad, "low": mode.low})
    views = {x for node in found for x in inputs if _views_pending(node, (x,))}
    operands: list[int] = []
    registers: dict[Node, int] = {}
    for i, x in enumerate(given):
        if isinstance(x, Tensor):
            operands.append(table.get(table.argument(i), Tensor, "_node"))
            _write_operand(table, operands[-1], x._node, registers, x._node in views)
        else:
            table.same(table.argument(i), x)
    levels: dict[Node, int] = {}
    for node in found:
        if node.view is None:
            levels[node] = 1 + max((levels.get(x, 0) for x in node.inputs), default=0)
    depth, pinned = write_reach(table, operands, levels[out._node])
    nothing = table.object(0)
    for node in found:
        for x in node.inputs:
            if x not in registers:
                registers[x] = table.object(x)  # a constant
        members = {"inputs": table.tuple([registers[x] for x in node.inputs])}
        if node.view is None:
            members |= {"depth": depth, "pinned": pinned}
        else:  # of an operand's memory
            base = _base(node, inputs)
            assert base is not None
            view = write_view(table, node.view, registers[base])
            members |= {"depth": nothing, "pinned": nothing, "view": view}
        names = ("prim", "params", "shape", "dtype", "device", "tracked")
        known = {name: getattr(node, name) for name in names}
        registers[node] = write_node(table, known, members, handled=node is out._node)
    handle = write_handle(table, registers[out._node])
    build = table.function(len(given), handle, MISS)
    return _Made(build, [MISS if isinstance(x, Tensor) else x for x in given])


def _write_operand(
    table: Any, at: int, node: Node, registers: dict[Node, int], is_viewed: bool
) -> None:
    """That the operand in a register is like this one, and none of those before, if this one is
    none of them."""
    if node in registers:
        table.twins(at, registers[node])
        return
    for register in registers.values():
        table.others(at, register)
    registers[node] = at
    for name in ("abstract", "dtype", "device", "tracked"):
        table.has(at, Node, name, getattr(node, name))
    table.like(at, Node, "shape", node.shape)
    if node.view is None:
        table.has(at, Node, "view", None)
        if is_viewed:  # a view of a view is one of what that is a view of, maybe
            table.differs(table.load(at, Node, "prim"), Primitive, "kind", "view")
    else:
        view = table.load(at, Node, "view")
        table.get(view, View, "offset")  # looks whether there is a view
        table.like(view, View, "strides", node.view.strides)


def _between(inputs: list[Node], out: Any, since: int) -> list[Node]:
    """What a call has made since some time, constants apart, inputs first; nothing, where these
    nodes are not all that its result stands on, or are not to be made again."""
    if out.__class__ is not Tensor or not inputs:
        return []
    known = set(inputs)
    found: dict[Node, None] = {}
    stack: list[Node] = [out._node]
    while stack:
        node = stack.pop()
        if node in known or node in found or node.prim.name == "constant":
            continue
        strange = node.grad_slot is not None or node.abstract or node.serial < since
        if strange or node.device is not inputs[0].device:
            return []
        if (_base(node, inputs) is None) if node.view is not None else _is_given(node):
            return []
        if _views_pending(node, known) and node.inputs[0].prim.kind == "view":
            return []  # of what that is a view of, maybe
        found[node] = None
        stack += node.inputs
    last = out._node
    made = last in found and last.view is None
    return sorted(found, key=lambda node: node.serial) if made else []


def _is_given(node: Node) -> bool:
    """Whether a pending node is made of nothing, and not always alike: all but counters."""
    return not node.inputs and node.prim.name != "iota"


def _views_pending(node: Node, known: Collection[Node]) -> bool:
    """Whether a node is a view of a pending one of these."""
    if node.prim.kind != "view" or not node.inputs:
        return False
    source = node.inputs[0]
    return source in known and source.view is None


def _base(node: Node, inputs: list[Node]) -> Node | None:
    """The input in whose memory a realised node begins where the input does; None if there is none,
    or several."""
    view = node.view
    assert view is not None
    there = {x: x.view for x in inputs if x.view is not None and x.view.storage is view.storage}
    found = [x for x, own in there.items() if own.offset == view.offset]
    return found[0] if found and len(there) == 1 else None
