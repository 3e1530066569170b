"""Right-looking LU factorisation with partial pivoting in blocks, in place (LAPACK's getrf).

A panel of columns is factorised transposed, so that its columns are contiguous; then each block of
other columns swaps its rows, and those after the panel are solved for and updated.
"""

from __future__ import annotations

from numus import ir
from numus.ir import Expr, const
from numus.kernels.factor.blocked.tiles import (
    Chunks,
    Planes,
    TileProgram,
    less_product,
    update_tiles,
)
from numus.kernels.factor.lu import pivot_row
from numus.kernels.factor.program import (
    ONE,
    ZERO,
    Matrix,
    Number,
    Span,
    chosen,
    division,
    magnitude,
    minus_product,
    real,
    zero,
)

INNER = 8  # columns that are eliminated one by one


def factorise(p: TileProgram, panel: Planes, swaps: Matrix, at: Span, end: Expr) -> None:
    """The columns of a panel, which are its rows: column 0 has its pivot in row `first`.

    A column without a pivot other than zero is left as it is.
    """
    first, count = at
    with p.loop(ZERO, ir.idiv(count, const(INNER))) as block:
        left = p.let(ir.mul(block, const(INNER)))
        top = p.let(ir.add(first, left))
        for s in range(INNER):
            _eliminate(p, panel, swaps, (left, top, s), count, end)
        right, below = p.let(ir.add(left, const(INNER))), p.let(ir.add(top, const(INNER)))
        with p.loop(right, count) as c:
            done: list[Number] = []
            for s in range(INNER):
                value = p.number(panel[c, ir.add(top, const(s))])
                for t, other in enumerate(done):
                    factor = panel[ir.add(left, const(t)), ir.add(top, const(s))]
                    value = p.number(minus_product(value, factor, other))
                done.append(value)
                panel[c, ir.add(top, const(s))] = value
        with (
            p.lanes(below, end, unroll=p.vectors) as i,
            p.loop(ZERO, ir.idiv(ir.sub(count, right), const(p.rows))) as tile,
        ):
            c = p.let(ir.add(right, ir.mul(tile, const(p.rows))))
            factors = (
                lambda c, k: panel[c, ir.add(top, k)],
                lambda k, i: panel[ir.add(left, k), i],
            )
            found = less_product(p, panel, c, i, factors, const(INNER))
            for r, value in enumerate(found):
                panel[ir.add(c, const(r)), i] = value


def _eliminate(
    p: TileProgram,
    panel: Planes,
    swaps: Matrix,
    at: tuple[Expr, Expr, int],
    count: Expr,
    end: Expr,
) -> None:
    """Column s of an inner block: its pivot, the rows swapped, the multipliers, and the columns of
    the block after it."""
    left, top, s = at
    c, k = p.let(ir.add(left, const(s))), p.let(ir.add(top, const(s)))
    row = p.let(pivot_row(p, lambda i: panel[c, i], k, end))
    swaps[ZERO, k] = real(p, row.cast(p.real))
    with p.when(p.let(row.ne(k))), p.loop(ZERO, count) as other:
        upper, lower = p.number(panel[other, k]), p.number(panel[other, row])
        panel[other, k] = lower
        panel[other, row] = upper
    pivot = p.number(panel[c, k])
    quotient = division(p, pivot)
    singular = p.let(magnitude(pivot).eq(0.0))
    others = [ir.add(left, const(t)) for t in range(s + 1, INNER)]
    factors = [p.number(panel[other, k]) for other in others]
    with p.lanes(p.let(ir.add(k, ONE)), end) as i:
        x = p.number(chosen(singular, zero(p), quotient(panel[c, i])))
        panel[c, i] = x
        for other, factor in zip(others, factors, strict=True):
            panel[other, i] = minus_product(panel[other, i], factor, x)


def swap(p: TileProgram, work: Planes, swaps: Matrix, at: Span, columns: Span) -> None:
    """The rows that a panel has swapped, in a range of columns."""
    with p.loop(at[0], p.let(ir.add(*at))) as k:
        row = p.let(swaps[ZERO, k][0].cast(ir.INDEX))
        with p.when(p.let(row.ne(k))), p.lanes(*columns) as j:
            upper, lower = p.number(work[k, j]), p.number(work[row, j])
            work[k, j] = lower
            work[row, j] = upper


def pack(p: TileProgram, panel: Planes, chunk: Chunks, rows: Span, count: Expr) -> None:
    """L of a panel in chunks of rows, each of which has few pages of memory."""
    start, end = rows
    size = const(chunk.rows)
    with p.loop(ZERO, chunk.count(start, end)) as number:
        to, top = chunk.at(number), p.let(ir.add(start, ir.mul(number, size)))
        height = p.let(ir.minimum(size, ir.sub(end, top)))
        with p.loop(ZERO, count) as k, p.lanes(ZERO, height) as i:
            to[k, i] = panel[k, ir.add(top, i)]


def update(
    p: TileProgram,
    work: Planes,
    chunk: Chunks,
    near: Planes,
    spans: tuple[Span, Span, Span],
) -> None:
    """A range of columns after a panel: U = L⁻¹ A beside it, which is kept near, too, and A -= L U
    below. Chunk 0 has the rows of the panel's diagonal."""
    (first, count), columns, (_, end) = spans
    size = const(chunk.rows)
    diagonal = chunk.at(ZERO)
    own, width = work.moved(first, columns[0]), p.let(ir.sub(columns[1], columns[0]))

    def upper(k: Expr, j: Expr) -> Number:
        return near[k, j]

    with (
        p.lanes(ZERO, width, unroll=p.vectors) as j,
        p.loop(ZERO, ir.idiv(count, const(p.rows))) as tile,
    ):
        top = p.let(ir.mul(tile, const(p.rows)))
        done: list[Number] = []
        factors = (lambda i, k: diagonal[k, i], upper)
        for r, value in enumerate(less_product(p, own, top, j, factors, top)):
            row = ir.add(top, const(r))
            for s, other in enumerate(done):
                factor = diagonal[ir.add(top, const(s)), row]
                value = p.number(minus_product(value, factor, other))
            done.append(value)
            own[row, j] = value
            near[row, j] = value
    with p.loop(ONE, chunk.count(first, end)) as number:
        source, above = chunk.at(number), p.let(ir.mul(number, size))
        height = p.let(ir.minimum(size, ir.sub(ir.sub(end, first), above)))
        below = own.moved(above, ZERO)
        factors = (lambda i, k: source[k, i], upper)
        update_tiles(p, below, factors, (height, width, count))


def order(p: TileProgram, found: Matrix, n: Expr) -> None:
    """The order of rows (row 1) after the swaps (row 0)."""
    with p.lanes(ZERO, n) as i:
        found[ONE, i] = real(p, i.cast(p.real))
    with p.loop(ZERO, n) as k:
        row = p.let(found[ZERO, k][0].cast(ir.INDEX))
        upper, lower = p.number(found[ONE, k]), p.number(found[ONE, row])
        found[ONE, k] = lower
        found[ONE, row] = upper
