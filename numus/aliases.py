"""Tensors that see each other's writes: a root and the views of it.

Nodes are immutable, so a write re-binds handles: the root to a node with the new elements, every
view to a new view of it (functionalisation). The cost is that of writes; views only register.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from numus import dtypes as dt
from numus.errors import GradientError
from numus.graph import Node, grad_mode, mode
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import full
from numus.primitives.view_updates import (
    Path,
    detached,
    is_writable,
    may_overlap,
    path_strides,
    read_path,
    write_path,
)
from numus.primitives.views import identity
from numus.shapes import Shape, row_major

if TYPE_CHECKING:
    from numus.runtime.pycall.builder import BytecodeBuilder

_ref = weakref.ref
_MIN_SWEEP = 16  # views, from which on dead ones are removed as their number doubles


class Handle(Protocol):
    """A tensor: its node, and its relation to tensors that see writes to it."""

    _node: Node
    _alias: tuple[AliasGroup, Path] | None

    def _bind(self, node: Node) -> None: ...

    def rebind_alone(self, node: Node, op: str) -> None: ...


class AliasGroup:
    """The views of a root. Neither it nor they are kept alive."""

    __slots__ = ("dtype", "first", "rest", "root", "shape", "strides", "sweep_at")

    def __init__(self, root: Handle, first: Handle | None, strides: Shape | None = None) -> None:
        node = root._node
        self.root = _ref(root)
        self.first = None if first is None else _ref(first)  # the view that was made first
        self.rest: list[weakref.ref[Handle]] = []  # other views
        self.shape = node.shape
        self.strides = strides  # that the root has for NumPy; None: row-major
        self.dtype = node.dtype
        self.sweep_at = _MIN_SWEEP

    def others(self, tensor: Handle) -> list[Handle]:
        """The living tensors of the group but this one; the root, if it lives, first."""
        refs = (self.root, *self._views())
        return [t for ref in refs if (t := ref()) is not None and t is not tensor]

    def _views(self) -> list[weakref.ref[Handle]]:
        return self.rest if self.first is None else [self.first, *self.rest]

    def append(self, view: weakref.ref[Handle]) -> None:
        """Add a view."""
        self.rest.append(view)
        if len(self.rest) > self.sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        """Remove dead views; other threads may register new ones meanwhile."""
        self.sweep_at = sys.maxsize  # no other thread comes here
        known = list(self.rest)
        self.rest[: len(known)] = [ref for ref in known if ref() is not None]
        self.sweep_at = max(2 * len(self.rest), _MIN_SWEEP)


Alias = tuple[AliasGroup, Path]  # the group of a tensor, and its path from the root


def register(parent: Handle, view: Handle, steps: Path) -> None:
    """Let a new tensor be a view of another."""
    node = parent._node
    if node.tracked and not view._node.tracked:
        steps = (*steps, (detached,))
    own = parent._alias
    if own is None:
        group = AliasGroup(parent, view)
        parent._alias = (group, ())
        view._alias = (group, steps)
        return
    if own[1]:
        if own[0].root() is not None or own[0].others(parent):
            steps = own[1] + steps
        else:  # of a root that is gone, and the last of its views
            own = parent._alias = (AliasGroup(parent, None, layout(parent)), ())
    group = own[0]
    view._alias = (group, steps)
    group.append(_ref(view))


def write_group(code: BytecodeBuilder, root: int, view: int, node: int) -> int:
    """`AliasGroup(root, view)` in bytecode, from references to them and the root's node."""
    group = code.new(AliasGroup)
    members = {"root": root, "first": view, "rest": code.call(list)}
    members |= {name: code.load_slot(node, Node, name) for name in ("shape", "dtype")}
    for name, register in members.items():
        code.set_slot(group, AliasGroup, name, register)
    code.set_const(group, AliasGroup, "strides", None)
    code.set_const(group, AliasGroup, "sweep_at", _MIN_SWEEP)
    return group


def layout(tensor: Handle) -> Shape | None:
    """The strides that NumPy's array would have; None: row-major.

    Elements may lie otherwise: a write makes new ones. What a reshape shares follows NumPy.
    """
    own = tensor._alias
    if own is None:
        return None
    group, path = own
    if not path:
        return group.strides
    strides = path_strides(group.shape, path, group.strides)
    return None if strides == row_major(tensor._node.shape) else strides


def others(tensor: Handle) -> list[Handle]:
    """The other tensors that see writes to this one, or that it is a view of."""
    own = tensor._alias
    return [] if own is None else own[0].others(tensor)


def is_shared(tensor: Handle) -> bool:
    """True if another tensor sees writes to this one."""
    own = tensor._alias
    if own is None:
        return False
    if own[0].others(tensor):
        return True
    strides = layout(tensor)
    tensor._alias = None if strides is None else (AliasGroup(tensor, None, strides), ())
    return False


def write(tensor: Handle, node: Node, op: str) -> None:
    """Let a tensor of a group, and thereby the group, have new elements."""
    own = tensor._alias
    assert own is not None
    group, path = own
    root = group.root()
    if not is_writable(path):
        raise ValueError(
            f"{op}: several elements of this view of shape {tensor._node.shape} are one element of "
            f"a tensor of shape {group.shape}, as a broadcast's are; write to x.copy()"
        )
    if root is None:
        _write_without_root(tensor, node, op)
        return
    if path:
        grads = mode.grad and not any(step[0] is detached for step in path)
        slot = root._node.grad_slot
        if grads and slot is not None and slot.leaf and (tensor._node.tracked or node.tracked):
            raise GradientError(
                f"{op}: a view of a leaf tensor that requires gradients cannot be changed in place "
                "while they are recorded; wrap the update in nm.no_grad()"
            )
        with grad_mode(grads):
            root.rebind_alone(write_path(root._node, path, node), op)
    else:
        root.rebind_alone(node, op)
    _bind_views(group, root, path)


def propagate(tensor: Handle, bound: Collection[int], op: str) -> None:
    """Let the aliases of a tensor that is bound to a new node already see it, but for those (by
    their ids) that are bound to theirs as well."""
    if not is_shared(tensor):
        return
    assert tensor._alias is not None
    group, path = tensor._alias
    root = group.root()
    if root is tensor or id(root) in bound:
        assert root is not None
        _bind_views(group, root, path, bound)
    else:
        write(tensor, tensor._node, op)


def _bind_views(group: AliasGroup, root: Handle, path: Path, bound: Collection[int] = ()) -> None:
    """Bind the views of a root that may see a write to one of them (by its path)."""
    for view in group.others(root):
        other = _path(view)
        if id(view) not in bound and may_overlap(path, other):
            view._bind(_view_node(root._node, other))


def _path(tensor: Handle) -> Path:
    assert tensor._alias is not None
    return tensor._alias[1]


def _view_node(root: Node, path: Path) -> Node:
    with grad_mode(True):
        node = read_path(root, path)
        is_leaf = node is root and root.grad_slot is not None
        return identity(node, sees_writes=True) if is_leaf else node


def _write_without_root(tensor: Handle, node: Node, op: str) -> None:
    """A write seen by other views of a tensor that is gone: through zeros in its place."""
    own = tensor._alias
    assert own is not None
    group, path = own
    values = write_path(full(group.shape, 0, group.dtype, node), path, node)
    ones = write_path(full(group.shape, 0, group.dtype), path, full(node.shape, 1, node.dtype))
    for view in group.others(tensor):
        other = _path(view)
        if may_overlap(path, other):
            new, written = read_path(values, other), read_path(ones, other)
            view.rebind_alone(_merge(written, new, view._node), op)
    tensor.rebind_alone(node, op)


def _merge(written: Node, new: Node, old: Node) -> Node:
    """New elements where something was written (a complex element's parts may be, one by one)."""
    if old.dtype.is_complex:
        parts = (_merge(part(written), part(new), part(old)) for part in (ew.real, ew.imag))
        return ew.complex_(*parts)
    return ew.where(ew.cast(written, dt.bool_), new, old)


def base(tensor: Handle) -> Handle | None:
    """The tensor that this one is a view of, if it is one and that one is there."""
    own = tensor._alias
    return own[0].root() if own is not None and own[1] else None


def become(tensor: Handle, view: Handle) -> None:
    """Let a tensor be a view of itself, in another shape; its views stay related to it."""
    own = view._alias
    if is_shared(tensor) and own is not None:
        if own[0].root() is tensor:  # a root that is gone
            own[0].root = _nothing  # type: ignore[assignment]
        tensor._alias = own
        own[0].append(_ref(tensor))
    tensor._bind(view._node)


def _nothing() -> None:
    """A weak reference to what is gone."""
