"""Evaluating one operation, or a few, on values that are there.

Code that looks at every result makes graphs of one node or of a handful. Walking such a graph to
learn what it is costs more than many a kernel. From the second time on, an operation like one
before (the same primitive on operands of the same dtypes, shapes and layouts) is one native call,
where the runtime has these: it reads the operands' addresses, runs the kernels and gives the node
its view. So is a handful of operations whose results on the way nobody else wants, with the same
numbers in them. What is only another shape of such a result, or has its axes in another order, is
a view of it.
"""

from __future__ import annotations

import sys
from typing import Any

from numus import guards
from numus.compiler.singles import calls, handfuls
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
_HANDFUL = 12  # operations, beside the last one

Path = tuple[int, ...]  # which input, which of its inputs, and so on


def evaluate(node: Node) -> bool:
    """Whether a pending node has a view now. It has not if this is not for the short way."""
    inputs, place = node.inputs, node.device
    if place is None or not inputs:
        return False
    if node.prim.name in SHARING and inputs[0].view is None:
        return _shared(node, inputs[0])
    kinds: list[Any] = [inputs[0] is inputs[-1]]
    paths: dict[Node, Path] | None = None
    for x in inputs:
        view = x.view
        if view is None:
            del x  # who else holds it is counted
            found = _few(node)
            if found is None:
                return False
            kinds, paths = found
            break
        kinds += (x.dtype, x.shape, view.strides)
    key = (
        *(node.prim, node.params, node.shape, node.dtype, node.tracked, place.name, preference()),
        *kinds,
    )
    known = calls if paths is None else handfuls
    try:
        call = known.get(key, _MISS)
    except TypeError:  # parameters that are told apart by nothing
        return False
    if call is _MISS:
        if len(known) >= _MANY:
            known.clear()
        known[key] = None
        return False
    if call is None:
        if paths is None:
            paths = {x: (i,) for i, x in enumerate(inputs)}
        call = known[key] = _call(node, place, paths) or _missing
    if call(node) is not _MISS:
        return True
    if call is not _missing:  # another number of threads, say: it is made anew
        known.pop(key, None)
    return False


def _few(root: Node) -> tuple[list[Any], dict[Node, Path]] | None:
    """What a handful of operations is like, and by which inputs' inputs each of their operands is
    found; None if they are more, or if a value on the way may still be asked for."""
    if root.tracked:
        return None
    kinds: list[Any] = []
    paths: dict[Node, Path] = {}
    number: dict[Node, int] = {}  # of operands, and of values on the way
    inner: list[Node] = []
    uses: list[int] = []
    ahead: list[tuple[Node, Path]] = [(root, ())]
    for node, path in ahead:  # which grows
        kinds += (node.prim, node.params, node.shape, node.dtype)
        for place, x in enumerate(node.inputs):
            seen = number.get(x)
            if seen is not None:
                kinds.append(seen)
                if x.view is None:
                    uses[seen] += 1
                continue
            view = x.view
            if view is not None:
                kinds += (-1 - len(paths), x.dtype, x.shape, view.strides)
                number[x] = -1 - len(paths)
                paths[x] = (*path, place)
            elif x.prim.name == "constant":
                kinds += (x.dtype, repr(x.params))  # -0.0 is another number than 0.0
            else:
                if x.device is not root.device or x.tracked or len(inner) == _HANDFUL:
                    return None
                if x.prim.name in APART or not x.inputs:
                    return None
                kinds.append(len(inner))
                number[x] = len(inner)
                inner.append(x)
                uses.append(1)
                ahead.append((x, (*path, place)))
    ahead.clear()
    del node, x
    for i in range(len(inner)):
        if sys.getrefcount(inner[i]) > uses[i] + _OWN_HOLDERS:
            return None
    return kinds, paths


def _own_holders() -> int:
    """What `getrefcount` says of a node that only a walk holds: in `number` and in `inner`."""
    inner = [object()]
    number = {inner[0]: 0}
    return sys.getrefcount(inner[0]) if number else 0


_OWN_HOLDERS = _own_holders()


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


def _call(node: Node, place: Any, paths: dict[Node, Path]) -> Any:
    """The native function for nodes like this one; None where there is none. `paths`: where the
    operands are found. Another thread may evaluate any of the nodes meanwhile."""
    # Imported late: the compiler is needed only by those who evaluate something.
    from numus.compiler import program

    inputs = node.inputs
    if node.prim.name in APART or place.kind == "reference":
        return None
    pending = program.Pending((node,))
    leaves = pending.leaves
    single = all(len(path) == 1 for path in paths.values())
    if single and len(leaves) < len(inputs) and len(inputs) > 2:
        return None
    if set(leaves) != set(paths) or pending.transfers or pending.kept:
        return None
    plan = program.plan_of(place, pending, (node,))
    begin = getattr(plan.prepared, "table", None)
    slot, (offset, strides) = plan.outputs[0]
    if begin is None or slot < len(leaves) or len(plan.result_bytes) != 1 or plan.spared:
        return None
    values = list(plan.values)
    for at, constant, part in plan.holes:
        values[at] = program.number_part(pending.constants[constant].params, part)
    table = begin(values, (), plan.arena or None)
    if table is None:
        return None
    table.empty(watchers)
    table.empty(guards.writers)
    target = table.argument(0)
    table.has(target, Node, "view", None)  # unless another thread was here before
    operands: dict[Path, int] = {(): table.load(target, Node, "inputs")}
    for i, x in enumerate(leaves):
        way = paths[x]
        operand = table.element(_inputs_at(table, operands, way[:-1]), way[-1])
        place_view(table, i, operand, pending.leaf_strides[i], x.dtype.itemsize)
    view = table.fresh(slot, plan.result_bytes[0], view_maker(offset, strides), piece_of)
    table.run()
    table.set(target, Node, "view", view)
    if not node.tracked or is_boundary(node):
        write_forget(table, target)
    return table.function(1, target, _MISS, guards.lock)


def _inputs_at(table: Any, operands: dict[Path, int], path: Path) -> int:
    """The register with the inputs of an operation on the way."""
    found = operands.get(path)
    if found is None:
        inner = table.element(_inputs_at(table, operands, path[:-1]), path[-1])
        table.has(inner, Node, "view", None)  # another thread may have evaluated it
        found = operands[path] = table.load(inner, Node, "inputs")
    return found
