"""Split reductions (the split-K of rows): partial results, combined by a second kernel.

Splits depend on sizes alone, and partial results are combined in order, so results do not depend on
the thread count.
"""

from __future__ import annotations

from dataclasses import replace

from numus import ir
from numus.compiler.lower.emitter import Kernels
from numus.compiler.lower.loops import reduce_rows
from numus.compiler.lower.loops.nest import ceil_div, delinearize, linearize
from numus.compiler.lower.loops.problem import LoopProblem
from numus.compiler.lower.loops.reduce_combine import CombineKernel, RowSplit
from numus.compiler.lower.loops.reduce_rows_registers import min_itemsize
from numus.compiler.lower.loops.row_emitter import RowEmitter, full_spans
from numus.compiler.lower.loops.tuning import TUNING, WARP
from numus.ir import Stmt


def supports_simt_split(p: LoopProblem) -> bool:
    """Too few blocks to saturate the device, or rows too long for one."""
    if not p.work.splittable:
        return False
    is_underfilled = _full_row_blocks(p) < p.work.saturating_blocks() // 2
    worth = p.nest.row_size >= 2 * _simt_split_elements(p)
    longest = 2 * TUNING.serial_elements if p.across_rows else TUNING.simt_max_row
    return (is_underfilled and worth) or p.nest.row_size > longest


def lower_split(unpacked: LoopProblem) -> Kernels:
    """Each block of the first kernel reduces a split of a row."""
    # imported late: few first operations are split
    from numus.compiler.lower.loops.reduce_columns_packing import pack_columns, repeat_columns

    p, packed_rows, vectors = pack_columns(unpacked)
    nest, lane = p.nest, p.lane
    outermost = nest.inner[0].extent
    inner = nest.row_size // outermost
    along_rows = lane is not None and lane.reduced
    elements = TUNING.split_elements if along_rows else TUNING.serial_elements
    if p.work.threads:
        elements = _simt_split_elements(p)
    # two splits at least, so that every size has the same code
    size = max(1, min(elements // max(1, inner), ceil_div(outermost, 2)))
    sample = reduce_rows.sample_iterations(p, size, inner)
    work = p.work.one_pass() if sample else p.work.with_residuals()
    p, unpacked = replace(p, work=work), replace(unpacked, work=work)
    split = RowSplit.of(p, size, sample, packed_rows)
    e = work.emitter()
    repeat_columns(p, unpacked.lanes.extent, e, vectors)
    g = ir.var("g")
    iterations, count = e.scalar_arg(split.size), e.scalar_arg(split.count)
    rest, part = divmod(g, count)
    if work.threads and p.across_rows:
        # adjacent blocks read adjacent columns of the same rows
        part, rest = divmod(g, e.scalar_arg(_full_row_blocks(p)))
    spans = full_spans(p, e)
    spans[0] = split.span(e, part, iterations)
    first = reduce_rows.sample_span(spans[0], sample)

    def save(row: RowEmitter) -> list[Stmt]:
        number = linearize(e, nest.rows, row.at)
        out: list[Stmt] = []
        for r, vals in split.partials.items():
            for v, value in zip(vals, row.finals[r], strict=True):
                out += e.store(v, (part, number), value)
        return out

    if p.across_rows:
        body, blocks = reduce_rows.lanes_across_rows(p, e, rest, spans, save, first)
    else:
        if work.threads and lane is not None and len(nest.inner) > 1:
            e.block_size = _threads_along(p)
        at = delinearize(e, rest, nest.rows)
        row = RowEmitter(p, e, at, spans, lane, sample=first)
        body, blocks = row.stages() + save(row), nest.row_count
    step = e.grid_kernel("split_reduction", g, body, blocks * split.count, work.notes)
    all_splits = replace(split, count=split.count * packed_rows)
    return [step, CombineKernel(unpacked, all_splits).lower()]


def _threads_along(p: LoopProblem) -> int:
    """Threads of a block that repeats one of several loops: the most that nearly always have
    several loads in flight. Remainders are loaded one by one."""
    extent, max_threads = p.lanes.extent, p.work.threads
    if extent < max_threads:
        return max_threads

    def busy_share(threads: int) -> float:
        whole, rest = divmod(extent, threads * TUNING.elements_per_thread)
        waits = whole + ceil_div(rest, threads * TUNING.load_elements)
        return extent / (threads * waits)

    sizes = [max_threads >> k for k in range(max_threads.bit_length()) if max_threads >> k >= WARP]
    best = max(busy_share(threads) for threads in sizes)
    return next(threads for threads in sizes if busy_share(threads) >= TUNING.busy_fraction * best)


def _full_row_blocks(p: LoopProblem) -> int:
    """Blocks of a reduction that does not split rows."""
    if not p.across_rows:
        return p.nest.row_count
    columns = p.work.threads * reduce_rows.columns_per_thread(p)
    return ceil_div(p.lanes.extent, columns) * (p.nest.row_count // p.lanes.extent)


def _simt_split_elements(p: LoopProblem) -> int:
    """Elements of a row in one split: enough splits to saturate the device, none so short that
    starting a block costs more."""
    work, nest = p.work, p.nest
    blocks, cores = _full_row_blocks(p), p.target.num_cores
    if not p.across_rows:
        nbytes = nest.row_size * nest.row_count * min_itemsize(work)
        min_splits, max_splits = TUNING.splits_per_sm
        per_sm = max(min_splits, min(max_splits, nbytes // (TUNING.split_bytes * cores)))
        if p.lane is not None and len(nest.inner) > 1:
            per_sm *= work.threads // _threads_along(p)  # small blocks, more of them
        splits = ceil_div(cores * per_sm, blocks)
        # whole iterations of a block: all splits are as aligned as the first
        elements = work.block_elements()
        count = ceil_div(ceil_div(nest.row_size, splits), elements)
        if work.sqdevs and not reduce_rows.supports_sampling(p):  # a second pass, from L1
            count = min(count, TUNING.two_pass_split_bytes // (elements * min_itemsize(work)))
        return max(1, count) * elements
    # splits have to be combined: no more than run at a time; narrow blocks are small ones
    columns = work.threads * reduce_rows.columns_per_thread(p)
    full = max(1, blocks * min(columns, p.lanes.extent) // columns)
    splits = max(1, cores * TUNING.column_splits_per_sm // full)
    step = TUNING.elements_per_thread  # in flight together
    size = max(1, ceil_div(ceil_div(nest.row_size, splits), step)) * step
    return min(size, TUNING.serial_elements)
