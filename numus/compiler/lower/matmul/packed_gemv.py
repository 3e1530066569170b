"""Schedules of products of floats with packed codes: rows of a GPU's warp, rows of a CPU's task."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.matmul.gpu_operands import vector_operand
from numus.compiler.lower.matmul.packed import CodesProblem
from numus.compiler.lower.matmul.problem import store_epilogue
from numus.compiler.lower.matmul.row_products import (
    RowEpilogues,
    RowsAhead,
    products_of,
    statistics,
    vector_loader,
)
from numus.compiler.lower.schedule import Candidate, family
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.packed_gemv import (
    QUAD,
    WARP,
    PackedGemv,
    PackedGemvOperands,
    PackedGemvShape,
    PackedMatrix,
)
from numus.kernels.matmul.gpu.problem import MAX_ACCESS_BYTES
from numus.kernels.matmul.gpu.row_gemv import TUNING as ROWS
from numus.kernels.matmul.gpu.row_gemv import block_threads, choose_rows, totals
from numus.kernels.matmul.packed import BYTES

ZERO = const(0)


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

    def scale(self, e: Emitter, product: Value, row: Expr, group: Expr) -> Expr:
        p = self.packing
        if not p.header:
            return self.number(e, product.inputs[2], row, group)
        word = e.value(product.inputs[1], (ZERO, row, group * (p.group * p.words + 1)))
        half: Expr = (word & 0xFFFF).cast(dt.uint16).bitcast(dt.float16)
        return half.cast(dt.float32)

    def matrix(self, e: Emitter, product: Value) -> PackedMatrix:
        """The operands of one product of the group."""
        _, codes, _, *zeros = product.inputs
        return PackedMatrix(
            vector_operand(e, codes, 1, dt.uint32, QUAD),
            scale=lambda row, group: self.scale(e, product, row, group),
            zero=(lambda row, group: self.number(e, zeros[0], row, group)) if zeros else None,
        )


def _lower_warps(p: PackedGemvProblem) -> Kernels:
    products = products_of(p.group)
    row_loads = -(-p.chunks // (WARP * QUAD))
    rows, unroll = choose_rows(p.target, len(products), p.rows, row_loads, p.vectors)
    e, block = Emitter(p.layouts, block_size=block_threads()), ir.var("block")
    x = p.val.inputs[0]
    matrices = [p.matrix(e, product) for product in products]
    paired, whole = x.dtype.itemsize == 2, p.chunks % (WARP * QUAD * unroll) == 0
    shape = PackedGemvShape(p.packing, p.vectors, rows, unroll, whole, paired)
    gemv = PackedGemv(shape, matrices, e.dim(p.rows), block)
    codes, operands = [product.inputs[1] for product in products], [m.codes for m in matrices]
    ahead = RowsAhead(codes, operands, gemv.rows, codes[0].shape[2])
    body = ahead.statements(e, p.target, gemv.first_loads(e.dim(p.chunks)))
    if p.vectors == 1:
        body += statistics(e, x, MAX_ACCESS_BYTES // x.dtype.itemsize)
    epilogues = RowEpilogues(e, p.group, gemv.rows)
    for v in range(p.vectors):
        for i in range(rows):
            names = totals(len(products), dt.float32, i, f"_of{v}")
            epilogues.add(v, i, dict(zip(products, names, strict=True)), 2)
    body += epilogues.loads()
    vectors = [_vector(x, v) for v in range(p.vectors)]
    found = [vector_loader(e, x, dt.float32, p.packing.values) for x in vectors]
    aligned = found[0][2]
    for fill, _, own in found:
        body += fill
        aligned = aligned & own
    body += gemv.body(PackedGemvOperands(lambda v: found[v][1], aligned), e.dim(p.chunks))
    body += epilogues.statements(
        lambda lane: gemv.finish(lane, lambda v: lambda i: epilogues.stores(v, i))
    )
    blocks = -(-p.rows // (rows * ROWS.warps))
    return [e.grid_kernel("packed_gemv", block, body, blocks, p.group.notes)]


def _vector(x: Value, number: int) -> Value:
    """One of the vectors."""
    if x.shape[1] == 1:
        return x
    start = ((0, number, 0), (1, 1, 1))
    return Value.fresh("slice", "view", (x,), start, (1, 1, x.shape[2]), x.dtype)


def _lower_tasks(p: PackedGemvProblem) -> Kernels:
    """A row at a time, lanes along its words."""
    e, row, c = Emitter(p.layouts), ir.var("row"), ir.var("chunk")
    packing = p.packing
    group = c // packing.group if packing.group else ZERO
    word = e.value(p.val.inputs[1], (ZERO, row, c + group + 1 if packing.header else c))
    word = word ^ (128 * BYTES) if packing.signed else word
    scale, zeros = p.scale(e, p.val, row, group), p.val.inputs[3:]
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
            *store_epilogue(e, p.group, (const(v), row), found.cast(p.val.dtype)),
        ]
    return [e.grid_kernel("packed_gemv", row, body, p.rows, p.group.notes)]


lower_packed_gemv = family(PackedGemvProblem, Candidate("row per task", _lower_tasks))
lower_packed_gemv_gpu = family(PackedGemvProblem, Candidate("rows per warp", _lower_warps))
