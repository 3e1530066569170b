"""Bits of integers and floats: reinterpretation, shifts, leading zeros, rounding to fewer bits."""

from __future__ import annotations

import math
from typing import Any

from numus import dtypes as dt
from numus.errors import DTypeError
from numus.functions import api as nm
from numus.functions._base import wrap
from numus.functions.numeric.floats import frexp
from numus.primitives import elementwise as ew
from numus.tensor import Tensor


def bitcast(x: Any, dtype: Any, /) -> Tensor:
    """The same bits as another dtype of equal width."""
    given, wanted = nm.asarray(x), dt.as_dtype(dtype)
    if given.dtype.bits != wanted.bits:
        raise DTypeError(f"bitcast: {given.dtype.name} and {wanted.name} must have equal widths")
    return wrap(ew.bitcast(given._node, wanted))


def shift_right_logical(x: Any, y: Any, /) -> Tensor:
    """Shifted right; zeros come in from the left."""
    given = nm.asarray(x)
    unsigned = dt.as_dtype(f"uint{given.dtype.bits}")
    places = nm.astype(nm.asarray(y), unsigned)
    return bitcast(nm.bitwise_right_shift(bitcast(given, unsigned), places), given.dtype)


def leading_zeros(x: Any, /) -> Tensor:
    """The number of zero bits above the highest one."""
    given = nm.asarray(x)
    bits = given.dtype.bits
    filled, shift = bitcast(given, f"uint{bits}"), 1
    while shift < bits:  # every bit below the highest one is set
        filled = nm.bitwise_or(filled, nm.bitwise_right_shift(filled, shift))
        shift *= 2
    return nm.astype(bits - nm.astype(nm.bitwise_count(filled), dt.int64), given.dtype)


def multiply_high(x: Any, y: Any, /) -> Tensor:
    """The upper half of the bits of a product of integers of up to 32 bits."""
    a, b = nm.asarray(x), nm.asarray(y)
    if a.dtype.bits > 32:
        raise DTypeError(f"multiply_high: a product of {a.dtype.name} needs 128 bits; split it")
    wide = dt.int64 if a.dtype.kind == "int" else dt.uint64
    product = nm.astype(a, wide) * nm.astype(b, wide)
    return nm.astype(nm.bitwise_right_shift(product, a.dtype.bits), a.dtype)


def reduce_precision(x: Any, /, exponent_bits: int, mantissa_bits: int) -> Tensor:
    """Floats rounded, ties to even, to a format of fewer bits, in their own dtype."""
    given = nm.asarray(x)
    wide = nm.astype(given, dt.float64)
    top = 2 ** (exponent_bits - 1) - 1
    # subnormals have fewer bits
    exponent = nm.maximum(nm.astype(frexp(wide)[1], dt.float64), 2.0 - top)
    unit = nm.exp2(exponent - 1 - mantissa_bits)
    rounded = nm.round(wide / unit) * unit
    limit = math.ldexp(2 - 2.0**-mantissa_bits, top)
    rounded = nm.where(nm.abs(rounded) > limit, nm.copysign(math.inf, wide), rounded)
    tiny = nm.abs(rounded) < math.ldexp(1.0, 1 - top)  # XLA flushes subnormals of the format
    rounded = nm.where(tiny, nm.copysign(0.0, wide), rounded)
    return nm.astype(nm.where(nm.isfinite(wide), rounded, wide), given.dtype)
