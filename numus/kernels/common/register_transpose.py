"""Transpose of a square of vector registers, by butterfly exchanges of lanes."""

from __future__ import annotations

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt


def transpose_registers(
    rows: list[Expr], lane: Expr, dtype: DType
) -> tuple[list[Stmt], list[Expr]]:
    """As many vectors as they have lanes: lane j of vector i becomes lane i of vector j. In each
    stage, pairs of vectors exchange the lanes whose number has one bit set."""
    lets: list[Stmt] = []
    bit = 1
    while bit < len(rows):
        upper = (lane & bit).ne(0)
        new = list(rows)
        for i in range(len(rows)):
            if not i & bit:
                a, b = rows[i], rows[i | bit]
                for k, (own, other) in ((i, (a, b)), (i | bit, (b, a))):
                    received = ir.lanes_xor(other, bit)
                    first, second = (own, received) if k == i else (received, own)
                    name = ir.var(f"transpose{bit}_{k}", dtype)
                    lets.append(ir.Let(name, ir.select(upper, second, first)))
                    new[k] = name
        rows = new
        bit *= 2
    return lets, rows
