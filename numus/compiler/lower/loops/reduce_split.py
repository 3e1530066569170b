"""Split reductions (the split-K of rows): partial results, combined by a second kernel.

Splits depend on sizes alone, and partial results are combined in order, so results do not depend on
the thread count.
"""

from __future__ import annotations

from dataclasses import replace

from numus import ir
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.loops.nest import Loop, LoopNest, ceil_div, delinearize, linearize
from numus.compiler.lower.loops.reduce_columns_packing import pack_columns
from numus.compiler.lower.loops.reduce_combine import RowSplit, lower_combine
from numus.compiler.lower.loops.reduce_rows import columns_per_thread, lanes_across_rows
from numus.compiler.lower.loops.reduce_rows_registers import min_itemsize
from numus.compiler.lower.loops.row_emitter import RowEmitter, full_spans
from numus.compiler.lower.loops.shifted_variance import (
    sample_iterations,
    sample_span,
    supports_sampling,
)
from numus.compiler.lower.loops.stages import StagedGroup
from numus.compiler.lower.loops.tuning import TUNING, WARP
from numus.ir import Stmt


def lower_split(work: StagedGroup, nest: LoopNest, lane: Loop | None) -> list[LoweredKernel]:
    """Each block of the first kernel reduces a split of a row."""
    unpacked = nest
    nest, lane, packed_rows = pack_columns(work, nest, lane)
    outermost = nest.inner[0].extent
    inner = nest.row_size // outermost
    along_rows = lane is not None and lane.reduced
    elements = TUNING.split_elements if along_rows else TUNING.serial_elements
    if work.threads:
        elements = simt_split_elements(work, nest, lane)
    # two splits at least, so that every size has the same code
    size = max(1, min(elements // max(1, inner), ceil_div(outermost, 2)))
    sample = sample_iterations(work, lane, size, inner)
    work = work.one_pass() if sample else work.with_residuals()
    split = RowSplit.of(work, nest, size, sample, packed_rows)
    e = work.emitter()
    g = ir.var("g")
    iterations, count = e.scalar_arg(split.size), e.scalar_arg(split.count)
    part, rest = ir.irem(g, count), ir.idiv(g, count)
    if work.threads and lane is not None and not lane.reduced:
        # adjacent blocks read adjacent columns of the same rows
        columns = e.scalar_arg(full_row_blocks(work, nest, lane))
        part, rest = ir.idiv(g, columns), ir.irem(g, columns)
    spans = full_spans(e, nest)
    spans[0] = split.span(e, part, iterations)
    first = sample_span(spans[0], sample)

    def save(row: RowEmitter) -> list[Stmt]:
        number = linearize(e, nest.rows, row.at)
        out: list[Stmt] = []
        for r, vals in split.partials.items():
            for v, value in zip(vals, row.finals[r], strict=True):
                out += e.store(v, (part, number), value)
        return out

    if lane is not None and not lane.reduced:
        body, blocks = lanes_across_rows(work, nest, e, lane, rest, spans, save, first)
    else:
        if work.threads and lane is not None and len(nest.inner) > 1:
            e.block_size = _threads_along(work, lane)
        at = delinearize(e, rest, nest.rows)
        row = RowEmitter(work, nest, e, at, spans, lane, sample=first)
        body, blocks = row.stages() + save(row), nest.row_count
    step = e.grid_kernel("split_reduction", g, body, blocks * split.count, work.notes)
    all_splits = replace(split, count=split.count * packed_rows)
    return [step, lower_combine(work, unpacked, all_splits)]


def _threads_along(work: StagedGroup, lane: Loop) -> int:
    """Threads of a block that repeats one of several loops: the most that nearly always have
    several loads in flight. Remainders are loaded one by one."""
    if lane.extent < work.threads:
        return work.threads

    def busy(threads: int) -> float:
        whole, rest = divmod(lane.extent, threads * TUNING.elements_per_thread)
        waits = whole + ceil_div(rest, threads * TUNING.load_elements)
        return lane.extent / (threads * waits)

    sizes = [work.threads >> k for k in range(work.threads.bit_length())]
    sizes = [threads for threads in sizes if threads >= WARP]
    best = max(busy(threads) for threads in sizes)
    return next(threads for threads in sizes if busy(threads) >= TUNING.busy_fraction * best)


def full_row_blocks(work: StagedGroup, nest: LoopNest, lane: Loop | None) -> int:
    """Blocks of a reduction that does not split rows."""
    if lane is None or lane.reduced:
        return nest.row_count
    columns = work.threads * columns_per_thread(work, nest, lane)
    return ceil_div(lane.extent, columns) * (nest.row_count // lane.extent)


def simt_split_elements(work: StagedGroup, nest: LoopNest, lane: Loop | None) -> int:
    """Elements of a row in one split: enough splits to saturate the device, none so short that
    starting a block costs more."""
    blocks, cores = full_row_blocks(work, nest, lane), work.target.num_cores
    if lane is None or lane.reduced:
        nbytes = nest.row_size * nest.row_count * min_itemsize(work)
        least, most = TUNING.splits_per_sm
        per_sm = max(least, min(most, nbytes // (TUNING.split_bytes * cores)))
        if lane is not None and len(nest.inner) > 1:
            per_sm *= work.threads // _threads_along(work, lane)  # small blocks, more of them
        splits = ceil_div(cores * per_sm, blocks)
        # whole iterations of a block: all splits are as aligned as the first
        elements = work.block_elements()
        count = ceil_div(ceil_div(nest.row_size, splits), elements)
        if work.sqdevs and not supports_sampling(work):  # a second pass, from L1
            count = min(count, TUNING.two_pass_split_bytes // (elements * min_itemsize(work)))
        return max(1, count) * elements
    # splits have to be combined: no more than run at a time; narrow blocks are small ones
    columns = work.threads * columns_per_thread(work, nest, lane)
    full = max(1, blocks * min(columns, lane.extent) // columns)
    splits = max(1, cores * TUNING.column_splits_per_sm // full)
    step = TUNING.elements_per_thread  # in flight together
    size = max(1, ceil_div(ceil_div(nest.row_size, splits), step)) * step
    return min(size, TUNING.serial_elements)
