"""Split reductions: parts of long rows reduce into partial results, which a second kernel merges.

How a row is cut depends on sizes alone and partial results are merged in order, so the thread count
never shows in the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.emit import Emitter, Step
from numus.compiler.ir import Expr, Stmt, const
from numus.compiler.local import Val
from numus.compiler.loops.folds import folded
from numus.compiler.loops.held import itemsize
from numus.compiler.loops.rows import (
    Row,
    Span,
    neighbours_of,
    over_lanes,
    side_by_side,
    store_per_row,
    update,
    whole,
)
from numus.compiler.loops.space import (
    ZERO,
    Dim,
    Space,
    block,
    blocks_of,
    digits,
    joined,
)
from numus.compiler.loops.work import PER_THREAD, Work, sum_behind
from numus.compiler.reducers import Reducer, reducer
from numus.runtime.contract import Facts

SPLIT = 1 << 15  # elements of a row that one block of a split reduction handles
IN_A_ROW = 1 << 10  # elements that are added one after the other: rounding errors add up so far
FEW_ROWS = 16
AT_A_TIME = 16, 32  # partial results that a thread loads at a time: of few, of many
# Parts of rows for each unit, at least and at most: the last ones to end leave few units idle; and
PARTS_PER_UNIT = 8, 64
PART_BYTES = 1 << 18  # of each, in between: all of them have to be merged
TWICE_BYTES = 1 << 16  # of those that are walked twice: a unit has several at a time
PARTS_AT_A_TIME = 4  # of a unit, where threads of a group lie across rows
MERGE_ROWS = 1024  # rows whose partial results one block merges


@dataclass(frozen=True, slots=True)
class Parts:
    """Rows cut along the outermost of their loops, and where the partial results lie."""

    cut: Dim
    size: int  # steps of that loop in one part
    count: int  # of parts
    below: int  # elements of a row in one step
    partials: dict[Val, list[Val]]  # of each reduction, one value per register

    @staticmethod
    def of(work: Work, space: Space, size: int) -> Parts:
        """Parts of `size` steps each."""
        cut = space.inner[0]
        count = blocks_of(cut.extent, size)
        shape = (count, space.row_count)
        partials = {
            r: [
                Val(-100 - i, "partial", "partial", (), None, shape, t)
                for i, t in enumerate(reducer(r).dtypes)
            ]
            for r in work.reduces
        }
        return Parts(cut, size, count, space.row_size // cut.extent, partials)

    def span(self, e: Emitter, part: Expr, size: Expr) -> Span:
        """The steps of a part, whose size is a slot of the kernel."""
        return block(ir.mul(part, size), size, e.number(self.cut.extent))


def lower_split(work: Work, space: Space, lane: Dim | None) -> list[Step]:
    """Few long rows: each block of the first kernel takes a part of one."""
    work = work.leaning()
    rows = space
    space, lane, fold = folded(work, space, lane)
    top = space.inner[0].extent
    below = space.row_size // top
    # two parts at least, so that every size has the same code
    most = SPLIT if lane is not None and lane.reduced else IN_A_ROW
    if work.threads:
        most = group_part(work, space, lane)
    parts = Parts.of(work, space, max(1, min(most // max(1, below), blocks_of(top, 2))))
    e = work.emitter()
    g = ir.var("g")
    size, many = e.parameter(parts.size), e.parameter(parts.count)
    part, rest = ir.irem(g, many), ir.idiv(g, many)
    if work.threads and lane is not None and not lane.reduced:
        # neighbouring groups read neighbouring columns of the same rows
        across = e.parameter(group_blocks(work, space, lane))
        part, rest = ir.idiv(g, across), ir.irem(g, across)
    spans = whole(e, space)
    spans[0] = parts.span(e, part, size)

    def save(row: Row) -> list[Stmt]:
        number = joined(e, space.rows, row.at)
        out: list[Stmt] = []
        for r, vals in parts.partials.items():
            for v, value in zip(vals, row.finals[r], strict=True):
                out += e.store(v, (part, number), value)
        return out

    if lane is not None and not lane.reduced:
        body, blocks = side_by_side(work, space, e, lane, rest, spans, save)
    else:
        if work.threads and lane is not None and len(space.inner) > 1:
            e.group = _threads_along(work, lane)
        row = Row(work, space, e, digits(e, rest, space.rows), spans, lane)
        body, blocks = row.stages() + save(row), space.row_count
    step = e.blocks("split_rows", g, body, blocks * parts.count, work.notes)
    merged = replace(parts, cut=rows.inner[0], count=parts.count * fold)
    return [step, lower_merge(work, rows, merged)]


def _threads_along(work: Work, lane: Dim) -> int:
    """Threads of a group that goes along one of several loops again and again: not so many that
    each has but one access under way."""
    if lane.extent < work.threads:
        return work.threads
    return work.threads_for(blocks_of(lane.extent, PER_THREAD))


def group_blocks(work: Work, space: Space, lane: Dim | None) -> int:
    """How many groups whole rows would keep busy."""
    if lane is None or lane.reduced:
        return space.row_count
    columns = work.threads * neighbours_of(work, space, lane)
    return blocks_of(lane.extent, columns) * (space.row_count // lane.extent)


def group_part(work: Work, space: Space, lane: Dim | None) -> int:
    """Elements of a row in one part, where parts are the work of groups: as many parts as keep the
    device busy, none so short that starting it costs more than it does."""
    groups = group_blocks(work, space, lane)
    if lane is None or lane.reduced:
        size = space.row_size * space.row_count * itemsize(work)
        least, most = PARTS_PER_UNIT
        per_unit = max(least, min(most, size // (PART_BYTES * work.facts.parallel_units)))
        if lane is not None and len(space.inner) > 1:
            per_unit *= work.threads // _threads_along(work, lane)  # small groups, more of them
        parts = blocks_of(work.facts.parallel_units * per_unit, groups)
        # in whole turns of a group: all parts begin as aligned as the first
        turns = blocks_of(blocks_of(space.row_size, parts), work.share())
        if work.squares:  # parts are walked twice, the second time in a unit's first cache
            turns = min(turns, TWICE_BYTES // (work.share() * itemsize(work)))
        return max(1, turns) * work.share()
    # what is cut has to be merged: no more parts than run at a time; narrow groups are small ones
    columns = work.threads * neighbours_of(work, space, lane)
    full = max(1, groups * min(columns, lane.extent) // columns)
    parts = max(1, work.facts.parallel_units * PARTS_AT_A_TIME // full)
    size = blocks_of(space.row_size, parts)
    size = max(1, blocks_of(size, PER_THREAD)) * PER_THREAD  # so many are read at a time
    return min(size, IN_A_ROW)


# -- merging --------------------------------------------------------------------------------------


def lower_merge(work: Work, space: Space, parts: Parts) -> Step:
    """For each row, combine the partial results in order; then what is stored per row."""
    row_count = space.row_count
    e = work.emitter({v: (row_count, 1) for vals in parts.partials.values() for v in vals})
    many, stride = e.number(parts.count), e.number(row_count)
    in_lanes = row_count >= FEW_ROWS
    by_group = bool(work.threads) and (row_count < work.threads or parts.count >= work.threads)
    if by_group:  # a group merges the parts of one row, in a fixed tree
        in_lanes = False
        e.group = work.threads_for(parts.count)
    elif work.threads:
        e.group = min(32, work.threads)  # as many groups as there can be
    g = ir.var("g")
    row = e.variable("row", stride) if in_lanes else g if space.rows else ZERO
    at = digits(e, row, space.rows)
    total = ir.mul(e.number(parts.cut.extent), e.number(parts.below))
    for v in work.counts:
        e.hold(v, total.cast(v.dtype))

    def partial(v: Val, part: Expr) -> Expr:
        return ir.load(e.buffer(v), ir.add(ir.mul(part, stride), row))

    body: list[Stmt] = []
    merged: dict[Val, list[Expr]] = {}
    squares = {lean: r for r, lean in work.leans.items()}
    for i, r in enumerate(work.reduces):
        how = reducer(r)
        part = ir.var(f"c{i}")
        wide = [_wider(t, how, work.facts) for t in how.dtypes]
        lanes = in_lanes or by_group
        registers = [ir.Register(f"m{i}_{k}", t, lanes) for k, t in enumerate(wide)]
        for register, start in zip(registers, how.initial(), strict=True):
            body.append(ir.Set(register, start.cast(register.dtype)))

        def take(part: Expr, tag: str, i: int = i, r: Val = r, there: Any = None) -> list[Stmt]:
            """Merge one part, where it is there."""
            how = reducer(r)
            pairs = zip(parts.partials[r], registers, strict=True)  # noqa: B023
            news = [partial(v, part).cast(x.dtype) for v, x in pairs]
            if r in work.squares or r in squares:
                plain = sum_behind(squares.get(r, r))
                own_sum = partial(parts.partials[plain][0], part)
                count, away = _away(e, parts, part, own_sum, merged[plain][0], news[0].dtype)
                if r in squares:
                    news = [news[0] + count * away]
                else:
                    lean = partial(parts.partials[work.leans[r]][0], part).cast(away.dtype)
                    news = [news[0] + away * (lean + lean + count * away)]
            olds = [ir.read(x) for x in registers]  # noqa: B023
            new = how.merge(olds, news)
            if there is not None:
                new = [ir.select(there, x, old) for x, old in zip(new, olds, strict=True)]
            return update(registers, new, f"u{i}{tag}")  # noqa: B023

        if work.threads and not by_group:  # several loads under way at a time
            first = ir.var(f"c{i}s")
            turns: list[Stmt] = []
            least, most = AT_A_TIME
            at_a_time = least if parts.count <= least else most
            for k in range(at_a_time):
                number = ir.add(first, const(k))
                near = ir.minimum(number, ir.sub(many, const(1)))
                turns += take(near, f"s{k}", there=number < many)
            body.append(ir.For(first, ZERO, many, "serial", turns, step=const(at_a_time)))
        else:
            kind = "lanes" if by_group else "serial"
            body.append(ir.For(part, ZERO, many, kind, take(part, "")))
        finals = [ir.var(f"f{i}_{k}", x.dtype) for k, x in enumerate(registers)]
        if by_group:
            body += over_lanes(how, registers, finals)
        else:
            body += [ir.Let(f, ir.read(x)) for f, x in zip(finals, registers, strict=True)]
        if r in work.squares:  # which were taken around what is not quite the mean
            (lean,) = merged[work.leans[r]]
            finals = [finals[0] - lean * (lean / total.cast(lean.dtype))]
        merged[r] = finals
        e.hold(r, how.finish([f.cast(t) for f, t in zip(finals, how.dtypes, strict=True)]))
    for m, r in work.aliases.items():
        e.known[m] = e.known[r]
    body += store_per_row(work, space, e, at)
    if not in_lanes:
        return e.blocks("merge", g, body, row_count, ("combine",))
    each = e.group or MERGE_ROWS
    rows = const(each)
    loop = ir.For(row, *block(ir.mul(g, rows), rows, stride), "lanes", body)
    return e.blocks("merge", g, [loop], blocks_of(row_count, each), ("combine",))


def _away(
    e: Emitter, parts: Parts, part: Expr, own_sum: Expr, row_sum: Expr, wide: dt.DType
) -> tuple[Expr, Expr]:
    """How many elements a part has, and how far the mean that its deviations were taken from is
    from what the row's sum gives: rounded both, as long as the part rounded the first likewise.
    """
    start, stop = parts.span(e, part, e.parameter(parts.size))
    below = e.number(parts.below)
    own_count = ir.mul(ir.sub(stop, start), below)
    row_count = ir.mul(e.number(parts.cut.extent), below)
    own_mean = own_sum / own_count.cast(own_sum.dtype)
    return own_count.cast(wide), own_mean.cast(wide) - row_sum.cast(wide) / row_count.cast(wide)


def _wider(dtype: dt.DType, how: Reducer, facts: Facts) -> dt.DType:
    """Partial sums of float32 are merged in float64 where the device has it."""
    if dtype is dt.float32 and how.op in ("sum", "prod") and "float64" in facts.dtypes:
        return dt.float64
    return dtype
