"""Schedule of the warp-level tensor-core GEMM (mma.sync)."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.matmul.gpu_operands import (
    gemm_call,
    is_async_copyable,
    operand_layouts,
    split_k_sizes,
    staged_operand,
)
from numus.compiler.lower.matmul.problem import MatmulProblem, MatmulSchedule
from numus.compiler.lower.matmul.split_k import split_in_kernel
from numus.dtypes import DType
from numus.kernels.matmul.gpu import mma_sync as kernel
from numus.target import Target

MIN_EXTENT = 16  # of m, n and k: below, instructions are mostly empty


def mma_dtype(matmul: Value) -> DType | None:
    """The element type of the MMAs; None where they would round or overflow."""
    a, b = (x.dtype for x in matmul.inputs)
    if a is not b or a not in kernel.MMA_DTYPES:
        return None
    if a.is_integer:
        return a if matmul.dtype.is_integer and matmul.dtype.itemsize <= 4 else None
    if a is dt.float32:
        return a if matmul.params == "tf32" and matmul.dtype is dt.float32 else None
    return a if dt.compute_dtype(matmul.dtype) is dt.compute_dtype(a) else None


class MmaSync(MatmulSchedule):
    name = "mma_sync_gemm"

    def supports(self, problem: MatmulProblem, target: Target) -> bool:
        p, dtype = problem, mma_dtype(problem.matmul)
        if dtype is None or dtype.name not in target.mma:
            return False
        return min(p.m, p.n, p.k) >= MIN_EXTENT

    def lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        p, layouts = problem, problem.input_layouts
        dtype = mma_dtype(p.matmul)
        assert dtype is not None
        interleaves = all(
            is_async_copyable(layout, p.target) for layout in operand_layouts(p.matmul, layouts)
        )
        sizes_ = (p.batch, p.m, p.n, p.k)
        tile, split_k = kernel.choose_tile(
            p.target, dtype, p.target.async_copy, *sizes_, interleaves
        )

        def lower_part(part: FusionGroup) -> LoweredKernel:
            e = Emitter(layouts, block_size=tile.threads)
            tile_k = tile.stage_shape(dtype).tile_k
            sizes, grid = split_k_sizes(e, p, (tile.m, tile.n), tile_k, split_k)
            operands = (
                staged_operand(e, x, axis, layouts, p.target)
                for axis, x in enumerate(p.matmul.inputs, 1)
            )
            block = ir.var("block")
            call = gemm_call(e, part, tile, sizes, dtype, operands)
            body, e.scratch = kernel.mma_sync_gemm(call, block)
            return e.grid_kernel(self.name, block, body, grid, part.notes)

        return split_in_kernel(p, split_k, lower_part)
