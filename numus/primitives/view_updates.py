"""Functionalised writes through views: the base with what is written to a view of it.

A view is a path of steps `(function, *arguments)`, each a node function of `primitives.views`; an
update is its right inverse: the parent with new elements where the step reads. Graphs stay
functional, as in PyTorch's functionalisation pass and JAX's `.at[].set`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import mul
from typing import Any

from numus import dtypes as dt
from numus.graph import Node, View, active_hooks, is_captured
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, full, sliding_windows
from numus.primitives.source import value as realised
from numus.primitives.views import (
    identity,
    inverse_axes,
    permute,
    permuted,
    reshape,
    shear,
    slice_,
    unslice,
)
from numus.runtime.devices import default
from numus.shapes import Shape, broadcast_strides, reshape_strides, row_major

Step = tuple[Any, ...]
Path = tuple[Step, ...]


def write_slice(x: Node, value: Node, starts: Shape, steps: Shape, mode: str = "set") -> Node:
    """x with a value of the slice's shape set (or added) where `slice_` would read: one pass."""
    if 0 in value.shape:
        return x
    update = unslice(value, starts, steps, x.shape)
    if mode == "add":
        return ew.add(x, update)
    if value.shape == x.shape:
        return update
    written = unslice(full(value.shape, True, dt.bool_), starts, steps, x.shape)
    return ew.where(written, update, x)


def detached(x: Node, *, sees_writes: bool = True) -> Node:
    """A node of this value without history."""
    view = x.view
    if view is None or (active_hooks and is_captured(x)):
        return ew.stop_gradient(x)
    if sees_writes and not x.tracked:
        return identity(x, sees_writes=True)
    if not sees_writes:
        view = View(view.storage.copy(), view.offset, view.strides)
    return realised(view, x.shape, x.dtype, x.device or default.device)


def main_diagonal(x: Node) -> Node:
    """The diagonal of the last two axes, which are of one extent, as a new last axis."""
    row, n = x.ndim - 2, x.shape[-1]
    line = shear(x, row, row + 1, min(n, 1), 1, 1, 0, 1)
    return reshape(line, (*x.shape[:row], n))


def _write_diagonal(x: Node, value: Node) -> Node:
    n = x.shape[-1]
    if n == 0:
        return x

    def scattered(line: Node) -> Node:
        rows = reshape(line, (*x.shape[:-2], 1, n))
        return shear(rows, x.ndim - 2, x.ndim - 1, n, 1, -1, 0, 1)

    written = scattered(full((*x.shape[:-2], n), True, dt.bool_))
    return ew.where(written, scattered(value), x)


# The update of each step: (parent, value, *arguments of the step) -> new parent.
_UPDATES: dict[Callable[..., Node], Callable[..., Node]] = {
    detached: lambda x, value: ew.stop_gradient(value),
    reshape: lambda x, value, shape: reshape(value, x.shape),
    permute: lambda x, value, axes: permute(value, inverse_axes(axes)),
    slice_: lambda x, value, starts, steps, shape: write_slice(x, value, starts, steps),
    main_diagonal: lambda x, value: _write_diagonal(x, value),
    ew.real: lambda x, value: ew.complex_(value, ew.imag(x)),
    ew.imag: lambda x, value: ew.complex_(ew.real(x), value),
}


def read_path(root: Node, path: Path) -> Node:
    """A view of a root."""
    for step in path:
        root = step[0](root, *step[1:])
    return root


def is_writable(path: Path) -> bool:
    """False where several elements of the view are one element of the root."""
    return all(step[0] in _UPDATES for step in path)


def write_path(root: Node, path: Path, value: Node) -> Node:
    """The root with a view of it replaced by a value."""
    parents = [root]
    for function, *arguments in path[:-1]:
        parents.append(function(parents[-1], *arguments))
    for parent, (function, *arguments) in zip(reversed(parents), reversed(path), strict=True):
        value = _UPDATES[function](parent, value, *arguments)
    return value


def may_overlap(a: Path, b: Path) -> bool:
    """False if two views of one root surely have no element in common."""
    if not a or not b or a[0][0] is not slice_ or b[0][0] is not slice_:
        return True
    _, starts, steps, counts = a[0]
    _, other_starts, other_steps, other_counts = b[0]
    axes = zip(starts, steps, counts, other_starts, other_steps, other_counts, strict=True)
    for first, step, count, other_first, other_step, other_count in axes:
        low, high = sorted((first, first + (count - 1) * step))
        other_low, other_high = sorted((other_first, other_first + (other_count - 1) * other_step))
        if count == 0 or other_count == 0 or high < other_low or other_high < low:
            return False
    return True


@functools.lru_cache(4096)
def path_strides(shape: Shape, path: Path, strides: Shape | None = None) -> Shape | None:
    """The strides of a view of a root of this shape and these strides (None: row-major); None if
    not those of a view."""
    strides = row_major(shape) if strides is None else strides
    for function, *arguments in path:
        if function is permute:
            (axes,) = arguments
            shape, strides = permuted(shape, axes), permuted(strides, axes)
        elif function is slice_:
            _, steps, shape = arguments
            strides = tuple(map(mul, strides, steps))
        elif function is reshape:
            found = reshape_strides(shape, strides, arguments[0])
            if found is None:
                return None
            (shape,), strides = arguments, found
        elif function is main_diagonal:
            shape, strides = shape[:-1], (*strides[:-2], strides[-2] + strides[-1])
        elif function is broadcast:
            (target,) = arguments
            shape, strides = target, broadcast_strides(shape, strides, target)
        elif function is sliding_windows:
            axis, size, step = arguments
            count = (shape[axis] - size) // step + 1
            stride = strides[axis]
            shape = (*shape[:axis], count, *shape[axis + 1 :], size)
            strides = (*strides[:axis], stride * step, *strides[axis + 1 :], stride)
        elif function is ew.real or function is ew.imag:
            strides = tuple(2 * s for s in strides)
    return strides
