"""Schedules of sparse × sparse products, symbolic and numeric."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import ONE, ZERO, temporary
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.sparse.product import ProductProblem, bounds, clamped, multiply, parts
from numus.ir import Expr, Stmt, const
from numus.kernels.sparse.gpu_gustavson import WarpRows
from numus.kernels.sparse.gpu_union import WarpUnion
from numus.kernels.sparse.gustavson import (
    Matrix,
    Number,
    Words,
    compress,
    count_columns,
    list_columns,
    lower_bound,
    numeric,
)


@dataclass(frozen=True)
class GustavsonTuning:
    """Measured on a 2-core x86-64 (Cascade Lake); of warps, on one H200."""

    tasks_per_core: int = 16  # each with an accumulator as wide as the result
    min_task_rows: int = 16
    warp_rows: int = 4  # of a block
    min_part: int = 64  # columns of a row whose sums a warp has in shared memory
    max_part: int = 512


TUNING = GustavsonTuning()


def matrix_of(e: Emitter, pointers: Value, indices: Value, columns: int) -> Matrix:
    nnz = indices.shape[0]
    return Matrix(
        lambda row: bounds(e, pointers, row, nnz),
        lambda entry: clamped(e, indices, entry, columns),
    )


def _tasks(p: ProductProblem, rows: int) -> tuple[int, int]:
    """Rows of a task, and the number of tasks."""
    count = TUNING.tasks_per_core * max(1, p.target.num_cores)
    per_task = max(TUNING.min_task_rows, -(-rows // count))
    return per_task, -(-rows // per_task)


def lower_symbolic(p: ProductProblem) -> Kernels:
    """Words of the second operand's rows, then counts of rows, or their columns."""
    val, columns = p.val, int(p.val.params[0])
    ap, ai, bp, bi = val.inputs[:4]
    rows, inner, nnz = ap.shape[0] - 1, bp.shape[0] - 1, bi.shape[0]
    numbers, bits = temporary((max(1, nnz),), dt.int32), temporary((max(1, nnz),), dt.uint64)
    ends = temporary((max(1, inner),), dt.int64)

    def words() -> LoweredKernel:
        per_task, tasks = _tasks(p, inner)
        e, g = Emitter(p.layouts), ir.var("g")
        span = ir.block_range(g, e.scalar_arg(per_task), e.dim(inner))
        out = [e.buffer(t, "write") for t in (numbers, bits, ends)]
        body = compress(matrix_of(e, bp, bi, columns), span, *out)
        return e.grid_kernel(f"{val.op}_words", g, body, tasks, (val.op,))

    per_task, tasks = _tasks(p, rows)
    e = Emitter(p.layouts)
    g = ir.var("g")
    a = matrix_of(e, ap, ai, inner)
    number, marked, end = (e.buffer(t) for t in (numbers, bits, ends))
    b = Words(
        lambda k: bounds(e, bp, k, nnz)[0],
        lambda k: ir.load(end, k),
        lambda q: ir.load(number, q).cast(dt.int64),
        lambda q: ir.load(marked, q),
    )
    span = ir.block_range(g, e.scalar_arg(per_task), e.dim(rows))
    width = e.dim(columns)
    if val.op == "csr_product_counts":
        body, e.scratch = count_columns(a, b, span, width, lambda r, n: e.store(val, (r,), n))
    else:
        starts, total = val.inputs[4], val.shape[0]

        def write(at: Expr, column: Expr) -> list[Stmt]:
            return e.store(val, (at,), column.cast(val.dtype))

        def place(row: Expr) -> tuple[Expr, Expr]:
            return bounds(e, starts, row, total)

        body, e.scratch = list_columns(a, b, span, width, place, write)
    return [words(), e.grid_kernel(val.op, g, body, tasks, (val.op,))]


def lower_symbolic_warps(p: ProductProblem) -> Kernels:
    """A few rows per warp of a GPU: their counts, or their columns."""
    val, (columns, row_bits), threads = p.val, p.val.params, p.target.subgroup_size
    ap, ai, bp, bi = val.inputs[:4]
    rows, inner = ap.shape[0] - 1, bp.shape[0] - 1
    e = Emitter(p.layouts, block_size=threads)
    g = ir.var("g")
    a, b = matrix_of(e, ap, ai, inner), matrix_of(e, bp, bi, columns)
    union = WarpUnion(a, b, e.scalar_arg(row_bits + 1), threads)
    span = ir.block_range(g, const(TUNING.warp_rows), e.dim(rows))
    if val.op == "csr_product_counts":
        body, e.scratch = union.count(span, lambda r, n: e.store(val, (r,), n))
    else:
        body, e.scratch = union.listed(
            span,
            lambda row: bounds(e, val.inputs[4], row, val.shape[0]),
            lambda at, column: e.store(val, (at,), column.cast(val.dtype)),
        )
    return [e.grid_kernel(val.op, g, body, -(-rows // TUNING.warp_rows), (val.op,))]


def lower_numeric(p: ProductProblem) -> Kernels:
    """A dense accumulator per task of a CPU."""
    val, columns = p.val, int(p.val.params[0])
    ap, ai, av, bp, bi, bv, mp, mi = val.inputs
    rows = mp.shape[0] - 1
    per_task, tasks = _tasks(p, rows)
    e = Emitter(p.layouts)
    g = ir.var("g")
    batch, task = divmod(g, e.scalar_arg(tasks)) if val.shape[0] > 1 else (ZERO, g)
    a, b = matrix_of(e, ap, ai, bp.shape[0] - 1), matrix_of(e, bp, bi, columns)
    mask = matrix_of(e, mp, mi, columns)
    span = ir.block_range(task, e.scalar_arg(per_task), e.dim(rows))
    body, e.scratch = numeric(
        *(a, b, mask, span, e.dim(columns), (p.accumulator, 2 if val.dtype.is_complex else 1)),
        value=lambda entry: parts(e.value(av, (batch, entry))),
        term=lambda factor, entry: _term(factor, e, bv, (batch, entry)),
        write=lambda entry, total: _write(e, val, (batch, entry), total),
    )
    return [e.grid_kernel(val.op, g, body, val.shape[0] * tasks, (val.op,))]


def _term(factor: Number, e: Emitter, values: Value, at: tuple[Expr, ...]) -> Number:
    own = factor if values.dtype.is_complex else factor[0]
    return multiply(own, e.value(values, at), values.dtype)


def _write(e: Emitter, val: Value, at: tuple[Expr, ...], total: Number) -> list[Stmt]:
    return e.store(val, at, total if val.dtype.is_complex else total[0].cast(val.dtype))


def lower_numeric_warps(p: ProductProblem) -> Kernels:
    """A few rows of the mask per warp of a GPU."""
    val, columns = p.val, int(p.val.params[0])
    ap, ai, av, bp, bi, bv, mp, mi = val.inputs
    (count, nnz), rows = val.shape, mp.shape[0] - 1
    fitting = 2 * max(1, nnz // max(1, rows))
    capacity = 1 << min(max(fitting, TUNING.min_part), TUNING.max_part).bit_length() - 1
    per_batch = -(-rows // TUNING.warp_rows)
    e = Emitter(p.layouts, block_size=p.target.subgroup_size)
    g = ir.var("g")
    batch, block = divmod(g, e.scalar_arg(per_batch)) if count > 1 else (ZERO, g)
    warp = WarpRows(
        matrix_of(e, ap, ai, bp.shape[0] - 1),
        matrix_of(e, bp, bi, columns),
        matrix_of(e, mp, mi, columns),
        *(mi.dtype, p.accumulator, 2 if val.dtype.is_complex else 1),
        value=lambda entry: parts(e.value(av, (batch, entry))),
        term=lambda factor, entry: _term(factor, e, bv, (batch, entry)),
        write=lambda entry, total: _write(e, val, (batch, entry), total),
    )
    span = ir.block_range(block, const(TUNING.warp_rows), e.dim(rows))
    body, e.scratch = warp.rows(span, capacity)
    return [e.grid_kernel(val.op, g, body, count * per_batch, (val.op, "a warp per row"))]


def lower_numeric_threads(p: ProductProblem) -> Kernels:
    """An element of the mask per thread of a GPU, which searches the rows of b for its column."""
    val, (columns, row_bits), threads = p.val, p.val.params, p.target.block_size
    ap, ai, av, bp, bi, bv, mp, mi = val.inputs
    count, nnz = val.shape
    per_batch = -(-nnz // threads)
    e = Emitter(p.layouts, block_size=threads)
    g, i, k, row = ir.var("g"), ir.var("i"), ir.var("k"), ir.var("row")
    batch, block = divmod(g, e.scalar_arg(per_batch)) if count > 1 else (ZERO, g)
    a, b = matrix_of(e, ap, ai, bp.shape[0] - 1), matrix_of(e, bp, bi, columns)
    sums = [
        ir.Register(f"sum{c}", p.accumulator, lanes=True)
        for c in range(2 if val.dtype.is_complex else 1)
    ]
    wanted = ir.var("wanted")

    def pointer(at: Expr) -> Expr:
        found: Expr = e.value(mp, (at,)).cast(dt.int64)
        return found

    # the last row that starts at or before this entry
    rows = mp.shape[0] - 1
    search, after = lower_bound(
        *(pointer, ZERO, ir.add(e.dim(rows), ONE), ir.add(i, ONE)),
        *(e.scalar_arg((rows + 1).bit_length() + 1), "row"),
    )
    steps = e.scalar_arg(row_bits + 1)

    def add(entry: Expr) -> list[Stmt]:
        low, high, there = ir.var("b_low"), ir.var("b_high"), ir.var("there")
        first, last = b.bounds(k)
        find, found = lower_bound(b.column, low, high, wanted, steps, "column")
        inside = ir.minimum(there, ir.maximum(ir.sub(high, ONE), ZERO))
        own = parts(e.value(av, (batch, entry)))
        hit = (there < high) & b.column(inside).eq(wanted)
        terms = _term(own, e, bv, (batch, inside))
        new = [
            ir.read(s) + ir.select(hit, t, const(0, p.accumulator))
            for s, t in zip(sums, terms, strict=True)
        ]
        assigned, _ = ir.assign(sums, new, "new")
        return [
            ir.Let(k, a.column(entry)),
            ir.Let(low, first),
            ir.Let(high, last),
            *find,
            ir.Let(there, found),
            *assigned,
        ]

    body: list[Stmt] = [
        *search,
        ir.Let(row, ir.maximum(ir.sub(after, ONE), ZERO)),
        ir.Let(wanted, clamped(e, mi, i, columns)),
        *(ir.Set(s, const(0, p.accumulator)) for s in sums),
        *a.for_row(row, "a", add),
        *_write(e, val, (batch, i), tuple(ir.reads(sums))),
    ]
    span = ir.block_range(block, const(threads), e.dim(nnz))
    loop = ir.For(i, *span, "lanes", body)
    return [e.grid_kernel(val.op, g, [loop], count * per_batch, (val.op,))]
