"""Products of compressed sparse rows with dense columns on GPUs, by groups of lanes for each row.

One column: some lanes of a warp take the entries of a row in turns and add their sums by shuffles
(CSR vector, Bell & Garland 2009), so that loads of neighbouring lanes are coalesced. Many columns:
a thread has a vector of them; rows of the operand that several entries ask for are loaded before
the first is needed, and are added in the order of the entries.
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
                    out.append(ir.Set(s, _multiply_add(value, x, ir.read(s))))
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

    def shared(self, thread: Expr, rows: Expr, lanes: int) -> list[Stmt]:
        """A row of one column for a power of two of lanes; warps are complete."""
        total, entry = ir.Register("total", self.dtype, lanes=True), ir.var("entry")
        row, own = ir.var("row"), ir.var("own")
        low, high = ir.var("low"), ir.var("high")
        # past the end the last row again, which is stored once
        first, last = self.bounds(ir.minimum(row, ir.sub(rows, ONE)))
        loaded: list[Stmt] = []
        (x,) = self.load(loaded, self.column(entry), ZERO, 1, "x", False)
        loaded.append(ir.Set(total, _multiply_add(self.value(entry), x, ir.read(total))))
        out: list[Stmt] = [
            ir.Let(row, thread // lanes),
            ir.Let(own, thread % lanes),
            ir.Let(low, first),
            ir.Let(high, last),
            ir.Set(total, const(0, self.dtype)),
            ir.For(entry, ir.add(low, own), high, "serial", loaded, step=const(lanes)),
        ]
        found: Expr = ir.read(total)
        mask = lanes // 2
        while mask:
            part = ir.var(f"total_{mask}", self.dtype)
            out.append(ir.Let(part, found + ir.lanes_xor(found, mask)))
            found, mask = part, mask // 2
        return [*out, ir.If(own.eq(ZERO) & (row < rows), self.store(row, ZERO, [found], False))]


def _multiply_add(a: Expr, b: Expr, total: Expr) -> Expr:
    if total.dtype.is_floating:
        return ir.fma(a, b, total, allow_unfused=True)
    return total + a * b
