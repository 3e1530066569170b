"""Loop groups: pointwise kernels and (fused, multi-stage) reductions.

A group is emitted twice: first with one variable per axis, to analyse the strides of its accesses
(`nest.py`); then for real, with axes collapsed and lanes chosen. The first schedule of a list that
supports the problem lowers it.
"""

from __future__ import annotations

from numus import dtypes as dt
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.cost_model import EXPENSIVE_OPS
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower.emitter import Kernels
from numus.compiler.lower.loops.nest import (
    Loop,
    LoopNest,
    analyse,
    ceil_div,
    iterations,
    orders_along,
)
from numus.compiler.lower.loops.pointwise import POINTWISE, pointwise_lane
from numus.compiler.lower.loops.problem import LoopProblem, attempt
from numus.compiler.lower.loops.reduce_columns import lower_columns
from numus.compiler.lower.loops.reduce_pairs import lower_pairs, supports_pairs
from numus.compiler.lower.loops.reduce_pairs_stored import lower_pair_matrix, supports_pair_matrix
from numus.compiler.lower.loops.reduce_rows import lower_rows
from numus.compiler.lower.loops.reduce_rows_registers import (
    lower_cluster_rows,
    lower_register_rows,
    lower_rows_and_columns,
)
from numus.compiler.lower.loops.reduce_rows_subwarp import SubwarpRows, supports_subwarp
from numus.compiler.lower.loops.reduce_split import lower_split, supports_simt_split
from numus.compiler.lower.loops.stages import Redirect, StagedGroup
from numus.compiler.lower.loops.tuning import TUNING
from numus.compiler.lower.loops.windows import lower_windows, supports_windows
from numus.compiler.lower.reducers import reducer
from numus.compiler.lower.schedule import Candidate, select
from numus.shapes import Shape
from numus.target import Target

__all__ = ["lower_concat", "lower_gemm_as_reduction", "lower_loops", "lower_sum"]


def lower_loops(
    group: FusionGroup,
    layouts: Layouts,
    target: Target,
    redirect: Redirect | None = None,
    aliases: dict[Value, Value] | None = None,
) -> Kernels:
    """The kernels of a loop group: one, or two where rows are split.

    `redirect` stores a member as a slice of another value; `aliases` has the members that compute
    values which others of the group refer to.
    """
    if target.simt and group.axes:
        from numus.compiler.fusion.column_sums import column_sums_of, rows_of  # for GPUs only

        columns = column_sums_of(group)
        if columns is not None:
            works = (StagedGroup(g, layouts, target) for g in (rows_of(group, columns), columns))
            parts = [_problem(own, analyse(own)) for own in works]
            together = lower_rows_and_columns(*parts)
            return [step for p in parts for step in _lower(p)] if together is None else together
    work = StagedGroup(group, layouts, target, redirect, aliases)
    nest = analyse(work)
    copies: Kernels = []
    if work.reductions and not target.simt and not work.is_small:
        work, copies = _with_relaid_operands(work, nest)
        nest = analyse(work) if copies else nest
    return [*copies, *_lower(_problem(work, nest))]


def _problem(work: StagedGroup, nest: LoopNest) -> LoopProblem:
    lane = _reduction_lane(work, nest) if work.reductions else pointwise_lane(work, nest.loops)
    return LoopProblem(work.group, work.layouts, work.target, work, nest, lane)


def _lower(problem: LoopProblem) -> Kernels:
    reductions = SIMT_REDUCTIONS if problem.target.simt else SIMD_REDUCTIONS
    return select(reductions if problem.work.reductions else POINTWISE, problem).lower(problem)


def _with_relaid_operands(work: StagedGroup, nest: LoopNest) -> tuple[StagedGroup, Kernels]:
    """Operands that have gaps along lanes, and are read by many rows (distances of all pairs of
    points, forces between them), are transposed before: copies of them, and who reads these."""
    for lane in (_lane_of_pairs(work, nest), _reduction_lane(work, nest)):
        orders = orders_along(work, nest, lane) if lane is not None else {}
        if not orders:
            continue
        copies: Kernels = []
        relaid: dict[Value, tuple[Value, Shape]] = {}
        for v, order in orders.items():
            shape = tuple(v.shape[a] for a in order)
            transposed = Value.fresh("permute", "view", (v,), order, shape, v.dtype)
            copy = Value.fresh("cast", "elementwise", (transposed,), None, shape, v.dtype)
            fused = FusionGroup.of_stored(copy, work.group.position)
            copies += lower_loops(fused, work.layouts, work.target)
            relaid[v] = copy, order
        return work.with_relaid(relaid), copies
    return work, []


def _lane_of_pairs(work: StagedGroup, nest: LoopNest) -> Loop | None:
    """The loop over rows along which lanes would store, where many more rows may read the same
    operands there."""
    if len(nest.inner) != 1 or len(nest.rows) < 2 or nest.row_size > TUNING.pair_max_simd_row:
        return None
    again, wide = iterations(nest.rows[:-1]), 2 * work.vector_lanes()
    lane = nest.rows[-1]
    return lane if lane.extent >= wide and again >= TUNING.pair_min_reads else None


def _reduction_lane(work: StagedGroup, nest: LoopNest) -> Loop | None:
    """The loop whose iterations are lanes: along the row, or across rows; None: neither."""
    width, n = work.vector_lanes(), nest.row_size
    if work.threads and n <= TUNING.thread_row and nest.row_count >= work.threads:
        # a row is less than a block could share: a thread for each
        return max(nest.rows, key=lambda d: (nest.unit_strides(d), d.extent))

    is_small = n * nest.row_count <= TUNING.scattered_elements and n >= TUNING.scattered_min_row
    if is_small and work.target.vector_access_bytes and len(nest.inner) == 1:
        # uncoalesced, but few loads, and all of a row in flight
        return nest.inner[0]

    if not work.threads and len(nest.inner) == 1 and n <= TUNING.thread_row * 2:
        across = _lanes_of_short_rows(work, nest)
        if across is not None:
            return across

    def weight(d: Loop) -> float:
        return (nest.unit_strides(d) + 0.01) * (min(d.extent, width) / width)

    candidates = [d for d in nest.rows if d.extent >= 2]
    mergeable = bool(work.threads) or all(reducer(r).simd for r in work.reductions)
    if nest.inner and mergeable:
        candidates.append(nest.inner[-1])
    return max(candidates, key=lambda d: (weight(d), d.reduced), default=None)


def _lanes_of_short_rows(work: StagedGroup, nest: LoopNest) -> Loop | None:
    """A loop over rows whose SIMD loads may have gaps: that costs less than reducing the lanes of
    every row, and computing what follows for one row at a time; None where it does not."""
    width, n = work.vector_lanes(), nest.row_size
    candidates = [d for d in nest.rows if d.extent >= width]
    if not candidates:
        return None

    def loads(d: Loop) -> float:
        repeated, once = nest.loads_with_gaps(d)
        return TUNING.gap_load_cached * repeated + TUNING.gap_load * once

    best = min(candidates, key=lambda d: (loads(d), -nest.unit_strides(d)))
    rest = [m for m in work.members if m.kind == "elementwise" and not work.is_full(m)]
    after = sum(TUNING.expensive_op if m.op in EXPENSIVE_OPS else 1.0 for m in rest)
    along = TUNING.lanes_reduce + TUNING.row_vector * ceil_div(n, width) + after
    return best if n * loads(best) < along else None


# -- schedules ------------------------------------------------------------------------------------


def _is_large_splittable(p: LoopProblem) -> bool:
    return p.work.splittable and p.nest.row_size * p.nest.row_count > TUNING.small_elements


def _supports_columns(p: LoopProblem) -> bool:
    n = p.nest.row_size
    large = n * p.nest.row_count >= 4 * TUNING.split_elements and n >= 64
    return _is_large_splittable(p) and p.across_rows and large and not p.work.relaid


def _supports_simd_split(p: LoopProblem) -> bool:
    """Too few rows for the cores, or so long that splitting keeps their sums accurate."""
    rows, n = p.nest.row_count, p.nest.row_size
    parallel = ceil_div(rows, 64) if p.across_rows else rows
    is_underfilled = parallel < TUNING.few_rows and n > TUNING.small_elements // TUNING.few_rows
    return _is_large_splittable(p) and (is_underfilled or n > 4 * TUNING.split_elements)


SIMD_REDUCTIONS = (
    Candidate("column reduction", lower_columns, _supports_columns),
    Candidate("split reduction", lower_split, _supports_simd_split),
    Candidate("row reduction", lower_rows),
)

SIMT_REDUCTIONS = (
    attempt("pair reduction", lower_pairs, supports_pairs),
    attempt("pair matrix", lower_pair_matrix, supports_pair_matrix),
    attempt("windows", lower_windows, supports_windows),
    Candidate("sub-warp rows", lambda p: SubwarpRows(p).lower(), supports_subwarp),
    Candidate("split reduction", lower_split, supports_simt_split),
    attempt("register-resident rows", lower_register_rows),
    attempt("cluster rows", lower_cluster_rows),
    Candidate("row reduction", lower_rows),
)


# -- other groups as loops ------------------------------------------------------------------------


def lower_concat(group: FusionGroup, layouts: Layouts, target: Target) -> Kernels:
    """Each part is computed straight into the whole; parts of one shape share a kernel."""
    whole = group.members[0]
    axis = whole.params
    by_shape: list[list[Value]] = []
    redirect: Redirect = {}
    start = 0
    for x in whole.inputs:
        part = Value.fresh("copy", "barrier", (x,), None, x.shape, x.dtype)
        redirect[part] = (whole, axis, start)
        start += x.shape[axis]
        if part.size:
            equal = [parts for parts in by_shape if parts[0].shape == x.shape]
            if equal:
                equal[0].append(part)
            else:
                by_shape.append([part])
    steps: Kernels = []
    for parts in by_shape:
        for first in range(0, len(parts), TUNING.concat_max_parts):
            some = parts[first : first + TUNING.concat_max_parts]
            fused = FusionGroup.of(some, set(some), group.position)
            steps += lower_loops(fused, layouts, target, redirect)
    return steps


def lower_sum(group: FusionGroup, total: Value, layouts: Layouts, target: Target) -> Kernels:
    """A group whose first value is this reduction, with its epilogue."""
    gemm, *epilogue = group.members
    stored = {total if v is gemm else v for v in group.stored}
    rows = FusionGroup.of([total, *epilogue], stored, group.position)
    return lower_loops(rows, layouts, target, {total: (gemm, 0, 0)}, {gemm: total})


def lower_gemm_as_reduction(group: FusionGroup, layouts: Layouts, target: Target) -> Kernels:
    """A GEMM as a plain sum of products: for dtypes and sizes that need no tiles."""
    gemm = group.members[0]
    a, b = gemm.inputs
    batch, m, n = gemm.shape
    k = a.shape[2]
    wide = gemm.dtype
    if wide.is_floating:  # products of 16-bit floats are not rounded one by one
        wide = dt.promote(dt.compute_dtype(wide), a.dtype)

    def operand(x: Value, shape: Shape) -> Value:
        if x.dtype is not wide:
            x = Value.fresh("cast", "elementwise", (x,), None, x.shape, wide)
        return Value.fresh("reshape", "view", (x,), shape, shape, wide)

    left = operand(a, (batch, m, 1, k))
    transposed = Value.fresh("permute", "view", (b,), (0, 2, 1), (batch, n, k), b.dtype)
    right = operand(transposed, (batch, 1, n, k))
    terms = Value.fresh("mul", "elementwise", (left, right), None, (batch, m, n, k), wide)
    total = Value.fresh("reduce_sum", "reduce", (terms,), (3,), gemm.shape, gemm.dtype)
    return lower_sum(group, total, layouts, target)
