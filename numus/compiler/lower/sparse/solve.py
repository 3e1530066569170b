"""Schedules of triangular solutions: a right-hand side per task of a CPU, per block of a GPU; by
supernodes, a right-hand side per task."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import ONE, ZERO
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.sparse.product import (
    ProductProblem,
    bounds,
    clamped,
    multiply,
    parts,
)
from numus.ir import Expr, Stmt, const
from numus.kernels.sparse.substitution import Number, Substitution
from numus.kernels.sparse.supernodes import Supernodal
from numus.shapes import row_major


@dataclass(frozen=True)
class SolveTuning:
    """Measured on a 2-core x86-64 (Sapphire Rapids)."""

    task_columns: int = 16  # right-hand sides of a task: the matrix is read once for them


TUNING = SolveTuning()


def _substitution(p: ProductProblem, e: Emitter, batch: Expr, first: Expr) -> Substitution:
    """Columns count from the first of a task on."""
    _, _, pointers, indices, values, b = p.val.inputs
    val = p.val
    out = e.buffer(val, "write")

    def term(entry: Expr, column: Expr) -> tuple[list[Stmt], Number]:
        row = clamped(e, indices, entry, val.shape[1])
        at = e.address(val, (batch, row, ir.add(first, column)), row_major(val.shape))
        places = [at] if not val.dtype.is_complex else [at * const(2), at * const(2) + ONE]
        lets, found = ir.bind([ir.load(out, i) for i in places], "x")
        x = tuple(found) if val.dtype.is_complex else found[0]
        return lets, multiply(e.value(values, (batch, entry)), x, val.dtype)

    def start(row: Expr, column: Expr) -> Number:
        number = parts(e.value(b, (batch, row, ir.add(first, column))))
        return tuple(x.cast(p.accumulator) for x in number)

    def write(row: Expr, column: Expr, total: Number) -> list[Stmt]:
        value = total if val.dtype.is_complex else total[0].cast(val.dtype)
        return e.store(val, (batch, row, ir.add(first, column)), value)

    nnz = indices.shape[0]
    components = 2 if val.dtype.is_complex else 1

    def span(row: Expr) -> tuple[Expr, Expr]:
        return bounds(e, pointers, row, nnz)

    return Substitution(p.accumulator, components, span, term, start, write)


def lower_solve(p: ProductProblem) -> Kernels:
    """From row to row."""
    count, rows, columns = p.val.shape
    width = min(columns, TUNING.task_columns)
    tasks = -(-columns // max(1, width))
    e = Emitter(p.layouts)
    g = ir.var("g")
    batch, task = divmod(g, e.scalar_arg(tasks)) if count > 1 else (ZERO, g)
    if columns == 1:
        body = _substitution(p, e, batch, ZERO).in_turn(e.dim(rows), ONE, bool(p.val.params))
    else:
        low, high = ir.var("first_column"), ir.var("last_column")
        first, last = ir.block_range(task, e.scalar_arg(width), e.dim(columns))
        solve = _substitution(p, e, batch, low)
        body = [
            ir.Let(low, first),
            ir.Let(high, last),
            *solve.in_turn(e.dim(rows), ir.sub(high, low), bool(p.val.params)),
        ]
    return [e.grid_kernel("csr_solve", g, body, count * tasks, (p.val.op,))]


def lower_solve_levels(p: ProductProblem) -> Kernels:
    """Threads of a block share the rows of a level."""
    starts, order = p.val.inputs[:2]
    count, rows, columns = p.val.shape
    e = Emitter(p.layouts, block_size=p.target.block_size)
    g = ir.var("g")
    batch, column = divmod(g, e.dim(columns)) if columns > 1 else (g, ZERO)
    solve = _substitution(p, e, batch, ZERO)

    def pointer(level: Expr) -> Expr:
        return bounds(e, starts, level, rows)[0]

    body = solve.by_levels(
        e.dim(starts.shape[0] - 1), pointer, lambda i: clamped(e, order, i, rows), column
    )
    return [e.grid_kernel("csr_solve", g, body, count * columns, (p.val.op,))]


def lower_supernodes(p: ProductProblem) -> Kernels:
    """A dense column after the other."""
    first, starts, below, entries, values, b = p.val.inputs
    rows, columns = p.val.shape
    e = Emitter(p.layouts)
    column, i = ir.var("column"), ir.var("i")
    work = ir.Buffer("work", p.accumulator, "scratch", e.dim(rows))
    out = e.buffer(p.val, "write")

    def number(array: Value, at: Expr) -> Expr:
        found: Expr = e.value(array, (at,)).cast(dt.int64)
        return found

    def pair(array: Value, s: Expr) -> tuple[Expr, Expr]:
        return number(array, s), number(array, ir.add(s, ONE))

    def x(row: Expr) -> Expr:
        at = e.address(p.val, (row, column), row_major(p.val.shape))
        return ir.load(out, at).cast(p.accumulator)

    def write(row: Expr, value: Expr) -> list[Stmt]:
        return e.store(p.val, (row, column), value.cast(p.val.dtype))

    def factor(at: Expr) -> Expr:
        found: Expr = e.value(values, (at,)).cast(p.accumulator)
        return found

    solve = Supernodal(
        p.accumulator,
        work,
        columns=lambda s: pair(first, s),
        rows=lambda s: pair(starts, s),
        row=lambda at: number(below, at),
        entries=lambda k: number(entries, k),
        factor=factor,
        x=x,
        write=write,
    )
    count = e.dim(first.shape[0] - 1)
    copied = e.store(p.val, (i, column), e.value(b, (i, column)))
    body = [
        ir.For(i, ZERO, e.dim(rows), "lanes", copied),
        *(solve.backward(count) if p.val.params else solve.forward(count)),
    ]
    e.scratch = [work]
    return [e.grid_kernel(p.val.op, column, body, columns, (p.val.op,))]
