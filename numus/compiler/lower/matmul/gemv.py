"""GPU schedules of GEMV and skinny GEMM: a matrix times a few vectors, by CUDA or tensor cores.

The operand with more rows (or columns) is the matrix; it is axis 1 of C where it is A, else axis 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from numus import dtypes as dt
from numus import ir
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops.early_prefetch import is_fetched, line_elements
from numus.compiler.lower.matmul.gpu_gemm import MmaSync, mma_dtype
from numus.compiler.lower.matmul.gpu_operands import contiguous_along, gemm_call, vector_operand
from numus.compiler.lower.matmul.problem import MatmulProblem, split_by_views
from numus.compiler.lower.matmul.wgmma import Wgmma
from numus.compiler.lower.schedule import InOrder
from numus.dtypes import DType
from numus.ir import Expr, Stmt
from numus.kernels.matmul.gpu import gemv as kernel
from numus.kernels.matmul.gpu import gemv_mma_sync as mma_kernel
from numus.kernels.matmul.gpu.problem import Emitted, GemmCall, VectorOperand
from numus.target import Target

ShapeT = TypeVar("ShapeT", kernel.GemvShape, mma_kernel.GemvShape)


def _matrix_axis(p: MatmulProblem) -> int:
    return 1 if p.m > p.n else 2


def _is_k_major(p: MatmulProblem) -> bool:
    axis = _matrix_axis(p)
    return contiguous_along(p.matmul.inputs[axis - 1], p.layouts, 3 - axis)


def _matrix_itemsize(p: MatmulProblem) -> int:
    return p.matmul.inputs[_matrix_axis(p) - 1].dtype.itemsize


def _is_candidate(p: MatmulProblem) -> bool:
    """Threads exchange registers and load vectors; the matrix is large enough to wait for."""
    target, dtype = p.target, p.matmul.dtype
    if not (target.subgroup_size and target.vector_access_bytes) or p.is_tiny:
        return False
    if dtype is dt.bool_ or dtype.is_complex:
        return False
    return max(p.m, p.n, p.k) >= kernel.TUNING.min_extent


def _has_float16_mma(p: MatmulProblem) -> bool:
    dtype = mma_dtype(p.matmul)
    return dtype is not None and dtype.itemsize == 2 and dtype.name in p.target.mma


class GemvMmaSync(InOrder):
    name = "gemv_mma_sync"

    def supports(self, problem: MatmulProblem, target: Target) -> bool:
        p, tuning = problem, mma_kernel.TUNING
        is_skinny = tuning.min_vectors <= min(p.m, p.n) <= tuning.max_vectors
        large = max(p.m, p.n) >= kernel.TUNING.min_extent and 2 * p.k >= kernel.TUNING.min_k_bytes
        return _is_candidate(p) and is_skinny and large and _has_float16_mma(p)

    def lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        def shape(p: MatmulProblem) -> mma_kernel.GemvShape:
            size = (p.batch, max(p.m, p.n), min(p.m, p.n), p.k)
            return mma_kernel.choose_shape(p.target, _is_k_major(p), *size)

        return _lower(problem, self.name, shape, problem.a.dtype, mma_kernel.gemv_mma_sync)


class Gemv(InOrder):
    """Where no tensor-core GEMM supports the problem. A single vector times a K-major matrix is a
    reduction of rows (`lower/loops/`)."""

    name = "gemv"

    def supports(self, problem: MatmulProblem, target: Target) -> bool:
        p = problem
        if not _is_candidate(p) or Wgmma().supports(p, target) or MmaSync().supports(p, target):
            return False
        max_vectors = kernel.TUNING.max_vectors
        if _has_float16_mma(p):
            max_vectors = mma_kernel.TUNING.min_vectors - 1
        if min(p.m, p.n) > max_vectors:
            return False
        long = p.k * _matrix_itemsize(p) >= kernel.TUNING.min_k_bytes
        return not _is_k_major(p) or (min(p.m, p.n) > 1 and long)

    def lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        def shape(p: MatmulProblem) -> kernel.GemvShape:
            size = (p.batch, max(p.m, p.n), min(p.m, p.n), p.k)
            return kernel.choose_shape(p.target, _matrix_itemsize(p), _is_k_major(p), *size)

        dtype = dt.compute_dtype(problem.matmul.dtype)
        return _lower(problem, self.name, shape, dtype, kernel.gemv)


def _lower(
    problem: MatmulProblem,
    name: str,
    shape_of: Callable[[MatmulProblem], ShapeT],
    dtype: DType,
    emit: Callable[[GemmCall[ShapeT, kernel.GemvSizes, VectorOperand], Expr], Emitted],
) -> list[LoweredKernel]:
    """A matrix times vectors in `dtype`, and the sum of the splits of k."""

    def lower_part(p: MatmulProblem) -> list[LoweredKernel]:
        shape, axis = shape_of(p), _matrix_axis(p)
        e, block = Emitter(p.input_layouts, block_size=shape.threads), ir.var("block")
        blocks = -(-max(p.m, p.n) // shape.block_rows)
        count, rows, k = (e.dim(x) for x in (min(p.m, p.n), max(p.m, p.n), p.k))
        sizes = kernel.GemvSizes(count, rows, k, e.scalar_arg(blocks))
        matrix, vectors = (
            vector_operand(e, p.matmul.inputs[i - 1], i, dtype, max_vector)
            for i, max_vector in ((axis, shape.max_vector), (3 - axis, 16))
        )
        if not shape.loads_vectors(matrix.vector, p.k):
            matrix.address = None
        call = gemm_call(e, p.group, shape, sizes, dtype, (matrix, vectors))
        if axis == 1:
            store = call.epilogue
            call.epilogue = lambda batch, vector, row, value: store(batch, row, vector, value)
        body = _prefetched(e, p, matrix, shape, block, sizes.blocks)
        emitted: Emitted = emit(call, block)
        body, e.scratch = body + emitted[0], emitted[1]
        return [e.grid_kernel(name, block, body, p.batch * blocks, p.group.notes)]

    p = problem
    split_k = shape_of(p).split_k(p.target, p.batch, max(p.m, p.n), p.k)
    while split_k > 1 and p.k % (mma_kernel.VECTOR * split_k):
        split_k -= 1  # equal splits, so that their loads are whole vectors
    return split_by_views(p, split_k, lower_part)


def _prefetched(
    e: Emitter,
    p: MatmulProblem,
    matrix: VectorOperand,
    shape: kernel.GemvShape | mma_kernel.GemvShape,
    block: Expr,
    blocks: Expr,
) -> list[Stmt]:
    """Prefetches of a block's part of a matrix that the program is given, and the wait for the
    kernels before."""
    x = base = p.matmul.inputs[_matrix_axis(p) - 1]
    while base.kind == "view" and base not in e.layouts:
        base = base.inputs[0]
    if matrix.address is None or base not in e.layouts or not is_fetched(base, p.target):
        return []
    per_line = line_elements(x.dtype)
    rows, k = shape.block_rows, p.k
    outer, inner = (rows, k) if matrix.k_major else (k, rows)
    lines = -(-inner // per_line)
    line = ir.var("fetched")
    at, along = line // lines, line % lines * per_line
    own, position = (at, along) if matrix.k_major else (along, at)
    row = ir.minimum(block % blocks * rows + own, e.dim(max(p.m, p.n)) - 1)
    place = matrix.address(block // blocks, row, position)
    fetch = ir.Prefetch(*place, write=False, level=2)
    loop = ir.For(line, ir.const(0), ir.const(outer * lines), "lanes", [fetch])
    return [loop, ir.DependencyWait()]
