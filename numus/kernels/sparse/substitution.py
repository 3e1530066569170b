"""Substitution with unit triangular sparse matrices: row by row on a CPU, level by level on a GPU
(level scheduling, Anderson & Saad 1989)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const

ZERO, ONE = const(0), const(1)

_CHAINS = 4  # sums of a row: as many as an addition takes cycles

Number = tuple[Expr, ...]


@dataclass(frozen=True)
class Substitution:
    """How a kernel sees the matrix and its right-hand side.

    `term(entry, column)` is the product of an entry with the solution of its row, as statements and
    a number; `start(row, column)` is the right-hand side; `write` stores an element.
    """

    dtype: DType  # of the accumulator
    components: int
    bounds: Callable[[Expr], tuple[Expr, Expr]]
    term: Callable[[Expr, Expr], tuple[list[Stmt], Number]]
    start: Callable[[Expr, Expr], Number]
    write: Callable[[Expr, Expr, Number], list[Stmt]]

    def in_chains(self, row: Expr, span: tuple[Expr, Expr]) -> list[Stmt]:
        """One element on a CPU: most of a long row in sums of their own, which do not wait for each
        other; the last entries, in a lower triangle the youngest solutions, one by one."""
        low, high = span
        chains = [
            [ir.Register(f"sum{i}_{k}", self.dtype) for i in range(self.components)]
            for k in range(_CHAINS)
        ]
        entry, rest, middle = ir.var("entry"), ir.var("rest"), ir.var("middle")

        def less(sums: list[ir.Register], at: Expr) -> list[Stmt]:
            lets, term = self.term(at, ZERO)
            return [*lets, *(ir.Set(s, ir.read(s) - t) for s, t in zip(sums, term, strict=True))]

        first = self.start(row, ZERO)
        several = [x for k, sums in enumerate(chains) for x in less(sums, ir.add(entry, const(k)))]
        total = [
            (ir.read(a) + ir.read(b)) + (ir.read(c) + ir.read(d))
            for a, b, c, d in zip(*chains, strict=True)
        ]
        count = ir.sub(high, low)
        return [
            *(ir.Set(s, x) for s, x in zip(chains[0], first, strict=True)),
            *(ir.Set(s, const(0, self.dtype)) for sums in chains[1:] for s in sums),
            ir.Let(middle, ir.sub(high, ir.irem(count, const(_CHAINS)))),
            ir.For(entry, low, middle, "serial", several, step=const(_CHAINS)),
            *(ir.Set(s, x) for s, x in zip(chains[0], total, strict=True)),
            ir.For(rest, middle, high, "serial", less(chains[0], rest)),
            *self.write(row, ZERO, tuple(ir.reads(chains[0]))),
        ]

    def element(self, row: Expr, column: Expr, span: tuple[Expr, Expr], lanes: bool) -> list[Stmt]:
        sums = [ir.Register(f"sum{i}", self.dtype, lanes=lanes) for i in range(self.components)]
        entry = ir.var("entry")
        lets, term = self.term(entry, column)
        less = [ir.Set(s, ir.read(s) - t) for s, t in zip(sums, term, strict=True)]
        first = self.start(row, column)
        return [
            *(ir.Set(s, x) for s, x in zip(sums, first, strict=True)),
            ir.For(entry, *span, "serial", [*lets, *less]),
            *self.write(row, column, tuple(ir.reads(sums))),
        ]

    def _row(self, row: Expr, body: Callable[[tuple[Expr, Expr]], Sequence[Stmt]]) -> list[Stmt]:
        low, high = ir.var("low"), ir.var("high")
        first, last = self.bounds(row)
        return [ir.Let(low, first), ir.Let(high, last), *body((low, high))]

    def in_turn(self, rows: Expr, columns: Expr, upper: bool) -> list[Stmt]:
        """One row after the other; lanes run along the columns."""
        step, row, column = ir.var("step"), ir.var("row"), ir.var("column")
        at = ir.sub(ir.sub(rows, ONE), step) if upper else step

        def body(span: tuple[Expr, Expr]) -> list[Stmt]:
            if columns is ONE:
                return self.in_chains(row, span)
            return [ir.For(column, ZERO, columns, "lanes", self.element(row, column, span, True))]

        return [ir.For(step, ZERO, rows, "serial", [ir.Let(row, at), *self._row(row, body)])]

    def by_levels(
        self, levels: Expr, starts: Callable[[Expr], Expr], order: Callable[[Expr], Expr],
        column: Expr,
    ) -> list[Stmt]:  # fmt: skip
        """The rows of a level are those of the threads of a block."""
        level, i, row = ir.var("level"), ir.var("i"), ir.var("row")
        first, last = ir.var("first"), ir.var("last")
        body = [
            ir.Let(row, order(i)),
            *self._row(row, lambda span: self.element(row, column, span, True)),
        ]
        return [
            ir.For(
                *(level, ZERO, levels, "serial"),
                [
                    ir.Let(first, starts(level)),
                    ir.Let(last, starts(ir.add(level, ONE))),
                    ir.For(i, first, last, "lanes", body),
                ],
            )
        ]
