"""Comparisons, logic, bits, and choosing by condition."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, overload

from numus import dtypes as dt
from numus.errors import DTypeError
from numus.functions._base import device_of, like, method, node_of, pair, require, same, wrap
from numus.functions.creation.dtype_functions import finfo
from numus.functions.elementwise.output import accepts_out
from numus.functions.indexing.searching import nonzero
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, full
from numus.primitives.reduce import reduce_min
from numus.primitives.source import constant
from numus.runtime.devices import Device
from numus.shapes import broadcast as broadcast_shape
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "allclose", "bitwise_and", "bitwise_count", "bitwise_invert", "bitwise_left_shift",
    "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "equal", "greater",
    "greater_equal", "invert", "isclose", "isfinite", "isinf", "isnan", "isneginf", "isposinf",
    "left_shift", "less", "less_equal", "logical_and", "logical_not", "logical_or", "logical_xor",
    "nan_to_num", "not_equal", "right_shift", "where",
]  # fmt: skip

Binary = Callable[[Node, Node], Node]
_ORDERED = ("bool", "uint", "int", "float")
_BITS = ("bool", "uint", "int")


def _compare(
    op: str, x1: Any, x2: Any, build: Binary, against_larger: bool, against_smaller: bool
) -> Tensor:
    """A comparison. An integer beyond the other side's dtype is larger (or smaller) than all of
    its values."""
    try:
        x, y = pair(op, x1, x2)
    except OverflowError:
        array, number = (x1, x2) if isinstance(x1, Tensor) else (x2, x1)
        if not isinstance(array, Tensor):
            raise
        above = (number > 0) == (array is x1)
        result = against_larger if above else against_smaller
        return wrap(full(array.shape, result, dt.bool_, array._node))
    if x.dtype is dt.float64 and dt.scalar_kind(x1) is None and dt.scalar_kind(x2) is None:
        dev = device_of(x1, x2)
        a, b = node_of(x1, op, dev), node_of(x2, op, dev)
        if not a.dtype.is_inexact and not b.dtype.is_inexact:
            return wrap(_compare_signs(a, b, build, against_larger, against_smaller))
    if x.dtype.is_complex and op not in ("equal", "not_equal"):
        raise DTypeError(f"{op}: complex numbers have no order; compare their abs or real parts")
    return wrap(build(x, y))


def compare_lexicographic(op: str, x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """A comparison of complex numbers in the order that sorts have: by real parts, and where those
    are equal by imaginary ones."""
    x, y = pair(op, x1, x2)
    (a, b), (c, d) = ((ew.real(n), ew.imag(n)) for n in (x, y))
    less, strictly = op.startswith("less"), not op.endswith("equal")
    (a, b), (c, d) = ((a, b), (c, d)) if less else ((c, d), (a, b))
    return wrap(ew.where(ew.eq(a, c), (ew.lt if strictly else ew.le)(b, d), ew.lt(a, c)))


def _compare_signs(x: Node, y: Node, build: Binary, larger: bool, smaller: bool) -> Node:
    """Signed integers against uint64, which float64 would round: a negative one is below all."""
    result = build(ew.cast(x, dt.uint64), ew.cast(y, dt.uint64))
    signed, below = (x, larger) if x.dtype.kind == "int" else (y, smaller)
    return ew.where(ew.lt(signed, like(signed, 0)), constant(below, dt.bool_), result)


@accepts_out
def equal(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """Whether x1 == x2."""
    return _compare("equal", x1, x2, ew.eq, False, False)


@accepts_out
def not_equal(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """Whether x1 != x2."""
    return _compare("not_equal", x1, x2, ew.ne, True, True)


@accepts_out
def less(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """Whether x1 < x2."""
    return _compare("less", x1, x2, ew.lt, True, False)


@accepts_out
def less_equal(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """Whether x1 <= x2."""
    return _compare("less_equal", x1, x2, ew.le, True, False)


@accepts_out
def greater(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """Whether x1 > x2."""
    return _compare("greater", x1, x2, lambda x, y: ew.lt(y, x), False, True)


@accepts_out
def greater_equal(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """Whether x1 >= x2."""
    return _compare("greater_equal", x1, x2, lambda x, y: ew.le(y, x), False, True)


def isclose(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    rtol: Any = 1e-5,
    atol: Any = 1e-8,
    equal_nan: bool = False,
) -> Tensor:
    """Whether |x1 - x2| <= atol + rtol * |x2|; equal infinities are close. Tolerances are numbers,
    or tensors that broadcast with x1 and x2.

    >>> nm.isclose(nm.asarray([1.0, 2.0]), nm.asarray([1.0, 2.1])).tolist()
    [True, False]
    """
    x, y = pair("isclose", x1, x2)
    wide = dt.compute_dtype(x.dtype)
    if not x.dtype.is_inexact:
        wide = dt.float64 if x.dtype.itemsize > 2 else dt.float32
    x, y = ew.cast(x, wide), ew.cast(y, wide)
    size = ew.abs_(y)
    if isinstance(rtol, Tensor) or isinstance(atol, Tensor):
        given = [node_of(t, "isclose") if isinstance(t, Tensor) else t for t in (rtol, atol)]
        shapes = [t.shape for t in given if isinstance(t, Node)]
        shape = functools.reduce(lambda a, b: broadcast_shape(a, b, "isclose"), shapes, x.shape)
        x, y, size = (broadcast(n, shape) for n in (x, y, size))
        rtol, atol = (
            broadcast(ew.cast(t, size.dtype), shape) if isinstance(t, Node) else like(size, t)
            for t in given
        )
    else:
        rtol, atol = like(size, rtol), like(size, atol)
    bound = ew.add(atol, ew.mul(rtol, size))
    near = ew.and_(ew.le(ew.abs_(ew.sub(x, y)), bound), _isfinite(y))
    near = ew.or_(near, ew.eq(x, y))
    if equal_nan:
        near = ew.or_(near, ew.and_(ew.ne(x, x), ew.ne(y, y)))
    return wrap(near)


def allclose(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> Tensor:
    """Whether all elements are close: see isclose. A tensor of one bool.

    >>> nm.allclose(nm.asarray([1.0, 2.0]), nm.asarray([1.0, 2.000001])).item()
    True
    """
    near = isclose(x1, x2, rtol=rtol, atol=atol, equal_nan=equal_nan)._node
    if 0 in near.shape:
        return wrap(full((), True, dt.bool_, near))
    return wrap(reduce_min(near, tuple(range(near.ndim))))


def _by_parts(x: Node, test: Callable[[Node], Node], join: Binary) -> Node:
    return join(test(ew.real(x)), test(ew.imag(x))) if x.dtype.is_complex else test(x)


def _isfinite(x: Node) -> Node:
    if not x.dtype.is_inexact:
        return full(x.shape, True, dt.bool_, x)
    return _by_parts(x, lambda p: ew.le(ew.abs_(p), like(p, finfo(p.dtype).max)), ew.and_)


@method()
@accepts_out
def isfinite(x: ArrayLike, /) -> Tensor:
    """Whether it is neither infinite nor NaN."""
    return wrap(_isfinite(node_of(x, "isfinite")))


@method()
@accepts_out
def isnan(x: ArrayLike, /) -> Tensor:
    """Whether it is NaN."""
    node = node_of(x, "isnan")
    return wrap(ew.ne(node, node))


@method()
@accepts_out
def isinf(x: ArrayLike, /) -> Tensor:
    """Whether it is infinite, on either side."""
    node = node_of(x, "isinf")
    return wrap(_by_parts(node, lambda p: ew.or_(_is_end(p, 1), _is_end(p, -1)), ew.or_))


@accepts_out
def isposinf(x: ArrayLike, /) -> Tensor:
    """Whether it is +infinity."""
    return wrap(_is_end(require("isposinf", node_of(x, "isposinf"), *_ORDERED), 1))


@accepts_out
def isneginf(x: ArrayLike, /) -> Tensor:
    """Whether it is -infinity."""
    return wrap(_is_end(require("isneginf", node_of(x, "isneginf"), *_ORDERED), -1))


def _is_end(x: Node, sign: int) -> Node:
    if x.dtype.kind != "float" or x.dtype is dt.float8_e4m3fn:  # these have no infinities
        return full(x.shape, False, dt.bool_, x)
    return ew.eq(x, like(x, sign * math.inf))


@method()
def nan_to_num(
    x: ArrayLike, /, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Numbers in place of NaN and infinities (the largest finite ones, unless others are given).

    >>> nm.nan_to_num(nm.asarray([1.0, float("nan")]), nan=9.0).tolist()
    [1.0, 9.0]
    """
    node = node_of(x, "nan_to_num")
    if node.dtype.is_complex:
        parts = (wrap(part) for part in (ew.real(node), ew.imag(node)))
        return wrap(ew.complex_(*(nan_to_num(p, nan, posinf, neginf)._node for p in parts)))
    if node.dtype.kind != "float":
        return wrap(same(node))
    info = finfo(node.dtype)
    node = ew.where(ew.ne(node, node), like(node, nan), node)
    top = like(node, info.max if posinf is None else posinf)
    bottom = like(node, info.min if neginf is None else neginf)
    return wrap(ew.where(_is_end(node, 1), top, ew.where(_is_end(node, -1), bottom, node)))


def _truth(x: Any, op: str, device: Device | None = None) -> Node:
    return ew.cast(node_of(x, op, device), dt.bool_)


def _truths(op: str, x1: Any, x2: Any) -> tuple[Node, Node]:
    dev = device_of(x1, x2)
    return _truth(x1, op, dev), _truth(x2, op, dev)


@accepts_out
def logical_and(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """Whether both are true (not zero)."""
    return wrap(ew.and_(*_truths("logical_and", x1, x2)))


@accepts_out
def logical_or(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """Whether either is true (not zero)."""
    return wrap(ew.or_(*_truths("logical_or", x1, x2)))


@accepts_out
def logical_xor(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """Whether exactly one is true (not zero)."""
    return wrap(ew.xor(*_truths("logical_xor", x1, x2)))


@accepts_out
def logical_not(x: ArrayLike, /) -> Tensor:
    """Whether it is false (zero)."""
    return wrap(ew.invert(_truth(x, "logical_not")))


def _bits(op: str, x1: Any, x2: Any, *kinds: str) -> tuple[Node, Node]:
    x, y = pair(op, x1, x2)
    return require(op, x, *kinds), y


@accepts_out
def bitwise_and(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """x1 & x2."""
    return wrap(ew.and_(*_bits("bitwise_and", x1, x2, *_BITS)))


@accepts_out
def bitwise_or(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """x1 | x2."""
    return wrap(ew.or_(*_bits("bitwise_or", x1, x2, *_BITS)))


@accepts_out
def bitwise_xor(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """x1 ^ x2."""
    return wrap(ew.xor(*_bits("bitwise_xor", x1, x2, *_BITS)))


@accepts_out
def bitwise_invert(x: ArrayLike, /) -> Tensor:
    """~x."""
    return wrap(ew.invert(require("bitwise_invert", node_of(x, "bitwise_invert"), *_BITS)))


@accepts_out
def bitwise_left_shift(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """x1 << x2; all bits are gone when x2 reaches their number."""
    return wrap(ew.shift_left(*_bits("bitwise_left_shift", x1, x2, "uint", "int")))


@accepts_out
def bitwise_right_shift(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """x1 >> x2, keeping the sign."""
    return wrap(ew.shift_right(*_bits("bitwise_right_shift", x1, x2, "uint", "int")))


@accepts_out
def bitwise_count(x: ArrayLike, /) -> Tensor:
    """The number of ones among the bits of |x|."""
    node = require("bitwise_count", node_of(x, "bitwise_count"), "uint", "int")
    size = ew.abs_(node) if node.dtype.kind == "int" else node
    return wrap(ew.cast(ew.popcount(size), dt.uint8))


@overload
def where(condition: ArrayLike, /) -> tuple[Tensor, ...]: ...


@overload
def where(condition: ArrayLike, x1: ArrayLike, x2: ArrayLike, /) -> Tensor: ...


def where(condition: ArrayLike, x1: Any = None, x2: Any = None, /) -> Tensor | tuple[Tensor, ...]:
    """x1 where the condition holds, x2 elsewhere; without them, where it holds (`nonzero`).

    >>> nm.where(nm.asarray([True, False]), 1.0, 0.0)
    tensor([1., 0.])
    """
    if x1 is None and x2 is None:
        return nonzero(condition)
    if x1 is None or x2 is None:
        raise ValueError("where: takes a condition alone, or with both of what it chooses between")
    a, b = pair("where", x1, x2, device_of(condition))
    return wrap(ew.where(_truth(condition, "where", a.device or b.device), a, b))


bitwise_not = bitwise_invert
invert = bitwise_invert
left_shift = bitwise_left_shift
right_shift = bitwise_right_shift
