"""Right-looking Cholesky factorisation A = Uᴴ U of one matrix per block."""

from __future__ import annotations

from numus import ir
from numus.ir import Expr, select
from numus.kernels.factor.program import (
    ONE,
    ZERO,
    Matrix,
    Program,
    Read,
    chosen,
    conjugate,
    minus_product,
    real,
    scaled,
    zero,
)


def cholesky(p: Program, out: Matrix, a: Read, n: Expr) -> None:
    """U, from the lower triangle of A. NaN from a pivot on that is not positive.

    Rows of U are contiguous, so the update of row i by row k is a vector operation.
    """
    with p.each((ZERO, n), (ZERO, n)) as (i, j):
        x = conjugate(a(j, i))
        on_diagonal = real(p, x[0])
        out[i, j] = chosen(i < j, x, chosen(i.eq(j), on_diagonal, zero(p)))
    with p.loop(ZERO, n) as k:
        pivot = p.let(out[k, k][0])
        positive = pivot > p.constant(0.0)
        root = p.let(select(positive, ir.sqrt(pivot), p.constant(float("nan"))))
        inverse = p.let(p.constant(1.0) / root)
        after = p.let(ir.add(k, ONE))
        out[k, k] = real(p, root)
        with p.lanes(after, n) as j:
            out[k, j] = scaled(out[k, j], inverse)
        with p.each((after, n), (after, n), upper=True) as (i, j):
            out[i, j] = minus_product(out[i, j], conjugate(out[k, i]), out[k, j])
