"""Row reductions: several stages over a row in one kernel.

Lanes run along the row; or, where adjacent elements in memory belong to different rows, across
rows, each lane reducing a row (a column of memory) of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from numus import ir
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops.nest import (
    ZERO,
    Loop,
    LoopNest,
    Position,
    block_range,
    ceil_div,
    delinearize,
    iterations,
    total_extent,
)
from numus.compiler.lower.loops.row_emitter import RowEmitter, Span, fits_shared, full_spans
from numus.compiler.lower.loops.shifted_variance import sample_iterations, sample_span
from numus.compiler.lower.loops.stages import StagedGroup
from numus.compiler.lower.loops.tuning import TUNING
from numus.ir import Expr, Stmt, const


def lower_rows(work: StagedGroup, nest: LoopNest, lane: Loop | None) -> LoweredKernel:
    """One kernel for all stages of all rows; `lane` is the loop whose iterations are lanes."""
    e = work.emitter()
    g = ir.var("g")
    if lane is not None and not lane.reduced:
        if _has_few_columns(work, nest, lane):
            body, grid = _thread_per_row(work, nest, e, lane, g)
        else:
            spans = full_spans(e, nest)
            sample = None
            if nest.inner and work.splittable:
                count = sample_iterations(work, lane, nest.inner[0].extent)
                sample = sample_span(spans[0], count)
                work = work.one_pass() if count else work
            body, grid = lanes_across_rows(
                *(work, nest, e, lane, g, spans), RowEmitter.results, sample
            )
        return e.grid_kernel("row_reduction", g, body, grid, work.notes)
    rows = max(1, TUNING.block_elements // max(1, nest.row_size * work.cost()))
    if work.threads:  # a block for each row, no larger than it can use
        rows, maximum = 1, TUNING.row_max_threads
        if work.target.max_block_size and work.passes > 1 and not fits_shared(work, nest):
            maximum = min(TUNING.reread_row_max_threads, work.target.max_block_size)
        lanes = ceil_div(nest.row_size, TUNING.elements_per_thread)
        e.block_size = work.threads_for(lanes, maximum)
    body = []
    if nest.rows:
        per_block = e.scalar_arg(rows)
        r = ir.var("r")
        at = delinearize(e, r, nest.rows)
        span = block_range(ir.mul(g, per_block), per_block, total_extent(e, nest.rows))
        body = [ir.For(r, *span, "serial", _one_row(work, nest, e, at, lane))]
    else:
        body = _one_row(work, nest, e, {}, lane)
    return e.grid_kernel("row_reduction", g, body, ceil_div(nest.row_count, rows), work.notes)


def _one_row(
    work: StagedGroup, nest: LoopNest, e: Emitter, at: Position, lane: Loop | None
) -> list[Stmt]:
    row = RowEmitter(work, nest, e, at, full_spans(e, nest), lane)
    if lane is not None:
        row.cache_in_scratch()
    return row.stages() + row.results()


def _has_few_columns(work: StagedGroup, nest: LoopNest, lane: Loop) -> bool:
    """Columns are short, and too few for the threads of a warp: each finds a row of its own."""
    short = nest.row_size <= TUNING.few_columns_max_row and lane.extent < nest.row_count
    few = lane.extent <= TUNING.few_columns
    return bool(work.target.vector_access_bytes) and short and few


def _thread_per_row(
    work: StagedGroup, nest: LoopNest, e: Emitter, lane: Loop, g: Expr
) -> tuple[list[Stmt], int]:
    """Lanes across all rows, linearised."""
    order = [*(d for d in nest.rows if d is not lane), lane]
    total = total_extent(e, order)
    j = e.variable("j", total)
    at = delinearize(e, j, order)
    row = RowEmitter(work, nest, e, at, full_spans(e, nest), varying=True)
    e.block_size = work.threads
    span = block_range(ir.mul(g, const(work.threads)), const(work.threads), total)
    loop = ir.For(j, *span, "lanes", row.stages() + row.results())
    return [loop], ceil_div(nest.row_count, work.threads)


def lanes_across_rows(
    work: StagedGroup,
    nest: LoopNest,
    e: Emitter,
    lane: Loop,
    number: Expr,
    spans: list[Span],
    epilogue: Callable[[RowEmitter], list[Stmt]],
    sample: Span | None = None,
) -> tuple[list[Stmt], int]:
    """Block `number` of rows that are columns of memory, and the number of blocks."""
    others = [d for d in nest.rows if d is not lane]
    vector = columns_per_thread(work, nest, lane)
    columns = min(lane.extent, work.threads * vector or work.vector_lanes() * 4)
    if work.threads:
        e.block_size = work.threads_for(columns // vector)
    blocks = ceil_div(lane.extent, columns)
    width, count = e.scalar_arg(columns), e.scalar_arg(blocks)
    at = delinearize(e, ir.idiv(number, count), others)
    extent = e.dim(lane.extent)
    start = ir.mul(ir.irem(number, count), width)
    if vector > 1:
        t = ir.var("t")
        j = ir.add(start, t)
        e.extents[j] = extent
    else:
        j = e.variable("j", extent)
    row = RowEmitter(work, nest, e, {**at, lane: j}, spans, varying=True, sample=sample)
    body = row.stages() + epilogue(row)
    if vector > 1:
        exact = lane.extent % columns == 0
        end = const(columns) if exact else ir.minimum(width, ir.sub(extent, start))
        loop = ir.For(t, ZERO, end, "lanes", body, width=vector, resident=True)
    else:
        loop = ir.For(j, *block_range(start, width, extent), "lanes", body)
    return [loop], blocks * iterations(others)


def columns_per_thread(work: StagedGroup, nest: LoopNest, lane: Loop) -> int:
    """Adjacent columns of a thread, which one vector access reads."""
    if not work.target.vector_access_bytes:
        return 1
    variable = nest.variables[lane.axis]
    contiguous = [p for p in nest.accesses if abs(p.get(variable, 0)) == 1]
    sizes = [v.dtype.itemsize for v in (*work.layouts, *work.stored) if v.size >= nest.row_count]
    nbytes = TUNING.column_vector_bytes
    width = max(1, nbytes // min(sizes, default=nbytes))
    while width > 1 and (
        lane.extent % width
        or lane.extent < width * work.threads
        or any(s % width for p in contiguous for v, s in p.items() if v is not variable)
    ):
        width //= 2
    return width
