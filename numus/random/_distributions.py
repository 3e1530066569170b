"""Distributions sampled by inversion of their CDF."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from numus import dtypes as dt
from numus.dtypes import DType
from numus.errors import ShapeError
from numus.functions._base import as_number, float_node, wrap
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.reduce import argmax
from numus.primitives.source import constant
from numus.primitives.views import reshape
from numus.random import _bits
from numus.random._keys import Words, key_words
from numus.random._sampling import Number
from numus.runtime.devices import Device
from numus.shapes import normal_axis, size_of
from numus.tensor import Tensor

Draw = Callable[[Words, int, Device, DType], Node]


def _location_scale(
    op: str, draw: Draw, shape: Any, loc: Number, scale: Number, dtype: Any, device: Any, key: Any
) -> Tensor:
    """loc + scale * z for a standard distribution's z."""
    dtype = _bits.float_dtype(op, dtype)
    wide = dt.compute_dtype(dtype)
    source = key_words(op, key)
    middle, width = (_bits.parameter(op, x, wide) for x in (loc, scale))
    shape = _bits.sample_shape(op, shape, middle, width)
    dev = _bits.device_of(device, *source, middle, width)
    z = reshape(draw(source, size_of(shape), dev, wide), shape)
    if isinstance(scale, Tensor) or scale != 1:
        z = ew.mul(z, width)
    if isinstance(loc, Tensor) or loc != 0:
        z = ew.add(z, middle)
    return wrap(ew.cast(z, dtype))


def _standard_exponential(key: Words, count: int, device: Device, dtype: DType) -> Node:
    return _bits.map_uniform(key, count, device, dtype, lambda u: ew.neg(ew.log(u)), positive=True)


def exponential(
    shape: Any = None,
    scale: Number = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Waiting times with mean `scale`."""
    draw = _standard_exponential
    return _location_scale("exponential", draw, shape, 0.0, scale, dtype, device, key)


def _standard_gumbel(key: Words, count: int, device: Device, dtype: DType) -> Node:
    # -log(-log(1 - u)): u is finest near 0, where the upper tail comes from; just below 1 it stops
    largest = 1 - 2.0 ** -(dtype.mantissa + 1)

    def transform(u: Node) -> Node:
        below_one = ew.minimum(u, constant(largest, dtype))
        return ew.neg(ew.log(ew.neg(ew.log1p(ew.neg(below_one)))))

    return _bits.map_uniform(key, count, device, dtype, transform, positive=True)


def gumbel(
    shape: Any = None,
    loc: Number = 0.0,
    scale: Number = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Gumbel numbers: the largest of many exponential ones, shifted to `loc`."""
    return _location_scale("gumbel", _standard_gumbel, shape, loc, scale, dtype, device, key)


def truncated_normal(
    shape: Any = (),
    low: float = -2.0,
    high: float = 2.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Standard normal numbers on the condition that they lie in [low, high]."""
    op = "truncated_normal"
    low, high = as_number(low, "low", op), as_number(high, "high", op)
    if not low < high:
        raise ValueError(f"truncated_normal: there is nothing from {low} to {high}")
    dtype = _bits.float_dtype("truncated_normal", dtype)
    wide = dt.compute_dtype(dtype)
    source = key_words("truncated_normal", key)
    shape = _bits.sample_shape("truncated_normal", shape)
    first, last = (math.erf(x / math.sqrt(2)) for x in (low, high))

    def transform(u: Node) -> Node:
        area = ew.add(ew.mul(u, constant(last - first, wide)), constant(first, wide))
        z = ew.mul(ew.erfinv(area), constant(math.sqrt(2), wide))
        z = ew.maximum(z, constant(float(low), wide))
        return ew.cast(ew.minimum(z, constant(float(high), wide)), dtype)

    dev = _bits.device_of(device, *source)
    return wrap(reshape(_bits.map_uniform(source, size_of(shape), dev, wide, transform), shape))


def categorical(logits: Tensor, axis: int = -1, *, key: Tensor | None = None) -> Tensor:
    """One class for every row along an axis, class i with probability softmax(logits)[i].

    >>> nm.random.categorical(nm.asarray([[0.0, -1e9], [-1e9, 0.0]])).tolist()
    [0, 1]
    """
    node = float_node("categorical", logits)
    axis = normal_axis(axis, node.ndim, "categorical")
    if node.shape[axis] == 0:
        raise ShapeError(f"categorical: axis {axis} of shape {node.shape} has no classes")
    wide = dt.compute_dtype(node.dtype)
    source = key_words("categorical", key)
    dev = _bits.device_of(None, node, *source)
    noise = reshape(_standard_gumbel(source, size_of(node.shape), dev, wide), node.shape)
    return wrap(argmax(ew.add(ew.cast(node, wide), noise), axis))
