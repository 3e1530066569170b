"""Application of a primitive to nodes: every operation enters the graph here."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from numus import config, graph
from numus.dispatch.call_cache import GUARD_FAILED
from numus.dispatch.node_ops import FastCall, inherit, new_node
from numus.dtypes import DType
from numus.errors import DeviceError
from numus.graph import Node, active_hooks, mode
from numus.shapes import Shape

if TYPE_CHECKING:
    from numus.graph import Primitive
    from numus.runtime.pycall.builder import BytecodeBuilder


def apply(
    prim: Primitive, inputs: tuple[Node, ...], params: Any, shape: Shape, dtype: DType
) -> Node:
    """A new pending node. Checks devices, inherits tracking, bounds the pending graph."""
    count = len(inputs)
    if 0 < count <= _MAX_FAST_INPUTS and not active_hooks:
        made: Node = _fast[count - 1].call(prim, inputs, params, shape, dtype)
        if made is not GUARD_FAILED:
            return made
    device = None
    tracked = False
    abstract: Any = False
    depth = 0
    inherited = 0  # bytes retained by pending inputs
    direct = 0  # bytes of realised inputs
    for node in inputs:
        if node.device is not device and node.device is not None:
            if device is not None:
                raise DeviceError(
                    f"{prim.public}: operands are on {device} and {node.device}; "
                    "move one of them with .to(device)"
                )
            device = node.device
        if node.tracked:
            tracked = True
        if node.view is None:
            if node.abstract and (abstract is False or abstract is True):
                abstract = node.abstract
            if node.depth > depth:
                depth = node.depth
            if node.retained_bytes > inherited:
                inherited = node.retained_bytes
        else:
            size = node.dtype.itemsize
            for extent in node.shape:
                size *= extent
            nbytes = node.view.storage.memory.nbytes  # less, with broadcast strides
            direct += size if size < nbytes else nbytes
    if active_hooks and mode.trace is not None and mode.trace.meets(inputs):
        abstract = mode.trace
    node = Node(prim, inputs, params, shape, dtype, device)
    node.depth = depth + 1
    node.retained_bytes = inherited + direct
    if tracked and mode.grad and dtype.kind in ("float", "complex"):
        node.tracked = True
    if abstract:  # it cannot be evaluated, however deep the graph
        if abstract is not True and abstract is not mode.trace:
            abstract.check_open()
        node.abstract = abstract
    elif depth >= config.MAX_PENDING_DEPTH or (
        node.retained_bytes > config.MAX_PENDING_BYTES and inherited > direct
    ):
        _flush_if_over_budget(node)
    if active_hooks and not node.abstract:
        if graph.lent_memory and any(map(_is_lent, inputs)):
            graph.realise(node)
        if mode.node_hook is not None:
            mode.node_hook(node)
    return node


def _is_lent(node: Node) -> bool:
    return node.view is not None and id(node.view.storage.memory) in graph.lent_memory


_MAX_FAST_INPUTS = 3


def _write(code: BytecodeBuilder, count: int) -> int:
    """`apply` of `count` inputs, where nothing observes it and no flush is needed."""
    names = ("prim", "inputs", "params", "shape", "dtype")
    given = {name: code.load_arg(i) for i, name in enumerate(names)}
    inherited = inherit(code, [code.load_item(given["inputs"], i) for i in range(count)])
    end = code.skip_if(inherited["tracked"], False)
    code.is_const(code.get_member(given["dtype"], DType, "kind"), "float")  # differentiable
    end()
    return new_node(code, {}, {**given, **inherited})


_fast = [FastCall(5, partial(_write, count=i + 1)) for i in range(_MAX_FAST_INPUTS)]


def _flush_if_over_budget(node: Node) -> None:
    device = node.device
    if node.depth > config.MAX_PENDING_DEPTH:
        node.depth = pending_depth(node)  # some of what it counted may be evaluated by now
    if device is not None and node.depth <= config.MAX_PENDING_DEPTH:
        node.retained_bytes = min(node.retained_bytes, _retained_bytes(node))
        if node.retained_bytes <= device.pending_bytes:
            return
    graph.flush(node)


def pending_depth(node: Node) -> int:
    """The levels of pending nodes below one; depths that are out of date are corrected."""
    depth: dict[Node, int] = {}
    stack = [node]
    while stack:
        top = stack[-1]
        pending = [x for x in top.inputs if x.view is None]
        missing = [x for x in pending if x not in depth]
        if missing:
            stack += missing
            continue
        stack.pop()
        depth[top] = top.depth = (
            1 + max([depth[x] for x in pending], default=0) if top.inputs else 0
        )
    return depth[node]


def _retained_bytes(node: Node) -> int:
    """Bytes that a pending node keeps from being freed, each memory counted once."""
    sizes: dict[int, int] = {}
    seen: set[Node] = {node}
    stack = [node]
    while stack:
        for x in stack.pop().inputs:
            if x in seen:
                continue
            seen.add(x)
            if x.view is None:
                stack.append(x)
                continue
            memory = x.view.storage.memory
            size = min(x.dtype.itemsize * math.prod(x.shape), memory.nbytes)
            sizes[id(memory)] = max(size, sizes.get(id(memory), 0))
    return sum(sizes.values())
