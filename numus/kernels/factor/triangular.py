"""Forward substitution: L X = B for one triangular matrix and a range of columns per block."""

from __future__ import annotations

from numus import ir
from numus.ir import Expr
from numus.kernels.factor.program import (
    ONE,
    ZERO,
    Matrix,
    Program,
    Read,
    Span,
    divided,
    inverse,
    minus_product,
)


def solve_lower(
    p: Program, out: Matrix, a: Read, b: Read, n: Expr, columns: Span, unit_diagonal: bool
) -> None:
    """X from the lower triangle of A; with a unit diagonal, from what is below it."""
    if not p.simt:
        with p.lanes(*columns, unroll=4) as j:
            _substitute(p, out, a, b, n, j, unit_diagonal)
        return
    with p.each((ZERO, n), columns) as (i, j):
        out[i, j] = b(i, j)
    with p.loop(ZERO, n) as k:
        if not unit_diagonal:
            pivot = p.number(a(k, k))
            reciprocal = inverse(p, pivot)
            with p.lanes(*columns) as j:
                out[k, j] = divided(out[k, j], pivot, reciprocal)
        after = p.let(ir.add(k, ONE))
        with p.each((after, n), columns) as (i, j):
            out[i, j] = minus_product(out[i, j], a(i, k), out[k, j])


def _substitute(
    p: Program, out: Matrix, a: Read, b: Read, n: Expr, j: Expr, unit_diagonal: bool
) -> None:
    """A column in a register: each of its elements is read once per row."""
    registers = [p.register(lanes=True) for _ in range(p.components)]
    with p.loop(ZERO, n) as i:
        p.do(*ir.sets(registers, b(i, j)))
        with p.loop(ZERO, i) as k:
            total = minus_product(tuple(ir.reads(registers)), a(i, k), out[k, j])
            p.do(*ir.sets(registers, p.number(total)))
        x = p.number(ir.reads(registers))
        if not unit_diagonal:
            pivot = p.number(a(i, i))
            x = divided(x, pivot, inverse(p, pivot))
        out[i, j] = x
