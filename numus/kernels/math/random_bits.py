"""Counter-based random bits, and the numbers made from them.

threefry2x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) maps a key and a
counter to 64 random bits. There is no state: the same counter gives the same bits on every backend,
whatever the number of threads.
"""

from __future__ import annotations

import math

from numus import dtypes as dt
from numus.ir import Expr, fma, select, sqrt
from numus.kernels.math._tools import from_bits, unsigned_bits
from numus.kernels.math.logarithm import natural, reduce_log
from numus.kernels.math.trigonometry import cos_reduced, sin_reduced

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def threefry2x32(k0: Expr, k1: Expr, c0: Expr, c1: Expr) -> tuple[Expr, Expr]:
    """20 rounds of Threefry on uint32; the same bits as Random123's and JAX's."""
    keys = (k0, k1, k0 ^ k1 ^ _PARITY)
    x0, x1 = c0 + k0, c1 + k1
    for block in range(5):
        for distance in _ROTATIONS[block % 2]:
            x0 = x0 + x1
            x1 = ((x1 << distance) | (x1 >> (32 - distance))) ^ x0
        x0 = x0 + keys[(block + 1) % 3]
        x1 = x1 + keys[(block + 2) % 3] + (block + 1)
    return x0, x1


def normal_pair(x0: Expr, x1: Expr) -> tuple[Expr, Expr]:
    """Two independent standard normal float32 from two words of random bits (Box and Muller).

    The radius sqrt(-2 log u) takes u = (k + 1/2) 2**-31 from the upper 31 bits of x0 and reaches
    6.66; the angle takes all bits of x1: 30 for a signed eighth of a turn at most, one that puts it
    about the axis of x or y, one for the side. Both come out of the bits directly, so neither the
    logarithm nor sine and cosine have special cases. Results are within 4 ulp of the formula's
    where u < 1/2; further in u is rounded to 24 bits, and the radius off by 2**-25 / radius.
    """
    return _box_muller(x0, x1, dt.float32, dt.int32)


def normal_pair64(x0: Expr, x1: Expr) -> tuple[Expr, Expr]:
    """Two independent standard normal float64 from two uint64: the same with 63 and 62 bits."""
    return _box_muller(x0, x1, dt.float64, dt.int64)


def _box_muller(x0: Expr, x1: Expr, dtype: dt.DType, signed: dt.DType) -> tuple[Expr, Expr]:
    width = dtype.bits
    unit = 2.0 ** (1 - width)
    u = fma((x0 >> 1).bitcast(signed).cast(dtype), unit, unit / 2)
    radius = sqrt(natural(*reduce_log(u)) * -2.0)
    angle = (x1 << 2).bitcast(signed).cast(dtype) * (math.pi / 4 * unit)
    sign = 1 << (width - 1)
    along = from_bits(unsigned_bits(cos_reduced(angle)) ^ (x1 & sign))
    across = sin_reduced(angle)
    swap = (x1 & (sign >> 1)).ne(0)
    return radius * select(swap, across, along), radius * select(swap, along, across)
