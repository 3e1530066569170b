"""The second kernel of split reductions: partial results of each row, combined in order."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops.nest import ZERO, Loop, ceil_div, delinearize
from numus.compiler.lower.loops.problem import LoopProblem
from numus.compiler.lower.loops.row_emitter import Span, reduce_lanes, store_per_row
from numus.compiler.lower.loops.stages import sum_of
from numus.compiler.lower.loops.tuning import TUNING, WARP
from numus.compiler.lower.reducers import reducer
from numus.ir import Expr, Stmt, const


@dataclass(frozen=True, slots=True)
class RowSplit:
    """Rows split along the outermost of their loops, and the partial results."""

    along: Loop
    size: int  # iterations of that loop in one split
    count: int  # of splits
    inner: int  # elements of a row in one iteration
    partials: dict[Value, list[Value]]  # of each reduction, one value per register
    sample: int = 0  # first iterations of a split, around whose mean it deviates; 0: of all
    packed_rows: int = 1  # `reduce_columns_packing.py`

    @staticmethod
    def of(p: LoopProblem, size: int, sample: int = 0, packed_rows: int = 1) -> RowSplit:
        """Splits of `size` iterations each."""
        along = p.nest.inner[0]
        count = ceil_div(along.extent, size)
        shape = (count, p.nest.row_count)
        partials = {
            r: [Value.fresh("partial", "partial", (), None, shape, t) for t in reducer(r).dtypes]
            for r in p.work.reductions
        }
        inner = p.nest.row_size // along.extent
        return RowSplit(along, size, count, inner, partials, sample, packed_rows)

    def span(self, e: Emitter, part: Expr, size: Expr) -> Span:
        """The iterations of a split, whose size is a scalar argument."""
        return ir.block_range(part, size, e.dim(self.along.extent))

    def row_size(self, e: Emitter) -> Expr:
        return ir.mul(e.dim(self.along.extent * self.packed_rows), e.dim(self.inner))


class CombineKernel:
    """Combines the partial results, then stores the values of each row."""

    def __init__(self, p: LoopProblem, split: RowSplit) -> None:
        self.p, self.work, self.split = p, p.work, split
        work, nest = p.work, p.nest
        rows = self.row_count = nest.row_count
        e = work.emitter({v: (rows, 1) for vals in split.partials.values() for v in vals})
        self.e = e
        self.count, self.stride = e.dim(split.count), e.dim(rows)
        # a block combines the partial results of one row, in a fixed tree; or a lane does
        threads = work.threads
        self.block_per_row = bool(threads) and (rows < threads or split.count >= threads)
        self.lane_per_row = rows >= TUNING.few_rows and not self.block_per_row
        if self.block_per_row:
            e.block_size = work.threads_for(split.count)
        elif threads:
            e.block_size = min(WARP, threads)  # as many blocks as there can be
        self.g = ir.var("g")
        self.row = self.g if nest.rows else ZERO
        if self.lane_per_row:
            self.row = e.variable("row", self.stride)
        self.at = delinearize(e, self.row, nest.rows)
        self.total = split.row_size(e)
        for v in work.counts:
            e.bind(v, self.total.cast(v.dtype))
        self.sqdev_of = {residual: r for r, residual in work.residuals.items()}
        self.residual_of = {sum_of(r): residual for r, residual in work.residuals.items()}
        self.means: dict[Value, Expr] = {}  # of rows, around which those of splits are combined
        self.size = e.scalar_arg(split.size) if self.residual_of else ZERO
        self.combined: dict[Value, list[Expr]] = {}

    def lower(self) -> LoweredKernel:
        if self._has_tiles():
            return self._lower_tiles()
        e, work = self.e, self.work
        body: list[Stmt] = []
        numbered = list(enumerate(work.reductions))
        if work.threads and not work.sqdevs:  # loads of all are in flight together
            body += self._reductions(numbered)
        else:
            for one in numbered:
                body += self._reductions([one])
        for m, r in work.aliases.items():
            e.bindings[m] = e.bindings[r]
        body += store_per_row(self.p, e, self.at)
        grid = self.row_count
        if self.lane_per_row:
            per_block = e.block_size or TUNING.combine_rows
            span = ir.block_range(self.g, const(per_block), self.stride)
            body = [ir.For(self.row, *span, "lanes", body)]
            grid = ceil_div(grid, per_block)
        return e.grid_kernel("combine_partials", self.g, body, grid, ("combine",))

    # -- tiles of rows and splits -----------------------------------------------------------------

    def _has_tiles(self) -> bool:
        """Rows are adjacent in memory: a block takes a sector of them, and its threads share the
        splits. Deviations need the means of all splits first."""
        return (
            bool(self.work.threads)
            and not self.work.sqdevs
            and self.split.count >= TUNING.combine_min_splits
            and self.row_count >= TUNING.combine_tile_rows
        )

    def _lower_tiles(self) -> LoweredKernel:
        """Each thread combines every n-th split of a row; a thread for each row combines those."""
        e, g, rows = self.e, self.g, const(TUNING.combine_tile_rows)
        threads = e.block_size = TUNING.combine_tile_threads
        lanes = threads // TUNING.combine_tile_rows
        self.block_per_row, self.lane_per_row = False, True
        numbered = list(enumerate(self.work.reductions))
        t, j, k = ir.var("t"), ir.var("j"), ir.var("k")
        first = ir.mul(g, rows)
        lane, row = divmod(t, rows)
        self.row = ir.minimum(ir.add(first, row), ir.sub(self.stride, const(1)))
        parts = {i: self._registers(i, r) for i, r in numbered}
        shared = {i: [self._shared(x.dtype, threads) for x in parts[i]] for i, _ in numbered}
        own = [s for i, r in numbered for s in self._initial(r, parts[i])]
        own.append(self._splits([(i, r, parts[i]) for i, r in numbered], lane, lanes))
        own += [
            ir.Store(b, t, ir.read(x))
            for i, _ in numbered
            for b, x in zip(shared[i], parts[i], strict=True)
        ]
        self.row = ir.add(first, j)
        self.at = delinearize(e, self.row, self.p.nest.rows)
        body: list[Stmt] = []
        for i, r in numbered:
            totals = [ir.Register(f"total{i}_{n}", x.dtype, True) for n, x in enumerate(parts[i])]
            at = ir.add(ir.mul(k, rows), j)
            found = [ir.load(b, at) for b in shared[i]]  # of splits that are not in order
            merged = reducer(r).combine(ir.reads(totals), found)
            step, _ = ir.assign(totals, merged, f"t{i}")
            body += [*self._initial(r, totals), ir.For(k, ZERO, const(lanes), "serial", step)]
            body += self._finish(i, r, totals)
        for m, r in self.work.aliases.items():
            e.bindings[m] = e.bindings[r]
        body += store_per_row(self.p, e, self.at)
        end = ir.minimum(rows, ir.sub(self.stride, first))
        loops: list[Stmt] = [
            ir.For(t, ZERO, const(threads), "lanes", own),
            ir.For(j, ZERO, end, "lanes", body),
        ]
        grid = ceil_div(self.row_count, TUNING.combine_tile_rows)
        return e.grid_kernel("combine_partials", g, loops, grid, ("combine",))

    def _shared(self, dtype: dt.DType, size: int) -> ir.Buffer:
        found = ir.Buffer(f"w{len(self.e.scratch)}", dtype, "scratch", const(size))
        self.e.scratch.append(found)
        return found

    def _initial(self, r: Value, registers: list[ir.Register]) -> list[Stmt]:
        pairs = zip(reducer(r).initial(), registers, strict=True)
        return ir.sets(registers, [x.cast(register.dtype) for x, register in pairs])

    def _reductions(self, numbered: list[tuple[int, Value]]) -> list[Stmt]:
        """Combine the splits of some reductions in one loop, then bind their results."""
        if all(self._vanishes(r) for _, r in numbered):
            for _, r in numbered:
                self.combined[r] = [const(0, reducer(r).total_dtypes(self.work.target)[0])]
            return []
        registers = {i: self._registers(i, r) for i, r in numbered}
        body: list[Stmt] = []
        for i, r in numbered:
            body += self._initial(r, registers[i])
        body.append(self._loop([(i, r, registers[i]) for i, r in numbered]))
        for i, r in numbered:
            body += self._finish(i, r, registers[i])
        return body

    def _registers(self, i: int, r: Value) -> list[ir.Register]:
        lanes = self.lane_per_row or self.block_per_row
        dtypes = reducer(r).total_dtypes(self.work.target)
        return [ir.Register(f"m{i}_{k}", t, lanes) for k, t in enumerate(dtypes)]

    def _vanishes(self, r: Value) -> bool:
        """A residual around a mean that has more digits than the elements."""
        how = reducer(r)
        is_exact = how.total_dtypes(self.work.target) != how.dtypes
        return r in self.sqdev_of and bool(self.split.sample) and is_exact

    def _finish(self, i: int, r: Value, registers: list[ir.Register]) -> list[Stmt]:
        e, work, how = self.e, self.work, reducer(r)
        body: list[Stmt] = []
        finals = ir.variables(f"f{i}", registers)
        if self.block_per_row:
            body += reduce_lanes(how, registers, finals)
        else:
            body += ir.lets(finals, ir.reads(registers))
        if r in work.sqdevs:  # around a rounded mean
            (residual,) = self.combined[work.residuals[r]]
            finals = [finals[0] - residual * (residual / self.total.cast(residual.dtype))]
        if r in self.residual_of:  # one division for all splits
            (found,) = finals
            self.means[r] = ir.var(f"mean{i}", found.dtype)
            body.append(ir.Let(self.means[r], found / self.total.cast(found.dtype)))
        self.combined[r] = finals
        e.bind(r, how.finish([f.cast(t) for f, t in zip(finals, how.dtypes, strict=True)]))
        return body

    def _loop(self, some: list[tuple[int, Value, list[ir.Register]]]) -> Stmt:
        """The loop over the splits of a row; on GPUs, several loads are in flight at a time."""
        i = some[0][0]
        body: list[Stmt] = []
        if not self.work.threads:
            part = ir.var(f"c{i}")
            for i, r, registers in some:
                body += self._accumulate(r, registers, part, f"u{i}", None)
            return ir.For(part, ZERO, self.count, "serial", body)
        if not self.block_per_row:
            return self._splits(some, ZERO, 1)
        lane = ir.var(f"c{i}l")
        own = self._splits(some, lane, self.e.block_size)
        return ir.For(lane, ZERO, const(self.e.block_size), "lanes", [own])

    def _splits(
        self, some: list[tuple[int, Value, list[ir.Register]]], lane: Expr, pitch: int
    ) -> Stmt:
        """The loop over every `pitch`-th split from `lane` on."""
        first = ir.var(f"c{some[0][0]}s")
        body: list[Stmt] = []
        min_loads, max_loads = TUNING.combine_loads
        unroll = max_loads if self.split.count > min_loads else min_loads
        if pitch > 1:  # no more than each thread has
            unroll = min(min_loads, 1 << (ceil_div(self.split.count, pitch) - 1).bit_length())
        unroll = max(min(unroll, TUNING.combine_min_unroll), unroll // len(some))
        for k in range(unroll):
            number = ir.add(first, const(k * pitch))
            clamped = ir.minimum(number, ir.sub(self.count, const(1)))
            for i, r, registers in some:
                inside = number < self.count
                body += self._accumulate(r, registers, clamped, f"u{i}s{k}", inside)
        return ir.For(first, lane, self.count, "serial", body, step=const(unroll * pitch))

    def _accumulate(
        self, r: Value, registers: list[ir.Register], part: Expr, tag: str, in_bounds: Expr | None
    ) -> list[Stmt]:
        """Combine the partial result of one split, predicated by `inside`."""
        olds = ir.reads(registers)
        new = reducer(r).merge(olds, self._partials(r, part, [x.dtype for x in registers]))
        if in_bounds is not None:
            new = [ir.select(in_bounds, x, old) for x, old in zip(new, olds, strict=True)]
        return ir.assign(registers, new, tag)[0]

    def _partials(self, r: Value, part: Expr, dtypes: list[dt.DType]) -> list[Expr]:
        """The partial result of a split, in terms of the whole row's mean."""
        partials, work = self.split.partials, self.work
        pairs = zip(partials[r], dtypes, strict=True)
        found = [self._load(v, part).cast(t) for v, t in pairs]
        wide = dtypes[0]
        if self.split.sample and r in self.residual_of:  # a mean is stored instead of a sum
            count, mean = self._mean(part, self._load(partials[r][0], part))
            residual = self._load(partials[self.residual_of[r]][0], part).cast(wide)
            return [mean.cast(wide) * count.cast(wide) + residual]
        if r in work.sqdevs or r in self.sqdev_of:
            plain = sum_of(self.sqdev_of.get(r, r))
            count, mean = self._mean(part, self._load(partials[plain][0], part))
            shift = mean.cast(wide) - self.means[plain].cast(wide)
            if r in self.sqdev_of:
                return [found[0] + count.cast(wide) * shift]
            residual = self._load(partials[work.residuals[r]][0], part).cast(wide)
            return [found[0] + shift * (residual + residual + count.cast(wide) * shift)]
        return found

    def _load(self, v: Value, part: Expr) -> Expr:
        return ir.load(self.e.buffer(v), ir.add(ir.mul(part, self.stride), self.row))

    def _mean(self, part: Expr, partial: Expr) -> tuple[Expr, Expr]:
        """The elements of a split, and the mean it deviated from: the stored one, or that of the
        stored sum, rounded as the split rounded it."""
        split, e = self.split, self.e
        number = part if split.packed_rows == 1 else ir.idiv(part, const(split.packed_rows))
        start, stop = split.span(e, number, self.size)
        count = ir.mul(ir.sub(stop, start), e.dim(split.inner))
        return count, partial if split.sample else partial / count.cast(partial.dtype)
