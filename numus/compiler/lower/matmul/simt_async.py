"""Schedule of the multistage SIMT GEMM (cp.async): 4-byte numbers in memory."""

from __future__ import annotations

from numus import dtypes as dt
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.matmul.gpu_operands import (
    is_async_copyable,
    lower_staged,
    operand_layouts,
)
from numus.compiler.lower.matmul.problem import MatmulProblem, MatmulSchedule
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
        p, square = problem, _square_warp_tile(problem)
        tile, split_k = kernel.choose_tile(p.target, p.batch, p.m, p.n, p.k, square)
        how = (kernel.simt_async_gemm, tile, p.matmul.dtype, tile.k, split_k)
        return lower_staged(p, self.name, *how, mn_major=True)


def _square_warp_tile(p: MatmulProblem) -> kernel.TileShape | None:
    """Of float32 that is copied in whole vectors."""
    a, b = operand_layouts(p.matmul, p.input_layouts)
    if p.matmul.dtype is not dt.float32 or a is None or b is None:
        return None
    copyable = is_async_copyable(a, p.target) and is_async_copyable(b, p.target)
    if not (copyable and a.is_vector_aligned(p.a.dtype) and b.is_vector_aligned(p.b.dtype)):
        return None
    return kernel.WIDE_TILE if a.k_major else kernel.TALL_TILE
