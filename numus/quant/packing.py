"""Packed integers: several to a 32-bit word, and the bytes of wider numbers.

Unpacking is broadcasting, shifting and masking, so it is fused into whatever reads the values.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numus as nm
from numus.dtypes import DType
from numus.functions._base import wrap
from numus.primitives import elementwise as ew
from numus.tensor import Tensor

CHUNK = 32  # values that fill whole words at any number of bits


def bitcast(x: Tensor, dtype: DType) -> Tensor:
    """The bits of each element as another dtype of equal width."""
    return wrap(ew.bitcast(x._node, dtype))


def _planes(bits: int) -> list[tuple[int, int]]:
    """(bits, shift) of the planes that values of `bits` bits are stored in: 3 bits as 2 and 1.

    Powers of two never cross words.
    """
    found, shift = [], 0
    for width in (8, 4, 2, 1):
        if bits - shift >= width:
            found.append((width, shift))
            shift += width
    return found


def pack(values: Tensor, bits: int) -> Tensor:
    """Values below 2**bits as uint32 words along the last axis, the first in the lowest bits.

    The last axis is a multiple of 32; each chunk of 32 values fills `bits` words, plane by plane.
    """
    lead, count = values.shape[:-1], values.shape[-1]
    chunks = values.astype(nm.uint32).reshape(*lead, count // CHUNK, CHUNK)
    words = []
    for width, shift in _planes(bits):
        per_word = 32 // width
        plane = (chunks >> shift) & ((1 << width) - 1)
        plane = plane.reshape(*lead, count // CHUNK, width, per_word)
        shifts = nm.arange(per_word, dtype=nm.uint32, device=values.device) * width
        words.append(nm.sum(plane << shifts, axis=-1, dtype=nm.uint32))
    return nm.concat(words, axis=-1).reshape(*lead, count // CHUNK * bits)


def unpack(words: Tensor, bits: int) -> Tensor:
    """The values that `pack` was given, as uint32."""
    lead, count = words.shape[:-1], words.shape[-1] // bits * CHUNK
    chunks = words.reshape(*lead, count // CHUNK, bits)
    total, start = None, 0
    for width, shift in _planes(bits):
        shifts = nm.arange(32 // width, dtype=nm.uint32, device=words.device) * width
        own = chunks if width == bits else chunks[..., start : start + width]
        plane = (own[..., None] >> shifts) & ((1 << width) - 1)
        plane = plane.reshape(*lead, count)
        total = plane if total is None else total | (plane << shift)
        start += width
    assert total is not None
    return total


def shifted(codes: Tensor, shifts: list[int], mask: int) -> Tensor:
    """`codes[..., None, :] >> shifts[:, None] & mask`: fields of bytes, field after field."""
    by = nm.asarray(shifts, dtype=codes.dtype, device=codes.device)
    return (codes[..., None, :] >> by[:, None]) & mask


def half_from_bytes(pair: Tensor) -> Tensor:
    """float16 of two bytes along the last axis, little-endian, as float32 with that axis kept."""
    low, high = pair[..., 0:1].astype(nm.uint16), pair[..., 1:2].astype(nm.uint16)
    return bitcast(low | (high << 8), nm.float16).astype(nm.float32)


def half_to_bytes(x: Tensor) -> Tensor:
    """The two bytes of float16 values whose last axis is 1, little-endian."""
    word = bitcast(x.astype(nm.float16), nm.uint16)
    return nm.concat([word & 255, word >> 8], axis=-1).astype(nm.uint8)


def lookup(codes: Tensor, table: list[float]) -> Tensor:
    """`table[codes]` for a short table whose length is a power of two, by selects.

    A gather would read memory for every element, and end the fusion of what reads it.
    """
    level: list[Any] = list(table)
    bit = 1
    while len(level) > 1:
        is_odd = (codes & bit) != 0
        level = [nm.where(is_odd, b, a) for a, b in zip(level[::2], level[1::2], strict=True)]
        bit <<= 1
    found: Tensor = level[0]
    return found.astype(nm.float32, copy=False)


def nearest(x: Tensor, table: list[float]) -> Tensor:
    """The index of the nearest entry of a sorted table, as uint8; of two as near, the lower."""
    code = nm.zeros_like(x, dtype=nm.uint8)
    for low, high in pairwise(table):
        code = code + (x > (low + high) / 2).astype(nm.uint8)
    return code
