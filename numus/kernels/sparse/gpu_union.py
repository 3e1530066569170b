"""Symbolic phase of sparse × sparse products on GPUs: a warp per row of the result.

The columns that the rows of the second operand have are flagged in a window of bytes in shared
memory, one window after the other from the lowest column on; those without a column are passed
over. Threads count the flags of a segment of the window each, or list them where a scan over the
threads says: they are in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.sparse.gustavson import Bounds, Matrix, lower_bound

ZERO, ONE = const(0), const(1)
_SEGMENT = 128  # columns of a thread
_STRIDE = _SEGMENT + 4  # bytes: threads read of different banks
_LONG = 64  # entries of a row from which on its part in a window is searched for
_FAR = const(1 << 62)

Visit = Callable[[Expr], list[Stmt]]  # a window, by its first column


@dataclass(frozen=True)
class WarpUnion:
    """How warps see the operands, whose rows have their columns in order; `steps` suffice for a
    binary search in a row of b."""

    a: Matrix
    b: Matrix
    steps: Expr
    threads: int

    def count(
        self, rows: tuple[Expr, Expr], write: Callable[[Expr, Expr], list[Stmt]]
    ) -> tuple[list[Stmt], list[ir.Buffer]]:
        """write(row, the number of its columns) for a range of rows."""
        row, thread, flags = ir.var("row"), ir.var("thread"), self._flags()
        own = ir.Register("own", dt.uint32, lanes=True)
        total = ir.lanes_reduce("add", own).cast(dt.int64)
        body = [
            self._every(thread, [ir.Set(own, const(0, dt.uint32))]),
            *self._windows(row, flags, lambda _: [self._every(thread, [_add(flags, thread, own)])]),
            *write(row, total),
        ]
        return [ir.For(row, *rows, "serial", body)], [flags]

    def listed(
        self, rows: tuple[Expr, Expr], place: Bounds, write: Callable[[Expr, Expr], list[Stmt]]
    ) -> tuple[list[Stmt], list[ir.Buffer]]:
        """write(position, column) for the columns of a range of rows, in order; `place(row)` are
        the positions of a row."""
        row, thread, j, flags = ir.var("row"), ir.var("thread"), ir.var("j"), self._flags()
        at, written = ir.Register("at", dt.uint32, lanes=True), ir.Register("written", ir.INDEX)
        room, to = ir.var("room"), ir.var("to")
        left, right, total = (ir.var(name, dt.uint32) for name in ("left", "right", "total"))

        def visit(start: Expr) -> list[Stmt]:
            column = ir.add(start, ir.add(ir.mul(thread, const(_SEGMENT)), j))
            one: list[Stmt] = [
                ir.Let(to, ir.add(ir.read(written), ir.read(at).cast(dt.int64))),
                ir.If(to < room, write(to, column)),
                ir.Set(at, ir.read(at) + const(1, dt.uint32)),
            ]
            is_there = _flag(flags, thread, j).ne(const(0, dt.uint32))
            listed = ir.For(j, ZERO, const(_SEGMENT), "serial", [ir.If(is_there, one)])
            zero = const(0, dt.uint32)
            return [
                self._every(thread, [ir.Set(at, zero), _add(flags, thread, at)]),
                ir.BlockScan([at], [left], [right], [left + right], [zero], [total]),
                self._every(thread, [listed]),
                ir.Set(written, ir.add(ir.read(written), total.cast(dt.int64))),
            ]

        first, last = place(row)
        body = [ir.Set(written, first), ir.Let(room, last), *self._windows(row, flags, visit)]
        return [ir.For(row, *rows, "serial", body)], [flags]

    def _flags(self) -> ir.Buffer:
        return ir.Buffer("flags", dt.uint8, "scratch", const(self.threads * _STRIDE))

    def _every(self, thread: Expr, body: list[Stmt]) -> Stmt:
        return ir.For(thread, ZERO, const(self.threads), "lanes", body, width=1)

    def _windows(self, row: Expr, flags: ir.Buffer, visit: Visit) -> list[Stmt]:
        """The windows of a row that have columns, flagged."""
        size = const(self.threads * _SEGMENT)
        following = ir.Register("following", ir.INDEX, lanes=True)
        furthest = ir.Register("furthest", ir.INDEX, lanes=True)
        lowest, low, high = ir.Register("lowest", ir.INDEX), ir.var("low"), ir.var("high")
        entry, thread, start, end = (ir.var(n) for n in ("entry", "thread", "start", "end"))
        k, first, last = ir.var("k"), ir.var("first"), ir.var("last")
        ends = [
            ir.Let(k, self.a.column(entry)),
            *_bounds(self.b, k, first, last),
            ir.If(
                first < last,
                [
                    ir.Set(following, ir.minimum(ir.read(following), self.b.column(first))),
                    ir.Set(
                        furthest,
                        ir.maximum(ir.read(furthest), self.b.column(ir.sub(last, ONE))),
                    ),
                ],
            ),
        ]
        begin, stop = ir.var("begin"), ir.var("stop")
        clear = ir.For(
            thread, ZERO, flags.scratch_size, "lanes", [ir.Store(flags, thread, const(0, dt.uint8))]
        )
        window: list[Stmt] = [
            clear,
            self._every(thread, [ir.Set(following, _FAR)]),
            ir.For(entry, low, high, "serial", self._mark(entry, flags, start, end, following)),
            *visit(start),
            ir.Set(lowest, ir.lanes_reduce("min", following)),
        ]
        own_low, own_high = self.a.bounds(row)
        return [
            ir.Let(low, own_low),
            ir.Let(high, own_high),
            self._every(thread, [ir.Set(following, _FAR), ir.Set(furthest, const(-1))]),
            ir.For(entry, low, high, "lanes", ends, width=1),
            ir.Set(lowest, ir.lanes_reduce("min", following)),
            ir.Let(begin, ir.read(lowest)),
            ir.Let(stop, ir.add(ir.lanes_reduce("max", furthest), ONE)),
            ir.For(
                *(start, begin, stop, "serial"),
                [ir.Let(end, ir.add(start, size)), ir.If(ir.read(lowest) < end, window)],
                step=size,
            ),
        ]

    def _mark(
        self, entry: Expr, flags: ir.Buffer, start: Expr, end: Expr, following: ir.Register
    ) -> list[Stmt]:
        """Flag the columns of a row of b that are in a window; the first one after it."""
        k, low, high, other = (ir.var(n) for n in ("b_row", "b_low", "b_high", "other"))
        since, until = ir.Register("since", ir.INDEX), ir.Register("until", ir.INDEX)
        narrow: list[Stmt] = []
        for bound, to, name in ((start, since, "since"), (end, until, "until")):
            search, found = lower_bound(
                *(self.b.column, low, high, bound, self.steps, name), lanes=False
            )
            narrow += [*search, ir.Set(to, found)]
        after = ir.minimum(ir.add(ir.read(until), ONE), high)
        column, inside = ir.var("column"), ir.var("inside")
        place = ir.add(
            ir.mul(ir.idiv(inside, const(_SEGMENT)), const(_STRIDE)),
            ir.irem(inside, const(_SEGMENT)),
        )
        flag = ir.Store(flags, place, const(1, dt.uint8))
        each = [
            ir.Let(column, self.b.column(other)),
            ir.Let(inside, ir.sub(column, start)),
            ir.If((column < end) & (column >= start), [flag]),
            ir.If(column >= end, [ir.Set(following, ir.minimum(ir.read(following), column))]),
        ]
        return [
            ir.Let(k, self.a.column(entry)),
            *_bounds(self.b, k, low, high),
            ir.Set(since, low),
            ir.Set(until, high),
            ir.If(ir.sub(high, low) > const(_LONG), [*narrow, ir.Set(until, after)]),
            ir.For(other, ir.read(since), ir.read(until), "lanes", each, width=1),
        ]


def _bounds(m: Matrix, row: Expr, low: Expr, high: Expr) -> list[Stmt]:
    first, last = m.bounds(row)
    return [ir.Let(low, first), ir.Let(high, last)]


def _flag(flags: ir.Buffer, thread: Expr, j: Expr) -> Expr:
    return ir.load(flags, ir.add(ir.mul(thread, const(_STRIDE)), j)).cast(dt.uint32)


def _add(flags: ir.Buffer, thread: Expr, total: ir.Register) -> Stmt:
    """The flags of a thread's segment."""
    j = ir.var("j")
    add = ir.Set(total, ir.read(total) + _flag(flags, thread, j))
    return ir.For(j, ZERO, const(_SEGMENT), "serial", [add])
