"""Eigenvalues and singular values in their order, and their vectors from rows to columns."""

from __future__ import annotations

from collections.abc import Callable

from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.program import INT, ZERO, Matrix, Program, Span

TILE = 8  # columns that are written at once


def places(p: Program, keys: Matrix, row: int, n: Expr) -> None:
    """Row `row` + 1 of the keys: where the numbers of row `row` stand in ascending order. All stay
    where they are if one is NaN."""
    own, other = const(row), const(row + 1)

    def bad(i: Expr) -> list[Expr]:
        key = p.let(keys[own, i][0])
        return [select(key.eq(key), const(0, INT), const(1, INT))]

    (count,) = p.reduced("add", ZERO, n, bad, const(0, INT))
    failed = p.let(count.ne(0))
    with p.loop(ZERO, n) as i:
        key = p.let(keys[own, i][0])

        def before(j: Expr, key: Expr = key, i: Expr = i) -> list[Expr]:
            x = p.let(keys[own, j][0])
            first = (x < key) | (x.eq(key) & (j < i))
            return [select(first, const(1, INT), const(0, INT))]

        (found,) = p.reduced("add", ZERO, n, before, const(0, INT))
        keys[other, i] = (select(failed, i.cast(p.real), found.cast(p.real)),)


def scatter(
    p: Program,
    rows: Matrix,
    at: Callable[[Expr], Expr],
    out: Callable[[Expr, Expr, Expr], None],
    n: Expr,
    columns: Span,
) -> None:
    """A range of columns of n rows as rows: `out(j, at(i), x)` stores element (i, j)."""
    start, stop = columns
    tiles = p.let(ir.idiv(ir.maximum(ir.sub(stop, start), ZERO), const(TILE)))
    rest = p.let(ir.add(start, ir.mul(tiles, const(TILE))))
    with p.loop(ZERO, tiles) as tile:
        left = p.let(ir.add(start, ir.mul(tile, const(TILE))))
        with p.loop(ZERO, n) as i:
            place = p.let(at(i))
            for s in range(TILE):
                j = p.let(ir.add(left, const(s)))
                out(j, place, rows[i, j][0])
    with p.loop(rest, stop) as j, p.loop(ZERO, n) as i:
        out(j, p.let(at(i)), rows[i, j][0])
