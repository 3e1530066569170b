"""From pending nodes to values.

`evaluate` realises nodes together: what they share is computed once. A device with a compiler gets
one program for the whole pending graph; the reference device is walked node by node. Values that
something outside the evaluated graph can still ask for are kept, the others live only as long as
the program runs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from numus import graph
from numus.errors import TracingError
from numus.evaluation import eager_cache, storage_lock
from numus.evaluation.eager_cache import APART
from numus.graph import Node, Storage, View, current_trace, is_captured
from numus.primitives.elementwise import is_boundary
from numus.primitives.source import forget, value
from numus.primitives.structure import copy
from numus.runtime.devices import Device, device
from numus.shapes import Shape, row_major, size_of

Array = np.ndarray[Any, Any]


def evaluate(nodes: Collection[Node]) -> None:
    """Give every node a view."""
    if nodes.__class__ is not tuple or len(nodes) != 1:  # most ask for one value
        nodes = tuple(dict.fromkeys([n for n in nodes if n.view is None]))
        if not nodes:
            return
    if nodes[0].view is not None or eager_cache.evaluate(nodes):
        return
    with storage_lock.lock:
        by_device: dict[Device, list[Node]] = {}
        wanted = [n for n in nodes if n.view is None]
        for node in wanted:
            if node.prim.name in APART:
                _settle_apart(node)
        for node in wanted:
            if node.view is None:
                place = node.device or device()
                roots = by_device.get(place)
                if roots is None:
                    by_device[place] = [node]
                else:
                    roots.append(node)
        for place, roots in by_device.items():
            if storage_lock.being_written():
                storage_lock.await_writers(_storages_below(roots))
            if place.kind == "reference":
                _walk(place, roots)
            else:
                _realise(place, roots)


def _storages_below(roots: Sequence[Node]) -> Iterator[Storage]:
    """What evaluating the roots reads."""
    for node in _pending_order(roots):
        for x in node.inputs:
            if x.view is not None:
                yield x.view.storage


def _realise(place: Device, roots: list[Node]) -> None:
    global _program
    if _program is None:
        # Imported late: the compiler is needed only by those who evaluate something.
        from numus.compiler import plan as _program
    made: dict[Any, Storage] = {}  # results that lie in the same memory share its storage
    for node, leaf, memory, (offset, strides) in _program.realize(place, roots, _settle_apart):
        if leaf is not None:
            view = View(leaf.view.storage, leaf.view.offset + offset, strides)
        else:
            storage = made.get(memory)
            if storage is None:
                storage = made[memory] = Storage(memory)
            view = View(storage, offset, strides)
        node.view = view
        _settle(node, place)


_program: Any = None


def _settle(node: Node, place: Device) -> None:
    """An evaluated node has a home, and lets go of what it was computed from, unless a gradient may
    ask for it.
    """
    node.device = place
    if not node.tracked or is_boundary(node):
        forget(node)


def relieve(node: Node) -> None:
    """The pending graph has reached its bound: evaluate what `node` stands on."""
    # what is at home on every device stays so: evaluated by itself it would land on one of them
    placed = [x for x in node.inputs if x.device is not None]
    evaluate(placed or node.inputs)
    left = [x.depth for x in node.inputs if x.view is None]
    node.depth = 1 + max(left, default=0)
    node.pinned = 0


graph.flush = relieve


def _pending_order(roots: Sequence[Node]) -> list[Node]:
    """The pending nodes that the roots stand on, inputs first. Iterative: chains are long."""
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


def _settle_apart(node: Node) -> None:
    if node.view is None:
        (_transfer if node.prim.name == "transfer" else _take_part)(node)


_results: WeakKeyDictionary[Node, tuple[Device, list[View]]] = WeakKeyDictionary()


def _take_part(node: Node) -> None:
    """Give a part of a call its value; with the first of them, the call is run."""
    whole = node.inputs[0]
    found = _results.get(whole)
    if found is None:
        place = whole.device or device()
        # what is at home on every device would land on the default one
        inputs = [x if x.device is not None else _at_home(x, place) for x in whole.inputs]
        evaluate(inputs)
        found = _results[whole] = place, whole.params.run(place, inputs)
        whole.inputs = ()
    place, views = found
    node.view = views[node.params]
    _settle(node, place)


def _at_home(node: Node, place: Device) -> Node:
    """A copy of a value on one device, for those who ask for its memory there."""
    home = copy(node)
    home.device = place
    return home


def _transfer(node: Node) -> None:
    source = node.inputs[0]
    evaluate((source,))
    node.view = _upload(node.params, elements(source))
    _settle(node, node.params)


def _walk(place: Device, roots: Sequence[Node]) -> None:
    order = [n for n in _pending_order(roots) if n.device is None or n.device is place]
    everywhere: dict[Node, Array] = {}  # values of nodes that are at home on any device
    for node in order:
        if node.view is not None:
            continue
        if node.prim.name in APART:
            _settle_apart(node)
            continue
        if node.prim.name == "call":
            continue  # its parts run it
        arrays = [everywhere[n] if n in everywhere else elements(n) for n in node.inputs]
        result = np.asarray(node.prim.reference(node, *arrays)).reshape(node.shape)
        if node.device is None and node not in roots:
            everywhere[node] = result
        else:
            node.view = _upload(place, result)
            node.device = place
    for node in order:
        if node.view is not None:
            _settle(node, place)


# -- between host and device ----------------------------------------------------------------------


_GAPS = 1 << 20  # bytes between elements that a device hands over with them: no more
_KEPT_BYTES = 4 << 20  # of integers that went to a device: they may be indices, to be checked


def _upload(place: Device, array: Array) -> View:
    runtime = place.runtime
    memory = runtime.allocate(array.nbytes)
    runtime.upload(memory, np.ascontiguousarray(array))
    storage = Storage(memory)
    if not place.on_host and array.dtype.kind in "iu" and array.nbytes <= _KEPT_BYTES:
        storage.host = array.flatten()
    return View(storage, 0, row_major(array.shape))


def from_host(array: Array, dtype: Any, place: Device) -> Node:
    """A realised node with a copy of the array's elements."""
    place.require(dtype, "asarray")
    array = array.astype(dtype.np, copy=False)  # another byte order, say
    return value(_upload(place, array), array.shape, dtype, place)


def host_array(node: Node) -> Array:
    """The elements on the host: a view of the storage where the device's memory is the host's."""
    check_known(node, "reading it")
    return elements(node)


def array_at_hand(node: Node) -> Array | None:
    """The elements, where looking at them neither computes nor waits for a device."""
    while node.view is None and node.prim.name == "transfer":  # it will be the same there
        node = node.inputs[0]
    view = node.view
    if view is None or not is_known(node):
        return None
    if (node.device or device()).on_host:
        return elements(node)
    host = view.storage.host
    return None if host is None else strided(host, node.shape, view)


def elements(node: Node) -> Array:
    """`host_array` of a node whose value is known to be there, or to be computable."""
    if node.view is None:
        evaluate((node,))
    view = node.view
    assert view is not None
    if storage_lock.being_written():
        storage_lock.await_writers((view.storage,))
    place = node.device or device()
    runtime, memory = place.runtime, view.storage.memory
    if place.on_host:
        flat = runtime.download(memory, node.dtype, memory.nbytes // node.dtype.itemsize)
        return strided(flat, node.shape, view)
    size = size_of(node.shape)
    if size == 0:
        return np.empty(node.shape, node.dtype.np)
    # only the stretch that the view touches crosses over, and not what would be mostly gaps
    ends = [(n - 1) * s for n, s in zip(node.shape, view.strides, strict=True)]
    first = view.offset + sum(e for e in ends if e < 0)
    last = view.offset + sum(e for e in ends if e > 0)
    count = last - first + 1
    if count > 2 * size and (count - size) * node.dtype.itemsize > _GAPS:
        return elements(_at_home(node, place))
    flat = runtime.download(memory, node.dtype, count, first)
    return strided(flat, node.shape, View(view.storage, view.offset - first, view.strides))


def strided(flat: Array, shape: Shape, view: View) -> Array:
    """A NumPy view of flat storage."""
    if size_of(shape) == 0:
        return np.empty(shape, flat.dtype)
    step = flat.dtype.itemsize
    # not as_strided: it has no word for the 8-bit floats
    return np.ndarray(
        shape,
        flat.dtype,
        flat.view(np.uint8).data,
        view.offset * step,
        tuple(s * step for s in view.strides),
    )


def check_known(node: Node, what: str, instead: str = "") -> None:
    """Refuse to read a value that a transformation has not got; `instead` names the way out."""
    if not node.abstract:
        if is_captured(node):
            raise TracingError(_unknown(node, what, current_trace(), instead))
        return
    if node.abstract is not True:
        node.abstract.check_open()
        raise TracingError(_unknown(node, what, node.abstract, instead))
    for n in _pending_order((node,)):
        if n.prim.name == "placeholder":
            raise TracingError(_unknown(node, what, n.params, instead))


def is_known(node: Node) -> bool:
    """Whether there is a value to be looked at, now or once it is computed."""
    return not node.abstract and not is_captured(node)


def _unknown(node: Node, what: str, where: Any, instead: str) -> str:
    if not instead:
        instead = "use nm.where instead of a Python condition, or move the read outside"
        if where.__class__ is not str:  # a trace
            instead = (
                "use nm.where or nm.cond instead of a Python condition, give what it depends on as "
                "a static argument (static_argnums), or move the read outside"
            )
    return (
        f"{what} needs the value of a {node.dtype.name}{list(node.shape)} tensor, which is not "
        f"known inside {where}{user_line()}; {instead}"
    )


_NOT_THE_USERS = (str(Path(__file__).parent.parent), contextlib.__file__)


def is_users_frame(frame: Any) -> bool:
    """Whether a frame runs code of the user's own."""
    return not frame.f_code.co_filename.startswith(_NOT_THE_USERS)


def user_line() -> str:
    """Where in the caller's own code this happens, for errors: " (file.py, line 3)"."""
    frame: Any = sys._getframe(1)
    while frame is not None and not is_users_frame(frame):
        frame = frame.f_back
    return "" if frame is None else f" ({frame.f_code.co_filename}, line {frame.f_lineno})"
