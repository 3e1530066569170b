"""Reverse mode: a walk back along the tape, graph to graph.

Each tracked node passes its accumulated cotangent to its inputs, by the vjp rule of its primitive.
The walk is iterative and from younger to older nodes, so that a node's cotangent is complete when
it is met and sums are always formed in the same order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numus.errors import GradientError
from numus.graph import Node, Nodes, grad_mode, mode, now
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import full_like
from numus.primitives.custom import call_of
from numus.primitives.structure import concat
from numus.tensor import GradSlot, Tensor, detached, method, node_of
from numus.transforms import hooks, vjp_cache
from numus.transforms.tape import tape

OnReady = Callable[[Node, Node], None] | None
Seeds = Mapping[Node, Node]  # cotangents by node


def pull_back(order: Nodes, seeds: Seeds, wanted: Nodes, on_ready: OnReady = None) -> Seeds:
    """The cotangents of the wanted nodes (each another), from those of some on the tape `order`.

    Wanted nodes that the seeds do not depend on are left out. `on_ready` is called with each as
    soon as it is complete. Under `grad_mode(True)` the cotangents are differentiable themselves.
    """
    hooked = any(n.grad_slot is not None and n.grad_slot.hooks for n in wanted)
    known = None if hooked else vjp_cache.lookup(order, seeds, wanted)
    if known is not None:
        if on_ready is not None:
            for node, g in known.items():
                on_ready(node, g)
        return known
    since = now()
    found = _walk_back(order, seeds, set(wanted), on_ready)
    if not hooked:
        vjp_cache.record(order, seeds, wanted, found, since)
    return found


def _walk_back(order: Nodes, seeds: Seeds, wanted: set[Node], on_ready: OnReady) -> Seeds:
    """`pull_back`, node by node, by the rules of primitives."""
    needed: set[Node] = set()
    last_met: dict[Any, Node] = {}  # of the outputs of one call, the one the walk back meets last
    for node in order:
        if node in wanted or any(x in needed for x in node.inputs):
            needed.add(node)
            call = call_of(node)
            if call is not None:
                last_met.setdefault(call, node)

    cotangents: dict[Node, list[Node]] = {node: [g] for node, g in seeds.items()}
    gathered: dict[Any, list[Node | None]] = {}
    found: dict[Node, Node] = {}
    watcher = mode.node_hook
    for node in reversed(order):
        if watcher is not None:
            watcher.differentiated = node
        arrived = cotangents.pop(node, None)
        if node not in needed:
            continue
        # summed in order; the cotangents of all slices of a node are concatenated
        g = None if arrived is None else _concatenated(arrived) or functools.reduce(ew.add, arrived)
        if g is not None:
            if node.grad_slot is not None and node.grad_slot.hooks:
                g = hooks.run(node, g)
            if node in wanted:
                found[node] = g
                if on_ready is not None:
                    on_ready(node, g)
        call = call_of(node)
        if call is not None:
            _gather(gathered, call, node, g)
            if last_met[call] is not node or call not in gathered:
                continue
            rule, operands = call
            parts = (None, *rule.vjp(operands, gathered.pop(call)))
        elif g is None:
            continue
        else:
            parts = tuple(node.prim.vjp(node, g))
        for x, part in zip(node.inputs, parts, strict=True):
            if part is not None and x in needed:
                cotangents.setdefault(x, []).append(part)
    if watcher is not None:
        watcher.differentiated = None
    return found


def _concatenated(parts: Nodes) -> Node | None:
    """The concatenation of slices that are padded with zeros; None where parts are not that."""
    if len(parts) < 2 or any(p.prim.name != "pad" or any(p.params[2]) for p in parts):
        return None
    low, high, _ = parts[0].params
    axes = [i for i in range(parts[0].ndim) if low[i] or high[i]]
    if len(axes) != 1:
        return None
    axis = axes[0]
    end = 0
    inner = []
    for part in sorted(parts, key=lambda p: p.params[0][axis]):
        low, high, _ = part.params
        if low[axis] != end or any((low[i] or high[i]) and i != axis for i in range(part.ndim)):
            return None
        inner.append(part.inputs[0])
        end += inner[-1].shape[axis]
    return concat(tuple(inner), axis) if end == parts[0].shape[axis] else None


def _gather(gathered: dict[Any, list[Node | None]], call: Any, node: Node, g: Node | None) -> None:
    """Store a cotangent until those of the call's other outputs are complete."""
    if g is not None:
        rule, index = node.params
        stored = gathered.setdefault(call, [None] * rule.count)
        before = stored[index]
        stored[index] = g if before is None else ew.add(before, g)


# -- backward() and autograd.grad -----------------------------------------------------------------


@method("backward")
def backward(
    self: Tensor,
    gradient: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Add the gradient of this tensor to the `.grad` of the leaves it was computed from.

    `gradient` is the cotangent to start from; a tensor of one element has 1 by default.
    `retain_graph` is accepted and has no effect: graphs never change, so `backward()` can be
    called again at any time. With `create_graph` the gradients can be differentiated further.
    `inputs` limits the walk to these tensors.

    >>> import numus as nm
    >>> w = nm.asarray([1.0, 2.0])
    >>> w.requires_grad = True
    >>> (w * w).sum().backward()
    >>> w.grad.tolist()
    [2.0, 4.0]
    """
    root = self._node
    if not root.tracked:
        raise GradientError(
            "backward(): this tensor was not computed from any that requires gradients (set "
            "requires_grad on those you want them for), or inside nm.no_grad()"
        )
    seed = start(root, gradient, "backward()")
    order = tape((root,))
    if inputs is None:
        wanted = [n for n in order if n.grad_slot is not None and n.grad_slot.retains]
    else:
        tensors = [inputs] if isinstance(inputs, Tensor) else inputs
        wanted = _required(tensors, "backward()")
        for x in tensors:
            if x._node.grad_slot is None:
                x._node.grad_slot = GradSlot(leaf=False, owner=x)

    def on_ready(node: Node, g: Node) -> None:
        hooks.deliver(node, g if create_graph else _untracked(g))

    with grad_mode(create_graph):
        pull_back(order, {root: seed}, wanted, on_ready)


def _untracked(g: Node) -> Node:
    """A gradient without history, which a given seed may have."""
    return detached(g, sees_writes=False) if g.tracked else g


def start(node: Node, gradient: Any, op: str) -> Node:
    """The cotangent that a walk back from `node` starts with, checked."""
    if gradient is None:
        if node.shape and any(n != 1 for n in node.shape):
            raise GradientError(
                f"{op}: a tensor of shape {node.shape} needs the gradient to start from; "
                "give one of the same shape, or reduce it to a scalar first"
            )
        if node.dtype.is_complex:
            raise GradientError(
                f"{op}: a complex result needs the gradient to start from, or a real part taken"
            )
        return full_like(node, 1)
    seed = node_of(gradient, op)
    if seed.shape != node.shape or seed.dtype is not node.dtype:
        raise GradientError(
            f"{op}: a gradient of {seed.type_text} does not fit a result of {node.type_text}"
        )
    return seed


def _required(inputs: Sequence[Tensor], op: str) -> list[Node]:
    """The nodes of tensors that must require gradients, each once."""
    for i, x in enumerate(inputs):
        if not x._node.tracked:
            raise GradientError(f"{op}: inputs[{i}] does not require gradients")
    return list(dict.fromkeys(x._node for x in inputs))


def gradients(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    *,
    allow_unused: bool | None = None,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of tensors with respect to others, without touching any `.grad`: public as
    `nm.autograd.grad`, like `torch.autograd.grad`.

    Inputs that the outputs do not depend on are an error, unless `allow_unused` gives None for them
    or `materialize_grads` zeros. `retain_graph` has no effect: graphs never change.
    """
    op = "autograd.grad"
    results = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    sources = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    if grad_outputs is None or isinstance(grad_outputs, Tensor):
        grad_outputs = [grad_outputs] * len(results)
    seeds: dict[Node, Node] = {}
    for y, g in zip(results, grad_outputs, strict=True):
        seed = start(y._node, g, op)
        seeds[y._node] = ew.add(seeds[y._node], seed) if y._node in seeds else seed
    wanted = _required(sources, op)
    with grad_mode(create_graph):
        found = pull_back(tape(seeds), seeds, wanted)
    out: list[Tensor | None] = []
    for i, x in enumerate(sources):
        g = found.get(x._node)
        if g is None and materialize_grads:
            g = full_like(x._node, 0)
        if g is None and not allow_unused:
            raise GradientError(
                f"{op}: the outputs do not depend on inputs[{i}]; pass allow_unused=True to get "
                "None for it"
            )
        out.append(None if g is None else Tensor(g if create_graph else _untracked(g)))
    return tuple(out)
