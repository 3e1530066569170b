"""Row programs: stages over a row, each a loop that reduces, stores, or does both.

Rows follow each other with lanes along the row; or, where neighbours in memory belong to different
rows, they lie side by side, each lane walking a row of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from numus import ir
from numus.compiler.fusion.group import index_of, squeeze
from numus.compiler.graph.cost_model import EXPENSIVE_OPS
from numus.compiler.graph.value import Value, walk
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops.nest import (
    ONE,
    ZERO,
    At,
    Dim,
    Space,
    block,
    blocks_of,
    count,
    digits,
    extent_of,
    joined,
)
from numus.compiler.lower.loops.shifted_variance import first_of, sample_of
from numus.compiler.lower.loops.stages import BLOCK, PER_THREAD, Work, mean_behind, sum_behind
from numus.compiler.lower.reducers import ArgReducer, Reducer, reducer
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const

MOST_THREADS = 256  # of a group that works on one row: several rows at a time hide barriers
KEPT_ROWS = 3  # how many rows kept by groups a unit has memory for, at least
# Rows that are read again for every stage: few of them at a time stay in a unit's first cache.
THREADS_READING_AGAIN = 1024

# Rows that lie side by side: where they are so few, and short, threads go on with the next ones.
FEW_SIDE, SHORT_SIDE = 16, 64
SIDE_BYTES = 8  # of rows that lie side by side, read at once: more would be fewer threads

Home = ir.Buffer | ir.Register  # where a value is kept
Span = tuple[Expr, Expr]  # first step, and the one after the last


def lower_rows(work: Work, space: Space, lane: Dim | None) -> LoweredKernel:
    """One kernel for all stages of all rows; `lane` is the loop whose iterations are lanes."""
    e = work.emitter()
    g = ir.var("g")
    if lane is not None and not lane.reduced:
        if _few_side_by_side(work, space, lane):
            body, grid = _one_for_each(work, space, e, lane, g)
        else:
            spans = whole(e, space)
            first = None
            if space.inner and work.in_one_pass:
                sample = sample_of(work, lane, space.inner[0].extent)
                first = first_of(spans[0], sample)
                work = work.sampling() if sample else work
            body, grid = side_by_side(work, space, e, lane, g, spans, Row.results, first)
        return e.grid_kernel("rows", g, body, grid, work.notes)
    per_block = max(1, BLOCK // max(1, space.row_size * work.cost()))
    if work.threads:  # a group for each row, no larger than it can use
        per_block, most = 1, MOST_THREADS
        if work.target.max_block_size and work.rounds > 1 and not _fits(work, space):
            most = min(THREADS_READING_AGAIN, work.target.max_block_size)
        e.block_size = work.threads_for(blocks_of(space.row_size, PER_THREAD), most=most)
    grid = blocks_of(space.row_count, per_block)
    if not space.rows:
        return e.grid_kernel("rows", g, _one(work, space, e, {}, lane), grid, work.notes)
    per = e.scalar_arg(per_block)
    r = ir.var("r")
    at = digits(e, r, space.rows)
    span = block(ir.mul(g, per), per, extent_of(e, space.rows))
    loop = ir.For(r, *span, "serial", _one(work, space, e, at, lane))
    return e.grid_kernel("rows", g, [loop], grid, work.notes)


def _fits(work: Work, space: Space, itemsize: int = 4) -> bool:
    """Whether groups have room to keep rows: memory of their own whose size a launch can choose."""
    needed = space.row_size * itemsize * KEPT_ROWS
    return not work.target.static_shared and needed <= work.target.shared_bytes


def _one(work: Work, space: Space, e: Emitter, at: At, lane: Dim | None) -> list[Stmt]:
    row = Row(work, space, e, at, whole(e, space), lane)
    if lane is not None:
        row.keep_costly()
    return row.stages() + row.results()


def _few_side_by_side(work: Work, space: Space, lane: Dim) -> bool:
    """Whether short rows that lie side by side leave most threads of a warp without one, and there
    are many such: finding its own place then costs a thread less."""
    short = space.row_size <= SHORT_SIDE and lane.extent < space.row_count
    return bool(work.target.vector_access_bytes) and short and lane.extent <= FEW_SIDE


def _one_for_each(
    work: Work, space: Space, e: Emitter, lane: Dim, number: Expr
) -> tuple[list[Stmt], int]:
    """Lanes across all rows, those that lie side by side one after the other."""
    order = [*(d for d in space.rows if d is not lane), lane]
    total = extent_of(e, order)
    j = e.variable("j", total)
    row = Row(work, space, e, digits(e, j, order), whole(e, space), varying=True)
    e.block_size = work.threads
    span = block(ir.mul(number, const(work.threads)), const(work.threads), total)
    loop = ir.For(j, *span, "lanes", row.stages() + row.results())
    return [loop], blocks_of(space.row_count, work.threads)


def side_by_side(
    work: Work,
    space: Space,
    e: Emitter,
    lane: Dim,
    number: Expr,
    spans: list[Span],
    ending: Callable[[Row], list[Stmt]],
    sample: Span | None = None,
) -> tuple[list[Stmt], int]:
    """Lanes across rows: block `number` of them, and how many blocks there are."""
    others = [d for d in space.rows if d is not lane]
    together = neighbours_of(work, space, lane)
    columns = min(lane.extent, work.threads * together or work.lanes() * 4)
    if work.threads:
        e.block_size = work.threads_for(columns // together)
    blocks = blocks_of(lane.extent, columns)
    width, many = e.scalar_arg(columns), e.scalar_arg(blocks)
    at = digits(e, ir.idiv(number, many), others)
    extent = e.dim(lane.extent)
    start = ir.mul(ir.irem(number, many), width)
    if together > 1:
        t = ir.var("t")
        j = ir.add(start, t)
        e.extents[j] = extent
    else:
        j = e.variable("j", extent)
    row = Row(work, space, e, {**at, lane: j}, spans, varying=True, sample=sample)
    body = row.stages() + ending(row)
    if together > 1:
        whole = lane.extent % columns == 0
        end = const(columns) if whole else ir.minimum(width, ir.sub(extent, start))
        loop = ir.For(t, ZERO, end, "lanes", body, width=together, resident=True)
    else:
        loop = ir.For(j, *block(start, width, extent), "lanes", body)
    return [loop], blocks * count(others)


def neighbours_of(work: Work, space: Space, lane: Dim) -> int:
    """How many rows that lie side by side a thread takes: their elements are read at once."""
    if not work.target.vector_access_bytes:
        return 1
    variable = space.variables[lane.axis]
    near = [p for p in space.accesses if abs(p.get(variable, 0)) == 1]
    sizes = [v.dtype.itemsize for v in (*work.layouts, *work.stored) if v.size >= space.row_count]
    many = max(1, SIDE_BYTES // min(sizes, default=SIDE_BYTES))
    while many > 1 and (
        lane.extent % many
        or lane.extent < many * work.threads
        or any(s % many for p in near for v, s in p.items() if v is not variable)
    ):
        many //= 2
    return many


def whole(e: Emitter, space: Space) -> list[Span]:
    """All of a row."""
    return [(ZERO, e.dim(d.extent)) for d in space.inner]


def store_per_row(work: Work, space: Space, e: Emitter, at: At) -> list[Stmt]:
    """Stores of what exists once per row."""
    rows = space.row_index(at)
    out: list[Stmt] = []
    for m in work.stored:
        if not work.is_full(m):
            index = index_of(m.shape, rows)
            value = e.bindings[m](index) if m.kind == "reduce" else e.value(m, index)
            out += e.store(m, index, value)
    return out


@dataclass(frozen=True, slots=True)
class Holding:
    """How the threads of a group hold a row in their registers."""

    threads: int  # of a block
    vectors: int  # of each thread
    width: int  # elements of a vector
    blocks: int = 1  # of a group
    full: int = 0  # vectors that rows have for every thread

    @property
    def each(self) -> int:
        """Elements of a thread."""
        return self.vectors * self.width


@dataclass(slots=True)
class Row:
    """A row (or a part of one) being written, and what its reductions came to."""

    work: Work
    space: Space
    e: Emitter
    at: At  # where the row is
    spans: list[Span]  # what each of its loops walks
    lane: Dim | None = None  # the one of its loops whose iterations are lanes
    varying: bool = False  # whether the row itself is one of several lanes
    holding: Holding | None = None  # how threads hold the row, where they have room for it
    # the first steps of the outermost loop, whose mean stands for that of the row in the one walk
    # of which squared deviations then are
    sample: Span | None = None
    finals: dict[Value, list[Expr]] = field(default_factory=dict)  # before they are finished
    # where values are kept, and since which stage
    cached: dict[Value, tuple[Home, int]] = field(default_factory=dict)

    def results(self) -> list[Stmt]:
        """What is stored once the stages have run."""
        return store_per_row(self.work, self.space, self.e, self.at)

    def stages(self) -> list[Stmt]:
        """The loops over the row."""
        spans = self.spans
        if self.sample is not None:
            self.spans = [self.sample, *spans[1:]]
        size = ONE
        for start, stop in self.spans:
            size = ir.mul(size, ir.sub(stop, start))
        for v in self.work.counts:
            self.e.bind(v, size.cast(v.dtype))
        out: list[Stmt] = []
        for stage in range(self.work.rounds):
            if self.work.reduces_of(stage) or self.work.maps_of(stage):
                out += self._stage(stage)
            if stage == 0 and self.sample is not None:
                self.spans = spans
                out += self._around_samples(size)
            elif stage == 1 and self.sample is not None:
                self._settle()
        return out

    def _around_samples(self, count: Expr) -> list[Stmt]:
        """Means of samples of so many elements take the place of those of rows, and of sums."""
        out: list[Stmt] = []
        for r in (m for m in self.work.members if m in self.work.squares):
            total = sum_behind(r)
            (found,) = self.finals[total]
            name = ir.var(f"around{total.id}", found.dtype)
            if f"around{total.id}" != found.attr:  # several may deviate from one
                mean = found / count.cast(found.dtype)
                zero = const(0, mean.dtype)
                # one that is not finite would hide what it is the mean of
                out.append(ir.Let(name, ir.select((mean - mean).eq(zero), mean, zero)))
                self.finals[total] = [name]
            self.e.bind(mean_behind(r), name)
        return out

    def _settle(self) -> None:
        """From what was summed up around means of samples to the sums that were wanted."""
        size = ONE
        for start, stop in self.spans:
            size = ir.mul(size, ir.sub(stop, start))
        for r, lean_of in self.work.leans.items():
            total = sum_behind(r)
            (squares,), (lean,), (mean,) = (self.finals[x] for x in (r, lean_of, total))
            count = size.cast(lean.dtype)
            self.e.bind(total, reducer(total).finish([mean * count + lean]))
            self.e.bind(r, reducer(r).finish([squares - lean * (lean / count)]))
        for m, r in self.work.aliases.items():
            self.e.bindings[m] = self.e.bindings[r]

    def _stage(self, stage: int) -> list[Stmt]:
        """One loop over the row: reductions of this stage, maps that are ready."""
        e, inner = self.e, self.space.inner
        variables = [e.variable(f"x{stage}_{i}", e.dim(d.extent)) for i, d in enumerate(inner)]
        at = {**self.at, **dict(zip(inner, variables, strict=True))}
        position = joined(e, inner, at)
        if self.flat:
            position = e.variable(f"x{stage}", extent_of(e, inner))
            at.update(digits(e, position, inner))
        index = self.space.index(at)
        saves = self._recall(stage, index, position)
        reduces, maps = self.work.reduces_of(stage), self.work.maps_of(stage)
        out: list[Stmt] = []
        body: list[Stmt] = []
        state: dict[Value, list[ir.Register]] = {}
        for r in reduces:
            state[r] = self._registers(r, out)
            body += self._step(r, state[r], index, position)
        for m in maps:
            point = index_of(m.shape, index)
            body += e.store(m, point, e.value(m, point))
        body += saves  # last: what is kept may take the place of what was kept before
        # several vectors at a time hide the latency of a reduction
        unroll = 4 if reduces and not maps and not saves else 1
        loops = list(zip(inner, variables, self.spans, strict=True))
        if self.flat:
            below = extent_of(e, inner[1:])
            start, stop = (ir.mul(x, below) for x in self.spans[0])
            body = [ir.For(position, start, stop, "lanes", body)]
            loops = []
        for d, v, span in reversed(loops):
            if self.holding is not None:
                body = [self._held(v, span, body)]
            elif d is self.lane:
                body = [ir.For(v, *span, "lanes", body, unroll=unroll)]
            else:
                body = [ir.For(v, *span, "serial", body)]
        out += body
        for r in reduces:
            out += self._finish(r, state[r])
        for m, r in self.work.aliases.items():
            if r in reduces:
                e.bindings[m] = e.bindings[r]
        return out

    def _held(self, v: Expr, span: Span, body: list[Stmt]) -> ir.For:
        how = self.holding
        assert how is not None
        return ir.For(
            *(v, *span, "lanes", body),
            unroll=how.vectors,
            width=how.width,
            resident=True,
            full_vectors=how.full,
        )

    @property
    def flat(self) -> bool:
        """Whether all loops over the row are one: the one with lanes is too short for a group."""
        lane = self.lane
        return lane is not None and len(self.spans) > 1 and lane.extent < self.e.block_size

    # -- reductions -------------------------------------------------------------------------------

    def _registers(self, r: Value, out: list[Stmt]) -> list[ir.Register]:
        """Registers for a reduction, set to its start by statements added to `out`."""
        how = reducer(r)
        lanes = self.lane is not None or self.varying
        registers = [ir.Register(f"a{r.id}_{i}", t, lanes) for i, t in enumerate(how.dtypes)]
        out += [ir.Set(x, start) for x, start in zip(registers, how.initial(), strict=True)]
        return registers

    def _step(
        self, r: Value, registers: list[ir.Register], index: list[Expr], position: Expr
    ) -> list[Stmt]:
        source = r.inputs[0]
        value = self.e.value(source, index_of(source.shape, index))
        new = reducer(r).step([ir.read(x) for x in registers], value, position)
        if len(registers) == 1:
            return [ir.Set(registers[0], new[0])]
        return update(registers, new, f"t{r.id}")

    def _finish(self, r: Value, registers: list[ir.Register]) -> list[Stmt]:
        """Name the outcome of a reduction, which the stages after it may read."""
        how = reducer(r)
        self.finals[r] = [ir.var(f"f{r.id}_{i}", x.dtype) for i, x in enumerate(registers)]
        self.e.bind(r, how.finish(list(self.finals[r])))
        if self.lane is not None:
            return over_lanes(how, registers, self.finals[r], not self.work.threads)
        pairs = zip(self.finals[r], registers, strict=True)
        return [ir.Let(final, ir.read(register)) for final, register in pairs]

    # -- costly values that several stages need ---------------------------------------------------

    def keep_costly(self) -> None:
        """Keep costly values that two stages need in a scratch row, from the first on."""
        for kept in self.needed_again():
            homes, kinds = self._homes(kept)
            size = self._room(kinds)
            if size is not None:
                break
        else:
            return  # too long: memory is read again
        first = len(self.e.scratch)
        for i, dtype in enumerate(kinds):
            self.e.scratch.append(ir.Buffer(f"w{first + i}", dtype, "scratch", size))
        for v, home in homes.items():
            self.cached[v] = (self.e.scratch[first + home], min(kept[v]))

    def keep_in_registers(self) -> None:
        """The same in registers of the threads that hold the row."""
        for v, stages in in_turn(self.needed_again()[0]):
            self.cached[v] = (ir.Register(f"k{v.id}", v.dtype, lanes=True), min(stages))

    def _homes(self, kept: dict[Value, set[int]]) -> tuple[dict[Value, int], list[DType]]:
        """Which scratch row each value is kept in, and their dtypes."""
        free: list[tuple[int, int]] = []  # since which stage nobody needs what is in which row
        kinds: list[DType] = []
        homes: dict[Value, int] = {}
        for v, stages in in_turn(kept):
            fits = [x for x in free if x[0] <= min(stages) and kinds[x[1]] is v.dtype]
            if self.work.threads and fits:
                free.remove(fits[0])
                homes[v] = fits[0][1]
            else:
                homes[v] = len(kinds)
                kinds.append(v.dtype)
            free.append((max(stages), homes[v]))
        return homes, kinds

    def needed_again(self) -> list[dict[Value, set[int]]]:
        """Costly values that several stages need, and which; fewer of them in a second place, for
        where all are too many."""
        work = self.work
        users: dict[Value, set[int]] = {}

        def inline(x: Value) -> bool:
            return x not in work.layouts and x.kind != "reduce"

        def costly(x: Value) -> bool:
            return inline(x) and x.op in EXPENSIVE_OPS

        def whole(x: Value) -> bool:
            return squeeze(x.shape) == work.group.space and not x.dtype.is_complex

        roots = [
            (m.inputs[0] if m.kind == "reduce" else m, work.stage[m])
            for m in work.members
            if m.kind == "reduce" or (m in work.group.stored and work.is_full(m))
        ]
        for source, stage in roots:
            # what a costly value is computed from is computed once with it
            for x in walk([source], lambda x: inline(x) and not (costly(x) and whole(x))):
                if costly(x) and whole(x):
                    users.setdefault(x, set()).add(stage)
        kept = {v: stages for v, stages in users.items() if len(stages) > 1}
        if not work.threads:
            return [kept]
        # a group's own memory is nearer than what it has read before
        read: dict[Value, set[int]] = {}
        for source, stage in roots:

            def past(x: Value, stage: int = stage) -> bool:
                return inline(x) and not (x in kept and min(kept[x]) < stage)

            for x in walk([source], past):
                if x in work.layouts and whole(x):
                    read.setdefault(x, set()).add(stage)
        again = {v: stages for v, stages in read.items() if len(stages) > 1}
        return [{**kept, **again}, kept]

    def _room(self, kinds: list[DType]) -> Expr | None:
        """How many elements scratch rows of these dtypes have; None where groups have no room."""
        if self.work.threads:
            sizes = [dtype.itemsize for dtype in kinds]
            together = self.space.row_size * sum(sizes)
            if not _fits(self.work, self.space, max(sizes, default=1)):
                return None
            if together > self.work.target.shared_bytes // 2:  # what a group may take of its unit's
                return None
        return extent_of(self.e, self.space.inner)

    def _recall(self, stage: int, index: list[Expr], position: Expr) -> list[Stmt]:
        """Hold what was kept before this stage; the statements that keep what it computes first."""
        saves: list[Stmt] = []
        for v, (home, first) in self.cached.items():
            point = index_of(v.shape, index)
            if stage > first:
                self.e.bind(v, _kept_at(home, position), point)
            elif stage == first:
                saves.append(_keep(home, position, self.e.value(v, point)))
        return saves


def _kept_at(home: Home, position: Expr) -> Expr:
    return ir.read(home) if isinstance(home, ir.Register) else ir.load(home, position)


def _keep(home: Home, position: Expr, value: Expr) -> Stmt:
    if isinstance(home, ir.Register):
        return ir.Set(home, value)
    return ir.Store(home, position, value)


def in_turn(kept: dict[Value, set[int]]) -> list[tuple[Value, set[int]]]:
    """Values in the order in which they are needed first: others are computed from them."""
    return sorted(kept.items(), key=lambda item: (min(item[1]), item[0].id))


def over_lanes(
    how: Reducer, registers: list[ir.Register], finals: list[Expr], vectors: bool = False
) -> list[Stmt]:
    """Name what the lanes of a reduction's registers, threads or `vectors`, come to together."""
    if vectors and isinstance(how, ArgReducer):
        value, place = registers
        best = ir.lanes_reduce(how.op.removeprefix("arg"), value)
        least = ir.lanes_min_where(place, value, finals[0])
        return [ir.Let(finals[0], best), ir.Let(finals[1], least)]
    if how.lanes is not None:
        pairs = zip(finals, registers, strict=True)
        return [ir.Let(final, ir.lanes_reduce(how.lanes, r)) for final, r in pairs]
    left, right = (
        [ir.var(f"{f.attr}_{side}", f.dtype) for f in finals] for side in ("left", "right")
    )
    return [ir.BlockReduce(registers, left, right, how.combine(list(left), list(right)), finals)]


def update(registers: list[ir.Register], new: list[Expr], name: str) -> list[Stmt]:
    """Give registers their next values; each of these may read all of the old ones."""
    names = [ir.var(f"{name}_{i}", x.dtype) for i, x in enumerate(registers)]
    out: list[Stmt] = [ir.Let(n, x) for n, x in zip(names, new, strict=True)]
    return out + [ir.Set(x, n) for x, n in zip(registers, names, strict=True)]
