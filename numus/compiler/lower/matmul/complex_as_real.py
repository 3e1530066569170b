"""Complex GEMM as a real one of twice the size (the 1m method).

In memory, complex numbers are pairs. A row of A read as real numbers, times B with each element
expanded to (re, im) above (-im, re), is a row of C. The SIMT GEMM expands B in registers; for other
real schedules, a kernel does in memory (mma.sync takes twice as long with pairs in shared memory).
"""

from __future__ import annotations

from collections.abc import Sequence

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph import strided_view
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops import lower_loops
from numus.compiler.lower.matmul.gpu_gemm import SimtAsync
from numus.compiler.lower.matmul.gpu_operands import MatrixLayout, contiguous_along, matrix_layout
from numus.compiler.lower.matmul.problem import MatmulProblem, lower_epilogue
from numus.compiler.lower.schedule import InOrder, Schedule, select
from numus.ir import const
from numus.shapes import Shape
from numus.target import Target

ZERO = const(0)

MIN_EXTENT = 16  # of m, n and k, from which on expanding B pays
BLOCK_ELEMENTS = 1024  # that a block expands


class ComplexAsReal(InOrder):
    name = "complex_as_real"

    def __init__(self, real: Sequence[Schedule[MatmulProblem]]) -> None:
        self.real_schedules = real

    def supports(self, problem: MatmulProblem, target: Target) -> bool:
        p, dtype = problem, problem.matmul.dtype
        same = all(x.dtype is dtype for x in p.matmul.inputs)
        large = min(p.m, p.n, p.k) >= MIN_EXTENT and bool(target.vector_access_bytes)
        return dtype.is_complex and same and large

    def lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        p, layouts, real = problem, problem.input_layouts, dt.real_of(problem.matmul.dtype)
        base, layout, steps = _pairs_along(p, p.a, 1)
        left = Value.fresh("pairs", "barrier", (), None, (p.batch, p.m, 2 * p.k), real)
        near = {**layouts, left: (2 * layout.batch_stride, 2 * layout.ld, 1)}
        names = {left: base}

        def real_problem(right: Value) -> MatmulProblem:
            shape = (p.batch, p.m, 2 * p.n)
            whole = Value.fresh("contract", "contract", (left, right), None, shape, real)
            names[whole] = p.matmul
            return MatmulProblem(FusionGroup.of_stored(whole, p.group.position), near, p.target)

        wide = Value.fresh("expanded", "barrier", (), None, (p.batch, 2 * p.k, 2 * p.n), real)
        near[wide] = (4 * p.k * p.n, 2 * p.n, 1)
        chosen = select(self.real_schedules, real_problem(wide))
        if isinstance(chosen, SimtAsync):
            base, layout, copies = _pairs_along(p, p.b, 2)
            right = Value.fresh("pairs", "barrier", (), None, (p.batch, p.k, 2 * p.n), real)
            near[right] = (2 * layout.batch_stride, 2 * layout.ld, 1)
            names[right] = base
            products = chosen.lower(real_problem(right), pairs=True)
            steps += copies
        else:
            step, right, near[right] = _expand(p.b, layouts)
            steps.append(step)
            gemm = real_problem(right)
            products = select(self.real_schedules, gemm).lower(gemm)
        for step in products:
            step.buffers = [names.get(v, v) for v in step.buffers]
        return steps + products + lower_epilogue(p, p.matmul)


def _pairs_along(
    p: MatmulProblem, x: Value, axis: int
) -> tuple[Value, MatrixLayout, list[LoweredKernel]]:
    """In whose memory an operand's rows are (those of A and B as they are multiplied), of
    contiguous elements; their layout; the kernels that copy it, where it is there otherwise."""
    layouts = p.input_layouts
    layout, (_, rows, columns) = matrix_layout(x, layouts, axis), x.shape
    if layout is not None and layout.k_major is (axis == 1):
        view = strided_view.strided_view(x, layouts)
        assert view is not None
        return view.base, layout, []
    copy = Value.fresh("copy", "barrier", (x,), None, x.shape, x.dtype)
    group = FusionGroup.of_stored(copy, p.group.position)
    steps = lower_loops(group, layouts, p.target)
    return copy, MatrixLayout(axis == 1, columns, rows * columns), steps


def _expand(b: Value, layouts: dict[Value, Shape]) -> tuple[LoweredKernel, Value, Shape]:
    """A kernel that expands B in its own order, its result and that one's strides."""
    batches, k, n = b.shape
    k_major = contiguous_along(b, layouts, 1)
    real = dt.real_of(b.dtype)
    out = Value.fresh("expanded", "barrier", (), None, (batches, 2 * k, 2 * n), real)
    strides = (4 * k * n, 1, 2 * k) if k_major else (4 * k * n, 2 * n, 1)
    e = Emitter(layouts, block_size=256)
    rows, columns = (n, k) if k_major else (k, n)
    total = batches * rows * columns
    block, lane, batch = ir.var("block"), ir.var("lane"), ZERO
    start = block * BLOCK_ELEMENTS
    i, j = divmod(start + lane, e.dim(columns))
    if batches > 1:
        batch, i = divmod(i, e.dim(rows))
    re, im = e.value(b, (batch, j, i) if k_major else (batch, i, j))
    x, y = ir.var("re", real), ir.var("im", real)
    buffer, ld = e.buffer(out, "write"), e.dim(2 * columns)
    first = (batch * e.dim(2 * rows) + i * 2) * ld + j * 2
    upper, lower = ((x, -y), (y, x)) if k_major else ((x, y), (-y, x))  # K-major: columns of B
    body: list[ir.Stmt] = [ir.Let(x, re), ir.Let(y, im)]
    for index, pair in ((first, upper), (first + ld, lower)):
        body += [ir.Store(buffer, index + u, v) for u, v in enumerate(pair)]
    end = ir.minimum(const(BLOCK_ELEMENTS), e.scalar_arg(total) - start)
    loop, grid = ir.For(lane, ZERO, end, "lanes", body), -(-total // BLOCK_ELEMENTS)
    return e.grid_kernel("expand_complex", block, [loop], grid, ("pack",)), out, strides
