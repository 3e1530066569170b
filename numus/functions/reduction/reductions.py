"""Reductions: many elements to one, over any axes.

`axis` is None (all axes), an integer or a tuple; `keepdims` keeps the axes with extent 1. Sums and
products of small integers and booleans are made in int64 or uint64; floats keep their dtype (the
low-precision ones are accumulated in float32). With `dtype=` the elements are cast first. `where`
is a mask of the elements that count, and `initial` a number that is combined with each result.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.dtypes import DType
from numus.errors import DTypeError, ShapeError
from numus.functions._base import as_number, method, node_of, require, to_float, wrap
from numus.functions.autocast import widens
from numus.functions.creation.dtype_functions import ends
from numus.functions.spelling import spelled
from numus.functions.template_cache import templated
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, full, reduce_sum
from numus.primitives.reduce import reduce_max, reduce_min, reduce_prod
from numus.primitives.source import constant
from numus.primitives.views import reshape
from numus.shapes import Shape, as_int, normal_axes, size_of
from numus.tensor import Tensor

Axis = int | Sequence[int] | None
Reduce = Callable[[Node, Shape], Node]
_ACCUMULATORS = {"uint": dt.uint64, "int": dt.int64, "bool": dt.int64}

__all__ = [
    "all", "amax", "amin", "any", "count_nonzero", "max", "min", "nanmax", "nanmin", "nansum",
    "norm", "prod", "ptp", "sum", "vector_norm",
]  # fmt: skip


@functools.lru_cache(4096)
def keepdims_shape(shape: Shape, axes: Shape) -> Shape:
    """The shape in which the reduced axes have extent 1."""
    return tuple([1 if i in axes else n for i, n in enumerate(shape)])


def finish(y: Node, x: Node, axes: Shape, keepdims: bool) -> Tensor:
    """The result of reducing x over axes; with keepdims they have extent 1 in it."""
    return wrap(reshape(y, keepdims_shape(x.shape, axes)) if keepdims else y)


def filled(x: Node, axes: Shape, number: float, dtype: DType) -> Node:
    """The result of reducing x over axes without elements."""
    return full(tuple(n for i, n in enumerate(x.shape) if i not in axes), number, dtype, x)


def selected(op: str, x: Node, where: Any, otherwise: Any) -> Node:
    """x where a mask holds, and elsewhere a number that does not count."""
    return x if where is None else ew.where(mask_of(op, x, where), x, constant(otherwise, x.dtype))


def mask_of(op: str, x: Node, where: Any) -> Node:
    """The mask of the elements of x that count, in x's shape."""
    mask = node_of(where, op)
    if mask.dtype is not dt.bool_:
        raise DTypeError(f"{op}: where must be a mask of booleans, not {mask.dtype.name}")
    return broadcast(mask, x.shape)


def started(y: Node, initial: Any, combine: Callable[[Node, Node], Node]) -> Node:
    """A result combined with the number that a reduction starts from."""
    return y if initial is None else combine(y, constant(initial, y.dtype))


def count_over(x: Node, axes: Shape) -> int:
    """The number of elements of x per result."""
    return _count(x.shape, axes)


@functools.lru_cache(4096)
def _count(shape: Shape, axes: Shape) -> int:
    return size_of(tuple([shape[a] for a in axes]))


def in_dtype(op: str, x: Node, dtype: Any) -> Node:
    """x cast to a dtype that the caller named; complex values are not cut to their real part."""
    dtype = dt.as_dtype(dtype)
    if x.dtype.is_complex and not dtype.is_complex:
        raise DTypeError(
            f"{op}: dtype={dtype.name} would drop the imaginary part of {x.dtype.name}; "
            "take nm.real(x) first"
        )
    return ew.cast(x, dtype)


def accumulator(op: str, x: Node, dtype: Any) -> Node:
    """x in the dtype in which it is summed or multiplied."""
    if dtype is None:
        return ew.cast(x, _ACCUMULATORS.get(x.dtype.kind, x.dtype))
    x = in_dtype(op, x, dtype)
    if x.dtype.kind == "bool":
        raise DTypeError(f"{op}: cannot accumulate in bool; use nm.any or nm.all")
    return x


@method()
@templated
@widens
@spelled
def sum(
    x: Any,
    /,
    axis: Axis = None,
    *,
    dtype: Any = None,
    keepdims: bool = False,
    where: Any = None,
    initial: Any = None,
) -> Tensor:
    """The sum over axes; 0 where there is nothing to add.

    >>> nm.sum(nm.asarray([[1, 2], [3, 4]]), axis=0).tolist()
    [4, 6]
    """
    node = accumulator("sum", node_of(x, "sum"), dtype)
    axes = normal_axes(axis, node.ndim, "sum")
    y = reduce_sum(selected("sum", node, where, 0), axes)
    return finish(started(y, initial, ew.add), node, axes, keepdims)


@method()
@templated
@widens
@spelled
def prod(
    x: Any,
    /,
    axis: Axis = None,
    *,
    dtype: Any = None,
    keepdims: bool = False,
    where: Any = None,
    initial: Any = None,
) -> Tensor:
    """The product over axes; 1 where there is nothing to multiply.

    >>> nm.prod(nm.asarray([[1, 2], [3, 4]]), axis=1).tolist()
    [2, 12]
    """
    node = accumulator("prod", node_of(x, "prod"), dtype)
    axes = normal_axes(axis, node.ndim, "prod")
    y = reduce_prod(selected("prod", node, where, 1), axes)
    return finish(started(y, initial, ew.mul), node, axes, keepdims)


@method()
@spelled
def count_nonzero(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """How many elements are not zero (NaN is not zero), as int64.

    >>> nm.count_nonzero(nm.asarray([0, 3, 0, 5])).item()
    2
    """
    node = ew.cast(ew.cast(node_of(x, "count_nonzero"), dt.bool_), dt.int64)
    axes = normal_axes(axis, node.ndim, "count_nonzero")
    return finish(reduce_sum(node, axes), node, axes, keepdims)


@method()
@spelled
def nansum(
    x: Any,
    /,
    axis: Axis = None,
    *,
    dtype: Any = None,
    keepdims: bool = False,
    where: Any = None,
    initial: Any = None,
) -> Tensor:
    """The sum over axes of the elements that are not NaN."""
    options = {"keepdims": keepdims, "where": where, "initial": initial}
    return sum(wrap(without_nan(node_of(x, "nansum"), 0)), axis, dtype=dtype, **options)


def without_nan(x: Node, instead: float) -> Node:
    """x with a number instead of NaN."""
    return ew.where(ew.ne(x, x), constant(instead, x.dtype), x) if x.dtype.is_inexact else x


def _extreme(
    op: str,
    reduce: Reduce,
    x: Node,
    axis: Axis,
    keepdims: bool,
    where: Any = None,
    initial: Any = None,
) -> Tensor:
    require(op, x, "bool", "uint", "int", "float")
    axes = normal_axes(axis, x.ndim, op)
    if initial is not None:
        combine = ew.maximum if reduce is reduce_max else ew.minimum
        held = selected(op, x, where, initial)
        any_element = count_over(x, axes) > 0
        y = reduce(held, axes) if any_element else filled(x, axes, initial, x.dtype)
        return finish(started(y, initial, combine), x, axes, keepdims)
    if where is not None:
        raise ValueError(f"{op}: of no element there is none; where= needs initial=")
    if count_over(x, axes):
        return finish(reduce(x, axes), x, axes, keepdims)
    if size_of(keepdims_shape(x.shape, axes)):
        raise ShapeError(
            f"{op}: there is no element to choose from over axis {axis} of shape {x.shape}; "
            "reduce over axes that are not empty"
        )
    return finish(filled(x, axes, 0, x.dtype), x, axes, keepdims)


@method("max", "amax")
@templated
@spelled
def max(
    x: Any,
    /,
    axis: Axis = None,
    *,
    keepdims: bool = False,
    where: Any = None,
    initial: Any = None,
) -> Tensor:
    """The largest element over axes; NaN where there is one.

    >>> nm.max(nm.asarray([[1.0, 5.0], [7.0, 3.0]]), axis=1).tolist()
    [5.0, 7.0]
    """
    return _extreme("max", reduce_max, node_of(x, "max"), axis, keepdims, where, initial)


@method("min", "amin")
@templated
@spelled
def min(
    x: Any,
    /,
    axis: Axis = None,
    *,
    keepdims: bool = False,
    where: Any = None,
    initial: Any = None,
) -> Tensor:
    """The smallest element over axes; NaN where there is one.

    >>> nm.min(nm.asarray([[3, 1], [2, 4]]), axis=0).tolist()
    [2, 1]
    """
    return _extreme("min", reduce_min, node_of(x, "min"), axis, keepdims, where, initial)


amax = max
amin = min


@method()
@spelled
def ptp(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """Peak to peak: the largest element minus the smallest.

    >>> nm.ptp(nm.asarray([3, 9, 4])).item()
    6
    """
    node = require("ptp", node_of(x, "ptp"), "uint", "int", "float")
    high = _extreme("ptp", reduce_max, node, axis, keepdims)
    low = _extreme("ptp", reduce_min, node, axis, keepdims)
    return wrap(ew.sub(high._node, low._node))


def _nan_extreme(
    op: str, reduce: Reduce, x: Any, axis: Axis, keepdims: bool, where: Any, initial: Any
) -> Tensor:
    node = node_of(x, op)
    worst = ends(node.dtype)[reduce is reduce_min] if node.dtype.is_floating else 0
    if initial is not None or not node.dtype.is_floating:
        return _extreme(op, reduce, without_nan(node, worst), axis, keepdims, where, initial)
    node = selected(op, node, where, math.nan)
    y = _extreme(op, reduce, without_nan(node, worst), axis, keepdims)._node
    only_nan = _extreme(op, reduce_min, ew.ne(node, node), axis, keepdims)._node
    return wrap(ew.where(only_nan, constant(math.nan, y.dtype), y))


@method()
@spelled
def nanmax(
    x: Any,
    /,
    axis: Axis = None,
    *,
    keepdims: bool = False,
    where: Any = None,
    initial: Any = None,
) -> Tensor:
    """The largest element that is not NaN; NaN where all are."""
    return _nan_extreme("nanmax", reduce_max, x, axis, keepdims, where, initial)


@method()
@spelled
def nanmin(
    x: Any,
    /,
    axis: Axis = None,
    *,
    keepdims: bool = False,
    where: Any = None,
    initial: Any = None,
) -> Tensor:
    """The smallest element that is not NaN; NaN where all are."""
    return _nan_extreme("nanmin", reduce_min, x, axis, keepdims, where, initial)


def _truth(op: str, reduce: Reduce, x: Any, axis: Axis, keepdims: bool, where: Any) -> Tensor:
    node = selected(op, ew.cast(node_of(x, op), dt.bool_), where, reduce is reduce_min)
    axes = normal_axes(axis, node.ndim, op)
    if count_over(node, axes) == 0:
        return finish(filled(node, axes, reduce is reduce_min, dt.bool_), node, axes, keepdims)
    return finish(reduce(node, axes), node, axes, keepdims)


@method()
@spelled
def any(x: Any, /, axis: Axis = None, *, keepdims: bool = False, where: Any = None) -> Tensor:
    """Whether some element is not zero; False where there is none.

    >>> nm.any(nm.asarray([[True, False], [False, False]]), axis=1).tolist()
    [True, False]
    """
    return _truth("any", reduce_max, x, axis, keepdims, where)


@method()
@spelled
def all(x: Any, /, axis: Axis = None, *, keepdims: bool = False, where: Any = None) -> Tensor:
    """Whether no element is zero; True where there is none.

    >>> nm.all(nm.asarray([[True, False], [True, True]]), axis=1).tolist()
    [False, True]
    """
    return _truth("all", reduce_min, x, axis, keepdims, where)


def masked_root(x: Node, root: Callable[[Node], Node]) -> Node:
    """The root of x ≥ 0 whose derivative at 0 is 0 instead of infinite."""
    zero = constant(0.0, x.dtype)
    at_zero = ew.eq(x, zero)
    return ew.where(at_zero, zero, root(ew.where(at_zero, constant(1.0, x.dtype), x)))


def _squares(x: Node) -> Node:
    if x.dtype.is_complex:
        re, im = ew.real(x), ew.imag(x)
        return ew.add(ew.mul(re, re), ew.mul(im, im))
    return ew.mul(x, x)


def _power_norm(x: Node, axes: Shape, p: float) -> Node:
    """(sum of |x|^p)^(1/p), with zero for the derivative at zeros, where it has none."""
    size = ew.abs_(x)
    power, root = constant(p, size.dtype), constant(1 / p, size.dtype)
    zero, one = constant(0.0, size.dtype), constant(1.0, size.dtype)
    at_zero = ew.eq(size, zero)
    of_zero = zero if p > 0 else constant(math.inf, size.dtype)
    powers = ew.where(at_zero, of_zero, ew.pow_(ew.where(at_zero, one, size), power))
    total = reduce_sum(powers, axes)
    if p > 0:
        return masked_root(total, lambda t: ew.pow_(t, root))
    return ew.pow_(total, root)


def _norm(op: str, x: Any, order: Any, axis: Axis, keepdims: bool) -> Tensor:
    node = to_float(node_of(x, op))
    axes = normal_axes(axis, node.ndim, op)
    wide = ew.cast(node, dt.compute_dtype(node.dtype))
    order = as_number(order, "ord", op)
    if isinstance(order, np.integer):
        order = as_int(order, "ord", op)
    if order in (2, "fro", None):
        y = masked_root(reduce_sum(_squares(wide), axes), ew.sqrt)
    elif isinstance(order, (str, bool)) or not isinstance(order, (int, float)):
        raise ValueError(f"{op}: ord must be a number, inf, -inf or 'fro', not {order!r}")
    elif order == 0:
        y = reduce_sum(ew.cast(ew.cast(wide, dt.bool_), dt.real_of(wide.dtype)), axes)
    elif order == 1:
        y = reduce_sum(ew.abs_(wide), axes)
    elif order == math.inf:
        empty = count_over(node, axes) == 0
        y = (reduce_sum if empty else reduce_max)(ew.abs_(wide), axes)
    elif order == -math.inf:
        y = _extreme(op, reduce_min, ew.abs_(wide), axes, keepdims=False)._node
    else:
        y = _power_norm(wide, axes, float(order))
    return finish(ew.cast(y, dt.real_of(node.dtype)), node, axes, keepdims)


@method()
@widens
@spelled
def vector_norm(x: Any, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Tensor:
    """The vector norm over axes: ord is any number, inf or -inf; 0 counts the non-zeros.

    Its gradient at zero is zero.

    >>> nm.vector_norm(nm.asarray([[3.0, 4.0]]), axis=1).tolist()
    [5.0]
    """
    return _norm("vector_norm", x, ord, axis, keepdims)


@method()
@widens
@spelled
def norm(
    x: Any, /, ord: float | str | None = None, axis: Axis = None, *, keepdims: bool = False
) -> Tensor:
    """The vector norm over axes, Euclidean (Frobenius) where `ord` is None or "fro".

    It never is a matrix norm: those are `nm.linalg.norm`'s.

    >>> nm.norm(nm.asarray([3.0, 4.0])).item()
    5.0
    """
    return _norm("norm", x, ord, axis, keepdims)
