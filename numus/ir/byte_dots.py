"""Dot products of four bytes of two words: expressions that one instruction computes."""

from __future__ import annotations

from numus import dtypes as dt
from numus.ir.expressions import Expr, make

TINY_CODE = 31
MAX_TINY_DOTS = 4  # 4 * 2 * 31 * 128 is below 1 << 15


def dot4(total: Expr, codes: Expr, x: Expr, largest: int = 255) -> Expr:
    """total + Σ codes[i] * x[i] over the four bytes of two uint32 words, those of `codes` unsigned
    and up to `largest`, those of `x` signed; int32."""
    kind = "tiny" if largest <= TINY_CODE else "small" if largest < 128 else None
    return make("dot4", dt.int32, (total, codes, x), kind)


def tiny_dots(e: Expr) -> tuple[Expr, ...]:
    """The operands of dot products of tiny codes that are added to each other, as many as fit 16
    bits: what the first is added to, then codes and `x` of each."""
    found: tuple[Expr, ...] = ()
    while e.op == "dot4" and e.attr == "tiny" and len(found) < 2 * MAX_TINY_DOTS:
        found, e = (*e.args[1:], *found), e.args[0]
    return (e, *found)
