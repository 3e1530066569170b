"""Products of tiles of Cholesky factorisations by float64 tensor cores (mma.sync)."""

from __future__ import annotations

from numus import ir
from numus.ir import Expr
from numus.kernels.factor.program import ZERO, Program, Read, zero
from numus.kernels.factor.registers.tile_diagonal import DiagonalTile
from numus.kernels.factor.registers.tile_fragments import (
    BLOCK,
    COLUMNS,
    PAIR,
    ROWS,
    WARPS_ACROSS,
    Accumulators,
    FragmentLayout,
    Lane,
    numbers,
)
from numus.kernels.factor.registers.tile_products import SLICE, NearTiles, Visit

Tile = list[list[Accumulators]]  # by blocks of columns, and parts of numbers


class MmaProducts:
    """Of a warp, two blocks of rows and every other block of columns."""

    def __init__(self, p: Program) -> None:
        self.p, self.layout = p, FragmentLayout(p)
        self.sums, self.found = self._tile(), self._tile()

    def _tile(self) -> Tile:
        parts = range(self.p.components)
        return [[self.layout.accumulators() for _ in parts] for _ in range(COLUMNS)]

    def fill(self, a: Read, extents: tuple[Expr, Expr]) -> None:
        """Minus what is left, which products are added to."""
        p = self.p
        for lane in self.layout.lanes():
            for c, r in self.layout.blocks():
                for q in range(PAIR):
                    i, j = self.layout.place(lane, c, r, q)
                    registers = [part[PAIR * r + q] for part in self.sums[c]]
                    p.do(*ir.sets(registers, zero(p)))
                    with p.when(p.let((i < extents[0]) & (j < extents[1]))):
                        p.do(*ir.sets(registers, tuple(-part for part in a(i, j))))

    def subtract(self, near: NearTiles, part: int, lower: Expr) -> None:
        self._add(self.sums, near, part, triangle=False)

    def multiply(self, near: NearTiles, part: int) -> None:
        self._add(self.found, near, part, triangle=True)

    def _add(self, to: Tile, near: NearTiles, part: int, triangle: bool) -> None:
        """Products of the blocks k of a slice; of a `triangle`, those up to the diagonal."""
        layout, parts = self.layout, range(self.p.components)
        for lane in layout.lanes():

            def block(start: Expr, row: Expr, k: int, lane: Lane = lane) -> list[list[Expr]]:
                firsts = [layout.first(row, ir.const(k), q, lane.at) for q in parts]
                return [layout.load(near.buffer, ir.add(start, first)) for first in firsts]

            for k in range(part * SLICE // BLOCK, (part + 1) * SLICE // BLOCK):
                rows = [block(ZERO, lane.row(r), k) for r in range(ROWS)]
                for c in range(k // WARPS_ACROSS if triangle else 0, COLUMNS):
                    layout.multiply(to[c], rows, block(near.other, lane.column(c), k))

    # -- packed tiles -----------------------------------------------------------------------------

    def stage(self, near: NearTiles) -> None:
        p = self.p
        for lane in self.layout.lanes():
            for column in self.found:
                for registers in column:
                    p.do(*ir.sets(registers, (p.constant(0.0),) * len(registers)))
            self._store(near.buffer, ZERO, lane, self.sums, minus=True)

    def pack(self, tiles: ir.Buffer, start: Expr) -> None:
        for lane in self.layout.lanes():
            self._store(tiles, start, lane, self.found)

    def _store(self, to: ir.Buffer, start: Expr, lane: Lane, of: Tile, minus: bool = False) -> None:
        for c, r in self.layout.blocks():
            for part, registers in enumerate(of[c]):
                at = self.layout.first(lane.row(r), lane.column(c), part, lane.at)
                pair = ir.reads(registers[PAIR * r : PAIR * (r + 1)])
                pair = [-x for x in pair] if minus else pair
                self.layout.store(to, ir.add(start, at), pair)

    def each(self, visit: Visit) -> None:
        for lane in self.layout.lanes():
            for c, r in self.layout.blocks():
                for q, number in enumerate(numbers(self.found[c], r)):
                    visit(*self.layout.place(lane, c, r, q), number)

    # -- on the diagonal --------------------------------------------------------------------------

    def begin_diagonal(self, near: NearTiles) -> None:
        self.diagonal = DiagonalTile(self.layout, near)
        self.diagonal.begin()

    def factorise(self, near: NearTiles, order: Expr) -> None:
        for lane in self.layout.lanes():
            self._store(near.buffer, ZERO, lane, self.sums, minus=True)
        self.diagonal.run(order)

    def pack_inverse(self, tiles: ir.Buffer, start: Expr) -> None:
        self.diagonal.pack_inverse(tiles, start)

    def each_of_lower(self, visit: Visit) -> None:
        self.diagonal.each(visit)
