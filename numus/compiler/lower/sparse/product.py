"""Schedules of sparse × dense products: rows of a CPU's task, elements of a GPU's threads."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import ONE, ZERO
from numus.compiler.lower.elementwise import lower
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.schedule import Problem
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.sparse.rows import (
    BLOCK_COLUMNS,
    PANEL_ENTRIES,
    Extremes,
    Number,
    Rows,
    gather_block,
    prefetch_block,
)


@dataclass(frozen=True)
class ProductTuning:
    """Measured on a 2-core x86-64 (Sapphire Rapids)."""

    block_terms: int = 1 << 16  # products of a task: few enough that long rows even out
    column_vectors: int = 4  # accumulated side by side
    head_columns: int = 1024  # of a batch whose rows are computed in turn, as attention heads are
    run_rows: int = 4  # of a run that are summed side by side


TUNING = ProductTuning()


@dataclass(frozen=True)
class ProductProblem(Problem):
    @property
    def accumulator(self) -> DType:
        return dt.compute_dtype(dt.real_of(self.val.dtype))

    @property
    def nnz(self) -> int:
        return self.val.inputs[1].shape[0]

    @property
    def row_entries(self) -> int:
        """Of an average row."""
        return self.nnz // max(1, self.val.shape[1])


def parts(value: Any) -> Number:
    """The real parts of an element."""
    return value if isinstance(value, tuple) else (value,)


def multiply(a: Any, b: Any, dtype: DType) -> Number:
    """A product in the accumulator's dtype."""
    if dtype.is_complex:
        return parts(lower("mul", [a, b], [dtype, dtype], dtype, None))
    wide = dt.compute_dtype(dtype)
    return (a.cast(wide) * b.cast(wide),)


def bounds(e: Emitter, pointers: Value, row: Expr, nnz: int) -> tuple[Expr, Expr]:
    """The entries of a row, all of them in memory."""
    low, high = (at_most(e.value(pointers, (r,)), e.dim(nnz)) for r in (row, ir.add(row, ONE)))
    return low, high


def at_most(number: Expr, last: Expr) -> Expr:
    """A number that is not above a bound; negative ones, which are large without a sign, are."""
    unsigned = dt.uint64 if number.dtype is dt.int64 else dt.uint32
    return ir.minimum(number.cast(unsigned), last.cast(unsigned)).cast(dt.int64)


def clamped(e: Emitter, indices: Value, entry: Expr, extent: int) -> Expr:
    """The column of an entry."""
    return at_most(e.value(indices, (entry,)), ir.sub(e.dim(extent), ONE))


def _rows(p: ProductProblem, e: Emitter, batch: Expr) -> Rows:
    pointers, indices, values, x = p.val.inputs[:4]
    val = p.val

    def term(entry: Expr, column: Expr) -> Number:
        at = clamped(e, indices, entry, x.shape[1])
        number = e.value(values, (batch, entry))
        return multiply(number, e.value(x, (batch, at, column)), val.dtype)

    def write(row: Expr, column: Expr, total: Number) -> list[Stmt]:
        value = total if val.dtype.is_complex else total[0].cast(val.dtype)
        return e.store(val, (batch, row, column), value)

    components = 2 if val.dtype.is_complex else 1
    return Rows(p.accumulator, components, lambda row: bounds(e, pointers, row, p.nnz), term, write)


def _extremes(p: ProductProblem, e: Emitter, batch: Expr) -> Extremes:
    pointers, indices, values, x = p.val.inputs
    combine, largest = p.val.params
    wide = dt.compute_dtype(x.dtype)

    def term(entry: Expr, column: Expr) -> Expr:
        at = clamped(e, indices, entry, x.shape[1])
        a = e.value(values, (batch, entry)).cast(wide)
        b = e.value(x, (batch, at, column)).cast(wide)
        # rounded as the result will be, so that equal results are equal terms
        found: Expr = (a * b if combine == "mul" else a + b).cast(x.dtype).cast(wide)
        return found

    def write(row: Expr, column: Expr, entry: Expr) -> list[Stmt]:
        return e.store(p.val, (batch, row, column), entry)

    return Extremes(
        *(wide, p.val.dtype, largest),
        *(lambda row: bounds(e, pointers, row, p.nnz), term, write),
    )


def lower_tasks(p: ProductProblem) -> Kernels:
    """A range of rows per task of a CPU."""
    count, rows, columns = p.val.shape
    heads = 1 < count * columns <= TUNING.head_columns and columns > 1
    terms = max(1, p.row_entries) * columns * (count if heads else 1)
    per_task = max(1, TUNING.block_terms // terms)
    e = Emitter(p.layouts)
    g, row, head = ir.var("g"), ir.var("row"), ir.var("head")
    tasks = -(-rows // per_task)
    batch, task = divmod(g, e.scalar_arg(tasks)) if count > 1 and not heads else (ZERO, g)
    batch = head if heads and count > 1 else batch
    span = ir.block_range(task, e.scalar_arg(per_task), e.dim(rows))
    if p.val.op == "csr_extreme":
        lines = _extremes(p, e, batch).along_columns(row, e.dim(columns))
        if batch is head:
            lines = [ir.For(head, ZERO, e.dim(count), "serial", lines)]
            count = 1
        body: list[Stmt] = [ir.For(row, *span, "serial", lines)]
        return [e.grid_kernel(p.val.op, g, body, count * tasks, (p.val.op,))]
    matrix = _rows(p, e, batch)
    if columns > 1:
        lines = matrix.along_columns(row, e.dim(columns), TUNING.column_vectors)
        if batch is head:  # one row after the other: they read the same entries
            lines = [ir.For(head, ZERO, e.dim(count), "serial", lines)]
            count = 1
        body = [ir.For(row, *span, "serial", lines)]
    else:
        body = matrix.in_turn(*span, p.target.gathers)
    return [e.grid_kernel(p.val.op, g, body, count * tasks, (p.val.op,))]


def lower_runs(p: ProductProblem) -> Kernels:
    """A range of segments per task of a CPU, as `RowRuns` has them."""
    pointers, _, values, x, tasks, first, template, offsets = p.val.inputs
    val, (count, rows, _) = p.val, p.val.shape
    e = Emitter(p.layouts)
    g, segment = ir.var("g"), ir.var("segment")
    number = tasks.shape[0] - 1
    batch, task = divmod(g, e.scalar_arg(number)) if count > 1 else (ZERO, g)
    matrix = _rows(p, e, batch)
    names = ("start", "stop", "offset", "entry", "length", "span")
    start, stop, offset, entry, length, span = map(ir.var, names)

    def at(array: Value, i: Expr, most: Expr) -> Expr:
        return at_most(e.value(array, (i,)), most)

    def column(j: Expr) -> Expr:
        moved = ir.add(start, e.value(offsets, (ir.add(offset, j),)).cast(dt.int64))
        # of all rows of the run within the operand
        return ir.minimum(ir.maximum(moved, ZERO), ir.sub(e.dim(x.shape[1]), span))

    def term(entry: Expr, column: Expr) -> Number:
        own = e.value(values, (batch, entry))
        return multiply(own, e.value(x, (batch, column, ZERO)), val.dtype)

    here, after = bounds(e, pointers, start, p.nnz)
    room = ir.idiv(ir.sub(e.dim(p.nnz), entry), ir.maximum(span, ONE))
    run = [
        ir.Let(entry, here),
        ir.Let(length, ir.minimum(ir.sub(after, here), room)),
        *matrix.in_run(start, stop, entry, length, TUNING.run_rows, column, term),
    ]
    is_run = ir.var("is_run", dt.bool_)
    body = [
        ir.Let(start, at(first, segment, e.dim(rows))),
        ir.Let(stop, at(first, ir.add(segment, ONE), e.dim(rows))),
        ir.Let(span, ir.sub(stop, start)),
        ir.Let(offset, e.value(template, (segment,)).cast(dt.int64)),
        ir.Let(is_run, ~(offset < ZERO)),
        ir.If(is_run, run),
        ir.If(~is_run, matrix.in_turn(start, stop, p.target.gathers)),
    ]
    low, high = ir.var("first_segment"), ir.var("last_segment")
    segments = e.dim(template.shape[0])
    loop = [
        ir.Let(low, at(tasks, task, segments)),
        ir.Let(high, at(tasks, ir.add(task, ONE), segments)),
        ir.For(segment, low, high, "serial", body),
    ]
    return [e.grid_kernel(val.op, g, loop, count * number, (val.op, "runs of rows"))]


def lower_blocks(p: ProductProblem) -> Kernels:
    """A panel of rows per task of a CPU, as `ColumnBlocks` has them."""
    values, x, panels, starts, offsets, places = p.val.inputs[2:]
    val, (count, rows, _) = p.val, p.val.shape
    e = Emitter(p.layouts)
    g, block, first = (ir.var(name) for name in ("g", "block", "first"))
    number = panels.shape[0] - 1
    blocks = (starts.shape[0] - 1) // max(1, number)
    batch, task = divmod(g, e.scalar_arg(number)) if count > 1 else (ZERO, g)
    width, last = const(BLOCK_COLUMNS), ir.sub(e.dim(x.shape[1]), ONE)
    size = const(PANEL_ENTRIES)
    names = ("real", "imag") if val.dtype.is_complex else ("gathered",)
    gathered = e.scratch = [ir.Buffer(n, p.accumulator, "scratch", size) for n in names]

    def begin(b: Expr) -> Expr:
        return at_most(e.value(starts, (b,)), e.dim(p.nnz))

    def element(offset: Expr) -> Number:
        column = ir.minimum(ir.add(ir.mul(block, width), offset), last)
        found = parts(e.value(x, (batch, column, ZERO)))
        return tuple(part.cast(p.accumulator) for part in found)

    def gather(k: Expr) -> Number:
        return element(e.value(offsets, (k,)).cast(dt.int64))

    def place(k: Expr) -> Expr:
        return at_most(k, const(PANEL_ENTRIES - 1))

    def store(k: Expr, found: Number) -> list[Stmt]:
        at = place(ir.sub(k, first))
        return [ir.Store(b, at, part) for b, part in zip(gathered, found, strict=True)]

    def term(entry: Expr, _: Expr) -> Number:
        at = place(e.value(places, (entry,)))
        own = tuple(ir.load(b, at) for b in gathered)
        number = e.value(values, (batch, entry))
        return multiply(number, own if val.dtype.is_complex else own[0], val.dtype)

    matrix = dataclasses.replace(_rows(p, e, batch), term=term)
    start, stop = (at_most(e.value(panels, (t,)), e.dim(rows)) for t in (task, ir.add(task, ONE)))
    own = ir.add(ir.mul(task, e.scalar_arg(blocks)), block)
    low, high = ir.var("block_low"), ir.var("block_high")
    body = [
        ir.Let(first, begin(ir.mul(task, e.scalar_arg(blocks)))),
        ir.For(
            *(block, ZERO, e.scalar_arg(blocks), "serial"),
            [
                ir.Let(low, begin(own)),
                ir.Let(high, begin(ir.add(own, ONE))),
                *prefetch_block(width, x.dtype.itemsize, element),
                *gather_block(low, high, p.target.gathers, gather, store),
            ],
        ),
        *matrix.in_turn(start, stop, p.target.gathers),
    ]
    return [e.grid_kernel(val.op, g, body, count * number, (val.op, "blocks of columns"))]


def lower_threads(p: ProductProblem) -> Kernels:
    """An element of the result per thread of a GPU: columns are adjacent in memory."""
    count, rows, columns = p.val.shape
    threads = p.target.block_size
    per_batch = -(-rows * columns // threads)
    e = Emitter(p.layouts, block_size=threads)
    g, i = ir.var("g"), ir.var("i")
    batch, block = divmod(g, e.scalar_arg(per_batch)) if count > 1 else (ZERO, g)
    row = ir.idiv(i, e.dim(columns)) if columns > 1 else i
    column = ir.irem(i, e.dim(columns)) if columns > 1 else ZERO
    if p.val.op == "csr_extreme":
        body = _extremes(p, e, batch).per_lane(row, column)
    else:
        body = _rows(p, e, batch).scalar(row, column, lanes=True)
    span = ir.block_range(block, const(threads), e.dim(rows * columns))
    loop = ir.For(i, *span, "lanes", body)
    return [e.grid_kernel(p.val.op, g, [loop], count * per_batch, (p.val.op,))]
