"""Inclusive scans along an axis: element i combines elements 0 … i (reversed: i … end)."""

from __future__ import annotations

import math

import numpy as np

from numus import dtypes as dt
from numus.dispatch.apply import apply
from numus.graph import Array, Node, Primitive
from numus.primitives import elementwise as ew
from numus.primitives.base import unary_jvp
from numus.primitives.broadcast import full
from numus.primitives.indexing import gather, index_along, positions, scatter
from numus.primitives.references import for_sums, widen
from numus.primitives.source import constant
from numus.primitives.structure import concat
from numus.primitives.views import pad, take_range


def _argextreme(node: Node) -> tuple[tuple[Node, ...], tuple[int, ...]]:
    """Indices of the elements that a cumulative max or min takes."""
    x, (_, axis, reverse) = node.inputs[0], node.params
    here = positions(x, axis)
    # a new extreme stands where the running value is the element itself; NaN stays once met
    new = ew.or_(ew.eq(x, node), ew.and_(ew.ne(x, x), ew.ne(node, node)))
    if reverse:
        source = scan("min", ew.where(new, here, constant(x.shape[axis], dt.int64)), axis, True)
    else:
        source = scan("max", ew.where(new, here, constant(-1, dt.int64)), axis)
    return index_along(source, axis)


def _vjp(node: Node, g: Node) -> tuple[Node]:
    op, axis, reverse = node.params
    if op == "sum":
        return (scan("sum", g, axis, not reverse),)
    if op in ("max", "min"):
        at, axes = _argextreme(node)
        return (scatter(full(g.shape, 0, g.dtype), at, g, axes, "add"),)
    links, own = ew.conjugate(_links(node)), ew.conjugate(_own(node))
    return (ew.mul(_linear_recurrence(links, g, axis, back=not reverse), own),)


# Tangents of cumprod and logcumsumexp are linear recurrences: t_i = link_i t_(i-1) + own_i dx_i.
# Nothing is divided by x or subtracted from a total: zeros, infinities and large ranges are safe.


def _own(node: Node) -> Node:
    """dy_i / dx_i with y_(i-1) fixed."""
    op, axis, reverse = node.params
    x = node.inputs[0]
    if op == "logsumexp":  # exp(x_i - y_i); where y_i is -inf nothing has been added yet
        nothing = ew.eq(node, constant(-math.inf, x.dtype))
        zero = constant(0.0, x.dtype)
        x, y = ew.where(nothing, zero, x), ew.where(nothing, zero, node)
        return ew.where(nothing, zero, ew.exp(ew.sub(x, y)))
    n = x.shape[axis]
    one = full(tuple(min(m, 1) if i == axis else m for i, m in enumerate(x.shape)), 1, x.dtype)
    if reverse:
        return concat((take_range(node, axis, min(n, 1), n), one), axis)
    return concat((one, take_range(node, axis, 0, max(n - 1, 0))), axis)


def _links(node: Node) -> Node:
    """dy_i / dy_(i-1): one fewer than the elements."""
    op, axis, reverse = node.params
    n = node.shape[axis]
    first, second = (0, max(n - 1, 0)), (min(n, 1), n)
    before, after = (second, first) if reverse else (first, second)
    if op == "prod":
        return take_range(node.inputs[0], axis, *after)
    a, b = take_range(node, axis, *before), take_range(node, axis, *after)
    infinite = ew.eq(ew.abs_(b), constant(math.inf, b.dtype))
    unchanged = ew.and_(infinite, ew.eq(a, b))  # inf - inf is no number, but nothing changes there
    zero = constant(0.0, a.dtype)
    return ew.exp(ew.sub(ew.where(unchanged, zero, a), ew.where(unchanged, zero, b)))


def _linear_recurrence(links: Node, b: Node, axis: int, back: bool) -> Node:
    """The recurrence w_i = b_i + link w_{i-1} (w_{i+1}, if `back`), in log(n) passes."""
    n = b.shape[axis]
    zeros = (0,) * b.ndim
    step = 1
    while step < n:
        reach = tuple(step if i == axis else 0 for i in range(b.ndim))
        if back:
            part = ew.mul(links, take_range(b, axis, step, n))
            b = ew.add(b, pad(part, zeros, reach))
        else:
            part = ew.mul(links, take_range(b, axis, 0, n - step))
            b = ew.add(b, pad(part, reach, zeros))
        left = n - step
        if left > step:
            after = take_range(links, axis, step, left)
            links = ew.mul(after, take_range(links, axis, 0, left - step))
        step *= 2
    return b


def _jvp(node: Node, t: Node) -> Node:
    op, axis, reverse = node.params
    if op == "sum":
        return scan("sum", t, axis, reverse)
    if op in ("max", "min"):
        return gather(t, *_argextreme(node))
    return _linear_recurrence(_links(node), ew.mul(t, _own(node)), axis, back=reverse)


_FUNCTIONS = {
    **{"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum},
    "logsumexp": np.logaddexp,
}


def _reference(node: Node, x: Array) -> Array:
    op, axis, reverse = node.params
    x = for_sums(x) if op == "sum" else widen(x)
    x = np.flip(x, axis) if reverse else x
    dtype = {"dtype": x.dtype} if op in ("sum", "prod") else {}
    with np.errstate(all="ignore"):
        out = _FUNCTIONS[op].accumulate(x, axis=axis, **dtype)
        return (np.flip(out, axis) if reverse else out).astype(node.dtype.np)


_scan = Primitive(
    *("scan", "scan", _reference, _vjp, unary_jvp(_jvp)),
    batch=lambda node, xs, *_: scan(node.params[0], xs[0], node.params[1] + 1, node.params[2]),
)


def scan(op: str, x: Node, axis: int, reverse: bool = False) -> Node:
    """The cumulative sum, prod, max, min or logsumexp of x along an axis."""
    return apply(_scan, (x,), (op, axis, reverse), x.shape, x.dtype)
