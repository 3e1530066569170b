"""VJP cache: reverse mode of repeated tapes by graph templates.

The cotangents' graph depends only on the tape: primitives, parameters, shapes, dtypes and layouts.
When a tape comes again, a template (`dispatch/templates`) guards the graph from the results on and
makes the nodes that the primitives' VJP rules made. Tapes that call user functions are walked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numus.dispatch.call_cache import GUARD_FAILED, CallCache, InlineCache
from numus.dispatch.templates import (
    TemplateBuilder,
    guard_constant,
    guard_node,
    match_graph,
    new_template,
)
from numus.graph import Node, active_hooks
from numus.primitives.custom import call_of

_MAX_TAPE_NODES = 256
_OPAQUE = ("call", "get_tuple_element", "placeholder")  # call functions, or have no fixed value

_cache = CallCache(max_structures=64, max_sites=64)
clear = _cache.clear


def _site(seeds: Mapping[Node, Node], order: Sequence[Node], wanted: Sequence[Node]) -> InlineCache:
    root = next(iter(seeds))
    return _cache.site((root.prim, root.shape, root.dtype, len(order), len(seeds), len(wanted)))


def lookup(
    order: Sequence[Node], seeds: Mapping[Node, Node], wanted: Sequence[Node]
) -> dict[Node, Node] | None:
    """`reverse.pull_back` of a known tape, for distinct wanted nodes; None if it is not known."""
    if not seeds or active_hooks or len(order) > _MAX_TAPE_NODES:
        return None
    found = _site(seeds, order, wanted).call((*seeds, *seeds.values(), *wanted))
    if found is GUARD_FAILED:
        return None
    pairs = iter(found)
    return dict(zip(pairs, pairs, strict=True))


def record(
    order: Sequence[Node],
    seeds: Mapping[Node, Node],
    wanted: Sequence[Node],
    found: Mapping[Node, Node],
    since: int,
) -> None:
    """Cache the cotangents of a tape, recorded since a serial number, if it has come before."""
    if not found or active_hooks or len(order) > _MAX_TAPE_NODES:
        return
    if _cache.is_due(tuple([(x.prim, x.shape, x.dtype) for x in (*order, *seeds.values())])):
        call = _compile(order, seeds, wanted, found, since)
        if call is not None:
            _site(seeds, order, wanted).promote(call)


def _compile(
    order: Sequence[Node],
    seeds: Mapping[Node, Node],
    wanted: Sequence[Node],
    found: Mapping[Node, Node],
    since: int,
) -> Any:
    """The fast call for tapes like this one; None where unsupported."""
    if any(call_of(x) or x.prim.name in _OPAQUE for x in order):
        return None
    template = new_template(order)
    if template is None:
        return None
    code = template.code
    arguments = [*seeds, *seeds.values(), *wanted]
    for i, node in enumerate(arguments):
        register = code.load_arg(i)
        code.get_member(register, Node, "serial")  # guards that it is a node
        template.bind(node, register)
    tape = set(order)
    if not _match_tape(template, tape, set(wanted)):
        return None
    if not template.instantiate(list(found.values()), since, tape):
        return None
    pairs = [template.registers[x] for pair in found.items() for x in pair]
    return template.function(len(arguments), code.new_tuple(pairs))


def _match_tape(template: TemplateBuilder, tape: set[Node], wanted: set[Node]) -> bool:
    """Guard that the bound nodes have this tape below them; False where that is unsupported."""
    code = template.code

    def guard(node: Node, register: int) -> bool:
        if node.prim.name == "constant":
            return guard_constant(code, register, node)
        if node.abstract:
            return False
        guard_node(code, register, node)
        if node.view is None or node in tape:
            code.slot_is(register, Node, "prim", node.prim)
        if node in tape:
            if node not in wanted:
                if node.grad_slot is not None:
                    return False  # it may have hooks
                code.slot_is(register, Node, "grad_slot", None)
            code.slot_eq(register, Node, "params", node.params)
        return True

    def is_on_tape(node: Node) -> bool:
        return node in tape and node.prim.name != "constant"

    return match_graph(code, template.registers, guard, is_on_tape)
