"""CPU schedules of matmul, in order of preference: the first that supports a problem lowers it.

GEMM is blocked as in BLIS, with panels packed where reading in place would cost more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import PACKED, Value
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.matmul.cpu_operands import CpuMatmul, CpuOperand
from numus.compiler.lower.matmul.problem import Loops, MatmulProblem, split_by_views
from numus.compiler.lower.schedule import Fallback, InOrder, Schedule, select
from numus.ir import const
from numus.kernels.matmul.cpu import blocking, gemv
from numus.kernels.matmul.cpu.gemm import GemmCall, GemmSizes, gemm
from numus.kernels.matmul.cpu.panels import Matrix, MatrixRows, Packed, Panels
from numus.shapes import Shape
from numus.target import Target

ZERO = const(0)


@dataclass(frozen=True, slots=True)
class CpuTuning:
    """Measured on Neoverse N1 and x86-64 machines of 2 cores."""

    gemv_min_rows: int = 64  # of the matrix, to keep all threads busy
    gemv_packed_max_vectors: int = 32  # of k, next to which the reduction of lanes is work
    pack_panels: int = 32  # MN-major panels of a packing task,
    pack_rows: int = 32  # and rows of k
    scalar_store_cost: float = 2.5  # of an element, relative to packing one
    max_k: int = 8192  # above, split-K in halves of this keeps operands in the caches
    skinny_min_bytes: int = 1 << 9  # of a row of B: sums must not depend on the number of cores


TUNING = CpuTuning()


class CpuGemv(InOrder):
    """Few rows or columns of C, and the other operand K-major, read once."""

    name = "gemv"

    def supports(self, problem: MatmulProblem, target: Target) -> bool:
        p, dtype = problem, problem.matmul.dtype
        if p.is_tiny or dtype.kind == "bool" or dtype.is_complex or p.k < target.vector_bytes:
            return False
        if min(p.m, p.n) > gemv.TUNING.max_vectors or max(p.m, p.n) < TUNING.gemv_min_rows:
            return False
        work = CpuMatmul(p, transposed=p.m < p.n)
        return not _packs_vectors(work) and not work.layout(work.a).mn_major

    def lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        """The matrix is A, that of C' = B' A' where there are few rows."""
        work = CpuMatmul(problem, transposed=problem.m < problem.n)
        batch, rows, k = work.batch, work.m, work.k
        shape = gemv.choose_shape(problem.target, work.dtype, batch, rows, work.n, k)
        tasks = -(-rows // shape.task_rows)
        vectors = work.layout(work.b)
        e, task = work.emitter(), ir.var("task")
        sizes = (e.dim(rows), e.dim(k), e.scalar_arg(shape.task_rows), e.scalar_arg(tasks))
        operands = (work.matrix(e, work.a), work.matrix(e, work.b))
        packed = vectors.mn_major or not vectors.in_memory
        how = (task, *operands, packed, partial(work.store, e))
        body, e.scratch = gemv.gemv(shape, work.dtype, sizes, *how)
        return [e.grid_kernel(self.name, task, body, batch * tasks, problem.group.notes)]


def _packs_vectors(work: CpuMatmul) -> bool:
    """Rows of A are short, and packed once for many runs: no row's lanes have to be reduced."""
    width = work.problem.target.vector_bytes // work.dtype.itemsize
    return work.k <= TUNING.gemv_packed_max_vectors * width and work.is_captured(work.a)


class CpuLoops(Loops):
    def supports(self, problem: MatmulProblem, target: Target) -> bool:
        p = problem
        if not p.is_tiny and p.matmul.dtype.kind != "bool" and min(p.m, p.n) == 1:
            return not _packs_vectors(CpuMatmul(p, transposed=p.m < p.n))
        return super().supports(p, target)


class SplitKGemm(InOrder):
    name = "split_k_gemm"

    def supports(self, problem: MatmulProblem, target: Target) -> bool:
        return problem.k > TUNING.max_k

    def lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        split_k = -(-problem.k // (TUNING.max_k // 2))
        return split_by_views(problem, split_k, lambda p: _lower(CpuMatmul(p)))


class SkinnyGemm(InOrder):
    """Few rows of C (or columns: then transposed) times an MN-major matrix, read in place."""

    name = "skinny_gemm"

    def supports(self, problem: MatmulProblem, target: Target) -> bool:
        work = self._oriented(problem)
        if work.parts > 1:
            return False
        enough = work.batch * work.n * work.dtype.itemsize >= TUNING.skinny_min_bytes
        skinny = enough and work.m <= blocking.TUNING.skinny_max_rows
        return skinny and work.layout(work.b).mn_major

    def lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        return _lower(self._oriented(problem), skinny=True)

    @staticmethod
    def _oriented(problem: MatmulProblem) -> CpuMatmul:
        return CpuMatmul(problem, transposed=problem.m > problem.n)


class Gemm(Fallback):
    name = "gemm"

    def lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        return _lower(CpuMatmul(problem, transposed=_pays_to_transpose(problem)))


def _pays_to_transpose(p: MatmulProblem) -> bool:
    """A K-major B would be packed element by element; as rows of C' = B' A' it is read in place, at
    the cost of packing A and storing the result element by element."""
    work = CpuMatmul(p)
    b = work.layout(work.b)
    if b.mn_major or not b.in_memory or work.is_captured(work.b):
        return False
    return p.m * (p.k + p.n) * TUNING.scalar_store_cost < p.n * p.k


def _lower(work: CpuMatmul, skinny: bool = False) -> list[LoweredKernel]:
    p, target = work.problem, work.problem.target
    batch, m, n, k = work.batch, work.m, work.n, work.k
    a, b = work.layout(work.a), work.layout(work.b)
    near = target.l2_bytes // 4  # bytes within which strided rows stay cached
    # loads across two cache lines cost little where both are in L1
    close = k * b.k_stride <= target.l1_bytes // 2
    aligned = b.in_memory and b.mn_major and (close or b.k_stride % target.vector_bytes == 0)
    direct = (
        a.in_memory and (not a.mn_major or k * a.k_stride <= near),
        skinny or (aligned and k * b.k_stride <= near),
    )
    computed = (not a.in_memory, not b.in_memory)
    captured = (work.is_captured(work.a), work.is_captured(work.b) and not skinny)
    shape = blocking.choose_blocking(
        *(target, work.dtype, work.parts, (batch, m, n, k), a.mn_major, direct),
        *(a.mn_stride, skinny, computed, p.group.low_memory, captured),
    )
    e = work.emitter()
    e.stores_once = True
    tasks_m, tasks_n = -(-m // shape.task_rows), -(-n // shape.task_columns)
    counts = (shape.task_rows, shape.task_columns, tasks_m, tasks_n, shape.block_k)
    sizes = GemmSizes(*(e.dim(x) for x in (m, n, k)), *(e.scalar_arg(x) for x in counts))
    steps: list[LoweredKernel] = []

    def operand(x: CpuOperand, access: str) -> Matrix | Packed:
        """Packed by a kernel before, or as it is."""
        if access != "shared":
            return work.matrix(e, x)
        step, packed, panels = _pack(work, shape, x)
        steps.append(step)
        e.layouts[packed] = (1,)
        return Packed(e.buffer(packed), ZERO, replace(panels, k=sizes.k))

    task = ir.var("task")
    operands = operand(work.a, shape.a_access), operand(work.b, shape.b_access)
    call = GemmCall(shape, sizes, work.dtype, *operands, partial(work.store, e), p.store_only)
    body, e.scratch = gemm(call, task)
    return [*steps, e.grid_kernel("gemm", task, body, batch * tasks_m * tasks_n, p.group.notes)]


def _pack(
    work: CpuMatmul, shape: blocking.Blocking, x: CpuOperand
) -> tuple[LoweredKernel, Value, Panels]:
    """A kernel that packs an operand, its result, and the panels. A task packs a K-major panel, or
    some rows of k of many MN-major ones."""
    e = work.emitter()
    panels = Panels(shape, e.dim(work.k), of_a=x is work.a)
    matrix = work.matrix(e, x)
    count = -(-x.value.shape[x.axis] // panels.extent)
    padded_k = -(-work.k // shape.width) * shape.width
    size = work.batch * count * panels.extent * padded_k * work.parts
    packed = Value.fresh(PACKED, "barrier", (), None, (size,), work.dtype)
    buffer = e.buffer(packed, "write")
    task_panels = 1 if panels.k_major else min(count, TUNING.pack_panels)
    task_k = work.k if panels.k_major else min(work.k, TUNING.pack_rows)
    tasks_mn, tasks_k = -(-count // task_panels), -(-work.k // task_k)
    across, down = e.scalar_arg(tasks_mn), e.scalar_arg(tasks_k)
    extent, rows = e.scalar_arg(task_panels * panels.extent), e.scalar_arg(task_k)
    task = ir.var("task")
    batch = task // (across * down)
    first = task % across * extent
    stop = ir.minimum(first + extent, matrix.extent)
    start = panels.size(batch * panels.padded(matrix.extent) + first)
    k_range = None
    if not panels.k_major:
        k0 = task // across % down * rows
        k_range = (k0, ir.minimum(k0 + rows, panels.k))
    body = panels.pack(buffer, start, MatrixRows(matrix, batch, first, stop), k_range)
    grid = work.batch * tasks_mn * tasks_k
    return e.grid_kernel("pack", task, body, grid, ("pack",)), packed, panels


SCHEDULES: Sequence[Schedule[MatmulProblem]] = (
    CpuGemv(),
    CpuLoops(),
    SplitKGemm(),
    SkinnyGemm(),
    Gemm(),
)


def lower_cpu_matmul(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    problem = MatmulProblem(group, layouts, target)
    return select(SCHEDULES, problem).lower(problem)
