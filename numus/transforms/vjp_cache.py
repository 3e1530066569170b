"""VJP cache: reverse mode of repeated tapes by graph templates.

The cotangents' graph depends only on the tape: primitives, parameters, shapes, dtypes and layouts.
When a tape comes again, a template (`dispatch/templates`) guards the graph from the results on and
makes the nodes that the primitives' VJP rules made. Tapes that call user functions are walked; a
custom rule whose `is_pure` is true depends on its structure alone, and equal ones act alike.
"""

from __future__ import annotations

from collections.abc import Mapping

from numus.dispatch import templates
from numus.dispatch.call_cache import GUARD_FAILED, CallCache, InlineCache
from numus.graph import Node, Nodes, active_hooks
from numus.primitives.custom import call_of

Seeds = Mapping[Node, Node]  # cotangents to start from

_MAX_TAPE_NODES = 256
_OPAQUE = ("call", "get_tuple_element", "placeholder")  # call functions, or have no fixed value

_cache = CallCache(max_structures=64, max_sites=64)
clear = _cache.clear


def _site(order: Nodes, seeds: Seeds, wanted: Nodes) -> InlineCache:
    root = next(iter(seeds))
    return _cache.site((root.prim, root.shape, root.dtype, len(order), len(seeds), len(wanted)))


def lookup(order: Nodes, seeds: Seeds, wanted: Nodes) -> dict[Node, Node] | None:
    """`reverse.pull_back` of a known tape, for distinct wanted nodes; None if it is not known."""
    if not seeds or active_hooks or len(order) > _MAX_TAPE_NODES:
        return None
    found = _site(order, seeds, wanted).call((*seeds, *seeds.values(), *wanted))
    if found is GUARD_FAILED:
        return None
    pairs = iter(found)
    return dict(zip(pairs, pairs, strict=True))


def record(order: Nodes, seeds: Seeds, wanted: Nodes, found: Seeds, since: int) -> None:
    """Cache the cotangents `found` of a tape, recorded since a serial number, if it has come before
    and is supported."""
    if not found or active_hooks or len(order) > _MAX_TAPE_NODES:
        return
    if not _cache.is_due(tuple([(x.prim, x.shape, x.dtype) for x in (*order, *seeds.values())])):
        return
    if any(_calls_user(x) or x.prim.name in _OPAQUE for x in order):
        return
    template = templates.new_template(order)
    if template is None:
        return
    code = template.code
    arguments = [*seeds, *seeds.values(), *wanted]
    for i, node in enumerate(arguments):
        register = code.load_arg(i)
        code.get_member(register, Node, "serial")  # guards that it is a node
        template.bind(node, register)
    tape = set(order)
    if not _match_tape(template, tape, set(wanted)):
        return
    if template.instantiate(list(found.values()), since, tape):
        pairs = [template.registers[x] for pair in found.items() for x in pair]
        call = template.function(len(arguments), code.new_tuple(pairs))
        _site(order, seeds, wanted).promote(call)


def _calls_user(node: Node) -> bool:
    """Whether a node is differentiated by a rule that may act otherwise when called again."""
    call = call_of(node)
    return call is not None and not getattr(call[0], "is_pure", False)


def _match_tape(template: templates.TemplateBuilder, tape: set[Node], wanted: set[Node]) -> bool:
    """Guard that the bound nodes have this tape below them; False where that is unsupported."""
    code = template.code

    def guard(node: Node, register: int) -> bool:
        if node.prim.name == "constant":
            return templates.guard_constant(code, register, node)
        if node.abstract:
            return False
        templates.guard_node(code, register, node)
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

    return templates.match_graph(code, template.registers, guard, is_on_tape)
