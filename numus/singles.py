"""Evaluating one operation on values that are there.

Code that looks at every result makes graphs of one node. Walking such a graph to learn what it is
costs more than many a kernel. From the second time on, an operation like one before (the same
primitive on operands of the same dtypes, shapes and layouts) is one native call, where the runtime
has these: it reads the operands' addresses, runs the kernels and gives the node its view.
"""

from __future__ import annotations

from typing import Any

from numus import guards
from numus.compiler.singles import calls
from numus.compiler.watchers import watchers
from numus.graph import Node, piece_of, place_view, view_maker
from numus.kernels.choice import preference
from numus.primitives.elementwise import is_boundary
from numus.primitives.source import write_forget

# What is not computed with the graph around it, but by itself, before that.
APART = ("transfer", "part")

_MISS: Any = object()
_MANY = 512  # structures that are remembered: each keeps some memory for results


def evaluate(node: Node) -> bool:
    """Whether a pending node has a view now. It has not if this is not for the short way."""
    inputs, place = node.inputs, node.device
    if place is None or not inputs:
        return False
    kinds: list[Any] = [inputs[0] is inputs[-1]]
    for x in inputs:
        view = x.view
        if view is None:
            return False
        kinds += (x.dtype, x.shape, view.strides)
    key = (
        *(node.prim, node.params, node.shape, node.dtype, node.tracked, place.name, preference()),
        *kinds,
    )
    try:
        call = calls.get(key, _MISS)
    except TypeError:  # parameters that are told apart by nothing
        return False
    if call is _MISS:
        if len(calls) >= _MANY:
            calls.clear()
        calls[key] = None
        return False
    if call is None:
        call = calls[key] = _call(node, place) or _missing
    if call(node) is not _MISS:
        return True
    if call is not _missing:  # another number of threads, say: it is made anew
        calls.pop(key, None)
    return False


def _missing(node: Node) -> Any:
    """For structures that have no short way."""
    return _MISS


def _call(node: Node, place: Any) -> Any:
    """The native function for nodes like this one; None where there is none."""
    # Imported late: the compiler is needed only by those who evaluate something.
    from numus.compiler import program

    inputs = node.inputs
    if node.prim.name in APART or place.kind == "reference":
        return None
    pending = program.Pending((node,))
    leaves = pending.leaves
    if len(pending.nodes) != len(leaves) + 1 or (len(leaves) < len(inputs) and len(inputs) > 2):
        return None
    plan = program.plan_of(place, pending, (node,))
    begin = getattr(plan.prepared, "table", None)
    slot, (offset, strides) = plan.outputs[0]
    if begin is None or slot < len(leaves) or len(plan.result_bytes) != 1:
        return None
    table = begin(plan.values, (), plan.arena or None)
    if table is None:
        return None
    table.empty(watchers)
    table.empty(guards.writers)
    target = table.argument(0)
    table.has(target, Node, "view", None)  # unless another thread was here before
    operands = table.load(target, Node, "inputs")
    for i, x in enumerate(leaves):
        operand = table.element(operands, inputs.index(x))
        place_view(table, i, operand, pending.leaf_strides[i], x.dtype.itemsize)
    view = table.fresh(slot, plan.result_bytes[0], view_maker(offset, strides), piece_of)
    table.run()
    table.set(target, Node, "view", view)
    if not node.tracked or is_boundary(node):
        write_forget(table, target)
    return table.function(1, target, _MISS, guards.lock)
