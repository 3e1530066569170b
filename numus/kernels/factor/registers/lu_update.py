"""What follows a panel of right-looking LU, on GPUs: rows of U right of it, some columns per block;
then a tile of what is below per block, and the places of its rows.

Rows are read in the order that the panel found, and written in it, to other memory.
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


class UpperRows:
    """Of the pivots of a panel, of `limit` columns: those right of it."""

    def __init__(self, p: Program, step: Step, panel: Matrix, limit: int) -> None:
        self.p, self.step, self.panel, self.limit = p, step, panel, limit

    def run(self, j: Expr, a: Read, out: Matrix, upper: Matrix, corner: Matrix) -> None:
        """Columns j of tiles; `a`: rows from the panel's first one on, columns right of it."""
        p, step, limit = self.p, self.step, self.limit
        first, last = p.let(ir.mul(j, const(WIDTH))), ir.sub(step.width, ONE)
        stores: list[_Placed] = []
        with all_threads(p, GRID) as t:
            for e, inside in _shares(p, t, limit * limit):  # zeros on and above the diagonal
                x, k = p.let(ir.idiv(e, const(limit))), p.let(ir.irem(e, const(limit)))
                found = p.number(self.panel[ir.minimum(x, last), k])
                found = p.number(chosen((k < x) & (x <= last), found, zero(p)))
                stores.append((corner, k, x, found, inside))
            for e, inside in _shares(p, t, limit * WIDTH):
                k, y = p.let(ir.idiv(e, const(WIDTH))), p.let(ir.irem(e, const(WIDTH)))
                row = p.let(source_row(self.panel, ir.minimum(k, last), limit))
                column = ir.minimum(ir.add(first, y), ir.sub(step.columns, ONE))
                stores.append((upper, k, y, p.number(a(row, column)), inside))
            _store(p, stores)
        with p.lanes(ZERO, const(WIDTH)) as y:
            column = p.let(ir.add(first, y))
            for q, number in enumerate(self._substituted(y, upper, corner)):
                exists = (const(q) < step.width) & (column < step.columns)
                with p.when(p.let(exists)):
                    out[ir.add(step.start, const(q)), ir.add(step.after, column)] = number

    def _substituted(self, y: Expr, upper: Matrix, corner: Matrix) -> list[Number]:
        """A column of U by its thread."""
        p, size = self.p, self.p.components
        x = [p.number(upper[const(k), y]) for k in range(self.limit)]
        for k in range(self.limit - 1):
            start = k // UNROLL * UNROLL
            places = range(start, self.limit)
            names = p.vector_loads([q for i in places for q in corner[const(k), const(i)]])
            for i in range(k + 1, self.limit):
                factor = tuple(names[(i - start) * size : (i - start + 1) * size])
                x[i] = p.number(minus_product(x[i], factor, x[k]))
        return x


class PanelUpdate:
    """Of the tile (i, j), by `limit` columns of a panel; `shared` is memory for its operands."""

    def __init__(
        self, p: Program, step: Step, panel: Matrix, limit: int, shared: tuple[Matrix, Matrix]
    ) -> None:
        self.p, self.step, self.panel, self.limit = p, step, panel, limit
        self.left, self.upper = shared

    def run(self, i: Expr, j: Expr, a: Read, to: Matrix, out: Matrix, places: Places) -> None:
        """`a` and `to`: rows from the panel's first one on, columns right of it."""
        p, step = self.p, self.step
        self.first_row = p.let(ir.add(step.width, ir.mul(i, const(HEIGHT))))
        self.first_column = p.let(ir.mul(j, const(WIDTH)))
        self.end = p.let(ir.add(step.width, step.rows))
        with p.when(p.let((step.columns > ZERO) & (step.rows > ZERO))):
            self._update(a, to, out)
        with p.when(p.let(j.eq(ZERO))):
            self._place_rows(i, out, places)

    def _update(self, a: Read, to: Matrix, out: Matrix) -> None:
        p, step = self.p, self.step
        sums = RegisterMatrix(p, GRID, GRID.columns)
        with all_threads(p, GRID) as t:
            self._bring(t, out)
            columns = [p.let(self._column(y)) for y in t.columns]
            for r, x in enumerate(t.rows):
                source = p.let(source_row(self.panel, self._row(x), self.limit))
                for c, column in enumerate(columns):
                    sums[r, c] = a(source, column)
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

    def _bring(self, t: Thread, out: Matrix) -> None:
        """The panel's rows beside the tile, and rows of U above it."""
        p, step, limit, last = self.p, self.step, self.limit, ir.sub(self.step.width, ONE)
        stores: list[_Placed] = []
        for e, inside in _shares(p, t, HEIGHT * limit):
            x, k = p.let(ir.idiv(e, const(limit))), p.let(ir.irem(e, const(limit)))
            found = p.number(self.panel[self._row(x), k])
            stores.append((self.left, x, k, p.number(chosen(k <= last, found, zero(p))), inside))
        for e, inside in _shares(p, t, limit * WIDTH):
            k, y = p.let(ir.idiv(e, const(WIDTH))), p.let(ir.irem(e, const(WIDTH)))
            row = ir.add(step.start, ir.minimum(k, last))
            found = p.number(out[row, ir.add(step.after, self._column(y))])
            found = p.number(chosen(k <= last, found, zero(p)))
            stores.append((self.upper, k, self._place(y), found, inside))
        _store(p, stores)

    def _place(self, column: Expr) -> Expr:
        """In shared memory, of a column of the tile: those of a thread are adjacent."""
        first = ir.mul(ir.irem(column, const(GRID.across)), const(GRID.columns))
        return ir.add(first, ir.idiv(column, const(GRID.across)))

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

    def _place_rows(self, i: Expr, out: Matrix, places: Places) -> None:
        """The numbers of rows after the panel, of a tile's and by the first also of the pivots;
        those of rows that stay where they are go to the result."""
        p, step = self.p, self.step
        first = p.let(select(i.eq(ZERO), ZERO, ir.add(step.width, ir.mul(i, const(HEIGHT)))))
        stop = ir.add(step.width, ir.mul(ir.add(i, ONE), const(HEIGHT)))
        stop = p.let(ir.minimum(stop, ir.add(step.width, step.rows)))
        with p.lanes(first, stop) as row:
            number = p.let(source_row(self.panel, row, self.limit).cast(INT))
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


def source_row(panel: Matrix, row: Expr, limit: int) -> Expr:
    """Where a row was before the panel."""
    return panel[row, const(limit)][0].cast(ir.INDEX)


_Placed = tuple[Matrix, Expr, Expr, Number, Expr | None]


def _store(p: Program, stores: list[_Placed]) -> None:
    """After all loads: they are in flight together."""
    for to, row, column, found, inside in stores:
        if inside is None:
            to[row, column] = found
        else:
            with p.when(inside):
                to[row, column] = found


def _shares(p: Program, t: Thread, count: int) -> Iterator[tuple[Expr, Expr | None]]:
    """The elements of `count` that a thread handles; and whether it has one, if not all have."""
    for first in range(0, count, GRID.threads):
        e = p.let(ir.add(t.number, const(first)))
        if first + GRID.threads <= count:
            yield e, None
        else:
            yield p.let(ir.minimum(e, const(count - 1))), p.let(e < const(count))
