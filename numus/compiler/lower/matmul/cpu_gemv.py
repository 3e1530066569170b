"""CPU schedule of GEMV: few rows or columns of C, and the other operand K-major, read once."""

from __future__ import annotations

from typing import Any

from numus import ir
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.matmul.cpu_operands import CpuMatmul
from numus.compiler.lower.matmul.problem import MatmulProblem, MatmulSchedule
from numus.ir import Expr, Stmt
from numus.kernels.matmul.cpu import gemv as kernel
from numus.target import Target

MIN_ROWS = 64  # of the matrix, to keep all threads busy


class CpuGemv(MatmulSchedule):
    name = "gemv"

    def supports(self, problem: MatmulProblem, target: Target) -> bool:
        p = problem
        if p.is_tiny or p.matmul.dtype.kind == "bool" or p.matmul.dtype.is_complex:
            return False
        few = min(p.m, p.n) <= kernel.TUNING.max_vectors and max(p.m, p.n) >= MIN_ROWS
        if not few or p.k < target.vector_bytes:
            return False
        work = CpuMatmul(p)
        return not work.layout(work.a if p.m >= p.n else work.b).mn_major

    def lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        work, by_rows = CpuMatmul(problem), problem.m >= problem.n
        matrix, vectors = (work.a, work.b) if by_rows else (work.b, work.a)
        rows, count = max(work.m, work.n), min(work.m, work.n)
        shape = kernel.choose_shape(problem.target, work.dtype, work.batch, rows, count, work.k)
        tasks = -(-rows // shape.task_rows)
        vector_layout = work.layout(vectors)
        e = work.emitter()

        def epilogue(batch: Expr, row: Expr, vector: Expr, value: Any) -> list[Stmt]:
            m, n = (row, vector) if by_rows else (vector, row)
            return work.store(e, batch, m, n, value)

        task = ir.var("task")
        dims = (e.dim(rows), e.dim(work.k))
        sizes = (*dims, e.scalar_arg(shape.task_rows), e.scalar_arg(tasks))
        operands = (work.matrix(e, matrix), work.matrix(e, vectors))
        packed = vector_layout.mn_major or not vector_layout.in_memory
        body, e.scratch = kernel.gemv(shape, work.dtype, sizes, task, *operands, packed, epilogue)
        grid = work.batch * tasks
        return [e.grid_kernel(self.name, task, body, grid, problem.group.notes)]
