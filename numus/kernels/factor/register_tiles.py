"""A matrix per block of a GPU, in registers: a square grid of threads, over which rows and columns
are distributed cyclically (ScaLAPACK's layout, Dongarra & Walker 1995).

Thread (x, y) of a grid of side s holds elements (x + s r, y + s c). A step of a factorisation
passes through shared memory with a column and a row alone, and all threads update what they hold.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, const
from numus.kernels.factor.program import ZERO, Number, Program, Read, real, zero

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
        side, self.number = const(grid.side), number
        self.x, self.y = p.let(ir.idiv(number, side)), p.let(ir.irem(number, side))
        self.rows, self.columns = (
            [p.let(ir.add(at, const(grid.side * t))) for t in range(grid.tiles)]
            for at in (self.x, self.y)
        )


class RegisterMatrix:
    """A matrix, or the tiles of its lower triangle, that a grid of threads holds."""

    def __init__(self, p: Program, grid: ThreadGrid, columns: int, lower: bool = False) -> None:
        """`columns` of tiles."""
        self.p = p
        self.tiles: Registers = {
            (r, c): [p.register(lanes=True) for _ in range(p.components)]
            for r in range(grid.tiles)
            for c in range(r + 1 if lower else columns)
        }

    def __getitem__(self, at: tuple[int, int]) -> Number:
        return tuple(ir.reads(self.tiles[at]))

    def __setitem__(self, at: tuple[int, int], x: Number) -> None:
        self.p.do(*ir.sets(self.tiles[at], x))

    def fill(self, t: Thread, element: Read, extents: tuple[Expr, Expr] | None = None) -> None:
        """All elements; zeros beyond the extents."""
        p = self.p
        for r, c in self.tiles:
            i, j = t.rows[r], t.columns[c]
            if extents is None:
                self[r, c] = element(i, j)
                continue
            self[r, c] = zero(p)
            with p.when(p.let((i < extents[0]) & (j < extents[1]))):
                self[r, c] = element(i, j)

    def fill_identity(self, t: Thread) -> None:
        p = self.p
        one, none = p.constant(1.0), p.constant(0.0)
        self.fill(t, lambda i, j: real(p, ir.select(i.eq(j), one, none)))


@contextlib.contextmanager
def all_threads(p: Program, grid: ThreadGrid) -> Iterator[Thread]:
    with p.lanes(ZERO, const(grid.threads)) as number:
        yield Thread(p, grid, number)


def steps_of(p: Program, grid: ThreadGrid, n: Expr) -> Iterator[tuple[int, Expr]]:
    """The steps 0 … n - 1, each as the tile and the thread of the grid that hold it: in a loop per
    tile, within which the caller writes one."""
    for tile in range(grid.tiles):
        with p.loop(ZERO, steps_in(p, grid, tile, n)) as own:
            yield tile, own


def steps_in(p: Program, grid: ThreadGrid, tile: int, n: Expr) -> Expr:
    """How many steps of n are in a tile."""
    rest = ir.maximum(ir.sub(n, const(grid.side * tile)), ZERO)
    return p.let(ir.minimum(const(grid.side), rest))
