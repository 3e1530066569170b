"""Schedules of sparse × dense products: rows of a CPU's task, elements of a GPU's threads."""

from __future__ import annotations

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
from numus.kernels.sparse.rows import Extremes, Number, Rows


@dataclass(frozen=True)
class ProductTuning:
    """Measured on a 2-core x86-64 (Sapphire Rapids)."""

    block_terms: int = 1 << 16  # products of a task: few enough that long rows even out
    column_vectors: int = 4  # accumulated side by side
    head_columns: int = 1024  # of a batch whose rows are computed in turn, as attention heads are


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
    low, high = (_at_most(e.value(pointers, (r,)), e.dim(nnz)) for r in (row, ir.add(row, ONE)))
    return low, high


def _at_most(number: Expr, last: Expr) -> Expr:
    """A number that is not above a bound; negative ones, which are large without a sign, are."""
    unsigned = dt.uint64 if number.dtype is dt.int64 else dt.uint32
    return ir.minimum(number.cast(unsigned), last.cast(unsigned)).cast(dt.int64)


def clamped(e: Emitter, indices: Value, entry: Expr, extent: int) -> Expr:
    """The column of an entry."""
    return _at_most(e.value(indices, (entry,)), ir.sub(e.dim(extent), ONE))


def _rows(p: ProductProblem, e: Emitter, batch: Expr) -> Rows:
    pointers, indices, values, x = p.val.inputs
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
        body = matrix.in_turn(*span)
    return [e.grid_kernel(p.val.op, g, body, count * tasks, (p.val.op,))]


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
