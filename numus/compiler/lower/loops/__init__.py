"""Loop groups as kernels: maps, and row programs (stages of reductions and maps over rows).

A group is emitted twice: first with one variable per axis, to see by which strides it touches
memory (`space`); then, with neighbouring axes merged and the lanes chosen, for real.

    maps       blocks of rows; lanes along the axis that most accesses have next to each other
    rows       one row after another, lanes along the row; or lanes across rows, where neighbours in
               memory belong to different rows; every stage is a loop over the row
    streams    the same for plain reductions: blocks of whole lines pass by in memory order, and the
               running results of many rows lie in a scratch line
    narrow     short rows where lanes are threads: a few threads for each of many
    held       rows that the registers of a group have room for
    spread     the same for groups of several blocks
    splits     few long rows: blocks of a row reduce into partial results, a second kernel merges
               them in a fixed order, so the thread count never shows in the result
"""

from __future__ import annotations

from numus import dtypes as dt
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.loops.nest import Dim, Space, analyse, blocks_of
from numus.compiler.lower.loops.pointwise import lower_map
from numus.compiler.lower.loops.reduce_columns import lower_stream
from numus.compiler.lower.loops.reduce_rows import lower_rows
from numus.compiler.lower.loops.reduce_rows_cluster import lower_spread, spreading
from numus.compiler.lower.loops.reduce_rows_registers import holding, ways_to_hold
from numus.compiler.lower.loops.reduce_rows_subwarp import fits_narrow, lower_narrow
from numus.compiler.lower.loops.reduce_split import (
    FEW_ROWS,
    IN_A_ROW,
    SPLIT,
    group_blocks,
    group_part,
    lower_split,
)
from numus.compiler.lower.loops.stages import SMALL, Redirect, Work
from numus.compiler.lower.reducers import reducer
from numus.shapes import Shape
from numus.target import Target

__all__ = ["SMALL", "lower_concat", "lower_loops", "lower_product_loops", "lower_sum"]

SHORT_ROW = 16  # elements: rows that a thread takes by itself
LITTLE = 1 << 16  # elements that are there soon, however they lie,
LEAST_ALONG = 32  # of rows that long
LONG_ROW = 1 << 20  # elements: longer rows are split, even if there are enough of them
PARTS = 32  # of a concatenation, that a kernel computes at most: code, and time to make it, grow


def lower_loops(
    group: FusionGroup,
    layouts: dict[Value, Shape],
    target: Target,
    redirect: Redirect | None = None,
    aliases: dict[Value, Value] | None = None,
) -> list[LoweredKernel]:
    """The kernels of a loop group: one, or two where long rows are split.

    `redirect` stores a member as part of another value; `aliases` says which member computes a
    value that others of the group refer to.
    """
    work = Work(group, layouts, target, redirect, aliases)
    space = analyse(work)
    if not work.reduces:
        return [lower_map(work, space)]
    lane = _lane(work, space)
    if work.threads:
        return _lower_for_groups(work, space, lane)
    across = lane is not None and not lane.reduced
    points = space.row_size * space.row_count
    if work.in_one_pass and points > SMALL:
        if lane is not None and across and points >= 4 * SPLIT and space.row_size >= 64:
            return lower_stream(work, space, lane)
        side_by_side = blocks_of(space.row_count, 64) if across else space.row_count
        few = side_by_side < FEW_ROWS and space.row_size > SMALL // FEW_ROWS
        if few or space.row_size > 4 * SPLIT:  # long sums are kept accurate by being split
            return lower_split(work, space, lane)
    return [lower_rows(work, space, lane)]


def _lower_for_groups(work: Work, space: Space, lane: Dim | None) -> list[LoweredKernel]:
    """The same where lanes are threads: a group (or, across rows, a thread) for each row, but parts
    of rows where there are not enough of them or where they are long."""
    along = lane is None or lane.reduced
    if fits_narrow(work, space, lane):
        return [lower_narrow(work, space)]
    if work.in_one_pass:
        few = group_blocks(work, space, lane) < work.enough_blocks() // 2
        worth = space.row_size >= 2 * group_part(work, space, lane)
        long = space.row_size > (LONG_ROW if along else 2 * IN_A_ROW)
        if (few and worth) or long:
            return lower_split(work, space, lane)
    alone = ways_to_hold(work, space, lane)
    how = holding(work, space, alone) or spreading(work, space, lane)
    if how is not None and lane is not None:
        return lower_spread(work, space, lane, how)
    return [lower_rows(work, space, lane)]


def _lane(work: Work, space: Space) -> Dim | None:
    """The loop whose iterations are lanes: along the row, or across rows; None: neither."""
    width = work.lanes()
    if work.threads and space.row_size <= SHORT_ROW and space.row_count >= work.threads:
        # a row is less than a group could share: a thread for each
        return max(space.rows, key=lambda d: (space.neighbours(d), d.extent))

    little = space.row_size * space.row_count <= LITTLE and space.row_size >= LEAST_ALONG
    if little and work.target.vector_access_bytes and len(space.inner) == 1:
        # memory is crossed, which is little, and nobody waits for a whole row of loads by turns
        return space.inner[0]

    def weight(d: Dim) -> float:
        return (space.neighbours(d) + 0.01) * (min(d.extent, width) / width)

    candidates = [d for d in space.rows if d.extent >= 2]
    mergeable = bool(work.threads) or all(reducer(r).by_vectors for r in work.reduces)
    if space.inner and mergeable:
        candidates.append(space.inner[-1])
    return max(candidates, key=lambda d: (weight(d), d.reduced), default=None)


def lower_concat(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """Each part is computed where it belongs in the whole; parts of one shape share a kernel, as
    far as they are not too many."""
    whole = group.members[0]
    axis = whole.params
    parts: dict[Shape, list[Value]] = {}
    redirect: Redirect = {}
    start = 0
    for x in whole.inputs:
        part = Value.fresh("copy", "barrier", (x,), None, x.shape, x.dtype)
        redirect[part] = (whole, axis, start)
        start += x.shape[axis]
        if part.size:
            parts.setdefault(x.shape, []).append(part)
    steps: list[LoweredKernel] = []
    for alike in parts.values():
        for first in range(0, len(alike), PARTS):
            same = alike[first : first + PARTS]
            piece = FusionGroup(same[0], group.position)
            piece.members = same
            piece.stored = set(same)
            steps += lower_loops(piece, layouts, target, redirect)
    return steps


def lower_sum(
    group: FusionGroup, total: Value, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """A group whose first value is this reduction, with what is fused behind it."""
    product, *tail = group.members
    rows = FusionGroup(total, group.position)
    rows.members = [total, *tail]
    rows.stored = {total if v is product else v for v in group.stored}
    return lower_loops(rows, layouts, target, {total: (product, 0, 0)}, {product: total})


def lower_product_loops(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """A contraction as a plain sum of products: for dtypes and sizes that need no tiles."""
    product = group.members[0]
    a, b = product.inputs
    batch, m, n = product.shape
    k = a.shape[2]
    wide = product.dtype
    if wide.is_floating:  # products of narrow floats are not rounded one by one
        wide = dt.promote(dt.compute_dtype(wide), a.dtype)

    def operand(x: Value, shape: Shape) -> Value:
        if x.dtype is not wide:
            x = Value.fresh("cast", "elementwise", (x,), None, x.shape, wide)
        return Value.fresh("reshape", "view", (x,), shape, shape, wide)

    left = operand(a, (batch, m, 1, k))
    swapped = Value.fresh("permute", "view", (b,), (0, 2, 1), (batch, n, k), b.dtype)
    right = operand(swapped, (batch, 1, n, k))
    terms = Value.fresh("mul", "elementwise", (left, right), None, (batch, m, n, k), wide)
    total = Value.fresh("reduce_sum", "reduce", (terms,), (3,), product.shape, product.dtype)
    return lower_sum(group, total, layouts, target)
