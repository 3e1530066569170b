"""Schedule of the small-K GEMM."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.matmul.gpu_operands import gemm_call, vector_operand
from numus.compiler.lower.matmul.mma_sync import MmaSync
from numus.compiler.lower.matmul.problem import MatmulProblem, MatmulSchedule
from numus.kernels.matmul.gpu import small_k as kernel
from numus.target import Target


class SmallK(MatmulSchedule):
    name = "small_k_gemm"

    def supports(self, problem: MatmulProblem, target: Target) -> bool:
        p, dtype, tuning = problem, problem.matmul.dtype, kernel.TUNING
        if not target.vector_access_bytes or dtype.is_complex or dtype is dt.bool_:
            return False
        max_k = tuning.max_k
        if dtype.itemsize < 4 and MmaSync().supports(p, target):
            max_k = tuning.max_k_with_mma
        return p.k <= max_k and min(p.m, p.n) >= tuning.min_extent

    def lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        p, layouts = problem, problem.input_layouts
        dtype = dt.compute_dtype(p.matmul.dtype)
        stored_bytes = min(v.dtype.itemsize for v in p.group.stored)
        itemsizes, size = (dtype.itemsize, stored_bytes), (p.batch, p.m, p.n, p.k)
        tile = kernel.choose_tile(p.target, itemsizes, p.store_only, size)
        e = Emitter(layouts, block_size=tile.threads)
        tiles_m, tiles_n = -(-p.m // tile.m), -(-p.n // tile.n)
        m, n, k = (e.dim(x) for x in (p.m, p.n, p.k))
        counts = e.scalar_arg(tiles_m), e.scalar_arg(tiles_n)
        sizes = kernel.SmallKSizes(m, n, k, *counts, exact=p.k == tile.k)
        max_vectors = (max(tile.k, tile.unroll_m), max(tile.k, tile.thread_n))
        operands = (
            vector_operand(e, x, axis, layouts, dtype, max_vectors[axis - 1])
            for axis, x in enumerate(p.matmul.inputs, 1)
        )
        block = ir.var("block")
        body = kernel.small_k_gemm(gemm_call(e, p.group, tile, sizes, dtype, operands), block)
        grid = p.batch * tiles_m * tiles_n
        return [e.grid_kernel(self.name, block, body, grid, p.group.notes)]
