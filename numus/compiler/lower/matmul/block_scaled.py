"""Block-scaled float8 GEMM on wgmma: tiles along k are as long as a block of scales, by which their
products are multiplied on the way to the accumulators (as in DeepGEMM)."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.matmul import gpu_operands
from numus.compiler.lower.matmul.problem import store_epilogue
from numus.compiler.lower.matmul.wgmma import tma_operand, tma_readable
from numus.compiler.lower.schedule import Candidate, Problem, family
from numus.ir import Expr, Stmt
from numus.kernels.matmul.gpu import wgmma as kernel
from numus.kernels.matmul.gpu.epilogue import stores_whole_rows
from numus.kernels.matmul.gpu.problem import GemmCall
from numus.kernels.matmul.packed import SCALED_BLOCK


@dataclass(frozen=True)
class ScaledProblem(Problem):
    """A (m, k), scales (m, blocks of k), B (n, k), scales (blocks of n, blocks of k)."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """m, n, k."""
        a = self.val.inputs[0]
        return (*self.val.shape, a.shape[1])  # type: ignore[return-value]


def _matrices(p: ScaledProblem) -> tuple[Value, Value]:
    """A (1, m, k) and B (1, k, n)."""
    (m, n, k), (a, _, b, _) = p.sizes, p.val.inputs
    rows, columns = (
        Value.fresh("reshape", "view", (x,), (1, count, k), (1, count, k), x.dtype)
        for x, count in ((a, m), (b, n))
    )
    return rows, Value.fresh("permute", "view", (columns,), (0, 2, 1), (1, k, n), b.dtype)


def _lower_wgmma(p: ScaledProblem) -> Kernels:
    (m, n, k), (a, a_scales, _, b_scales), layouts = p.sizes, p.val.inputs, dict(p.layouts)
    tile, _ = kernel.choose_tile(p.target, a.dtype, (1, m, n), k, persistent=True, splits=False)
    per_sm = tile.blocks_per_sm
    repacks, matrices = tma_readable(_matrices(p), layouts, a.dtype)
    itemsizes = tuple(v.dtype.itemsize for v in p.group.members if v in p.group.stored)
    if not stores_whole_rows(itemsizes, n):
        tile = kernel.fit_stages(p.target, (tile.m, tile.n), per_sm, persistent=False)
    e, block = Emitter(layouts, block_size=tile.threads(a.dtype)), ir.var("block")
    sizes, grid = gpu_operands.tile_sizes(e, p.target, (1, m, n, k), (tile.m, tile.n), SCALED_BLOCK)

    def scale(row: Expr, column: Expr, k_tile: Expr) -> Expr:
        own: Expr = e.value(a_scales, (row, k_tile))
        of_block: Expr = e.value(b_scales, (column // SCALED_BLOCK, k_tile))
        return own * of_block

    def epilogue(batch: Expr, row: Expr, column: Expr, value: Expr) -> list[Stmt]:
        return store_epilogue(e, p.group, (row, column), value.cast(p.val.dtype))

    left, right = (
        tma_operand(e, x, layout, extent, sizes.k, 1)
        for (x, layout), extent in zip(matrices, (sizes.m, sizes.n), strict=True)
    )
    call = GemmCall(tile, sizes, a.dtype, left, right, epilogue, len(p.group.members) == 1)
    body, e.scratch = kernel.wgmma_gemm(call, block, scale)
    resident = p.target.num_cores * per_sm if tile.persistent else 0
    return [*repacks, e.grid_kernel("wgmma_gemm", block, body, grid, p.group.notes, resident)]


def _is_wgmma(p: ScaledProblem) -> bool:
    return p.target.wgmma and p.val.inputs[0].dtype is dt.float8_e4m3fn


lower_scaled = family(ScaledProblem, Candidate("wgmma", _lower_wgmma, _is_wgmma))
