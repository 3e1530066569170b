"""Row reductions: several stages over a row in one kernel.

Lanes run along the row; or, where adjacent elements in memory belong to different rows, across
rows, each lane reducing a row (a column of memory) of its own.

Shifted-data variance (Chan, Golub & LeVeque 1983): one pass around an estimated mean. Threads whose
rows do not fit on chip read a sample first. The deviations from its mean are summed with their
squares in one pass, and the squares around the true mean follow from the two sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from numus import ir
from numus.compiler.lower.affine import AffineAnalysis
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.loops.nest import ZERO, ceil_div, delinearize, iterations, total_extent
from numus.compiler.lower.loops.problem import LoopProblem
from numus.compiler.lower.loops.row_emitter import RowEmitter, Span, fits_shared, full_spans
from numus.compiler.lower.loops.tuning import TUNING
from numus.ir import Expr, Stmt, const
from numus.ir.substitution import substitute

CACHE_LINE_BYTES = 64

Blocks = tuple[list[Stmt], int]  # the statements of a block, and the number of blocks


def lower_rows(p: LoopProblem) -> Kernels:
    """One kernel for all stages of all rows."""
    e, g = p.work.emitter(), ir.var("g")
    if not p.across_rows:
        body, grid = _lanes_along_rows(p, e, g)
    elif _has_few_columns(p):
        body, grid = _thread_per_row(p, e, g)
    else:
        spans, sample = full_spans(p, e), None
        if p.nest.inner and p.work.splittable:
            count = sample_iterations(p, p.nest.inner[0].extent)
            sample = sample_span(spans[0], count)
            p = replace(p, work=p.work.one_pass()) if count else p
        body, grid = lanes_across_rows(p, e, g, spans, RowEmitter.results, sample)
    return [e.grid_kernel("row_reduction", g, body, grid, p.work.notes)]


def _lanes_along_rows(p: LoopProblem, e: Emitter, g: Expr) -> Blocks:
    """Some rows per block, one after the other."""
    work, nest = p.work, p.nest
    rows = max(1, TUNING.block_elements // max(1, nest.row_size * work.cost()))
    if work.threads:  # a block for each row, no larger than it can use
        rows, maximum = 1, TUNING.row_max_threads
        if p.target.max_block_size and work.passes > 1 and not fits_shared(p):
            maximum = min(TUNING.reread_row_max_threads, p.target.max_block_size)
        lanes = ceil_div(nest.row_size, TUNING.elements_per_thread)
        e.block_size = work.threads_for(lanes, maximum)
    r = ir.var("r")
    row = RowEmitter(p, e, delinearize(e, r, nest.rows), full_spans(p, e), p.lane)
    if p.lane is not None:
        row.cache_in_scratch()
    body = row.stages() + row.results()
    if nest.rows:
        span = ir.block_range(g, e.scalar_arg(rows), total_extent(e, nest.rows))
        body = [ir.For(r, *span, "serial", body)]
    return body, ceil_div(nest.row_count, rows)


def _has_few_columns(p: LoopProblem) -> bool:
    """Columns are short, and too few for the threads of a warp: each finds a row of its own."""
    short = p.nest.row_size <= TUNING.few_columns_max_row and p.lanes.extent < p.nest.row_count
    is_narrow = p.lanes.extent <= TUNING.few_columns
    return bool(p.target.vector_access_bytes) and short and is_narrow


def _thread_per_row(p: LoopProblem, e: Emitter, g: Expr) -> Blocks:
    """Lanes across all rows, linearised."""
    threads, nest = p.work.threads, p.nest
    order = [*(d for d in nest.rows if d is not p.lane), p.lanes]
    total = total_extent(e, order)
    j = e.variable("j", total)
    row = RowEmitter(p, e, delinearize(e, j, order), full_spans(p, e), varying=True)
    e.block_size = threads
    span = ir.block_range(g, const(threads), total)
    loop = ir.For(j, *span, "lanes", row.stages() + row.results())
    return [loop], ceil_div(nest.row_count, threads)


def lanes_across_rows(
    p: LoopProblem,
    e: Emitter,
    number: Expr,
    spans: list[Span],
    epilogue: Callable[[RowEmitter], list[Stmt]],
    sample: Span | None,
) -> Blocks:
    """Block `number` of rows that are columns of memory, and the number of blocks."""
    work, nest, lane = p.work, p.nest, p.lanes
    others = [d for d in nest.rows if d is not lane]
    vector = columns_per_thread(p)
    lanes = work.vector_lanes()
    room = work.block_elements()
    if work.relaid:  # operands of a block stay in L1
        room = p.target.l1_bytes // (2 * work.widest_bytes())
    several = max(4, room // max(1, nest.row_size * lanes))  # vectors of a block
    columns = min(lane.extent, work.threads * vector or several * lanes)
    if work.threads:
        e.block_size = work.threads_for(columns // vector)
    blocks = ceil_div(lane.extent, columns)
    width, count = e.scalar_arg(columns), e.scalar_arg(blocks)
    if work.relaid:  # operands of a block stay in L1 for all lines
        block, line = divmod(number, e.scalar_arg(iterations(others)))
    else:
        line, block = divmod(number, count)
    at = delinearize(e, line, others)
    extent = e.dim(lane.extent)
    start, stop = ir.block_range(block, width, extent)
    if vector > 1:
        t = ir.var("t")
        j = ir.add(start, t)
        e.extents[j] = extent
    else:
        j = e.variable("j", extent)
    row = RowEmitter(p, e, {**at, lane: j}, spans, varying=True, sample=sample)
    body = row.stages() + epilogue(row)
    if vector > 1:
        exact = lane.extent % columns == 0
        end = const(columns) if exact else ir.minimum(width, ir.sub(extent, start))
        loop = ir.For(t, ZERO, end, "lanes", body, width=vector, resident=True)
    else:
        blocks_of_sums = any(map(row.sum_block, range(work.passes)))  # whose totals are wider
        width_of_terms = work.vector_lanes() if blocks_of_sums else 0
        vectors = _vectors_at_a_time(p, columns)
        if not (work.threads or work.is_small):
            _prefetch_stores(e, body, j, vectors * lanes)
        loop = ir.For(j, start, stop, "lanes", body, unroll=vectors, width=width_of_terms)
    return [loop], blocks * iterations(others)


def _prefetch_stores(e: Emitter, body: list[Stmt], column: Expr, columns: int) -> None:
    """Add prefetches to loops over lines of memory, of each of which lanes at `column` store some
    columns. A store that misses fetches its cache line first; lines are so far apart that each is
    on another page, where hardware prefetchers do not follow."""
    analysis = AffineAnalysis(e)
    for loop in ir.statements(body):
        if not isinstance(loop, ir.For) or loop.kind != "serial":
            continue
        fetches: list[Stmt] = []
        for s in loop.body:
            if not isinstance(s, ir.Store) or s.buffer.access == "scratch":
                continue
            strides, size = analysis.coefficients(s.index) or {}, s.buffer.dtype.itemsize
            far = abs(strides.get(loop.var, 0)) * size >= TUNING.far_line_bytes
            if strides.get(column) == 1 and far:
                ahead = substitute(s.index, {loop.var: loop.var + TUNING.lines_ahead})
                starts = range(0, columns, max(1, CACHE_LINE_BYTES // size))
                fetches += [ir.Prefetch(s.buffer, ahead + start) for start in starts]
        loop.body[:0] = fetches


def _vectors_at_a_time(p: LoopProblem, columns: int) -> int:
    """Vectors of columns that go down side by side: lines are read as a whole, and the latencies of
    several accumulators overlap."""
    if p.work.threads or p.work.is_small:
        return 1
    wanted = TUNING.pair_vectors if p.work.relaid else p.work.rows_per_block()
    return max(1, min(wanted, columns // p.work.vector_lanes()))


def columns_per_thread(p: LoopProblem) -> int:
    """Adjacent columns of a thread, which one vector access reads."""
    work, nest, lane = p.work, p.nest, p.lanes
    if not p.target.vector_access_bytes:
        return 1
    variable = nest.variables[lane.axis]
    contiguous = [p for p in nest.accesses if abs(p.get(variable, 0)) == 1]
    rows, nbytes = nest.row_count, TUNING.column_vector_bytes
    sizes = [v.dtype.itemsize for v in (*work.layouts, *work.stored) if v.size >= rows]
    width = max(1, nbytes // min(sizes, default=nbytes))
    while width > 1 and (
        lane.extent % width
        or lane.extent < width * work.threads
        or any(s % width for p in contiguous for v, s in p.items() if v is not variable)
    ):
        width //= 2
    return width


# -- shifted-data variance ------------------------------------------------------------------------


def supports_sampling(p: LoopProblem) -> bool:
    """Lanes are threads, and float64 combines the means of splits without loss."""
    return bool(p.work.threads) and "float64" in p.target.dtypes


def sample_iterations(p: LoopProblem, total: int, inner: int = 1) -> int:
    """Iterations that are the sample, of the outermost loop; 0 where the mean comes from a pass of
    its own.

    A sample unlike the rest multiplies the rounding error by the ratio of their sizes at most,
    because its own deviations are part of the sum.
    """
    if not p.work.sqdevs or not supports_sampling(p):
        return 0
    if not p.across_rows:  # as much as a block reads at a time
        sample = max(1, p.work.block_elements() // inner)
    else:
        step = TUNING.elements_per_thread
        sample = max(step, total // TUNING.sample_fraction // step * step)
    return sample if 2 * sample <= total else 0


def sample_span(span: Span, sample: int) -> Span | None:
    """The first iterations of a span; None where there is no sample."""
    start, stop = span
    return (start, ir.minimum(ir.add(start, const(sample)), stop)) if sample else None
