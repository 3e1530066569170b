"""Schedule of the warp-level tensor-core GEMM (mma.sync)."""

from __future__ import annotations

from numus import dtypes as dt
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.matmul.gpu_operands import (
    is_async_copyable,
    lower_staged,
    operand_layouts,
)
from numus.compiler.lower.matmul.problem import MatmulProblem, MatmulSchedule
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
        p, dtype = problem, mma_dtype(problem.matmul)
        assert dtype is not None
        found = operand_layouts(p.matmul, p.input_layouts)
        interleaves = all(is_async_copyable(layout, p.target) for layout in found)
        size = (p.batch, p.m, p.n, p.k)
        tile, split_k = kernel.choose_tile(p.target, dtype, size, interleaves)
        tile_k = tile.stage_shape(dtype).tile_k
        return lower_staged(p, self.name, kernel.mma_sync_gemm, tile, dtype, tile_k, split_k)
