"""Running reductions along an axis: element i combines elements 0 … i (or i … end, reversed)."""

from __future__ import annotations

import math
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
    if op == "logsumexp":  # dy_i / dx_j = exp(x_j - y_i) for j <= i
        return (_scaled_sums(g, _minus(node), x, axis, not reverse),)
    return (_prod_vjp(node, g),)


def _minus(y: Node) -> Node:
    """-y for running log-sums, 0 where they are still -inf: nothing has been added there."""
    nothing = ew.eq(y, constant(-math.inf, y.dtype))
    return ew.where(nothing, constant(0.0, y.dtype), ew.neg(y))


def _scaled_sums(t: Node, before: Node, after: Node, axis: int, reverse: bool) -> Node:
    """exp(after) times the running sum of t exp(before), where neither power need be finite.

    It goes through logarithms, of the positive and the negative t apart.
    """

    def of_positive(t: Node) -> Node:
        positive = ew.lt(constant(0.0, t.dtype), t)
        logs = ew.log(ew.where(positive, t, constant(1.0, t.dtype)))
        logs = ew.where(positive, logs, constant(-math.inf, t.dtype))
        return ew.exp(ew.add(scan("logsumexp", ew.add(logs, before), axis, reverse), after))

    return ew.sub(of_positive(t), of_positive(ew.neg(t)))


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
        return _scaled_sums(t, x, _minus(node), axis, reverse)
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
