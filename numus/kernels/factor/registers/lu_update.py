"""What follows a panel of right-looking LU, on GPUs: a tile of what is right of it per block, and
the places of its rows.

Rows are read in the order that the panel found, and written in it, to other memory. Every block
substitutes for itself in the pivots' rows above its tile, which takes an eighth of its products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
    minus_product,
    zero,
)
from numus.kernels.factor.registers.tiles import RegisterMatrix, Thread, ThreadGrid, all_threads

GRID = ThreadGrid(16, 16, 8, 4)
UNROLL = 4  # columns of the panel
TAIL = 4  # numbers beside a row of a panel: rows begin at vectors
HEIGHT, WIDTH = GRID.extents


@dataclass(frozen=True)
class Step:
    """A panel of `width` columns from `start` on, of a matrix (m, n): `rows` and `columns` that are
    right of it and below. `is_last`: no panel follows."""

    start: Expr
    width: Expr
    rows: Expr
    columns: Expr
    n: Expr
    is_last: Expr

    @property
    def after(self) -> Expr:
        return ir.add(self.start, self.width)


@dataclass(frozen=True)
class Places:
    """Where rows come from, int32: `before` and `after` the panel, the number in the matrix that is
    factorised of each row from the panel's first on; `final`, the place in the result of each row
    of that matrix."""

    buffer: ir.Buffer
    before: Expr | None
    after: Expr
    final_buffer: ir.Buffer
    final: Expr


class PanelUpdate:
    """Of the tile (i, j), of `limit` columns of a panel."""

    def __init__(
        self,
        p: Program,
        step: Step,
        panel: Matrix,
        limit: int,
        shared: tuple[Matrix, Matrix, Matrix],
    ) -> None:
        self.p, self.step, self.panel, self.limit = p, step, panel, limit
        self.left, self.upper, self.corner = shared

    def run(self, i: Expr, j: Expr, a: Read, to: Matrix, out: Matrix, places: Places) -> None:
        """`a` and `to`: rows from the panel's first one on, columns right of it."""
        p, step = self.p, self.step
        self.first_row = p.let(ir.add(step.width, ir.mul(i, const(HEIGHT))))
        self.first_column = p.let(ir.mul(j, const(WIDTH)))
        self.end = p.let(ir.add(step.width, step.rows))
        with p.when(p.let(step.columns > ZERO)):
            self._update(a, to)
            with p.when(p.let(i.eq(ZERO))):
                self._write_upper(out)
        with p.when(p.let(j.eq(ZERO))):
            self._place_rows(i, out, places)

    def _update(self, a: Read, to: Matrix) -> None:
        p, step = self.p, self.step
        sums = RegisterMatrix(p, GRID, GRID.columns)
        with all_threads(p, GRID) as t:
            self._bring(t, a)
            columns = [p.let(self._column(y)) for y in t.columns]
            for r, x in enumerate(t.rows):
                source = p.let(self._source(self._row(x)))
                for c, column in enumerate(columns):
                    sums[r, c] = a(source, column)
        self._substitute()
        with all_threads(p, GRID) as t:
            self._multiply(t, sums)
            for r, c in sums.tiles:
                row = ir.add(self.first_row, t.rows[r])
                column = ir.add(self.first_column, t.columns[c])
                with p.when(p.let((row < self.end) & (column < step.columns))):
                    to[row, column] = sums[r, c]

    def _row(self, x: Expr) -> Expr:
        """Of the tile, or the last one."""
        return ir.minimum(ir.add(self.first_row, x), ir.sub(self.end, ONE))

    def _column(self, y: Expr) -> Expr:
        return ir.minimum(ir.add(self.first_column, y), ir.sub(self.step.columns, ONE))

    def _source(self, row: Expr) -> Expr:
        """Where a row was before the panel."""
        return self.panel[row, const(self.limit)][0].cast(ir.INDEX)

    def _bring(self, t: Thread, a: Read) -> None:
        """The panel's rows beside the tile, its triangle with zeros on and above the diagonal,
        transposed, and the pivots' rows above the tile. All loads come before the first store."""
        p, limit, last = self.p, self.limit, ir.sub(self.step.width, ONE)
        stores: list[tuple[Matrix, Expr, Expr, Number, Expr | None]] = []
        for e, inside in _shares(p, t, HEIGHT * limit):
            x, k = p.let(ir.idiv(e, const(limit))), p.let(ir.irem(e, const(limit)))
            found = p.number(self.panel[self._row(x), k])
            stores.append((self.left, x, k, p.number(chosen(k <= last, found, zero(p))), inside))
        for e, inside in _shares(p, t, limit * limit):
            x, k = p.let(ir.idiv(e, const(limit))), p.let(ir.irem(e, const(limit)))
            found = p.number(self.panel[ir.minimum(x, last), k])
            found = p.number(chosen((k < x) & (x <= last), found, zero(p)))
            stores.append((self.corner, k, x, found, inside))
        for e, inside in _shares(p, t, limit * WIDTH):
            k, y = p.let(ir.idiv(e, const(WIDTH))), p.let(ir.irem(e, const(WIDTH)))
            row = p.let(self._source(ir.minimum(k, last)))
            found = p.number(a(row, self._column(y)))
            found = p.number(chosen(k <= last, found, zero(p)))
            stores.append((self.upper, k, self._place(y), found, inside))
        for to, row, column, found, inside in stores:
            if inside is None:
                to[row, column] = found
            else:
                with p.when(inside):
                    to[row, column] = found

    def _place(self, column: Expr) -> Expr:
        """In shared memory, of a column of the tile: those of a thread are adjacent."""
        first = ir.mul(ir.irem(column, const(GRID.across)), const(GRID.columns))
        return ir.add(first, ir.idiv(column, const(GRID.across)))

    def _substitute(self) -> None:
        """U above the tile: a column per thread."""
        p = self.p
        with p.lanes(ZERO, const(WIDTH)) as y:
            x = [p.number(self.upper[const(k), y]) for k in range(self.limit)]
            for k in range(self.limit - 1):
                parts = [
                    part
                    for i in range(k // UNROLL * UNROLL, self.limit)
                    for part in self.corner[const(k), const(i)]
                ]
                names, size = p.vector_loads(parts), p.components
                for i in range(k + 1, self.limit):
                    at = (i - k // UNROLL * UNROLL) * size
                    factor = tuple(names[at : at + size])
                    x[i] = p.number(minus_product(x[i], factor, x[k]))
            for k, number in enumerate(x):
                self.upper[const(k), y] = number

    def _multiply(self, t: Thread, sums: RegisterMatrix) -> None:
        p, size = self.p, self.p.components
        count = min(UNROLL, self.limit)
        with p.loop(ZERO, const(self.limit // count)) as step:
            k = p.let(ir.mul(step, const(count)))
            steps = [ir.add(k, const(u)) for u in range(count)]
            first = ir.mul(t.y, const(GRID.columns))
            across = [ir.add(first, const(c)) for c in range(GRID.columns)]
            upper = [
                p.vector_loads([part for c in across for part in self.upper[s, c]]) for s in steps
            ]
            for r, x in enumerate(t.rows):
                left = p.vector_loads([part for s in steps for part in self.left[x, s]])
                for u in range(count):
                    factor = tuple(left[u * size : (u + 1) * size])
                    for c in range(GRID.columns):
                        above: Number = tuple(upper[u][c * size : (c + 1) * size])
                        sums[r, c] = minus_product(sums[r, c], factor, above)

    # -- results ----------------------------------------------------------------------------------

    def _write_upper(self, out: Matrix) -> None:
        p, step = self.p, self.step
        with p.lanes(ZERO, const(self.limit * WIDTH)) as e:
            k, y = p.let(ir.idiv(e, const(WIDTH))), p.let(ir.irem(e, const(WIDTH)))
            column = p.let(ir.add(self.first_column, y))
            with p.when(p.let((k < step.width) & (column < step.columns))):
                found = self.upper[k, self._place(y)]
                out[ir.add(step.start, k), ir.add(step.after, column)] = found

    def _place_rows(self, i: Expr, out: Matrix, places: Places) -> None:
        """The numbers of rows after the panel, of a tile's and by the first also of the pivots;
        those of rows that stay where they are go to the result."""
        p, step = self.p, self.step
        first = p.let(select(i.eq(ZERO), ZERO, ir.add(step.width, ir.mul(i, const(HEIGHT)))))
        stop = ir.add(step.width, ir.mul(ir.add(i, ONE), const(HEIGHT)))
        stop = p.let(ir.minimum(stop, ir.add(step.width, step.rows)))
        with p.lanes(first, stop) as row:
            number = p.let(self._source(row).cast(INT))
            if places.before is not None:
                at = ir.add(places.before, number.cast(ir.INDEX))
                number = p.let(ir.load(places.buffer, at))
            else:
                number = p.let(number + step.start.cast(INT))
            p.do(ir.Store(places.buffer, ir.add(places.after, row), number))
            with p.when(p.let((row < step.width) | step.is_last)):
                at = p.let(ir.add(step.start, row))
                to = ir.add(places.final, number.cast(ir.INDEX))
                p.do(ir.Store(places.final_buffer, to, at.cast(INT)))
                out[at, step.n] = self._real(number)
                swap = self.panel[row, const(self.limit + 1)][0]
                found = p.let(swap + step.start.cast(p.real))
                with p.when(p.let(row < step.width)):
                    out[at, ir.add(step.n, ONE)] = self._pad(found)
                with p.when(p.let(row >= step.width)):
                    out[at, ir.add(step.n, ONE)] = zero(p)

    def _real(self, number: Expr) -> Number:
        return self._pad(self.p.let(number.cast(self.p.real)))

    def _pad(self, x: Expr) -> Number:
        return (x,) if self.p.components == 1 else (x, self.p.constant(0.0))


def _shares(p: Program, t: Thread, count: int) -> Iterator[tuple[Expr, Expr | None]]:
    """The elements of `count` that a thread handles; and whether it has one, if not all have."""
    for first in range(0, count, GRID.threads):
        e = p.let(ir.add(t.number, const(first)))
        if first + GRID.threads <= count:
            yield e, None
        else:
            yield p.let(ir.minimum(e, const(count - 1))), p.let(e < const(count))
