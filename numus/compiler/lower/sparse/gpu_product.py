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
from numus.kernels.matmul.gpu.problem import MAX_ACCESS_BYTES, when
from numus.kernels.sparse.gpu_rows import ThreadRows


@dataclass(frozen=True)
class GpuProductTuning:
    """Measured on one H200, of 27-point matrices and rows of a power law."""

    block_threads: int = 256
    blocks_per_core: int = 16  # from which on blocks take more rows, that share operands in L1
    block_rounds: int = 8  # most rows of a block, as a multiple of its threads
    unroll: int = 4  # entries whose operands are loaded ahead of their products
    stream_entries: int = 1536  # of the rows of a block with one column, at most, unless they are
    min_rows: int = 8  # fewer than these
    spare: float = 1.25  # of products in flight, to what average rows have
    max_depth: int = 8  # products in flight of a thread


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
    groups = columns // width  # threads of a row
    work = count * rows * groups
    rounds = work // (threads * TUNING.blocks_per_core * p.target.num_cores)
    per_block = threads * max(1, min(rounds, TUNING.block_rounds))
    lanes, depth = _stream(p, threads)
    if columns == 1:
        per_block = threads // lanes
    per_batch = -(-rows * groups // per_block)
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
    if columns == 1:
        notes = (val.op, f"{lanes} lanes per row")
        span = ir.block_range(block, const(per_block), e.dim(rows))
        body, e.scratch = matrix.streamed(threads, depth, span, lanes)
        return [e.grid_kernel(val.op, g, body, count * per_batch, notes)]
    notes = (val.op, f"{width} columns per thread")

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


def _stream(p: ProductProblem, threads: int) -> tuple[int, int]:
    """Lanes that sum a row, and the products that a thread has in flight."""
    entries, rows = max(1, p.row_entries), p.val.shape[0] * p.val.shape[1]
    fitting = min(TUNING.stream_entries // entries, rows // p.target.num_cores, threads)
    own = 1 << max(TUNING.min_rows, fitting).bit_length() - 1
    lanes = max(1, min(threads // own, p.target.subgroup_size))
    expected = TUNING.spare * (threads // lanes) * entries
    return lanes, max(1, min(TUNING.max_depth, -int(-expected // threads)))
