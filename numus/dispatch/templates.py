"""Graphs that are made again, natively.

What a function or a derivative makes of some nodes often depends on nothing but what these nodes
are like. Then it can be written down as steps of a native call (`graph_steps`): what they have to
be like, and the nodes that are made of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from numus.dispatch.node_ops import write_node, write_reach, write_view
from numus.graph import Node, Primitive, View

_SAME = ("prim", "params", "shape", "dtype", "device", "tracked")  # of what is made anew


def made_between(
    known: Collection[Node],
    results: Iterable[Node],
    since: int,
    told: Collection[Node] = (),
) -> list[Node] | None:
    """What was made of known nodes since some time to get results, constants apart, inputs first;
    None where the results stand on others, too, or are not to be made again. `told`: of these
    nodes it is known, too, what they stand on."""
    known = set(known)
    device = next((x.device for x in known if x.device is not None), None)
    found: dict[Node, None] = {}
    stack = list(results)
    while stack:
        node = stack.pop()
        if node in known or node in found or node.prim.name == "constant":
            continue
        strange = node.grad_slot is not None or node.abstract or node.serial < since
        if strange or node.device not in (device, None):
            return None
        if _is_given(node) if node.view is None else _base(node, known, told) is None:
            return None
        if views_pending(node, known):
            source = node.inputs[0]
            if source.prim.kind == "view" and source not in told:
                return None  # another would be a view of what that is a view of, maybe
        found[node] = None
        stack += node.inputs
    return sorted(found, key=lambda node: node.serial)


def _is_given(node: Node) -> bool:
    """Whether a pending node is made of nothing, and not always alike: all but counters."""
    return not node.inputs and node.prim.name != "iota"


def views_pending(node: Node, known: Collection[Node]) -> bool:
    """Whether a node is a view of a pending one of these."""
    if node.prim.kind != "view" or not node.inputs:
        return False
    source = node.inputs[0]
    return source in known and source.view is None


def _base(node: Node, known: Iterable[Node], told: Collection[Node]) -> Node | None:
    """The known node whose memory a realised node is a view of; None if there is none, or several
    of which it is not known how they lie in it."""
    view = node.view
    assert view is not None
    there = [x for x in known if x.view is not None and x.view.storage is view.storage]
    roots = {_root(x, told) for x in there}
    return roots.pop() if len(roots) == 1 else None


def _root(node: Node, told: Collection[Node]) -> Node:
    """What a realised node is a view of, as far as that is told."""
    while node in told and node.prim.kind == "view":
        below = node.inputs[0]
        if below.view is None or node.view is None or below.view.storage is not node.view.storage:
            break
        node = below
    return node


def write_alike(table: Any, at: int, node: Node) -> None:
    """That the node in a register is as this one, as far as can be told without its inputs."""
    for name in ("abstract", "dtype", "device", "tracked"):
        table.has(at, Node, name, getattr(node, name))
    table.like(at, Node, "shape", node.shape)
    if node.view is None:
        table.has(at, Node, "view", None)
    else:
        view = table.load(at, Node, "view")
        table.get(view, View, "offset")  # looks whether there is a view
        table.like(view, View, "strides", node.view.strides)


def write_is_no_view(table: Any, at: int) -> None:
    """That the node in a register is no view: one of it would be one of its base, maybe."""
    table.differs(table.load(at, Node, "prim"), Primitive, "kind", "view")


def write_copy(
    table: Any,
    found: Sequence[Node],
    known: Mapping[Node, int],
    told: Collection[Node] = (),
    handled: Node | None = None,
) -> dict[Node, int]:
    """New nodes like those that were made of known ones (see `made_between`), which are in
    registers. A tensor will stand for the one that is `handled`. Gives the registers of all."""
    levels: dict[Node, int] = {}
    for node in found:
        if node.view is None:
            levels[node] = 1 + max((levels.get(x, 0) for x in node.inputs), default=0)
    used = {x: known[x] for node in found for x in node.inputs if x in known}
    depth, pinned = write_reach(table, list(used.values()), max(levels.values(), default=0))
    nothing = table.object(0)
    registers = dict(known)
    for node in found:
        for x in node.inputs:
            if x not in registers:
                registers[x] = table.object(x)  # a constant
        members = {"inputs": table.tuple([registers[x] for x in node.inputs])}
        if node.view is None:
            members |= {"depth": depth, "pinned": pinned}
        else:  # of the memory of something known
            base = _base(node, known, told)
            assert base is not None
            assert base.view is not None
            view = write_view(table, node.view, base.view, registers[base])
            members |= {"depth": nothing, "pinned": nothing, "view": view}
        same = {name: getattr(node, name) for name in _SAME}
        registers[node] = write_node(table, same, members, handled=node is handled)
    return registers
