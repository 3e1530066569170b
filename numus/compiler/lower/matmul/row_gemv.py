"""The schedule of products of floats with one vector: a warp per few rows of their matrices."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.matmul.gpu_operands import vector_operand
from numus.compiler.lower.matmul.problem import MatmulProblem
from numus.compiler.lower.matmul.row_products import (
    RowEpilogues,
    RowsAhead,
    matrix_axis,
    matrix_of,
    products_of,
    statistics,
    streams_rows,
    vector_loader,
    vector_of,
)
from numus.compiler.lower.schedule import InOrder
from numus.dtypes import DType
from numus.kernels.matmul.gpu import row_gemv as kernel
from numus.target import Target


class RowGemv(InOrder):
    name = "row_gemv"

    def supports(self, problem: MatmulProblem, target: Target) -> bool:
        return streams_rows(problem.matmul, problem.input_layouts, target)

    def lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        p = problem
        products = products_of(p.group)
        matrices, rows = [matrix_of(m) for m in products], max(p.m, p.n)
        dtype = _dtype_of(p.matmul)
        itemsize = matrices[0].dtype.itemsize
        shape = kernel.choose_shape(p.target, itemsize, dtype, len(products), rows, p.k)
        e, block = Emitter(p.input_layouts, block_size=kernel.block_threads()), ir.var("block")
        axis, vector = matrix_axis(p.matmul), vector_of(p.matmul)
        operands = [vector_operand(e, x, axis, dtype, shape.vector) for x in matrices]
        gemv = kernel.RowGemv(shape, operands, e.dim(rows), block)
        ahead = RowsAhead(matrices, operands, gemv.rows, p.k, vector)
        body = ahead.statements(e, p.target, gemv.first_loads())
        body += statistics(e, vector, shape.vector)
        epilogues = RowEpilogues(e, p.group, gemv.rows)
        for i in range(shape.rows):
            names = kernel.totals(len(products), dtype, i)
            epilogues.add(0, i, dict(zip(products, names, strict=True)), axis)
        body += epilogues.loads()
        fill, load, aligned = vector_loader(e, vector, dtype, shape.vector)
        body += [*fill, *gemv.body(p.k, e.dim(p.k), aligned, load)]
        body += epilogues.statements(
            lambda lane: gemv.finish(lane, lambda i: epilogues.stores(0, i))
        )
        blocks = -(-rows // (shape.rows * kernel.TUNING.warps))
        return [e.grid_kernel(self.name, block, body, blocks, p.group.notes)]


def _dtype_of(product: Value) -> DType:
    """Products of 16-bit floats are not rounded one by one."""
    found = dt.compute_dtype(product.dtype)
    for x in product.inputs:
        found = dt.promote(found, dt.compute_dtype(x.dtype))
    return found
