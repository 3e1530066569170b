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
