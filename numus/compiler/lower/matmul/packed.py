"""Schedules of products with packed codes: rows of a CPU's task, rows of a GPU's block. Those of
floats with packed codes, and how GPUs read codes, scales and zero points, are described here."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.matmul.gpu_operands import vector_operand
from numus.compiler.lower.schedule import Candidate, Problem, family
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.cpu.packed_rows import RowSizes, rows_of_task
from numus.kernels.matmul.gpu.packed.gemv import QUAD, GroupNumber, PackedMatrix
from numus.kernels.matmul.packed import Operands, PackedShape, Packing, rows_of_block

ZERO = const(0)


@dataclass(frozen=True)
class PackedTuning:
    """Measured on a 2-core x86-64 (Cascade Lake)."""

    min_task_words: int = 1 << 13
    tasks_per_thread: int = 32
    sums: int = 8  # of a row by a vector, that are accumulated side by side
    max_rows: int = 4
    max_threads: int = 256


TUNING = PackedTuning()


@dataclass(frozen=True)
class CodesProblem(Problem):
    """Vectors times the rows of a matrix of packed codes."""

    @property
    def packing(self) -> Packing:
        found: Packing = self.val.params
        return found

    @property
    def vectors(self) -> int:
        return self.val.shape[0]

    @property
    def rows(self) -> int:
        return self.val.shape[1]


@dataclass(frozen=True)
class PackedProblem(CodesProblem):
    @property
    def chunks(self) -> int:
        codes = self.val.inputs[3].shape[1]
        p = self.packing
        if not p.header:
            return codes // p.words
        return codes // (p.group * p.words + 1) * p.group

    @property
    def shape(self) -> PackedShape:
        rows = max(1, min(TUNING.max_rows, TUNING.sums // max(1, self.vectors)))
        return PackedShape(self.packing, self.val.inputs[0].shape[1], self.vectors, rows)

    def operands(self, e: Emitter) -> Operands:
        x, x_sum, unit, codes, scales, *zeros = self.val.inputs

        def store(v: int, row: Expr, value: Expr) -> list[Stmt]:
            return e.store(self.val, (const(v), row), value * e.value(unit, (const(v), ZERO)))

        def number(val: object, row: Expr, group: Expr) -> Expr:
            found: Expr = e.value(val, (row, group)).cast(dt.float32)  # type: ignore[arg-type]
            return found

        def activations(v: int, plane: int, f: int, c: Expr) -> Expr:
            at = const(v), const(plane), const(f)
            if x.dtype is not dt.int8:
                word: Expr = e.value(x, (*at, c))
                return word
            byte: Expr = e.value(x, (*at, c * 4))
            return ir.load_word(byte.attr, byte.args[0])

        return Operands(
            x=activations,
            x_sum=lambda v, c: e.value(x_sum, (const(v), c)),
            word=lambda row, at: e.value(codes, (row, at)),
            scale=lambda row, group: number(scales, row, group),
            zero=(lambda row, group: number(zeros[0], row, group)) if zeros else None,
            store=store,
        )


@dataclass(frozen=True)
class PackedGemvProblem(CodesProblem):
    """Inputs: x (1, vectors, k), codes (1, rows, words), scales (rows, groups), perhaps zeros."""

    @property
    def chunks(self) -> int:
        return self.val.inputs[0].shape[2] // self.packing.values

    def matrix(self, e: Emitter, product: Value) -> PackedMatrix:
        """The operands of one product of the group."""
        return packed_matrix(e, self.packing, *product.inputs[1:])

    def numbers(self, product: Value) -> tuple[Value, ...]:
        """What is loaded with the codes of a product."""
        return () if self.packing.header else product.inputs[2:]


def _number(e: Emitter, val: Value) -> GroupNumber:
    """An element (row or 0, group or 0); of two bytes, its bits."""

    def stored(row: Expr, group: Expr) -> Expr:
        at_row = row if val.shape[0] > 1 else ZERO
        found: Expr = e.value(val, (at_row, group if val.shape[1] > 1 else ZERO))
        return found.bitcast(dt.uint16) if val.dtype.itemsize == 2 else found

    def decoded(x: Expr) -> Expr:
        found = x.bitcast(val.dtype) if val.dtype.itemsize == 2 else x
        return found.cast(dt.float32)

    return GroupNumber(stored, decoded)


def header_scale(e: Emitter, p: Packing, codes: Value) -> GroupNumber:
    """The word ahead of a group, which has the scale in its low half."""

    def stored(row: Expr, group: Expr) -> Expr:
        found: Expr = e.value(codes, (ZERO, row, group * (p.group * p.words + 1)))
        return found

    def decoded(word: Expr) -> Expr:
        half = (word & 0xFFFF).cast(dt.uint16).bitcast(dt.float16)
        return half.cast(dt.float32)

    return GroupNumber(stored, decoded)


def packed_matrix(
    e: Emitter, p: Packing, codes: Value, scales: Value, *zeros: Value
) -> PackedMatrix:
    """A matrix of codes (1, rows, words), scales and zero points (rows or 1, groups)."""
    return PackedMatrix(
        vector_operand(e, codes, 1, dt.uint32, QUAD),
        scale=header_scale(e, p, codes) if p.header else _number(e, scales),
        zero=_number(e, zeros[0]) if zeros else None,
    )


def _shared_width(packing: Packing, lanes: int) -> int:
    """Lanes that share a scale in every vector, if they are enough to be worth it."""
    width = packing.group & -packing.group
    width = min(width, lanes)
    return width if packing.header or width >= min(8, lanes) else 0


def _lower_tasks(p: PackedProblem) -> Kernels:
    s, target = p.shape, p.target
    words = max(1, p.chunks * p.packing.words)
    wanted = max(1, target.num_cores) * TUNING.tasks_per_thread
    per_task = max(-(-p.rows // wanted), -(-TUNING.min_task_words // words))
    per_task = -(-per_task // s.rows) * s.rows
    tasks = -(-p.rows // per_task)
    e, task = Emitter(p.layouts), ir.var("task")
    span = ir.block_range(task, e.scalar_arg(per_task), e.dim(p.rows))
    groups = -(-p.chunks // p.packing.group) if p.packing.group else 1
    lanes = max(1, target.vector_bytes // 4)
    width = _shared_width(p.packing, lanes)
    sizes = RowSizes(e.dim(p.chunks), e.scalar_arg(groups), lanes, width)
    body, e.scratch = rows_of_task(s, p.operands(e), span, sizes)
    return [e.grid_kernel("packed_matmul", task, body, tasks, (p.val.op,))]


def _lower_blocks(p: PackedProblem) -> Kernels:
    s = p.shape
    threads = 32
    while threads < min(TUNING.max_threads, p.chunks):
        threads *= 2
    e, block = Emitter(p.layouts, block_size=threads), ir.var("block")
    body = rows_of_block(
        *(s, p.operands(e), block * s.rows, e.dim(p.rows), e.dim(p.chunks)),
    )
    return [e.grid_kernel("packed_matmul", block, body, -(-p.rows // s.rows), (p.val.op,))]


lower_packed = family(PackedProblem, Candidate("rows per task", _lower_tasks))
lower_packed_gpu = family(PackedProblem, Candidate("rows per block", _lower_blocks))
