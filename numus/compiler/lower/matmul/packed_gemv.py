"""Schedules of products of floats with packed codes: rows of a GPU's warp, rows of a CPU's task."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.loops.early_prefetch import fetch_row, is_fetched
from numus.compiler.lower.loops.tuning import TUNING as LOOPS
from numus.compiler.lower.matmul.gpu_operands import vector_operand
from numus.compiler.lower.matmul.packed import CodesProblem
from numus.compiler.lower.schedule import Candidate, family
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.packed_gemv import (
    QUAD,
    WARP,
    PackedGemvOperands,
    PackedGemvShape,
    packed_gemv,
)
from numus.kernels.matmul.packed import BYTES

ZERO = const(0)


@dataclass(frozen=True)
class PackedGemvTuning:
    """Measured on one H200."""

    warps_per_core: int = 32  # that are worth more than loading activations less often
    max_rows: int = 2  # of a warp
    quads: int = 4  # in flight, of a thread


TUNING = PackedGemvTuning()


@dataclass(frozen=True)
class PackedGemvProblem(CodesProblem):
    """Inputs: x (1, vectors, k), codes (1, rows, words), scales (rows, groups), perhaps zeros."""

    @property
    def chunks(self) -> int:
        return self.val.inputs[0].shape[2] // self.packing.values

    def number(self, e: Emitter, val: Value, row: Expr, group: Expr) -> Expr:
        at_row = row if val.shape[0] > 1 else ZERO
        found: Expr = e.value(val, (at_row, group if val.shape[1] > 1 else ZERO)).cast(dt.float32)
        return found

    def scale(self, e: Emitter, row: Expr, group: Expr) -> Expr:
        p = self.packing
        if not p.header:
            return self.number(e, self.val.inputs[2], row, group)
        word = e.value(self.val.inputs[1], (ZERO, row, group * (p.group * p.words + 1)))
        half: Expr = (word & 0xFFFF).cast(dt.uint16).bitcast(dt.float16)
        return half.cast(dt.float32)

    def store(self, e: Emitter, v: int, row: Expr, value: Expr) -> list[Stmt]:
        return e.store(self.val, (const(v), row), value.cast(self.val.dtype))


def _lower_warps(p: PackedGemvProblem) -> Kernels:
    rows = TUNING.max_rows
    while rows > 1 and p.rows < rows * TUNING.warps_per_core * p.target.num_cores:
        rows //= 2
    unroll = max(1, TUNING.quads // rows)
    while unroll > 1 and p.chunks % (WARP * QUAD * unroll):
        unroll //= 2
    e, block = Emitter(p.layouts, block_size=WARP), ir.var("block")
    e.packed_blocks = LOOPS.packed_rows
    x, codes, _, *zeros = p.val.inputs
    operands = PackedGemvOperands(
        codes=vector_operand(e, codes, 1, dt.uint32, QUAD),
        x=vector_operand(e, x, 1, dt.float32, 16),
        scale=lambda row, group: p.scale(e, row, group),
        zero=(lambda row, group: p.number(e, zeros[0], row, group)) if zeros else None,
        store=lambda v, row, value: p.store(e, v, row, value),
    )
    shape = PackedGemvShape(p.packing, p.vectors, rows, unroll, paired=x.dtype.itemsize == 2)
    sizes = (block * rows, e.dim(p.rows), e.dim(p.chunks))
    body = packed_gemv(shape, operands, *sizes)
    where = operands.codes.address
    if where is not None and is_fetched(codes, p.target):
        starts = [
            where(ZERO, ir.minimum(block * rows + i, e.dim(p.rows) - 1), ZERO) for i in range(rows)
        ]
        fetches = [fetch_row(*start, codes.shape[2], i) for i, start in enumerate(starts)]
        body = [*fetches, ir.DependencyWait(), *body]
    return [e.grid_kernel("packed_gemv", block, body, -(-p.rows // rows), (p.val.op,))]


def _lower_tasks(p: PackedGemvProblem) -> Kernels:
    """A row at a time, lanes along its words."""
    e, row, c = Emitter(p.layouts), ir.var("row"), ir.var("chunk")
    packing = p.packing
    group = c // packing.group if packing.group else ZERO
    word = e.value(p.val.inputs[1], (ZERO, row, c + group + 1 if packing.header else c))
    word = word ^ (128 * BYTES) if packing.signed else word
    scale, zeros = p.scale(e, row, group), p.val.inputs[3:]
    zero = p.number(e, zeros[0], row, group) if zeros else const(float(packing.zero), dt.float32)
    body: list[Stmt] = []
    for v in range(p.vectors):
        total = ir.Register(f"sum{v}", dt.float32, lanes=True)
        part = const(0.0, dt.float32)
        for j in range(packing.values):
            code = (word >> (packing.bits * j)) & ((1 << packing.bits) - 1)
            x = e.value(p.val.inputs[0], (ZERO, const(v), c * packing.values + j))
            part = ir.fma(code.cast(dt.float32) - zero, x.cast(dt.float32), part)
        added = ir.Set(total, ir.fma(part, scale, ir.read(total)))
        found = ir.var(f"total{v}", dt.float32)
        body += [
            ir.Set(total, const(0.0, dt.float32)),
            ir.For(c, ZERO, e.dim(p.chunks), "lanes", [added]),
            ir.Let(found, ir.lanes_reduce("add", total)),
            *p.store(e, v, row, found),
        ]
    return [e.grid_kernel("packed_gemv", row, body, p.rows, (p.val.op,))]


lower_packed_gemv = family(PackedGemvProblem, Candidate("row per task", _lower_tasks))
lower_packed_gemv_gpu = family(PackedGemvProblem, Candidate("rows per warp", _lower_warps))
