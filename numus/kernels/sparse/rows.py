"""Products of compressed sparse rows with dense columns (SpMV, SpMM), and over semirings of
extremes, of which they give the entry that attains each.

One column: a row is a sum of one product after the other; hardware gathers are no faster where
rows are short. Many columns: lanes run along them, and accumulators stay in registers over the
entries of a row, so that the products, nnz × columns of them, are never in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const

ZERO, ONE = const(0), const(1)

Number = tuple[Expr, ...]  # its real parts


@dataclass(frozen=True)
class Rows:
    """How a kernel sees the matrix and its operand.

    `bounds(row)` are the first and the past-the-last entry of a row; `term(entry, column)` is the
    product of an entry with the operand; `write(row, column, sum)` stores a result.
    """

    dtype: DType  # of the accumulator
    components: int
    bounds: Callable[[Expr], tuple[Expr, Expr]]
    term: Callable[[Expr, Expr], Number]
    write: Callable[[Expr, Expr, Number], list[Stmt]]

    def registers(self, lanes: bool) -> list[ir.Register]:
        return [ir.Register(f"sum{i}", self.dtype, lanes=lanes) for i in range(self.components)]

    def _accumulate(self, sums: list[ir.Register], entry: Expr, column: Expr) -> list[Stmt]:
        term = self.term(entry, column)
        return [ir.Set(s, ir.read(s) + t) for s, t in zip(sums, term, strict=True)]

    def _clear(self, sums: list[ir.Register]) -> list[Stmt]:
        return [ir.Set(s, const(0, self.dtype)) for s in sums]

    def _bound(self, row: Expr) -> tuple[list[Stmt], Expr, Expr]:
        low, high = ir.var("low"), ir.var("high")
        first, last = self.bounds(row)
        return [ir.Let(low, first), ir.Let(high, last)], low, high

    def scalar(self, row: Expr, column: Expr, lanes: bool = False) -> list[Stmt]:
        """One entry after the other; with `lanes`, each lane has a row and column of its own."""
        sums, entry = self.registers(lanes), ir.var("entry")
        lets, low, high = self._bound(row)
        loop = ir.For(entry, low, high, "serial", self._accumulate(sums, entry, column))
        return [*lets, *self._clear(sums), loop, *self.write(row, column, tuple(ir.reads(sums)))]

    def in_turn(self, start: Expr, stop: Expr) -> list[Stmt]:
        """A range of rows, two entries at a time; the end of a row is where the next starts."""
        sums, entry, row = self.registers(False), ir.var("entry"), ir.var("row")
        at = ir.Register("at", ir.INDEX)
        low, high = ir.var("low"), ir.var("high")
        last = ir.sub(high, ONE)
        pair = [x for i in (entry, ir.add(entry, ONE)) for x in self._accumulate(sums, i, ZERO)]
        is_odd = (low < high) & (ir.sub(high, low) & ONE).eq(ONE)
        body = [
            ir.Let(low, ir.read(at)),
            ir.Let(high, self.bounds(row)[1]),
            *self._clear(sums),
            ir.For(entry, low, last, "serial", pair, step=const(2)),
            ir.If(is_odd, self._accumulate(sums, last, ZERO)),
            *self.write(row, ZERO, tuple(ir.reads(sums))),
            ir.Set(at, high),
        ]
        return [ir.Set(at, self.bounds(start)[0]), ir.For(row, start, stop, "serial", body)]

    def along_columns(self, row: Expr, columns: Expr, unroll: int) -> list[Stmt]:
        """`unroll` vectors of columns are summed side by side over the entries of the row."""
        sums, entry, column = self.registers(True), ir.var("entry"), ir.var("column")
        lets, low, high = self._bound(row)
        loop = ir.For(entry, low, high, "serial", self._accumulate(sums, entry, column))
        body = [*self._clear(sums), loop, *self.write(row, column, tuple(ir.reads(sums)))]
        return [*lets, ir.For(column, ZERO, columns, "lanes", body, unroll=unroll)]


@dataclass(frozen=True)
class Extremes:
    """Which entry of each row has the largest or smallest term; arguments as of `Rows`."""

    dtype: DType  # of terms
    position: DType  # of entries
    largest: bool
    bounds: Callable[[Expr], tuple[Expr, Expr]]
    term: Callable[[Expr, Expr], Expr]
    write: Callable[[Expr, Expr, Expr], list[Stmt]]

    def _search(self, row: Expr, column: Expr) -> tuple[list[Stmt], list[Stmt]]:
        """The bounds of a row, and the walk over its entries."""
        best = ir.Register("best", self.dtype, lanes=True)
        where = ir.Register("where", self.position, lanes=True)
        low, high, entry = ir.var("low"), ir.var("high"), ir.var("entry")
        term, held = ir.var("term", self.dtype), ir.var("held", self.dtype)
        at, take = ir.var("at", self.position), ir.var("take", dt.bool_)
        better = term > held if self.largest else term < held
        if self.dtype.is_floating:  # a NaN stays
            better = better | (term.ne(term) & held.eq(held))
        first, last = self.bounds(row)
        none = const(-1, self.position)
        body: list[Stmt] = [
            ir.Let(term, self.term(entry, column)),
            ir.Let(held, ir.read(best)),
            ir.Let(at, ir.read(where)),
            ir.Let(take, better | at.eq(none)),
            ir.Set(best, ir.select(take, term, held)),
            ir.Set(where, ir.select(take, entry.cast(self.position), at)),
        ]
        found = ir.maximum(ir.read(where), const(0, self.position))
        walk = [
            ir.Set(best, const(0, self.dtype)),
            ir.Set(where, none),
            ir.For(entry, low, high, "serial", body),
            *self.write(row, column, found),
        ]
        return [ir.Let(low, first), ir.Let(high, last)], walk

    def along_columns(self, row: Expr, columns: Expr) -> list[Stmt]:
        """Lanes run along the columns."""
        column = ir.var("column")
        lets, walk = self._search(row, column)
        return [*lets, ir.For(column, ZERO, columns, "lanes", walk)]

    def per_lane(self, row: Expr, column: Expr) -> list[Stmt]:
        """Each lane has a row and column of its own."""
        lets, walk = self._search(row, column)
        return [*lets, *walk]
