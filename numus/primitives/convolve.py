"""Convolution: one primitive, closed under differentiation.

    out[n, g o, p] = sum over c, k of
        x[n, g c, (p stride + k dilation - padding_low) / lhs_dilation]  w[g o, c, k]

where indices that are no element of x count as zero (XLA's general convolution). Padding after x
follows from the extents of the result; negative padding crops. The input gradient is a convolution
of g with flipped weights, stride and lhs_dilation exchanged; the weight gradient one of x with g.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from numus.dispatch.apply import apply
from numus.graph import Array, Node, Nodes, Primitive, Tangents
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, full
from numus.primitives.contract import AS_SET, Precision, contract, matmul_precision
from numus.primitives.references import for_sums
from numus.primitives.views import flip, permute, reshape, slice_
from numus.shapes import Shape, check_size, size_of


class Window(NamedTuple):
    """The window along one axis."""

    stride: int = 1
    dilation: int = 1  # of the window
    lhs_dilation: int = 1  # of x
    padding_low: int = 0  # zeros before x; negative: cropped


Windows = tuple[Window, ...]


def _spatial(x: Node) -> Shape:
    return x.shape[2:]


def _swap_batch_channels(x: Node, groups: int) -> Node:
    """(a, group b, …) as (b, group a, …)."""
    a, b, rest = x.shape[0], x.shape[1] // groups, x.shape[2:]
    x = permute(reshape(x, (a, groups, b, *rest)), _lead(x, (2, 1, 0)))
    return reshape(x, (b, groups * a, *rest))


def _flipped(w: Node, groups: int) -> Node:
    """(group o, c, k) as (group c, o, -k): the weights of the input gradient."""
    outputs, c, rest = w.shape[0] // groups, w.shape[1], w.shape[2:]
    flipped = permute(reshape(w, (groups, outputs, c, *rest)), _lead(w, (0, 2, 1)))
    flipped = reshape(flipped, (groups * c, outputs, *rest))
    return flip(flipped, tuple(range(2, flipped.ndim)))


def _as_weights(g: Node) -> Node:
    """(n, group o, p) as (group o, n, p): g in the role of weights."""
    return permute(g, (1, 0, *range(2, g.ndim)))


def _lead(x: Node, first: Shape) -> Shape:
    """A permutation of the first three axes of x with its second (or first) split."""
    return (*first, *range(3, x.ndim + 1))


def input_gradient(
    g: Node, w: Node, windows: Windows, extents: Shape, groups: int, precision: Precision = AS_SET
) -> Node:
    """The transpose by x (dgrad)."""
    back = tuple(
        Window(v.lhs_dilation, v.dilation, v.stride, (k - 1) * v.dilation - v.padding_low)
        for v, k in zip(windows, _spatial(w), strict=True)
    )
    return convolve(g, _flipped(w, groups), back, extents, groups, precision)


def weight_gradient(
    x: Node, g: Node, windows: Windows, extents: Shape, groups: int, precision: Precision = AS_SET
) -> Node:
    """The transpose by w (wgrad), in the form that dilates neither operand."""
    rest = (extents, groups, precision)
    if any(v.lhs_dilation > 1 for v in windows) and all(v.stride == 1 for v in windows):
        # x in the role of the window, g in that of the data
        back = tuple(
            Window(v.dilation, v.lhs_dilation, 1, (k - 1) * v.dilation - v.padding_low)
            for v, k in zip(windows, extents, strict=True)
        )
        y = convolve(_swap_batch_channels(g, groups), _as_weights(x), back, *rest)
        return _flipped(_as_weights(y), groups)
    back = tuple(Window(v.dilation, v.stride, v.lhs_dilation, v.padding_low) for v in windows)
    y = convolve(_swap_batch_channels(x, groups), _as_weights(g), back, *rest)
    return _as_weights(y)


def _vjp(node: Node, g: Node) -> tuple[Node | None, Node | None]:
    x, w = node.inputs
    groups, windows, precision = node.params
    g, gx, gw = ew.cast(g, x.dtype), None, None
    if x.tracked:
        gx = input_gradient(g, ew.conjugate(w), windows, _spatial(x), groups, precision)
    if w.tracked:
        gw = weight_gradient(ew.conjugate(x), g, windows, _spatial(w), groups, precision)
    return gx, gw


def _jvp(node: Node, tangents: Tangents) -> Node | None:
    (x, w), (tx, tw) = node.inputs, tangents
    groups, windows, precision = node.params
    rest = (windows, _spatial(node), groups, precision)
    return ew.total(
        None if tx is None else convolve(tx, w, *rest),
        None if tw is None else convolve(x, tw, *rest),
    )


def _batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    """Batched data is a larger batch, batched weights more outputs, both more groups."""
    x, w = inputs
    groups, windows, precision = node.params
    n, q, *extents = node.shape
    o = q // groups
    rest = tuple(range(4, 4 + len(extents)))

    def run(x: Node, w: Node, groups: int) -> Node:
        return convolve(x, w, windows, tuple(extents), groups, precision)

    if not batched[1]:
        y = run(reshape(x, (size * n, *x.shape[2:])), w, groups)
        return reshape(y, (size, *node.shape))
    if not batched[0]:
        w = reshape(w, (size, groups, o, *w.shape[2:]))
        w = permute(w, (1, 0, *range(2, w.ndim)))
        y = run(x, reshape(w, (groups * size * o, *w.shape[3:])), groups)
        y = permute(reshape(y, (n, groups, size, o, *extents)), (2, 0, 1, 3, *rest))
        return reshape(y, (size, *node.shape))
    if size == 0:
        return full((0, *node.shape), 0, node.dtype)
    x = permute(x, (1, 0, *range(2, x.ndim)))
    x = reshape(x, (n, size * x.shape[2], *x.shape[3:]))
    y = run(x, reshape(w, (size * q, *w.shape[2:])), size * groups)
    y = permute(reshape(y, (n, size, q, *extents)), (1, 0, 2, *(i - 1 for i in rest)))
    return reshape(y, (size, *node.shape))


def _at(space: tuple[Any, ...]) -> Any:
    """An index of space in every batch, group and channel."""
    return (*(slice(None),) * 3, *space)


def _reference(node: Node, x: Array, w: Array) -> Array:
    groups, windows, _ = node.params
    x, w = for_sums(x), for_sums(w)
    wide = np.result_type(x, w)
    n, channels, *size = x.shape
    q, c, *taps = w.shape
    extents = node.shape[2:]
    x = x.astype(wide).reshape(n, groups, channels // groups, *size)
    w = w.astype(wide).reshape(groups, q // groups, c, *taps)
    out = np.zeros((n, groups, q // groups, *extents), wide)
    for k in itertools.product(*map(range, taps)):
        to, where = [], []  # the positions of the result that this tap contributes to, and of x
        for v, tap, count, extent in zip(windows, k, extents, size, strict=True):
            at = np.arange(count) * v.stride + tap * v.dilation - v.padding_low
            valid = (at % v.lhs_dilation == 0) & (at >= 0) & (at < extent * v.lhs_dilation)
            to.append(np.flatnonzero(valid))
            where.append(at[valid] // v.lhs_dilation)
        part = x[_at(np.ix_(*where))]
        shape = part.shape[3:]
        with np.errstate(all="ignore"):
            add = np.matmul(w[_at(k)], part.reshape(*part.shape[:3], size_of(shape)))
        out[_at(np.ix_(*to))] += add.reshape(*add.shape[:3], *shape)
    return out.reshape(node.shape).astype(node.dtype.np)


_convolve = Primitive("convolve", "convolve", _reference, _vjp, _jvp, _batch)


def convolve(
    x: Node, w: Node, windows: Windows, extents: Shape, groups: int, precision: Precision = AS_SET
) -> Node:
    """(n, groups c, *space) by (groups o, c, *taps) is (n, groups o, *extents), accumulated in (at
    least) their dtype. Callers have checked that the shapes fit.

    `precision` TF32 lets tensor cores round float32 operands to 11 bits, None does not.
    """
    precision = matmul_precision(precision, x.dtype)
    shape = check_size((x.shape[0], w.shape[0], *extents), "convolve")
    if groups == 1 and size_of(_spatial(w)) == 1 and _is_strided_slice(windows, extents, x):
        steps = (1, 1, *(v.stride for v in windows))
        if extents != _spatial(x):
            x = slice_(x, (0,) * x.ndim, steps, (*x.shape[:2], *extents))
        return _pointwise(x, w, shape, precision)
    return apply(_convolve, (x, w), (groups, windows, precision), shape, x.dtype)


def _is_strided_slice(windows: Windows, extents: Shape, x: Node) -> bool:
    """One-element windows read a strided slice of x: no padding, no lhs_dilation."""
    return all(
        v.padding_low == 0 and v.lhs_dilation == 1 and (count - 1) * v.stride < size
        for v, count, size in zip(windows, extents, _spatial(x), strict=True)
    )


def _pointwise(x: Node, w: Node, shape: Shape, precision: Precision) -> Node:
    """A 1×1 convolution as a matmul: (o, c) by (c, pixels) for every image."""
    n, c, o, pixels = x.shape[0], x.shape[1], w.shape[0], size_of(_spatial(x))
    if pixels == 1:
        flipped = permute(reshape(w, (1, o, c)), (0, 2, 1))
        return reshape(contract(reshape(x, (1, n, c)), flipped, x.dtype, precision), shape)
    weights = broadcast(reshape(w, (1, o, c)), (n, o, c))
    return reshape(contract(weights, reshape(x, (n, c, pixels)), x.dtype, precision), shape)
