"""Running sums, products and extremes along an axis, and their inverse, differences."""

from __future__ import annotations

from typing import Any

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions._base import common, flat_or_axis, float_node, method, node_of, require, wrap
from numus.functions.autocast import widens
from numus.functions.reduction.reductions import accumulator
from numus.functions.spelling import spelled
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, full
from numus.primitives.scan import scan
from numus.primitives.structure import concat
from numus.primitives.views import take_range
from numus.shapes import as_int, normal_axis
from numus.tensor import Tensor

__all__ = [
    "cummax", "cummin", "cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "diff",
    "logcumsumexp",
]  # fmt: skip


def _cumulative(
    op: str, kind: str, x: Any, axis: int | None, dtype: Any, include_initial: bool
) -> Tensor:
    node = accumulator(op, node_of(x, op), dtype)
    if axis is None:
        if node.ndim != 1:
            raise ShapeError(f"{op}: axis must be given for x of shape {node.shape}")
        axis = 0
    axis = normal_axis(axis, node.ndim, op)
    y = scan(kind, node, axis)
    if include_initial:
        first = tuple(1 if i == axis else n for i, n in enumerate(node.shape))
        y = concat((full(first, 0 if kind == "sum" else 1, node.dtype), y), axis)
    return wrap(y)


@method()
@spelled
def cumulative_sum(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """The running sum along an axis; with `include_initial` it starts with the empty sum, 0."""
    return _cumulative("cumulative_sum", "sum", x, axis, dtype, include_initial)


@method()
@spelled
def cumulative_prod(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """The running product along an axis; with `include_initial` it starts with 1."""
    return _cumulative("cumulative_prod", "prod", x, axis, dtype, include_initial)


@method()
@widens
@spelled
def cumsum(x: Any, /, axis: int | None = None, *, dtype: Any = None) -> Tensor:
    """The running sum along an axis, of all elements in row-major order where none is given.

    >>> nm.cumsum(nm.asarray([1, 2, 3])).tolist()
    [1, 3, 6]
    """
    node = accumulator("cumsum", node_of(x, "cumsum"), dtype)
    return wrap(scan("sum", *flat_or_axis(node, axis, "cumsum")))


@method()
@widens
@spelled
def cumprod(x: Any, /, axis: int | None = None, *, dtype: Any = None) -> Tensor:
    """The running product along an axis, of all elements where none is given."""
    node = accumulator("cumprod", node_of(x, "cumprod"), dtype)
    return wrap(scan("prod", *flat_or_axis(node, axis, "cumprod")))


def _running_extreme(op: str, kind: str, x: Any, axis: int | None) -> Tensor:
    node = require(op, node_of(x, op), "bool", "uint", "int", "float")
    ordered = dt.uint8 if node.dtype.kind == "bool" else node.dtype
    y = scan(kind, *flat_or_axis(ew.cast(node, ordered), axis, op))
    return wrap(ew.cast(y, node.dtype))


@method()
@spelled
def cummax(x: Any, /, axis: int | None = None) -> Tensor:
    """The largest element so far along an axis; NaN from the first NaN on.

    Values only, as NumPy's `maximum.accumulate`: no tensor of indices comes with them.
    """
    return _running_extreme("cummax", "max", x, axis)


@method()
@spelled
def cummin(x: Any, /, axis: int | None = None) -> Tensor:
    """The smallest element so far along an axis; NaN from the first NaN on. Values only."""
    return _running_extreme("cummin", "min", x, axis)


@method()
@spelled
def logcumsumexp(x: Any, /, axis: int | None = None) -> Tensor:
    """log(cumsum(exp(x))) along an axis, without overflow."""
    node = float_node("logcumsumexp", x)
    return wrap(scan("logsumexp", *flat_or_axis(node, axis, "logcumsumexp")))


def _adjacent(op: str, part: Node, x: Node, axis: int) -> Node:
    """An array to join to x, of its shape but for the axis; a scalar is one layer."""
    if part.ndim == 0:
        return broadcast(part, tuple(1 if i == axis else n for i, n in enumerate(x.shape)))
    others = [n for i, n in enumerate(x.shape) if i != axis]
    if part.ndim != x.ndim or [n for i, n in enumerate(part.shape) if i != axis] != others:
        raise ShapeError(
            f"{op}: a part of shape {part.shape} does not fit x of shape {x.shape}: "
            f"they may differ only along axis {axis}"
        )
    return part


@method()
@spelled
def diff(
    x: Any, /, n: int = 1, axis: int = -1, *, prepend: Any = None, append: Any = None
) -> Tensor:
    """The n-th difference between neighbours along an axis.

    `prepend` and `append` are joined to x first. Between booleans it is whether they differ.

    >>> nm.diff(nm.asarray([1, 4, 9, 16])).tolist()
    [3, 5, 7]
    """
    n = as_int(n, "n", "diff")
    if n < 0:
        raise ValueError(f"diff: n must not be negative, but is {n}")
    if n == 0:
        return wrap(node_of(x, "diff"))
    given = [part for part in (prepend, x, append) if part is not None]
    nodes = common("diff", *given)
    node = nodes[0 if prepend is None else 1]
    axis = normal_axis(axis, node.ndim, "diff")
    node = concat(tuple(_adjacent("diff", part, node, axis) for part in nodes), axis)
    subtract = ew.xor if node.dtype.kind == "bool" else ew.sub
    for _ in range(n):
        extent = node.shape[axis]
        later = take_range(node, axis, min(1, extent), extent)
        node = subtract(later, take_range(node, axis, 0, later.shape[axis]))
    return wrap(node)
