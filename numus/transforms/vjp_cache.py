"""Walks back along tapes that are like some before.

What reverse mode makes depends on the tape alone: its primitives, their parameters, shapes, dtypes
and layouts. So the cotangents of a tape that has come twice are made natively from then on, where
Python has native calls: a function goes through the graph from the results on, looks whether it is
the one that it is for, and makes the same nodes that the rules of the primitives would make
(`graph_copies`). Tapes on which functions of the user's are to be called take the way through the
rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numus.dispatch.call_cache import Family
from numus.dispatch.node_ops import MISS, native_calls_of, write_modes
from numus.dispatch.templates import (
    made_between,
    views_pending,
    write_alike,
    write_copy,
    write_is_no_view,
)
from numus.evaluation.eager_cache import write_number
from numus.graph import Node, mode, observers
from numus.primitives.custom import call_of

_MANY = 64  # families, and tapes whose walks are counted
_TRIED = 4  # functions of a family that are asked
_LONGEST = 256  # nodes of a tape
# What calls functions, or whose value may be another each time.
_UNKNOWN = ("call", "part", "placeholder")

_families: dict[Any, Family] = {}
_walked: dict[Any, int] = {}  # how often tapes have been walked


def forget() -> None:
    """Walk all tapes again."""
    _families.clear()
    _walked.clear()


def _family(seeds: Mapping[Node, Node], order: Sequence[Node], wanted: Sequence[Node]) -> Family:
    root = next(iter(seeds))
    kind = (root.prim, root.shape, root.dtype, len(order), len(seeds), len(wanted))
    family = _families.get(kind)
    if family is None:
        if len(_families) >= _MANY:
            _families.clear()
        family = _families[kind] = Family()
    return family


def pulled_back(
    order: Sequence[Node], seeds: Mapping[Node, Node], wanted: Sequence[Node]
) -> dict[Node, Node] | None:
    """`reverse.pull_back` of a tape like one before, for wanted nodes each of which is another;
    None if there was none."""
    if not seeds or observers or len(order) > _LONGEST:
        return None
    family = _family(seeds, order, wanted)
    for call in family.calls:
        found = call(*seeds, *seeds.values(), *wanted)
        if found is not MISS:
            if call is not family.calls[0]:
                family.known(call, _TRIED)
            pairs = iter(found)
            return dict(zip(pairs, pairs, strict=True))
    return None


def remember(
    order: Sequence[Node],
    seeds: Mapping[Node, Node],
    wanted: Sequence[Node],
    found: Mapping[Node, Node],
    since: int,
) -> None:
    """A walk has come to this, by nodes that were made since some time: the third of its kind need
    not be walked."""
    if not found or observers or len(order) > _LONGEST:
        return
    kinds = tuple([(x.prim, x.shape, x.dtype) for x in (*order, *seeds.values())])
    if len(_walked) >= _MANY:
        _walked.clear()
    count = _walked[kinds] = _walked.get(kinds, 0) + 1
    if count < 2 or count & (count - 1):  # more and more seldom, if that leads nowhere
        return
    call = _function(order, seeds, wanted, found, since)
    if call is not None:
        _family(seeds, order, wanted).known(call, _TRIED)


def _function(
    order: Sequence[Node],
    seeds: Mapping[Node, Node],
    wanted: Sequence[Node],
    found: Mapping[Node, Node],
    since: int,
) -> Any:
    """The native function for walks like this one; None where there is none."""
    device = next((x.device for x in order if x.device is not None), None)
    native = None if device is None else native_calls_of(device)
    if native is None or any(call_of(x) or x.prim.name in _UNKNOWN for x in order):
        return None
    table = native.table()
    table.empty(observers)
    write_modes(table, {"grad": mode.grad, "low": mode.low})
    arguments = [*seeds, *seeds.values(), *wanted]
    registers: dict[Node, int] = {}
    for i, node in enumerate(arguments):
        at = table.argument(i)
        table.get(at, Node, "serial")  # looks whether it is a node
        if node in registers:
            table.twins(at, registers[node])
        else:
            registers[node] = at
    tape = set(order)
    if not _write_tape(table, registers, tape, set(wanted)):
        return None
    made = made_between(registers, found.values(), since, tape)
    if made is None or any(g not in registers and g not in made for g in found.values()):
        return None
    if any(g in made and g.view is not None for g in found.values()):
        return None  # it may be written to, and its storage is another's
    for node, at in list(registers.items()):
        if any(views_pending(x, (node,)) for x in made) and node not in tape:
            write_is_no_view(table, at)
    registers = write_copy(table, made, registers, tape)
    pairs = [registers[x] for pair in found.items() for x in pair]
    return table.function(len(arguments), table.tuple(pairs), MISS)


def _write_tape(table: Any, registers: dict[Node, int], tape: set[Node], wanted: set[Node]) -> bool:
    """Steps of a native call: that what is in registers stands on a tape like this. Adds the
    registers of all of it; False where something cannot be told from others."""
    ahead = list(registers)
    for node in ahead:  # which grows
        at = registers[node]
        if node.prim.name == "constant":
            if not write_number(table, at, node):
                return False
            continue
        if node.abstract:
            return False
        write_alike(table, at, node)
        if node.view is None or node in tape:
            table.has(at, Node, "prim", node.prim)
        if node not in tape:
            continue
        if node not in wanted:
            if node.grad_slot is not None:
                return False  # it has hooks, maybe
            table.has(at, Node, "grad_slot", None)
        table.like(at, Node, "params", node.params)
        inputs = table.load(at, Node, "inputs")
        table.counts(inputs, len(node.inputs))
        for place, x in enumerate(node.inputs):
            below = table.element(inputs, place)
            if x in registers:
                table.twins(below, registers[x])
            else:
                registers[x] = below
                ahead.append(x)
    return True
