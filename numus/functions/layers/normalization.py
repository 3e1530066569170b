"""Rows made comparable: softmax and its kin, layer and RMS normalisation.

Each is one kernel. Low-precision floats are computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from typing import Any

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions._base import float_node, like, method, node_of, require, widened, wrap
from numus.functions.autocast import widens
from numus.functions.reduction.reductions import Axis, count_over, filled, finish, keepdims_shape
from numus.functions.reduction.statistics import mean_over, over_count
from numus.functions.spelling import spelled
from numus.functions.template_cache import templated, templated_rows
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import reduce_sum
from numus.primitives.reduce import reduce_max, reduce_sqdev
from numus.primitives.source import constant
from numus.primitives.views import reshape
from numus.shapes import Shape, normal_axes
from numus.tensor import Tensor

__all__ = ["layer_norm", "log_softmax", "logsumexp", "rms_norm", "softmax", "softmin"]


def _wide(op: str, x: Any) -> tuple[Node, Node]:
    """The (float) node given, and a copy in its compute dtype."""
    node = float_node(op, x)
    return node, widened(node)


def _keep(y: Node, x: Node, axes: Shape) -> Node:
    return reshape(y, keepdims_shape(x.shape, axes))


@method()
@templated
@widens
@spelled
def logsumexp(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) over axes, without overflow; -inf where there is nothing.

    >>> nm.logsumexp(nm.asarray([1000.0, -1000.0])).item()
    1000.0
    """
    node, wide = _wide("logsumexp", x)
    axes = normal_axes(axis, node.ndim, "logsumexp")
    if count_over(node, axes) == 0:
        return finish(filled(node, axes, -math.inf, node.dtype), node, axes, keepdims)
    top = ew.stop_gradient(reduce_max(wide, axes))
    # an infinite maximum would give inf - inf; exp is right there without a shift
    finite = ew.lt(ew.abs_(top), constant(math.inf, top.dtype))
    shift = ew.where(finite, top, constant(0.0, top.dtype))
    total = reduce_sum(ew.exp(ew.sub(wide, _keep(shift, wide, axes))), axes)
    return finish(ew.cast(ew.add(ew.log(total), shift), node.dtype), node, axes, keepdims)


def _shifted(x: Node, axes: Shape) -> Node:
    """x minus its largest element: what may be exponentiated."""
    return ew.sub(x, _keep(ew.stop_gradient(reduce_max(x, axes)), x, axes))


def _softmax(op: str, x: Any, axis: Axis, negate: bool) -> Tensor:
    node, wide = _wide(op, x)
    axes = normal_axes(axis, node.ndim, op)
    if count_over(node, axes) == 0:
        return wrap(node)
    powers = ew.exp(_shifted(ew.neg(wide) if negate else wide, axes))
    # one division per row, and a gradient whose only sums are those of the row
    scale = ew.div(constant(1.0, wide.dtype), reduce_sum(powers, axes))
    return wrap(ew.cast(ew.mul(powers, _keep(scale, wide, axes)), node.dtype))


@method()
@templated
@widens
@spelled
def softmax(x: Any, /, axis: Axis = -1) -> Tensor:
    """exp(x) over its sum along axes, without overflow.

    A row that holds inf or NaN, or nothing but -inf, has no softmax: it is NaN.

    >>> nm.softmax(nm.asarray([1000.0, 1000.0])).tolist()
    [0.5, 0.5]
    """
    return _softmax("softmax", x, axis, negate=False)


@method()
@templated
@widens
@spelled
def softmin(x: Any, /, axis: Axis = -1) -> Tensor:
    """The softmax of -x."""
    return _softmax("softmin", x, axis, negate=True)


@method()
@templated
@widens
@spelled
def log_softmax(x: Any, /, axis: Axis = -1) -> Tensor:
    """The logarithm of `softmax`, exact where that underflows.

    >>> nm.exp(nm.log_softmax(nm.asarray([0.0, 0.0]))).tolist()
    [0.5, 0.5]
    """
    node, wide = _wide("log_softmax", x)
    axes = normal_axes(axis, node.ndim, "log_softmax")
    if count_over(node, axes) == 0:
        return wrap(node)
    shifted = _shifted(wide, axes)
    total = ew.log(reduce_sum(ew.exp(shifted), axes))
    return wrap(ew.cast(ew.sub(shifted, _keep(total, wide, axes)), node.dtype))


def _trailing(op: str, x: Node, weight: Node | None, bias: Node | None, axis: Axis) -> Shape:
    """The axes normalised over: those named, else as many trailing ones as the weight has."""
    if axis is not None:
        axes = normal_axes(axis, x.ndim, op)
    else:
        given = weight if weight is not None else bias
        named = () if given is None else given.shape
        count = 1 if given is None else len(named)
        if count > x.ndim or count == 0:
            raise ShapeError(
                f"{op}: weight of shape {named} does not name trailing axes of x of shape {x.shape}"
            )
        axes = tuple(range(x.ndim - count, x.ndim))
    shape = tuple(x.shape[a] for a in axes)
    for name, part in (("weight", weight), ("bias", bias)):
        if part is not None and (part.shape != shape or axes[-1:] != (x.ndim - 1,)):
            raise ShapeError(
                f"{op}: {name} of shape {part.shape} does not match the trailing axes {shape} of "
                f"x of shape {x.shape}"
            )
    return axes


def _optional(op: str, part: Any, x: Node) -> Node | None:
    return None if part is None else require(op, node_of(part, op, x.device), "float")


def _affine(y: Node, weight: Node | None, bias: Node | None) -> Node:
    if weight is not None:
        y = ew.mul(y, ew.cast(weight, y.dtype))
    if bias is not None:
        y = ew.add(y, ew.cast(bias, y.dtype))
    return y


def widest(x: Node, *parts: Node | Tensor | None) -> Node:
    """x in the widest dtype of all parts, at least float32."""
    dtype = dt.compute_dtype(x.dtype)
    for part in parts:
        if part is not None:
            dtype = dt.promote(dtype, part.dtype)
    return ew.cast(x, dtype)


@method()
@templated_rows(1)
@widens
@spelled
def layer_norm(
    x: Any, /, weight: Any = None, bias: Any = None, eps: float = 1e-5, *, axis: Axis = None
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over trailing axes, in x's dtype.

    The axes are as many trailing ones as `weight` (or `bias`) has; without either, `axis`, or the
    last.

    >>> nm.layer_norm(nm.asarray([[1.0, 3.0]]), eps=0.0).tolist()
    [[-1.0, 1.0]]
    """
    op = "layer_norm"
    node = float_node(op, x)
    w, b = _optional(op, weight, node), _optional(op, bias, node)
    axes = _trailing(op, node, w, b, axis)
    wide = widest(node, w, b)
    if count_over(node, axes) == 0:
        return wrap(node)
    centred = ew.sub(wide, _keep(mean_over(wide, axes), wide, axes))
    variance = over_count(reduce_sqdev(wide, axes), float(count_over(wide, axes)))
    scale = ew.rsqrt(ew.add(variance, like(wide, eps)))
    y = _affine(ew.mul(centred, _keep(scale, wide, axes)), w, b)
    return wrap(ew.cast(y, node.dtype))


@method()
@templated_rows(1)
@widens
@spelled
def rms_norm(
    x: Any, /, weight: Any = None, eps: float | None = None, *, axis: Axis = None
) -> Tensor:
    """x / sqrt(mean(x²) + eps) * weight over trailing axes, in x's dtype.

    The axes are chosen as `layer_norm` does. `eps` is the machine epsilon of the dtype in which the
    norm is computed where it isn't given.
    """
    op = "rms_norm"
    node = float_node(op, x)
    w = _optional(op, weight, node)
    axes = _trailing(op, node, w, None, axis)
    wide = widest(node, w)
    if count_over(node, axes) == 0:
        return wrap(node)
    floor = 2.0**-wide.dtype.mantissa if eps is None else eps
    mean_square = mean_over(ew.mul(wide, wide), axes)
    scale = ew.rsqrt(ew.add(mean_square, like(wide, floor)))
    return wrap(ew.cast(_affine(ew.mul(wide, _keep(scale, wide, axes)), w, None), node.dtype))
