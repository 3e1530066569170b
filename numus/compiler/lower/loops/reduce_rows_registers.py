"""Rows that the registers of a group have room for: every thread keeps its part of a row.

All of a row is under way from memory at a time, and what several stages need is read, or computed,
once. How many threads a group has follows from the row's length: each has a few vectors, of
neighbours that memory brings at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from numus import ir
from numus.compiler.fusion.group import squeeze
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.loops.nest import ZERO, Dim, Space, digits
from numus.compiler.lower.loops.reduce_rows import Holding, Row
from numus.compiler.lower.loops.stages import Work
from numus.ir import const

ACCESS = 16  # bytes of the widest access
WIDEST = 8  # elements of a vector, at most
UNDER_WAY = 64  # bytes of a row that a thread reads at a time, where it can choose
MOST_ELEMENTS = 32  # of a row that a thread has
MOST_WORDS = 48  # of its registers that are kept from stage to stage
MANY_THREADS = 512  # beyond this, too few groups of a unit wait by turns
WARP = 32  # threads that share a row without a barrier:
PACK = 8  # rows of a block then, where there are many, of which each moves
LITTLE = 5 << 10  # bytes: what memory moves while a block begins
SLACK = 1.1  # how much more room than a row needs is as good as none


def holding(work: Work, space: Space, ways: Sequence[Holding]) -> Holding | None:
    """The best of the ways in which a block would hold the rows; None where there is none."""
    n = space.row_size
    # rows that are so many and so short that blocks of one each could not begin quickly enough
    many = space.row_count >= PACK * work.enough_blocks() and n * sum(sizes(work)) < LITTLE

    def cost(how: Holding) -> tuple[float, int]:
        room = max(SLACK, how.threads * how.each / n)
        off = abs(math.log2(how.each * itemsize(work) / UNDER_WAY)) + (how.threads > MANY_THREADS)
        if how.threads == WARP and many:
            off = 0.0
        return room * (1 + off / 4), how.threads

    return min(ways, key=cost, default=None)


def ways_to_hold(work: Work, space: Space, lane: Dim | None, blocks: int = 1) -> list[Holding]:
    """The ways in which so many blocks have room for a row; none where others do it better."""
    if (
        not work.target.vector_access_bytes
        or lane is None
        or [lane] != space.inner
        or not space.row_size
    ):
        return []
    row = Row(work, space, work.emitter(), {}, [], lane)
    words = _words(row.needed_again()[0])
    n = space.row_size
    width = vector_width(work, n)
    while width > 1 and n < WARP * width:  # something for every thread
        width //= 2
    found: list[Holding] = []
    threads = WARP
    while threads <= max(work.target.max_block_size, work.threads):
        once = threads * blocks * width
        how = Holding(threads, -(-n // once), width, blocks, n // once)
        if how.each <= MOST_ELEMENTS and how.each * words <= MOST_WORDS:
            found.append(how)
        threads *= 2
    return found


def lower_held(
    work: Work, space: Space, lane: Dim, how: Holding, board: Value | None = None
) -> LoweredKernel:
    """One kernel for all stages of all rows, a group for each."""
    e = work.emitter()
    e.block_size, e.cluster_size = how.threads * how.blocks, how.blocks
    if board is not None:
        e.flags = e.buffer(board, "write"), board.size // space.row_count
    if how.threads == WARP and space.row_count >= PACK * work.enough_blocks():
        e.packed_blocks = PACK
    g = ir.var("g")
    # a row that fills its group is another kernel, which asks nobody whether there is something
    exact = e.block_size * how.each == space.row_size
    end = const(space.row_size) if exact else e.dim(space.row_size)
    row = Row(work, space, e, digits(e, g, space.rows), [(ZERO, end)], lane, holding=how)
    row.keep_in_registers()
    return e.grid_kernel("held_rows", g, row.stages() + row.results(), space.row_count, work.notes)


def _words(kept: dict[Value, set[int]]) -> int:
    """Registers that each element needs, in the stage that needs most."""
    stages = range(1 + max((max(s) for s in kept.values()), default=0))
    return max(
        sum(max(1, v.dtype.itemsize // 4) for v, s in kept.items() if min(s) <= stage < max(s))
        for stage in stages
    )


def sizes(work: Work) -> list[int]:
    """Item sizes of what is read or stored at every point."""
    full = [v for v in work.layouts if squeeze(v.shape) == work.group.space]
    full += [m for m in work.stored if work.is_full(m)]
    return [v.dtype.itemsize for v in full if not v.dtype.is_complex]


def itemsize(work: Work) -> int:
    """Of the smallest of them."""
    return min(sizes(work), default=4)


def vector_width(work: Work, n: int) -> int:
    """Neighbours that a thread accesses at once, of rows of n."""
    width = min(WIDEST, ACCESS // itemsize(work))
    while n % width:
        width //= 2
    return width
