"""Tiles as fragments of float64 tensor cores (mma.sync): how they are packed, and their products.

A packed tile is a grid of blocks of 8 × 8, by columns of these. A thread of a warp has two adjacent
numbers of a row of a block. That is the fragment of every operand and of the accumulators at once,
as products add up k in any order: one load of 16 bytes. Pairs of a row are swizzled, so that
threads of a row each read rows of a block from all banks. Real and imaginary parts have blocks of
their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, const
from numus.kernels.factor.program import ZERO, Number, Program
from numus.kernels.factor.registers.tile_products import GRID, SIDE

BLOCK = 8  # rows and columns
BLOCKS = SIDE // BLOCK
WARP = 32
WARPS_ACROSS = 2  # of blocks of columns, which these have in turns, so that triangles part evenly
COLUMNS = BLOCKS // WARPS_ACROSS
ROWS = 2  # blocks of a warp
PAIR = 2  # adjacent numbers of a block that a thread has

Fragment = list[Expr]  # a pair of a block
Accumulators = list[ir.Register]  # a pair of each block of rows


@dataclass(frozen=True)
class Lane:
    """A thread: the first of two adjacent blocks of rows of its warp, the first of its blocks of
    columns, the row and the column of its pair in a block, and its place in memory."""

    thread: Expr
    rows: Expr
    columns: Expr
    i: Expr
    j: Expr
    at: Expr

    def row(self, which: int) -> Expr:
        return ir.add(self.rows, const(which))

    def column(self, which: int) -> Expr:
        return ir.add(self.columns, const(WARPS_ACROSS * which))


class FragmentLayout:
    def __init__(self, p: Program) -> None:
        self.p = p

    def lanes(self) -> Iterator[Lane]:
        """All threads; the body of a loop over the one lane that there is."""
        p = self.p
        with p.lanes(ZERO, const(GRID.threads)) as thread:
            warp, lane = (p.let(f(thread, const(WARP))) for f in (ir.idiv, ir.irem))
            rows = p.let(ir.mul(ir.idiv(warp, const(WARPS_ACROSS)), const(ROWS)))
            columns = p.let(ir.irem(warp, const(WARPS_ACROSS)))
            i = p.let(ir.idiv(lane, const(BLOCK // PAIR)))
            j = p.let(ir.mul(ir.irem(lane, const(BLOCK // PAIR)), const(PAIR)))
            yield Lane(thread, rows, columns, i, j, p.let(self.inside(i, j)))

    @staticmethod
    def blocks() -> Iterator[tuple[int, int]]:
        """Of a warp, by column and row."""
        return product(range(COLUMNS), range(ROWS))

    def accumulators(self) -> Accumulators:
        return [self.p.register(lanes=True) for _ in range(ROWS * PAIR)]

    # -- places -----------------------------------------------------------------------------------

    def place(self, lane: Lane, c: int, r: int, q: int) -> tuple[Expr, Expr]:
        """Row and column of a number q of a thread in a block of its warp."""
        row = ir.add(ir.mul(lane.row(r), const(BLOCK)), lane.i)
        column = ir.add(ir.mul(lane.column(c), const(BLOCK)), lane.j)
        return self.p.let(row), self.p.let(ir.add(column, const(q)))

    def first(self, row: Expr, column: Expr, part: int, at: Expr) -> Expr:
        """Of a pair in a block of a packed tile."""
        block = ir.add(ir.mul(column, const(BLOCKS)), row)
        size = BLOCK * BLOCK
        start = ir.mul(block, const(self.p.components * size))
        return ir.add(ir.add(start, at), const(part * size))

    def at(self, i: Expr, j: Expr, part: int) -> Expr:
        """Of one number of a packed tile."""
        row, column = (ir.idiv(x, const(BLOCK)) for x in (i, j))
        own = self.inside(ir.irem(i, const(BLOCK)), ir.irem(j, const(BLOCK)))
        return self.first(row, column, part, own)

    @staticmethod
    def inside(i: Expr, j: Expr) -> Expr:
        """Of a number in a block."""
        if j.op != "const":
            pair, odd = ir.idiv(j, const(PAIR)), ir.irem(j, const(PAIR))
        else:
            pair, odd = (const(n) for n in divmod(int(j.attr), PAIR))
        if i.op == pair.op == "const":
            pair = const(int(pair.attr) ^ int(i.attr) // PAIR)
        else:
            pair = ir.binary("xor", ir.idiv(i, const(PAIR)), pair)
        return ir.add(ir.add(ir.mul(i, const(BLOCK)), ir.mul(pair, const(PAIR))), odd)

    # -- memory -----------------------------------------------------------------------------------

    def load(self, source: ir.Buffer, first: Expr) -> Fragment:
        return self.p.vector_loads([ir.load(source, ir.add(first, const(q))) for q in range(PAIR)])

    def store(self, to: ir.Buffer, first: Expr, pair: Fragment) -> None:
        for q, x in enumerate(self.p.number(pair)):
            self.p.do(ir.Store(to, ir.add(first, const(q)), x, vector=0 if q else PAIR))

    # -- products ---------------------------------------------------------------------------------

    def multiply(
        self,
        to: list[Accumulators],
        rows: list[list[Fragment]],
        other: list[Fragment],
        minus: bool = False,
    ) -> None:
        """Add (subtract) two blocks of rows times the adjoint of another; by parts of numbers."""

        def words(part: int, minus: bool) -> list[Expr]:
            found = [rows[r][part][half] for half in range(PAIR) for r in range(ROWS)]
            return [self.p.let(-word) for word in found] if minus else found

        if self.p.components == 1:
            terms = [(0, words(0, minus), other[0])]
        else:
            real, imaginary, negated = words(0, minus), words(1, minus), words(0, not minus)
            terms = [(0, real, other[0]), (1, imaginary, other[0])]
            terms += [(0, imaginary, other[1]), (1, negated, other[1])]
        self.p.do(*(ir.MmaSync(to[part], a, b, dt.float64) for part, a, b in terms))


def numbers(of: list[Accumulators], r: int) -> list[Number]:
    """The two of a thread in a block of its accumulators."""
    return [tuple(ir.read(part[PAIR * r + q]) for part in of) for q in range(PAIR)]
