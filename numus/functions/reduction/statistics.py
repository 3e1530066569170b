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
from numus.functions._base import as_number, common, method, node_of, to_float, widened
from numus.functions.reduction import reductions
from numus.functions.reduction.reductions import Axis, count_over, finish
from numus.functions.spelling import spelled
from numus.functions.template_cache import templated
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, reduce_sum
from numus.primitives.reduce import reduce_sqdev
from numus.primitives.source import constant
from numus.primitives.views import reshape
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


@method()
@templated
@spelled
def mean(x: Any, /, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The arithmetic mean over axes; NaN where there is nothing.

    >>> nm.mean(nm.asarray([[1.0, 2.0], [3.0, 6.0]]), axis=1).tolist()
    [1.5, 4.5]
    """
    node, result, axes = _inexact("mean", x, dtype, axis)
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
) -> Tensor:
    """The variance over axes: squared deviations from the mean, summed, over N - correction.

    It is real for complex x, and NaN where N - correction is not positive.

    >>> nm.var(nm.asarray([1.0, 3.0])).item()
    1.0
    """
    node, result, axes = _inexact("var", x, dtype, axis)
    y = ew.cast(variance_over(node, axes, correction), dt.real_of(result))
    return finish(y, node, axes, keepdims)


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
) -> Tensor:
    """The standard deviation over axes, the root of `var`. Its gradient is 0 where it is 0.

    >>> nm.std(nm.asarray([1.0, 3.0])).item()
    1.0
    """
    node, result, axes = _inexact("std", x, dtype, axis)
    y = reductions.masked_root(variance_over(node, axes, correction), ew.sqrt)
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
def nanmean(x: Any, /, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The mean over axes of the elements that are not NaN; NaN where there are none."""
    node, result, axes = _inexact("nanmean", x, dtype, axis)
    count = reduce_sum(ew.cast(ew.eq(node, node), node.dtype), axes)
    y = ew.div(reduce_sum(reductions.without_nan(node, 0.0), axes), count)
    return finish(ew.cast(y, result), node, axes, keepdims)


@spelled
def average(x: Any, /, axis: Axis = None, weights: Any = None, *, keepdims: bool = False) -> Tensor:
    """The mean over axes, each element counted by its weight.

    `weights` have x's shape or, with one axis, its extent.

    >>> nm.average(nm.asarray([1.0, 4.0]), weights=nm.asarray([2.0, 1.0])).item()
    2.0
    """
    if weights is None:
        return mean(x, axis, keepdims=keepdims)
    node, w = (to_float(n) for n in common("average", x, weights))
    axes = normal_axes(axis, node.ndim, "average")
    if w.shape != node.shape:
        if len(axes) != 1 or w.shape != (node.shape[axes[0]],):
            raise ShapeError(
                f"average: weights of shape {w.shape} fit neither x of shape {node.shape} nor "
                f"axis {axis}; give one weight per element, or per index along one axis"
            )
        line = tuple(n if i == axes[0] else 1 for i, n in enumerate(node.shape))
        w = broadcast(reshape(w, line), node.shape)
    x_wide, w_wide = widened(node), widened(w)
    y = ew.div(reduce_sum(ew.mul(x_wide, w_wide), axes), reduce_sum(w_wide, axes))
    return finish(ew.cast(y, node.dtype), node, axes, keepdims)
