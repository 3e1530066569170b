"""Evaluation of pending nodes.

`evaluate` realises nodes together: common subgraphs are computed once. A device with a compiler
runs one program for the whole pending graph; the reference device interprets it node by node.
Values referenced from outside the graph are kept, the others live only while the program runs.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from numus import config, graph
from numus.dispatch.apply import pending_depth
from numus.errors import TracingError
from numus.evaluation import eager_cache, storage_lock
from numus.evaluation.eager_cache import STANDALONE
from numus.evaluation.narrow_point import narrow_point
from numus.graph import Node, Storage, View, current_trace, is_captured
from numus.primitives.elementwise import is_boundary
from numus.primitives.source import forget, value
from numus.primitives.structure import copy
from numus.runtime.devices import Device, device
from numus.shapes import Shape, row_major, size_of

Array = np.ndarray[Any, Any]


def evaluate(nodes: Collection[Node]) -> None:
    """Give every node a view."""
    if nodes.__class__ is not tuple or len(nodes) != 1:
        nodes = tuple(dict.fromkeys([n for n in nodes if n.view is None]))
        if not nodes:
            return
    if nodes[0].view is not None:
        return
    signature = eager_cache.evaluate(nodes)
    if signature is True:
        return
    if len(nodes) == 1 and eager_cache.is_view_of_standalone(nodes[0]):
        evaluate(nodes[0].inputs)
        if eager_cache.alias(nodes[0]):
            return
    with storage_lock.lock:
        by_device: dict[Device, list[Node]] = {}
        wanted = [n for n in nodes if n.view is None]
        for node in wanted:
            if node.prim.name in STANDALONE:
                _evaluate_standalone(node)
        for node in wanted:
            if node.view is None:
                by_device.setdefault(node.device or device(), []).append(node)
        for dev, roots in by_device.items():
            if storage_lock.writers:
                read = (x for node in _pending_order(roots) for x in node.inputs)
                storage_lock.wait_for_writers(x.view.storage for x in read if x.view is not None)
            if dev.kind == "reference":
                _interpret(dev, roots)
            else:
                _run_plan(dev, roots, signature)


def _run_plan(dev: Device, roots: list[Node], signature: Any) -> None:
    """Compute nodes of one device. `signature` is that of their graph, or False."""
    global _plans
    if _plans is None:
        # Imported late: the compiler is needed only to evaluate something.
        from numus.compiler import plan as _plans
    made: dict[Any, Storage] = {}  # results in one memory share a storage
    for node, leaf, memory, (offset, strides) in _plans.realize(
        dev, roots, _evaluate_standalone, signature
    ):
        if leaf is not None:
            view = View(leaf.view.storage, leaf.view.offset + offset, strides)
        else:
            if memory not in made:
                made[memory] = Storage(memory)
            view = View(made[memory], offset, strides)
        node.view = view
        _finalize(node, dev)


_plans: Any = None


def _finalize(node: Node, dev: Device) -> None:
    """Set an evaluated node's device, and drop its inputs unless a gradient may need them."""
    node.device = dev
    if not node.tracked or is_boundary(node):
        forget(node)


def flush(node: Node) -> None:
    """Evaluate what is below a node whose pending graph has reached its bound."""
    # nodes of no device stay so: evaluated by themselves they would land on the default one
    placed = [x for x in node.inputs if x.device is not None]
    if node.depth > config.MAX_PENDING_DEPTH:
        cut = narrow_point(_pending_order(placed), placed, config.MAX_PENDING_DEPTH // 2)
        if cut is not None:
            evaluate((cut,))
            node.depth = pending_depth(node)
            return
    evaluate(placed or node.inputs)
    node.depth = pending_depth(node)
    node.retained_bytes = 0


graph.flush = flush
graph.realise = lambda node: evaluate((node,))


def _pending_order(roots: Sequence[Node]) -> list[Node]:
    """The pending nodes that the roots depend on, inputs first. Iterative: chains are long."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(n, False) for n in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif node.view is None and node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((n, False) for n in reversed(node.inputs))
    return order


def _evaluate_standalone(node: Node) -> None:
    if node.view is None:
        (_transfer if node.prim.name == "transfer" else _get_tuple_element)(node)


_results: WeakKeyDictionary[Node, tuple[Device, list[View]]] = WeakKeyDictionary()


def _get_tuple_element(node: Node) -> None:
    """Evaluate an element of a call's result; the first one runs the call."""
    whole = node.inputs[0]
    found = _results.get(whole)
    if found is None:
        dev = whole.device or device()
        # nodes of no device would land on the default one
        inputs = [x if x.device is not None else _copy_to(x, dev) for x in whole.inputs]
        evaluate(inputs)
        found = _results[whole] = dev, whole.params.run(dev, inputs)
        whole.inputs = ()
    dev, views = found
    node.view = views[node.params]
    _finalize(node, dev)


def _copy_to(node: Node, dev: Device) -> Node:
    """A contiguous copy of a value on a device."""
    out = copy(node)
    out.device = dev
    return out


def _transfer(node: Node) -> None:
    source = node.inputs[0]
    evaluate((source,))
    node.view = _upload(node.params, elements(source))
    _finalize(node, node.params)


def _interpret(dev: Device, roots: Sequence[Node]) -> None:
    order = [n for n in _pending_order(roots) if n.device is None or n.device is dev]
    anywhere: dict[Node, Array] = {}  # values of nodes of no device
    for node in order:
        if node.view is not None:
            continue
        if node.prim.name in STANDALONE:
            _evaluate_standalone(node)
            continue
        if node.prim.name == "call":
            continue  # its elements run it
        arrays = [anywhere[n] if n in anywhere else elements(n) for n in node.inputs]
        result = np.asarray(node.prim.reference(node, *arrays)).reshape(node.shape)
        if node.device is None and node not in roots:
            anywhere[node] = result
        else:
            node.view = _upload(dev, result)
            node.device = dev
    for node in order:
        if node.view is not None:
            _finalize(node, dev)


# -- between host and device ----------------------------------------------------------------------


_MAX_GAP_BYTES = 1 << 20  # of a strided download; beyond, elements are packed first
_MAX_HOST_COPY_BYTES = 4 << 20  # of uploaded integers, kept on the host for index checks


def _upload(dev: Device, array: Array) -> View:
    runtime = dev.runtime
    memory = runtime.allocate(array.nbytes)
    runtime.upload(memory, np.ascontiguousarray(array))
    storage = Storage(memory)
    if not dev.on_host and array.dtype.kind in "iu" and array.nbytes <= _MAX_HOST_COPY_BYTES:
        storage.host = array.flatten()
    return View(storage, 0, row_major(array.shape))


def from_host(array: Array, dtype: Any, dev: Device) -> Node:
    """A realised node with a copy of an array."""
    dev.require(dtype, "asarray")
    array = array.astype(dtype.np, copy=False)  # another byte order, say
    return value(_upload(dev, array), array.shape, dtype, dev)


def host_array(node: Node) -> Array:
    """The elements on the host; a view of the storage where the device shares its memory."""
    check_known(node, "reading it")
    return elements(node)


def array_at_hand(node: Node) -> Array | None:
    """The elements, where they are available without computing or waiting for a device."""
    while node.view is None and node.prim.name == "transfer":  # of the same value
        node = node.inputs[0]
    view = node.view
    if view is None or not is_known(node):
        return None
    if (node.device or device()).on_host:
        return elements(node)
    host = view.storage.host
    return None if host is None else strided(host, node.shape, view)


def elements(node: Node) -> Array:
    """`host_array` of a concrete node."""
    if node.view is None:
        evaluate((node,))
    view = node.view
    assert view is not None
    if storage_lock.writers:
        storage_lock.wait_for_writers((view.storage,))
    dev = node.device or device()
    runtime, memory = dev.runtime, view.storage.memory
    if dev.on_host:
        flat = runtime.download(memory, node.dtype, memory.nbytes // node.dtype.itemsize)
        return strided(flat, node.shape, view)
    size = size_of(node.shape)
    if size == 0:
        return np.empty(node.shape, node.dtype.np)
    # only the range that the view touches is downloaded, packed where it is mostly gaps
    ends = [(n - 1) * s for n, s in zip(node.shape, view.strides, strict=True)]
    first = view.offset + sum(e for e in ends if e < 0)
    last = view.offset + sum(e for e in ends if e > 0)
    count = last - first + 1
    if count > 2 * size and (count - size) * node.dtype.itemsize > _MAX_GAP_BYTES:
        return elements(_copy_to(node, dev))
    flat = runtime.download(memory, node.dtype, count, first)
    return strided(flat, node.shape, View(view.storage, view.offset - first, view.strides))


def strided(flat: Array, shape: Shape, view: View) -> Array:
    """A NumPy view of flat storage."""
    if size_of(shape) == 0:
        return np.empty(shape, flat.dtype)
    step = flat.dtype.itemsize
    # as_strided does not support 8-bit floats
    strides = tuple(s * step for s in view.strides)
    return np.ndarray(shape, flat.dtype, flat.view(np.uint8).data, view.offset * step, strides)


def check_known(node: Node, what: str, instead: str = "") -> None:
    """Raise where a value is abstract in a transformation; `instead` is the hint."""
    if not node.abstract:
        if not is_captured(node):
            return
        where = current_trace()
    elif node.abstract is not True:
        node.abstract.check_open()
        where = node.abstract
    else:
        below = (n.params for n in _pending_order((node,)) if n.prim.name == "placeholder")
        where = next(below, None)
        if where is None:
            return
    if not instead and where.__class__ is str:
        instead = "use nm.where instead of a Python condition, or move the read outside"
    elif not instead:  # in a trace
        instead = (
            "use nm.where or nm.cond instead of a Python condition, give what it depends on as "
            "a static argument (static_argnums), or move the read outside"
        )
    raise TracingError(
        f"{what} needs the value of a {node.dtype.name}{list(node.shape)} tensor, which is not "
        f"known inside {where}{user_line()}; {instead}"
    )


def is_known(node: Node) -> bool:
    """True if the value is concrete: computed, or computable."""
    return not node.abstract and not is_captured(node)


_INTERNAL_FILES = (os.path.dirname(os.path.dirname(__file__)), contextlib.__file__)


def is_users_frame(frame: Any) -> bool:
    """True if a frame runs user code."""
    return not frame.f_code.co_filename.startswith(_INTERNAL_FILES)


def user_line() -> str:
    """The current line of user code, for errors: " (file.py, line 3)"."""
    frame: Any = sys._getframe(1)
    while frame is not None and not is_users_frame(frame):
        frame = frame.f_back
    return "" if frame is None else f" ({frame.f_code.co_filename}, line {frame.f_lineno})"
