"""Gather, scatter and nonzero.

Indices are int64 and not negative (the functions above wrap them). Reads out of bounds are clamped,
writes dropped: no kernel leaves its buffers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from numus import dtypes as dt
from numus.dispatch.apply import apply
from numus.graph import Array, Node, Nodes, Primitive, Tangents
from numus.primitives import elementwise as ew
from numus.primitives.base import nondifferentiable, unary_jvp
from numus.primitives.broadcast import batch_all, broadcast, full
from numus.primitives.source import constant, iota
from numus.primitives.views import permute, reshape
from numus.shapes import Shape, size_of

# -- gather ---------------------------------------------------------------------------------------


def _gather_vjp(node: Node, g: Node) -> tuple[Node | None, ...]:
    x, *indices = node.inputs
    zeros = full(x.shape, 0, x.dtype)
    return (scatter(zeros, tuple(indices), g, node.params, "add"), *(None for _ in indices))


def positions(like: Node, axis: int) -> Node:
    """For each element of a node's shape its index along an axis."""
    n = like.shape[axis]
    line = tuple(n if i == axis else 1 for i in range(like.ndim))
    return broadcast(reshape(iota(n, dt.int64, like.device), line), like.shape)


def _gather_batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    x, *indices = inputs
    wide = tuple(batch_all(indices, batched[1:], size))
    if not batched[0]:
        return gather(x, wide, node.params)
    if not any(batched[1:]):
        out = gather(x, tuple(indices), tuple(a + 1 for a in node.params))
        lead = indices[0].ndim  # index axes come first, then the batch axis: bring it forward
        return permute(out, (lead, *range(lead), *range(lead + 1, out.ndim)))
    # each batch entry reads its own
    return gather(x, (positions(wide[0], 0), *wide), (0, *(a + 1 for a in node.params)))


def _gather_reference(node: Node, x: Array, *indices: Array) -> Array:
    axes = node.params
    rest = [i for i in range(x.ndim) if i not in axes]
    moved = np.transpose(x, (*axes, *rest))
    if 0 in node.shape:
        return np.zeros(node.shape, x.dtype)
    return moved[tuple(np.clip(i, 0, x.shape[a] - 1) for i, a in zip(indices, axes, strict=True))]


_gather = Primitive(
    "gather",
    "gather",
    reference=_gather_reference,
    vjp=_gather_vjp,
    jvp=unary_jvp(lambda node, t: gather(t, node.inputs[1:], node.params)),
    batch=_gather_batch,
)


def gather(x: Node, indices: tuple[Node, ...], axes: Shape) -> Node:
    """Read x at index arrays (all of one shape), one for each of `axes`.

    The result has the indices' axes first, then the axes of x that were not indexed.
    """
    rest = tuple(n for i, n in enumerate(x.shape) if i not in axes)
    return apply(_gather, (x, *indices), axes, indices[0].shape + rest, x.dtype)


def index_along(index: Node, axis: int) -> tuple[tuple[Node, ...], Shape]:
    """Index arrays and axes for `gather` and `scatter` that move only along one axis."""
    axes = tuple(range(index.ndim))
    return tuple(index if i == axis else positions(index, i) for i in axes), axes


# -- nonzero --------------------------------------------------------------------------------------


def _nonzero_reference(node: Node, mask: Array) -> Array:
    out = np.full(node.shape, mask.shape[-1], np.int64)
    for row in np.ndindex(*mask.shape[:-1]):
        found = np.flatnonzero(mask[row])[: node.shape[-1]]
        out[row][: found.size] = found
    return out


_nonzero = nondifferentiable(
    "nonzero",
    "nonzero",
    _nonzero_reference,
    lambda node, inputs, batched, size: nonzero(inputs[0], node.params),
)


def nonzero(mask: Node, count: int) -> Node:
    """The first `count` indices of true elements along the last axis, in order.

    Missing ones are the length of the axis, one past the last index.
    """
    return apply(_nonzero, (mask,), count, (*mask.shape[:-1], count), dt.int64)


# -- scatter --------------------------------------------------------------------------------------

_COMBINE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _scatter_vjp(node: Node, g: Node) -> tuple[Node | None, ...]:
    axes, mode = node.params
    x, updates, *indices = node.inputs
    at = tuple(indices)
    none = (None,) * len(indices)
    if mode == "add":
        return (g, _inside(gather(g, at, axes), node), *none)
    if mode == "set":
        blank = full(updates.shape, 0, g.dtype)
        return (scatter(g, at, blank, axes, "set"), _written(node, g), *none)
    if mode in ("max", "min"):
        # ties between the base and the updates share the gradient equally
        hit_x = ew.cast(ew.eq(x, node), g.dtype)
        hit_u = ew.cast(ew.eq(updates, gather(node, at, axes)), g.dtype)
        count = scatter(hit_x, at, _inside(hit_u, node), axes, "add")
        share = ew.div(g, count)
        return (ew.mul(share, hit_x), _inside(ew.mul(gather(share, at, axes), hit_u), node), *none)
    # mul: a factor's cotangent is multiplied by all other factors of its element
    by_x = ew.conjugate(scatter(full(x.shape, 1, x.dtype), at, updates, axes, "mul"))
    by_u = ew.conjugate(_other_factors(node))
    return (ew.mul(g, by_x), _inside(ew.mul(gather(g, at, axes), by_u), node), *none)


def _other_factors(node: Node) -> Node:
    """Under "mul", for each update the product of all other factors: right when some are zero,
    to the second order too.
    """
    axes, _ = node.params
    x, updates, *indices = node.inputs
    at = tuple(indices)
    zero, one = constant(0, x.dtype), constant(1, x.dtype)
    zero_x, zero_u = ew.eq(x, zero), ew.eq(updates, zero)
    safe = ew.where(zero_u, one, updates)
    product = gather(scatter(ew.where(zero_x, one, x), at, safe, axes, "mul"), at, axes)
    rest = ew.div(product, safe)  # of those that are not zero

    def others(of_x: Node, of_u: Node) -> Node:
        return ew.sub(gather(scatter(of_x, at, of_u, axes, "add"), at, axes), of_u)

    zeros = others(ew.cast(zero_x, dt.int64), ew.cast(zero_u, dt.int64))
    the_zero = others(ew.where(zero_x, x, zero), ew.where(zero_u, updates, zero))
    none, single = (ew.eq(zeros, constant(i, dt.int64)) for i in (0, 1))
    return ew.where(none, rest, ew.where(single, ew.mul(rest, the_zero), zero))


def _inside(value: Node, node: Node) -> Node:
    """`value` where the write landed, zero where it was dropped."""
    axes, _ = node.params
    x, updates, *indices = node.inputs
    ok: Node | None = None
    for index, axis in zip(indices, axes, strict=True):
        low = full(index.shape, 0, dt.int64)
        high = full(index.shape, x.shape[axis], dt.int64)
        in_bounds = ew.and_(ew.le(low, index), ew.lt(index, high))
        ok = in_bounds if ok is None else ew.and_(ok, in_bounds)
    assert ok is not None
    ok = reshape(ok, (*ok.shape, *(1,) * (updates.ndim - ok.ndim)))
    return ew.where(ok, value, full((), 0, value.dtype))


def _written(node: Node, g: Node) -> Node:
    """The cotangent of updates under "set": only the last write to an element counts."""
    axes, _ = node.params
    x, updates, *indices = node.inputs
    at = tuple(indices)
    shape = indices[0].shape
    order = iota(size_of(shape), dt.int64, x.device)
    order = reshape(order, (*shape, *(1,) * (updates.ndim - len(shape))))
    order = broadcast(order, updates.shape)
    last = scatter(full(x.shape, -1, dt.int64), at, order, axes, "set")
    won = ew.eq(gather(last, at, axes), order)
    return _inside(ew.where(won, gather(g, at, axes), full((), 0, g.dtype)), node)


def _scatter_jvp(node: Node, tangents: Tangents) -> Node | None:
    axes, mode = node.params
    x, updates, *indices = node.inputs
    tx, tu = tangents[0], tangents[1]
    if tx is None and tu is None:
        return None
    tx = full(x.shape, 0, x.dtype) if tx is None else tx
    tu = full(updates.shape, 0, x.dtype) if tu is None else tu
    at = tuple(indices)
    if mode in ("add", "set"):
        return scatter(tx, at, tu, axes, mode)
    if mode in ("max", "min"):
        hit_x = ew.cast(ew.eq(x, node), x.dtype)
        hit_u = ew.cast(ew.eq(updates, gather(node, at, axes)), x.dtype)
        count = scatter(hit_x, at, hit_u, axes, "add")
        total = scatter(ew.mul(tx, hit_x), at, ew.mul(tu, hit_u), axes, "add")
        return ew.div(total, count)
    by_x = scatter(full(x.shape, 1, x.dtype), at, updates, axes, "mul")
    by_u = _other_factors(node)
    return scatter(ew.mul(tx, by_x), at, ew.mul(tu, by_u), axes, "add")


def _scatter_batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    axes, mode = node.params
    x, updates, *indices = batch_all(inputs, batched, size)
    rows = positions(indices[0], 0)
    return scatter(x, (rows, *indices), updates, (0, *(a + 1 for a in axes)), mode)


def _scatter_reference(node: Node, x: Array, updates: Array, *indices: Array) -> Array:
    axes, mode = node.params
    order = (*axes, *(i for i in range(x.ndim) if i not in axes))
    out = np.array(np.transpose(x, order))
    if updates.size:
        ok = np.ones(indices[0].shape, bool)
        for i, a in zip(indices, axes, strict=True):
            ok &= (i >= 0) & (i < x.shape[a])
        where = tuple(i[ok] for i in indices)
        if mode == "set":
            for index, row in zip(zip(*where, strict=True), updates[ok], strict=True):
                out[index] = row
        else:
            with np.errstate(all="ignore"):
                _COMBINE[mode].at(out, where, updates[ok])
    return np.transpose(out, np.argsort(order))


_scatter = Primitive(
    "scatter", "scatter", _scatter_reference, _scatter_vjp, _scatter_jvp, _scatter_batch
)


def scatter(x: Node, indices: tuple[Node, ...], updates: Node, axes: Shape, mode: str) -> Node:
    """x with updates written at index arrays, in row-major order of the indices.

    The mirror of `gather`: updates have the indices' axes first, then x's other axes. `mode` is
    set (the last write wins), add, mul, max or min.
    """
    return apply(_scatter, (x, updates, *indices), (axes, mode), x.shape, x.dtype)
