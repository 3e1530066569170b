"""Rows that several blocks hold together, each a part of them in its registers.

What the parts of a row come to is exchanged within a cluster, on devices that have clusters, and
else on a board (`render/ptx_spread.py`).
"""

from __future__ import annotations

from numus import dtypes as dt
from numus.codegen.nvptx.cluster import flag_words
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.grid_sync import clear_flags, max_waiting_blocks
from numus.compiler.lower.loops.nest import Dim, Space
from numus.compiler.lower.loops.reduce_rows import Holding
from numus.compiler.lower.loops.reduce_rows_registers import MANY_THREADS, lower_held, ways_to_hold
from numus.compiler.lower.loops.stages import Work
from numus.compiler.lower.reducers import reducer


def spreading(work: Work, space: Space, lane: Dim | None) -> Holding | None:
    """How several blocks would hold a row; None where all that may wait for each other have no room
    for it.

    As few blocks as do with no more threads than let others of a unit work while they wait.
    """
    found: list[Holding] = []
    blocks = 2
    while blocks <= max(_cluster(work), max_waiting_blocks(work.target)):
        found = ways_to_hold(work, space, lane, blocks)
        best = [how for how in found if how.threads <= MANY_THREADS]
        if best:
            return best[-1]
        blocks *= 2
    return found[-1] if found else None


def _cluster(work: Work) -> int:
    """Blocks of a cluster, at most; 1 where there are none."""
    return work.target.max_cluster_size


def lower_spread(work: Work, space: Space, lane: Dim, how: Holding) -> list[LoweredKernel]:
    """The kernel; before it one that empties the board, where the blocks of a row need one."""
    if how.blocks <= _cluster(work):
        return [lower_held(work, space, lane, how)]
    words = flag_words([t for r in work.reduces for t in reducer(r).dtypes])
    size = space.row_count * words * how.blocks
    board = Value.fresh("partial", "partial", (), None, (size,), dt.uint64)
    return [clear_flags(board, work.target), lower_held(work, space, lane, how, board)]
