"""A matrix per block of a GPU, in registers: a square grid of threads, over which rows and columns
are distributed cyclically (ScaLAPACK's layout, Dongarra & Walker 1995).

Thread (x, y) of a grid of side s holds elements (x + s r, y + s c). A step of a factorisation
passes through shared memory with a column and a row alone, and all threads update what they hold.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, const
from numus.kernels.factor.program import (
    ZERO,
    Matrix,
    Number,
    Program,
    Read,
    chosen,
    conjugate,
    minus_product,
    real,
    scaled,
    zero,
)

Registers = dict[tuple[int, int], list[ir.Register]]


@dataclass(frozen=True)
class ThreadGrid:
    """A grid of side² threads, each with tiles² elements."""

    side: int
    tiles: int

    @property
    def threads(self) -> int:
        return self.side * self.side

    @property
    def order(self) -> int:
        """The largest matrix."""
        return self.side * self.tiles


class Thread:
    """Places of one thread."""

    def __init__(self, p: Program, grid: ThreadGrid, number: Expr) -> None:
        side = const(grid.side)
        self.x, self.y = p.let(ir.idiv(number, side)), p.let(ir.irem(number, side))
        self.rows, self.columns = (
            [p.let(ir.add(at, const(grid.side * t))) for t in range(grid.tiles)]
            for at in (self.x, self.y)
        )


class RegisterMatrix:
    """The lower triangle of a matrix, by tiles of the grid."""

    def __init__(self, p: Program, grid: ThreadGrid) -> None:
        self.p, self.grid = p, grid
        self.tiles: Registers = {
            (r, c): [p.register(lanes=True) for _ in range(p.components)]
            for r in range(grid.tiles)
            for c in range(r + 1)
        }

    def __getitem__(self, at: tuple[int, int]) -> Number:
        return tuple(ir.reads(self.tiles[at]))

    def __setitem__(self, at: tuple[int, int], x: Number) -> None:
        self.p.do(*ir.sets(self.tiles[at], x))

    def fill(self, t: Thread, element: Callable[[Expr, Expr], Number], n: Expr | None) -> None:
        """All elements; zeros from row or column n on."""
        p = self.p
        for r, c in self.tiles:
            i, j = t.rows[r], t.columns[c]
            if n is None:
                self[r, c] = element(i, j)
                continue
            self[r, c] = zero(p)
            with p.when(p.let((i < n) & (j < n))):
                self[r, c] = element(i, j)


@contextlib.contextmanager
def all_threads(p: Program, grid: ThreadGrid) -> Iterator[Thread]:
    with p.lanes(ZERO, const(grid.threads)) as number:
        yield Thread(p, grid, number)


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
    l, x = RegisterMatrix(p, grid), RegisterMatrix(p, grid) if inverse else None  # noqa: E741
    with all_threads(p, grid) as t:

        def lower(i: Expr, j: Expr) -> Number:
            return chosen(j <= i, a(i, j), zero(p))

        l.fill(t, lower, n)
        if x is not None:
            one, none = p.constant(1.0), p.constant(0.0)
            x.fill(t, lambda i, j: real(p, ir.select(i.eq(j), one, none)), None)
    for tile in range(grid.tiles):
        start = const(grid.side * tile)
        count = p.let(ir.minimum(const(grid.side), ir.maximum(ir.sub(n, start), ZERO)))
        with p.loop(ZERO, count) as own:
            _step(p, grid, (l, x), shared, (tile, own))
    return l, x


def _step(
    p: Program,
    grid: ThreadGrid,
    matrices: tuple[RegisterMatrix, RegisterMatrix | None],
    shared: tuple[Matrix, Matrix],
    at: tuple[int, Expr],
) -> None:
    """Column k = side * tile + own of L, the rest less its product with itself."""
    (l, x), (column, row), (tile, own) = matrices, shared, at  # noqa: E741
    k = p.let(ir.add(const(grid.side * tile), own))
    with all_threads(p, grid) as t:
        with p.when(p.let(t.y.eq(own))):
            for r in range(tile, grid.tiles):
                column[ZERO, t.rows[r]] = l[r, tile]
        if x is not None:
            with p.when(p.let(t.x.eq(own))):
                for c in range(tile + 1):
                    row[ZERO, t.columns[c]] = x[tile, c]
    with all_threads(p, grid) as t:
        pivot = p.let(column[ZERO, k][0])
        positive = pivot > p.constant(0.0)
        root = p.let(ir.select(positive, ir.sqrt(pivot), p.constant(float("nan"))))
        by = p.let(p.constant(1.0) / root)
        below, right = p.let(t.x > own), p.let(t.y > own)
        left = {r: p.number(scaled(column[ZERO, t.rows[r]], by)) for r in range(tile, grid.tiles)}
        left[tile] = p.number(chosen(below, left[tile], zero(p)))
        for c in range(tile, grid.tiles):
            above = p.number(conjugate(scaled(column[ZERO, t.columns[c]], by)))
            if c == tile:
                above = p.number(chosen(right, above, zero(p)))
            for r in range(c, grid.tiles):
                l[r, c] = minus_product(l[r, c], left[r], above)
        with p.when(p.let(t.y.eq(own))):
            for r in range(tile + 1, grid.tiles):
                l[r, tile] = left[r]
            with p.when(below):
                l[tile, tile] = left[tile]
            with p.when(p.let(t.x.eq(own))):
                l[tile, tile] = real(p, root)
        if x is not None:
            mine = p.let(t.x.eq(own))
            for c in range(tile + 1):
                across = p.number(scaled(row[ZERO, t.columns[c]], by))
                for r in range(tile, grid.tiles):
                    x[r, c] = minus_product(x[r, c], left[r], across)
                x[tile, c] = chosen(mine, across, x[tile, c])


def write_lower(
    p: Program, grid: ThreadGrid, x: RegisterMatrix, out: Matrix, n: Expr, first: Expr = ZERO
) -> None:
    """A lower triangle, zeros above it, in columns of a result from `first` on."""
    with all_threads(p, grid) as t:
        for r in range(grid.tiles):
            for c in range(grid.tiles):
                i, j = t.rows[r], t.columns[c]
                with p.when(p.let((i < n) & (j < n))):
                    found = chosen(j <= i, x[r, c], zero(p)) if c <= r else zero(p)
                    out[i, ir.add(first, j)] = found
