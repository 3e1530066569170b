"""Register-resident rows over several CTAs: a thread block cluster, or blocks and global flags.

CTAs exchange partial results through distributed shared memory where the target has clusters, and
else through flags in global memory (`codegen/nvptx/cluster.py`).
"""

from __future__ import annotations

from numus import dtypes as dt
from numus.codegen.nvptx.cluster import flag_words
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.grid_sync import clear_flags, max_waiting_blocks
from numus.compiler.lower.loops.nest import Loop, LoopNest
from numus.compiler.lower.loops.reduce_rows_registers import lower_register_rows, register_tilings
from numus.compiler.lower.loops.row_emitter import RegisterTiling
from numus.compiler.lower.loops.stages import StagedGroup
from numus.compiler.lower.loops.tuning import TUNING
from numus.compiler.lower.reducers import reducer


def cluster_tiling(work: StagedGroup, nest: LoopNest, lane: Loop | None) -> RegisterTiling | None:
    """The tiling with the fewest CTAs whose threads leave room for other blocks; None where all
    CTAs that may wait for each other have no room for a row.
    """
    found: list[RegisterTiling] = []
    ctas = 2
    while ctas <= max(work.target.max_cluster_size, max_waiting_blocks(work.target)):
        found = register_tilings(work, nest, lane, ctas)
        best = [tiling for tiling in found if tiling.threads <= TUNING.register_few_threads]
        if best:
            return best[-1]
        ctas *= 2
    return found[-1] if found else None


def lower_cluster_rows(
    work: StagedGroup, nest: LoopNest, lane: Loop, tiling: RegisterTiling
) -> list[LoweredKernel]:
    """The kernel; before it a memset of the flags, where CTAs of a row form no cluster."""
    if tiling.ctas <= work.target.max_cluster_size:
        return [lower_register_rows(work, nest, lane, tiling)]
    words = flag_words([t for r in work.reductions for t in reducer(r).dtypes])
    size = nest.row_count * words * tiling.ctas
    flags = Value.fresh("partial", "partial", (), None, (size,), dt.uint64)
    kernel = lower_register_rows(work, nest, lane, tiling, flags)
    return [clear_flags(flags, work.target), kernel]
