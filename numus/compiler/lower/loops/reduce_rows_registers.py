"""Register-resident (persistent) row reductions: a block holds its row in registers.

The whole row is in flight at a time, and values that several stages use are loaded, or computed,
once. The block size follows from the row's length: each thread has a few vectors.

Rows too long for a block are distributed over several CTAs, which exchange partial results through
distributed shared memory where the target has thread block clusters, and else through flags in
global memory (`codegen/nvptx/cluster.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import index_of, squeeze
from numus.compiler.graph.value import Value, walk
from numus.compiler.lower.emitter import Kernels, LoweredKernel
from numus.compiler.lower.grid_sync import clear_flags, max_waiting_blocks
from numus.compiler.lower.loops.nest import ZERO, ceil_div, delinearize
from numus.compiler.lower.loops.problem import LoopProblem
from numus.compiler.lower.loops.reduce_combine import CombineKernel, RowSplit
from numus.compiler.lower.loops.row_emitter import (
    RegisterTiling,
    RowEmitter,
    Stages,
    resident_loop,
)
from numus.compiler.lower.loops.stages import StagedGroup
from numus.compiler.lower.loops.tuning import TUNING, WARP
from numus.compiler.lower.reducers import reducer
from numus.ir import Expr, Stmt, const


def lower_register_rows(p: LoopProblem) -> Kernels | None:
    """One CTA per row, by the tiling of least cost; None where registers have no room."""
    n = p.nest.row_size
    # so many short rows that blocks of one each could not start fast enough
    short = n * sum(_itemsizes(p.work)) < TUNING.packed_row_max_bytes
    many_short = short and _packed_rows(p) > 1

    def cost(tiling: RegisterTiling) -> tuple[float, int]:
        room = max(TUNING.register_slack, tiling.threads * tiling.per_thread / n)
        nbytes = tiling.per_thread * min_itemsize(p.work)
        penalty = abs(math.log2(nbytes / TUNING.register_row_bytes))
        penalty += tiling.threads > TUNING.register_few_threads
        if tiling.threads == WARP and many_short:
            penalty = 0.0
        return room * (1 + penalty / 4), tiling.threads

    tilings = register_tilings(p)
    return [_kernel(p, min(tilings, key=cost))] if tilings else None


def lower_cluster_rows(p: LoopProblem) -> Kernels | None:
    """The fewest CTAs per row whose threads leave room for other blocks; None where all CTAs that
    may wait for each other have no room for a row. Where they form no cluster, a memset of their
    flags comes first."""
    tiling: RegisterTiling | None = None
    ctas = 2
    while ctas <= max(p.target.max_cluster_size, max_waiting_blocks(p.target)):
        found = register_tilings(p, ctas)
        small = [t for t in found if t.threads <= TUNING.register_few_threads]
        tiling = (small or found)[-1] if found else None
        if small:
            break
        ctas *= 2
    if tiling is None:
        return None
    if tiling.ctas <= p.target.max_cluster_size:
        return [_kernel(p, tiling)]
    from numus.codegen.nvptx.cluster import flag_words  # imported late: for GPUs only

    words = flag_words([t for r in p.work.reductions for t in reducer(r).dtypes])
    size = p.nest.row_count * words * tiling.ctas
    flags = Value.fresh("partial", "partial", (), None, (size,), dt.uint64)
    return [clear_flags(flags, p.target), _kernel(p, tiling, flags)]


def _packed_rows(p: LoopProblem) -> int:
    """Rows of a block of one warp each: as many as leave a block for every SM, for starting a block
    takes longer than a short row."""
    packed = 1
    while packed < TUNING.packed_rows and 2 * packed * p.target.num_cores <= p.nest.row_count:
        packed *= 2
    return packed


def register_tilings(
    p: LoopProblem, ctas: int = 1, columns: Sequence[Value] = ()
) -> list[RegisterTiling]:
    """The tilings for which registers of these CTAs have room, those of `columns` that are summed
    included; none for other kinds of rows."""
    n = p.nest.row_size
    if not p.target.vector_access_bytes or p.lane is None or [p.lane] != p.nest.inner or not n:
        return []
    row = ColumnSums(p, p.work.emitter(), {}, [], p.lane, columns=columns)
    words = _live_words(row.reused_values()[0]) + len(columns)
    width = vector_width(p.work, n)
    while width > 1 and n < WARP * width:  # an element for every thread
        width //= 2
    room = TUNING.register_max_elements * (1 if words or min_itemsize(p.work) > 2 else 2)
    max_words = TUNING.column_sums_max_words if columns else TUNING.register_max_words
    max_elements = min(room, max_words // words if words else room)
    found: list[RegisterTiling] = []
    for own in (width, width // 2) if columns and width > 1 else (width,):
        threads = WARP
        while threads <= max(p.target.max_block_size, p.work.threads):
            step = threads * ctas * own
            tiling = RegisterTiling(threads, -(-n // step), own, ctas, n // step)
            if tiling.per_thread <= max_elements:
                found.append(tiling)
            threads *= 2
    return found


def _kernel(p: LoopProblem, tiling: RegisterTiling, flags: Value | None = None) -> LoweredKernel:
    """One kernel for all stages of all rows, a block for each."""
    e, n, count = p.work.emitter(), p.nest.row_size, p.nest.row_count
    e.block_size, e.cluster_size = tiling.threads * tiling.ctas, tiling.ctas
    if flags is not None:
        e.flags = e.buffer(flags, "write"), flags.size // count
    if tiling.threads == WARP:
        e.packed_blocks = _packed_rows(p)
    g = ir.var("g")
    # rows that fill their block need no predicates: a kernel of its own
    exact = e.block_size * tiling.per_thread == n
    end = const(n) if exact else e.dim(n)
    at = delinearize(e, g, p.nest.rows)
    row = RowEmitter(p, e, at, [(ZERO, end)], p.lane, tiling=tiling)
    row.cache_in_registers()
    body = row.stages() + row.results()
    if tiling.ctas == 1 and p.target.dependent_launch:
        from numus.compiler.lower.loops.early_prefetch import early_prefetch  # late: for GPUs only

        body = early_prefetch(e, p.target, g, body, n) + body
    return e.grid_kernel("register_row_reduction", g, body, count, p.work.notes)


# -- sums of columns beside rows ------------------------------------------------------------------


@dataclass(slots=True)
class ColumnSums(RowEmitter):
    """A row, and sums over all rows of a block of its `columns`: reductions of the other axes."""

    columns: Sequence[Value] = ()
    sums: dict[Value, list[ir.Register]] = field(default_factory=dict)

    def roots(self) -> list[tuple[Value, int]]:
        return [*RowEmitter.roots(self), *((r.inputs[0], self.work.passes) for r in self.columns)]

    def reused_values(self) -> list[Stages]:
        """Results of rows that are summed are kept as well."""
        work, last = self.work, self.work.passes
        found = RowEmitter.reused_values(self)
        results = {m for m in work.stored if work.is_full(m)}
        sources = [r.inputs[0] for r in self.columns]
        read = walk(sources, lambda x: x not in results and x not in work.layouts)
        summed = {m: {work.stage[m], last} for m in results & set(read)}
        return [{**reused, **summed} for reused in found]

    def begin(self) -> list[Stmt]:
        """Clear the sums, whose threads are those of the row's elements."""
        body: list[Stmt] = []
        for r in self.columns:
            how = reducer(r)
            self.sums[r] = [ir.Register(f"c{r.id}", t, lanes=True) for t in how.dtypes]
            body += ir.sets(self.sums[r], how.initial())
        return [self._loop("clear", lambda x, index: body)]

    def add(self) -> list[Stmt]:
        """Add the row, from registers where its values are there."""

        def terms(x: Expr, index: list[Expr]) -> list[Stmt]:
            saves = self._bind_cached(self.work.passes, index, x)
            body = list(saves)
            for r, registers in self.sums.items():
                value = self.e.value(r.inputs[0], index_of(r.inputs[0].shape, index))
                body += ir.sets(registers, reducer(r).step(ir.reads(registers), value, x))
            return body

        return [self._loop("add", terms)]

    def save(self, part: Expr, partials: dict[Value, list[Value]]) -> list[Stmt]:
        """Store the sums of a block."""

        def stores(x: Expr, index: list[Expr]) -> list[Stmt]:
            kept = [zip(partials[r], self.sums[r], strict=True) for r in self.columns]
            pairs = [pair for some in kept for pair in some]
            return [s for v, c in pairs for s in self.e.store(v, (part, x), ir.read(c))]

        return [self._loop("save", stores)]

    def _loop(self, name: str, body: Callable[[Expr, list[Expr]], list[Stmt]]) -> Stmt:
        assert self.lane is not None
        assert self.tiling is not None
        x = self.e.variable(f"x_{name}", self.e.dim(self.lane.extent))
        index = self.nest.index({**self.at, self.lane: x})
        return resident_loop(self.tiling, x, self.spans[0], body(x, index))


def lower_rows_and_columns(rows: LoopProblem, columns: LoopProblem) -> Kernels | None:
    """Reductions of rows, and sums of columns of what they read and write, as those of the
    parameters' gradients in layer norm: each block goes through some rows, adding them up in
    registers, and a second kernel combines the sums. None where registers have no room."""
    sums, n, count = columns.work.reductions, rows.nest.row_size, rows.nest.row_count
    found = register_tilings(rows, columns=sums)
    if not found or columns.nest.row_count != n:
        return None
    slack = TUNING.register_slack * n
    tiling = min(found, key=lambda t: (max(slack, t.threads * t.per_thread), t.threads))
    e, g, r = rows.work.emitter(), ir.var("g"), ir.var("r")
    e.block_size = tiling.threads
    if tiling.threads == WARP:
        e.packed_blocks = TUNING.column_sums_packed
    per_sm = max(1, TUNING.column_sums_warps_per_sm * WARP // tiling.threads)
    e.resident_blocks = max(1, per_sm // e.packed_blocks)
    blocks = rows.target.num_cores * per_sm
    size = ceil_div(count, blocks)
    blocks = ceil_div(count, size)
    partials = {
        s: [Value.fresh("partial", "partial", (), None, (blocks, n), t) for t in reducer(s).dtypes]
        for s in sums
    }
    along = columns.nest.inner[0]
    split = RowSplit(along, size, blocks, columns.nest.row_size // along.extent, partials)
    end = const(n) if tiling.threads * tiling.per_thread == n else e.dim(n)
    at = delinearize(e, r, rows.nest.rows)
    row = ColumnSums(rows, e, at, [(ZERO, end)], rows.lane, tiling=tiling, columns=sums)
    row.cache_in_registers()
    clear, body = row.begin(), row.stages() + row.results() + row.add()
    span = ir.block_range(g, e.scalar_arg(size), e.dim(count))
    body = [*clear, ir.For(r, *span, "serial", body), *row.save(g, partials)]
    notes = (*rows.work.notes, *columns.work.notes)
    step = e.grid_kernel("register_rows_and_columns", g, body, blocks, notes)
    return [step, CombineKernel(columns, split).lower()]


def _live_words(reused: Stages) -> int:
    """Registers that each element needs, in the stage that needs most."""
    stages = range(1 + max((max(s) for s in reused.values()), default=0))
    return max(
        sum(max(1, v.dtype.itemsize // 4) for v, s in reused.items() if min(s) <= stage < max(s))
        for stage in stages
    )


def _itemsizes(work: StagedGroup) -> list[int]:
    """Item sizes of the values that are loaded or stored at every point."""
    full = [v for v in work.layouts if squeeze(v.shape) == work.group.space]
    full += [m for m in work.stored if work.is_full(m)]
    return [v.dtype.itemsize for v in full if not v.dtype.is_complex]


def min_itemsize(work: StagedGroup) -> int:
    return min(_itemsizes(work), default=4)


def vector_width(work: StagedGroup, n: int) -> int:
    """Elements of a thread's vector access, in rows of n."""
    width = min(TUNING.max_vector_elements, TUNING.max_vector_bytes // min_itemsize(work))
    while n % width:
        width //= 2
    return width
