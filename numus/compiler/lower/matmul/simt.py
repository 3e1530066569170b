"""Schedule of the generic SIMT GEMM, with split-K over views."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.matmul.gpu_operands import gemm_call, register_operand
from numus.compiler.lower.matmul.problem import MatmulProblem, MatmulSchedule
from numus.compiler.lower.matmul.split_k import split_by_views
from numus.kernels.matmul.gpu.problem import GemmSizes
from numus.kernels.matmul.gpu.simt import TileShape, choose_split_k, choose_tile, simt_gemm
from numus.target import Target


class Simt(MatmulSchedule):
    name = "simt_gemm"

    def supports(self, problem: MatmulProblem, target: Target) -> bool:
        return True

    def lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        p = problem
        split_k = choose_split_k(p.target, _tile(p), p.batch, p.m, p.n, p.k)
        return split_by_views(p, split_k, self._lower)

    def _lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        p, layouts = problem, problem.input_layouts
        tile, dtype = _tile(p), dt.compute_dtype(p.matmul.dtype)
        e = Emitter(layouts, block_size=tile.threads)
        tiles_m, tiles_n = -(-p.m // tile.m), -(-p.n // tile.n)
        dims = (e.dim(x) for x in (p.m, p.n, p.k))
        sizes = GemmSizes(*dims, *(e.scalar_arg(x) for x in (tiles_m, tiles_n)))
        operands = (
            register_operand(e, p.a, 1, layouts, dtype),
            register_operand(e, p.b, 2, layouts, dtype),
        )
        block = ir.var("block")
        call = gemm_call(e, p.group, tile, sizes, dtype, operands)
        body, e.scratch = simt_gemm(call, block)
        grid = p.batch * tiles_m * tiles_n
        return [e.grid_kernel(self.name, block, body, grid, p.group.notes)]


def _tile(p: MatmulProblem) -> TileShape:
    dtype = dt.compute_dtype(p.matmul.dtype)
    unrolled = not p.target.vector_access_bytes
    return choose_tile(p.target, dtype, p.batch, p.m, p.n, p.store_only, unrolled)
