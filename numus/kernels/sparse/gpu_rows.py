"""Products of compressed sparse rows with dense columns on GPUs.

One column: a block streams the products of its rows through shared memory, so that loads of entries
are coalesced whatever the rows are like, and lanes of a warp sum those of a row (CSR-Stream,
Greathouse & Daga 2014). Many columns, and rows that are about as long as
each other: a thread has a row, or a vector of its columns; rows of the operand that several entries
ask for are loaded before the first is needed, and are added in the order of the entries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const

ZERO, ONE = const(0), const(1)

# Elements of a row of the operand from a column on: (statements, row, column, count, tag, whether
# as vectors).
LoadColumns = Callable[[list[Stmt], Expr, Expr, int, str, bool], list[Expr]]


@dataclass(frozen=True)
class ThreadRows:
    """How threads see the matrix and its operand.

    `bounds(row)` are the first and the past-the-last entry of a row; `column(entry)` and
    `value(entry)` what an entry is; `store(row, column, sums)` results from a column on.
    """

    dtype: DType  # of the accumulators
    bounds: Callable[[Expr], tuple[Expr, Expr]]
    column: Callable[[Expr], Expr]
    value: Callable[[Expr], Expr]
    load: LoadColumns
    store: Callable[[Expr, Expr, list[Expr], bool], list[Stmt]]

    def vector(
        self, row: Expr, column: Expr, width: int, unroll: int, vectorised: bool
    ) -> list[Stmt]:
        """`width` columns of a row; operands of `unroll` entries, a power of two, at a time."""
        sums = [ir.Register(f"sum{i}", self.dtype, lanes=True) for i in range(width)]
        low, high, stop, entry = (ir.var(n) for n in ("low", "high", "stop", "entry"))
        first, last = self.bounds(row)

        def several(first: Expr, count: int) -> list[Stmt]:
            out: list[Stmt] = []
            rows = [ir.var(f"row{j}") for j in range(count)]
            values = [ir.var(f"value{j}", self.dtype) for j in range(count)]
            for j, (name, value) in enumerate(zip(rows, values, strict=True)):
                at = ir.add(first, const(j))
                out += [ir.Let(name, self.column(at)), ir.Let(value, self.value(at))]
            found = [
                self.load(out, at, column, width, f"x{j}", vectorised) for j, at in enumerate(rows)
            ]
            for value, xs in zip(values, found, strict=True):
                for s, x in zip(sums, xs, strict=True):
                    out.append(ir.Set(s, multiply_add(value, x, ir.read(s))))
            return out

        rest = ir.sub(high, low) & const(unroll - 1)
        out: list[Stmt] = [ir.Let(low, first), ir.Let(high, last), ir.Let(stop, high - rest)]
        out += [ir.Set(s, const(0, self.dtype)) for s in sums]
        step = several(entry, unroll)
        out.append(ir.For(entry, low, stop, "serial", step, step=const(unroll)))
        count = unroll // 2
        while count:
            at = ir.add(stop, rest & const(unroll - 2 * count)) if 2 * count < unroll else stop
            out.append(ir.If((rest & const(count)).ne(ZERO), several(at, count)))
            count //= 2
        return [*out, *self.store(row, column, ir.reads(sums), vectorised)]

    def streamed(
        self, threads: int, depth: int, span: tuple[Expr, Expr], lanes: int
    ) -> tuple[list[Stmt], list[ir.Buffer]]:
        """One column of at most threads / lanes rows. `depth` products of each thread are in
        flight; `lanes`, a power of two, sum those of a row, one part of the stream after the
        other."""
        size, (start, stop) = threads * depth, span
        products = ir.Buffer("products", self.dtype, "scratch", const(size))
        total = ir.Register("total", self.dtype, lanes=True)
        low, high, part, thread, row = (ir.var(n) for n in ("low", "high", "part", "thread", "row"))

        def every(body: list[Stmt]) -> Stmt:
            return ir.For(thread, ZERO, const(threads), "lanes", body, width=1)

        def multiply() -> list[Stmt]:
            """Past the end the last entry again, which no row asks for."""
            out: list[Stmt] = []
            entries: list[tuple[Expr, Expr, Expr]] = []
            for u in range(depth):
                at, column = ir.var(f"at{u}"), ir.var(f"column{u}")
                value, own = ir.var(f"value{u}", self.dtype), ir.add(thread, const(u * threads))
                out.append(ir.Let(at, ir.minimum(ir.add(part, own), ir.sub(high, ONE))))
                out += [ir.Let(column, self.column(at)), ir.Let(value, self.value(at))]
                entries.append((own, column, value))
            found = [
                self.load(out, column, ZERO, 1, f"x{u}", False)[0]
                for u, (_, column, _) in enumerate(entries)
            ]
            for (own, _, value), x in zip(entries, found, strict=True):
                out.append(ir.Store(products, own, value * x))
            return out

        def add() -> list[Stmt]:
            entry, begin, end = ir.var("entry"), ir.var("begin"), ir.var("end")
            first, last = self.bounds(ir.minimum(row, ir.sub(stop, ONE)))
            term = ir.load(products, ir.sub(entry, part))
            accumulate: list[Stmt] = [ir.Set(total, ir.read(total) + term)]
            return [
                ir.Let(row, ir.add(start, thread // lanes)),
                ir.Let(begin, ir.add(ir.maximum(first, part), thread % lanes)),
                ir.Let(end, ir.minimum(last, ir.add(part, const(size)))),
                ir.For(entry, begin, end, "serial", accumulate, step=const(lanes)),
            ]

        sums: Expr = ir.read(total)
        mask, reduce = lanes // 2, list[Stmt]()
        while mask:
            half = ir.var(f"total_{mask}", self.dtype)
            reduce.append(ir.Let(half, sums + ir.lanes_xor(sums, mask)))
            sums, mask = half, mask // 2
        store = self.store(row, ZERO, [sums], False)
        is_own = (thread % lanes).eq(ZERO) & (row < stop)
        return [
            ir.Let(low, self.bounds(start)[0]),
            ir.Let(high, self.bounds(ir.sub(stop, ONE))[1]),
            every([ir.Set(total, const(0, self.dtype))]),
            ir.For(part, low, high, "serial", [every(multiply()), every(add())], step=const(size)),
            every([ir.Let(row, ir.add(start, thread // lanes)), *reduce, ir.If(is_own, store)]),
        ], [products]


def multiply_add(a: Expr, b: Expr, total: Expr) -> Expr:
    if total.dtype.is_floating:
        return ir.fma(a, b, total, allow_unfused=True)
    return total + a * b
