"""Direction numbers of Sobol sequences up to 21,201 dimensions (Joe and Kuo 2008).

Their licence is in joe_kuo.LICENSE. joe_kuo.bin has the primitive polynomials and initial numbers,
packed by tools/sobol.py.
"""

from __future__ import annotations

import functools
from importlib import resources

import numpy as np

DIMENSIONS = 21201
BITS = 32


# primitive polynomials over GF(2) of degrees 1, 2, ... that have dimensions
_COUNTS = (1, 1, 2, 2, 6, 6, 18, 16, 48, 60, 176, 144, 630, 756, 1800, 2048, 7710, 7776)


def _numbers(bits: np.ndarray) -> np.ndarray:
    """The whole numbers whose bits, the lowest first, are the last axis; 1 is below the lowest."""
    weights = np.uint64(2) << np.arange(bits.shape[-1], dtype=np.uint64)
    return np.uint64(1) + (bits * weights).sum(-1, dtype=np.uint64)


@functools.cache
def direction_numbers(dimensions: int) -> np.ndarray:
    """(BITS, dimensions) of uint32: row j is the number of bit j of the Gray code."""
    data = resources.files("numus.random").joinpath("joe_kuo.bin").read_bytes()
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    v = np.zeros((BITS, dimensions), np.uint64)
    v[:, 0] = [1 << (BITS - 1 - j) for j in range(BITS)]
    done, at = 1, 0

    def read(rows: int, width: int) -> np.ndarray:
        nonlocal at
        at += rows * width
        return bits[at - rows * width : at].reshape(rows, width)

    for degree, available in enumerate(_COUNTS, 1):
        count = min(available, dimensions - done)
        polynomials = read(available, degree - 1)[:count]
        initial = read(available, degree * (degree - 1) // 2)[:count]
        columns, place = slice(done, done + count), 0
        for k in range(BITS):
            if k < degree:
                m = _numbers(initial[:, place : place + k])
                place += k
                v[k, columns] = m << np.uint64(BITS - 1 - k)
                continue
            new = v[k - degree, columns] ^ (v[k - degree, columns] >> np.uint64(degree))
            for i in range(1, degree):
                new = np.where(polynomials[:, degree - i - 1], new ^ v[k - i, columns], new)
            v[k, columns] = new
        done += count
        if done == dimensions:
            break
    return v.astype(np.uint32)
