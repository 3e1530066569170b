"""Guarded access to a tensor's memory from the host.

    with x.data() as a:        # a NumPy array to read, shared with other readers
    with x.data_write() as a:  # a NumPy array to write, nobody else reads it meanwhile

What is written is seen by the tensor and its views, and by nothing that was computed, or is still
to be computed, from what stood there before. So a write goes to the memory itself only where
nothing but these tensors knows of it. Otherwise the tensors move, together, to a copy, and leave
the old contents to those who hold them.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from numus import aliases
from numus.errors import GradientError
from numus.evaluation import storage_lock
from numus.evaluation.evaluate import check_known, evaluate, host_array, strided
from numus.evaluation.host_reads import check_readable
from numus.functions._base import method
from numus.graph import SOLE_REFERENCE, Node, Storage, View, active_hooks, grad_mode, lent_memory
from numus.primitives.source import value
from numus.runtime.devices import default
from numus.runtime.memory_pool import is_read_only
from numus.shapes import Shape, row_major, size_of
from numus.tensor import Tensor, attribute, detached

Array = np.ndarray[Any, Any]


def _view(x: Tensor) -> View:
    check_known(x._node, "data()")
    if x._node.view is None:
        evaluate((x._node,))
    assert x._node.view is not None
    return x._node.view


class DataView(Tensor):
    """`x.data`: x without history, whose writes x sees. Called, it lends the elements as a
    read-only NumPy array, for the length of a `with`."""

    __slots__ = ("_owner",)
    _owner: Tensor

    def __call__(self) -> contextlib.AbstractContextManager[Array]:
        return _reading(self._owner)


def _data(self: Tensor) -> DataView:
    out = DataView(detached(self._node))
    out._owner = self
    aliases.register(self, out, ((detached,),))
    return out


def _set_data(self: Tensor, given: Any) -> None:
    with grad_mode(False):
        self.assign(given)


attribute(
    "data",
    _data,
    """The tensor without history: writes are seen by both. Called, it lends the elements as a
    read-only NumPy array, for the length of a `with`.

    >>> w = nm.zeros(3, requires_grad=True)
    >>> w.data += 1
    >>> with w.data() as a:
    ...     print(a.sum())
    3.0
    """,
    _set_data,
)


@contextlib.contextmanager
def _reading(self: Tensor) -> Iterator[Array]:
    check_readable(self._node, "data()")
    with storage_lock.reading(lambda: _view(self).storage) as storage:
        array = strided(_lent(self, storage)[0], self.shape, _view(self))
        array.flags.writeable = False
        yield array


@method()
@contextlib.contextmanager
def data_write(self: Tensor) -> Iterator[Array]:
    """The elements as a NumPy array to write to, for the length of a `with`.

    Views of the tensor see what is written; results computed from it do not change, nor do those
    that are still pending. Gradients are not told: they see the new values only.

    >>> x = nm.zeros(3)
    >>> with x.data_write() as a:
    ...     a[1] = 5
    >>> x
    tensor([0., 5., 0.])
    """
    if self.requires_grad and not self.is_leaf and self._node.prim.kind != "view":
        raise GradientError(
            "data_write: this tensor was computed from others that require gradients, which its "
            "new values would contradict; write to x.detach(), or to x.copy()"
        )
    with storage_lock.writing(lambda: _view(self).storage, lambda: prepare_write(self)) as storage:
        flat, _ = _lent(self, storage)
        try:
            yield strided(flat, self.shape, _view(self))
        finally:
            storage.host = None
            if flat.size and flat.ctypes.data != storage.memory.address:  # a copy on the host
                self.device.runtime.upload(storage.memory, flat)
            aliases.propagate(self, set(map(id, _may_alias(self))), "data_write")


def _lent(x: Tensor, storage: Storage) -> tuple[Array, Array]:
    """All of the storage's memory as a flat array, and the array that this is a view of, which is
    registered as exported."""
    flat = base = _flat(x, storage)
    while isinstance(base.base, np.ndarray):
        base = base.base
    lent = storage_lock.host_access(storage).exported
    lent[:] = [r for r in lent if r() is not None]
    lent.append(weakref.ref(base))
    return flat, base


def _flat(x: Tensor, storage: Storage) -> Array:
    runtime, dtype, memory = x.device.runtime, x.dtype, storage.memory
    return runtime.download(memory, dtype, memory.nbytes // dtype.itemsize)


def lend(x: Tensor) -> Array:
    """The elements for another library to read and write. What is written is seen by x and its
    views; what is computed from x, before or after, is evaluated from the elements of that time."""
    with storage_lock.lock:
        storage = prepare_write(x)
        aliases.propagate(x, set(map(id, _may_alias(x))), "DLPack export")
        flat, base = _lent(x, storage)
        if flat.size and flat.ctypes.data == storage.memory.address:  # no copy on the host
            lend_memory(storage.memory, base)
        return strided(flat, x.shape, _view(x))


def lend_memory(memory: Any, borrower: Any) -> None:
    """Evaluate what reads a memory at once, while the borrower of it lives."""
    key = id(memory)
    lent_memory[key] = lent_memory.get(key, 0) + 1
    active_hooks.append(None)
    weakref.finalize(borrower, _returned, key).atexit = False


def _returned(key: int) -> None:
    lent_memory[key] -= 1
    if not lent_memory[key]:
        del lent_memory[key]
    active_hooks.pop()


def prepare_write(x: Tensor) -> Storage:
    """The storage to write to, to which x and its views are bound."""
    tensors = _may_alias(x)
    if _overlap(x.shape, _view(x).strides):
        if len(tensors) > 1:
            raise ValueError(
                f"data_write: elements of this view (shape {x.shape}, strides {x.strides}) share "
                "memory, as a broadcast's do; write to x.copy()"
            )
        own = np.ascontiguousarray(host_array(x._node))
        _move(tensors, _stored(x, own), row_major(x.shape))
    elif is_read_only(_view(x).storage.memory) or not _alone(tensors):
        # all of the memory, of which x may see only a part
        _move(tensors, _stored(x, _flat(x, _view(x).storage)))
    return _view(x).storage


def _may_alias(x: Tensor) -> list[Tensor]:
    """x and the tensors that see its writes, of those on its memory, in the order in which their
    nodes were made."""
    storage = _view(x).storage
    found: list[Any] = [x, *aliases.others(x)]
    found = [t for t in found if (view := t._node.view) and view.storage is storage]
    return sorted(found, key=lambda t: t._node.serial)


def _alone(tensors: list[Tensor]) -> bool:
    """Whether nothing but these tensors holds their nodes, views, storage and memory.

    Counting too many holders costs a copy; none can be missed.
    """
    if SOLE_REFERENCE is None:
        return False
    extra = SOLE_REFERENCE - 1
    handles: dict[int, int] = {}
    for t in tensors:
        handles[id(t._node)] = handles.get(id(t._node), 0) + 1
    nodes: dict[int, set[int]] = {}
    for t in tensors:
        nodes.setdefault(id(t._node.view), set()).add(id(t._node))
        if sys.getrefcount(t._node) - extra > handles[id(t._node)]:
            return False
    for t in tensors:
        if sys.getrefcount(t._node.view) - extra > len(nodes[id(t._node.view)]):
            return False
    first = _view(tensors[0])
    if sys.getrefcount(first.storage) - extra > len(nodes):
        return False
    lent = sum(r() is not None for r in storage_lock.host_access(first.storage).exported)
    return sys.getrefcount(first.storage.memory) - extra <= 1 + lent


def _overlap(shape: Shape, strides: Shape) -> bool:
    """Whether two elements may share an address."""
    reach = 0
    for stride, n in sorted((abs(s), n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride <= reach:
            return size_of(shape) > 0
        reach += stride * (n - 1)
    return False


def _stored(x: Tensor, array: Array) -> Storage:
    """A storage of its own for x, with these contents."""
    runtime = x.device.runtime
    memory = runtime.allocate(array.nbytes)
    runtime.upload(memory, array)
    return Storage(memory)


def _move(tensors: list[Tensor], storage: Storage, strides: Shape | None = None) -> None:
    """Rebind tensors to new nodes on another storage, with their strides (or those given)."""
    moved: dict[Node, Node] = {}
    for tensor in tensors:
        node = tensor._node
        if node not in moved:
            old = _view(tensor)
            view = View(storage, 0 if strides else old.offset, strides or old.strides)
            moved[node] = _replica(node, view, moved)
        tensor._bind(moved[node])


def _replica(node: Node, view: View, moved: dict[Node, Node]) -> Node:
    """The same node over other memory: a leaf stays one, a view becomes one of its moved base."""
    dev = node.device or default.device
    if not node.tracked or (node.grad_slot is not None and node.grad_slot.leaf):
        out = value(view, node.shape, node.dtype, dev)
    else:
        inputs = tuple(moved.get(n, n) for n in node.inputs)
        out = Node(node.prim, inputs, node.params, node.shape, node.dtype, dev)
        out.view = view
    out.tracked = node.tracked
    out.grad_slot = node.grad_slot
    return out
