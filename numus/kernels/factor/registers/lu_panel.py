"""Gaussian elimination with partial pivoting of a tall panel, in registers of a cluster of a GPU.

A thread holds whole rows, which stay where they are: each knows the position that LAPACK's swaps
would have moved it to. Columns rotate by one with every step, so that the column of the pivot is
the first, and the code of all steps the same.
"""

from __future__ import annotations

from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.program import (
    INT,
    ONE,
    ZERO,
    Matrix,
    Number,
    Program,
    Read,
    chosen,
    division,
    magnitude,
    minus_product,
    real,
    zero,
)

VECTOR_BYTES = 16


class PanelElimination:
    """Of an (m, n) matrix by `threads` threads with `count` rows of `width` >= n columns each."""

    def __init__(
        self, p: Program, threads: int, count: int, width: int, extents: tuple[Expr, Expr]
    ) -> None:
        self.p, self.threads, self.count, self.width = p, threads, count, width
        self.m, self.n = extents
        self.steps = p.let(ir.minimum(*extents))
        self.rows = [
            [[p.register(lanes=True) for _ in range(p.components)] for _ in range(width)]
            for _ in range(count)
        ]
        # where rows are after the swaps so far; -1 beyond the matrix
        self.places = [p.register(INT, lanes=True) for _ in range(count)]

    def _number(self, thread: Expr, r: int) -> Expr:
        """Of a row."""
        return self.p.let(ir.add(thread, const(r * self.threads)))

    def load(self, a: Read) -> None:
        p = self.p
        with p.lanes(ZERO, const(self.threads)) as thread:
            for r, (row, place) in enumerate(zip(self.rows, self.places, strict=True)):
                i = self._number(thread, r)
                p.do(ir.Set(place, const(-1, INT)))
                for x in row:
                    p.do(*ir.sets(x, zero(p)))
                with p.when(p.let(i < self.m)):
                    p.do(ir.Set(place, i.cast(INT)))
                    for c, x in enumerate(row):
                        with p.when(p.let(const(c) < self.n)):
                            p.do(*ir.sets(x, a(i, const(c))))

    def eliminate(self, pivots: Matrix, out: Matrix) -> None:
        """`pivots` is memory for a row per step; swaps go to the last column of the result."""
        p = self.p
        with p.loop(ZERO, self.steps) as k:
            step = p.let(k.cast(INT))
            chosen_place = self._pivot(step)
            out[k, p.let(ir.add(self.n, ONE))] = real(p, chosen_place.cast(p.real))
            self._share(pivots, k, step, chosen_place)
            self._update(pivots, k, step)

    def _pivot(self, step: Expr) -> Expr:
        """The first place of the largest element of the first column, of rows not yet chosen."""
        p = self.p
        size, place = p.register(lanes=True), p.register(INT, lanes=True)

        def better(one: list[Expr], other: list[Expr]) -> list[Expr]:
            won = (other[0] > one[0]) | (other[0].eq(one[0]) & (other[1] < one[1]))
            return [select(won, y, x) for x, y in zip(one, other, strict=True)]

        with p.lanes(ZERO, const(self.threads)):
            p.do(ir.Set(size, p.constant(-1.0)), ir.Set(place, step))
            for row, own in zip(self.rows, self.places, strict=True):
                found = p.let(magnitude(tuple(ir.reads(row[0]))))
                found = p.let(select(found.eq(found), found, p.constant(float("inf"))))  # NaN wins
                found = p.let(select(ir.read(own) >= step, found, p.constant(-1.0)))
                best = better([ir.read(size), ir.read(place)], [found, ir.read(own)])
                best = [p.let(x) for x in best]
                p.do(ir.Set(size, best[0]), ir.Set(place, best[1]))
        names = [[p.variable(x) for x in (p.real, INT)] for _ in range(3)]
        left, right, found_all = names
        p.do(ir.BlockReduce([size, place], left, right, better(left, right), found_all))
        return found_all[1]

    def _share(self, pivots: Matrix, k: Expr, step: Expr, pivot: Expr) -> None:
        """The row of the pivot, without what is left of the diagonal, and both rows swapped."""
        p = self.p
        with p.lanes(ZERO, const(self.threads)):
            left = p.let(ir.sub(const(self.width), k))
            for row, place in zip(self.rows, self.places, strict=True):
                own = p.let(ir.read(place))
                with p.when(p.let(own.eq(pivot))):
                    for c, x in enumerate(row):
                        found = tuple(ir.reads(x))
                        pivots[k, const(c)] = chosen(const(c) < left, found, zero(p))
                moved = select(own.eq(step), pivot, own)
                p.do(ir.Set(place, select(own.eq(pivot), step, moved)))

    def _update(self, pivots: Matrix, k: Expr, step: Expr) -> None:
        """Rows not yet chosen less their multiples of the pivot's; columns rotated."""
        p = self.p
        with p.lanes(ZERO, const(self.threads)):
            pivot_row = self._pivot_row(pivots, k)
            singular = p.let(magnitude(pivot_row[0]).eq(0.0))
            quotient = division(p, pivot_row[0])
            for row, place in zip(self.rows, self.places, strict=True):
                old = [p.number(ir.reads(x)) for x in row]
                rotated = [*old[1:], old[0]]
                free = p.let(ir.read(place) > step)
                for x, value in zip(row, rotated, strict=True):
                    p.do(*ir.sets(x, value))
                with p.when(free):
                    factor = p.number(chosen(singular, zero(p), quotient(old[0])))
                    for x, value, across in zip(row, rotated[:-1], pivot_row[1:], strict=False):
                        p.do(*ir.sets(x, minus_product(value, factor, across)))
                    p.do(*ir.sets(row[-1], factor))

    def _pivot_row(self, pivots: Matrix, k: Expr) -> list[Number]:
        """In vectors: rows begin at multiples of them."""
        p = self.p
        vector = min(self.width * p.components, VECTOR_BYTES // p.real.itemsize)
        parts = [part for c in range(self.width) for part in pivots[k, const(c)]]
        names = [p.variable(p.real) for _ in parts]
        for at, (name, part) in enumerate(zip(names, parts, strict=True)):
            wide = vector > 1 and at % vector == 0
            p.do(ir.Let(name, part, vector=vector if wide else 0))
        return [tuple(names[i : i + p.components]) for i in range(0, len(names), p.components)]

    def write(self, out: Matrix) -> None:
        """L and U, then the numbers of rows in their order, and no swaps after the last step."""
        p = self.p
        with p.lanes(ZERO, const(self.threads)) as thread:
            for r, (row, place) in enumerate(zip(self.rows, self.places, strict=True)):
                i = self._number(thread, r)
                with p.when(p.let(i < self.m)):
                    to = p.let(ir.read(place).cast(ir.INDEX))
                    for c, x in enumerate(row):
                        j = p.let(ir.irem(ir.add(const(c), self.steps), const(self.width)))
                        with p.when(p.let(j < self.n)):
                            found: Number = tuple(ir.reads(x))
                            out[to, j] = found
                    out[to, self.n] = real(p, i.cast(p.real))
                    with p.when(p.let(i >= self.steps)):
                        out[i, p.let(ir.add(self.n, ONE))] = zero(p)
