"""Evaluating one operation on values that are there.

Code that looks at every result makes graphs of one node. Walking such a graph to learn what it is
costs more than many a kernel. From the second time on, an operation like one before (the same
primitive on operands of the same dtypes, shapes and layouts) is one native call, where the runtime
has these: it reads the operands' addresses, runs the kernels and gives the node its view. What is
only another shape of such an operation's result, or has its axes in another order, is a view of it.
"""

from __future__ import annotations

from typing import Any

from numus import guards
from numus.compiler.singles import calls
from numus.compiler.watchers import watchers
from numus.graph import Node, View, piece_of, place_view, view_maker
from numus.kernels.choice import preference
from numus.primitives.elementwise import is_boundary
from numus.primitives.source import forget, write_forget
from numus.shapes import Shape, reshape_strides

# What is not computed with the graph around it, but by itself, before that.
APART = ("transfer", "part")
SHARING = ("reshape", "permute")  # views of whole results

_MISS: Any = object()
_MANY = 512  # structures that are remembered: each keeps some memory for results


def evaluate(node: Node) -> bool:
    """Whether a pending node has a view now. It has not if this is not for the short way."""
    inputs, place = node.inputs, node.device
    if place is None or not inputs:
        return False
    if node.prim.name in SHARING and inputs[0].view is None:
        return _shared(node, inputs[0])
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


def _shared(node: Node, source: Node) -> bool:
    """`evaluate` for a node whose elements lie in the memory of what it is a view of."""
    if not evaluate(source):
        return False
    with guards.lock:
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
