"""CPU GEMV: a K-major matrix times a few vectors, read once.

Lanes go along k. Several rows at a time keep more loads in flight and reuse the vectors; lanes are
reduced at the end of a row, and of every block of long ones: no lane's sum gets long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.cpu.blocking import CACHE_LINE_BYTES, SUM_BLOCK, uses_fma
from numus.kernels.matmul.cpu.panels import Matrix
from numus.target import Target

ZERO, ONE = const(0), const(1)


@dataclass(frozen=True, slots=True)
class GemvTuning:
    """Measured on Neoverse N1 and x86-64 machines of 2 cores."""

    max_vectors: int = 8
    min_task_elements: int = 1 << 16  # of the matrix
    tasks_per_thread: int = 64  # threads take several at first, and end together


TUNING = GemvTuning()

Epilogue = Callable[[Expr, Expr, Expr, Any], list[Stmt]]  # (batch, row, vector, value)


@dataclass(frozen=True, slots=True)
class GemvShape:
    """All but the last shape the code."""

    rows: int  # that are read together
    vectors: int
    unroll: int  # vectors of lanes of each accumulator
    fma: bool
    sum_block: int  # elements of k, SUM_BLOCK of each lane; 0: all of k
    task_rows: int


def choose_shape(
    target: Target, dtype: DType, batch: int, rows: int, vectors: int, k: int
) -> GemvShape:
    """Half of the registers for accumulators; tasks that are neither few nor small.

    More rows keep more loads in flight as long as each is read by whole cache lines: rows a power
    of two apart evict each other from L1.
    """
    sums = target.vector_registers // 2
    line = max(1, CACHE_LINE_BYTES // target.vector_bytes)
    unrolled = max(1, min(4, sums // vectors), min(8, sums // (vectors * line)))
    wanted = -(-target.num_cores * TUNING.tasks_per_thread // batch)
    task_rows = max(-(-rows // wanted), -(-TUNING.min_task_elements // k))
    task_rows = -(-task_rows // unrolled) * unrolled
    unroll = max(1, sums // (unrolled * vectors))
    sum_block = SUM_BLOCK * unroll * (target.vector_bytes // dtype.itemsize)
    if dtype.kind != "float" or k <= sum_block:
        sum_block = 0
    return GemvShape(unrolled, vectors, unroll, uses_fma(target, dtype), sum_block, task_rows)


def gemv(
    shape: GemvShape,
    dtype: DType,
    sizes: tuple[Expr, Expr, Expr, Expr],
    task: Expr,
    matrix: Matrix,
    vectors: Matrix,
    packed: bool,
    epilogue: Epilogue,
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Statements and scratch of a task; `sizes` are rows, k, rows of a task, and tasks. `packed`:
    copy the vectors first."""
    extent, k_size, task_rows, tasks = sizes
    batch = task // tasks
    first = task % tasks * task_rows
    stop = ir.minimum(first + task_rows, extent)
    out: list[Stmt] = []
    scratch: list[ir.Buffer] = []
    count = range(shape.vectors)
    read = vectors.read
    if packed:
        copy = ir.Buffer("vectors", dtype, "scratch", const(shape.vectors) * k_size)
        scratch.append(copy)
        c = ir.var("copy_k")
        for v in count:
            at = const(v) * k_size + c
            store = ir.Store(copy, at, vectors.read(batch, const(v), c, None))
            out.append(ir.For(c, ZERO, k_size, "lanes", [store]))

        def read(batch: Expr, v: Expr, k: Expr, mask: Expr | None) -> Expr:
            return ir.load(copy, v * k_size + k, mask)

    r, k = ir.var("r"), ir.var("k")
    rows = range(shape.rows)
    sums = [[ir.Register(f"d{i}_{v}", dtype, lanes=True) for v in count] for i in rows]
    step: list[Stmt] = []
    for v in count:
        step.append(ir.Let(ir.var(f"x{v}", dtype), read(batch, const(v), k, None)))
    for i in rows:
        row = ir.minimum(r + i, extent - 1)
        name = ir.var(f"a{i}", dtype)
        step.append(ir.Let(name, matrix.read(batch, row, k, None)))
        for v in count:
            x, old = ir.var(f"x{v}", dtype), ir.read(sums[i][v])
            new = ir.fma(name, x, old) if shape.fma else old + name * x
            step.append(ir.Set(sums[i][v], new))
    zeros: list[Stmt] = [ir.Set(s, const(0, dtype)) for row_sums in sums for s in row_sums]
    body: list[Stmt] = [*zeros, ir.For(k, ZERO, k_size, "lanes", step, unroll=shape.unroll)]
    totals = [[ir.lanes_reduce("add", s) for s in row_sums] for row_sums in sums]
    if shape.sum_block:
        start = ir.var("sum_start")
        end = ir.minimum(start + shape.sum_block, k_size)
        blocks = [[ir.Register(f"t{i}_{v}", dtype) for v in count] for i in rows]
        one = [*zeros, ir.For(k, start, end, "lanes", step, unroll=shape.unroll)]
        one += [
            ir.Set(blocks[i][v], ir.read(blocks[i][v]) + totals[i][v]) for i in rows for v in count
        ]
        body = [ir.Set(t, const(0, dtype)) for row_totals in blocks for t in row_totals]
        body.append(ir.For(start, ZERO, k_size, "serial", one, step=const(shape.sum_block)))
        totals = [ir.reads(row_totals) for row_totals in blocks]
    for i in rows:
        row = r + i
        stores: list[Stmt] = []
        for v in count:
            total = ir.var(f"total{i}_{v}", dtype)
            stores.append(ir.Let(total, totals[i][v]))
            stores += epilogue(batch, row, const(v), total)
        body += [ir.If(row < stop, stores)] if i else stores
    out.append(ir.For(r, first, stop, "serial", body, step=const(shape.rows)))
    return out, scratch
