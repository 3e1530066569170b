"""Scatter-add of integers on GPUs by privatized histograms in shared memory (Podlozhnyuk 2007).

Every block counts its part of the updates in a table of its own in shared memory, several copies of
it against conflicts, and adds the table to the result's counts in global memory. Sums of integers
do not depend on their order, so the result is the same from run to run.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value, is_constant
from numus.compiler.lower.axis import ZERO, delinearize, temporary
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.grid_sync import clear_flags
from numus.compiler.lower.scatter.gpu_problem import GpuScatterProblem, linear_destination
from numus.compiler.lower.schedule import Candidate
from numus.ir import const


@dataclass(frozen=True)
class HistogramTuning:
    """Measured on one H200."""

    table_bytes: int = 32 << 10  # of all copies, so that several blocks share a multiprocessor
    max_copies: int = 8
    min_updates_per_counter: int = 4  # for a table that pays
    min_block_updates: int = 1 << 12  # worth clearing and adding a table
    blocks_per_core: int = 8
    vector: int = 4  # consecutive updates of a thread


TUNING = HistogramTuning()


def _counter(problem: GpuScatterProblem) -> dt.DType:
    """Unsigned, so that sums wrap: as wide as the result, or 32 bits for counts."""
    counts_ones = is_constant(problem.val.inputs[1], 1) and problem.count < 1 << 32
    is_narrow = counts_ones or problem.val.dtype.itemsize == 4
    return dt.uint32 if is_narrow else dt.uint64


def _supports(problem: GpuScatterProblem) -> bool:
    # targets with forward progress have atomics as well
    is_sum = problem.mode == "add" and problem.val.dtype.is_integer
    if not (problem.target.forward_progress and is_sum and problem.val.dtype.itemsize >= 4):
        return False
    counters = problem.destination_count
    fits = (counters + 1) * _counter(problem).itemsize <= TUNING.table_bytes
    return (
        problem.columns == 1 and fits and problem.count >= TUNING.min_updates_per_counter * counters
    )


def _lower(problem: GpuScatterProblem) -> Kernels:
    counts = temporary((problem.destination_count,), _counter(problem))
    return [
        clear_flags(counts, problem.target),
        _count(problem, counts),
        _add_base(problem, counts),
    ]


PRIVATIZED_HISTOGRAM = Candidate("privatized histogram", _lower, _supports)


def _count(problem: GpuScatterProblem, counts: Value) -> LoweredKernel:
    val, target = problem.val, problem.target
    e = Emitter(problem.layouts, block_size=target.block_size)
    size = problem.destination_count + 1  # the last one counts updates out of bounds
    copies = TUNING.max_copies
    while copies > 1 and copies * size * counts.dtype.itemsize > TUNING.table_bytes:
        copies //= 2
    extent = ir.add(e.dim(problem.destination_count), const(1))
    table = ir.Buffer("table", counts.dtype, "scratch", const(size * copies))
    e.scratch.append(table)
    g, z, u, d = ir.var("g"), ir.var("zero"), ir.var("u"), ir.var("destination")
    at = tuple(delinearize(e, u, list(problem.index_shape)))
    rest = (ZERO,) * len(problem.other_axes)  # of extent 1
    update = e.value(val.inputs[1], (*at, *rest)).cast(counts.dtype)
    copy = ir.binary("and", ir.binary("lshr", u, const(2)), const(copies - 1))
    where = ir.add(ir.mul(linear_destination(e, problem, at), const(copies)), copy)
    total = const(0, counts.dtype)
    for c in range(copies):
        total = total + ir.load(table, ir.add(ir.mul(d, const(copies)), const(c)))
    wanted = target.num_cores * TUNING.blocks_per_core
    part = max(TUNING.min_block_updates, -(-problem.count // wanted))
    part = -(-part // TUNING.vector) * TUNING.vector
    span = ir.block_range(g, e.scalar_arg(part), e.dim(problem.count))
    body: list[ir.Stmt] = [
        ir.For(
            z,
            ZERO,
            ir.mul(extent, const(copies)),
            "lanes",
            [ir.Store(table, z, const(0, counts.dtype))],
        ),
        ir.For(u, *span, "lanes", [ir.AtomicAdd(table, where, update)], width=TUNING.vector),
        ir.For(
            d,
            ZERO,
            e.dim(problem.destination_count),
            "lanes",
            [ir.AtomicAdd(e.buffer(counts, "write"), d, total)],
        ),
    ]
    return e.grid_kernel("scatter_histogram", g, body, -(-problem.count // part), (val.op,))


def _add_base(problem: GpuScatterProblem, counts: Value) -> LoweredKernel:
    """The result: the base and the counts."""
    val, threads = problem.val, problem.target.block_size
    e = Emitter({**problem.layouts, counts: (1,)}, block_size=threads)
    g, d = ir.var("g"), ir.var("destination")
    index = problem.index(e, d, ZERO)
    start, stop = ir.block_range(g, const(threads), e.dim(problem.destination_count))
    base = e.value(val.inputs[0], index)
    found = e.value(counts, (d,)).cast(val.dtype)
    loop = ir.For(d, start, stop, "lanes", e.store(val, index, base + found))
    grid = -(-problem.destination_count // threads)
    return e.grid_kernel("scatter_add_counts", g, [loop], grid, (val.op,))
