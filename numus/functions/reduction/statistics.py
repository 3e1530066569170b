"""Means and variances. Integers are taken as the default float; `dtype=` asks for another.

The mean and the variance of one input are one pass over it. Low-precision floats are computed
in float32 and rounded once.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from numus import dtypes as dt
from numus.dtypes import DType
from numus.errors import DTypeError, ShapeError
from numus.functions._base import as_number, common, method, node_of, to_float, widened, wrap
from numus.functions.reduction import reductions
from numus.functions.reduction.reductions import Axis, count_over, finish
from numus.functions.spelling import spelled
from numus.functions.template_cache import templated
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, full, reduce_sum
from numus.primitives.reduce import reduce_sqdev
from numus.primitives.source import constant
from numus.primitives.views import permute, reshape
from numus.shapes import Shape, normal_axes
from numus.tensor import Tensor

__all__ = ["average", "mean", "nanmean", "std", "var", "var_mean"]

MAX_INVERTIBLE_EXPONENT = 100  # below it, 2**-n is a normal number of every compute dtype


def _inexact(op: str, x: Any, dtype: Any, axis: Axis) -> tuple[Node, DType, Shape]:
    """x in its compute dtype, the dtype of the result, and the axes."""
    node = node_of(x, op)
    node = to_float(node) if dtype is None else reductions.in_dtype(op, node, dtype)
    if not node.dtype.is_inexact:
        raise DTypeError(f"{op}: the result is not an integer, as dtype={node.dtype.name} asks")
    return widened(node), node.dtype, normal_axes(axis, node.ndim, op)


def mean_over(x: Node, axes: Shape) -> Node:
    """The mean of an inexact node; NaN where there is nothing."""
    return over_count(reduce_sum(x, axes), float(count_over(x, axes)))


def masked_mean(op: str, x: Node, axes: Shape, where: Any) -> Node:
    """The mean of the elements for which a mask holds, with axes of extent 1."""
    kept = reductions.keepdims_shape(x.shape, axes)
    count = reduce_sum(ew.cast(reductions.mask_of(op, x, where), x.dtype), axes)
    total = reduce_sum(reductions.selected(op, x, where, 0), axes)
    return reshape(ew.div(total, count), kept)


def variance_about(
    op: str, x: Node, axes: Shape, correction: float, where: Any, about: Any
) -> Node:
    """The variance of the elements for which a mask holds, about a mean that may be given, over
    their number less the correction, or 0 where that is negative."""
    if about is not None:
        centre = ew.cast(node_of(about, op), x.dtype)
        kept = reductions.keepdims_shape(x.shape, axes)
        centre = reshape(centre, kept) if centre.ndim != x.ndim else centre
    elif where is None:
        centre = reshape(mean_over(x, axes), reductions.keepdims_shape(x.shape, axes))
    else:
        centre = masked_mean(op, x, axes, where)
    size = ew.abs_(ew.sub(x, broadcast(centre, x.shape)))
    total = reduce_sum(reductions.selected(op, ew.mul(size, size), where, 0), axes)
    ones = full(x.shape, 1, size.dtype, size)
    count = reduce_sum(reductions.selected(op, ones, where, 0), axes)
    zero, free = constant(0, size.dtype), constant(correction, size.dtype)
    return ew.div(total, ew.maximum(ew.sub(count, free), zero))


def over_count(total: Node, count: float) -> Node:
    """total / count. A power of two has an inverse, by which a product is the same and quicker."""
    fraction, exponent = math.frexp(count)
    if fraction == 0.5 and exponent < MAX_INVERTIBLE_EXPONENT and total.dtype.is_floating:
        return ew.mul(total, constant(1 / count, total.dtype))
    return ew.div(total, constant(count, total.dtype))


def variance_over(x: Node, axes: Shape, correction: float) -> Node:
    """The variance of an inexact node, real; NaN where too few elements are left."""
    real = dt.real_of(x.dtype)
    free = count_over(x, axes) - as_number(correction, "correction", "var")
    if count_over(x, axes) == 0 or free <= 0:
        return reductions.filled(x, axes, math.nan, real)
    parts = (ew.real(x), ew.imag(x)) if x.dtype.is_complex else (x,)
    total = functools.reduce(ew.add, [reduce_sqdev(part, axes) for part in parts])
    return over_count(total, float(free))


def _variance(op: str, x: Node, axes: Shape, correction: float, where: Any, about: Any) -> Node:
    if where is None and about is None:
        return variance_over(x, axes, correction)
    return variance_about(op, x, axes, correction, where, about)


@method()
@templated
@spelled
def mean(
    x: Any,
    /,
    axis: Axis = None,
    *,
    dtype: Any = None,
    keepdims: bool = False,
    where: Any = None,
) -> Tensor:
    """The arithmetic mean over axes, of the elements for which a mask holds; NaN where there is
    nothing.

    >>> nm.mean(nm.asarray([[1.0, 2.0], [3.0, 6.0]]), axis=1).tolist()
    [1.5, 4.5]
    """
    node, result, axes = _inexact("mean", x, dtype, axis)
    if where is not None:
        found = ew.cast(masked_mean("mean", node, axes, where), result)
        rest = tuple(n for i, n in enumerate(node.shape) if i not in axes)
        return wrap(found if keepdims else reshape(found, rest))
    return finish(ew.cast(mean_over(node, axes), result), node, axes, keepdims)


@method()
@templated
@spelled
def var(
    x: Any,
    /,
    axis: Axis = None,
    *,
    correction: float = 0.0,
    dtype: Any = None,
    keepdims: bool = False,
    where: Any = None,
    mean: Any = None,
) -> Tensor:
    """The variance over axes: squared deviations from the mean, summed, over N - correction.

    It is real for complex x, and NaN where N - correction is not positive.

    >>> nm.var(nm.asarray([1.0, 3.0])).item()
    1.0
    """
    node, result, axes = _inexact("var", x, dtype, axis)
    y = _variance("var", node, axes, correction, where, mean)
    return finish(ew.cast(y, dt.real_of(result)), node, axes, keepdims)


@method()
@templated
@spelled
def std(
    x: Any,
    /,
    axis: Axis = None,
    *,
    correction: float = 0.0,
    dtype: Any = None,
    keepdims: bool = False,
    where: Any = None,
    mean: Any = None,
) -> Tensor:
    """The standard deviation over axes, the root of `var`. Its gradient is 0 where it is 0.

    >>> nm.std(nm.asarray([1.0, 3.0])).item()
    1.0
    """
    node, result, axes = _inexact("std", x, dtype, axis)
    y = reductions.masked_root(_variance("std", node, axes, correction, where, mean), ew.sqrt)
    return finish(ew.cast(y, dt.real_of(result)), node, axes, keepdims)


@method()
@spelled
def var_mean(
    x: Any, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False
) -> tuple[Tensor, Tensor]:
    """The variance and the mean over axes, in one pass.

    >>> [x.item() for x in nm.var_mean(nm.asarray([1.0, 3.0]))]
    [1.0, 2.0]
    """
    node, result, axes = _inexact("var_mean", x, None, axis)
    variance = ew.cast(variance_over(node, axes, correction), dt.real_of(result))
    centre = ew.cast(mean_over(node, axes), result)
    return finish(variance, node, axes, keepdims), finish(centre, node, axes, keepdims)


@method()
@spelled
def nanmean(
    x: Any,
    /,
    axis: Axis = None,
    *,
    dtype: Any = None,
    keepdims: bool = False,
    where: Any = None,
) -> Tensor:
    """The mean over axes of the elements that are not NaN; NaN where there are none."""
    node, result, axes = _inexact("nanmean", x, dtype, axis)
    node = reductions.selected("nanmean", node, where, math.nan)
    count = reduce_sum(ew.cast(ew.eq(node, node), node.dtype), axes)
    y = ew.div(reduce_sum(reductions.without_nan(node, 0.0), axes), count)
    return finish(ew.cast(y, result), node, axes, keepdims)


@spelled
def average(
    x: Any,
    /,
    axis: Axis = None,
    weights: Any = None,
    *,
    keepdims: bool = False,
    returned: bool = False,
) -> Any:
    """The mean over axes, each element counted by its weight.

    Args:
        weights: in x's shape, or in that of the axes.
        returned: give back the sum of the weights, too.

    >>> nm.average(nm.asarray([1.0, 4.0]), weights=nm.asarray([2.0, 1.0])).item()
    2.0
    """
    if weights is None:
        found = mean(x, axis, keepdims=keepdims)
        node = node_of(x, "average")
        count = count_over(node, normal_axes(axis, node.ndim, "average"))
        total = full(found.shape, count, found.dtype, found._node)
        return (found, wrap(total)) if returned else found
    node, w = (to_float(n) for n in common("average", x, weights))
    axes = normal_axes(axis, node.ndim, "average")
    if w.shape != node.shape:
        if axis is None or w.shape != tuple(node.shape[i] for i in axes):
            raise ShapeError(
                f"average: weights of shape {w.shape} fit neither x of shape {node.shape} nor "
                f"axis {axis}; give one weight per element, or per index along one axis"
            )
        line = tuple(n if i in axes else 1 for i, n in enumerate(node.shape))
        order = tuple(sorted(range(len(axes)), key=axes.__getitem__))
        w = broadcast(reshape(permute(w, order), line), node.shape)
    x_wide, w_wide = widened(node), widened(w)
    scale = reduce_sum(w_wide, axes)
    y = ew.div(reduce_sum(ew.mul(x_wide, w_wide), axes), scale)
    out = finish(ew.cast(y, node.dtype), node, axes, keepdims)
    return (out, finish(ew.cast(scale, node.dtype), node, axes, keepdims)) if returned else out
