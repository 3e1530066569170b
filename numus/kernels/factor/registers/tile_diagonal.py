"""Cholesky factorisation and inversion of a tile in shared memory, by float64 tensor cores.

Rows of L and, below them, those of Y = L⁻ᴴ are one matrix of 128 rows: both are substituted by the
same blocks of the diagonal and less the same products, right-looking by blocks of 8 columns. Each
thread of a row factorises the block on the diagonal for itself, so that pivots do not wait for
other threads.
"""

from __future__ import annotations

from collections.abc import Callable

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.program import (
    ONE,
    ZERO,
    Number,
    chosen,
    conjugate,
    fma,
    minus_product,
    over_exact_root,
    over_root,
    scaled,
    zero,
)
from numus.kernels.factor.registers.tile_fragments import (
    BLOCK,
    BLOCKS,
    PAIR,
    ROWS,
    WARP,
    Accumulators,
    FragmentLayout,
    Lane,
)
from numus.kernels.factor.registers.tile_products import GRID, SIDE, NearTiles, Visit
from numus.kernels.factor.registers.tiles import all_threads

TINY_EXPONENT = 23  # the biased one of 2⁻¹⁰⁰⁰: of smaller pivots, roots are not approximated
_ROWS_AT_ONCE = (BLOCKS + 1) * BLOCK  # of L and Y that are not zero in columns of a block
_WARPS_OF_ROWS = 4  # each has two blocks of rows
_ROUNDS = 2  # of updates whose loads are in flight together

OverRoot = Callable[[Expr], Callable[[Expr], Expr]]


class DiagonalTile:
    """L in the first tile of shared memory, whose lower triangle is given; Y in the second one."""

    def __init__(self, layout: FragmentLayout, near: NearTiles) -> None:
        self.p, self.layout, self.near = layout.p, layout, near
        self.parts = range(self.p.components)
        self.vector = [self._registers() for _ in range(BLOCK)]
        rounds = range(2 * _ROUNDS)
        self.sums = [[layout.accumulators() for _ in self.parts] for _ in rounds]
        self.block = ZERO

    def _registers(self) -> list[ir.Register]:
        return [self.p.register(lanes=True) for _ in self.parts]

    def begin(self) -> None:
        """Y of an identity."""
        p, layout = self.p, self.layout
        for lane in layout.lanes():
            for c, r in layout.blocks():
                pairs = [layout.place(lane, c, r, q) for q in range(PAIR)]
                ones = [select(i.eq(j), p.constant(1.0), p.constant(0.0)) for i, j in pairs]
                row = ir.add(lane.row(r), const(BLOCKS))
                for part in self.parts:
                    at = ir.add(self._first(row, lane.column(c), part), lane.at)
                    pair = [x if part == 0 else p.constant(0.0) for x in ones]
                    layout.store(self.near.buffer, at, pair)

    def run(self, order: Expr) -> None:
        """Of the first `order` rows; others become those of an identity."""
        p = self.p
        is_part = p.let(order < const(SIDE))
        with p.when(is_part), p.lanes(ZERO, const(SIDE)) as i, p.when(p.let(i >= order)):
            block, inside = (p.let(f(i, const(BLOCK))) for f in (ir.idiv, ir.irem))
            for part, x in enumerate((p.constant(1.0), *zero(p)[1:])):
                at = self.layout.inside(inside, inside)
                at = ir.add(self._first(block, block, part), at)
                p.do(ir.Store(self.near.buffer, at, x))
        last = p.let(ir.idiv(ir.add(order, const(BLOCK - 1)), const(BLOCK)))
        with p.loop(ZERO, last) as block:
            self.block = block
            self._substitute()
            self._update()

    def _first(self, row: Expr, column: Expr, part: int) -> Expr:
        """Of a block of L or Y."""
        inside = select(row >= const(BLOCKS), ir.add(row, const(BLOCKS * (BLOCKS - 1))), row)
        block = ir.add(ir.mul(column, const(BLOCKS)), inside)
        size = BLOCK * BLOCK
        return ir.add(ir.mul(block, const(self.p.components * size)), const(part * size))

    # -- a block of columns -----------------------------------------------------------------------

    def _substitute(self) -> None:
        """Rows of L and Y in the columns of a block: v L⁻ᴴ, L being the block on the diagonal."""
        p = self.p
        with p.lanes(ZERO, const(_ROWS_AT_ONCE)) as e:
            pivots = self._solve(e, lambda pivot: over_root(p, pivot))
            least = self._high_word(pivots[0])
            for pivot in pivots[1:]:
                least = p.let(ir.minimum(least, self._high_word(pivot)))
            with p.when(p.let(least < const(TINY_EXPONENT << 20, dt.uint32))):
                # subnormal numbers would become zero
                self._solve(e, lambda pivot: over_exact_root(p, pivot))
            with p.when(p.let(e >= const(BLOCK))):  # others read the block
                self._store(e, [tuple(ir.reads(registers)) for registers in self.vector])

    def _high_word(self, x: Expr) -> Expr:
        return self.p.let((x.bitcast(dt.uint64) >> const(32, dt.uint64)).cast(dt.uint32))

    def _solve(self, e: Expr, root: OverRoot) -> list[Expr]:
        p = self.p
        diagonal = [p.let(self._first(self.block, self.block, part)) for part in self.parts]
        lower = []
        for i in range(BLOCK):
            pairs = range(i // PAIR + 1)
            places = [self.layout.inside(const(i), const(PAIR * q)) for q in pairs]
            lower.append(self._loaded([[ir.add(x, at) for at in places] for x in diagonal]))
        pivots, found = self._solved(lower, self._loaded(self._row(e)), root)
        for registers, number in zip(self.vector, found, strict=True):
            p.do(*ir.sets(registers, number))
        return pivots

    def _row(self, e: Expr) -> list[list[Expr]]:
        """Where pairs of a row are, by parts, from that of the block on the diagonal on."""
        p = self.p
        row = p.let(ir.add(self.block, ir.idiv(e, const(BLOCK))))
        inside = p.let(ir.irem(e, const(BLOCK)))
        pairs = [p.let(self.layout.inside(inside, const(q))) for q in range(0, BLOCK, PAIR)]
        firsts = [p.let(self._first(row, self.block, part)) for part in self.parts]
        return [[ir.add(first, at) for at in pairs] for first in firsts]

    def _loaded(self, places: list[list[Expr]]) -> list[Number]:
        load, near = self.layout.load, self.near.buffer
        parts = [[x for at in own for x in load(near, at)] for own in places]
        return list(zip(*parts, strict=True))

    def _store(self, e: Expr, found: list[Number]) -> None:
        for part, places in enumerate(self._row(e)):
            for q, at in enumerate(places):
                pair = [x[part] for x in found[PAIR * q : PAIR * (q + 1)]]
                self.layout.store(self.near.buffer, at, pair)

    def _solved(
        self, lower: list[list[Number]], found: list[Number], over_root: OverRoot
    ) -> tuple[list[Expr], list[Number]]:
        """The pivots, and a row. The next pivot does not wait until a root is known in full."""
        p = self.p
        pivots = []
        for q in range(BLOCK):
            pivots.append(lower[q][q][0])
            root = over_root(pivots[q])
            rows = range(q + 1, BLOCK)
            if q + 1 < BLOCK:
                lower[q + 1][q] = p.number([root(part) for part in lower[q + 1][q]])
            by = p.let(root(p.constant(1.0)))
            for i in rows[1:]:
                lower[i][q] = p.number(scaled(lower[i][q], by))
            found[q] = p.number(scaled(found[q], by))
            for i in rows:
                other = conjugate(lower[i][q])
                pivot = lower[i][i][0]
                for part in lower[i][q]:
                    pivot = p.let(fma(-part, part, pivot))
                lower[i][i] = (pivot, *lower[i][i][1:])
                for r in rows[rows.index(i) + 1 :]:
                    lower[r][i] = p.number(minus_product(lower[r][i], lower[r][q], other))
                found[i] = p.number(minus_product(found[i], found[q], other))
        return pivots, found

    # -- what is right of it ----------------------------------------------------------------------

    def _update(self) -> None:
        """L of the block, when all have read what was there. Then two blocks of columns at a time,
        of which a warp has two blocks of rows: of L from the diagonal on, and of Y those before the
        next diagonal."""
        p = self.p
        for lane in self.layout.lanes():
            with p.when(p.let(lane.thread < const(BLOCK))):
                found = [
                    chosen(const(q) <= lane.thread, tuple(ir.reads(registers)), zero(p))
                    for q, registers in enumerate(self.vector)
                ]
                self._store(lane.thread, found)
            self._rounds(lane, 0)
            with p.when(p.let(ir.add(self.block, const(1 + 2 * _ROUNDS)) < const(BLOCKS))):
                self._rounds(lane, _ROUNDS)

    def _rounds(self, lane: Lane, first: int) -> None:
        p, layout, near = self.p, self.layout, self.near.buffer
        warp = p.let(ir.idiv(lane.thread, const(WARP)))
        group = ir.add(ir.add(self.block, ONE), ir.idiv(warp, const(_WARPS_OF_ROWS)))
        pair = p.let(ir.mul(ir.irem(warp, const(_WARPS_OF_ROWS)), const(ROWS)))
        last = p.let(ir.add(self.block, const(BLOCKS)))
        stores: list[tuple[Expr, Expr, Accumulators]] = []
        for k in range(first, first + _ROUNDS):
            column = p.let(ir.add(group, const(2 * k)))
            rows = [p.let(ir.add(ir.add(column, pair), const(r))) for r in range(ROWS)]
            exist = [p.let((row <= last) & (column < const(BLOCKS))) for row in rows]
            column = p.let(ir.minimum(column, const(BLOCKS - 1)))
            rows = [p.let(ir.minimum(row, last)) for row in rows]
            for r, row in enumerate(rows):
                for part in self.parts:
                    at = p.let(ir.add(self._first(row, column, part), lane.at))
                    own = self.sums[k][part][PAIR * r : PAIR * (r + 1)]
                    p.do(*ir.sets(own, tuple(layout.load(near, at))))
                    stores.append((exist[r], at, own))
            left = [self._done(row, lane) for row in rows]
            layout.multiply(self.sums[k], left, self._done(column, lane), minus=True)
        for exists, at, own in stores:
            with p.when(exists):
                layout.store(near, at, list(ir.reads(own)))

    def _done(self, row: Expr, lane: Lane) -> list[list[Expr]]:
        """A block of the columns that are done, by parts."""
        firsts = [ir.add(self._first(row, self.block, part), lane.at) for part in self.parts]
        return [self.layout.load(self.near.buffer, self.p.let(first)) for first in firsts]

    # -- results ----------------------------------------------------------------------------------

    def pack_inverse(self, tiles: ir.Buffer, start: Expr) -> None:
        """Yᴴ: a lower triangle."""
        p, layout = self.p, self.layout
        for lane in layout.lanes():
            across = [p.let(layout.inside(ir.add(lane.j, const(q)), lane.i)) for q in range(PAIR)]
            for c, r in layout.blocks():
                row = ir.add(lane.column(c), const(BLOCKS))
                firsts = [p.let(self._first(row, lane.row(r), part)) for part in self.parts]
                found = [self._number([ir.add(first, at) for first in firsts]) for at in across]
                for part in self.parts:
                    at = layout.first(lane.row(r), lane.column(c), part, lane.at)
                    layout.store(tiles, ir.add(start, at), [conjugate(x)[part] for x in found])

    def _number(self, places: list[Expr]) -> Number:
        return self.p.number([ir.load(self.near.buffer, at) for at in places])

    def each(self, visit: Visit) -> None:
        """L, with zeros above its diagonal."""
        p = self.p
        with all_threads(p, GRID) as t:
            for i in t.rows:
                for j in t.columns:
                    found = self._number([self.layout.at(i, j, part) for part in self.parts])
                    visit(i, j, chosen(j <= i, found, zero(p)))
