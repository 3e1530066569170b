"""Quotients and remainders of indices."""

from __future__ import annotations

from numus import ir
from numus.ir import Expr, const, split_constant


def quotient(x: Expr, n: int) -> Expr:
    """x / n of a number that is not negative."""
    start, offset = split_constant(x)
    if offset and offset % n == 0:
        return ir.add(quotient(start, n), const(offset // n))
    if n & (n - 1):
        return ir.idiv(x, const(n))
    return x if n == 1 else ir.binary("ashr", x, const(n.bit_length() - 1))


def remainder(x: Expr, n: int) -> Expr:
    start, offset = split_constant(x)
    if offset and offset % n == 0:
        return remainder(start, n)
    return ir.irem(x, const(n)) if n & (n - 1) else ir.binary("and", x, const(n - 1))
