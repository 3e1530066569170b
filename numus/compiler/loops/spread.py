"""Rows that several blocks hold together, each a part of them in its registers.

Rows are spread where one block has no room for them, or where there are too few of them to keep the
device busy. What the parts of a row come to is exchanged within a cluster, on devices that have
clusters, and else on a board (`render/ptx_spread.py`).
"""

from __future__ import annotations

from numus import dtypes as dt
from numus.compiler.boards import emptied, most_blocks
from numus.compiler.emit import Step
from numus.compiler.group_operands import capability
from numus.compiler.local import Val
from numus.compiler.loops.held import MANY_THREADS, lower_held, ways_to_hold
from numus.compiler.loops.rows import Holding
from numus.compiler.loops.space import Dim, Space
from numus.compiler.loops.work import Work
from numus.compiler.reducers import reducer
from numus.compiler.render.ptx_spread import CLUSTERS_SINCE, MOST_BLOCKS, words_of


def spreading(work: Work, space: Space, lane: Dim | None) -> Holding | None:
    """How several blocks would hold a row; None where one has room for it, or all have not.

    As few blocks as do with no more threads than let others of a unit work while they wait.
    """
    found: list[Holding] = []
    for blocks in _counts(work):
        found = ways_to_hold(work, space, lane, blocks)
        if blocks == 1 and found:
            return None
        best = [how for how in found if how.threads <= MANY_THREADS]
        if best:
            return best[-1]
    return found[-1] if found else None


def _counts(work: Work) -> list[int]:
    """How many blocks a group may have: as many as a cluster, or, where blocks can wait for each
    other, as many as the device has room for at a time, whatever they need."""
    most = max(_cluster(work), most_blocks(work.facts))
    return [1 << k for k in range(most.bit_length())]


def _cluster(work: Work) -> int:
    return MOST_BLOCKS if capability(work.facts) >= CLUSTERS_SINCE else 1


def lower_spread(work: Work, space: Space, lane: Dim, how: Holding) -> list[Step]:
    """The kernel; before it one that empties the board, where the blocks of a row need one."""
    if how.blocks <= _cluster(work):
        return [lower_held(work, space, lane, how)]
    words = words_of([t for r in work.reduces for t in reducer(r).dtypes])
    size = space.row_count * words * how.blocks
    board = Val(-61, "partial", "partial", (), None, (size,), dt.uint64)
    return [emptied(board, work.facts), lower_held(work, space, lane, how, board)]
