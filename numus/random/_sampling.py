"""Random bits, uniform, normal, integer and Bernoulli samples, and dropout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.dtypes import DType
from numus.errors import DTypeError
from numus.functions._base import as_number, method, node_of, require, widened, wrap
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import full
from numus.primitives.random.bits import normal_pair
from numus.primitives.source import constant
from numus.primitives.views import reshape
from numus.random import _bits
from numus.random._keys import Words, key_words
from numus.runtime.devices import Device
from numus.shapes import Shape, as_int, as_shape, is_sequence, size_of
from numus.tensor import Tensor

Number = float | Tensor


def bits(
    shape: Any = (), *, dtype: Any = dt.uint32, device: Any = None, key: Tensor | None = None
) -> Tensor:
    """Random bits as an unsigned integer dtype, every value equally likely."""
    dtype = dt.as_dtype(dtype)
    if dtype.kind != "uint":
        raise DTypeError(f"bits: draws unsigned integers, not {dtype.name}")
    shape, source = as_shape(shape, "bits"), key_words("bits", key)
    dev, count = _bits.device_of(device, *source), size_of(shape)
    if dtype is dt.uint64:
        flat = _bits.words64(source, count, dev)
    else:
        flat = _bits.map_words(source, count, dev, lambda w: ew.cast(w, dtype))
    return wrap(reshape(flat, shape))


def _below(high: float, low: float, dtype: DType) -> float:
    """The largest number of the dtype that is less than `high`, or `low` where they are equal."""
    rounded = np.asarray(high).astype(dtype.np)
    if float(rounded) >= high:
        rounded = np.nextafter(rounded, np.asarray(low).astype(dtype.np))
    return max(float(rounded), low)


def uniform(
    shape: Any = None,
    low: Number = 0.0,
    high: Number = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Numbers from [low, high), all equally likely.

    They have 24 random bits, in float64 53; narrower floats are rounded from float32, but never up
    to `high`. The bounds may be tensors: gradients flow to them.

    >>> nm.random.uniform((2, 3), key=nm.random.key(0)).shape
    (2, 3)
    """
    dtype = _bits.float_dtype("uniform", dtype)
    wide = dt.compute_dtype(dtype)
    source = key_words("uniform", key)
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        a, b = (_bits.parameter("uniform", x, dtype) for x in (low, high))
        shape = _bits.sample_shape("uniform", shape, a, b)
        dev = _bits.device_of(device, *source, a, b)
        u = _bits.map_uniform(source, size_of(shape), dev, wide, lambda u: u)
        top = ew.cast(ew.nextafter(b, a), wide)
        a, b = ew.cast(a, wide), ew.cast(b, wide)
        y = ew.add(a, ew.mul(reshape(u, shape), ew.sub(b, a)))
        return wrap(ew.cast(ew.minimum(y, top), dtype))
    first, last = _bits.number("uniform", "low", low), _bits.number("uniform", "high", high)
    if not (first <= last and math.isfinite(last - first)):
        raise ValueError(f"uniform: [{low}, {high}) is not a finite interval")

    def scaled(u: Node) -> Node:
        if (first, last) != (0.0, 1.0):
            u = ew.add(ew.mul(u, constant(last - first, wide)), constant(first, wide))
        if (first, last) != (0.0, 1.0) or wide is not dtype:
            u = ew.minimum(u, constant(_below(last, first, dtype), wide))
        return ew.cast(u, dtype)

    shape = _bits.sample_shape("uniform", shape)
    dev = _bits.device_of(device, *source)
    return wrap(reshape(_bits.map_uniform(source, size_of(shape), dev, wide, scaled), shape))


def standard_normal(
    key: Words, count: int, device: Device, dtype: DType, finish: _bits.Transform
) -> Node:
    """`finish(z)` for `count` standard normals (Box-Muller) in float32 or float64."""
    half = (count + 1) // 2
    if dtype is dt.float64:
        bits = tuple(_bits.words64(key, half, device, start) for start in (0, half))
    else:
        bits = _bits.words(key, half, device)
    first, second = normal_pair(*bits)
    return _bits.join_halves(finish(first), finish(second), count)


def normal(
    shape: Any = None,
    loc: Number = 0.0,
    scale: Number = 1.0,
    *,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Normal numbers with mean `loc` and standard deviation `scale`.

    Both may be tensors: gradients flow to them. Narrow floats are rounded from float32.

    >>> nm.random.normal((2, 3), key=nm.random.key(0)).shape
    (2, 3)
    """
    dtype = _bits.float_dtype("normal", dtype)
    wide = dt.compute_dtype(dtype)
    source = key_words("normal", key)
    if isinstance(loc, Tensor) or isinstance(scale, Tensor):
        a, b = (_bits.parameter("normal", x, wide) for x in (loc, scale))
        shape = _bits.sample_shape("normal", shape, a, b)
        dev = _bits.device_of(device, *source, a, b)
        z = standard_normal(source, size_of(shape), dev, wide, lambda z: z)
        return wrap(ew.cast(ew.add(a, ew.mul(reshape(z, shape), b)), dtype))
    mean, std = _bits.number("normal", "loc", loc), _bits.number("normal", "scale", scale)
    if std < 0:
        raise ValueError(f"normal: scale must not be negative, but is {scale}")

    def scaled(z: Node) -> Node:
        if std != 1:
            z = ew.mul(z, constant(std, wide))
        if mean != 0:
            z = ew.add(z, constant(mean, wide))
        return ew.cast(z, dtype)

    shape = _bits.sample_shape("normal", shape)
    dev = _bits.device_of(device, *source)
    return wrap(reshape(standard_normal(source, size_of(shape), dev, wide, scaled), shape))


def _mulhi64(a: Node, b: int) -> Node:
    """The upper 64 bits of the 128 of a * b, from products of 32-bit halves."""
    shift, mask = constant(32, dt.uint64), constant(0xFFFFFFFF, dt.uint64)
    low, high = ew.and_(a, mask), ew.shift_right(a, shift)
    b_low, b_high = constant(b & 0xFFFFFFFF, dt.uint64), constant(b >> 32, dt.uint64)
    middle = ew.add(ew.mul(high, b_low), ew.shift_right(ew.mul(low, b_low), shift))
    carry = ew.add(ew.mul(low, b_high), ew.and_(middle, mask))
    top = ew.add(ew.mul(high, b_high), ew.shift_right(middle, shift))
    return ew.add(top, ew.shift_right(carry, shift))


def _below_span(key: Words, span: int, count: int, device: Device) -> Node:
    """0 … span - 1 as uint64 by fixed-point multiplication, for any span.

    The fraction has 64 bits for spans below 2**32, else 128: a bias below 2**-32.
    """
    if span < 1 << 32:
        high, low = (ew.cast(w, dt.uint64) for w in _bits.words(key, count, device))
        width, shift = constant(span, dt.uint64), constant(32, dt.uint64)
        carry = ew.shift_right(ew.mul(low, width), shift)
        return ew.shift_right(ew.add(ew.mul(high, width), carry), shift)
    high = _bits.words64(key, count, device)
    low = _bits.words64(key, count, device, start=count)
    product = ew.mul(high, constant(span, dt.uint64))
    carry = _mulhi64(low, span)
    overflow = ew.cast(ew.lt(ew.add(product, carry), product), dt.uint64)
    return ew.add(_mulhi64(high, span), overflow)


def integers(
    low: int,
    high: int | None = None,
    shape: Any = (),
    *,
    dtype: Any = dt.default_int,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """Integers from low … high - 1, or from 0 … low - 1 where `high` isn't given.

    They are exactly uniform when the number of values is a power of two, and to one part in 2**32
    otherwise.

    >>> die = nm.random.integers(1, 7, (100,))
    >>> bool(die.min() >= 1) and bool(die.max() <= 6)
    True
    """
    if is_sequence(high):
        raise DTypeError(
            f"integers: {high} is a shape, which comes third; say integers({low}, shape={high}), "
            f"or nm.randint({low}, {high})"
        )
    first, last = (0, low) if high is None else (low, high)
    first, last = as_int(first, "low", "integers"), as_int(last, "high", "integers")
    dtype = dt.as_dtype(dtype)
    if not dtype.is_integer:
        raise DTypeError(f"integers: draws integers, not {dtype.name}")
    smallest, largest = dt.int_range(dtype)
    if first >= last:
        raise ValueError(f"integers: low must be below high, but the range is [{first}, {last})")
    if first < smallest or last - 1 > largest:
        raise OverflowError(
            f"integers: {first} … {last - 1} does not fit {dtype.name}; ask for a wider dtype"
        )
    shape, source = as_shape(shape, "integers"), key_words("integers", key)
    dev, count = _bits.device_of(device, *source), size_of(shape)
    span = last - first
    power_of_two = span & (span - 1) == 0

    def shifted(offset: Node) -> Node:
        start = constant(first % (1 << offset.dtype.bits), offset.dtype)
        return ew.cast(ew.add(offset, start) if first else offset, dtype)

    if not power_of_two:
        flat = shifted(_below_span(source, span, count, dev))
    elif span <= 1 << 32:
        mask = constant(span - 1, dt.uint32)
        wide = dt.uint64 if dtype.itemsize == 8 else dt.uint32
        flat = _bits.map_words(
            source, count, dev, lambda w: shifted(ew.cast(ew.and_(w, mask), wide))
        )
    else:
        flat = shifted(ew.and_(_bits.words64(source, count, dev), constant(span - 1, dt.uint64)))
    return wrap(reshape(flat, shape))


def threshold(op: str, p: float) -> int:
    """The number of 32-bit words that map to true, for a probability."""
    if not 0 <= p <= 1:
        raise ValueError(f"{op}: the probability must be in [0, 1], not {p}")
    return round(p * (1 << 32))


def below(word: Node, limit: int) -> Node:
    """word < limit, for limits up to 2**32."""
    if limit in (0, 1 << 32):
        return full(word.shape, limit != 0, dt.bool_)
    return ew.lt(word, constant(limit, dt.uint32))


def bernoulli(
    p: Number = 0.5, shape: Any = None, *, device: Any = None, key: Tensor | None = None
) -> Tensor:
    """Booleans that are true with probability p, to within 2**-32. p may be a tensor."""
    source = key_words("bernoulli", key)
    if isinstance(p, Tensor):
        node = node_of(p, "bernoulli")
        wide = dt.promote(dt.float32, node.dtype) if node.dtype.is_floating else dt.float32
        shape = _bits.sample_shape("bernoulli", shape, node)
        dev = _bits.device_of(device, *source, node)
        u = _bits.map_uniform(source, size_of(shape), dev, wide, lambda u: u)
        return wrap(ew.lt(reshape(u, shape), ew.cast(node, wide)))
    limit = threshold("bernoulli", p)
    shape, dev = _bits.sample_shape("bernoulli", shape), _bits.device_of(device, *source)
    flat = _bits.map_words(source, size_of(shape), dev, lambda w: below(w, limit))
    return wrap(reshape(flat, shape))


def _keep_mask(key: Words, shape: Shape, rate: float, device: Device) -> Node:
    """The elements that are not dropped, a function of the index: one counter per element, its
    second word unused, recomputed by every kernel and never stored."""
    first, _ = _bits.words(key, size_of(shape), device)
    return reshape(below(first, (1 << 32) - threshold("dropout", rate)), shape)


def dropout_mask(
    shape: Any, rate: float = 0.5, *, device: Any = None, key: Tensor | None = None
) -> Tensor:
    """Booleans that are false with probability `rate`: the elements that dropout keeps."""
    source = key_words("dropout_mask", key)
    dev = _bits.device_of(device, *source)
    return wrap(_keep_mask(source, as_shape(shape, "dropout_mask"), rate, dev))


@method()
def dropout(
    x: Any, /, p: float = 0.5, training: bool = True, *, key: Tensor | None = None
) -> Tensor:
    """x with each element zero with probability p, the others divided by 1 - p.

    Outside training it is x itself.
    """
    node = require("dropout", node_of(x, "dropout"), "float", "complex")
    p = as_number(p, "p", "dropout")
    threshold("dropout", p)
    if not training or p == 0:
        return wrap(node)
    source = key_words("dropout", key)
    keep = _keep_mask(source, node.shape, p, _bits.device_of(None, node, *source))
    wide = widened(node)
    scaled = ew.mul(wide, constant(0.0 if p == 1 else 1 / (1 - p), wide.dtype))
    return wrap(ew.cast(ew.where(keep, scaled, constant(0.0, wide.dtype)), node.dtype))


def _given_shape(shape: tuple[Any, ...]) -> Any:
    return shape[0] if len(shape) == 1 else shape


def rand(*shape: Any, dtype: Any = None, device: Any = None, key: Tensor | None = None) -> Tensor:
    """Uniform numbers from [0, 1), of the shape given as one tuple or by its extents."""
    return uniform(_given_shape(shape), dtype=dtype, device=device, key=key)


def randn(*shape: Any, dtype: Any = None, device: Any = None, key: Tensor | None = None) -> Tensor:
    """Standard normal numbers, of the shape given as one tuple or by its extents."""
    return normal(_given_shape(shape), dtype=dtype, device=device, key=key)


randint = integers
