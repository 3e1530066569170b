"""Row packing for column reductions of narrow matrices: n rows are reshaped to one of n times the
columns.

A block wider than the matrix would leave threads idle. With packing, a thread reduces every n-th
row of a column, and n times as many partial results are combined.
"""

from __future__ import annotations

from collections.abc import Iterator

from numus.compiler.lower.loops.nest import Loop, LoopNest, ceil_div
from numus.compiler.lower.loops.reduce_rows import columns_per_thread
from numus.compiler.lower.loops.stages import StagedGroup, source_of
from numus.compiler.lower.loops.tuning import TUNING
from numus.shapes import is_row_major

_PACKINGS = (1, 2, 4, 8, 16, 32, 64, 128)


def pack_columns(
    work: StagedGroup, nest: LoopNest, lane: Loop | None
) -> tuple[LoopNest, Loop | None, int]:
    """The nest, its lanes, and the rows packed: as few as let threads read several columns at once
    and leave hardly any of them idle."""
    if not work.threads or lane is None or lane.reduced or not _is_packable(work, nest):
        return nest, lane, 1
    found = [(columns_per_thread(work, *way[:2]), way) for way in _packings(nest, lane)]
    vector = max(columns for columns, _ in found)
    widest = [way for columns, way in found if columns == vector]
    used = [_used_threads(work.threads * vector, way[1]) for way in widest]
    enough = min(max(used), TUNING.column_pack_used)
    return next(way for way, share in zip(widest, used, strict=True) if share >= enough)


def _packings(nest: LoopNest, lane: Loop) -> Iterator[tuple[LoopNest, Loop, int]]:
    (along,) = nest.inner
    variable = nest.variables[along.axis]
    for rows in _PACKINGS:
        if along.extent % rows == 0:
            outer = Loop(along.extent // rows, True, along.axis, rows)
            columns = Loop(lane.extent * rows, False, lane.axis)
            accesses = [
                {v: s * rows if v is variable else s for v, s in p.items()} for p in nest.accesses
            ]
            packed = LoopNest(nest.axes, nest.reduced, [outer, columns], accesses, nest.variables)
            yield packed, columns, rows


def _used_threads(columns: int, lane: Loop) -> float:
    """The fraction of threads with something to do, in blocks of so many columns."""
    return lane.extent / (ceil_div(lane.extent, columns) * columns)


def _is_packable(work: StagedGroup, nest: LoopNest) -> bool:
    """Sums along the outer of two loops, of contiguous operands only."""
    if len(nest.loops) != 2 or not nest.loops[0].reduced:
        return False
    positions = any(r.op in ("argmax", "argmin") for r in work.reductions)
    if positions or any(work.is_full(m) for m in work.stored):
        return False
    whole = tuple(work.group.space)
    stack = [source_of(r) if r in work.sqdevs else r.inputs[0] for r in work.reductions]
    while stack:
        v = stack.pop()
        if v.size == 1 and v.op != "count":
            continue
        if v.shape != whole:
            return False
        if v in work.layouts:
            if not is_row_major(whole, work.layouts[v]):
                return False
        elif v.kind == "elementwise":
            stack.extend(v.inputs)
        else:
            return False
    return True
