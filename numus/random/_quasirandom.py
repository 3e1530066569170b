"""Quasirandom points: Sobol sequences, Halton sequences, Latin hypercubes, rank-1 lattices.

All give (n, d) points of the unit cube, the same on every device.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.dtypes import DType
from numus.evaluation.evaluate import from_host
from numus.functions._base import wrap
from numus.functions.ordering.sorting import argsort
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.source import constant, iota
from numus.primitives.views import reshape, take_range
from numus.random import _bits
from numus.random._keys import key_words
from numus.random._sobol_tables import BITS, DIMENSIONS, direction_numbers
from numus.random._streams import Stream
from numus.runtime.devices import Device
from numus.shapes import as_int
from numus.tensor import Tensor

__all__ = ["halton", "latin_hypercube", "lattice", "sobol"]


def _sizes(op: str, n: Any, d: Any) -> tuple[int, int]:
    points, dimensions = as_int(n, "n", op), as_int(d, "d", op)
    if points < 0 or dimensions < 1:
        raise ValueError(f"{op}: n={n} must not be negative and d={d} must be positive")
    return points, dimensions


def _unit(words: Node, dtype: DType) -> Node:
    """32-bit words as fractions below 1."""
    if dtype is dt.float64:
        return ew.mul(ew.cast(words, dt.float64), constant(2.0**-32, dt.float64))
    return _bits.uniform32(words)


def _reversed(x: Node) -> Node:
    """The bits of uint32 in reverse order."""
    for shift, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF)):
        by, keep = constant(shift, dt.uint32), constant(mask, dt.uint32)
        right = ew.and_(ew.shift_right(x, by), keep)
        x = ew.or_(right, ew.shift_left(ew.and_(x, keep), by))
    half = constant(16, dt.uint32)
    return ew.or_(ew.shift_right(x, half), ew.shift_left(x, half))


def _owen(x: Node, seeds: Node) -> Node:
    """Owen's nested uniform scrambling by hashing reversed bits (Laine and Karras 2011; Burley
    2020): each bit is flipped by a function of those above it."""
    x = ew.add(_reversed(x), seeds)
    for factor in (0x6C50B47C, 0xB82F1E52, 0xC7AFE638, 0x8D22F6E6):
        x = ew.xor(x, ew.mul(x, constant(factor, dt.uint32)))
    return _reversed(x)


def sobol(
    n: int,
    d: int,
    *,
    scramble: bool = True,
    skip: int = 0,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """n points of the Sobol sequence in d <= 21201 dimensions, from point `skip` on.

    Direction numbers are Joe and Kuo's; `scramble` randomises them as Owen does, which keeps their
    equidistribution and makes means unbiased. n should be a power of two.

    >>> nm.random.sobol(4, 2, scramble=False)
    tensor([[0.  , 0.  ],
            [0.5 , 0.5 ],
            [0.75, 0.25],
            [0.25, 0.75]])
    """
    n, d = _sizes("sobol", n, d)
    skip = as_int(skip, "skip", "sobol")
    if d > DIMENSIONS:
        raise ValueError(f"sobol: d={d} is above the {DIMENSIONS} dimensions of the table")
    if skip < 0 or skip + n > 1 << BITS:
        raise ValueError(
            f"sobol: points {skip} to {skip + n} are not among the 2**32 of a sequence"
        )
    dtype = _bits.float_dtype("sobol", dtype)
    source = key_words("sobol", key) if scramble else None
    dev = _bits.device_of(device, *(source or ()))
    index = ew.add(iota(n, dt.uint32, dev), constant(skip, dt.uint32))
    gray = reshape(ew.xor(index, ew.shift_right(index, constant(1, dt.uint32))), (n, 1))
    used = max(1, (skip + n).bit_length())
    table = from_host(direction_numbers(d)[:used], dt.uint32, dev)
    x = constant(0, dt.uint32)
    one = constant(1, dt.uint32)
    for j in range(min(used, BITS)):
        row = reshape(take_range(table, 0, j, j + 1), (1, d))
        bit = ew.and_(ew.shift_right(gray, constant(j, dt.uint32)), one)
        x = ew.xor(x, ew.mul(bit, row))
    if source is not None:
        seeds = reshape(_bits.map_words(source, d, dev, lambda w: w), (1, d))
        x = _owen(x, seeds)
    return wrap(ew.cast(_unit(x, dt.compute_dtype(dtype)), dtype))


def _primes(count: int) -> list[int]:
    found: list[int] = []
    candidate = 2
    while len(found) < count:
        if all(candidate % p for p in found if p * p <= candidate):
            found.append(candidate)
        candidate += 1
    return found


def _rotated(x: Node, key: Any, d: int, dev: Device, dtype: DType) -> Node:
    """Cranley and Patterson's rotation: a random shift per dimension, modulo 1."""
    shift = reshape(Stream(key, (d,), dtype, dev).uniform(), (1, d))
    moved = ew.add(x, shift)
    return ew.sub(moved, ew.floor(moved))


def halton(
    n: int,
    d: int,
    *,
    scramble: bool = True,
    skip: int = 0,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """n points of the Halton sequence in d dimensions: digits of the index in the first d primes,
    reversed. `scramble` rotates each dimension by a random shift.

    >>> nm.random.halton(3, 2, scramble=False, skip=1)
    tensor([[0.5       , 0.33333334],
            [0.25      , 0.6666667 ],
            [0.75      , 0.11111112]])
    """
    n, d = _sizes("halton", n, d)
    skip = as_int(skip, "skip", "halton")
    if skip < 0 or skip + n > 1 << 31:
        raise ValueError(f"halton: points {skip} to {skip + n} are not among the first 2**31")
    dtype = _bits.float_dtype("halton", dtype)
    wide = dt.compute_dtype(dtype)
    source = key_words("halton", key) if scramble else ()
    dev = _bits.device_of(device, *source)
    primes = np.array(_primes(d), np.int32)
    bases = reshape(from_host(primes, dt.int32, dev), (1, d))
    inverse = reshape(from_host(1 / primes.astype(np.float64), wide, dev), (1, d))
    rest = reshape(ew.add(iota(n, dt.int32, dev), constant(skip, dt.int32)), (n, 1))
    x, scale = constant(0.0, wide), inverse
    for _ in range(max(1, (skip + n).bit_length())):
        quotient = ew.floor_divide(rest, bases)
        digit = ew.sub(rest, ew.mul(quotient, bases))
        x = ew.add(x, ew.mul(ew.cast(digit, wide), scale))
        rest, scale = quotient, ew.mul(scale, inverse)
    if scramble:
        x = _rotated(x, source, d, dev, wide)
    return wrap(ew.cast(x, dtype))


def latin_hypercube(
    n: int, d: int, *, dtype: Any = None, device: Any = None, key: Tensor | None = None
) -> Tensor:
    """n points of which every dimension has one in each of n equal intervals, at random.

    >>> x = nm.random.latin_hypercube(4, 2, key=nm.random.key(0))
    >>> nm.sort(nm.floor(x * 4), axis=0)[:, 0]
    tensor([0., 1., 2., 3.])
    """
    n, d = _sizes("latin_hypercube", n, d)
    dtype = _bits.float_dtype("latin_hypercube", dtype)
    wide = dt.compute_dtype(dtype)
    source = key_words("latin_hypercube", key)
    dev = _bits.device_of(device, *source)
    s = Stream(source, (n, d), wide, dev)
    order = argsort(wrap(s.child(0).uniform()), axis=0)._node
    within = ew.minimum(s.child(1).uniform(), constant(1 - 2.0 ** -(wide.mantissa + 1), wide))
    x = ew.mul(ew.add(ew.cast(order, wide), within), constant(1 / max(n, 1), wide))
    below = constant(1 - 2.0 ** -(wide.mantissa + 1), wide)
    return wrap(ew.cast(ew.minimum(x, below), dtype))


def lattice(
    n: int,
    d: int,
    *,
    generator: Any = None,
    scramble: bool = True,
    dtype: Any = None,
    device: Any = None,
    key: Tensor | None = None,
) -> Tensor:
    """The n points of a rank-1 lattice: fractions of i z / n, shifted at random by `scramble`.

    `generator` has the d whole numbers z; by default Korobov's 1, a, a**2, ... modulo n with a next
    to n over the golden ratio.

    >>> nm.random.lattice(5, 2, scramble=False)[:3]
    tensor([[0. , 0. ],
            [0.2, 0.6],
            [0.4, 0.2]])
    """
    n, d = _sizes("lattice", n, d)
    if generator is None:
        a = round(n / ((1 + math.sqrt(5)) / 2))
        while math.gcd(a, n) > 1:
            a += 1
        generator = [pow(a, j, n) if n > 1 else 0 for j in range(d)]
    z = np.array(generator, np.int64) % max(n, 1)
    if z.shape != (d,):
        raise ValueError(f"lattice: generator must have d={d} numbers, not shape {z.shape}")
    dtype = _bits.float_dtype("lattice", dtype)
    wide = dt.compute_dtype(dtype)
    source = key_words("lattice", key) if scramble else ()
    dev = _bits.device_of(device, *source)
    steps = reshape(from_host(z, dt.uint64, dev), (1, d))
    index = reshape(iota(n, dt.uint64, dev), (n, 1))
    places = ew.mod(ew.mul(index, steps), constant(max(n, 1), dt.uint64))
    x = ew.mul(ew.cast(places, wide), constant(1 / max(n, 1), wide))
    if scramble:
        x = _rotated(x, source, d, dev, wide)
    return wrap(ew.cast(x, dtype))
