"""Schedules of products with GGUF's blocks: rows of a CPU's task."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.schedule import Candidate, Problem, family
from numus.ir import Expr, Stmt, const
from numus.ir.symbolic_size import decide
from numus.kernels.matmul.blocks import BYTES, BlockLayout, BlockPlanes, ByteCodes
from numus.kernels.matmul.cpu.block_planes import planes_of_row
from numus.kernels.matmul.cpu.blocks import (
    BlockOperands,
    BlockRows,
    BlockSizes,
    decoded_rows,
    rows_of_task,
    side_by_side,
)
from numus.kernels.matmul.cpu.byte_gemm import (
    ByteOperands,
    ByteSizes,
    ByteTile,
    StoreScale,
    StoreWord,
    columns_of_task,
)
from numus.shapes import row_major


@dataclass(frozen=True)
class BlocksTuning:
    """Measured on 2-core x86-64 machines (Skylake, Cascade Lake)."""

    min_task_bytes: int = 1 << 15
    tasks_per_thread: int = 32


TUNING = BlocksTuning()
ZERO = const(0)


@dataclass(frozen=True)
class PlanesProblem(Problem):
    """Activations (vectors, values of whole blocks), float32."""

    @property
    def planes(self) -> BlockPlanes:
        found: BlockPlanes = self.val.params
        return found


def _lower_planes(p: PlanesProblem) -> Kernels:
    (x,), e, row = p.val.inputs, Emitter(p.layouts), ir.var("row")
    body = planes_of_row(
        *(p.planes, lambda at: e.value(x, (row, at))),
        lambda at, value: e.store(p.val, (row, at), value),
        e.dim(x.shape[1] // p.planes.layout.values),
        max(1, p.target.vector_bytes // 4),
    )
    return [e.grid_kernel("block_planes", row, body, x.shape[0], (p.val.op,))]


@dataclass(frozen=True)
class BlocksProblem(Problem):
    """Inputs: activations as `BlockPlanes` has them, bytes of blocks (rows, bytes)."""

    @property
    def planes(self) -> BlockPlanes:
        found: BlockPlanes = self.val.params
        return found

    @property
    def layout(self) -> BlockLayout:
        return self.planes.layout

    @property
    def blocks(self) -> int:
        """Of a row."""
        return self.val.inputs[1].shape[1] // self.layout.size

    @property
    def shape(self) -> BlockRows:
        blocks, vectors, planes = self.val.inputs[1], self.val.shape[0], self.planes.planes
        width = max(1, self.target.vector_bytes // 4)
        if self.layouts[blocks] != row_major(blocks.shape) or not self.blocks:
            return BlockRows(planes, vectors, 1, 1, width)
        at_once = side_by_side(self.layout)
        rows = max(1, at_once // max(1, vectors))
        decoded = decide(decoded_rows, self.blocks, at_once, width)
        return BlockRows(planes, vectors, rows, decoded, width)

    def tasks(self, rows: int) -> tuple[int, int]:
        """(rows of a task, tasks)."""
        wanted = max(1, self.target.num_cores) * TUNING.tasks_per_thread
        size = max(1, self.blocks * self.layout.size)
        per_task = max(1, -(-rows // wanted), -(-TUNING.min_task_bytes // size))
        per_task = -(-per_task // self.shape.decoded) * self.shape.decoded
        return per_task, -(-rows // per_task)


def _lower_tasks(p: BlocksProblem) -> Kernels:
    x, blocks = p.val.inputs
    rows, planes = p.val.shape[1], p.planes
    e, task = Emitter(p.layouts), ir.var("task")
    per_task, tasks = p.tasks(rows)
    start, stop = ir.block_range(task, e.scalar_arg(per_task), e.dim(rows))
    count = e.dim(p.blocks)

    def own(v: int, at: Expr) -> Expr:
        found: Expr = e.value(x, (const(v), at))
        return found

    def word(row: Expr, byte: Expr) -> Expr:
        return ir.load_word(e.buffer(blocks), e.address(blocks, (row, byte)))

    def store(v: int, row: Expr, value: Expr) -> list[Stmt]:
        unit = own(v, planes.unit_word(count)).bitcast(dt.float32)
        return e.store(p.val, (const(v), row), value * unit)

    operands = BlockOperands(
        word=word,
        x=lambda v, plane, f, w: own(v, planes.word(count, plane, f, w)),
        x_sum=lambda v, g, b: own(v, planes.sum_word(count, g, b)).bitcast(dt.float32),
        store=store,
    )
    sizes = BlockSizes(start, stop, e.dim(rows), count)
    body, e.scratch = rows_of_task(p.layout, p.shape, operands, sizes)
    return [e.grid_kernel("blocks_matmul", task, body, tasks, (p.val.op,))]


@dataclass(frozen=True)
class ByteProblem(Problem):
    """Inputs as `byte_matmul` has them."""

    @property
    def codes(self) -> ByteCodes:
        found: ByteCodes = self.val.params
        return found

    def unpack(self, e: Emitter, row: Expr, word: StoreWord, scale: StoreScale) -> list[Stmt]:
        """The words, scales and offsets of a row."""
        codes, weights = self.codes, self.val.inputs[3:]
        at, group = ir.var("unpack"), ir.var("unpack_group")
        if codes.kind:
            layout, blocks = codes.layout, e.dim(weights[0].shape[1] // codes.layout.size)

            def load(byte: Expr) -> Expr:
                return ir.load_word(e.buffer(weights[0]), e.address(weights[0], (row, byte)))

            stores = [
                word((at // layout.span * layout.fields + f) * layout.span + at % layout.span, code)
                for f, code in enumerate(layout.codes(load, at))
            ]
            decoded, step = layout.scales(load, group)
            fields = 1 if layout.joined else layout.fields
            decodes: list[Stmt] = []
            for g, (value, offset) in enumerate(decoded):
                f, q = divmod(g, layout.spans)
                number = (group * layout.spans + q) * fields + f
                decodes += scale(number, value, offset * step)
            return [
                ir.For(at, ZERO, blocks * layout.words, "serial", stores),
                ir.For(group, ZERO, blocks, "serial", decodes),
            ]
        packed, scales, offsets = weights
        fields, mask = 8 // codes.bits, ((1 << codes.bits) - 1) * BYTES
        own = e.value(packed, (row, at))
        stores = [word(at * fields + f, (own >> (codes.bits * f)) & mask) for f in range(fields)]
        values = (e.value(x, (row, group)) for x in (scales, offsets))
        return [
            ir.For(at, ZERO, e.dim(packed.shape[1]), "serial", stores),
            ir.For(group, ZERO, e.dim(scales.shape[1]), "serial", scale(group, *values)),
        ]


def _lower_bytes(p: ByteProblem) -> Kernels:
    x, x_sum, unit = p.val.inputs[:3]
    (m, n), (_, words, planes, rows) = p.val.shape, x.shape
    columns = p.target.vector_bytes // 4
    e, task = Emitter(p.layouts), ir.var("task")
    wanted = max(1, p.target.num_cores) * TUNING.tasks_per_thread
    per_task = max(1, -(-n // (columns * wanted))) * columns
    span = ir.block_range(task, e.scalar_arg(per_task), e.dim(n))

    def store(row: Expr, column: Expr, value: Expr, mask: Expr) -> list[Stmt]:
        scaled = value * e.value(unit, (row, ZERO))
        return e.store(p.val, (row, column), scaled, mask)

    operands = ByteOperands(
        x=lambda t, word, plane, i: e.value(x, (t, word, const(plane), const(i))),
        x_sum=lambda t, group, i: e.value(x_sum, (t, group, const(i))),
        unpack=lambda row, word, scale: p.unpack(e, row, word, scale),
        store=store,
    )
    group_words = p.codes.layout.group_words if p.codes.kind else p.codes.group_words
    tile = ByteTile(rows, planes, columns, group_words, p.codes.small)
    sizes = ByteSizes(e.dim(m), e.dim(n), e.dim(words), e.dim(x_sum.shape[1]))
    body, e.scratch = columns_of_task(tile, operands, span, sizes)
    return [e.grid_kernel("byte_gemm", task, body, -(-n // per_task), (p.val.op,))]


lower_planes = family(PlanesProblem, Candidate("rows", _lower_planes))
lower_blocks = family(BlocksProblem, Candidate("rows per task", _lower_tasks))
lower_bytes = family(ByteProblem, Candidate("columns per task", _lower_bytes))
