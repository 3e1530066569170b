"""A matrix per block of a GPU, in registers: a grid of threads, over which rows and columns are
distributed cyclically (ScaLAPACK's layout, Dongarra & Walker 1995).

Thread (x, y) of a square grid of side s holds elements (x + s r, y + s c). A factorisation passes
through shared memory with a column and a row at a time; all threads update what they hold.
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
    """A grid of threads, `down` × `across`, each with `rows` × `columns` elements. Threads of a row
    are adjacent, or with `columns_first` those of a column."""

    down: int
    across: int
    rows: int
    columns: int
    columns_first: bool = False

    @property
    def threads(self) -> int:
        return self.down * self.across

    @property
    def extents(self) -> tuple[int, int]:
        """Those of the largest matrix."""
        return self.down * self.rows, self.across * self.columns


class Thread:
    """Places of one thread."""

    def __init__(self, p: Program, grid: ThreadGrid, number: Expr) -> None:
        length = const(grid.down if grid.columns_first else grid.across)
        line, place = p.let(ir.idiv(number, length)), p.let(ir.irem(number, length))
        self.number = number
        self.x, self.y = (place, line) if grid.columns_first else (line, place)
        self.rows = [p.let(ir.add(self.x, const(grid.down * t))) for t in range(grid.rows)]
        self.columns = [p.let(ir.add(self.y, const(grid.across * t))) for t in range(grid.columns)]


class RegisterMatrix:
    """A matrix, or the tiles of its lower triangle, that a grid of threads holds."""

    def __init__(self, p: Program, grid: ThreadGrid, columns: int, lower: bool = False) -> None:
        """`columns` of tiles."""
        self.p = p
        self.tiles: Registers = {
            (r, c): [p.register(lanes=True) for _ in range(p.components)]
            for r in range(grid.rows)
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


def steps_of(
    p: Program, grid: ThreadGrid, n: Expr, backwards: bool = False
) -> Iterator[tuple[int, Expr, Expr]]:
    """The steps k = 0 … n - 1, or backwards, each with the tile and the thread across the grid that
    hold column k: in a loop per tile, within which the caller writes one."""
    for tile in reversed(range(grid.columns)) if backwards else range(grid.columns):
        start = const(grid.across * tile)
        rest = ir.maximum(ir.sub(n, start), ZERO)
        count = p.let(ir.minimum(const(grid.across), rest))
        with p.loop(ZERO, count) as number:
            own = p.let(ir.sub(ir.sub(count, const(1)), number)) if backwards else number
            yield tile, own, p.let(ir.add(start, own))


def turn(p: Program, k: Expr, backwards: bool = False) -> Expr:
    """Which of two vectors in shared memory a step uses: others may still read the one of the step
    before. Steps that go backwards begin with another than those forwards ended with."""
    return p.let(ir.irem(ir.add(k, const(1)) if backwards else k, const(2)))
