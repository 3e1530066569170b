"""Independent streams of one key, and standard draws of a shape, on nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numus import dtypes as dt
from numus.dtypes import DType
from numus.errors import DTypeError
from numus.functions._base import wrap
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.random import draws
from numus.primitives.random.bits import threefry
from numus.primitives.source import constant, iota
from numus.primitives.views import reshape
from numus.random import _bits
from numus.random._keys import Words, key_words
from numus.random._sampling import Number, standard_normal
from numus.runtime.devices import Device
from numus.shapes import Shape, size_of
from numus.tensor import Tensor

_CHILD = 0xFFFFFFFF  # the second word of counters that make keys, which no draw uses


class Stream:
    """A key with a shape, a float dtype and a device: standard draws that others are made of."""

    def __init__(self, key: Words, shape: Shape, dtype: DType, device: Device) -> None:
        self.key, self.shape, self.dtype, self.device = key, shape, dtype, device

    def child(self, i: int) -> Stream:
        """An independent stream."""
        key = threefry(*self.key, constant(i, dt.uint32), constant(_CHILD, dt.uint32))
        return Stream(key, self.shape, self.dtype, self.device)

    def uniform(self) -> Node:
        """In (0, 1], finest near 0."""
        flat = _bits.map_uniform(
            self.key, size_of(self.shape), self.device, self.dtype, lambda u: u, positive=True
        )
        return reshape(flat, self.shape)

    def normal(self) -> Node:
        count = size_of(self.shape)
        flat = standard_normal(self.key, count, self.device, self.dtype, lambda z: z)
        return reshape(flat, self.shape)

    def exponential(self) -> Node:
        return ew.neg(ew.log(self.uniform()))

    def rejection(self, draw: Callable[..., Node], *parameters: Node) -> Node:
        counter = reshape(iota(size_of(self.shape), dt.uint32, self.device), self.shape)
        return draw(*parameters, *self.key, counter)

    def gamma(self, a: Node) -> Node:
        return self.rejection(draws.gamma, a)

    def number(self, value: float) -> Node:
        return constant(value, self.dtype)


Build = Callable[..., Node]


def drawn(
    op: str,
    build: Build,
    shape: Any,
    parameters: Sequence[Number],
    dtype: Any,
    device: Any,
    key: Any,
) -> Tensor:
    """build(stream, *parameters) in a float dtype."""
    dtype = _bits.float_dtype(op, dtype)
    wide = dt.compute_dtype(dtype)
    source = key_words(op, key)
    nodes = [_bits.parameter(op, x, wide) for x in parameters]
    shape = _bits.sample_shape(op, shape, *nodes)
    dev = _bits.device_of(device, *source, *nodes)
    return wrap(ew.cast(build(Stream(source, shape, wide, dev), *nodes), dtype))


def counted(
    op: str,
    build: Build,
    shape: Any,
    parameters: Sequence[Number],
    dtype: Any,
    device: Any,
    key: Any,
) -> Tensor:
    """build(stream, *parameters) as whole numbers.

    Computed in float32, which every device has (counts are exact up to 2**24), unless a parameter
    is float64.
    """
    out = dt.int64 if dtype is None else dt.as_dtype(dtype)
    if out is dt.bool_ or out.is_complex:
        raise DTypeError(f"{op}: counts are integers or floats, not {out.name}")
    double = out is dt.float64 or any(
        isinstance(x, Tensor) and x.dtype is dt.float64 for x in parameters
    )
    wide = dt.float64 if double else dt.float32
    source = key_words(op, key)
    nodes = [_bits.parameter(op, x, wide) for x in parameters]
    shape = _bits.sample_shape(op, shape, *nodes)
    dev = _bits.device_of(device, *source, *nodes)
    return wrap(ew.cast(build(Stream(source, shape, wide, dev), *nodes), out))


def positive(op: str, name: str, x: Number, zero: bool = False) -> Number:
    """A number that must be positive (or, with `zero`, not negative); tensors are not looked at."""
    if not isinstance(x, Tensor) and not (x >= 0 if zero else x > 0):
        bound = "not be negative" if zero else "be positive"
        raise ValueError(f"{op}: {name} must {bound}, but is {x}")
    return x


def fraction(op: str, name: str, x: Number, zero: bool = True) -> Number:
    """A probability."""
    if not isinstance(x, Tensor) and not (0 <= x <= 1 and (zero or x > 0)):
        raise ValueError(f"{op}: {name} must be a probability, but is {x}")
    return x
