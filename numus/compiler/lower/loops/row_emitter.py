"""Emission of one row of a fused reduction: a loop per stage, which reduces, stores, or both."""

from __future__ import annotations

from dataclasses import dataclass, field

from numus import ir
from numus.compiler.fusion.group import index_of, squeeze
from numus.compiler.graph.cost_model import EXPENSIVE_OPS
from numus.compiler.graph.value import Value, walk
from numus.compiler.lower.emitter import Emitter
from numus.compiler.lower.loops import nest as loop_nest
from numus.compiler.lower.loops.nest import ONE, ZERO, Loop, LoopNest, Position
from numus.compiler.lower.loops.nested_sums import nested_block, sum_nested_blocks
from numus.compiler.lower.loops.problem import LoopProblem
from numus.compiler.lower.loops.stages import StagedGroup, mean_of, sum_of
from numus.compiler.lower.loops.tuning import TUNING
from numus.compiler.lower.reducers import ArgReducer, Reducer, reducer
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const

Cache = ir.Buffer | ir.Register  # of a value that several stages use
Span = tuple[Expr, Expr]  # first iteration, and the one after the last
Stages = dict[Value, set[int]]  # that use a value


@dataclass(frozen=True, slots=True)
class RegisterTiling:
    """The distribution of a row over the registers of a block."""

    threads: int  # of a CTA
    vectors: int  # of each thread
    width: int  # elements of a vector
    ctas: int = 1
    full_vectors: int = 0  # of every thread; the last may be predicated

    @property
    def per_thread(self) -> int:
        return self.vectors * self.width


def full_spans(p: LoopProblem, e: Emitter) -> list[Span]:
    """All of a row."""
    return [(ZERO, e.dim(d.extent)) for d in p.nest.inner]


def store_per_row(p: LoopProblem, e: Emitter, at: Position) -> list[Stmt]:
    """Stores of the values that exist once per row."""
    rows = p.nest.row_index(at)
    out: list[Stmt] = []
    for m in p.work.stored:
        if not p.work.is_full(m):
            index = index_of(m.shape, rows)
            value = e.bindings[m](index) if m.kind == "reduce" else e.value(m, index)
            out += e.store(m, index, value)
    return out


def fits_shared(p: LoopProblem, itemsize: int = 4) -> bool:
    """Shared memory has room for cached rows, of a size that launches choose."""
    needed = p.nest.row_size * itemsize * TUNING.cached_rows_per_sm
    return not p.target.static_shared and needed <= p.target.shared_bytes


@dataclass(slots=True)
class RowEmitter:
    """A row (or a part of one) being emitted, and the results of its reductions."""

    p: LoopProblem
    e: Emitter
    at: Position  # of the row
    spans: list[Span]  # of each loop within the row
    lane: Loop | None = None  # the one of these whose iterations are lanes
    varying: bool = False  # the row itself is one of several lanes
    tiling: RegisterTiling | None = None  # of register-resident rows
    # the first iterations of the outermost loop, whose mean the one pass over the row deviates from
    sample: Span | None = None
    finals: dict[Value, list[Expr]] = field(default_factory=dict)  # unfinished results
    cached: dict[Value, tuple[Cache, int]] = field(default_factory=dict)  # since a stage

    @property
    def work(self) -> StagedGroup:
        return self.p.work

    @property
    def nest(self) -> LoopNest:
        return self.p.nest

    def results(self) -> list[Stmt]:
        """Stores after the stages."""
        return store_per_row(self.p, self.e, self.at)

    def stages(self) -> list[Stmt]:
        """The loops over the row."""
        spans = self.spans
        if self.sample is not None:
            self.spans = [self.sample, *spans[1:]]
        size = self._size()
        for v in self.work.counts:
            self.e.bind(v, size.cast(v.dtype))
        out: list[Stmt] = []
        for stage in range(self.work.passes):
            if self.work.reductions_in(stage) or self.work.stores_in(stage):
                out += self._stage(stage)
            if stage == 0 and self.sample is not None:
                self.spans = spans
                out += self._shift(size)
            elif stage == 1 and self.sample is not None:
                self._unshift()
        return out

    def _size(self) -> Expr:
        size = ONE
        for start, stop in self.spans:
            size = ir.mul(size, ir.sub(stop, start))
        return size

    def _shift(self, count: Expr) -> list[Stmt]:
        """Replace the means (and sums) of rows by those of samples of `count` elements."""
        out: list[Stmt] = []
        for r in (m for m in self.work.members if m in self.work.sqdevs):
            total = sum_of(r)
            (found,) = self.finals[total]
            name = ir.var(f"shift{total.id}", found.dtype)
            if f"shift{total.id}" != found.attr:  # several may deviate from one mean
                mean = found / count.cast(found.dtype)
                zero = const(0, mean.dtype)
                # a shift that is not finite would hide the values
                out.append(ir.Let(name, ir.select((mean - mean).eq(zero), mean, zero)))
                self.finals[total] = [name]
            self.e.bind(mean_of(r), name)
        return out

    def _unshift(self) -> None:
        """From sums around the means of samples to plain ones."""
        size = self._size()
        for r, residual_of in self.work.residuals.items():
            total = sum_of(r)
            (squares,), (residual,), (mean,) = (self.finals[x] for x in (r, residual_of, total))
            count = size.cast(residual.dtype)
            self.e.bind(total, reducer(total).finish([mean * count + residual]))
            self.e.bind(r, reducer(r).finish([squares - residual * (residual / count)]))
        for m, r in self.work.aliases.items():
            self.e.bindings[m] = self.e.bindings[r]

    def _stage(self, stage: int) -> list[Stmt]:
        """One loop over the row."""
        e, inner = self.e, self.nest.inner
        variables = [e.variable(f"x{stage}_{i}", e.dim(d.extent)) for i, d in enumerate(inner)]
        at = {**self.at, **dict(zip(inner, variables, strict=True))}
        position = loop_nest.linearize(e, inner, at)
        several = self.lane is not None and len(self.spans) > 1
        is_flat = self.is_flat or (several and self.work.reads_in_order(stage))
        if is_flat:
            position = e.variable(f"x{stage}", loop_nest.total_extent(e, inner))
            at.update(loop_nest.delinearize(e, position, inner))
        index = self.nest.index(at)
        saves = self._bind_cached(stage, index, position)
        reductions, stored = self.work.reductions_in(stage), self.work.stores_in(stage)
        out: list[Stmt] = []
        body: list[Stmt] = []
        state: dict[Value, list[ir.Register]] = {}
        for r in reductions:
            state[r] = self._registers(r, out)
            body += self._accumulate(r, state[r], index, position)
        stores = self.p.stores(e, stored, index)
        body += self.p.prefetched(e, stores, at[self.lane]) if self.lane in inner else stores
        body += saves  # last: they may overwrite what was cached before
        sums_only = not stored and not saves
        if self.sum_block(stage):
            block = self._block_of_innermost() if sums_only else 0
            if block:
                return self._sum_blocks(block, variables, out, body, state)
            if nested_block(self)[1]:
                return sum_nested_blocks(self, variables, out, body, state, 4 if sums_only else 1)
        # several vectors at a time hide the latency of a reduction
        unroll = 4 if reductions and (sums_only or (self.work.threads and not stored)) else 1
        loops = list(zip(inner, variables, self.spans, strict=True))
        if is_flat:
            size = loop_nest.total_extent(e, inner[1:])
            start, stop = (ir.mul(x, size) for x in self.spans[0])
            body = [ir.For(position, start, stop, "lanes", body, unroll=unroll)]
            loops = []
        for d, v, span in reversed(loops):
            if self.tiling is not None:
                body = [resident_loop(self.tiling, v, span, body)]
            elif d is self.lane:
                body = [ir.For(v, *span, "lanes", body, unroll=unroll)]
            else:
                body = [ir.For(v, *span, "serial", body)]
        out += body
        for r in reductions:
            out += self._finish(r, state[r])
        for m, r in self.work.aliases.items():
            if r in reductions:
                e.bindings[m] = e.bindings[r]
        return out

    @property
    def is_flat(self) -> bool:
        """All loops over the row are linearised: the one with lanes is too short for a block."""
        lane = self.lane
        return lane is not None and len(self.spans) > 1 and lane.extent < self.e.block_size

    # -- reductions -------------------------------------------------------------------------------

    def sum_block(self, stage: int) -> int:
        """Elements of the row in a block whose sum is added to those before in float64; 0: none."""
        if not self.nest.inner or not self.work.has_wide_totals(stage):
            return 0
        return self._block_of_innermost() or nested_block(self)[1]

    def _block_of_innermost(self) -> int:
        """Elements of the innermost loop that are a block; 0: it is too short."""
        block, min_terms = TUNING.block_terms, 2 * TUNING.block_unroll
        if self.lane is not None:
            block = min_terms = TUNING.block_vectors * self.work.vector_lanes()
        several = len(self.nest.inner) == 1 or self.nest.row_size > block
        long = self.nest.row_size > min_terms and self.nest.inner[-1].extent >= min_terms
        return block if several and long else 0

    def _sum_blocks(
        self,
        block: int,
        variables: list[Expr],
        clear: list[Stmt],
        accumulate: list[Stmt],
        state: dict[Value, list[ir.Register]],
    ) -> list[Stmt]:
        """Sums of blocks of the innermost loop, each from zero, and their totals."""
        (*outer, v), (start, stop) = variables, self.spans[-1]
        first, along = ir.var(f"first_{v.attr}"), self.lane is not None
        end = ir.minimum(ir.add(first, const(block)), stop)
        one = self.nest.row_size <= block
        if one:
            first, end = start, stop
        body = [*clear]
        if along:
            body.append(ir.For(v, first, end, "lanes", accumulate, unroll=4))
        else:
            count = const(TUNING.block_unroll)
            middle = ir.add(
                first, ir.irem(ir.sub(end, first), count)
            )  # singles while sums are small
            pairs = self.e.variable(f"pairs_{v.attr}", self.e.dim(self.nest.inner[-1].extent))
            added = self._add_pairwise(state, [*outer, pairs])
            body.append(ir.For(v, first, middle, "serial", accumulate))
            body.append(ir.For(pairs, middle, end, "serial", added, step=count))
        out: list[Stmt] = []
        totals = state
        if not one:
            totals = {r: self.add_totals(r, state[r], out, body) for r in state}
            body = [ir.For(first, start, stop, "serial", body, step=const(block))]
            for x, span in reversed(list(zip(outer, self.spans[:-1], strict=True))):
                body = [ir.For(x, *span, "serial", body)]
        return out + body + self.round_totals(state, totals)

    def round_totals(
        self, state: dict[Value, list[ir.Register]], totals: dict[Value, list[ir.Register]]
    ) -> list[Stmt]:
        """Bind the results of sums by blocks."""
        out: list[Stmt] = []
        for r, found in totals.items():
            how = reducer(r)
            self.finals[r] = ir.variables(f"f{r.id}", state[r])
            self.e.bind(r, how.finish(list(self.finals[r])))
            rounded = [ir.read(t).cast(x) for t, x in zip(found, how.dtypes, strict=True)]
            out += ir.lets(self.finals[r], rounded)
        for m, r in self.work.aliases.items():
            if r in totals:
                self.e.bindings[m] = self.e.bindings[r]
        return out

    def add_totals(
        self, r: Value, registers: list[ir.Register], out: list[Stmt], body: list[Stmt]
    ) -> list[ir.Register]:
        """Wide totals of a block's sums, initialised in `out` and added to in `body`."""
        along, wide = self.lane is not None, reducer(r).total_dtypes(self.work.target)
        totals = [
            ir.Register(f"total_{x.name}", t, lanes=not along)
            for x, t in zip(registers, wide, strict=True)
        ]
        sums = [ir.lanes_reduce("add", x) if along else ir.read(x) for x in registers]
        out += ir.sets(totals, [const(0, t) for t in wide])
        pairs = zip(totals, sums, strict=True)
        body += ir.sets(totals, [ir.read(t) + x.cast(t.dtype) for t, x in pairs])
        return totals

    def _add_pairwise(
        self, state: dict[Value, list[ir.Register]], variables: list[Expr]
    ) -> list[Stmt]:
        """Add the pairwise sum of some elements from a position in the row on."""
        inner, out = self.nest.inner, list[Stmt]()
        at = {**self.at, **dict(zip(inner, variables, strict=True))}
        for r, registers in state.items():
            how, source = reducer(r), r.inputs[0]
            terms = []
            for u in range(TUNING.block_unroll):
                index = self.nest.index({**at, inner[-1]: ir.add(variables[-1], const(u))})
                terms.append(how.element(self.e.value(source, index_of(source.shape, index))))
            out += ir.sets(registers, how.merge(ir.reads(registers), how.pairwise(terms)))
        return out

    def _registers(self, r: Value, out: list[Stmt]) -> list[ir.Register]:
        """Accumulators of a reduction, initialised by statements added to `out`."""
        how = reducer(r)
        lanes = self.lane is not None or self.varying
        registers = [ir.Register(f"a{r.id}_{i}", t, lanes) for i, t in enumerate(how.dtypes)]
        out += ir.sets(registers, how.initial())
        return registers

    def _accumulate(
        self, r: Value, registers: list[ir.Register], index: list[Expr], position: Expr
    ) -> list[Stmt]:
        source = r.inputs[0]
        value = self.e.value(source, index_of(source.shape, index))
        new = reducer(r).step(ir.reads(registers), value, position)
        if len(registers) == 1:
            return ir.sets(registers, new)
        return ir.assign(registers, new, f"t{r.id}")[0]

    def _finish(self, r: Value, registers: list[ir.Register]) -> list[Stmt]:
        """Bind the result of a reduction for the stages after it."""
        how = reducer(r)
        self.finals[r] = ir.variables(f"f{r.id}", registers)
        self.e.bind(r, how.finish(list(self.finals[r])))
        if self.lane is not None:
            return reduce_lanes(how, registers, self.finals[r], not self.work.threads)
        return ir.lets(self.finals[r], ir.reads(registers))

    # -- values that several stages use -----------------------------------------------------------

    def cache_in_scratch(self) -> None:
        """Cache reused values in scratch rows (shared memory on GPUs)."""
        for reused in self.reused_values():
            rows, dtypes = self._scratch_rows(reused)
            size = self._scratch_size(dtypes)
            if size is not None:
                break
        else:
            return  # too long: memory is read again
        first = len(self.e.scratch)
        for i, dtype in enumerate(dtypes):
            self.e.scratch.append(ir.Buffer(f"w{first + i}", dtype, "scratch", size))
        for v, row in rows.items():
            self.cached[v] = (self.e.scratch[first + row], min(reused[v]))

    def cache_in_registers(self) -> None:
        """Cache reused values in registers of the threads that hold the row."""
        for v, stages in by_first_use(self.reused_values()[0]):
            self.cached[v] = (ir.Register(f"k{v.id}", v.dtype, lanes=True), min(stages))

    def _scratch_rows(self, reused: Stages) -> tuple[dict[Value, int], list[DType]]:
        """The scratch row of each value, and the dtypes of the rows."""
        free: list[tuple[int, int]] = []  # the stage from which on a row is free
        dtypes: list[DType] = []
        rows: dict[Value, int] = {}
        for v, stages in by_first_use(reused):
            fits = [x for x in free if x[0] <= min(stages) and dtypes[x[1]] is v.dtype]
            if self.work.threads and fits:
                free.remove(fits[0])
                rows[v] = fits[0][1]
            else:
                rows[v] = len(dtypes)
                dtypes.append(v.dtype)
            free.append((max(stages), rows[v]))
        return rows, dtypes

    def roots(self) -> list[tuple[Value, int]]:
        """What is computed at every point of the row, and in which stage."""
        work = self.work
        return [
            (m.inputs[0] if m.kind == "reduce" else m, work.stage[m])
            for m in work.members
            if m.kind == "reduce" or (m in work.group.stored and work.is_full(m))
        ]

    def reused_values(self) -> list[Stages]:
        """Values that several stages use: expensive and (on GPUs) loaded ones; a smaller choice."""
        work = self.work
        users: Stages = {}

        def inline(x: Value) -> bool:
            return x not in work.layouts and x.kind != "reduce"

        def whole(x: Value) -> bool:
            return squeeze(x.shape) == work.group.space and not x.dtype.is_complex

        def cacheable(x: Value) -> bool:
            return inline(x) and x.op in EXPENSIVE_OPS and whole(x)

        roots = self.roots()
        for source, stage in roots:
            # operands of a cached value are computed once with it
            for x in walk([source], lambda x: inline(x) and not cacheable(x)):
                if cacheable(x):
                    users.setdefault(x, set()).add(stage)
        expensive = {v: stages for v, stages in users.items() if len(stages) > 1}
        if not work.threads:
            return [expensive]
        # shared memory is nearer than L2
        loads: Stages = {}
        for source, stage in roots:

            def enter(x: Value, stage: int = stage) -> bool:
                known = x in expensive and min(expensive[x]) < stage
                return inline(x) and not known and not (whole(x) and work.is_load(x))

            for x in walk([source], enter):
                if whole(x) and work.is_load(x):
                    loads.setdefault(x, set()).add(stage)
        reloaded = {v: stages for v, stages in loads.items() if len(stages) > 1}
        return [{**expensive, **reloaded}, expensive]

    def _scratch_size(self, dtypes: list[DType]) -> Expr | None:
        """Elements of a scratch row; None where shared memory has no room."""
        if self.work.threads:
            sizes = [dtype.itemsize for dtype in dtypes]
            if not fits_shared(self.p, max(sizes, default=1)):
                return None
            if self.nest.row_size * sum(sizes) > self.work.target.shared_bytes // 2:
                return None
        return loop_nest.total_extent(self.e, self.nest.inner)

    def _bind_cached(self, stage: int, index: list[Expr], position: Expr) -> list[Stmt]:
        """Bind values cached before this stage; the statements that cache those it computes."""
        saves: list[Stmt] = []
        for v, (cache, first) in self.cached.items():
            point = index_of(v.shape, index)
            if stage > first:
                if isinstance(cache, ir.Register):
                    found = ir.read(cache)
                else:
                    found = ir.load(cache, position)
                self.e.bind(v, found, point)
            elif stage == first:
                value = self.e.value(v, point)
                if isinstance(cache, ir.Register):
                    saves.append(ir.Set(cache, value))
                else:
                    saves.append(ir.Store(cache, position, value))
        return saves


def resident_loop(tiling: RegisterTiling, v: Expr, span: Span, body: list[Stmt]) -> ir.For:
    return ir.For(
        *(v, *span, "lanes", body),
        unroll=tiling.vectors,
        width=tiling.width,
        resident=True,
        full_vectors=tiling.full_vectors,
    )


def by_first_use(values: Stages) -> list[tuple[Value, set[int]]]:
    """Values in the order of their first stages: others are computed from them."""
    return sorted(values.items(), key=lambda item: (min(item[1]), item[0].id))


def reduce_lanes(
    how: Reducer, registers: list[ir.Register], finals: list[Expr], simd: bool = False
) -> list[Stmt]:
    """Reduce the accumulators of all lanes, threads or SIMD, to names."""
    if simd and isinstance(how, ArgReducer):
        value, position = registers
        best = ir.lanes_reduce(how.op.removeprefix("arg"), value)
        first = ir.lanes_min_where(position, value, finals[0])
        return [ir.Let(finals[0], best), ir.Let(finals[1], first)]
    if how.lanes is not None:
        return ir.lets(finals, [ir.lanes_reduce(how.lanes, r) for r in registers])
    left, right = (
        [ir.var(f"{f.attr}_{side}", f.dtype) for f in finals] for side in ("left", "right")
    )
    return [ir.BlockReduce(registers, left, right, how.combine(list(left), list(right)), finals)]
