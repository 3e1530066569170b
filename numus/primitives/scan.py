"""Running reductions along an axis: element i combines elements 0 … i (or i … end, reversed)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from numus import dtypes as dt
from numus.graph import Node, apply
from numus.primitives import elementwise as ew
from numus.primitives.base import Array, Primitive
from numus.primitives.indexing import gather, scatter
from numus.primitives.source import constant, full, iota
from numus.primitives.views import broadcast, reshape


def _places(node: Node) -> tuple[tuple[Node, ...], tuple[int, ...]]:
    """For each element of a running max or min, where the extreme it took came from."""
    x, axis = node.inputs[0], node.params[1]
    n = x.shape[axis]
    line = tuple(n if i == axis else 1 for i in range(x.ndim))
    here = broadcast(reshape(iota(n, dt.int64, x.device), line), x.shape)
    reverse = node.params[2]
    # a new extreme stands where the running value is the element itself; NaN stays once met
    new = ew.or_(ew.eq(x, node), ew.and_(ew.ne(x, x), ew.ne(node, node)))
    if reverse:
        source = scan("min", ew.where(new, here, constant(n, dt.int64)), axis, reverse=True)
    else:
        source = scan("max", ew.where(new, here, constant(-1, dt.int64)), axis)
    at = tuple(
        source
        if i == axis
        else broadcast(
            reshape(
                iota(m, dt.int64, x.device), tuple(m if j == i else 1 for j in range(x.ndim))
            ),
            x.shape,
        )
        for i, m in enumerate(x.shape)
    )
    return at, tuple(range(x.ndim))


def _vjp(node: Node, g: Node) -> tuple[Node]:
    op, axis, reverse = node.params
    x = node.inputs[0]
    if op == "sum":
        return (scan("sum", g, axis, not reverse),)
    if op in ("max", "min"):
        at, axes = _places(node)
        return (scatter(full(x.shape, 0, g.dtype), at, g, axes, "add"),)
    if op == "logsumexp":
        # dy_i / dx_j = exp(x_j - y_i) for j <= i: subtract a running shift to stay finite
        weights = ew.exp(ew.sub(ew.neg(node), ew.neg(_final(node))))
        spread = scan("sum", ew.mul(g, weights), axis, not reverse)
        return (ew.mul(spread, ew.exp(ew.sub(x, _final(node)))),)
    return (_prod_vjp(node, g),)


def _final(node: Node) -> Node:
    """The last running value along the axis, laid along it."""
    from numus.primitives.views import take_range

    _, axis, reverse = node.params
    n = node.shape[axis]
    end = take_range(node, axis, 0, 1) if reverse else take_range(node, axis, n - 1, n)
    return broadcast(end, node.shape)


def _prod_vjp(node: Node, g: Node) -> Node:
    """Right with zeros among the factors: each output's products without one element.

    dx_j = sum_i>=j g_i * prod_{k<=i, k!=j} x_k, which is quadratic in the length; where x_j is not
    zero it is (sum_i>=j g_i y_i) / x_j, and the places of the first zero take the long way.
    """
    _, axis, reverse = node.params
    x = node.inputs[0]
    zero, one = constant(0, x.dtype), constant(1, x.dtype)
    is_zero = ew.eq(x, zero)
    if x.dtype.is_complex:
        g = ew.conj(g)
    safe = ew.where(is_zero, one, x)
    plain = ew.div(scan("sum", ew.mul(g, node), axis, not reverse), safe)
    # at the first zero: products that replace it by one, up to the next zero
    seen = scan("sum", ew.cast(is_zero, dt.int64), axis, reverse)
    first = ew.and_(is_zero, ew.eq(seen, constant(1, dt.int64)))
    without = scan("prod", ew.where(first, one, x), axis, reverse)
    after = ew.eq(seen, constant(1, dt.int64))
    contribution = ew.where(after, ew.mul(g, without), zero)
    at_zero = scan("sum", contribution, axis, not reverse)
    out = ew.where(is_zero, ew.where(first, at_zero, zero), plain)
    return ew.conj(out) if x.dtype.is_complex else out


def _jvp(node: Node, tangents: Sequence[Node | None]) -> Node | None:
    op, axis, reverse = node.params
    x, t = node.inputs[0], tangents[0]
    if t is None:
        return None
    if op == "sum":
        return scan("sum", t, axis, reverse)
    if op in ("max", "min"):
        at, axes = _places(node)
        return gather(t, at, axes)
    if op == "logsumexp":
        final = _final(node)
        inner = scan("sum", ew.mul(t, ew.exp(ew.sub(x, final))), axis, reverse)
        return ew.mul(inner, ew.exp(ew.sub(final, node)))
    return _prod_jvp(node, t)


def _prod_jvp(node: Node, t: Node) -> Node:
    _, axis, reverse = node.params
    x = node.inputs[0]
    zero, one = constant(0, x.dtype), constant(1, x.dtype)
    is_zero = ew.eq(x, zero)
    safe = ew.where(is_zero, one, x)
    ratios = scan("sum", ew.where(is_zero, zero, ew.div(t, safe)), axis, reverse)
    seen = scan("sum", ew.cast(is_zero, dt.int64), axis, reverse)
    none_yet, one_seen = (ew.eq(seen, constant(i, dt.int64)) for i in (0, 1))
    first = ew.and_(is_zero, one_seen)
    without = scan("prod", ew.where(first, one, x), axis, reverse)
    at_zero = scan("sum", ew.where(first, t, zero), axis, reverse)
    return ew.where(
        none_yet, ew.mul(node, ratios), ew.where(one_seen, ew.mul(without, at_zero), zero)
    )


_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "sum": np.add.accumulate,
    "prod": np.multiply.accumulate,
    "max": np.maximum.accumulate,
    "min": np.minimum.accumulate,
    "logsumexp": np.logaddexp.accumulate,
}


def _reference(node: Node, x: Array) -> Array:
    op, axis, reverse = node.params
    if node.dtype.is_narrow_float:
        x = x.astype(np.float32)
    with np.errstate(all="ignore"):
        if reverse:
            x = np.flip(x, axis)
        if op in ("sum", "prod"):
            out = _FUNCTIONS[op](x, axis=axis, dtype=x.dtype)
        else:
            out = _FUNCTIONS[op](x, axis=axis)
        return (np.flip(out, axis) if reverse else out).astype(node.dtype.np)


def _batch(node: Node, inputs: Sequence[Node], batched: Sequence[bool], size: int) -> Node:
    op, axis, reverse = node.params
    return scan(op, inputs[0], axis + 1, reverse)


_scan = Primitive("scan", "scan", reference=_reference, vjp=_vjp, jvp=_jvp, batch=_batch)


def scan(op: str, x: Node, axis: int, reverse: bool = False) -> Node:
    """The running sum, prod, max, min or logsumexp of x along an axis."""
    return apply(_scan, (x,), (op, axis, reverse), x.shape, x.dtype)
