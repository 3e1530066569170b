"""Right-looking Cholesky factorisation of one matrix per block, in registers of a GPU."""

from __future__ import annotations

from numus import ir
from numus.ir import Expr
from numus.kernels.factor.program import (
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
from numus.kernels.factor.registers.tiles import (
    RegisterMatrix,
    ThreadGrid,
    all_threads,
    steps_of,
    turn,
)


def cholesky(
    p: Program,
    grid: ThreadGrid,
    a: Read,
    n: Expr,
    shared: tuple[Matrix, Matrix],
    inverse: bool,
) -> tuple[RegisterMatrix, RegisterMatrix | None]:
    """L of the lower triangle of a, and its inverse on demand; columns of L are NaN from a pivot on
    that is not positive. A column of L and a row of the inverse are in shared memory at a time."""
    l = RegisterMatrix(p, grid, grid.rows, lower=True)  # noqa: E741
    x = RegisterMatrix(p, grid, grid.rows, lower=True) if inverse else None
    with all_threads(p, grid) as t:
        l.fill(t, lambda i, j: chosen(j <= i, a(i, j), zero(p)), (n, n))
        if x is not None:
            x.fill_identity(t)
    for at in steps_of(p, grid, n):
        _step(p, grid, (l, x), shared, at)
    return l, x


def _step(
    p: Program,
    grid: ThreadGrid,
    matrices: tuple[RegisterMatrix, RegisterMatrix | None],
    shared: tuple[Matrix, Matrix],
    at: tuple[int, Expr, Expr],
) -> None:
    """Column k of L, the rest less its product with itself."""
    (l, x), (column, row), (tile, own, k) = matrices, shared, at  # noqa: E741
    slot = turn(p, k)
    with all_threads(p, grid) as t:
        with p.when(p.let(t.y.eq(own))):
            for r in range(tile, grid.rows):
                column[slot, t.rows[r]] = l[r, tile]
        if x is not None:
            with p.when(p.let(t.x.eq(own))):
                for c in range(tile + 1):
                    row[slot, t.columns[c]] = x[tile, c]
    with all_threads(p, grid) as t:
        pivot = p.let(column[slot, k][0])
        positive = pivot > p.constant(0.0)
        root = p.let(ir.select(positive, ir.sqrt(pivot), p.constant(float("nan"))))
        by = p.let(p.constant(1.0) / root)
        below, right = p.let(t.x > own), p.let(t.y > own)
        left = {r: p.number(scaled(column[slot, t.rows[r]], by)) for r in range(tile, grid.rows)}
        left[tile] = p.number(chosen(below, left[tile], zero(p)))
        for c in range(tile, grid.rows):
            above = p.number(conjugate(scaled(column[slot, t.columns[c]], by)))
            if c == tile:
                above = p.number(chosen(right, above, zero(p)))
            for r in range(c, grid.rows):
                l[r, c] = minus_product(l[r, c], left[r], above)
        with p.when(p.let(t.y.eq(own))):
            for r in range(tile + 1, grid.rows):
                l[r, tile] = left[r]
            with p.when(below):
                l[tile, tile] = left[tile]
            with p.when(p.let(t.x.eq(own))):
                l[tile, tile] = real(p, root)
        if x is not None:
            mine = p.let(t.x.eq(own))
            for c in range(tile + 1):
                across = p.number(scaled(row[slot, t.columns[c]], by))
                for r in range(tile, grid.rows):
                    x[r, c] = minus_product(x[r, c], left[r], across)
                x[tile, c] = chosen(mine, across, x[tile, c])


def write_lower(
    p: Program, grid: ThreadGrid, x: RegisterMatrix, out: Matrix, n: Expr, first: Expr = ZERO
) -> None:
    """A lower triangle, zeros above it, in columns of a result from `first` on."""
    with all_threads(p, grid) as t:
        for r in range(grid.rows):
            for c in range(grid.rows):
                i, j = t.rows[r], t.columns[c]
                with p.when(p.let((i < n) & (j < n))):
                    found = chosen(j <= i, x[r, c], zero(p)) if c <= r else zero(p)
                    out[i, ir.add(first, j)] = found
