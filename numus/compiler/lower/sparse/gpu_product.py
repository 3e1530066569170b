"""Schedules of sparse × dense products on GPUs: some lanes, or threads with a vector of columns
each, for every row."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.lower.axis import ZERO
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.matmul.gpu_operands import vector_operand
from numus.compiler.lower.sparse.product import ProductProblem, bounds, clamped
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.problem import MAX_ACCESS_BYTES, next_power_of_two, when
from numus.kernels.sparse.gpu_rows import ThreadRows


@dataclass(frozen=True)
class GpuProductTuning:
    """Measured on one H200, of 27-point matrices and rows of a power law."""

    block_threads: int = 256
    blocks_per_core: int = 16  # from which on blocks take more rows, that share operands in L1
    block_rounds: int = 8  # most rows of a block, as a multiple of its threads
    unroll: int = 4  # entries whose operands are loaded ahead of their products
    lane_entries: int = 32  # of a row with one column, of a lane: fewer are done before they begin
    max_lanes: int = 32


TUNING = GpuProductTuning()


def computes_rows(p: ProductProblem) -> bool:
    """Real products, of which threads have several columns or share rows."""
    val, target = p.val, p.target
    if val.op != "csr_matmul" or val.dtype.is_complex or val.dtype is dt.bool_:
        return False
    return val.shape[2] > 1 or bool(target.subgroup_size)


def lower_rows(p: ProductProblem) -> Kernels:
    """A block has adjacent rows of a matrix of the batch."""
    pointers, indices, values, x = p.val.inputs[:4]
    val, (count, rows, columns) = p.val, p.val.shape
    threads = min(p.target.block_size, TUNING.block_threads)
    e = Emitter(p.layouts, block_size=threads)
    wide = p.accumulator
    vector = MAX_ACCESS_BYTES if p.target.vector_access_bytes else 1
    operand = vector_operand(e, x, 2, wide, vector)
    is_vector = operand.address is not None and not operand.k_major
    width = operand.vector if is_vector and columns > 1 else 1
    g, i = ir.var("g"), ir.var("i")
    lanes = 1
    if columns == 1:
        wanted = next_power_of_two(max(1, p.row_entries // TUNING.lane_entries))
        lanes = min(wanted, TUNING.max_lanes, p.target.subgroup_size)
    groups = columns // width  # threads of a row, unless lanes share it
    work = count * rows * groups * lanes
    rounds = work // (threads * TUNING.blocks_per_core * p.target.num_cores)
    most = TUNING.block_rounds if columns > 1 else 1
    per_block = threads * max(1, min(rounds, most))
    per_batch = -(-rows * groups * lanes // per_block)
    batch, block = divmod(g, e.scalar_arg(per_batch)) if count > 1 else (ZERO, g)

    def load(
        out: list[Stmt], row: Expr, column: Expr, number: int, tag: str, vectorised: bool
    ) -> list[Expr]:
        if vectorised:
            return operand.load_contiguous(out, batch, column, row, number, tag)
        at = [(ir.add(column, const(u)), row) for u in range(number)]
        return operand.load_elements(out, batch, at, tag)

    def store(row: Expr, column: Expr, sums: list[Expr], vectorised: bool) -> list[Stmt]:
        out: list[Stmt] = []
        for u, total in enumerate(sums):
            found = e.store(val, (batch, row, ir.add(column, const(u))), total.cast(val.dtype))
            if vectorised and u == 0:
                (first,) = found
                assert isinstance(first, ir.Store)
                first.vector = width
            out += found
        return out

    matrix = ThreadRows(
        wide,
        lambda row: bounds(e, pointers, row, p.nnz),
        lambda entry: clamped(e, indices, entry, x.shape[1]),
        lambda entry: e.value(values, (batch, entry)).cast(wide),
        *(load, store),
    )
    notes = (val.op, f"{lanes} lanes per row" if columns == 1 else f"{width} columns per thread")
    first = ir.mul(block, e.scalar_arg(per_block)) if per_block > threads else block * threads
    if columns == 1:
        body = matrix.shared(i, e.dim(rows), lanes)
        loop = ir.For(i, first, ir.add(first, e.scalar_arg(per_block)), "lanes", body)
        return [e.grid_kernel(val.op, g, [loop], count * per_batch, notes)]

    # numbers of two that come often are constants: divisions by them are shifts
    is_shift = groups <= threads and groups & (groups - 1) == 0
    each = const(groups) if is_shift else e.dim(groups)

    def loop_of(vectorised: bool) -> list[Stmt]:
        row, group = ir.var("row"), ir.var("group")
        span = ir.block_range(block, e.scalar_arg(per_block), ir.mul(e.dim(rows), each))
        body: list[Stmt] = [ir.Let(row, i // each), ir.Let(group, i % each)]
        column = ir.mul(group, const(width))
        body += matrix.vector(row, column, width, TUNING.unroll, vectorised)
        return [ir.For(i, *span, "lanes", body)]

    if width == 1:
        return [e.grid_kernel(val.op, g, loop_of(False), count * per_batch, notes)]
    out = (ir.address(e.buffer(val, "write")) & const(MAX_ACCESS_BYTES - 1)).eq(ZERO)
    aligned = operand.aligned & out
    body = when(aligned, lambda: loop_of(True)) + when(~aligned, lambda: loop_of(False))
    return [e.grid_kernel(val.op, g, body, count * per_batch, notes)]
