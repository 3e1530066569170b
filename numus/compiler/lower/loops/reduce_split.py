"""Split reductions: parts of long rows reduce into partial results, which a second kernel merges.

How a row is cut depends on sizes alone and partial results are merged in order, so the thread count
never shows in the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops.nest import (
    ZERO,
    Dim,
    Space,
    block,
    blocks_of,
    digits,
    joined,
)
from numus.compiler.lower.loops.reduce_columns_fold import folded
from numus.compiler.lower.loops.reduce_rows import (
    Row,
    Span,
    neighbours_of,
    over_lanes,
    side_by_side,
    store_per_row,
    update,
    whole,
)
from numus.compiler.lower.loops.reduce_rows_registers import itemsize
from numus.compiler.lower.loops.shifted_variance import first_of, sample_of, samples
from numus.compiler.lower.loops.stages import PER_THREAD, Work, sum_behind
from numus.compiler.lower.reducers import Reducer, reducer
from numus.ir import Expr, Stmt, const
from numus.target import Target

SPLIT = 1 << 15  # elements of a row that one block of a split reduction handles
IN_A_ROW = 1 << 10  # elements that are added one after the other: rounding errors add up so far
FEW_ROWS = 16
AT_A_TIME = 16, 32  # partial results that a thread loads at a time: of few, of many
# Parts of rows for each unit, at least and at most: the last ones to end leave few units idle; and
PARTS_PER_UNIT = 8, 64
PART_BYTES = 1 << 18  # of each, in between: all of them have to be merged
TWICE_BYTES = 1 << 16  # of those that are walked twice: a unit has several at a time
PARTS_AT_A_TIME = 4  # of a unit, where threads of a group lie across rows
PER_ACCESS = 4  # elements that a thread reads at once
NEARLY = 0.8  # of what keeps threads most busy: larger groups are fewer
MERGE_ROWS = 1024  # rows whose partial results one block merges


@dataclass(frozen=True, slots=True)
class Parts:
    """Rows cut along the outermost of their loops, and where the partial results lie."""

    cut: Dim
    size: int  # steps of that loop in one part
    count: int  # of parts
    below: int  # elements of a row in one step
    partials: dict[Value, list[Value]]  # of each reduction, one value per register
    sample: int = 0  # first steps of each whose mean squared deviations are taken around; 0: of all
    fold: int = 1  # rows that lie side by side, whose steps are every so many of a row's

    @staticmethod
    def of(work: Work, space: Space, size: int, sample: int = 0, fold: int = 1) -> Parts:
        """Parts of `size` steps each."""
        cut = space.inner[0]
        count = blocks_of(cut.extent, size)
        shape = (count, space.row_count)
        partials = {
            r: [Value.fresh("partial", "partial", (), None, shape, t) for t in reducer(r).dtypes]
            for r in work.reduces
        }
        below = space.row_size // cut.extent
        return Parts(cut, size, count, below, partials, sample, fold)

    def span(self, e: Emitter, part: Expr, size: Expr) -> Span:
        """The steps of a part, whose size is a slot of the kernel."""
        return block(ir.mul(part, size), size, e.dim(self.cut.extent))

    def row_size(self, e: Emitter) -> Expr:
        """How many elements a row has."""
        return ir.mul(e.dim(self.cut.extent * self.fold), e.dim(self.below))


def lower_split(work: Work, space: Space, lane: Dim | None) -> list[LoweredKernel]:
    """Few long rows: each block of the first kernel takes a part of one."""
    rows = space
    space, lane, fold = folded(work, space, lane)
    top = space.inner[0].extent
    below = space.row_size // top
    # two parts at least, so that every size has the same code
    most = SPLIT if lane is not None and lane.reduced else IN_A_ROW
    if work.threads:
        most = group_part(work, space, lane)
    size = max(1, min(most // max(1, below), blocks_of(top, 2)))
    sample = sample_of(work, lane, size, below)
    work = work.sampling() if sample else work.leaning()
    parts = Parts.of(work, space, size, sample, fold)
    e = work.emitter()
    g = ir.var("g")
    steps, many = e.scalar_arg(parts.size), e.scalar_arg(parts.count)
    part, rest = ir.irem(g, many), ir.idiv(g, many)
    if work.threads and lane is not None and not lane.reduced:
        # neighbouring groups read neighbouring columns of the same rows
        across = e.scalar_arg(group_blocks(work, space, lane))
        part, rest = ir.idiv(g, across), ir.irem(g, across)
    spans = whole(e, space)
    spans[0] = parts.span(e, part, steps)
    first = first_of(spans[0], sample)

    def save(row: Row) -> list[Stmt]:
        number = joined(e, space.rows, row.at)
        out: list[Stmt] = []
        for r, vals in parts.partials.items():
            for v, value in zip(vals, row.finals[r], strict=True):
                out += e.store(v, (part, number), value)
        return out

    if lane is not None and not lane.reduced:
        body, blocks = side_by_side(work, space, e, lane, rest, spans, save, first)
    else:
        if work.threads and lane is not None and len(space.inner) > 1:
            e.block_size = _threads_along(work, lane)
        row = Row(work, space, e, digits(e, rest, space.rows), spans, lane, sample=first)
        body, blocks = row.stages() + save(row), space.row_count
    step = e.grid_kernel("split_rows", g, body, blocks * parts.count, work.notes)
    return [step, lower_merge(work, rows, replace(parts, count=parts.count * fold))]


def _threads_along(work: Work, lane: Dim) -> int:
    """Threads of a group that goes along one of several loops again and again: as many as nearly
    always have several accesses under way. What is left in the end they have one by one."""
    if lane.extent < work.threads:
        return work.threads

    def busy(threads: int) -> float:
        whole, rest = divmod(lane.extent, threads * PER_THREAD)
        waits = whole + blocks_of(rest, threads * PER_ACCESS)
        return lane.extent / (threads * waits)

    ways = [work.threads >> k for k in range(work.threads.bit_length()) if work.threads >> k >= 32]
    best = max(busy(threads) for threads in ways)
    return next(threads for threads in ways if busy(threads) >= NEARLY * best)


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
        per_unit = max(least, min(most, size // (PART_BYTES * work.target.num_cores)))
        if lane is not None and len(space.inner) > 1:
            per_unit *= work.threads // _threads_along(work, lane)  # small groups, more of them
        parts = blocks_of(work.target.num_cores * per_unit, groups)
        # in whole turns of a group: all parts begin as aligned as the first
        turns = blocks_of(blocks_of(space.row_size, parts), work.share())
        if work.squares and not samples(work):  # walked twice, then in a unit's first cache
            turns = min(turns, TWICE_BYTES // (work.share() * itemsize(work)))
        return max(1, turns) * work.share()
    # what is cut has to be merged: no more parts than run at a time; narrow groups are small ones
    columns = work.threads * neighbours_of(work, space, lane)
    full = max(1, groups * min(columns, lane.extent) // columns)
    parts = max(1, work.target.num_cores * PARTS_AT_A_TIME // full)
    size = blocks_of(space.row_size, parts)
    size = max(1, blocks_of(size, PER_THREAD)) * PER_THREAD  # so many are read at a time
    return min(size, IN_A_ROW)


# -- merging --------------------------------------------------------------------------------------


def lower_merge(work: Work, space: Space, parts: Parts) -> LoweredKernel:
    """For each row, combine the partial results in order; then what is stored per row."""
    row_count = space.row_count
    e = work.emitter({v: (row_count, 1) for vals in parts.partials.values() for v in vals})
    many, stride = e.dim(parts.count), e.dim(row_count)
    in_lanes = row_count >= FEW_ROWS
    by_group = bool(work.threads) and (row_count < work.threads or parts.count >= work.threads)
    if by_group:  # a group merges the parts of one row, in a fixed tree
        in_lanes = False
        e.block_size = work.threads_for(parts.count)
    elif work.threads:
        e.block_size = min(32, work.threads)  # as many groups as there can be
    g = ir.var("g")
    row = e.variable("row", stride) if in_lanes else g if space.rows else ZERO
    at = digits(e, row, space.rows)
    total = parts.row_size(e)
    for v in work.counts:
        e.bind(v, total.cast(v.dtype))

    def partial(v: Value, part: Expr) -> Expr:
        return ir.load(e.buffer(v), ir.add(ir.mul(part, stride), row))

    body: list[Stmt] = []
    merged: dict[Value, list[Expr]] = {}
    squares = {lean: r for r, lean in work.leans.items()}
    plains = {sum_behind(r): lean for r, lean in work.leans.items()}
    behind = plains if parts.sample else {}
    means: dict[Value, Expr] = {}  # of rows, around which deviations of their parts are merged
    size = e.scalar_arg(parts.size) if plains else ZERO
    for i, r in enumerate(work.reduces):
        how = reducer(r)
        part = ir.var(f"c{i}")
        wide = [_wider(t, how, work.target) for t in how.dtypes]
        if r in squares and parts.sample and wide != how.dtypes:
            # around a mean of so many more digits, nothing is left
            merged[r] = [const(0, wide[0])]
            continue
        lanes = in_lanes or by_group
        registers = [ir.Register(f"m{i}_{k}", t, lanes) for k, t in enumerate(wide)]
        for register, start in zip(registers, how.initial(), strict=True):
            body.append(ir.Set(register, start.cast(register.dtype)))

        def take(part: Expr, tag: str, i: int = i, r: Value = r, there: Any = None) -> list[Stmt]:
            """Merge one part, where it is there."""
            how = reducer(r)
            pairs = zip(parts.partials[r], registers, strict=True)  # noqa: B023
            news = [partial(v, part).cast(x.dtype) for v, x in pairs]
            wide = news[0].dtype
            if r in behind:  # a mean in place of a sum
                count, mean = _own(e, parts, size, part, partial(parts.partials[r][0], part))
                lean = partial(parts.partials[behind[r]][0], part).cast(wide)
                news = [mean.cast(wide) * count.cast(wide) + lean]
            elif r in work.squares or r in squares:
                plain = sum_behind(squares.get(r, r))
                left = partial(parts.partials[plain][0], part)
                count, mean = _own(e, parts, size, part, left)
                away = mean.cast(wide) - means[plain].cast(wide)
                if r in squares:
                    news = [news[0] + count.cast(wide) * away]
                else:
                    lean = partial(parts.partials[work.leans[r]][0], part).cast(wide)
                    news = [news[0] + away * (lean + lean + count.cast(wide) * away)]
            olds = [ir.read(x) for x in registers]  # noqa: B023
            new = how.merge(olds, news)
            if there is not None:
                new = [ir.select(there, x, old) for x, old in zip(new, olds, strict=True)]
            return update(registers, new, f"u{i}{tag}")  # noqa: B023

        if work.threads:  # several loads under way at a time
            first, lane = ir.var(f"c{i}s"), ir.var(f"c{i}l")
            turns: list[Stmt] = []
            apart = e.block_size if by_group else 1
            least, most = AT_A_TIME
            at_a_time = most if parts.count > least else least
            if by_group:  # no more than each thread has
                at_a_time = min(least, 1 << (blocks_of(parts.count, apart) - 1).bit_length())
            for k in range(at_a_time):
                number = ir.add(first, const(k * apart))
                near = ir.minimum(number, ir.sub(many, const(1)))
                turns += take(near, f"s{k}", there=number < many)
            step = const(at_a_time * apart)
            if by_group:
                own = ir.For(first, lane, many, "serial", turns, step=step)
                body.append(ir.For(lane, ZERO, const(e.block_size), "lanes", [own]))
            else:
                body.append(ir.For(first, ZERO, many, "serial", turns, step=step))
        else:
            body.append(ir.For(part, ZERO, many, "serial", take(part, "")))
        finals = [ir.var(f"f{i}_{k}", x.dtype) for k, x in enumerate(registers)]
        if by_group:
            body += over_lanes(how, registers, finals)
        else:
            body += [ir.Let(f, ir.read(x)) for f, x in zip(finals, registers, strict=True)]
        if r in work.squares:  # around what is not quite the mean
            (lean,) = merged[work.leans[r]]
            finals = [finals[0] - lean * (lean / total.cast(lean.dtype))]
        if r in plains:  # one division for all parts
            (found,) = finals
            means[r] = ir.var(f"mean{i}", found.dtype)
            body.append(ir.Let(means[r], found / total.cast(found.dtype)))
        merged[r] = finals
        e.bind(r, how.finish([f.cast(t) for f, t in zip(finals, how.dtypes, strict=True)]))
    for m, r in work.aliases.items():
        e.bindings[m] = e.bindings[r]
    body += store_per_row(work, space, e, at)
    if not in_lanes:
        return e.grid_kernel("merge", g, body, row_count, ("combine",))
    each = e.block_size or MERGE_ROWS
    rows = const(each)
    loop = ir.For(row, *block(ir.mul(g, rows), rows, stride), "lanes", body)
    return e.grid_kernel("merge", g, [loop], blocks_of(row_count, each), ("combine",))


def _own(e: Emitter, parts: Parts, size: Expr, part: Expr, partial: Expr) -> tuple[Expr, Expr]:
    """How many elements a part has, and what its deviations were taken around: what it left, or the
    mean of what it left, rounded as the part rounded it."""
    number = part if parts.fold == 1 else ir.idiv(part, const(parts.fold))
    start, stop = parts.span(e, number, size)
    count = ir.mul(ir.sub(stop, start), e.dim(parts.below))
    return count, partial if parts.sample else partial / count.cast(partial.dtype)


def _wider(dtype: dt.DType, how: Reducer, target: Target) -> dt.DType:
    """Partial sums of float32 are merged in float64 where the device has it."""
    if dtype is dt.float32 and how.op in ("sum", "prod") and "float64" in target.dtypes:
        return dt.float64
    return dtype
