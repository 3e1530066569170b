"""Right-looking Cholesky factorisation A = Uᴴ U of one matrix per block."""

from __future__ import annotations

from numus import ir
from numus.ir import Expr, const, select
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

    Rows of U are contiguous, so the update of row i by row k is a vector operation; `rank` rows
    update what follows them at once.
    """
    _transpose(p, out, a, n)
    rank = const(p.rank)
    with p.loop(ZERO, ir.idiv(ir.add(n, const(p.rank - 1)), rank)) as block:
        first = p.let(ir.mul(block, rank))
        last = p.let(ir.minimum(ir.add(first, rank), n))
        with p.loop(first, last) as k:
            pivot = p.let(out[k, k][0])
            positive = pivot > p.constant(0.0)
            root = p.let(select(positive, ir.sqrt(pivot), p.constant(float("nan"))))
            inverse = p.let(p.constant(1.0) / root)
            after = p.let(ir.add(k, ONE))
            out[k, k] = real(p, root)
            with p.lanes(after, n) as j:
                out[k, j] = scaled(out[k, j], inverse)
            with p.each((after, last), (after, n), upper=True) as (i, j):
                out[i, j] = minus_product(out[i, j], conjugate(out[k, i]), out[k, j])
        with p.each((last, n), (last, n), upper=True) as (i, j):
            total = out[i, j]
            for r in range(p.rank):  # all of them: there are rows left
                k = ir.add(first, const(r))
                total = minus_product(total, conjugate(out[k, i]), out[k, j])
            out[i, j] = total


def _transpose(p: Program, out: Matrix, a: Read, n: Expr) -> None:
    if p.along_rows:  # one by one: gathers are slower
        with p.loop(ZERO, n) as i:
            with p.loop(ZERO, i) as j:
                out[j, i] = conjugate(a(i, j))
            with p.lanes(ZERO, i) as j:
                out[i, j] = zero(p)
            out[i, i] = real(p, a(i, i)[0])
        return
    with p.each((ZERO, n), (ZERO, n)) as (i, j):
        x = conjugate(a(j, i))
        out[i, j] = chosen(i < j, x, chosen(i.eq(j), real(p, x[0]), zero(p)))
