"""Schedules of GEMM on warp-level tensor cores (mma.sync) and on CUDA cores (SIMT)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.matmul import gpu_operands as operands
from numus.compiler.lower.matmul.problem import MatmulProblem, split_by_views, split_in_kernel
from numus.compiler.lower.schedule import Fallback, InOrder
from numus.dtypes import DType
from numus.ir import Expr
from numus.kernels.matmul.gpu import mma_sync, simt, simt_async, small_k
from numus.kernels.matmul.gpu.mainloop import SplitKSizes, StagedOperand
from numus.kernels.matmul.gpu.problem import Emitted, GemmCall, GemmSizes, OperandT, VectorOperand
from numus.target import Target

MMA_MIN_EXTENT = 16  # of m, n and k: below, instructions are mostly empty
SIMT_MIN_EXTENT = 32  # of m and n: below, tiles are mostly empty

StagedTile = TypeVar("StagedTile", mma_sync.TileShape, simt_async.TileShape)
SimtTile = TypeVar("SimtTile", simt.TileShape, small_k.TileShape)


def mma_dtype(matmul: Value) -> DType | None:
    """The element type of the MMAs; None where they would round or overflow."""
    a, b = (x.dtype for x in matmul.inputs)
    if a is not b or a not in mma_sync.MMA_DTYPES:
        return None
    if a.is_integer:
        return a if matmul.dtype.is_integer and matmul.dtype.itemsize <= 4 else None
    if a is dt.float32:
        return a if matmul.params == "tf32" and matmul.dtype is dt.float32 else None
    return a if dt.compute_dtype(matmul.dtype) is dt.compute_dtype(a) else None


class MmaSync(InOrder):
    name = "mma_sync_gemm"

    def supports(self, problem: MatmulProblem, target: Target) -> bool:
        p, dtype = problem, mma_dtype(problem.matmul)
        large = min(p.m, p.n, p.k) >= MMA_MIN_EXTENT
        return dtype is not None and dtype.name in target.mma and large

    def lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        p, dtype = problem, mma_dtype(problem.matmul)
        assert dtype is not None
        interleaves = all(operands.is_async_copyable(x, p.target) for x in operands.layouts(p))
        size = (p.batch, p.m, p.n, p.k)
        tile, split_k = mma_sync.choose_tile(p.target, dtype, size, interleaves)
        tile_k = tile.stage_shape(dtype).tile_k
        return _lower_staged(p, self.name, mma_sync.mma_sync_gemm, tile, dtype, tile_k, split_k)


class SimtAsync(InOrder):
    """Multistage (cp.async), of 4-byte numbers in memory."""

    name = "simt_async_gemm"

    def supports(self, problem: MatmulProblem, target: Target) -> bool:
        p, dtype = problem, problem.matmul.dtype
        if any(x.dtype is not dtype for x in p.matmul.inputs) or min(p.m, p.n) < SIMT_MIN_EXTENT:
            return False
        if dtype not in (dt.float32, dt.int32, dt.uint32) or not target.async_copy:
            return False
        return all(layout is not None for layout in operands.layouts(p))

    def lower(self, problem: MatmulProblem, pairs: bool = False) -> list[LoweredKernel]:
        """`pairs`: B has a complex row for every two of k."""
        p, square = problem, _square_warp_tile(problem)
        tile, split_k = simt_async.choose_tile(p.target, p.batch, p.m, p.n, p.k, square)
        how = (simt_async.simt_async_gemm, tile, p.matmul.dtype, tile.k, split_k)
        return _lower_staged(p, self.name, *how, mn_major=True, pairs=pairs)


def _square_warp_tile(p: MatmulProblem) -> simt_async.TileShape | None:
    """Of float32 that is copied in whole vectors."""
    a, b = operands.layouts(p)
    if p.matmul.dtype is not dt.float32 or a is None or b is None:
        return None
    for layout in (a, b):
        copyable = operands.is_async_copyable(layout, p.target)
        if not (copyable and layout.is_vector_aligned(dt.float32)):
            return None
    return simt_async.WIDE_TILE if a.k_major else simt_async.TALL_TILE


def _lower_staged(
    p: MatmulProblem,
    name: str,
    kernel: Callable[[GemmCall[StagedTile, SplitKSizes, StagedOperand], Expr], Emitted],
    tile: StagedTile,
    dtype: DType,
    tile_k: int,
    split_k: int,
    mn_major: bool = False,
    pairs: bool = False,
) -> list[LoweredKernel]:
    """A GEMM whose operands are staged in shared memory, and the sum of its splits."""

    def lower_part(part: FusionGroup) -> LoweredKernel:
        e, block = Emitter(p.input_layouts, block_size=tile.threads), ir.var("block")
        sizes, grid = operands.split_k_sizes(e, p, (tile.m, tile.n), tile_k, split_k)
        staged = [
            operands.staged_operand(e, x, axis, p.target, mn_major)
            for axis, x in enumerate(p.matmul.inputs, 1)
        ]
        if pairs:
            staged[1].is_pairs, staged[1].k_end = True, lambda k_tile: sizes.k // 2
        call = operands.gemm_call(e, part, tile, sizes, dtype, staged)
        body, e.scratch = kernel(call, block)
        return e.grid_kernel(name, block, body, grid, part.notes)

    return split_in_kernel(p, split_k, lower_part)


class SmallK(InOrder):
    name = "small_k_gemm"

    def supports(self, problem: MatmulProblem, target: Target) -> bool:
        p, dtype, tuning = problem, problem.matmul.dtype, small_k.TUNING
        if not target.vector_access_bytes or dtype.is_complex or dtype is dt.bool_:
            return False
        has_mma = dtype.itemsize < 4 and MmaSync().supports(p, target)
        max_k = tuning.max_k_with_mma if has_mma else tuning.max_k
        return p.k <= max_k and min(p.m, p.n) >= tuning.min_extent

    def lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        p, dtype = problem, dt.compute_dtype(problem.matmul.dtype)
        itemsizes = (dtype.itemsize, min(v.dtype.itemsize for v in p.group.stored))
        size = (p.batch, p.m, p.n, p.k)
        tile = small_k.choose_tile(p.target, itemsizes, p.store_only, size)
        max_vectors = (max(tile.k, tile.unroll_m), max(tile.k, tile.thread_n))

        def operand(e: Emitter, x: Value, axis: int) -> VectorOperand:
            return operands.vector_operand(e, x, axis, dtype, max_vectors[axis - 1])

        return _lower_tiles(p, self.name, small_k.small_k_gemm, tile, dtype, operand)


class Simt(Fallback):
    """Any dtype and operands, with split-K over views."""

    name = "simt_gemm"

    def lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        p = problem
        split_k = simt.choose_split_k(p.target, self._tile(p), p.batch, p.m, p.n, p.k)
        return split_by_views(p, split_k, self._lower)

    def _lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        dtype = dt.compute_dtype(problem.matmul.dtype)
        operand = partial(operands.register_operand, dtype=dtype)
        tile = self._tile(problem)
        return _lower_tiles(problem, self.name, simt.simt_gemm, tile, dtype, operand)

    def _tile(self, p: MatmulProblem) -> simt.TileShape:
        dtype, unrolled = dt.compute_dtype(p.matmul.dtype), not p.target.vector_access_bytes
        return simt.choose_tile(p.target, dtype, p.batch, p.m, p.n, p.store_only, unrolled)


def _lower_tiles(
    p: MatmulProblem,
    name: str,
    kernel: Callable[[GemmCall[SimtTile, GemmSizes, OperandT], Expr], Emitted],
    tile: SimtTile,
    dtype: DType,
    operand: Callable[[Emitter, Value, int], OperandT],
) -> list[LoweredKernel]:
    """A GEMM with a block for each tile of C."""
    e, block = Emitter(p.input_layouts, block_size=tile.threads), ir.var("block")
    counts = -(-p.m // tile.m), -(-p.n // tile.n)
    dims = (e.dim(x) for x in (p.m, p.n, p.k))
    sizes = GemmSizes(*dims, *(e.scalar_arg(x) for x in counts))
    ab = (operand(e, x, axis) for axis, x in enumerate(p.matmul.inputs, 1))
    body, e.scratch = kernel(operands.gemm_call(e, p.group, tile, sizes, dtype, ab), block)
    return [e.grid_kernel(name, block, body, p.batch * counts[0] * counts[1], p.group.notes)]
