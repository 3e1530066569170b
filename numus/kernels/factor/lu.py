"""Right-looking LU factorisation with partial pivoting of one matrix per block."""

from __future__ import annotations

from collections.abc import Callable

from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.program import (
    INT,
    ONE,
    ZERO,
    Matrix,
    Number,
    Program,
    Read,
    Span,
    chosen,
    division,
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
    if p.panel is not None:
        _by_panels(p, p.panel, out, m, n, steps)
        return
    with p.loop(ZERO, steps) as k:
        row = p.let(pivot_row(p, lambda i: out[i, k], k, m))
        with p.lanes(ZERO, width) as j:
            upper, lower = p.number(out[k, j]), p.number(out[row, j])
            out[k, j] = lower
            out[row, j] = upper
        out[k, width] = real(p, row.cast(p.real))
        pivot = p.number(out[k, k])
        quotient = division(p, pivot)
        singular = p.let(magnitude(pivot).eq(0.0))
        after = p.let(ir.add(k, ONE))
        with p.lanes(after, m) as i:  # a thread has a row: no element is found by a division
            factor = p.number(chosen(singular, zero(p), quotient(out[i, k])))
            out[i, k] = factor
            with p.loop(after, n) as j:
                out[i, j] = minus_product(out[i, j], factor, out[k, j])


def _by_panels(p: Program, panel: Matrix, out: Matrix, m: Expr, n: Expr, steps: Expr) -> None:
    """`rank` columns at a time, which are rows of the panel meanwhile: contiguous."""
    rank, width = const(p.rank), p.let(ir.add(n, ONE))
    with p.loop(ZERO, ir.idiv(ir.add(steps, const(p.rank - 1)), rank)) as block:
        first = p.let(ir.mul(block, rank))
        last = p.let(ir.minimum(ir.add(first, rank), steps))
        with p.loop(first, m) as i, p.loop(first, last) as k:
            panel[ir.sub(k, first), i] = out[i, k]
        with p.loop(first, last) as k:
            own = p.let(ir.sub(k, first))
            _eliminate(p, panel, out, (first, last), (k, own), m, width)
        with p.loop(first, m) as i, p.loop(first, last) as k:
            out[i, k] = panel[ir.sub(k, first), i]
        with p.loop(ir.add(first, ONE), last) as i, p.loop(first, i) as k, p.lanes(last, n) as j:
            out[i, j] = minus_product(out[i, j], panel[ir.sub(k, first), i], out[k, j])
        full = ir.sub(last, first).eq(rank)
        with p.when(p.let(full)), p.each((last, m), (last, n)) as (i, j):
            total = out[i, j]
            for r in range(p.rank):
                total = minus_product(total, panel[const(r), i], out[ir.add(first, const(r)), j])
            out[i, j] = total
        few = p.let(ir.sub(last, first) < rank)
        with p.when(few), p.loop(last, m) as i, p.loop(first, last) as k, p.lanes(last, n) as j:
            out[i, j] = minus_product(out[i, j], panel[ir.sub(k, first), i], out[k, j])


def _eliminate(
    p: Program, panel: Matrix, out: Matrix, span: Span, at: Span, m: Expr, width: Expr
) -> None:
    """Column k of a panel: its pivot, the rows swapped, the multipliers, the columns after it."""
    (first, last), (k, own) = span, at
    row = p.let(pivot_row(p, lambda i: panel[own, i], k, m))
    with p.lanes(ZERO, width) as j:
        upper, lower = p.number(out[k, j]), p.number(out[row, j])
        out[k, j] = lower
        out[row, j] = upper
    with p.loop(ZERO, ir.sub(last, first)) as c:
        upper, lower = p.number(panel[c, k]), p.number(panel[c, row])
        panel[c, k] = lower
        panel[c, row] = upper
    out[k, width] = real(p, row.cast(p.real))
    pivot = p.number(panel[own, k])
    quotient = division(p, pivot)
    singular = p.let(magnitude(pivot).eq(0.0))
    after = p.let(ir.add(k, ONE))
    with p.lanes(after, m) as i:
        panel[own, i] = chosen(singular, zero(p), quotient(panel[own, i]))
    with p.loop(ir.add(own, ONE), ir.sub(last, first)) as c:
        factor = p.number(panel[c, k])
        with p.lanes(after, m) as i:
            panel[c, i] = minus_product(panel[c, i], panel[own, i], factor)


def pivot_row(p: Program, column: Callable[[Expr], Number], k: Expr, m: Expr) -> Expr:
    """The first row of the largest element of column k, from row k on; k itself where that is NaN
    and equals nothing."""

    def size(i: Expr) -> Expr:
        return magnitude(column(i))

    (largest,) = p.reduced("max", k, m, lambda i: [size(i)], p.constant(0.0))
    last = m.cast(INT)
    (first,) = p.reduced(
        "min", k, m, lambda i: [select(size(i).eq(largest), i.cast(INT), last)], last
    )
    return select(first < last, first.cast(ir.INDEX), k)
