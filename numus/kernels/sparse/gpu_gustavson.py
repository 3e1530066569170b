"""Numeric phase of sparse × sparse products on GPUs: a warp per row of the mask, part by part.

The columns of a part are in shared memory, in order, each with a sum. The warp takes one row of the
second operand after the other, a lane per entry, which finds its column by a binary search: columns
of a row differ, so that no two lanes add to one sum, and sums have a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.sparse.gustavson import Matrix, Number

ZERO, ONE = const(0), const(1)


@dataclass(frozen=True)
class WarpRows:
    """How warps see the operands: `value(entry of a)`, `term(value, entry of b)` and
    `write(entry of the mask, sum)`, as of `gustavson.numeric`."""

    a: Matrix
    b: Matrix
    mask: Matrix
    index: DType  # of columns
    dtype: DType  # of sums
    components: int
    value: Callable[[Expr], Number]
    term: Callable[[Number, Expr], Number]
    write: Callable[[Expr, Number], list[Stmt]]

    def rows(self, rows: tuple[Expr, Expr], capacity: int) -> tuple[list[Stmt], list[ir.Buffer]]:
        """A range of rows; `capacity`, a power of two, are the columns of a part."""
        columns = ir.Buffer("columns", self.index, "scratch", const(capacity))
        sums = [
            ir.Buffer(f"sums{i}", self.dtype, "scratch", const(capacity))
            for i in range(self.components)
        ]
        row, part, count, i = (ir.var(n) for n in ("row", "part", "count", "i"))
        low, high = ir.var("mask_low"), ir.var("mask_high")
        start: list[Stmt] = [
            ir.Store(columns, i, self.mask.column(ir.add(part, i)).cast(self.index)),
            *(ir.Store(s, i, const(0, self.dtype)) for s in sums),
        ]
        done = self.write(ir.add(part, i), tuple(ir.load(s, i) for s in sums))
        inside = [
            ir.Let(count, ir.minimum(const(capacity), ir.sub(high, part))),
            ir.For(i, ZERO, count, "lanes", start, width=1),
            *self.a.for_row(row, "a", lambda entry: self._add(entry, columns, sums, count)),
            ir.For(i, ZERO, count, "lanes", done, width=1),
        ]
        first, last = self.mask.bounds(row)
        body = [
            ir.Let(low, first),
            ir.Let(high, last),
            ir.For(part, low, high, "serial", inside, step=const(capacity)),
        ]
        return [ir.For(row, *rows, "serial", body)], [columns, *sums]

    def _add(
        self, entry: Expr, columns: ir.Buffer, sums: list[ir.Buffer], count: Expr
    ) -> list[Stmt]:
        """The row of b that an entry of a stands for, where it meets this part."""
        k, low, high, other = (ir.var(n) for n in ("k", "b_low", "b_high", "other"))
        lets, factor = ir.bind(self.value(entry), "factor")
        wanted, at = ir.var("wanted"), ir.var("at")
        found, steps = ZERO, list[Stmt]()
        stride = int(columns.scratch_size.attr) // 2
        while stride:  # the last column that is not above
            further, name = ir.add(found, const(stride)), ir.var(f"at_{stride}")
            held = ir.load(columns, further).cast(wanted.dtype)
            steps.append(
                ir.Let(name, ir.select((further < count) & (held <= wanted), further, found))
            )
            found, stride = name, stride // 2
        bound, terms = ir.bind(self.term(tuple(factor), other), "term")
        updates: list[Stmt] = [
            ir.Store(s, at, ir.load(s, at) + t) for s, t in zip(sums, terms, strict=True)
        ]
        hit = ir.load(columns, at).cast(wanted.dtype).eq(wanted)
        one = [
            ir.Let(wanted, self.b.column(other)),
            *steps,
            ir.Let(at, found),
            ir.If(hit, [*bound, *updates]),
        ]
        first, last = self.b.bounds(k)
        return [
            ir.Let(k, self.a.column(entry)),
            *lets,
            ir.Let(low, first),
            ir.Let(high, last),
            ir.For(other, low, high, "lanes", one, width=1),
        ]
