"""Inverse of one lower triangular matrix per block by forward substitution, in registers of a
GPU."""

from __future__ import annotations

from numus.ir import Expr
from numus.kernels.factor.program import (
    Matrix,
    Program,
    Read,
    chosen,
    divided,
    inverse,
    minus_product,
    real,
    zero,
)
from numus.kernels.factor.registers.tiles import (
    RegisterMatrix,
    ThreadGrid,
    all_threads,
    steps_of,
    turn,
)


def lower_inverse(
    p: Program,
    grid: ThreadGrid,
    a: Read,
    n: Expr,
    shared: tuple[Matrix, Matrix],
    unit_diagonal: bool,
) -> RegisterMatrix:
    """Of the lower triangle of a. A column of it and a row of the inverse are in shared memory at a
    time."""
    l = RegisterMatrix(p, grid, grid.rows, lower=True)  # noqa: E741
    x = RegisterMatrix(p, grid, grid.rows, lower=True)
    with all_threads(p, grid) as t:
        l.fill(t, a, (n, n))
        x.fill_identity(t)
    column, row = shared
    for tile, own, k in steps_of(p, grid, n):
        slot = turn(p, k)
        with all_threads(p, grid) as t:
            with p.when(p.let(t.y.eq(own))):
                for r in range(tile, grid.rows):
                    column[slot, t.rows[r]] = l[r, tile]
            with p.when(p.let(t.x.eq(own))):
                for c in range(tile + 1):
                    row[slot, t.columns[c]] = x[tile, c]
        with all_threads(p, grid) as t:
            pivot = real(p, p.constant(1.0)) if unit_diagonal else p.number(column[slot, k])
            by = pivot if unit_diagonal else inverse(p, pivot)
            mine, below = p.let(t.x.eq(own)), p.let(t.x > own)
            left = {r: p.number(column[slot, t.rows[r]]) for r in range(tile, grid.rows)}
            left[tile] = p.number(chosen(below, left[tile], zero(p)))
            for c in range(tile + 1):
                across = p.number(divided(row[slot, t.columns[c]], pivot, by))
                for r in range(tile, grid.rows):
                    x[r, c] = minus_product(x[r, c], left[r], across)
                x[tile, c] = chosen(mine, across, x[tile, c])
    return x
