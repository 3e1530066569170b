"""Counter-based random bits, and the numbers made from them.

threefry2x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) maps a key and a
counter to 64 random bits. There is no state: the same counter gives the same bits on every backend,
whatever the number of threads.
"""

from __future__ import annotations

from numus import dtypes as dt
from numus.compiler.ir import Expr

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


def uniform32(x: Expr) -> Expr:
    """A float32 in [0, 1) from 32 random bits: a multiple of 2**-24."""
    return (x >> 8).bitcast(dt.int32).cast(dt.float32) * 2.0**-24


def uniform64(x0: Expr, x1: Expr) -> Expr:
    """A float64 in [0, 1) from two words: a multiple of 2**-53."""
    word = (x0.cast(dt.uint64) << 32) | x1.cast(dt.uint64)
    return (word >> 11).bitcast(dt.int64).cast(dt.float64) * 2.0**-53
