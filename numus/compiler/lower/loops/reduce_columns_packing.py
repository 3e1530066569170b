"""Row packing for column reductions of narrow matrices on GPUs.

n rows are reshaped to one of n times the columns. A block wider than the matrix would leave threads
idle, and threads with several adjacent columns each would be few. With packing, a thread reduces
every n-th row of its columns, and n times as many partial results are combined. Operands that all
rows have in common, as the means of channels are, repeat along the packed columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from numus import ir
from numus.compiler.fusion.group import squeeze
from numus.compiler.graph.strided_view import strided_view
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Index
from numus.compiler.lower.loops import reduce_rows
from numus.compiler.lower.loops.nest import Loop, ceil_div
from numus.compiler.lower.loops.problem import LoopProblem
from numus.compiler.lower.loops.stages import source_of
from numus.compiler.lower.loops.tuning import TUNING
from numus.shapes import Shape, is_row_major, row_major

_PACKINGS = (1, 2, 4, 8, 16, 32, 64, 128)


def pack_columns(p: LoopProblem) -> tuple[LoopProblem, int, list[Value]]:
    """The problem with as few rows packed as let threads read several columns at once and leave
    hardly any of them idle; their number; and the vectors that packed rows have in common."""
    vectors = _common_vectors(p) if p.work.threads and p.across_rows else None
    if vectors is None:
        return p, 1, []
    found = [
        (reduce_rows.columns_per_thread(packed), packed, rows)
        for packed, rows in _packings(p)
        if not vectors or p.lanes.extent % reduce_rows.columns_per_thread(packed) == 0
    ]
    vector = max(columns for columns, _, _ in found)
    widest = [(packed, rows) for columns, packed, rows in found if columns == vector]
    used = [_used_threads(p.work.threads * vector, packed.lanes) for packed, _ in widest]
    enough = min(max(used), TUNING.column_pack_used)
    packed, rows = next(w for w, share in zip(widest, used, strict=True) if share >= enough)
    return packed, rows, vectors if rows > 1 else []


def repeat_columns(packed: LoopProblem, columns: int, e: Emitter, vectors: list[Value]) -> None:
    """Let vectors with an element for each column of a matrix be read by packed ones."""
    if vectors:
        e.alignment = reduce_rows.columns_per_thread(packed)

    def column(v: Value, index: Index) -> Index:
        extent = e.dim(columns)
        axis = next(i for i, n in enumerate(v.shape) if n != 1)
        if index[axis].op == "irem" and index[axis].args[1] is extent:
            return index
        return (*index[:axis], ir.irem(index[axis], extent), *index[axis + 1 :])

    def bind(v: Value) -> None:
        def element(index: Index) -> object:
            wrapped = column(v, index)
            return None if wrapped == index else e.value(v, wrapped)

        e.bindings[v] = element

    for v in vectors:
        bind(v)


def _packings(p: LoopProblem) -> Iterator[tuple[LoopProblem, int]]:
    (along,) = p.nest.inner
    variable = p.nest.variables[along.axis]
    for rows in _PACKINGS:
        if along.extent % rows == 0:
            outer = Loop(along.extent // rows, True, along.axis, rows)
            columns = Loop(p.lanes.extent * rows, False, p.lanes.axis)
            accesses = [
                {v: s * rows if v is variable else s for v, s in a.items()} for a in p.nest.accesses
            ]
            nest = replace(p.nest, loops=[outer, columns], accesses=accesses)
            yield replace(p, nest=nest, lane=columns), rows


def _used_threads(columns: int, lane: Loop) -> float:
    """The fraction of threads with something to do, in blocks of this many columns."""
    return lane.extent / (ceil_div(lane.extent, columns) * columns)


def _common_vectors(p: LoopProblem) -> list[Value] | None:
    """Of sums along the outer of two loops, of contiguous operands, the operands that have one
    element for each column; None of other problems."""
    work = p.work
    if len(p.nest.loops) != 2 or not p.nest.loops[0].reduced:
        return None
    positions = any(r.op in ("argmax", "argmin") for r in work.reductions)
    stores = [m for m in work.stored if work.is_full(m)]
    if positions or any(m in work.redirect for m in stores):
        return None
    found: dict[Value, None] = {}
    space = tuple(work.group.space)
    sources = [source_of(r) if r in work.sqdevs else r.inputs[0] for r in work.reductions]
    stack = [(v, space) for v in (*sources, *stores)]
    while stack:
        v, whole = stack.pop()
        if v.size == 1 and v.op != "count":
            continue
        base = v
        while base.kind == "view" and base not in work.layouts:
            base = base.inputs[0]
        if squeeze(base.shape) == (p.lanes.extent,) and base in work.layouts:
            if not _spans_last_axis(v, base, whole):
                return None
            found[base] = None
            continue
        layout = work.layouts.get(base, row_major(base.shape))
        lies = strided_view(v, {base: layout})
        if v.shape != whole or lies is None or lies.offset or not is_row_major(whole, lies.strides):
            return None
        if base not in work.layouts:
            if base.kind != "elementwise":
                return None
            stack += [(x, base.shape) for x in base.inputs]
    return list(found)


def _spans_last_axis(v: Value, base: Value, whole: Shape) -> bool:
    """Whether a view of a vector has its elements along the last of these axes, and no other."""
    found = strided_view(v, {base: row_major(base.shape)})
    if found is None or found.offset or v.shape[-1] != whole[-1] or len(v.shape) > len(whole):
        return False
    others = [s for n, s in zip(v.shape[:-1], found.strides, strict=False) if n != 1]
    return found.strides[-1] == 1 and not any(others)
