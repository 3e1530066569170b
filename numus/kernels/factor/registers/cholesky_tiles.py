"""Left-looking tile Cholesky as dataflow (Buttari et al. 2009): a block of a GPU per tile, which
waits by flags for those that its own depends on.

Blocks are numbered by columns of tiles and run in that order, so that all that one waits for have
started: panels are factorised while earlier updates go on elsewhere (look-ahead), in one kernel.
Tiles of L are kept twice: in the result, and packed for asynchronous copies as products load them.
Blocks on the diagonal keep the inverse of their tile, with which those below multiply.
"""

from __future__ import annotations

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
    zero,
)
from numus.kernels.factor.registers.tile_products import (
    GRID,
    SIDE,
    SLICES,
    NearTiles,
    TileProducts,
)
from numus.kernels.factor.registers.tiles import all_threads

WARP = 32


@dataclass(frozen=True)
class TileMemory:
    """Packed tiles in global memory, and the flags of those that are there; two tiles in shared
    memory."""

    tiles: ir.Buffer
    flags: ir.Buffer
    near: ir.Buffer


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
        self,
        p: Program,
        memory: TileMemory,
        place: Place,
        extents: tuple[Expr, Expr],
        out: Matrix,
        products: TileProducts,
    ) -> None:
        self.p, self.memory, self.place, self.out = p, memory, place, out
        self.products = products
        m, n = extents
        self.elements = SIDE * SIDE * p.components
        columns_of_square = place.columns
        beyond = p.let(place.i >= columns_of_square)
        after = ir.add(n, ir.mul(ir.sub(place.i, columns_of_square), const(SIDE)))
        self.row0 = p.let(ir.select(beyond, after, ir.mul(place.i, const(SIDE))))
        self.column0 = p.let(ir.mul(place.j, const(SIDE)))
        self.height = p.let(ir.sub(ir.select(beyond, m, n), self.row0))
        self.width = p.let(ir.sub(n, self.column0))
        self.is_diagonal = p.let(place.i.eq(place.j))
        other = ir.select(self.is_diagonal, ZERO, const(self.elements))
        self.near = NearTiles(memory.near, p.let(other))

    def run(self, a: Read) -> None:
        p, i, j = self.p, self.place.i, self.place.j
        with p.when(p.let(i < j)):
            self._write_zeros()
        with p.when(p.let(i >= j)):

            def element(x: Expr, y: Expr) -> Number:
                return a(ir.add(self.row0, x), ir.add(self.column0, y))

            self.products.fill(element, (self.height, self.width))
            with p.when(self.is_diagonal):
                self.products.begin_diagonal(self.near)
            self._subtract_products()
            with p.when(self.is_diagonal):
                self._factorise()
            with p.when(p.let(i > j)):
                self._solve()

    def _number(self, i: Expr, j: Expr) -> Expr:
        """Of a tile."""
        return ir.add(self.place.first, ir.add(ir.mul(i, self.place.columns), j))

    # -- products ---------------------------------------------------------------------------------

    def _subtract_products(self) -> None:
        """Those of tiles to the left of this one with those to the left of the diagonal, which are
        the same on the diagonal."""
        p, (i, j) = self.p, (self.place.i, self.place.j)
        with p.loop(ZERO, j) as k:
            mine, other = p.let(self._number(i, k)), p.let(self._number(j, k))
            self._await(mine, other)
            for s in range(SLICES):
                self._copy(ZERO, mine, s)
                with p.when(p.let(~self.is_diagonal)):
                    self._copy(const(self.elements), other, s)
                p.do(ir.AsyncCommit())
            for s in range(SLICES):
                p.do(ir.AsyncWait(SLICES - 1 - s))
                self.products.subtract(self.near, s, self.is_diagonal)

    def _await(self, *numbers: Expr) -> None:
        """Wait for tiles; then for all threads, before memory of the last ones is overwritten."""
        p, flags = self.p, self.memory.flags
        with all_threads(p, GRID) as t, p.when(p.let(t.number < const(WARP))):
            reads = [ir.FlagRead(n, 1, const(1), [p.variable(flags.dtype)]) for n in numbers]
            p.do(ir.SpinWait(flags, reads, acquire=True))
        p.do(ir.AsyncWait(0))

    def _copy(self, to: Expr, number: Expr, part: int) -> None:
        """A slice of a tile."""
        p, memory = self.p, self.memory
        vector, size = VECTOR_BYTES // p.real.itemsize, self.elements // SLICES
        start = p.let(ir.add(ir.mul(number, const(self.elements)), const(part * size)))
        to = ir.add(to, const(part * size))
        with all_threads(p, GRID) as t:
            for first in range(0, size, GRID.threads * vector):
                at = p.let(ir.add(ir.mul(t.number, const(vector)), const(first)))
                source, target = ir.add(start, at), ir.add(to, at)
                copied = const(vector), VECTOR_BYTES
                p.do(ir.AsyncCopy(memory.near, target, memory.tiles, source, *copied))

    # -- tiles on the diagonal, and below ---------------------------------------------------------

    def _factorise(self) -> None:
        order = self.p.let(ir.minimum(self.width, const(SIDE)))
        self.p.do(ir.AsyncWait(0))  # all threads have read the tile
        self.products.factorise(self.near, order)
        self.products.pack_inverse(self.memory.tiles, self._packed())
        self._publish()
        self.products.each_of_lower(self._write)

    def _solve(self) -> None:
        """What is left times the adjoint of the inverse on the diagonal."""
        p = self.p
        diagonal = p.let(self._number(self.place.j, self.place.j))
        p.do(ir.AsyncWait(0))  # all threads have read the tile
        self.products.stage(self.near)
        self._await(diagonal)
        for s in range(SLICES):
            self._copy(const(self.elements), diagonal, s)
            p.do(ir.AsyncCommit())
        for s in range(SLICES):
            p.do(ir.AsyncWait(SLICES - 1 - s))
            self.products.multiply(self.near, s)
        self.products.pack(self.memory.tiles, self._packed())
        self._publish()
        self.products.each(self._write)

    # -- results ----------------------------------------------------------------------------------

    def _packed(self) -> Expr:
        """The first element of this tile among the packed ones."""
        number = self._number(self.place.i, self.place.j)
        return self.p.let(ir.mul(number, const(self.elements)))

    def _publish(self) -> None:
        """Tell others that the packed tile is there: before the result is written, as they wait."""
        p, flags = self.p, self.memory.flags
        p.do(ir.AsyncWait(0))  # all threads have stored their part
        with all_threads(p, GRID) as t, p.when(p.let(t.number.eq(0))):
            number = self._number(self.place.i, self.place.j)
            p.do(ir.SetFlag(flags, number, const(1, flags.dtype), release=True))

    def _write(self, x: Expr, y: Expr, number: Number) -> None:
        """An element of the tile of the result."""
        with self.p.when(self.p.let((x < self.height) & (y < self.width))):
            self.out[ir.add(self.row0, x), ir.add(self.column0, y)] = number

    def _write_zeros(self) -> None:
        with all_threads(self.p, GRID) as t:
            for x in t.rows:
                for y in t.columns:
                    self._write(x, y, zero(self.p))
