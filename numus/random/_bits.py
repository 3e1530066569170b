"""Threefry counters to 32-bit words, and words to floats in [0, 1), on nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numus import dtypes as dt
from numus.dtypes import DType
from numus.errors import DTypeError, ShapeError
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.random.bits import threefry
from numus.primitives.source import constant, iota
from numus.primitives.structure import concat
from numus.primitives.views import take_range
from numus.random._keys import Words
from numus.runtime.devices import Device
from numus.runtime.devices import device as find_device
from numus.shapes import Shape, as_shape
from numus.shapes import broadcast as broadcast_shapes
from numus.tensor import node_of, scalar_node

Transform = Callable[[Node], Node]


def words(key: Words, count: int, device: Device, start: int = 0) -> Words:
    """The two 32-bit words of counters start … start + count - 1."""
    zero = constant(0, dt.uint32)
    if start + count <= 1 << 32:
        low = iota(count, dt.uint32, device)
        if start:
            low = ew.add(low, constant(start, dt.uint32))
        return threefry(*key, low, zero)
    wide = ew.add(iota(count, dt.uint64, device), constant(start, dt.uint64))
    high = ew.cast(ew.shift_right(wide, constant(32, dt.uint64)), dt.uint32)
    return threefry(*key, ew.cast(wide, dt.uint32), high)


def words64(key: Words, count: int, device: Device, start: int = 0) -> Node:
    """The two words of each counter as a uint64."""
    high, low = (ew.cast(w, dt.uint64) for w in words(key, count, device, start))
    return ew.or_(ew.shift_left(high, constant(32, dt.uint64)), low)


def join_halves(first: Node, second: Node, count: int) -> Node:
    """The concatenation of two halves, cut to `count` elements."""
    rest = count - first.shape[0]
    return first if rest <= 0 else concat((first, take_range(second, 0, 0, rest)), 0)


def map_words(key: Words, count: int, device: Device, transform: Transform) -> Node:
    """`transform(word)` for `count` words, two per counter.

    Applied before the halves are joined, so that one kernel computes each counter once.
    """
    first, second = words(key, (count + 1) // 2, device)
    return join_halves(transform(first), transform(second), count)


def uniform32(word: Node) -> Node:
    """[0, 1) in float32: the multiples of 2**-24."""
    top = ew.bitcast(ew.shift_right(word, constant(8, dt.uint32)), dt.int32)
    return ew.mul(ew.cast(top, dt.float32), constant(2.0**-24, dt.float32))


def uniform32_positive(word: Node) -> Node:
    """(0, 1] in float32, with steps of 2**-33 near 0 for logarithms."""
    scaled = ew.mul(ew.cast(word, dt.float32), constant(2.0**-32, dt.float32))
    return ew.add(scaled, constant(2.0**-33, dt.float32))


def _integer53(pair: Words) -> Node:
    """53 bits of two words as an integer in float64."""
    high = ew.mul(ew.cast(pair[0], dt.float64), constant(2.0**21, dt.float64))
    low = ew.cast(ew.shift_right(pair[1], constant(11, dt.uint32)), dt.float64)
    return ew.add(high, low)


def uniform64(pair: Words) -> Node:
    """[0, 1) in float64: the multiples of 2**-53."""
    return ew.mul(_integer53(pair), constant(2.0**-53, dt.float64))


def uniform64_positive(pair: Words) -> Node:
    """(0, 1] in float64."""
    one_more = ew.add(_integer53(pair), constant(1.0, dt.float64))
    return ew.mul(one_more, constant(2.0**-53, dt.float64))


def map_uniform(
    key: Words, count: int, device: Device, dtype: DType, finish: Transform, positive: bool = False
) -> Node:
    """`finish(u)` for `count` uniforms in [0, 1), or in (0, 1], in float64 or else float32."""
    if dtype is dt.float64:
        from_pair = uniform64_positive if positive else uniform64
        return finish(from_pair(words(key, count, device)))
    from_word = uniform32_positive if positive else uniform32
    return map_words(key, count, device, lambda w: finish(from_word(w)))


def sample_shape(op: str, shape: Any, *parameters: Node) -> Shape:
    """The shape given, to which parameters must broadcast; by default that of the parameters."""
    own: Shape = ()
    for node in parameters:
        own = broadcast_shapes(own, node.shape, op)
    if shape is None:
        return own
    wanted = as_shape(shape, op)
    if broadcast_shapes(own, wanted, op) != wanted:
        raise ShapeError(f"{op}: parameters of shape {own} do not broadcast to {wanted}")
    return wanted


def device_of(device: Any, *nodes: Node) -> Device:
    """The device given, else that of the key or a parameter, else the default."""
    if device is None:
        for node in nodes:
            if node.device is not None:
                return node.device
    return find_device(device)


def parameter(op: str, x: Any, dtype: DType) -> Node:
    """A parameter of a distribution in a dtype; a Python number is rounded once."""
    return ew.cast(node_of(x, op), dtype) if dt.scalar_kind(x) is None else scalar_node(x, dtype)


def number(op: str, name: str, given: Any) -> float:
    """A float argument; the error names the usual mistake, NumPy's order of arguments."""
    try:
        return float(given)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{op}: {name} must be a number, not {given!r}; the shape is the first argument"
        ) from error


def float_dtype(op: str, dtype: Any) -> DType:
    """The float dtype given, else the default."""
    if dtype is None:
        return dt.default_float
    dtype = dt.as_dtype(dtype)
    if not dtype.is_floating:
        raise DTypeError(f"{op}: draws floats, not {dtype.name}; nm.random.integers draws integers")
    return dtype
