"""Register-resident (persistent) row reductions: a block holds its row in registers.

The whole row is in flight at a time, and values that several stages use are loaded, or computed,
once. The block size follows from the row's length: each thread has a few vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from numus import ir
from numus.compiler.fusion.group import squeeze
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.loops.nest import ZERO, Loop, LoopNest, delinearize
from numus.compiler.lower.loops.row_emitter import RegisterTiling, RowEmitter, Stages
from numus.compiler.lower.loops.stages import StagedGroup
from numus.compiler.lower.loops.tuning import TUNING, WARP
from numus.ir import const


def best_tiling(
    work: StagedGroup, nest: LoopNest, tilings: Sequence[RegisterTiling]
) -> RegisterTiling | None:
    """The tiling of least cost for one CTA per row; None where there is none."""
    n = nest.row_size
    # so many short rows that blocks of one each could not start fast enough
    saturated = nest.row_count >= TUNING.packed_rows * work.saturating_blocks()
    many_short = saturated and n * sum(itemsizes(work)) < TUNING.packed_row_max_bytes

    def cost(tiling: RegisterTiling) -> tuple[float, int]:
        room = max(TUNING.register_slack, tiling.threads * tiling.per_thread / n)
        nbytes = tiling.per_thread * min_itemsize(work)
        penalty = abs(math.log2(nbytes / TUNING.register_row_bytes))
        penalty += tiling.threads > TUNING.register_few_threads
        if tiling.threads == WARP and many_short:
            penalty = 0.0
        return room * (1 + penalty / 4), tiling.threads

    return min(tilings, key=cost, default=None)


def register_tilings(
    work: StagedGroup, nest: LoopNest, lane: Loop | None, ctas: int = 1
) -> list[RegisterTiling]:
    """The tilings for which registers of so many CTAs have room; none for other kinds of rows."""
    if (
        not work.target.vector_access_bytes
        or lane is None
        or [lane] != nest.inner
        or not nest.row_size
    ):
        return []
    row = RowEmitter(work, nest, work.emitter(), {}, [], lane)
    words = _live_words(row.reused_values()[0])
    n = nest.row_size
    width = vector_width(work, n)
    while width > 1 and n < WARP * width:  # an element for every thread
        width //= 2
    found: list[RegisterTiling] = []
    threads = WARP
    while threads <= max(work.target.max_block_size, work.threads):
        step = threads * ctas * width
        tiling = RegisterTiling(threads, -(-n // step), width, ctas, n // step)
        elements = tiling.per_thread
        if elements <= TUNING.register_max_elements and (
            elements * words <= TUNING.register_max_words
        ):
            found.append(tiling)
        threads *= 2
    return found


def lower_register_rows(
    work: StagedGroup,
    nest: LoopNest,
    lane: Loop,
    tiling: RegisterTiling,
    flags: Value | None = None,
) -> LoweredKernel:
    """One kernel for all stages of all rows, a block for each."""
    e = work.emitter()
    e.block_size, e.cluster_size = tiling.threads * tiling.ctas, tiling.ctas
    if flags is not None:
        e.flags = e.buffer(flags, "write"), flags.size // nest.row_count
    saturated = nest.row_count >= TUNING.packed_rows * work.saturating_blocks()
    if tiling.threads == WARP and saturated:
        e.packed_blocks = TUNING.packed_rows
    g = ir.var("g")
    # rows that fill their block need no predicates: a kernel of its own
    exact = e.block_size * tiling.per_thread == nest.row_size
    end = const(nest.row_size) if exact else e.dim(nest.row_size)
    at = delinearize(e, g, nest.rows)
    row = RowEmitter(work, nest, e, at, [(ZERO, end)], lane, tiling=tiling)
    row.cache_in_registers()
    body = row.stages() + row.results()
    return e.grid_kernel("register_row_reduction", g, body, nest.row_count, work.notes)


def _live_words(reused: Stages) -> int:
    """Registers that each element needs, in the stage that needs most."""
    stages = range(1 + max((max(s) for s in reused.values()), default=0))
    return max(
        sum(max(1, v.dtype.itemsize // 4) for v, s in reused.items() if min(s) <= stage < max(s))
        for stage in stages
    )


def itemsizes(work: StagedGroup) -> list[int]:
    """Item sizes of the values that are loaded or stored at every point."""
    full = [v for v in work.layouts if squeeze(v.shape) == work.group.space]
    full += [m for m in work.stored if work.is_full(m)]
    return [v.dtype.itemsize for v in full if not v.dtype.is_complex]


def min_itemsize(work: StagedGroup) -> int:
    return min(itemsizes(work), default=4)


def vector_width(work: StagedGroup, n: int) -> int:
    """Elements of a thread's vector access, in rows of n."""
    width = min(TUNING.max_vector_elements, TUNING.max_vector_bytes // min_itemsize(work))
    while n % width:
        width //= 2
    return width
