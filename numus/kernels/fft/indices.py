"""Quotients, remainders and constant terms of indices."""

from __future__ import annotations

from numus import ir
from numus.ir import Expr, const


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


def split_constant(index: Expr) -> tuple[Expr, int]:
    """An index without its constant term, and that term."""
    is_sum = index.op == "add" and index.args[1].op == "const"
    return (index.args[0], int(index.args[1].attr)) if is_sum else (index, 0)
