"""Substitution by supernodes (Ng & Peyton 1993): the columns of one share their rows, so that an
index is read for each row of a supernode, and all else is dense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const

ZERO, ONE = const(0), const(1)
_UNROLL = 2  # vectors of a column side by side


@dataclass(frozen=True)
class Supernodal:
    """How a kernel sees the triangle and its right-hand side.

    Supernode s has the columns columns(s), from the first to before the last, and the rows
    row(e) below them, e in rows(s). `entries(k)` is the place of the first element of column k
    after its diagonal, `factor` an element by place, `x` one of the vector, which is updated.
    """

    dtype: DType  # of the accumulator
    work: ir.Buffer  # for the longest column
    columns: Callable[[Expr], tuple[Expr, Expr]]
    rows: Callable[[Expr], tuple[Expr, Expr]]
    row: Callable[[Expr], Expr]
    entries: Callable[[Expr], Expr]
    factor: Callable[[Expr], Expr]
    x: Callable[[Expr], Expr]
    write: Callable[[Expr, Expr], list[Stmt]]

    def _gathered(self, s: Expr) -> tuple[list[Stmt], tuple[Expr, ...]]:
        """The elements of x of a supernode and of its rows, in the working array."""
        names = ("begin", "end", "low", "high", "width", "side", "i")
        begin, end, low, high, width, side, i = map(ir.var, names)
        first, last = self.columns(s)
        start, stop = self.rows(s)
        outer = self.x(self.row(ir.add(low, i)))
        return [
            ir.Let(begin, first),
            ir.Let(end, last),
            ir.Let(low, start),
            ir.Let(high, stop),
            ir.Let(width, ir.sub(end, begin)),
            ir.Let(side, ir.add(width, ir.sub(high, low))),
            ir.For(
                *(i, ZERO, width, "lanes"),
                [ir.Store(self.work, i, self.x(ir.add(begin, i)))],
            ),
            ir.For(
                *(i, ZERO, ir.sub(high, low), "lanes"),
                [ir.Store(self.work, ir.add(width, i), outer)],
            ),
        ], (begin, low, high, width, side)

    def forward(self, count: Expr) -> list[Stmt]:
        """Column after column is subtracted from what is below it."""
        s, k, j, i = (ir.var(name) for name in ("s", "k", "j", "i"))
        at, own = ir.var("at"), ir.var("own", self.dtype)
        lets, (begin, low, high, width, side) = self._gathered(s)
        rest = ir.load(self.work, j) - self.factor(ir.add(at, ir.sub(j, ir.add(k, ONE)))) * own
        less: list[Stmt] = [ir.Store(self.work, j, rest)]
        column = [
            ir.Let(at, self.entries(ir.add(begin, k))),
            ir.Let(own, ir.load(self.work, k)),
            ir.For(j, ir.add(k, ONE), side, "lanes", less, unroll=_UNROLL),
        ]
        body = [
            *lets,
            ir.For(k, ZERO, width, "serial", column),
            ir.For(i, ZERO, width, "lanes", self.write(ir.add(begin, i), ir.load(self.work, i))),
            ir.For(
                *(i, ZERO, ir.sub(high, low), "lanes"),
                self.write(self.row(ir.add(low, i)), ir.load(self.work, ir.add(width, i))),
            ),
        ]
        return [ir.For(s, ZERO, count, "serial", body)]

    def backward(self, count: Expr) -> list[Stmt]:
        """Row after row, from the last, less its product with what is found."""
        step, s, back, k, j = (ir.var(name) for name in ("step", "s", "back", "k", "j"))
        at, total = ir.var("at"), ir.Register("total", self.dtype, lanes=True)
        found = ir.var("found", self.dtype)
        lets, (begin, _, _, width, side) = self._gathered(s)
        term = self.factor(ir.add(at, ir.sub(j, ir.add(k, ONE)))) * ir.load(self.work, j)
        more: list[Stmt] = [ir.Set(total, ir.read(total) + term)]
        row = [
            ir.Let(k, ir.sub(ir.sub(width, ONE), back)),
            ir.Let(at, self.entries(ir.add(begin, k))),
            ir.Set(total, const(0, self.dtype)),
            ir.For(j, ir.add(k, ONE), side, "lanes", more, unroll=_UNROLL),
            ir.Let(found, ir.load(self.work, k) - ir.lanes_reduce("add", total)),
            ir.Store(self.work, k, found),
            *self.write(ir.add(begin, k), found),
        ]
        body = [
            ir.Let(s, ir.sub(ir.sub(count, ONE), step)),
            *lets,
            ir.For(back, ZERO, width, "serial", row),
        ]
        return [ir.For(step, ZERO, count, "serial", body)]
