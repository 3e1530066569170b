"""Column-oriented back substitution with upper triangular matrices: eigenvectors, Sylvester
equations (Bartels & Stewart 1972), square roots (Björck & Hammarling 1983).

Results are transposed, so that lanes run along memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from numus import ir
from numus.ir import Expr, select
from numus.kernels.factor.program import (
    ONE,
    ZERO,
    Matrix,
    Number,
    Program,
    Read,
    chosen,
    inverse,
    magnitude,
    minus_product,
    product,
    real,
    scaled,
    zero,
)
from numus.kernels.factor.wilkinson import square_root

GROWTH = 2.0**30  # of an eigenvector's elements before it is scaled down


def _below(k: Expr, r: Expr) -> Expr:
    """k - 1 - r: rows from k - 1 on upwards."""
    return ir.sub(ir.sub(k, ONE), r)


def vectors(p: Program, out: Matrix, s: Read, t: Read, k: Expr, n: Expr, smallest: Expr) -> None:
    """Row k: the x with (β_k s - α_k t) x = 0, α_k and β_k being the k-th diagonal elements.

    Differences of nearly equal eigenvalues are at least `smallest`; elements that grow beyond
    bounds are scaled down, so that defective matrices have finite vectors, too.
    """
    alpha, beta = p.number(s(k, k)), p.number(t(k, k))
    size = p.let(ir.maximum(magnitude(alpha), magnitude(beta)))
    by = p.let(p.constant(1.0) / select(size.eq(0.0), p.constant(1.0), size))
    alpha, beta = p.number(scaled(alpha, by)), p.number(scaled(beta, by))

    def element(i: Expr, j: Expr) -> Number:
        return minus_product(product(beta, s(i, j)), alpha, t(i, j))

    with p.lanes(ZERO, n) as j:
        above = p.let(j < k)
        start = tuple(-x for x in element(ir.minimum(j, k), k))
        one = real(p, select(j.eq(k), p.constant(1.0), p.constant(0.0)))
        out[k, j] = chosen(above, start, one)
    with p.loop(ZERO, k) as r:
        i = p.let(_below(k, r))
        gap = p.number(element(i, i))
        # NaN stays NaN
        tiny = p.let(magnitude(gap) < smallest)
        x = p.number(product(out[k, i], inverse(p, p.number(chosen(tiny, real(p, smallest), gap)))))
        out[k, i] = x
        grown = p.let(magnitude(x) > p.constant(GROWTH))
        with p.when(grown):
            down = p.let(p.constant(1.0) / magnitude(x))
            with p.lanes(ZERO, n) as j:
                out[k, j] = scaled(out[k, j], down)
        x = p.number(out[k, i])
        with p.lanes(ZERO, i) as j:
            out[k, j] = minus_product(out[k, j], element(j, i), x)


def sylvester(
    p: Program, out: Matrix, reads: Sequence[Read], rows: Expr, columns: Expr, part: str
) -> None:
    """Xᵀ with a X + X b = c for upper triangular a and b; in a strict triangle alone ("lower" or
    "upper"), or all of it."""
    a, b, c = reads
    with p.loop(ZERO, columns) as k:
        with p.lanes(ZERO, rows) as i:
            out[k, i] = c(i, k)
        with p.loop(ZERO, k) as l:  # noqa: E741
            factor = p.number(b(l, k))
            with p.lanes(ZERO, rows) as i:
                out[k, i] = minus_product(out[k, i], factor, out[l, i])
        own = p.number(b(k, k))
        with p.loop(ZERO, rows) as r:
            i = p.let(_below(rows, r))
            total = p.number([x + y for x, y in zip(a(i, i), own, strict=True)])
            x = p.number(product(out[k, i], inverse(p, total)))
            if part != "all":
                x = p.number(chosen(i > k if part == "lower" else i < k, x, zero(p)))
            out[k, i] = x
            with p.lanes(ZERO, i) as j:
                out[k, j] = minus_product(out[k, j], a(j, i), x)


def root(p: Program, out: Matrix, t: Read, n: Expr) -> None:
    """Rᵀ with R R = t, upper triangular complex; eigenvalues 0 of an invariant space are kept."""
    with p.each((ZERO, n), (ZERO, n)) as (k, i):
        out[k, i] = chosen(p.let(i <= k), t(ir.minimum(i, k), k), zero(p))
    with p.loop(ZERO, n) as k:
        own = square_root(p, p.number(out[k, k]))
        out[k, k] = own
        with p.loop(ZERO, k) as r:
            i = p.let(_below(k, r))
            total = p.number([x + y for x, y in zip(out[i, i], own, strict=True)])
            old = p.number(out[k, i])
            nothing = p.let(magnitude(total).eq(0.0) & magnitude(old).eq(0.0))
            safe = p.number(chosen(nothing, real(p, p.constant(1.0)), total))
            x = p.number(product(old, inverse(p, safe)))
            out[k, i] = x
            with p.lanes(ZERO, i) as j:
                out[k, j] = minus_product(out[k, j], out[i, j], x)
