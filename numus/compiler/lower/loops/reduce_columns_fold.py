"""Narrow matrices whose columns are reduced: rows that follow each other lie side by side.

A group of threads that is wider than the matrix, or ends beside it, would leave threads idle. What
one thread adds up is then every second, fourth, ... row of a column, and the merge of the parts
takes a few more of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from numus.compiler.lower.loops.nest import Dim, Space, blocks_of
from numus.compiler.lower.loops.reduce_rows import neighbours_of
from numus.compiler.lower.loops.stages import Work, deviating
from numus.shapes import is_row_major

_FOLDS = (1, 2, 4, 8, 16, 32, 64, 128)
_USED = 0.94  # of threads: more rows side by side would not be worth their merge


def folded(work: Work, space: Space, lane: Dim | None) -> tuple[Space, Dim | None, int]:
    """The loops, the one across rows, and how many rows lie side by side: as few as let threads
    read several columns at once and leave hardly any of them idle."""
    if not work.threads or lane is None or lane.reduced or not _is_plain(work, space):
        return space, lane, 1
    ways = [(neighbours_of(work, *way[:2]), way) for way in _ways(space, lane)]
    most = max(at_once for at_once, _ in ways)
    wide = [way for at_once, way in ways if at_once == most]
    used = [_used(work.threads * most, way[1]) for way in wide]
    enough = min(max(used), _USED)
    return next(way for way, share in zip(wide, used, strict=True) if share >= enough)


def _ways(space: Space, lane: Dim) -> Iterator[tuple[Space, Dim, int]]:
    (cut,) = space.inner
    variable = space.variables[cut.axis]
    for fold in _FOLDS:
        if cut.extent % fold == 0:
            rows = Dim(cut.extent // fold, True, cut.axis, fold)
            columns = Dim(lane.extent * fold, False, lane.axis)
            accesses = [
                {v: s * fold if v is variable else s for v, s in p.items()} for p in space.accesses
            ]
            yield (
                Space(space.axes, space.reduced, [rows, columns], accesses, space.variables),
                columns,
                fold,
            )


def _used(columns: int, lane: Dim) -> float:
    """Which share of groups that are so wide has something to do."""
    return lane.extent / (blocks_of(lane.extent, columns) * columns)


def _is_plain(work: Work, space: Space) -> bool:
    """Whether sums along the outer of two loops need nothing but contiguous memory."""
    if len(space.dims) != 2 or not space.dims[0].reduced:
        return False
    positions = any(r.op in ("argmax", "argmin") for r in work.reduces)
    if positions or any(work.is_full(m) for m in work.stored):
        return False
    whole = tuple(work.group.space)
    stack = [deviating(r) if r in work.squares else r.inputs[0] for r in work.reduces]
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
