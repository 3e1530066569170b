"""Evaluating one operation, or a few, on values that are there.

Code that looks at every result makes graphs of one node or of a handful. Walking such a graph to
learn what it is costs more than many a kernel. From the second time on, operations like some before
(the same primitives on operands of the same dtypes, shapes and layouts, with the same numbers in
them) are one native call, where the runtime has these: it looks whether the graph is the one it is
for, reads the operands' addresses, runs the kernels and gives nodes their views: those that were
asked for, and those on the way that somebody else holds. What is only another shape of such a
result, or has its axes in another order, is a view of it.
"""

from __future__ import annotations

import sys
from typing import Any

from numus.compiler.hooks import before_run
from numus.dispatch.call_cache import Family, families, forget_structures, structures
from numus.dispatch.node_ops import MISS, place_view, write_fresh_view
from numus.evaluation import storage_lock
from numus.graph import Node, View
from numus.kernels.vendor.registry import rules
from numus.primitives.elementwise import is_boundary
from numus.primitives.source import forget, write_forget
from numus.shapes import Shape, reshape_strides

# What is not computed with the graph around it, but by itself, before that.
APART = ("transfer", "part")
SHARING = ("reshape", "permute")  # views of whole results

_NO_WAY: Any = object()  # of structures that have no native function
_MANY = 512  # structures that are remembered: each keeps some memory for results
_FAMILIES = 8  # so many times as many families
_HANDFUL = 256  # operations, beside those whose values are asked for
_TRIED = 4  # functions of a family that are asked before the structure is looked at
# Where so many structures came that no function knew, others are looked at every so many times: it
# may be that none of them comes again.
_STRANGERS, _SELDOM = 16, 32


def evaluate(nodes: tuple[Node, ...]) -> bool:
    """Whether pending nodes, each another, have views now. They have not if this is not for the
    short way."""
    node = nodes[0]
    if node.device is None or not node.inputs:
        return False
    kind = (node.prim, node.shape, node.dtype, node.depth, len(nodes), rules())
    family = families.get(kind)
    if family is None:
        if len(families) >= _FAMILIES * _MANY:
            families.clear()
        family = families[kind] = Family()
    for call in family.calls:
        if call(*nodes) is not MISS:
            if family.strangers or call is not family.calls[0]:
                family.known(call, _TRIED)
            return True
    family.strangers += 1
    if family.strangers <= _STRANGERS or family.strangers % _SELDOM == 0:
        known = _evaluated_by(nodes)
        if known is not None:
            family.known(known, _TRIED)
            return True
    if len(nodes) == 1 and node.prim.name in SHARING:
        inputs = node.inputs
        if inputs and inputs[0].view is None:
            return _shared(node, inputs[0])
    return False


def _evaluated_by(nodes: tuple[Node, ...]) -> Any:
    """The native function that has evaluated nodes; None where there is none for them, yet."""
    place = nodes[0].device
    if before_run or storage_lock.writers:  # whom no native call waits for
        return None
    structure = _structure(nodes)
    if structure is None or place is None:
        return None
    key = (place.name, rules(), *structure)
    try:
        call = structures.get(key, MISS)
    except TypeError:  # parameters that are told apart by nothing
        return None
    if call is MISS:  # the first of them
        if len(structures) >= _MANY:
            forget_structures()
        structures[key] = None
        return None
    if call is _NO_WAY:
        return None
    if call is None or call(*nodes) is MISS:
        # what it was made for may have changed: the number of threads, say
        call = structures[key] = _call(nodes) or _NO_WAY
        if call is _NO_WAY or call(*nodes) is MISS:
            return None
    return call


def _structure(roots: tuple[Node, ...]) -> list[Any] | None:
    """What a handful of operations is like; None if they are more, or none of this."""
    kinds: list[Any] = [len(roots)]
    # of operands, below zero; of values on the way; and of what is asked for, after all of these
    number = {root: _HANDFUL + i for i, root in enumerate(roots)}
    place = roots[0].device
    inner: list[Node] = []
    uses: list[int] = []
    ahead: list[Node] = list(roots)
    x: Any = None  # another thread may evaluate the nodes meanwhile, so that they have no inputs
    for node in ahead:  # which grows
        if (node.device is not place and node.device is not None) or node.prim.name in APART:
            return None
        kinds += (node.prim, node.params, node.shape, node.dtype, node.tracked)
        for x in node.inputs:
            seen = number.get(x)
            if seen is not None:
                kinds.append(seen)
                if 0 <= seen < _HANDFUL:
                    uses[seen] += 1
                continue
            view = x.view
            if view is not None:
                number[x] = -1 - len(number)
                kinds += (number[x], x.dtype, x.shape, view.strides)
            elif x.prim.name == "constant":
                number[x] = -1 - len(number)
                kinds += (number[x], x.dtype, repr(x.params))  # -0.0 is another than 0.0
            else:
                if len(inner) == _HANDFUL:
                    return None
                if not x.inputs and x.prim.name != "iota":  # it has no value
                    return None
                kinds.append(len(inner))
                number[x] = len(inner)
                inner.append(x)
                uses.append(1)
                ahead.append(x)
    ahead.clear()
    del node, x
    count, own = sys.getrefcount, _OWN_HOLDERS
    kinds.append(tuple([count(inner[i]) > uses[i] + own for i in range(len(inner))]))
    return kinds


def _own_holders() -> int:
    """What `getrefcount` says of a node that only a walk holds: in `number` and in `inner`."""
    inner = [object()]
    number = {inner[0]: 0}
    return sys.getrefcount(inner[0]) if number else 0


_OWN_HOLDERS = _own_holders()


def _shared(node: Node, source: Node) -> bool:
    """`evaluate` for a node whose elements lie in the memory of what it is a view of."""
    if not evaluate((source,)):
        return False
    with storage_lock.lock:
        view = source.view
        if node.view is None and view is not None:
            if node.prim.name == "permute":
                strides: Shape | None = tuple([view.strides[a] for a in node.params])
            else:
                strides = reshape_strides(source.shape, view.strides, node.shape)
            if strides is None:
                return False
            node.view = View(view.storage, view.offset, strides)
            if not node.tracked or is_boundary(node):
                forget(node)
    return True


# -- native functions -----------------------------------------------------------------------------


def _call(roots: tuple[Node, ...]) -> Any:
    """The native function for nodes like these; None where there is none."""
    # Imported late: the compiler is needed only by those who evaluate something.
    from numus.compiler import plan as plans
    from numus.compiler.graph.signature import GraphSignature

    place: Any = roots[0].device
    if place.kind == "reference":
        return None
    with storage_lock.lock:  # so that no other thread evaluates any of the nodes meanwhile
        if any(root.view is not None for root in roots):
            return None
        pending = GraphSignature(roots)
        if pending.transfers:
            return None
        plan = plans.plan_of(place, pending, roots)
        begin = getattr(plan.prepared, "table", None)
        leaves = len(pending.leaves)
        if begin is None or any(slot < leaves for slot, _ in plan.outputs):
            return None
        values = list(plan.values)
        for at, constant, part in plan.scalar_patches:
            values[at] = plans.scalar_part(pending.constants[constant].params, part)
        table = begin(values, (), plan.arena or None)
        if table is None:
            return None
        table.empty(before_run)
        table.empty(storage_lock.writers)
        registers = _write_pattern(table, roots, pending)
        if registers is None:
            return None
        nodes = [*roots, *[pending.nodes[i] for i in (*pending.kept, *plan.saved_for_backward)]]
        views = _write_views(table, leaves, plan)
        table.run()
        for node, view in zip(nodes, views, strict=True):
            table.set(registers[node], Node, "view", view)
            if not node.tracked or is_boundary(node):
                write_forget(table, registers[node])
        return table.function(len(roots), registers[roots[0]], MISS, storage_lock.lock)


def _write_pattern(table: Any, roots: tuple[Node, ...], pending: Any) -> dict[Node, int] | None:
    """Steps of a native call: that its arguments stand on a graph like this one, and where the
    leaves lie. Gives the registers of all nodes; None where they cannot be told apart."""
    from numus.compiler.graph.signature import costs_nothing

    uses: dict[Node, int] = {}
    for node in pending.nodes:
        if node.view is None:
            for x in node.inputs:
                uses[x] = uses.get(x, 0) + 1
    kept = {pending.nodes[i] for i in pending.kept}
    slots = {x: i for i, x in enumerate(pending.leaves)}
    registers = {root: table.argument(i) for i, root in enumerate(roots)}
    ahead = list(roots)
    for node in ahead:  # which grows
        at = registers[node]
        for name in ("view", "prim", "dtype", "device", "tracked"):
            table.has(at, Node, name, getattr(node, name))
        table.like(at, Node, "shape", node.shape)
        table.like(at, Node, "params", node.params)
        inputs = table.load(at, Node, "inputs")
        table.counts(inputs, len(node.inputs))
        for place, x in enumerate(node.inputs):
            found = table.element(inputs, place)
            if x in registers:
                table.twins(found, registers[x])
                continue
            registers[x] = found
            if x in slots:
                table.has(found, Node, "dtype", x.dtype)
                table.like(found, Node, "shape", x.shape)
                strides = pending.leaf_strides[slots[x]]
                place_view(table, slots[x], found, strides, x.dtype.itemsize)
            elif x.prim.name == "constant":
                if not write_number(table, found, x):
                    return None
            else:
                if x in kept:  # others hold it, so that it will have a value of its own
                    table.held(found, uses[x] + 1, others=True)
                elif x.device is not None and not costs_nothing(x):
                    table.held(found, uses[x] + 1, others=False)
                ahead.append(x)
    return registers


def write_number(table: Any, register: int, node: Node) -> bool:
    """That a constant is this one, digit for digit; False where there are no words for that."""
    if node.dtype.is_complex:
        return False
    for name in ("prim", "dtype"):
        table.has(register, Node, name, getattr(node, name))
    if node.dtype.kind == "float":  # -0.0 is another than 0.0, and NaN is itself
        table.digits(register, Node, "params", float(node.params))
    else:
        table.like(register, Node, "params", node.params)
    return True


def _write_views(table: Any, leaves: int, plan: Any) -> list[int]:
    """Registers with a view for each output, on fresh memory; some lie in the same."""
    first: dict[int, int] = {}
    views = []
    small = sum(plan.result_bytes)
    for slot, (offset, strides) in plan.outputs:
        if slot not in first:
            nbytes = plan.result_bytes[slot - leaves]
            view = write_fresh_view(table, slot, nbytes, offset, strides, small)
            first[slot] = view
        else:
            view = table.new(View)
            table.set(view, View, "storage", table.load(first[slot], View, "storage"))
            table.put(view, View, "offset", offset)
            table.put(view, View, "strides", strides)
        views.append(view)
    return views
