"""Gaussian elimination with partial pivoting of one matrix per block, in registers of a GPU.

Rows stay where they are: each remembers the step at which it was the pivot (implicit pivoting), and
right-hand sides are eliminated along.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.program import (
    INT,
    ZERO,
    Matrix,
    Number,
    Program,
    Read,
    chosen,
    inverse,
    magnitude,
    minus_product,
    product,
    real,
    zero,
)
from numus.kernels.factor.registers.tiles import (
    RegisterMatrix,
    Thread,
    ThreadGrid,
    all_threads,
    steps_of,
    turn,
)

WARP = 32


@dataclass(frozen=True)
class Shared:
    """What passes through shared memory: a column and keys by which its elements compare, a row and
    that of the right-hand sides, the rows that were pivots."""

    column: Matrix
    keys: Matrix
    row: Matrix
    right: Matrix
    order: ir.Buffer


class Elimination:
    """Of a matrix of n rows, with `widths` tiles of columns of right-hand sides."""

    def __init__(self, p: Program, grid: ThreadGrid, n: Expr, widths: int, shared: Shared) -> None:
        self.p, self.grid, self.n, self.shared = p, grid, n, shared
        self.a = RegisterMatrix(p, grid, grid.rows)
        self.b = RegisterMatrix(p, grid, widths)
        self.widths = widths
        self.key = dt.int32 if p.real.itemsize == 4 else dt.int64
        self.last = (1 << (grid.extents[0] - 1).bit_length()) - 1
        # of each row of a thread, the step at which it was the pivot; -1 before
        self.steps = [p.register(INT, lanes=True) for _ in range(grid.rows)]
        self.product = [p.register(lanes=True) for _ in range(p.components)]
        self.singular = p.register(INT, lanes=True)

    def load(self, a: Read, b: Read | None, columns: Expr) -> None:
        """Without b, right-hand sides are an identity."""
        p = self.p
        with all_threads(p, self.grid) as t:
            self.a.fill(t, a, (self.n, self.n))
            if b is None:
                self.b.fill_identity(t)
            else:
                self.b.fill(t, b, (self.n, columns))
            p.do(*(ir.Set(step, const(-1, INT)) for step in self.steps))
            p.do(ir.Set(self.singular, const(0, INT)))
            p.do(*ir.sets(self.product, real(p, p.constant(1.0))))

    def eliminate(self) -> None:
        """U in the rows of the pivots, and L⁻¹ P B."""
        for tile, own, k in steps_of(self.p, self.grid, self.n):
            slot = turn(self.p, k)
            self._share_column(tile, own, slot)
            self._share_pivot_row(tile, k, slot)
            self._update(tile, k, slot)

    def _share_column(self, tile: int, own: Expr, slot: Expr) -> None:
        p = self.p
        with all_threads(p, self.grid) as t, p.when(p.let(t.y.eq(own))):
            for r, step in enumerate(self.steps):
                x = self.a[r, tile]
                self.shared.column[slot, t.rows[r]] = x
                free = p.let((ir.read(step) < const(0, INT)) & (t.rows[r] < self.n))
                key = select(free, self._key(x, t.rows[r]), const(-1, self.key))
                self.shared.keys[ZERO, t.rows[r]] = (key,)

    def _key(self, x: Number, row: Expr) -> Expr:
        """An integer that is larger for larger numbers, and for NaN: the bits of their size, but
        for the last ones, in which earlier rows have more. A pivot is the largest but for these."""
        p, last = self.p, const(self.last, self.key)
        size = magnitude(x)
        size = p.let(select(size.eq(size), size, p.constant(float("inf"))))
        return (size.bitcast(self.key) | last) - row.cast(self.key)

    def _find_pivot(self, t: Thread) -> Expr:
        """The first row of the largest element, by every warp for itself."""
        p, order = self.p, self.grid.extents[0]
        lane = p.let(ir.irem(t.number, const(min(WARP, order))))
        key = p.let(self.shared.keys[ZERO, lane][0])
        for first in range(WARP, order, WARP):
            other = self.shared.keys[ZERO, p.let(ir.add(lane, const(first)))][0]
            key = p.let(ir.maximum(key, other))
        key = p.let(ir.lanes_max(key))
        last = const(self.last, self.key)
        return p.let((last - (key & last)).cast(INT))

    def _share_pivot_row(self, tile: int, k: Expr, slot: Expr) -> None:
        p, shared = self.p, self.shared
        with all_threads(p, self.grid) as t:
            row = self._find_pivot(t)
            with p.when(p.let(t.number.eq(0))):
                p.do(ir.Store(shared.order, k, row))
            for r, step in enumerate(self.steps):
                with p.when(p.let(t.rows[r].cast(INT).eq(row))):
                    p.do(ir.Set(step, k.cast(INT)))
                    for c in range(tile, self.grid.rows):
                        shared.row[slot, t.columns[c]] = self.a[r, c]
                    for c in range(self.widths):
                        shared.right[slot, t.columns[c]] = self.b[r, c]

    def _update(self, tile: int, k: Expr, slot: Expr) -> None:
        p, shared = self.p, self.shared
        with all_threads(p, self.grid) as t:
            pivot = p.number(shared.row[slot, k])
            singular = p.let(magnitude(pivot).eq(0.0))
            p.do(ir.Set(self.singular, select(singular, const(1, INT), ir.read(self.singular))))
            by = inverse(p, p.number(chosen(singular, real(p, p.constant(1.0)), pivot)))
            p.do(*ir.sets(self.product, p.number(product(tuple(ir.reads(self.product)), pivot))))
            across = [p.number(shared.row[slot, t.columns[c]]) for c in range(tile, self.grid.rows)]
            right = [p.number(shared.right[slot, t.columns[c]]) for c in range(self.widths)]
            for r, step in enumerate(self.steps):
                free = p.let((ir.read(step) < const(0, INT)) & ~singular)
                factor = p.number(product(shared.column[slot, t.rows[r]], by))
                factor = p.number(chosen(free, factor, zero(p)))
                for c, x in enumerate(across, tile):
                    self.a[r, c] = minus_product(self.a[r, c], factor, x)
                for c, x in enumerate(right):
                    self.b[r, c] = minus_product(self.b[r, c], factor, x)

    def substitute_back(self) -> None:
        """X in place of the right-hand sides: row i where step i had its pivot."""
        p, shared = self.p, self.shared
        for tile, own, number in steps_of(p, self.grid, self.n, backwards=True):
            k, slot = p.let(number.cast(INT)), turn(p, number, backwards=True)
            with all_threads(p, self.grid) as t:
                mine = [p.let(ir.read(step).eq(k)) for step in self.steps]
                with p.when(p.let(t.y.eq(own))):
                    for r, is_pivot in enumerate(mine):
                        shared.column[slot, t.rows[r]] = self.a[r, tile]
                        with p.when(is_pivot):
                            shared.row[slot, ZERO] = self.a[r, tile]
                for r, is_pivot in enumerate(mine):
                    with p.when(is_pivot):
                        for c in range(self.widths):
                            shared.right[slot, t.columns[c]] = self.b[r, c]
            with all_threads(p, self.grid) as t:
                by = inverse(p, p.number(shared.row[slot, ZERO]))
                right = [shared.right[slot, t.columns[c]] for c in range(self.widths)]
                found = [p.number(product(x, by)) for x in right]
                for r, step in enumerate(self.steps):
                    earlier, is_pivot = p.let(ir.read(step) < k), p.let(ir.read(step).eq(k))
                    factor = p.number(chosen(earlier, shared.column[slot, t.rows[r]], zero(p)))
                    for c, x in enumerate(found):
                        less = minus_product(self.b[r, c], factor, x)
                        self.b[r, c] = chosen(is_pivot, x, less)

    def write_solution(self, out: Matrix, columns: Expr) -> None:
        """X; NaN where a pivot is zero."""
        p = self.p
        with all_threads(p, self.grid) as t:
            singular = p.let(ir.read(self.singular).ne(const(0, INT)))
            nothing = real(p, p.constant(float("nan")))
            for r, c in self.b.tiles:
                i, j = t.rows[r], t.columns[c]
                with p.when(p.let((i < self.n) & (j < columns))):
                    found: Number = chosen(singular, nothing, self.b[r, c])
                    out[ir.read(self.steps[r]).cast(ir.INDEX), j] = found

    def write_determinant(self, out: Matrix) -> None:
        """The product of the pivots, times the sign of their order."""
        p = self.p
        inversions = p.register(INT, lanes=True)
        with all_threads(p, self.grid) as t:
            p.do(ir.Set(inversions, const(0, INT)))
            for i in t.rows:
                for j in t.columns:
                    with p.when(p.let((i < j) & (j < self.n))):
                        one, other = (ir.load(self.shared.order, x) for x in (i, j))
                        more = select(one > other, const(1, INT), const(0, INT))
                        p.do(ir.Set(inversions, ir.read(inversions) + more))
        odd = p.let((p.any_lane(inversions) & const(1, INT)).ne(const(0, INT)))
        with all_threads(p, self.grid) as t, p.when(p.let(t.number.eq(0))):
            found = tuple(ir.reads(self.product))
            out[ZERO, ZERO] = chosen(odd, tuple(-part for part in found), found)
