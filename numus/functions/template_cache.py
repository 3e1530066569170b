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
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from numus.dispatch.call_cache import Family
from numus.dispatch.node_ops import MISS, native_calls_of, write_modes
from numus.dispatch.templates import (
    made_between,
    views_pending,
    write_alike,
    write_copy,
    write_is_no_view,
)
from numus.dtypes import DType
from numus.graph import Node, mode, now, observers
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
    if out.__class__ is not Tensor or not inputs:
        return None
    found = made_between(inputs, (out._node,), since)
    if not found or out._node not in found or out._node.view is not None:
        return None
    native = native_calls_of(inputs[0].device)
    if native is None:
        return None
    table = native.table()
    table.empty(observers)
    write_modes(table, {"grad": mode.grad, "low": mode.low})
    registers: dict[Node, int] = {}
    for i, x in enumerate(given):
        if not isinstance(x, Tensor):
            table.same(table.argument(i), x)
            continue
        node, at = x._node, table.get(table.argument(i), Tensor, "_node")
        if node in registers:
            table.twins(at, registers[node])
            continue
        for other in registers.values():
            table.others(at, other)
        registers[node] = at
        write_alike(table, at, node)
        if any(views_pending(made, (node,)) for made in found):
            write_is_no_view(table, at)
    registers = write_copy(table, found, registers, handled=out._node)
    handle = write_handle(table, registers[out._node])
    build = table.function(len(given), handle, MISS)
    return _Made(build, [MISS if isinstance(x, Tensor) else x for x in given])
