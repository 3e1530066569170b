"""Functions that remember which graph they make.

A composition such as `softmax` runs a dozen lines of Python for each of its operations, and what
they build depends on nothing but the operands' dtypes and shapes, on the other arguments and on
what is set around the call. So from the third call of a kind on, its nodes are made natively, as
they were made the second time, where Python has native calls (`runtime/cpu/calls.py`). They are the
same nodes: transformations, gradients and evaluation see no difference.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeVar

from numus import config
from numus.dtypes import DType
from numus.graph import Node, mode, now, observers, write_node, write_view
from numus.tensor import Tensor, write_handle

Function = TypeVar("Function", bound=Callable[..., Any])

_MANY = 256  # kinds of calls that are remembered of each function
# What may be given besides tensors: others might change, or be kept alive for nothing.
_PLAIN_KINDS = frozenset({int, bool, str, type(None), DType})
_MISS: Any = object()
_NEW: Any = object()  # of calls that are the first of their kind
_PLAIN: Any = object()  # of calls whose graph cannot be made natively


class _Made(NamedTuple):
    """What makes the graph of a kind of calls."""

    build: Callable[..., Any]  # of the operands, and of how far the pending graph reaches then
    depth: int  # how much deeper it is than the deepest operand
    direct: int  # bytes of operands that are there
    reshapes: bool  # whether it reshapes a pending operand


def recorded(function: Function) -> Function:
    """Let a function of tensors remember the graphs it makes.

    It has to give one tensor, look at no values, and depend on its arguments and `graph.mode` only.
    """
    known: dict[Any, Any] = {}

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if observers:
            return function(*args, **kwargs)
        nodes: list[Node] = []
        kinds: list[Any] = [mode.grad, mode.low]
        depth = pinned = 0
        of_views = False
        for x in (*args, *kwargs.values(), *kwargs) if kwargs else args:
            if x.__class__ is Tensor or isinstance(x, Tensor):
                node = x._node
                place, view = node.device, node.view
                if node.abstract or place is None:
                    return function(*args, **kwargs)
                if node in nodes:  # the same once more
                    kinds.append(nodes.index(node))
                nodes.append(node)
                strides = None
                if view is not None:
                    strides = view.strides
                else:
                    of_views |= node.prim.kind == "view"
                    depth = node.depth if node.depth > depth else depth
                    pinned = node.pinned if node.pinned > pinned else pinned
                kinds += (node.shape, node.dtype, strides, node.tracked, place.name)
            elif x.__class__ is float:  # -0.0 is another than 0.0
                kinds.append(repr(x))
            elif x.__class__ in _PLAIN_KINDS:  # of numbers that are equal, types may be others
                kinds += (x, x.__class__)
            elif x.__class__ is tuple and set(map(type, x)) <= {int}:
                kinds.append(x)
            else:
                return function(*args, **kwargs)
        key = tuple(kinds)
        made = known.get(key, _NEW)
        if made.__class__ is _Made:
            depth += made.depth
            pinned += made.direct
            near = depth < config.MAX_PENDING_DEPTH and pinned <= config.MAX_PENDING_BYTES
            if near and not (of_views and made.reshapes):
                found = made.build(*nodes, depth, pinned)
                if found is not _MISS:
                    return found
            return function(*args, **kwargs)
        since = now()
        out = function(*args, **kwargs)
        if made is _NEW:
            if len(known) >= _MANY:
                known.clear()
            known[key] = None
        elif made is None:
            known[key] = _record(nodes, out, since) or _PLAIN
        return out

    return run  # type: ignore[return-value]


def _record(inputs: list[Node], out: Any, since: int) -> _Made | None:
    """What makes a result like this one from nodes like these inputs; None where that depends on
    more than their shapes, strides and dtypes, or cannot be done natively."""
    found = _between(inputs, out, since)
    calls = getattr(inputs[0].device.runtime, "native_calls", None) if found else None  # type: ignore[union-attr]
    native = None if calls is None else calls()
    if not found or native is None:
        return None
    table = native.table()
    registers = {node: table.argument(i) for i, node in enumerate(inputs)}
    depth, pinned = (table.argument(len(inputs) + i) for i in (0, 1))
    nothing = table.object(0)
    levels: dict[Node, int] = {}
    reshapes = False
    for node in found:
        for x in node.inputs:
            if x not in registers:
                registers[x] = table.object(x)  # a constant
        operands = table.tuple([registers[x] for x in node.inputs])
        if node.view is None:
            reshapes |= _views_pending(node, inputs)
            levels[node] = 1 + max((levels.get(x, 0) for x in node.inputs), default=0)
            made = write_node(table, node, operands, depth, pinned, handled=node is out._node)
        else:  # of an operand's memory
            view = write_view(table, node.view, registers[_base(node, inputs)])  # type: ignore[index]
            made = write_node(table, node, operands, nothing, nothing, view)
        registers[node] = made
    handle = write_handle(table, registers[out._node])
    build = table.function(len(inputs) + 2, handle, _MISS)
    direct = sum(_bytes(node) for node in inputs if node.view is not None)
    return _Made(build, levels[out._node], direct, reshapes)


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


def _bytes(node: Node) -> int:
    size = node.dtype.itemsize
    for extent in node.shape:
        size *= extent
    return size
