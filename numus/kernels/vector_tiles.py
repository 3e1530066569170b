"""What attention of threads that are lanes of one vector is made of: products of tiles.

A tile has some rows, and of each row every lane has `RUN` columns. Products along runs make one:
rows are picked from the lanes that read them, columns belong to lanes. Where a tile is itself the
left operand of a product, its columns take turns: in each turn all rows have one value in every
lane, which are picked one after the other, and the tile moves on by one column. So the code is that
of a single pick.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus.compiler import ir
from numus.compiler.ir import Expr, Stmt, const, select
from numus.kernels.attention_operands import Write
from numus.kernels.vector_contraction import RUN, Sums, cleared, multiply, named, picked

ZERO, ONE = const(0), const(1)

Read = Callable[[Expr, Expr, Expr, Expr | None], Expr]  # (matrix, row, column, mask)


@dataclass(frozen=True, slots=True)
class Matrix:
    """An operand, of a stack of such; `whole`: its columns are whole runs."""

    read: Read
    columns: Expr
    runs: Expr  # the last of them whole or not
    whole: bool


@dataclass(frozen=True, slots=True)
class Vector:
    """The lanes that a group has, and which matrix of a stack it works on."""

    lanes: int
    lane: Expr
    matrix: Expr

    @property
    def block(self) -> int:
        """Columns of a tile."""
        return RUN * self.lanes

    def spans(self, width: int) -> int:
        """How many tiles are as wide as that."""
        return -(-width // self.block)

    def column(self, j: int) -> Expr:
        """The column that a lane's j-th value of a product is of."""
        return ir.add(self.lane, const(j * self.lanes))

    def over_lanes(self, value: Expr, merge: Callable[[Expr, Expr], Expr]) -> Expr:
        half = self.lanes // 2
        while half:
            value = merge(value, ir.lanes_xor(value, half))
            half //= 2
        return value

    # -- products along runs ----------------------------------------------------------------------

    def product(
        self,
        tag: str,
        tile: Sums,
        left: Matrix,
        rows: list[Expr],
        right: Matrix,
        columns: list[Expr],
    ) -> list[Stmt]:
        """A tile of products of rows of two matrices: each lane reads those rows of the left one
        (whose count is a multiple of the lanes) and of the right one that are its own."""
        d = ir.var(f"{tag}d")
        out = cleared(tile)
        rows, columns = named(out, f"{tag}row", rows), named(out, f"{tag}column", columns)
        body: list[Stmt] = []
        a = [named(body, f"{tag}a{i}", self._along(left, x, d)) for i, x in enumerate(rows)]
        b = [named(body, f"{tag}b{j}", self._along(right, x, d)) for j, x in enumerate(columns)]
        for c in range(RUN):
            xs = named(body, f"{tag}x{c}", picked([line[c] for line in a], self.lanes))
            multiply(body, tile, xs, [line[c] for line in b])
        return [*out, ir.For(d, ZERO, left.runs, "serial", body)]

    def _along(self, m: Matrix, row: Expr, number: Expr) -> list[Expr]:
        """A run of a row."""
        return self._run(m, row, ir.mul(number, const(RUN)))

    def _run(self, m: Matrix, row: Expr, start: Expr) -> list[Expr]:
        columns = [ir.add(start, const(c)) for c in range(RUN)]
        if m.whole:
            return [m.read(self.matrix, row, c, None) for c in columns]
        found = []
        for c in columns:
            mask = c < m.columns
            value = m.read(self.matrix, row, c, mask)
            found.append(select(mask, value, const(0, value.dtype)))
        return found

    # -- products of tiles ------------------------------------------------------------------------

    def add_product(
        self, tag: str, tile: Sums, right: Matrix, first: Expr, limit: Expr, results: list[Sums]
    ) -> list[Stmt]:
        """Add a tile times rows of a matrix, from row `first` on, to sums of which each lane has a
        run in every span. The tile is used up."""
        lanes, turn, number = const(self.lanes), ir.var(f"{tag}turn"), ir.var(f"{tag}number")
        left = ir.sub(limit, first)
        done = ir.mul(turn, lanes)
        one: list[Stmt] = []
        (row,) = named(one, f"{tag}row", [ir.add(ir.add(first, done), number)])
        xs = named(one, f"{tag}y", [ir.lanes_pick(ir.read(line[0]), number) for line in tile])
        for span, sums in enumerate(results):
            multiply(one, sums, xs, named(one, f"{tag}v{span}", self._across(right, row, span)))
        count = ir.minimum(ir.sub(left, done), lanes)
        body: list[Stmt] = [ir.For(number, ZERO, count, "serial", one)]
        for line in tile:
            moved = named(body, f"next_{line[0].name}", [ir.read(x) for x in line[1:]])
            body += [ir.Set(x, name) for x, name in zip(line, moved, strict=False)]
        turns = ir.idiv(ir.add(left, const(self.lanes - 1)), lanes)
        return [ir.For(turn, ZERO, ir.minimum(turns, const(RUN)), "serial", body)]

    def _across(self, m: Matrix, row: Expr, span: int) -> list[Expr]:
        """The run of a row that a lane has; lanes beyond the last read some other."""
        number = ir.add(self.lane, const(span * self.lanes))
        if m.whole:
            number = ir.minimum(number, m.runs - 1)
        return self._run(m, row, ir.mul(number, const(RUN)))

    def stored(
        self, write: Write, m: Matrix, row: Expr, exists: Expr, span: int, values: list[Expr]
    ) -> list[Stmt]:
        """Store a lane's run of a row, of a result as wide as a matrix."""
        start = ir.mul(ir.add(self.lane, const(span * self.lanes)), const(RUN))
        columns = [ir.add(start, const(c)) for c in range(RUN)]
        pairs = zip(columns, values, strict=True)
        stores = [write(self.matrix, row, c, x) for c, x in pairs]
        if m.whole:
            return [ir.If(exists & (start < m.columns), [s for found in stores for s in found])]
        return [
            ir.If(exists & (c < m.columns), found) for c, found in zip(columns, stores, strict=True)
        ]
