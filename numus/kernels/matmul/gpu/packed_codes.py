"""Packed codes of a matrix, as GEMVs on CUDA cores read them.

A code becomes a float without a conversion: its bits are the leading ones of a mantissa,
1 + code / 2**bits (as in Lin et al. 2024 and llama.cpp, in float32). The ones are taken away again
once per group, by the sum of the activations. For 16-bit activations codes of 4 bits come out of a
word in pairs, the first of which stands 4 bits lower: four shifts for eight codes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr
from numus.kernels.matmul.gpu import problem
from numus.kernels.matmul.gpu.problem import VectorOperand
from numus.kernels.matmul.packed import Packing

WARP = 32
QUAD = 4  # words of a row that a thread takes at a time: 16 bytes
MANTISSA = 23
ONE_BITS = 0x3F800000


@dataclass(frozen=True)
class GroupNumber:
    """A number of each group of a row: `stored`, which may be loaded long before it is used, and
    as float32; where it lies in memory as a `word` or half of one, and as float32 of that."""

    stored: Callable[[Expr, Expr], Expr]  # row, group
    decoded: Callable[[Expr], Expr]
    word: Callable[[Expr, Expr], tuple[ir.Buffer, Expr]] | None = None
    of_word: Callable[[Expr, Expr, Expr], Expr] | None = None  # the word, row, group
    aligned: Expr = problem.TRUE  # words

    def __call__(self, row: Expr, group: Expr) -> Expr:
        return self.decoded(self.stored(row, group))


@dataclass(frozen=True)
class PackedMatrix:
    codes: VectorOperand
    scale: GroupNumber
    zero: GroupNumber | None

    @property
    def numbers(self) -> list[GroupNumber]:
        """Of each group: its scale, and its zero point where it has one."""
        return [self.scale] if self.zero is None else [self.scale, self.zero]


def codes_as_floats(p: Packing, word: Expr, paired: bool) -> list[tuple[Expr, int]]:
    """(1 + code / 2**bits, bits) of each value of a word."""
    per_shift = 2 if paired and p.bits == 4 else 1
    found: list[tuple[Expr, int]] = []
    for first in range(0, 32 // p.bits, per_shift):
        # the last code of those that share a shift comes to lie at the top of the mantissa
        top = (first + per_shift) * p.bits
        moved = word >> (top - MANTISSA) if top >= MANTISSA else word << (MANTISSA - top)
        for i in range(per_shift):
            low = MANTISSA - (per_shift - i) * p.bits
            bits = (moved & (((1 << p.bits) - 1) << low)) | ONE_BITS
            found.append((bits.bitcast(dt.float32), MANTISSA - low))
    return found


def tree_sum(xs: list[Expr]) -> Expr:
    while len(xs) > 1:
        xs = [a + b for a, b in zip(xs[::2], xs[1::2], strict=False)] + xs[len(xs) & ~1 :]
    return xs[0]
