"""Schedules of unpacking packed codes: pieces of rows by the blocks of a GPU, rows by CPU tasks."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.matmul.packed import packed_matrix
from numus.compiler.lower.schedule import Candidate, Problem, family
from numus.ir import Expr, const
from numus.kernels.matmul.blocks import LAYOUTS
from numus.kernels.matmul.cpu.block_values import values_of_row
from numus.kernels.matmul.gpu.packed.unpack import THREADS, Unpack
from numus.kernels.matmul.packed import BYTES, Packing

ZERO = const(0)
MIN_TASK_VALUES = 1 << 14


@dataclass(frozen=True)
class UnpackProblem(Problem):
    """Inputs: codes (1, rows, words), scales (rows or 1, groups), perhaps zero points."""

    @property
    def packing(self) -> Packing:
        found: Packing = self.val.params
        return found

    @property
    def chunks(self) -> int:
        return self.val.shape[1] // self.packing.values


def _lower_blocks(p: UnpackProblem) -> Kernels:
    unpack = Unpack(p.packing, p.val.dtype)
    e, block = Emitter(p.layouts, block_size=THREADS), ir.var("block")
    blocks = -(-p.chunks // unpack.block_words)

    def store(row: Expr, column: Expr, value: Expr) -> ir.Store:
        (found,) = e.store(p.val, (row, column), value)
        assert isinstance(found, ir.Store)
        return found

    matrix = packed_matrix(e, p.packing, *p.val.inputs)
    body = unpack.emit(matrix, block, e.scalar_arg(blocks), e.dim(p.chunks), store)
    return [e.grid_kernel("unpack", block, body, p.val.shape[0] * blocks, p.group.notes)]


def _lower_tasks(p: UnpackProblem) -> Kernels:
    """A row at a time, lanes along its words."""
    e, row, c, packing = Emitter(p.layouts), ir.var("row"), ir.var("chunk"), p.packing
    matrix = packed_matrix(e, packing, *p.val.inputs)
    group = c // packing.group if packing.group else ZERO
    first = c + group + 1 if packing.header else c
    word = matrix.codes.read(ZERO, row, first, None)
    word = word ^ (128 * BYTES) if packing.signed else word
    zero = const(float(packing.zero), dt.float32)
    zero = zero if matrix.zero is None else matrix.zero(row, group)
    body: list[ir.Stmt] = []
    for j in range(packing.values):
        code = (word >> (packing.bits * j)) & ((1 << packing.bits) - 1)
        value = code.cast(dt.float32) - zero
        value = value if p.val.dtype is dt.int8 else value * matrix.scale(row, group)
        body += e.store(p.val, (row, c * packing.values + j), value.cast(p.val.dtype))
    loop = ir.For(c, ZERO, e.dim(p.chunks), "lanes", body)
    return [e.grid_kernel("unpack", row, [loop], p.val.shape[0], p.group.notes)]


def _lower_block_rows(p: UnpackProblem) -> Kernels:
    """Rows of GGUF's blocks, lanes along their values."""
    e, task, row = Emitter(p.layouts), ir.var("task"), ir.var("row")
    (blocks,), (rows, columns) = p.val.inputs, p.val.shape
    layout = LAYOUTS[p.val.params]
    per_task = -(-MIN_TASK_VALUES // max(1, columns))
    span = ir.block_range(task, e.scalar_arg(per_task), e.dim(rows))

    def byte(at: Expr) -> Expr:
        found: Expr = e.value(blocks, (row, at))
        return found

    def word(at: Expr) -> Expr:
        return ir.load_word(e.buffer(blocks), e.address(blocks, (row, at)))

    width = max(4, p.target.vector_bytes // 4)
    count = e.dim(columns // layout.values)
    body, e.scratch = values_of_row(
        *(layout, byte, word),
        lambda column, value: e.store(p.val, (row, column), value),
        count,
        width,
    )
    loop = ir.For(row, *span, "serial", body)
    return [e.grid_kernel("unpack", task, [loop], -(-rows // per_task), p.group.notes)]


def _of_blocks(p: UnpackProblem) -> bool:
    return isinstance(p.val.params, str)


lower_unpack = family(
    UnpackProblem,
    Candidate("rows of blocks per task", _lower_block_rows, _of_blocks),
    Candidate("row per task", _lower_tasks),
)
lower_unpack_gpu = family(UnpackProblem, Candidate("words per block", _lower_blocks))
