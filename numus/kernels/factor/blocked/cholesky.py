"""Right-looking Cholesky factorisation A = L Lᴴ in blocks, in place (LAPACK's potrf).

A step factorises a block of the diagonal, solves for the rows below it, and updates what follows;
the rows below are kept transposed, too, as both factors of the update.
"""

from __future__ import annotations

from numus import ir
from numus.ir import Expr, const
from numus.kernels.factor import cholesky
from numus.kernels.factor.blocked.tiles import (
    Planes,
    TileProgram,
    less_product,
    transposed,
    update_tiles,
)
from numus.kernels.factor.program import (
    ONE,
    ZERO,
    Matrix,
    Number,
    Span,
    conjugate,
    minus_product,
    scaled,
)


def factorise(p: TileProgram, work: Planes, near: Matrix, first: Expr, count: Expr) -> None:
    """A block of the diagonal, through memory of its own."""
    p.rank = 4
    cholesky.cholesky(p, near, lambda i, j: work[ir.add(first, i), ir.add(first, j)], count)
    with p.loop(ZERO, count) as i, p.loop(ZERO, ir.add(i, ONE)) as j:
        work[ir.add(first, i), ir.add(first, j)] = conjugate(near[j, i])


def substitute(p: TileProgram, work: Planes, panel: Planes, diagonal: Span, rows: Span) -> None:
    """Rows of L below a block of the diagonal: X Lᴴ = A, in columns of the panel and in place."""
    first, count = diagonal
    own, height = work.moved(rows[0], first), p.let(ir.sub(rows[1], rows[0]))
    transposed(p, own, panel, (ZERO, height), (ZERO, count))
    with (
        p.lanes(ZERO, height, unroll=p.vectors) as i,
        p.loop(ZERO, ir.idiv(count, const(p.rows))) as tile,
    ):
        top = p.let(ir.mul(tile, const(p.rows)))

        def lower(r: Expr, k: Expr) -> Number:
            return conjugate(work[ir.add(first, r), ir.add(first, k)])

        found = less_product(p, panel, top, i, (lower, lambda k, i: panel[k, i]), top)
        done: list[Number] = []
        for r, value in enumerate(found):
            row = ir.add(top, const(r))
            for s, other in enumerate(done):
                factor = lower(row, ir.add(top, const(s)))
                value = p.number(minus_product(value, factor, other))
            by = p.let(p.constant(1.0) / lower(row, row)[0])
            done.append(p.number(scaled(value, by)))
            panel[row, i] = done[r]
    transposed(p, panel, own, (ZERO, count), (ZERO, height))


def update(
    p: TileProgram,
    work: Planes,
    panels: tuple[Planes, Planes],
    spans: tuple[Span, Span],
    count: Expr,
) -> None:
    """A -= L Lᴴ in a block, by `count` columns of L, of the block's rows and its columns."""
    rows, columns = spans
    left, right = panels
    own, height = work.moved(rows[0], columns[0]), p.let(ir.sub(rows[1], rows[0]))
    factors = (lambda i, k: left[k, i], lambda k, j: conjugate(right[k, j]))
    update_tiles(p, own, factors, (height, p.let(ir.sub(columns[1], columns[0])), count))
