"""Vectors of a thread in registers, as they came from memory: pairs of 16-bit floats share a word.

Loads ahead of their use have to stay what they are: a conversion would wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr


def vector_registers(name: str, dtype: DType, count: int) -> list[ir.Register]:
    """For `count` elements of a dtype."""
    word = dt.uint32 if dtype.itemsize == 2 else dtype
    words = count * dtype.itemsize // word.itemsize
    return [ir.Register(f"{name}_{e}", word, lanes=True) for e in range(words)]


def packed(elements: Sequence[Expr]) -> list[Expr]:
    """Elements as what the registers hold."""
    if elements[0].dtype.itemsize != 2:
        return list(elements)
    bits = [x.bitcast(dt.uint16).cast(dt.uint32) for x in elements]
    return [low | (high << 16) for low, high in zip(bits[::2], bits[1::2], strict=True)]


def element(words: Sequence[ir.Register], e: int, dtype: DType) -> Expr:
    """An element; bfloat16 becomes float32 by a shift."""
    if dtype.itemsize != 2:
        return ir.read(words[e])
    word = ir.read(words[e // 2])
    if dtype is dt.bfloat16:
        return (word & 0xFFFF0000 if e % 2 else word << 16).bitcast(dt.float32)
    return (word >> 16 if e % 2 else word).cast(dt.uint16).bitcast(dtype)
