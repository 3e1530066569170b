"""Products of tiles of Cholesky factorisations in registers of a thread grid (SIMT).

A packed tile has a column after the other, with the rows of a thread side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from numus import ir
from numus.ir import Expr, const
from numus.kernels.factor.program import (
    VECTOR_BYTES,
    ZERO,
    Number,
    Program,
    Read,
    chosen,
    conjugate,
    minus_product,
    plus_product,
    zero,
)
from numus.kernels.factor.registers.cholesky import Shared, factorise, invertible
from numus.kernels.factor.registers.tiles import RegisterMatrix, Thread, ThreadGrid, all_threads

SIDE = 64  # rows and columns of a tile
SLICES = 4  # of its columns, which are copied one after the other
SLICE = SIDE // SLICES
GRID = ThreadGrid(16, 16, SIDE // 16, SIDE // 16)
_UNROLL = 4  # columns

Combine = Callable[[Number, Number, Number], Number]
Element = Callable[[int, int, Thread], Number]
Visit = Callable[[Expr, Expr, Number], None]


@dataclass(frozen=True)
class NearTiles:
    """Two packed tiles in shared memory: that of a block, and one that it is multiplied by, which
    is the same on the diagonal."""

    buffer: ir.Buffer
    other: Expr  # its first element


class TileProducts(Protocol):
    """The tile of a block: what is left of it, then what is found. `part` is a slice of columns."""

    def fill(self, a: Read, extents: tuple[Expr, Expr]) -> None:
        """Of a matrix; zeros beyond the extents."""

    def subtract(self, near: NearTiles, part: int, lower: Expr) -> None:
        """The product with an adjoint; where only the `lower` triangle is of use, of that."""

    def stage(self, near: NearTiles) -> None:
        """Keep what is left in shared memory, as the first operand of `multiply`."""

    def multiply(self, near: NearTiles, part: int) -> None:
        """Add to what is found the product with the adjoint of a lower triangle."""

    def pack(self, tiles: ir.Buffer, start: Expr) -> None:
        """Store what is found."""

    def begin_diagonal(self, near: NearTiles) -> None:
        """What can be done of `factorise` before products: the second tile is free."""

    def factorise(self, near: NearTiles, order: Expr) -> None:
        """L of what is left on the diagonal, and its inverse; those of an identity beyond the
        `order`."""

    def pack_inverse(self, tiles: ir.Buffer, start: Expr) -> None: ...

    def each_of_lower(self, visit: Visit) -> None:
        """Visit all of L, with zeros above its diagonal."""

    def each(self, visit: Visit) -> None:
        """Visit all that is found, by rows and columns."""


class GridProducts:
    """Of a thread, an element of every 16 × 16."""

    def __init__(self, p: Program, step: Shared) -> None:
        self.p, self.step = p, step
        self.lower, self.inverse = (
            RegisterMatrix(p, GRID, GRID.rows, lower=True) for _ in range(2)
        )
        self.sums = RegisterMatrix(p, GRID, GRID.columns)
        self.found = RegisterMatrix(p, GRID, GRID.columns)

    def fill(self, a: Read, extents: tuple[Expr, Expr]) -> None:
        with all_threads(self.p, GRID) as t:
            self.sums.fill(t, a, extents)

    def subtract(self, near: NearTiles, part: int, lower: Expr) -> None:
        """On the diagonal of the lower tiles of a thread alone, as others wait for these."""
        p = self.p
        with all_threads(p, GRID) as t:
            with p.when(lower):
                self._add(near, self.sums, t, part, minus_product, _TILES_BELOW)
            with p.when(p.let(~lower)):
                self._add(near, self.sums, t, part, minus_product, _TILES)

    def stage(self, near: NearTiles) -> None:
        p = self.p
        with all_threads(p, GRID) as t:
            self.found.fill(t, lambda x, y: zero(p))
            for c, k in enumerate(t.columns):
                self._store(near.buffer, self._places(t.x, k), [self.sums[r, c] for r in _ROWS])

    def multiply(self, near: NearTiles, part: int) -> None:
        with all_threads(self.p, GRID) as t:
            tiles = [(r, c) for r, c in _TILES if c >= part * SLICE // GRID.across]
            self._add(near, self.found, t, part, plus_product, tiles)

    def pack(self, tiles: ir.Buffer, start: Expr) -> None:
        self._pack(tiles, start, lambda r, c, t: self.found[r, c])

    def _pack(self, tiles: ir.Buffer, start: Expr, element: Element) -> None:
        with all_threads(self.p, GRID) as t:
            for c, k in enumerate(t.columns):
                places = [ir.add(start, at) for at in self._places(t.x, k)]
                self._store(tiles, places, [element(r, c, t) for r in _ROWS])

    def begin_diagonal(self, near: NearTiles) -> None:
        pass

    def factorise(self, near: NearTiles, order: Expr) -> None:
        p, lower = self.p, self.lower
        with all_threads(p, GRID) as t:
            lower.fill(t, lambda x, y: zero(p))
            for r, c in lower.tiles:
                lower[r, c] = chosen(t.columns[c] <= t.rows[r], self.sums[r, c], zero(p))
            invertible(p, t, lower, order)
            self.inverse.fill_identity(t)
        factorise(p, GRID, (lower, self.inverse), order, self.step)

    def pack_inverse(self, tiles: ir.Buffer, start: Expr) -> None:
        self._pack(tiles, start, lambda r, c, t: self._of_triangle(self.inverse, r, c, t))

    def each_of_lower(self, visit: Visit) -> None:
        with all_threads(self.p, GRID) as t:
            for r, c in _TILES:
                visit(t.rows[r], t.columns[c], self._of_triangle(self.lower, r, c, t))

    def _of_triangle(self, x: RegisterMatrix, r: int, c: int, t: Thread) -> Number:
        p = self.p
        if c > r:
            return zero(p)
        return p.number(chosen(t.columns[c] <= t.rows[r], x[r, c], zero(p)))

    def each(self, visit: Visit) -> None:
        with all_threads(self.p, GRID) as t:
            for r, c in self.found.tiles:
                visit(t.rows[r], t.columns[c], self.found[r, c])

    def _loaded(self, source: ir.Buffer, start: Expr, thread: Expr, k: Expr) -> list[Number]:
        p = self.p
        parts = [ir.load(source, ir.add(start, at)) for at in self._places(thread, k)]
        names = p.vector_loads(parts)
        return [tuple(names[q : q + p.components]) for q in range(0, len(names), p.components)]

    def _places(self, thread: Expr, k: Expr) -> list[Expr]:
        """Of the numbers of a thread's rows in column k of a packed tile: they are adjacent."""
        count = GRID.rows * self.p.components
        line = ir.mul(k, const(SIDE * self.p.components))
        first = ir.add(line, ir.mul(thread, const(count)))
        return [ir.add(first, const(q)) for q in range(count)]

    def _add(
        self,
        near: NearTiles,
        to: RegisterMatrix,
        t: Thread,
        part: int,
        combine: Combine,
        tiles: list[tuple[int, int]],
    ) -> None:
        """Products of columns of the tiles in shared memory, to `tiles` of a thread."""
        p = self.p
        with p.loop(ZERO, const(SLICE // _UNROLL)) as step:
            start = p.let(ir.add(ir.mul(step, const(_UNROLL)), const(part * SLICE)))
            for u in range(_UNROLL):
                k = ir.add(start, const(u))
                rows = self._loaded(near.buffer, ZERO, t.x, k)
                for c, y in enumerate(self._loaded(near.buffer, near.other, t.y, k)):
                    other = conjugate(y)
                    for r, x in enumerate(rows):
                        if (r, c) in tiles:
                            to[r, c] = combine(to[r, c], x, other)

    def _store(self, to: ir.Buffer, places: list[Expr], numbers: list[Number]) -> None:
        """In vectors."""
        parts = self.p.number([part for number in numbers for part in number])
        width = min(len(parts), VECTOR_BYTES // self.p.real.itemsize)
        for at, (place, part) in enumerate(zip(places, parts, strict=True)):
            vector = width if at % width == 0 else 0
            self.p.do(ir.Store(to, place, part, vector=vector))


_ROWS = range(GRID.rows)
_TILES = [(r, c) for r in _ROWS for c in range(GRID.columns)]
_TILES_BELOW = [(r, c) for r, c in _TILES if c <= r]
