"""Right-looking LU factorisation with partial pivoting of one matrix per block."""

from __future__ import annotations

from numus import ir
from numus.ir import Expr, select
from numus.kernels.factor.program import (
    INT,
    ONE,
    ZERO,
    Matrix,
    Program,
    Read,
    chosen,
    divided,
    inverse,
    magnitude,
    minus_product,
    real,
    zero,
)


def lu(p: Program, out: Matrix, a: Read, m: Expr, n: Expr, steps: Expr) -> None:
    """L below the diagonal (its own is 1) and U above, of the permuted rows whose numbers are in
    column n; column n + 1 has the rows that were swapped with rows 0, 1, …

    A column without a pivot other than zero is left as it is.
    """
    with p.each((ZERO, m), (ZERO, n)) as (i, j):
        out[i, j] = a(i, j)
    with p.lanes(ZERO, m) as i:
        out[i, n] = real(p, i.cast(p.real))
        out[i, ir.add(n, ONE)] = zero(p)
    width = p.let(ir.add(n, ONE))
    with p.loop(ZERO, steps) as k:
        row = p.let(_pivot_row(p, out, k, m))
        with p.lanes(ZERO, width) as j:
            upper, lower = p.number(out[k, j]), p.number(out[row, j])
            out[k, j] = lower
            out[row, j] = upper
        out[k, width] = real(p, row.cast(p.real))
        pivot = p.number(out[k, k])
        reciprocal = inverse(p, pivot)
        singular = p.let(magnitude(pivot).eq(0.0))
        after = p.let(ir.add(k, ONE))
        with p.lanes(after, m) as i:
            out[i, k] = chosen(singular, zero(p), divided(out[i, k], pivot, reciprocal))
        with p.each((after, m), (after, n)) as (i, j):
            out[i, j] = minus_product(out[i, j], out[i, k], out[k, j])


def _pivot_row(p: Program, out: Matrix, k: Expr, m: Expr) -> Expr:
    """The first row of the largest element of column k, from row k on; k itself where that is NaN
    and equals nothing."""

    def size(i: Expr) -> Expr:
        return magnitude(out[i, k])

    (largest,) = p.reduced("max", k, m, lambda i: [size(i)], p.constant(0.0))
    last = m.cast(INT)
    (first,) = p.reduced(
        "min", k, m, lambda i: [select(size(i).eq(largest), i.cast(INT), last)], last
    )
    return select(first < last, first.cast(ir.INDEX), k)
