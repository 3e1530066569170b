"""Scatter-add on GPUs by atomics: of integers, whose sums do not depend on their order, and of
floats where they may.

Few destinations have privatized histograms in shared memory (Podlozhnyuk 2007): every block counts
its part of the updates in a table of its own, several copies of it against conflicts, and adds the
table to the result's counts in global memory. Others are added to in global memory at once.
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
from numus.ir import const, select
from numus.kernels.vendor.registry import is_deterministic


@dataclass(frozen=True)
class HistogramTuning:
    """Measured on one H200."""

    table_bytes: int = 32 << 10  # of all copies, so that several blocks share a multiprocessor
    max_copies: int = 8
    min_updates_per_counter: int = 4  # for a table that pays
    min_block_updates: int = 1 << 12  # worth clearing and adding a table
    blocks_per_core: int = 8
    vector: int = 4  # consecutive updates of a thread
    min_unordered: int = 512  # floats that are added to in any order


TUNING = HistogramTuning()


def _counter(problem: GpuScatterProblem) -> dt.DType:
    """Floats of 32 bits or more. Unsigned integers, so that sums wrap: as wide as the result, or 32
    bits for counts."""
    if problem.val.dtype.is_floating:
        return dt.compute_dtype(problem.val.dtype)
    counts_ones = is_constant(problem.val.inputs[1], 1) and problem.count < 1 << 32
    is_narrow = counts_ones or problem.val.dtype.itemsize <= 4
    return dt.uint32 if is_narrow else dt.uint64


def _supports_atomics(problem: GpuScatterProblem) -> bool:
    # targets with forward progress have atomics as well
    is_sum = problem.mode == "add" and problem.val.dtype.is_integer
    return problem.target.forward_progress and is_sum and not problem.compares


def _supports_unordered(problem: GpuScatterProblem) -> bool:
    """Few destinations are better off with exact sums in shared memory."""
    is_sum = problem.mode == "add" and problem.val.dtype.is_floating
    is_wanted = is_sum and problem.target.forward_progress and not is_deterministic()
    return is_wanted and not problem.compares and problem.val.size >= TUNING.min_unordered


def _supports_tables(problem: GpuScatterProblem) -> bool:
    counters = problem.destination_count
    fits = (counters + 1) * _counter(problem).itemsize <= TUNING.table_bytes
    return (
        _supports_atomics(problem)
        and (problem.columns == 1 and fits)
        and problem.count >= TUNING.min_updates_per_counter * counters
    )


def _privatized(problem: GpuScatterProblem) -> Kernels:
    counts = temporary((problem.destination_count,), _counter(problem))
    return [
        clear_flags(counts, problem.target),
        _count(problem, counts),
        _add_base(problem, counts),
    ]


def _global(problem: GpuScatterProblem) -> Kernels:
    counts = temporary((problem.val.size + 1,), _counter(problem))
    return [
        clear_flags(counts, problem.target),
        _count_globally(problem, counts),
        _add_base(problem, counts),
    ]


PRIVATIZED_HISTOGRAM = Candidate("privatized histogram", _privatized, _supports_tables)
INTEGER_ATOMICS = Candidate("integer atomics", _global, _supports_atomics)
FLOAT_ATOMICS = Candidate("float atomics", _global, _supports_unordered)


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


def _count_globally(problem: GpuScatterProblem, counts: Value) -> LoweredKernel:
    val, threads, columns = problem.val, problem.target.block_size, problem.columns
    e = Emitter(problem.layouts, block_size=threads)
    g, u = ir.var("g"), ir.var("u")
    number = u if columns == 1 else ir.idiv(u, e.dim(columns))
    column = ZERO if columns == 1 else ir.irem(u, e.dim(columns))
    at = tuple(delinearize(e, number, list(problem.index_shape)))
    at_rest = delinearize(e, column, [val.shape[a] for a in problem.other_axes])
    update = e.value(val.inputs[1], (*at, *at_rest)).cast(counts.dtype)
    where = destination = linear_destination(e, problem, at)
    if columns > 1:
        inside = destination < e.dim(problem.destination_count)
        element = ir.add(ir.mul(destination, e.dim(columns)), column)
        where = select(inside, element, e.dim(val.size))
    # the last counter is for updates out of bounds
    body: list[ir.Stmt] = [ir.AtomicAdd(e.buffer(counts, "write"), where, update)]
    size = const(threads * TUNING.vector)
    span = ir.block_range(g, size, e.dim(problem.count * columns))
    width = TUNING.vector if columns == 1 else 1
    loop = ir.For(u, *span, "lanes", body, width=width)
    grid = -(-problem.count * columns // (threads * TUNING.vector))
    return e.grid_kernel("scatter_atomics", g, [loop], grid, (val.op,))


def _add_base(problem: GpuScatterProblem, counts: Value) -> LoweredKernel:
    """The result: the base and the counts."""
    val, threads, columns = problem.val, problem.target.block_size, problem.columns
    e = Emitter({**problem.layouts, counts: (1,)}, block_size=threads)
    g, d = ir.var("g"), ir.var("d")
    destination, column = (d, ZERO) if columns == 1 else divmod(d, e.dim(columns))
    index = problem.index(e, destination, column)
    start, stop = ir.block_range(g, const(threads), e.dim(val.size))
    dtype = dt.compute_dtype(val.dtype)
    both = e.value(val.inputs[0], index).cast(dtype) + e.value(counts, (d,)).cast(dtype)
    loop = ir.For(d, start, stop, "lanes", e.store(val, index, both.cast(val.dtype)))
    grid = -(-val.size // threads)
    return e.grid_kernel("scatter_add_counts", g, [loop], grid, (val.op,))
