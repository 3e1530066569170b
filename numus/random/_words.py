"""From a key to words, and from words to numbers in [0, 1): at the level of nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numus import dtypes as dt
from numus.dtypes import DType
from numus.errors import DTypeError, ShapeError
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.random_bits import threefry
from numus.primitives.source import constant, iota
from numus.primitives.structure import concat
from numus.primitives.views import take_range
from numus.random._keys import Words
from numus.runtime.devices import Device
from numus.runtime.devices import device as find_device
from numus.shapes import Shape, as_shape
from numus.shapes import broadcast as broadcast_shapes

Transform = Callable[[Node], Node]


def words(key: Words, count: int, place: Device, start: int = 0) -> Words:
    """The two words of counters start … start + count - 1."""
    zero = constant(0, dt.uint32)
    if start + count <= 1 << 32:
        low = iota(count, dt.uint32, place)
        if start:
            low = ew.add(low, constant(start, dt.uint32))
        return threefry(*key, low, zero)
    wide = ew.add(iota(count, dt.uint64, place), constant(start, dt.uint64))
    high = ew.cast(ew.shift_right(wide, constant(32, dt.uint64)), dt.uint32)
    return threefry(*key, ew.cast(wide, dt.uint32), high)


def long_words(key: Words, count: int, place: Device, start: int = 0) -> Node:
    """The two words of each counter as one uint64."""
    high, low = (ew.cast(w, dt.uint64) for w in words(key, count, place, start))
    return ew.or_(ew.shift_left(high, constant(32, dt.uint64)), low)


def halves(first: Node, second: Node, count: int) -> Node:
    """Two parts end to end, cut to `count` elements."""
    rest = count - first.shape[0]
    return first if rest <= 0 else concat((first, take_range(second, 0, 0, rest)), 0)


def word_each(key: Words, count: int, place: Device, number: Transform) -> Node:
    """`number` (a function of a word) for each of `count` words, two from each counter.

    It comes before the halves are joined: a kernel that writes both computes each counter once.
    """
    first, second = words(key, (count + 1) // 2, place)
    return halves(number(first), number(second), count)


# -- numbers between 0 and 1 ----------------------------------------------------------------------


def unit32(word: Node) -> Node:
    """[0, 1) in float32: the multiples of 2**-24."""
    top = ew.bitcast(ew.shift_right(word, constant(8, dt.uint32)), dt.int32)
    return ew.mul(ew.cast(top, dt.float32), constant(2.0**-24, dt.float32))


def positive32(word: Node) -> Node:
    """(0, 1] in float32, as fine as 2**-33 near 0, where logarithms look closely."""
    scaled = ew.mul(ew.cast(word, dt.float32), constant(2.0**-32, dt.float32))
    return ew.add(scaled, constant(2.0**-33, dt.float32))


def _whole53(pair: Words) -> Node:
    """53 bits of two words as a whole number in float64."""
    high = ew.mul(ew.cast(pair[0], dt.float64), constant(2.0**21, dt.float64))
    low = ew.cast(ew.shift_right(pair[1], constant(11, dt.uint32)), dt.float64)
    return ew.add(high, low)


def unit64(pair: Words) -> Node:
    """[0, 1) in float64: the multiples of 2**-53."""
    return ew.mul(_whole53(pair), constant(2.0**-53, dt.float64))


def positive64(pair: Words) -> Node:
    """(0, 1] in float64."""
    one_more = ew.add(_whole53(pair), constant(1.0, dt.float64))
    return ew.mul(one_more, constant(2.0**-53, dt.float64))


def each_unit(key: Words, count: int, place: Device, dtype: DType, finish: Transform) -> Node:
    """finish(u) for `count` numbers u in [0, 1), in float64 where that is the dtype."""
    if dtype is dt.float64:
        return finish(unit64(words(key, count, place)))
    return word_each(key, count, place, lambda w: finish(unit32(w)))


def each_positive(key: Words, count: int, place: Device, dtype: DType, finish: Transform) -> Node:
    """finish(u) for `count` numbers u in (0, 1], in float64 where that is the dtype."""
    if dtype is dt.float64:
        return finish(positive64(words(key, count, place)))
    return word_each(key, count, place, lambda w: finish(positive32(w)))


# -- arguments ------------------------------------------------------------------------------------


def drawn_shape(op: str, shape: Any, *parameters: Node) -> Shape:
    """The shape asked for, to which parameters must broadcast; theirs where none is given."""
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
    """Where to draw: the device named, else that of the key or a parameter, else the default."""
    if device is None:
        for node in nodes:
            if node.device is not None:
                return node.device
    return find_device(device)


def number(op: str, name: str, given: Any) -> float:
    """An argument that is a number; NumPy's order of arguments is a mistake that is named."""
    try:
        return float(given)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{op}: {name} is a number, not {given!r}; the shape is the first argument"
        ) from error


def float_dtype(op: str, dtype: Any) -> DType:
    """The float dtype asked for; the default float where none is."""
    if dtype is None:
        return dt.default_float
    dtype = dt.as_dtype(dtype)
    if not dtype.is_floating:
        raise DTypeError(f"{op}: draws floats, not {dtype.name}; nm.random.integers draws integers")
    return dtype
