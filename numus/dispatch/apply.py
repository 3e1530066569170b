"""A primitive applied to nodes: where all operations become part of the graph."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from numus import config, graph
from numus.dispatch.node_ops import MISS, Natively, write_inherited, write_node
from numus.dtypes import DType
from numus.errors import DeviceError
from numus.graph import Node, mode, observers
from numus.shapes import Shape

if TYPE_CHECKING:
    from numus.graph import Primitive


def apply(
    prim: Primitive, inputs: tuple[Node, ...], params: Any, shape: Shape, dtype: DType
) -> Node:
    """A new pending node. Checks devices, inherits tracking, bounds the pending graph."""
    count = len(inputs)
    if 0 < count <= _MOST and not observers:
        made: Node = _natively[count - 1].call(prim, inputs, params, shape, dtype)
        if made is not MISS:
            return made
    device = None
    tracked = False
    abstract: Any = False
    depth = 0
    pinned = 0
    direct = 0
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
            if node.pinned > pinned:
                pinned = node.pinned
        else:
            size = node.dtype.itemsize
            for extent in node.shape:
                size *= extent
            held = node.view.storage.memory.nbytes  # less, if the same elements are seen often
            direct += size if size < held else held
    if observers and mode.trace is not None and mode.trace.meets(inputs):
        abstract = mode.trace
    node = Node(prim, inputs, params, shape, dtype, device)
    node.depth = depth + 1
    node.pinned = pinned + direct
    if tracked and mode.grad and dtype.kind in ("float", "complex"):
        node.tracked = True
    if abstract:  # it cannot be evaluated, however long the graph grows
        if abstract is not True and abstract is not mode.trace:
            abstract.check_open()
        node.abstract = abstract
    elif depth >= config.MAX_PENDING_DEPTH or (
        node.pinned > config.MAX_PENDING_BYTES and pinned > direct
    ):
        _over_budget(node)
    if observers and mode.watcher is not None and not node.abstract:
        mode.watcher(node)
    return node


_MOST = 3  # inputs of what is made natively


def _write(table: Any, count: int) -> int:
    """`apply` as steps of a native call, where there is nothing to be said about a node of so many
    inputs: nobody observes, values are there or can be computed, all is in one place and within
    bounds."""
    names = ("prim", "inputs", "params", "shape", "dtype")
    given = {name: table.argument(i) for i, name in enumerate(names)}
    operands = [table.element(given["inputs"], i) for i in range(count)]
    inherited = write_inherited(table, operands)
    end = table.unless(inherited["tracked"], False)
    table.same(table.get(given["dtype"], DType, "kind"), "float")  # others have no derivative, most
    end()
    return write_node(table, {}, {**given, **inherited})


_natively = [Natively(5, partial(_write, count=i + 1)) for i in range(_MOST)]


def _over_budget(node: Node) -> None:
    place = node.device
    if place is not None and node.depth <= config.MAX_PENDING_DEPTH:
        node.pinned = min(node.pinned, _held(node))
        if node.pinned <= place.pending_bytes:
            return
    graph.flush(node)


def _held(node: Node) -> int:
    """Bytes that a pending node keeps from being freed. Counted as it was built, memory that it
    reads in several places was counted as often; here each is counted once."""
    held: dict[int, int] = {}
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
            held[id(memory)] = max(size, held.get(id(memory), 0))
    return sum(held.values())
