"""GPU schedules of GEMV and skinny GEMM: a matrix times a few vectors, by CUDA or tensor cores.

The operand with more rows (or columns) is the matrix; it is axis 1 of C where it is A, else axis 2.
"""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.matmul.gpu_operands import contiguous_along, vector_operand
from numus.compiler.lower.matmul.mma_sync import MmaSync, mma_dtype
from numus.compiler.lower.matmul.problem import MatmulProblem, MatmulSchedule, store_epilogue
from numus.compiler.lower.matmul.split_k import split_by_views
from numus.compiler.lower.matmul.wgmma import Wgmma
from numus.dtypes import DType
from numus.ir import Expr, Stmt
from numus.kernels.matmul.gpu import gemv as kernel
from numus.kernels.matmul.gpu import gemv_mma_sync as mma_kernel
from numus.kernels.matmul.gpu.problem import Emitted, GemmCall
from numus.kernels.matmul.gpu.vector_loads import VectorOperand
from numus.target import Target


def _matrix_axis(p: MatmulProblem) -> int:
    return 1 if p.m > p.n else 2


def _is_k_major(p: MatmulProblem) -> bool:
    axis = _matrix_axis(p)
    return contiguous_along(p.matmul.inputs[axis - 1], p.layouts, 3 - axis)


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


class GemvMmaSync(MatmulSchedule):
    name = "gemv_mma_sync"

    def supports(self, problem: MatmulProblem, target: Target) -> bool:
        p, tuning = problem, mma_kernel.TUNING
        few = tuning.min_vectors <= min(p.m, p.n) <= tuning.max_vectors
        large = max(p.m, p.n) >= kernel.TUNING.min_extent and 2 * p.k >= kernel.TUNING.min_k_bytes
        return _is_candidate(p) and few and large and _has_float16_mma(p)

    def lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        p, shape = problem, self._shape(problem)
        split_k = mma_kernel.choose_split_k(p.target, shape, p.batch, max(p.m, p.n), p.k)
        return split_by_views(p, _even_split_k(split_k, p.k), self._lower)

    def _shape(self, p: MatmulProblem) -> mma_kernel.GemvShape:
        rows, vectors = max(p.m, p.n), min(p.m, p.n)
        return mma_kernel.choose_shape(p.target, _is_k_major(p), p.batch, rows, vectors, p.k)

    def _lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        shape, dtype = self._shape(problem), problem.a.dtype
        builder = _Builder(problem, shape.threads, shape.rows)
        matrix, vectors = builder.operands(dtype)
        if not shape.k_major and problem.k % mma_kernel.K_QUAD:
            matrix.address = None
        if matrix.vector < mma_kernel.VECTOR:
            matrix.address = None
        call = GemmCall(shape, builder.sizes, dtype, matrix, vectors, builder.epilogue, True)
        return builder.kernel(self.name, mma_kernel.gemv_mma_sync(call, builder.block))


class Gemv(MatmulSchedule):
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
        k_bytes = p.k * p.matmul.inputs[_matrix_axis(p) - 1].dtype.itemsize
        long = k_bytes >= kernel.TUNING.min_k_bytes
        return not _is_k_major(p) or (min(p.m, p.n) > 1 and long)

    def lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        p, shape = problem, self._shape(problem)
        split_k = kernel.choose_split_k(p.target, shape, p.batch, max(p.m, p.n), p.k)
        return split_by_views(p, _even_split_k(split_k, p.k), self._lower)

    def _shape(self, p: MatmulProblem) -> kernel.GemvShape:
        itemsize = p.matmul.inputs[_matrix_axis(p) - 1].dtype.itemsize
        rows, vectors = max(p.m, p.n), min(p.m, p.n)
        return kernel.choose_shape(p.target, itemsize, _is_k_major(p), p.batch, rows, vectors, p.k)

    def _lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        shape, dtype = self._shape(problem), dt.compute_dtype(problem.matmul.dtype)
        builder = _Builder(problem, shape.threads, shape.block_rows)
        matrix, vectors = builder.operands(dtype, 16 if shape.k_major else shape.rows)
        if not shape.k_major and matrix.vector < shape.rows:
            matrix.address = None  # whole vectors or none
        call = GemmCall(shape, builder.sizes, dtype, matrix, vectors, builder.epilogue, True)
        return builder.kernel(self.name, kernel.gemv(call, builder.block))


def _even_split_k(split_k: int, k: int) -> int:
    """Fewer splits, of equal size, so that their loads are whole vectors."""
    while split_k > 1 and k % (mma_kernel.VECTOR * split_k):
        split_k -= 1
    return split_k


class _Builder:
    """Operands, sizes and epilogue of one kernel."""

    def __init__(self, problem: MatmulProblem, threads: int, block_rows: int) -> None:
        p = self.problem = problem
        self.layouts = p.input_layouts
        self.axis, self.block = _matrix_axis(p), ir.var("block")
        self.e = Emitter(self.layouts, block_size=threads)
        self.blocks = -(-max(p.m, p.n) // block_rows)
        vectors, rows, k = (self.e.dim(x) for x in (min(p.m, p.n), max(p.m, p.n), p.k))
        self.sizes = kernel.GemvSizes(vectors, rows, k, self.e.scalar_arg(self.blocks))

    def operands(self, dtype: DType, max_vector: int = 16) -> tuple[VectorOperand, VectorOperand]:
        """The matrix and the vectors."""
        inputs, other = self.problem.matmul.inputs, 3 - self.axis
        matrix, vectors = inputs[self.axis - 1], inputs[other - 1]
        return (
            vector_operand(self.e, matrix, self.axis, self.layouts, dtype, max_vector),
            vector_operand(self.e, vectors, other, self.layouts, dtype),
        )

    def epilogue(self, batch: Expr, vector: Expr, row: Expr, value: Expr) -> list[Stmt]:
        at = (batch, row, vector) if self.axis == 1 else (batch, vector, row)
        group = self.problem.group
        return store_epilogue(self.e, group, at, value.cast(group.members[0].dtype))

    def kernel(self, name: str, emitted: Emitted) -> list[LoweredKernel]:
        body, self.e.scratch = emitted
        grid, notes = self.problem.batch * self.blocks, self.problem.group.notes
        return [self.e.grid_kernel(name, self.block, body, grid, notes)]
