"""Left-looking tile Cholesky as dataflow (Buttari et al. 2009): a block of a GPU per tile, which
waits by flags for those that its own depends on.

Blocks are numbered by columns of tiles and run in that order, so that all that one waits for have
started: panels are factorised while earlier updates go on elsewhere (look-ahead), in one kernel.
Tiles of L are kept twice: in the result, and packed for asynchronous copies, a column of a tile
after the other, with the rows of a thread side by side. Blocks on the diagonal keep the inverse of
their tile, with which those below multiply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, const
from numus.kernels.factor.program import (
    VECTOR_BYTES,
    ZERO,
    Matrix,
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
UNROLL = 4  # columns
GRID = ThreadGrid(16, 16, SIDE // 16, SIDE // 16)
WARP = 32

Combine = Callable[[Number, Number, Number], Number]


@dataclass(frozen=True)
class TileMemory:
    """Packed tiles in global memory, and the flags of those that are there; the tile of a block and
    one beside it in shared memory; what steps of factorisations in registers share."""

    tiles: ir.Buffer
    flags: ir.Buffer
    left: ir.Buffer
    right: ir.Buffer
    step: Shared


@dataclass(frozen=True)
class Place:
    """The tile of a block, and how many `rows` and `columns` of tiles there are; `first` is the
    number of the first tile of its matrix."""

    i: Expr
    j: Expr
    rows: Expr
    columns: Expr
    first: Expr


class TileOfCholesky:
    """One of the first n columns of L, of a matrix (m, n): rows beyond n are multiplied by L⁻ᴴ."""

    def __init__(
        self, p: Program, memory: TileMemory, place: Place, extents: tuple[Expr, Expr], out: Matrix
    ) -> None:
        self.p, self.memory, self.place, self.out = p, memory, place, out
        m, n = extents
        self.elements = SIDE * SIDE * p.components
        columns_of_square = place.columns
        beyond = p.let(place.i >= columns_of_square)
        after = ir.add(n, ir.mul(ir.sub(place.i, columns_of_square), const(SIDE)))
        self.row0 = p.let(ir.select(beyond, after, ir.mul(place.i, const(SIDE))))
        self.column0 = p.let(ir.mul(place.j, const(SIDE)))
        self.height = p.let(ir.sub(ir.select(beyond, m, n), self.row0))
        self.width = p.let(ir.sub(n, self.column0))
        self.sums = RegisterMatrix(p, GRID, GRID.columns)

    def run(self, a: Read) -> None:
        p, i, j = self.p, self.place.i, self.place.j
        with p.when(p.let(i < j)):
            self._write(lambda r, c, t: zero(p))
        with p.when(p.let(i >= j)):
            with all_threads(p, GRID) as t:

                def element(x: Expr, y: Expr) -> Number:
                    return a(ir.add(self.row0, x), ir.add(self.column0, y))

                self.sums.fill(t, element, (self.height, self.width))
            self._subtract_products()
            with p.when(p.let(i.eq(j))):
                self._factorise()
            with p.when(p.let(i > j)):
                self._solve()

    def _number(self, i: Expr, j: Expr) -> Expr:
        """Of a tile."""
        return ir.add(self.place.first, ir.add(ir.mul(i, self.place.columns), j))

    # -- products ---------------------------------------------------------------------------------

    def _subtract_products(self) -> None:
        """Those of tiles to the left of this one with those to the left of the diagonal."""
        p, (i, j) = self.p, (self.place.i, self.place.j)
        with p.loop(ZERO, j) as k:
            mine, other = p.let(self._number(i, k)), p.let(self._number(j, k))
            self._await(mine, other)
            for s in range(SLICES):
                self._copy(self.memory.left, mine, s)
                self._copy(self.memory.right, other, s)
                p.do(ir.AsyncCommit())
            for s in range(SLICES):
                p.do(ir.AsyncWait(SLICES - 1 - s))
                with all_threads(p, GRID) as t:
                    self._subtract_slice(t, s * SLICE)

    def _subtract_slice(self, t: Thread, first: int) -> None:
        """On the diagonal of the lower tiles of a thread alone, as others wait for these."""
        p, is_diagonal = self.p, self.place.i.eq(self.place.j)
        with p.when(p.let(is_diagonal)):
            self._add(self.sums, t, first, SLICE, minus_product, _TILES_BELOW)
        with p.when(p.let(~is_diagonal)):
            self._add(self.sums, t, first, SLICE, minus_product, _TILES)

    def _await(self, *numbers: Expr) -> None:
        """Wait for tiles; then for all threads, before memory of the last ones is overwritten."""
        p, flags = self.p, self.memory.flags
        with all_threads(p, GRID) as t, p.when(p.let(t.number < const(WARP))):
            reads = [ir.FlagRead(n, 1, const(1), [p.variable(flags.dtype)]) for n in numbers]
            p.do(ir.SpinWait(flags, reads, acquire=True))
        p.do(ir.AsyncWait(0))

    def _copy(self, to: ir.Buffer, number: Expr, part: int) -> None:
        """A slice of a tile."""
        p, memory = self.p, self.memory
        vector, size = VECTOR_BYTES // p.real.itemsize, self.elements // SLICES
        start = p.let(ir.add(ir.mul(number, const(self.elements)), const(part * size)))
        with all_threads(p, GRID) as t:
            for first in range(0, size, GRID.threads * vector):
                at = p.let(ir.add(ir.mul(t.number, const(vector)), const(first)))
                source, target = ir.add(start, at), ir.add(const(part * size), at)
                p.do(ir.AsyncCopy(to, target, memory.tiles, source, const(vector), VECTOR_BYTES))

    def _loaded(self, source: ir.Buffer, thread: Expr, k: Expr) -> list[Number]:
        p = self.p
        parts = [ir.load(source, at) for at in self._places(thread, k)]
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
        to: RegisterMatrix,
        t: Thread,
        first: int,
        count: int,
        combine: Combine,
        tiles: list[tuple[int, int]],
    ) -> None:
        """Products of `count` columns of the tiles in shared memory, to `tiles` of a thread."""
        p = self.p
        with p.loop(ZERO, const(count // UNROLL)) as step:
            start = p.let(ir.add(ir.mul(step, const(UNROLL)), const(first)))
            for u in range(UNROLL):
                k = ir.add(start, const(u))
                rows = self._loaded(self.memory.left, t.x, k)
                for c, y in enumerate(self._loaded(self.memory.right, t.y, k)):
                    other = conjugate(y)
                    for r, x in enumerate(rows):
                        if (r, c) in tiles:
                            to[r, c] = combine(to[r, c], x, other)

    # -- tiles on the diagonal, and below ---------------------------------------------------------

    def _factorise(self) -> None:
        p, memory = self.p, self.memory
        lower = RegisterMatrix(p, GRID, GRID.rows, lower=True)
        inverse = RegisterMatrix(p, GRID, GRID.rows, lower=True)
        with all_threads(p, GRID) as t:
            lower.fill(t, lambda x, y: zero(p))
            for r, c in lower.tiles:
                lower[r, c] = chosen(t.columns[c] <= t.rows[r], self.sums[r, c], zero(p))
            invertible(p, t, lower, self.width)
            inverse.fill_identity(t)
        order = p.let(ir.minimum(self.width, const(SIDE)))
        factorise(p, GRID, (lower, inverse), order, memory.step)

        def element(x: RegisterMatrix, r: int, c: int, t: Thread) -> Number:
            if c > r:
                return zero(p)
            return p.number(chosen(t.columns[c] <= t.rows[r], x[r, c], zero(p)))

        with all_threads(p, GRID) as t:
            self._pack(t, lambda r, c: element(inverse, r, c, t))
        self._publish()
        self._write(lambda r, c, t: element(lower, r, c, t))

    def _solve(self) -> None:
        """What is left times the adjoint of the inverse on the diagonal."""
        p, memory = self.p, self.memory
        diagonal = p.let(self._number(self.place.j, self.place.j))
        found = RegisterMatrix(p, GRID, GRID.columns)
        self._await(diagonal)
        for s in range(SLICES):
            self._copy(memory.right, diagonal, s)
        p.do(ir.AsyncCommit())
        with all_threads(p, GRID) as t:
            found.fill(t, lambda x, y: zero(p))
            for c, k in enumerate(t.columns):
                self._store(memory.left, self._places(t.x, k), [self.sums[r, c] for r in _ROWS])
        p.do(ir.AsyncWait(0))
        with all_threads(p, GRID) as t:
            for s in range(SLICES):  # the inverse is a lower triangle
                tiles = [(r, c) for r, c in _TILES if c >= s * SLICE // GRID.across]
                self._add(found, t, s * SLICE, SLICE, plus_product, tiles)
        with all_threads(p, GRID) as t:
            self._pack(t, lambda r, c: found[r, c])
        self._publish()
        self._write(lambda r, c, t: found[r, c])

    # -- results ----------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Tell others that the packed tile is there: before the result is written, as they wait."""
        p, flags = self.p, self.memory.flags
        p.do(ir.AsyncWait(0))  # all threads have stored their part
        with all_threads(p, GRID) as t, p.when(p.let(t.number.eq(0))):
            number = self._number(self.place.i, self.place.j)
            p.do(ir.SetFlag(flags, number, const(1, flags.dtype), release=True))

    def _pack(self, t: Thread, element: Callable[[int, int], Number]) -> None:
        start = ir.mul(self._number(self.place.i, self.place.j), const(self.elements))
        start = self.p.let(start)
        for c, k in enumerate(t.columns):
            places = [ir.add(start, at) for at in self._places(t.x, k)]
            self._store(self.memory.tiles, places, [element(r, c) for r in _ROWS])

    def _store(self, to: ir.Buffer, places: list[Expr], numbers: list[Number]) -> None:
        """In vectors."""
        parts = self.p.number([part for number in numbers for part in number])
        width = min(len(parts), VECTOR_BYTES // self.p.real.itemsize)
        for at, (place, part) in enumerate(zip(places, parts, strict=True)):
            vector = width if at % width == 0 else 0
            self.p.do(ir.Store(to, place, part, vector=vector))

    def _write(self, element: Callable[[int, int, Thread], Number]) -> None:
        """The tile of the result."""
        p = self.p
        with all_threads(p, GRID) as t:
            for r, c in self.sums.tiles:
                x, y = t.rows[r], t.columns[c]
                with p.when(p.let((x < self.height) & (y < self.width))):
                    self.out[ir.add(self.row0, x), ir.add(self.column0, y)] = element(r, c, t)


_ROWS = range(GRID.rows)
_TILES = [(r, c) for r in _ROWS for c in range(GRID.columns)]
_TILES_BELOW = [(r, c) for r, c in _TILES if c <= r]
