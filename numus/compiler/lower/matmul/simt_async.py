"""Schedule of the multistage SIMT GEMM (cp.async): 4-byte numbers in memory."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
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
from numus.kernels.matmul.gpu import simt_async as kernel
from numus.target import Target

MIN_EXTENT = 32  # of m and n: below, tiles are mostly empty


class SimtAsync(MatmulSchedule):
    name = "simt_async_gemm"

    def supports(self, problem: MatmulProblem, target: Target) -> bool:
        p, dtype = problem, problem.matmul.dtype
        if any(x.dtype is not dtype for x in p.matmul.inputs) or min(p.m, p.n) < MIN_EXTENT:
            return False
        if dtype not in (dt.float32, dt.int32, dt.uint32) or not target.async_copy:
            return False
        return all(layout is not None for layout in operand_layouts(p.matmul, p.layouts))

    def lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        p, layouts = problem, problem.input_layouts
        tile, split_k = kernel.choose_tile(p.target, p.batch, p.m, p.n, p.k, _square_warp_tile(p))

        def lower_part(part: FusionGroup) -> LoweredKernel:
            e = Emitter(layouts, block_size=tile.threads)
            sizes, grid = split_k_sizes(e, p, (tile.m, tile.n), tile.k, split_k)
            operands = (
                staged_operand(e, x, axis, layouts, p.target, mn_major=True)
                for axis, x in enumerate(p.matmul.inputs, 1)
            )
            block = ir.var("block")
            call = gemm_call(e, part, tile, sizes, p.matmul.dtype, operands)
            body, e.scratch = kernel.simt_async_gemm(call, block)
            return e.grid_kernel(self.name, block, body, grid, part.notes)

        return split_in_kernel(p, split_k, lower_part)


def _square_warp_tile(p: MatmulProblem) -> kernel.TileShape | None:
    """Of float32 that is copied in whole vectors."""
    a, b = operand_layouts(p.matmul, p.input_layouts)
    if p.matmul.dtype is not dt.float32 or a is None or b is None:
        return None
    copyable = is_async_copyable(a, p.target) and is_async_copyable(b, p.target)
    if not (copyable and a.is_vector_aligned(p.a.dtype) and b.is_vector_aligned(p.b.dtype)):
        return None
    return kernel.WIDE_TILE if a.k_major else kernel.TALL_TILE
