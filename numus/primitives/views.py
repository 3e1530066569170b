"""Views: primitives that only change how elements are indexed, never kernels of their own.

All are linear: the jvp is the view of the tangent, the vjp its transpose. Realised inputs are
viewed by strides in O(1). `broadcast` is in a file with its transpose, the sum.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from functools import partial
from operator import mul
from typing import Any

import numpy as np

from numus.dispatch.apply import apply
from numus.dispatch.call_cache import GUARD_FAILED
from numus.dispatch.node_ops import FastCall, new_window
from numus.graph import Array, Node, Primitive, View, active_hooks, is_captured, mode
from numus.primitives.base import unary_jvp
from numus.primitives.source import VALUE
from numus.shapes import Shape, check_size, reshape_strides, size_of


def make_view(
    prim: Primitive,
    x: Node,
    params: Any,
    shape: Shape,
    layout: tuple[int, Shape] | None = None,
    sees_writes: bool = True,
) -> Node:
    """A view node; with `layout` (offset, strides) it aliases the storage of a realised input."""
    seen = x.view
    if seen is None or layout is None or (active_hooks and is_captured(x)):
        return apply(prim, (x,), params, shape, x.dtype)
    offset, strides = layout
    if sees_writes:
        made: Node = _fast_window.call(x, offset, strides, shape)
        if made is not GUARD_FAILED:
            return made
    storage = seen.storage if sees_writes else seen.storage.copy()
    if x.tracked and mode.grad:
        node = Node(prim, (x,), params, shape, x.dtype, x.device)
        node.tracked = True
    else:
        node = Node(VALUE, (), None, shape, x.dtype, x.device)
    node.view = View(storage, offset, strides)
    return node


_fast_window = FastCall(4, partial(new_window, prim=VALUE))


def window(x: Node, start: int, strides: Shape, shape: Shape) -> Node | None:
    """A strided window of a realised, untracked node's storage; None for other nodes."""
    view = x.view
    if view is None or x.tracked or (active_hooks and is_captured(x)):
        return None
    return make_view(VALUE, x, None, shape, (view.offset + start, strides))


# -- reshape --------------------------------------------------------------------------------------

_reshape = Primitive(
    "reshape",
    "view",
    vjp=lambda node, g: (reshape(g, node.inputs[0].shape),),
    jvp=unary_jvp(lambda node, t: reshape(t, node.params)),
    batch=lambda node, xs, batched, size: reshape(xs[0], (size, *node.shape)),
    reference=lambda node, x: np.reshape(x, node.shape),
)


def reshape(x: Node, shape: Shape) -> Node:
    """The elements in row-major order under another shape of the same size."""
    if x.shape == shape:
        return x
    if x.view is None:
        # reshapes of reshapes collapse, but not across tracked nodes or cut gradients
        inputs = x.inputs  # read once: another thread may evaluate x and clear them
        if inputs and x.prim is _reshape and not x.tracked and not inputs[0].tracked:
            x = inputs[0]
            if x.shape == shape:
                return x
        return make_view(_reshape, x, shape, shape)
    strides = reshape_strides(x.shape, x.view.strides, shape)
    layout = None if strides is None else (x.view.offset, strides)
    return make_view(_reshape, x, shape, shape, layout)


def identity(x: Node, *, sees_writes: bool = False) -> Node:
    """A node of its own for the elements of x: a copy in effect, without copying."""
    layout = None if x.view is None else (x.view.offset, x.view.strides)
    return make_view(_reshape, x, x.shape, x.shape, layout, sees_writes)


# -- permute --------------------------------------------------------------------------------------


def inverse_axes(axes: Shape) -> Shape:
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


_permute = Primitive(
    "permute",
    "view",
    vjp=lambda node, g: (permute(g, inverse_axes(node.params)),),
    jvp=unary_jvp(lambda node, t: permute(t, node.params)),
    batch=lambda node, xs, batched, size: permute(xs[0], (0, *(a + 1 for a in node.params))),
    reference=lambda node, x: np.transpose(x, node.params),
)


def permute(x: Node, axes: Shape) -> Node:
    """Output axis i is input axis axes[i]."""
    if not axes or (axes[0] == 0 and axes == _identity_axes(len(axes))):
        return x
    view = x.view
    layout = None if view is None else (view.offset, permuted(view.strides, axes))
    return make_view(_permute, x, axes, permuted(x.shape, axes), layout)


@functools.lru_cache(4096)
def permuted(numbers: Shape, axes: Shape) -> Shape:
    """The shape or strides of permuted axes."""
    return tuple([numbers[a] for a in axes])


@functools.cache
def _identity_axes(ndim: int) -> Shape:
    return tuple(range(ndim))


# -- slice ----------------------------------------------------------------------------------------


def unslice(x: Node, starts: Shape, steps: Shape, shape: Shape) -> Node:
    """The transpose of `slice_`: x at the elements it reads of an array of `shape`, else zero."""
    flips = tuple(i for i, step in enumerate(steps) if step < 0)
    if flips:
        x = flip(x, flips)
    low, high, inner = [], [], []
    for n, count, start, step in zip(shape, x.shape, starts, steps, strict=True):
        first = start if step > 0 else start + (count - 1) * step
        step = abs(step)
        low.append(first if count else n)
        inner.append(step - 1)
        high.append(n - first - (count - 1) * step - 1 if count else 0)
    return pad(x, tuple(low), tuple(high), tuple(inner))


def _slice_reference(node: Node, x: Array) -> Array:
    def range_of(start: int, step: int, count: int) -> slice:
        stop = start + count * step
        return slice(start, None if stop < 0 else stop, step) if count else slice(0, 0)

    return x[tuple(map(range_of, *node.params, node.shape))]


_slice = Primitive(
    "slice",
    "view",
    vjp=lambda node, g: (unslice(g, node.params[0], node.params[1], node.inputs[0].shape),),
    jvp=unary_jvp(lambda node, t: slice_(t, node.params[0], node.params[1], node.shape)),
    batch=lambda node, xs, batched, size: slice_(
        xs[0], (0, *node.params[0]), (1, *node.params[1]), (size, *node.shape)
    ),
    reference=_slice_reference,
)


def slice_(x: Node, starts: Shape, steps: Shape, shape: Shape) -> Node:
    """Element i along an axis is input element start + i * step; steps may be negative.

    Callers have checked that every element exists.
    """
    if shape == x.shape and steps == (1,) * len(steps) and not any(starts):
        return x
    layout = None
    if x.view is not None:
        strides = x.view.strides
        offset = x.view.offset
        if 0 not in shape:
            offset += sum(map(mul, starts, strides))
        layout = (offset, tuple(map(mul, steps, strides)))
    return make_view(_slice, x, (starts, steps), shape, layout)


def flip(x: Node, axes: Sequence[int]) -> Node:
    """Reverse these axes."""
    return slice_(x, *flipped(x.shape, axes))


def flipped(shape: Shape, axes: Sequence[int]) -> tuple[Shape, Shape, Shape]:
    """Starts, steps and extents of a slice that reverses these axes."""
    steps = tuple(-1 if i in axes else 1 for i in range(len(shape)))
    starts = tuple(n - 1 if s < 0 and n else 0 for n, s in zip(shape, steps, strict=True))
    return starts, steps, shape


def take_range(x: Node, axis: int, start: int, stop: int) -> Node:
    """x[..., start:stop, ...] along one axis."""
    return slice_(x, *ranged(x.shape, axis, start, stop))


def ranged(shape: Shape, axis: int, start: int, stop: int) -> tuple[Shape, Shape, Shape]:
    """Starts, steps and extents of the slice [..., start:stop, ...] along one axis."""
    starts = tuple(start if i == axis else 0 for i in range(len(shape)))
    counts = tuple(stop - start if i == axis else n for i, n in enumerate(shape))
    return starts, (1,) * len(shape), counts


# -- pad ------------------------------------------------------------------------------------------


def _pad_slice(x: Node, node: Node) -> Node:
    low, _, inner = node.params
    return slice_(x, low, tuple(i + 1 for i in inner), node.inputs[0].shape)


def _pad_reference(node: Node, x: Array) -> Array:
    low, _, inner = node.params
    out = np.zeros(node.shape, node.dtype.np)
    if x.size:
        axes = zip(low, inner, x.shape, strict=True)
        out[tuple(slice(a, a + (n - 1) * (i + 1) + 1, i + 1) for a, i, n in axes)] = x
    return out


_pad = Primitive(
    "pad",
    "view",
    vjp=lambda node, g: (_pad_slice(g, node),),
    jvp=unary_jvp(lambda node, t: pad(t, *node.params)),
    batch=lambda node, xs, batched, size: pad(xs[0], *((0, *widths) for widths in node.params)),
    reference=_pad_reference,
)


def pad(x: Node, low: Shape, high: Shape, inner: Shape | None = None) -> Node:
    """Zeros before, after and `inner` of them between the elements of each axis."""
    inner = inner or (0,) * x.ndim
    if not any(low) and not any(high) and not any(inner):
        return x
    axes = zip(low, high, inner, x.shape, strict=True)
    shape = tuple(a + b + n + max(n - 1, 0) * i for a, b, i, n in axes)
    return make_view(_pad, x, (low, high, inner), check_size(shape, "pad"))


# -- shear ----------------------------------------------------------------------------------------


def _shear_vjp(node: Node, g: Node) -> tuple[Node]:
    axis, along, _, scale, slope, offset, divide = node.params
    extent = node.inputs[0].shape[axis]
    return (shear(g, axis, along, extent, divide, -slope, -offset, scale),)


def _shear_reference(node: Node, x: Array) -> Array:
    axis, along, extent, scale, slope, offset, divide = node.params
    shape = [1] * x.ndim
    shape[axis] = extent
    i = np.arange(extent).reshape(shape)
    shape[axis], shape[along] = 1, x.shape[along]
    j = np.arange(x.shape[along]).reshape(shape)
    at = i * scale + j * slope + offset
    ok = (at % divide == 0) & (at // divide >= 0) & (at // divide < x.shape[axis])
    if x.shape[axis] == 0:
        return np.zeros(node.shape, node.dtype.np)
    at = np.clip(at // divide, 0, x.shape[axis] - 1)
    taken = np.take_along_axis(x, np.broadcast_to(at, node.shape), axis)
    return np.where(ok, taken, np.zeros((), node.dtype.np)).astype(node.dtype.np)


_shear = Primitive(
    "shear",
    "view",
    vjp=_shear_vjp,
    jvp=unary_jvp(lambda node, t: shear(t, *node.params)),
    batch=lambda node, xs, *_: shear(xs[0], *(a + 1 for a in node.params[:2]), *node.params[2:]),
    reference=_shear_reference,
)


def shear(
    x: Node, axis: int, along: int, extent: int, scale: int, slope: int, offset: int, divide: int
) -> Node:
    """out[.. i .. j ..] = x[.. (i * scale + j * slope + offset) / divide .. j ..], zero where that
    is not an element: sliding windows, diagonals, convolutions. The transpose is a shear too.
    """
    shape = tuple(extent if k == axis else n for k, n in enumerate(x.shape))
    if divide < 0:
        scale, slope, offset, divide = -scale, -slope, -offset, -divide
    params = (axis, along, extent, scale, slope, offset, divide)
    layout = None
    if x.view is not None and divide == 1 and size_of(shape):
        corners = itertools.product((0, extent - 1), (0, shape[along] - 1))
        ends = [i * scale + j * slope + offset for i, j in corners]
        if min(ends) >= 0 and max(ends) < x.shape[axis]:
            strides = list(x.view.strides)
            step = strides[axis]
            strides[axis] = step * scale
            strides[along] += step * slope
            layout = (x.view.offset + step * offset, tuple(strides))
    return make_view(_shear, x, params, shape, layout)
