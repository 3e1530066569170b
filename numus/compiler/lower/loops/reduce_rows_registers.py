"""Register-resident (persistent) row reductions: a block holds its row in registers.

The whole row is in flight at a time, and values that several stages use are loaded, or computed,
once. The block size follows from the row's length: each thread has a few vectors.

Rows too long for a block are distributed over several CTAs, which exchange partial results through
distributed shared memory where the target has thread block clusters, and else through flags in
global memory (`codegen/nvptx/cluster.py`).
"""

from __future__ import annotations

import math

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import squeeze
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Kernels, LoweredKernel
from numus.compiler.lower.grid_sync import clear_flags, max_waiting_blocks
from numus.compiler.lower.loops.nest import ZERO, delinearize
from numus.compiler.lower.loops.problem import LoopProblem
from numus.compiler.lower.loops.row_emitter import RegisterTiling, RowEmitter, Stages
from numus.compiler.lower.loops.stages import StagedGroup
from numus.compiler.lower.loops.tuning import TUNING, WARP
from numus.compiler.lower.reducers import reducer
from numus.ir import const


def lower_register_rows(p: LoopProblem) -> Kernels | None:
    """One CTA per row, by the tiling of least cost; None where registers have no room."""
    n = p.nest.row_size
    # so many short rows that blocks of one each could not start fast enough
    short = n * sum(_itemsizes(p.work)) < TUNING.packed_row_max_bytes
    many_short = short and _packed_rows(p) > 1

    def cost(tiling: RegisterTiling) -> tuple[float, int]:
        room = max(TUNING.register_slack, tiling.threads * tiling.per_thread / n)
        nbytes = tiling.per_thread * min_itemsize(p.work)
        penalty = abs(math.log2(nbytes / TUNING.register_row_bytes))
        penalty += tiling.threads > TUNING.register_few_threads
        if tiling.threads == WARP and many_short:
            penalty = 0.0
        return room * (1 + penalty / 4), tiling.threads

    tilings = register_tilings(p)
    return [_kernel(p, min(tilings, key=cost))] if tilings else None


def lower_cluster_rows(p: LoopProblem) -> Kernels | None:
    """The fewest CTAs per row whose threads leave room for other blocks; None where all CTAs that
    may wait for each other have no room for a row. Where they form no cluster, a memset of their
    flags comes first."""
    tiling: RegisterTiling | None = None
    ctas = 2
    while ctas <= max(p.target.max_cluster_size, max_waiting_blocks(p.target)):
        found = register_tilings(p, ctas)
        small = [t for t in found if t.threads <= TUNING.register_few_threads]
        tiling = (small or found)[-1] if found else None
        if small:
            break
        ctas *= 2
    if tiling is None:
        return None
    if tiling.ctas <= p.target.max_cluster_size:
        return [_kernel(p, tiling)]
    from numus.codegen.nvptx.cluster import flag_words  # imported late: for GPUs only

    words = flag_words([t for r in p.work.reductions for t in reducer(r).dtypes])
    size = p.nest.row_count * words * tiling.ctas
    flags = Value.fresh("partial", "partial", (), None, (size,), dt.uint64)
    return [clear_flags(flags, p.target), _kernel(p, tiling, flags)]


def _packed_rows(p: LoopProblem) -> int:
    """Rows of a block of one warp each: as many as leave a block for every SM, for starting a block
    takes longer than a short row."""
    packed = 1
    while packed < TUNING.packed_rows and 2 * packed * p.target.num_cores <= p.nest.row_count:
        packed *= 2
    return packed


def register_tilings(p: LoopProblem, ctas: int = 1) -> list[RegisterTiling]:
    """The tilings for which registers of these CTAs have room; none for other kinds of rows."""
    n = p.nest.row_size
    if not p.target.vector_access_bytes or p.lane is None or [p.lane] != p.nest.inner or not n:
        return []
    row = RowEmitter(p, p.work.emitter(), {}, [], p.lane)
    words = _live_words(row.reused_values()[0])
    width = vector_width(p.work, n)
    while width > 1 and n < WARP * width:  # an element for every thread
        width //= 2
    room = TUNING.register_max_elements * (1 if words or min_itemsize(p.work) > 2 else 2)
    max_elements = min(room, TUNING.register_max_words // words if words else room)
    found: list[RegisterTiling] = []
    threads = WARP
    while threads <= max(p.target.max_block_size, p.work.threads):
        step = threads * ctas * width
        tiling = RegisterTiling(threads, -(-n // step), width, ctas, n // step)
        if tiling.per_thread <= max_elements:
            found.append(tiling)
        threads *= 2
    return found


def _kernel(p: LoopProblem, tiling: RegisterTiling, flags: Value | None = None) -> LoweredKernel:
    """One kernel for all stages of all rows, a block for each."""
    e, n, count = p.work.emitter(), p.nest.row_size, p.nest.row_count
    e.block_size, e.cluster_size = tiling.threads * tiling.ctas, tiling.ctas
    if flags is not None:
        e.flags = e.buffer(flags, "write"), flags.size // count
    if tiling.threads == WARP:
        e.packed_blocks = _packed_rows(p)
    g = ir.var("g")
    # rows that fill their block need no predicates: a kernel of its own
    exact = e.block_size * tiling.per_thread == n
    end = const(n) if exact else e.dim(n)
    at = delinearize(e, g, p.nest.rows)
    row = RowEmitter(p, e, at, [(ZERO, end)], p.lane, tiling=tiling)
    row.cache_in_registers()
    body = row.stages() + row.results()
    if tiling.ctas == 1 and p.target.dependent_launch:
        from numus.compiler.lower.loops.early_prefetch import early_prefetch  # late: for GPUs only

        body = early_prefetch(e, p.target, g, body, n) + body
    return e.grid_kernel("register_row_reduction", g, body, count, p.work.notes)


def _live_words(reused: Stages) -> int:
    """Registers that each element needs, in the stage that needs most."""
    stages = range(1 + max((max(s) for s in reused.values()), default=0))
    return max(
        sum(max(1, v.dtype.itemsize // 4) for v, s in reused.items() if min(s) <= stage < max(s))
        for stage in stages
    )


def _itemsizes(work: StagedGroup) -> list[int]:
    """Item sizes of the values that are loaded or stored at every point."""
    full = [v for v in work.layouts if squeeze(v.shape) == work.group.space]
    full += [m for m in work.stored if work.is_full(m)]
    return [v.dtype.itemsize for v in full if not v.dtype.is_complex]


def min_itemsize(work: StagedGroup) -> int:
    return min(_itemsizes(work), default=4)


def vector_width(work: StagedGroup, n: int) -> int:
    """Elements of a thread's vector access, in rows of n."""
    width = min(TUNING.max_vector_elements, TUNING.max_vector_bytes // min_itemsize(work))
    while n % width:
        width //= 2
    return width
