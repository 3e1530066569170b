"""Operands of public functions as nodes of the graph, dtype promotion, and results as tensors."""

from __future__ import annotations

from typing import Any

from numus import dtypes as dt
from numus.dtypes import DType
from numus.errors import DTypeError, GradientError
from numus.evaluation.evaluate import evaluate
from numus.graph import Node, has_active_hook, mode
from numus.primitives import elementwise as ew
from numus.primitives.structure import copy, transfer
from numus.primitives.view_updates import Path, read_path
from numus.primitives.views import identity, reshape
from numus.runtime.devices import Device, default
from numus.runtime.memory_pool import is_borrowed
from numus.shapes import normal_axis, size_of
from numus.tensor import Tensor, view_of
from numus.tensor import method as method
from numus.tensor import node_of as node_of
from numus.tensor import scalar_node as scalar_node

wrap = Tensor
same = identity  # the result of an operation that changes nothing


def pair(op: str, a: Any, b: Any, dev: Device | None = None) -> tuple[Node, Node]:
    """Two operands in their common dtype. A Python scalar takes the dtype of the other side.

    NumPy arrays go to the device of the other side, or to `dev` if that has none.
    """
    if isinstance(a, Tensor):
        x = a._node
        if isinstance(b, Tensor):
            y = b._node
        else:
            kind = dt.scalar_kind(b)
            if kind is not None:
                dtype = dt.promote_scalar(x.dtype, kind)
                return ew.cast(x, dtype), scalar_node(b, dtype)
            y = node_of(b, op, x.device or dev)
    else:
        kind = dt.scalar_kind(a)
        if kind is not None:
            if dt.scalar_kind(b) is not None:
                x, y = common(op, a, b)
                return x, y
            y = node_of(b, op, dev)
            dtype = dt.promote_scalar(y.dtype, kind)
            return scalar_node(a, dtype), ew.cast(y, dtype)
        y = node_of(b, op, dev)
        x = node_of(a, op, y.device or dev)
    if x.dtype is y.dtype:
        return x, y
    dtype = dt.promote(x.dtype, y.dtype)
    return ew.cast(x, dtype), ew.cast(y, dtype)


def operand(op: str, x: Any) -> Tensor:
    """An operand as a tensor, without the rules that another interface may have for it."""
    return x if x.__class__ is Tensor else wrap(node_of(x, op))


def as_line(x: Tensor, axis: int, ndim: int) -> Tensor:
    """A vector along one axis of several; the others have extent 1."""
    shape = tuple(x.shape[0] if i == axis else 1 for i in range(ndim))
    return wrap(reshape(x._node, shape))


def device_of(*xs: Any) -> Device | None:
    """The device of the first tensor that has one, to which NumPy arrays go too."""
    devices = (x._node.device for x in xs if isinstance(x, Tensor))
    return next((device for device in devices if device is not None), None)


def common(op: str, *xs: Any) -> list[Node]:
    """Any number of operands in their common dtype; Python scalars are weak."""
    kinds = [None if x.__class__ is Tensor else dt.scalar_kind(x) for x in xs]
    dev = device_of(*xs)
    pairs = zip(xs, kinds, strict=True)
    nodes = [node_of(x, op, dev) if kind is None else None for x, kind in pairs]
    dtype: DType | None = None
    for node in nodes:
        if node is not None:
            dtype = node.dtype if dtype is None else dt.promote(dtype, node.dtype)
    for x, kind in zip(xs, kinds, strict=True):
        if kind is not None:
            dtype = dt.scalar_dtype(x) if dtype is None else dt.promote_scalar(dtype, kind)
    assert dtype is not None
    return [
        scalar_node(x, dtype) if node is None else ew.cast(node, dtype)
        for x, node in zip(xs, nodes, strict=True)
    ]


def flat_or_axis(x: Node, axis: int | None, op: str) -> tuple[Node, int]:
    """x and an axis of it; where none is named, x flattened in row-major order (NumPy's rule)."""
    if axis is None:
        return reshape(x, (size_of(x.shape),)), 0
    return x, normal_axis(axis, x.ndim, op)


def to_float(x: Node) -> Node:
    """Integers and booleans in the default float, as functions with fractional results need."""
    return x if x.dtype.is_inexact else ew.cast(x, dt.default_float)


def float_node(op: str, x: Any) -> Node:
    """An operand in a real floating dtype."""
    return require(op, to_float(node_of(x, op)), "float")


def moved(x: Node, dev: Device) -> Node:
    """x on a device; constants have none and are returned as they are on the default one."""
    return x if (x.device or default.device) is dev else transfer(x, dev)


def viewed(x: Any, op: str, path: Path) -> Tensor:
    """A view of x, by steps of `primitives.view_updates`; of a tensor, each sees the other's
    writes."""
    if isinstance(x, Tensor):
        return view_of(x, path)
    return wrap(identity(read_path(node_of(x, op), path), sees_writes=True))


def computed(out: Node) -> Tensor:
    """A result distinct from its operands, even where it shares the memory of one."""
    return wrap(same(out) if out.view is not None or out.grad_slot is not None else out)


def owned(out: Node, x: Node) -> Node:
    """A result of x in memory of its own; from memory that is borrowed it is computed now, before
    its owner writes to it."""
    if out is x:
        out = copy(x)
    if x.view is not None and is_borrowed(x.view.storage.memory) and not has_active_hook():
        evaluate((out,))
    return out


def widened(x: Node) -> Node:
    """x in its compute dtype: composites on low-precision floats round once, at their end."""
    return ew.cast(x, dt.compute_dtype(x.dtype))


def like(x: Node, number: Any) -> Node:
    """A number in x's dtype: a constant, or a tensor of one element, which is differentiated."""
    return scalar_node(number, x.dtype)


def as_number(value: Any, name: str, op: str) -> Any:
    """A numeric argument that gradients do not flow to, as a Python number."""
    if not isinstance(value, Tensor):
        return value
    if value.requires_grad and mode.grad:
        raise GradientError(
            f"{op}: {name} requires gradients, and none flow to it; give a number, or a detached "
            f"tensor ({name}.detach())"
        )
    return value.item()


def require(op: str, x: Node, *kinds: str) -> Node:
    """Refuse dtypes outside these kinds (bool, uint, int, float, complex)."""
    if x.dtype.kind not in kinds:
        raise DTypeError(f"{op}: takes {', '.join(kinds)} dtypes, not {x.dtype.name}")
    return x
