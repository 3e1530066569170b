"""Activations as integers: a unit for each row, and their digits to the base 256."""

from __future__ import annotations

import numus as nm
from numus.tensor import Tensor


def byte_planes(x: Tensor, width: int, planes: int) -> tuple[list[Tensor], Tensor, Tensor]:
    """Digits -128 … 127 of each value, the most significant first; the integers that they make up,
    padded with zeros to `width` columns; and the unit of each row, relative to its largest value.
    """
    largest = nm.max(nm.abs(x), axis=-1, keepdims=True)
    limit = float(127 << (8 * (planes - 1)))
    unit = nm.where(largest > 1e-30, largest / limit, nm.where(nm.isnan(largest), largest, 1.0))
    whole = nm.round(x * (1 / unit)).astype(nm.int32)
    if width > x.shape[1]:
        whole = nm.pad(whole, [(0, 0), (0, width - x.shape[1])])
    digits, rest = [], whole
    for _ in range(planes - 1):
        low = ((rest + 128) & 255) - 128  # balanced, so that each is a signed byte
        digits.append(low)
        rest = (rest - low) >> 8
    digits.append(rest)
    return digits[::-1], whole, unit


def words_of_bytes(digits: Tensor) -> Tensor:
    """Four consecutive integers of the last axis as the bytes of a word, the first the lowest."""
    own = (digits & 255).astype(nm.uint32)
    own = own.reshape(*own.shape[:-1], own.shape[-1] // 4, 4)
    word = own[..., 0]
    for i in range(1, 4):
        word = word | (own[..., i] << (8 * i))
    return word


def every(values: Tensor, count: int) -> list[Tensor]:
    """Every `count`-th column, a power of two, from each of the first ones on. Columns are taken by
    halves: kernels are compiled for a stride of 2, and others are numbers they are called with."""
    if count == 1:
        return [values]
    even, odd = (every(values[:, i::2], count // 2) for i in range(2))
    return [x for pair in zip(even, odd, strict=True) for x in pair]
