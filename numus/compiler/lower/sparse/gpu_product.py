"""Schedules of sparse × dense products on GPUs: a thread or some lanes for every row of one column,
threads with a vector of columns each for rows of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import ZERO
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.matmul.gpu_operands import vector_operand
from numus.compiler.lower.sparse.product import ProductProblem, at_most, bounds, clamped
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.problem import MAX_ACCESS_BYTES, VectorOperand, when
from numus.kernels.sparse.gpu_rows import ThreadRows
from numus.kernels.sparse.gpu_templates import RowTemplates, TiledRows
from numus.target import Target


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
    staged_bytes: int = 1 << 15  # of the values of a block whose rows have templates
    template_unroll: int = 8  # of their entries
    template_threads: int = 128  # of a block
    template_core_threads: int = 1280  # of all blocks of a core, if they have enough registers
    core_registers: int = 1 << 16
    row_values: int = 32  # of a thread in flight, at most
    row_registers: int = 36  # of a thread, besides the values in flight
    row_multiple: int = 32  # of the rows of one


TUNING = GpuProductTuning()


def computes_rows(p: ProductProblem) -> bool:
    """Real products with one column, of which lanes share rows."""
    val = p.val
    is_real = val.op == "csr_matmul" and not val.dtype.is_complex and val.dtype is not dt.bool_
    return is_real and bool(p.target.subgroup_size)


def computes_even_rows(p: ProductProblem) -> bool:
    """Real products of which threads have several columns, or rows as long as each other."""
    val = p.val
    is_real = val.op == "csr_matmul" and not val.dtype.is_complex and val.dtype is not dt.bool_
    return is_real and (val.shape[2] > 1 or val.params == "even")


def computes_templates(p: ProductProblem) -> bool:
    val = p.val
    is_real = not val.dtype.is_complex and val.dtype is not dt.bool_
    return val.op == "csr_matmul" and val.params == "templates" and is_real


class _Products:
    """A kernel of products whose blocks have adjacent rows of a matrix of the batch."""

    def __init__(self, p: ProductProblem) -> None:
        self.p, val, x = p, p.val, p.val.inputs[3]
        self.count, self.rows, self.columns = val.shape
        self.threads = min(p.target.block_size, TUNING.block_threads)
        self.e = Emitter(p.layouts, block_size=self.threads)
        self.g, self.batch, self.block = ir.var("g"), ZERO, ir.var("g")
        vector = MAX_ACCESS_BYTES if p.target.vector_access_bytes else 1
        self.operand: VectorOperand = vector_operand(self.e, x, 2, p.accumulator, vector)
        is_vector = self.operand.address is not None and not self.operand.k_major
        self.width = self.operand.vector if is_vector and self.columns > 1 else 1

    def split(self, blocks: int, each: int) -> None:
        """The blocks of each matrix of the batch, of `each` elements of a column."""
        if self.count > 1:
            self.batch, self.block = divmod(self.g, self.e.scalar_arg(blocks))
        self.blocks, self.each = self.count * blocks, each

    def span(self) -> tuple[Expr, Expr]:
        """Rows of a block."""
        return ir.block_range(self.block, self.e.scalar_arg(self.each), self.e.dim(self.rows))

    def matrix(self) -> ThreadRows:
        e, val, operand = self.e, self.p.val, self.operand
        pointers, indices, values, x = val.inputs[:4]
        wide, batch = self.p.accumulator, self.batch

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
                    first.vector = self.width
                out += found
            return out

        return ThreadRows(
            wide,
            lambda row: bounds(e, pointers, row, self.p.nnz),
            lambda entry: clamped(e, indices, entry, x.shape[1]),
            lambda entry: e.value(values, (batch, entry)).cast(wide),
            *(load, store),
        )

    def kernels(self, body: list[Stmt], note: str) -> Kernels:
        op = self.p.val.op
        return [self.e.grid_kernel(op, self.g, body, self.blocks, (op, note))]


def lower_columns(p: ProductProblem) -> Kernels:
    """A thread has a vector of columns of a row."""
    k = _Products(p)
    e, width, threads = k.e, k.width, k.threads
    groups = k.columns // width  # threads of a row
    work = k.count * k.rows * groups
    rounds = work // (threads * TUNING.blocks_per_core * p.target.num_cores)
    per_block = threads * max(1, min(rounds, TUNING.block_rounds))
    k.split(-(-k.rows * groups // per_block), per_block)
    matrix, i = k.matrix(), ir.var("i")

    # numbers of two that come often are constants: divisions by them are shifts
    is_shift = groups <= threads and groups & (groups - 1) == 0
    each = const(groups) if is_shift else e.dim(groups)

    def loop_of(vectorised: bool) -> list[Stmt]:
        row, group = ir.var("row"), ir.var("group")
        span = ir.block_range(k.block, e.scalar_arg(per_block), ir.mul(e.dim(k.rows), each))
        body: list[Stmt] = [ir.Let(row, i // each), ir.Let(group, i % each)]
        column = ir.mul(group, const(width))
        body += matrix.vector(row, column, width, TUNING.unroll, vectorised)
        return [ir.For(i, *span, "lanes", body)]

    note = f"{width} columns per thread"
    if width == 1:
        return k.kernels(loop_of(False), note)
    out = (ir.address(e.buffer(p.val, "write")) & const(MAX_ACCESS_BYTES - 1)).eq(ZERO)
    aligned = k.operand.aligned & out
    body = when(aligned, lambda: loop_of(True)) + when(~aligned, lambda: loop_of(False))
    return k.kernels(body, note)


def lower_streams(p: ProductProblem) -> Kernels:
    """Lanes of a warp sum the products of a row, which the block streams."""
    k = _Products(p)
    lanes, depth = stream_shape(p.row_entries, k.count * k.rows, p.target, k.threads)
    per_block = k.threads // lanes
    k.split(-(-k.rows // per_block), per_block)
    span = ir.block_range(k.block, const(per_block), k.e.dim(k.rows))
    body, k.e.scratch = k.matrix().streamed(k.threads, depth, span, lanes)
    return k.kernels(body, f"{lanes} lanes per row")


def lower_templates(p: ProductProblem) -> Kernels:
    """A thread sums a row by the offsets of its template; blocks stay for many rows."""
    k = _Products(p)
    k.threads = k.e.block_size = threads = min(p.target.block_size, TUNING.template_threads)
    per_core = resident_blocks(p, k.rows, threads)
    k.split(*even_parts(k.rows, max(1, p.target.num_cores * per_core // k.count), threads))
    k.e.resident_blocks = per_core if p.target.forward_progress else 0
    rows = tiled_rows(k.e, k.matrix(), threads, p.val.inputs, TUNING.staged_bytes)
    k.e.scratch = [rows.staged]
    return k.kernels(rows.multiply(*k.span()), "templates of rows")


def resident_threads(row_entries: int, dtype: DType, others: int) -> int:
    """Threads of a core for which there are registers, if each has a row of values in flight, of
    one that is not long, and `others`."""
    words = min(row_entries + 1, TUNING.row_values) * -(-dtype.itemsize // 4)
    return TUNING.core_registers // (words + others)


def resident_blocks(p: ProductProblem, rows: int, threads: int) -> int:
    """Blocks of a core that have the registers that they need."""
    most = resident_threads(p.nnz // max(1, rows), p.accumulator, TUNING.row_registers)
    return max(1, min(TUNING.template_core_threads, most) // threads)


def even_parts(rows: int, blocks: int, threads: int) -> tuple[int, int]:
    """How many blocks share rows, none fewer than it has threads, and the rows of each."""
    multiple = TUNING.row_multiple
    each = max(threads, -(-rows // (blocks * multiple)) * multiple)
    return -(-rows // each), each


def tiled_rows(
    e: Emitter, matrix: ThreadRows, threads: int, inputs: Sequence[Value], staged_bytes: int
) -> TiledRows:
    """Products by templates, of the inputs of `csr_matmul`, with so much shared memory."""
    pointers, indices, _, _, template, offsets = inputs
    nnz, rows = indices.shape[0], pointers.shape[0] - 1
    for found in (matrix.value(ZERO), e.value(template, (ZERO,))):
        if found.op == "load":
            found.attr.streamed = True
    most = min(TUNING.row_values, staged_bytes // (threads * matrix.dtype.itemsize))
    depth = max(1, min(nnz // max(1, rows) + 1, most))
    templates = RowTemplates(
        lambda row: e.value(pointers, (row,)),
        lambda entry: at_most(entry, e.dim(nnz)),
        lambda row: e.value(template, (row,)),
        lambda i: e.value(offsets, (i,)),
        e.dim(nnz),
    )
    return TiledRows(matrix, templates, threads, depth, TUNING.template_unroll)


def stream_shape(row_entries: int, rows: int, target: Target, threads: int) -> tuple[int, int]:
    """Lanes that sum a row, and the products that a thread has in flight."""
    entries = max(1, row_entries)
    fitting = min(TUNING.stream_entries // entries, rows // target.num_cores, threads)
    own = 1 << max(TUNING.min_rows, fitting).bit_length() - 1
    lanes = max(1, min(threads // own, target.subgroup_size))
    expected = TUNING.spare * (threads // lanes) * entries
    return lanes, max(1, min(TUNING.max_depth, -int(-expected // threads)))
