"""Squares of registers, turned: rows become columns without a way through memory."""

from __future__ import annotations

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt


def transposed(rows: list[Expr], lane: Expr, dtype: DType) -> tuple[list[Stmt], list[Expr]]:
    """As many vectors as they have lanes, turned: lane j of vector i is lane i of vector j.

    In each stage, pairs of vectors exchange the lanes whose number has one bit set.
    """
    lets: list[Stmt] = []
    bit = 1
    while bit < len(rows):
        upper = (lane & bit).ne(0)
        new = list(rows)
        for i in range(len(rows)):
            if not i & bit:
                a, b = rows[i], rows[i | bit]
                for k, (kept, moved) in ((i, (a, b)), (i | bit, (b, a))):
                    came = ir.lanes_xor(moved, bit)
                    first, second = (kept, came) if k == i else (came, kept)
                    name = ir.var(f"turn{bit}_{k}", dtype)
                    lets.append(ir.Let(name, ir.select(upper, second, first)))
                    new[k] = name
        rows = new
        bit *= 2
    return lets, rows
